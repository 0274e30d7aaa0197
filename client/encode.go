package client

import (
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/segmentio/asm/base64"
)

// Requests are encoded by hand, because encoding/json would scan and copy each value three times.

// encodedSize is about how long a publish will be, so that its buffer is allocated once.
func encodedSize(topic string, records []Record, requestID string) int {
	n := 128 + len(topic) + len(requestID)
	for _, r := range records {
		n += 32 + base64.StdEncoding.EncodedLen(len(r.Key)) + base64.StdEncoding.EncodedLen(len(r.Value))
	}
	return n
}

func appendPublish(b []byte, topic string, r Record, requestID string) []byte {
	b = append(b, `{"topic":`...)
	b = appendString(b, topic)
	b = append(b, ',')
	b = appendRecord(b, r)
	b = appendRequestID(b, requestID)
	return append(b, '}')
}

func appendPublishBatch(b []byte, topic string, records []Record, requestID string) []byte {
	b = append(b, `{"topic":`...)
	b = appendString(b, topic)
	b = append(b, `,"messages":[`...)
	for i, r := range records {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = appendRecord(b, r)
		b = append(b, '}')
	}
	b = append(b, ']')
	b = appendRequestID(b, requestID)
	return append(b, '}')
}

// appendRecord appends the members of a record, without the braces around them.
func appendRecord(b []byte, r Record) []byte {
	if len(r.Key) > 0 {
		b = append(b, `"key":`...)
		b = appendBase64(b, r.Key)
		b = append(b, ',')
	}
	b = append(b, `"value":`...)
	return appendBase64(b, r.Value)
}

func appendRequestID(b []byte, id string) []byte {
	if id == "" {
		return b
	}
	b = append(b, `,"request_id":`...)
	return appendString(b, id)
}

func appendBase64(b, data []byte) []byte {
	b = append(b, '"')
	n := base64.StdEncoding.EncodedLen(len(data))
	b = slices.Grow(b, n)
	base64.StdEncoding.Encode(b[len(b):len(b)+n], data)
	return append(b[:len(b)+n], '"')
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // a string always has a JSON form
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendField(b []byte, name string, n uint64) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return strconv.AppendUint(b, n, 10)
}

// checkNames refuses what JSON cannot carry: encoding would turn it into another name without a word. All
// else is the broker's to judge.
func (call *call) checkNames(names ...string) error {
	for _, name := range names {
		if !utf8.ValidString(name) {
			return call.refuse("a name is not valid UTF-8")
		}
	}
	return nil
}
