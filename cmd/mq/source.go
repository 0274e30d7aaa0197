package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/mq/client"
)

// inputMax bounds one line of input: a record of the largest size with every byte escaped fits well.
const inputMax = 4 << 20

// source reads records from lines.
type source struct {
	in      *bufio.Reader
	cmd     *pubCmd
	number  uint64            // of the line that was read last, from 1
	skipped map[string]uint64 // lines that hold no record, by their kind
	read    atomic.Int64      // bytes
	line    []byte
}

// input is a record from the input. It is the caller's.
type input struct {
	origin // of a line that names its request id; else only the topic is set
	record client.Record
}

// origin names the publish that a record was part of before it was cut off a log. Its records stand on lines that
// follow each other.
type origin struct {
	topic     string
	requestID string
	index     uint64 // of the entry; 0 if the line does not tell
}

func newSource(in io.Reader, cmd *pubCmd) *source {
	return &source{in: bufio.NewReaderSize(in, 256<<10), cmd: cmd, skipped: map[string]uint64{}}
}

// pending says whether another line can be read without waiting for input.
func (s *source) pending() bool {
	buffered, _ := s.in.Peek(s.in.Buffered())
	return bytes.IndexByte(buffered, '\n') >= 0
}

// next returns the next record, or io.EOF.
func (s *source) next() (in input, err error) {
	for {
		if err := s.readLine(); err != nil {
			return input{}, err
		}
		s.number++
		switch {
		case s.cmd.Lines:
			in.topic, in.record = s.cmd.Topic, client.Record{Key: []byte(s.cmd.Key), Value: bytes.Clone(s.line)}
			if s.cmd.Base64 {
				in.record, err = decodeBase64(string(in.record.Key), string(in.record.Value))
			}
		case len(bytes.TrimSpace(s.line)) == 0:
			continue
		default:
			in, err = s.parse()
		}
		if err == errNoRecord {
			continue
		}
		if err != nil {
			return input{}, fmt.Errorf("line %d: %w", s.number, err)
		}
		return in, nil
	}
}

// reportSkipped tells of lines that held no record.
func (s *source) reportSkipped(w io.Writer) {
	if len(s.skipped) == 0 {
		return
	}
	var sum uint64
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(s.skipped)) {
		sum += s.skipped[kind]
		kinds = append(kinds, fmt.Sprintf("%d of kind %s", s.skipped[kind], appendVisible(nil, []byte(kind))))
	}
	fmt.Fprintf(w, "mq: skipped %s that hold no record: %s\n", count(sum, "line"), strings.Join(kinds, ", "))
}

// readLine reads into s.line, without the line end.
func (s *source) readLine() error {
	s.line = s.line[:0]
	for {
		part, err := s.in.ReadSlice('\n')
		s.line = append(s.line, part...)
		s.read.Add(int64(len(part)))
		switch {
		case len(s.line) > inputMax:
			return fmt.Errorf("line %d is longer than %d bytes", s.number+1, inputMax)
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(s.line) > 0:
			return nil // the last line may lack its end
		case err == io.EOF:
			return io.EOF
		case err != nil:
			return fmt.Errorf("read line %d: %w", s.number+1, err)
		}
		s.line = s.line[:len(s.line)-1]
		return nil
	}
}

// jsonLine is a line of a JSONL file. What comes after Value is only read with --base64: it is what 'mq fetch -o json'
// and the files of cut entries have. A member that is not there is nil.
type jsonLine struct {
	Topic jsontext.Value `json:"topic"`
	Key   jsontext.Value `json:"key"`
	Value jsontext.Value `json:"value"`

	Kind      jsontext.Value `json:"kind"` // of what is no record
	RequestID jsontext.Value `json:"request_id"`
	Index     jsontext.Value `json:"index"`

	// Read over.
	Offset      jsontext.Value `json:"offset"`
	TimestampMS jsontext.Value `json:"timestamp_ms"`
	Term        jsontext.Value `json:"term"`
	Group       jsontext.Value `json:"group"`
	NextOffset  jsontext.Value `json:"next_offset"`
	StartOffset jsontext.Value `json:"start_offset"`
	WindowMS    jsontext.Value `json:"request_id_window_ms"`

	RetentionMS      jsontext.Value `json:"retention_ms"`
	RetentionBytes   jsontext.Value `json:"retention_bytes"`
	RetentionRecords jsontext.Value `json:"retention_records"`
}

// errNoRecord: the line holds something else. It was counted.
var errNoRecord = errors.New("no record")

func (s *source) parse() (in input, err error) {
	var l jsonLine
	// Strict: a member that is not known, given twice, or no text is a mistake that would lose data.
	if err := json.Unmarshal(s.line, &l, json.RejectUnknownMembers(true)); err != nil {
		return in, explainJSON(err)
	}
	if string(bytes.TrimSpace(s.line)) == "null" {
		return in, errNoObject
	}
	in.topic = s.cmd.Topic
	var key, value, kind string
	for _, member := range []struct {
		name string
		json jsontext.Value
		to   *string
	}{{"topic", l.Topic, &in.topic}, {"key", l.Key, &key}, {"value", l.Value, &value}, {"kind", l.Kind, &kind}, {"request_id", l.RequestID, &in.requestID}} {
		if member.json == nil {
			continue
		}
		if kind := member.json.Kind(); kind != '"' {
			return in, fmt.Errorf("%s is %s: it must be a string", member.name, kindName(kind))
		}
		text, err := jsontext.AppendUnquote(nil, member.json)
		if err != nil {
			return in, fmt.Errorf("%s: %w", member.name, err)
		}
		*member.to = string(text)
	}
	name, more := l.more()
	switch {
	case !s.cmd.Base64 && more:
		return in, fmt.Errorf("%s: a line of 'mq fetch -o json' or of a file of cut entries needs --base64", name)
	case kind != "" && (l.Key != nil || l.Value != nil || l.RequestID != nil):
		return in, fmt.Errorf("kind is %q, which has no key, value or request_id", kind)
	case kind != "":
		s.skipped[kind]++
		return in, errNoRecord
	case l.Kind != nil:
		return in, errors.New("kind is empty")
	case in.topic == "" && l.Topic != nil:
		return in, errors.New("topic is empty")
	case in.topic == "":
		return in, errors.New("topic is missing, and the command line names none")
	case l.Value == nil:
		return in, errors.New("value is missing")
	case l.Group != nil || l.NextOffset != nil || l.StartOffset != nil || l.WindowMS != nil,
		l.RetentionMS != nil || l.RetentionBytes != nil || l.RetentionRecords != nil:
		return in, errors.New("group, next_offset, start_offset and request_id_window_ms do not belong to a record")
	case l.RequestID != nil && in.requestID == "":
		return in, errors.New("request_id is empty")
	}
	if l.RequestID != nil && l.Index != nil {
		if in.index, err = strconv.ParseUint(string(l.Index), 10, 64); err != nil {
			return in, errors.New("index must be a whole number")
		}
	}
	if s.cmd.Base64 {
		in.record, err = decodeBase64(key, value)
		return in, err
	}
	in.record = client.Record{Key: []byte(key), Value: []byte(value)}
	return in, nil
}

// more returns a member that only lines with base64 have.
func (l *jsonLine) more() (name string, found bool) {
	for _, member := range []struct {
		name string
		json jsontext.Value
	}{
		{"offset", l.Offset}, {"timestamp_ms", l.TimestampMS}, {"kind", l.Kind}, {"request_id", l.RequestID}, {"index", l.Index},
		{"term", l.Term}, {"group", l.Group}, {"next_offset", l.NextOffset}, {"start_offset", l.StartOffset},
		{"request_id_window_ms", l.WindowMS}, {"retention_ms", l.RetentionMS}, {"retention_bytes", l.RetentionBytes},
		{"retention_records", l.RetentionRecords},
	} {
		if member.json != nil {
			return member.name, true
		}
	}
	return "", false
}

var errNoObject = errors.New(`it must be a JSON object, as {"topic":"t","value":"v"}`)

// explainJSON says in the words of the file what is wrong with a line.
func explainJSON(err error) error {
	var syntactic *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntactic) && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("%q is given twice", syntactic.JSONPointer.LastToken())
	case errors.As(err, &syntactic) && errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not valid JSON: the line ends in the middle")
	case errors.As(err, &syntactic) && syntactic.JSONPointer != "":
		return fmt.Errorf("%s: not valid JSON at byte %d: %w", syntactic.JSONPointer.LastToken(), syntactic.ByteOffset+1, syntactic.Err)
	case errors.As(err, &syntactic):
		return fmt.Errorf("not valid JSON at byte %d: %w", syntactic.ByteOffset+1, syntactic.Err)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("%q is not known: only topic, key and value are", semantic.JSONPointer.LastToken())
	case errors.As(err, &semantic):
		return errNoObject
	}
	return err
}

// kindName names what stands in a line where it must not.
func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "a boolean"
}

func decodeBase64(key, value string) (r client.Record, err error) {
	if r.Key, err = base64.StdEncoding.DecodeString(key); err != nil {
		return r, fmt.Errorf("key: %w", err)
	}
	if r.Value, err = base64.StdEncoding.DecodeString(value); err != nil {
		return r, fmt.Errorf("value: %w", err)
	}
	return r, nil
}
