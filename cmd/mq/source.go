package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/mq/client"
)

// inputMax bounds one line of input: a record of the largest size with every byte escaped fits well.
const inputMax = 4 << 20

// source reads records from lines.
type source struct {
	in     *bufio.Reader
	cmd    *pubCmd
	number uint64       // of the line that was read last, from 1
	read   atomic.Int64 // bytes
	line   []byte
}

func newSource(in io.Reader, cmd *pubCmd) *source {
	return &source{in: bufio.NewReaderSize(in, 256<<10), cmd: cmd}
}

// pending says whether another line can be read without waiting for input.
func (s *source) pending() bool {
	buffered, _ := s.in.Peek(s.in.Buffered())
	return bytes.IndexByte(buffered, '\n') >= 0
}

// next returns the next record, or io.EOF. The record is the caller's.
func (s *source) next() (topic string, record client.Record, err error) {
	for {
		if err := s.readLine(); err != nil {
			return "", client.Record{}, err
		}
		s.number++
		if s.cmd.Lines {
			topic, record, err = s.cmd.Topic, client.Record{Key: []byte(s.cmd.Key), Value: bytes.Clone(s.line)}, nil
			if s.cmd.Base64 {
				record, err = decodeBase64(string(record.Key), string(record.Value))
			}
		} else {
			if len(bytes.TrimSpace(s.line)) == 0 {
				continue
			}
			topic, record, err = s.parse()
		}
		if err != nil {
			return "", client.Record{}, fmt.Errorf("line %d: %w", s.number, err)
		}
		return topic, record, nil
	}
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

// jsonLine is a line of a JSONL file. Offset and TimestampMS are read over, and only with --base64. A member
// that is not there is nil.
type jsonLine struct {
	Topic       jsontext.Value `json:"topic"`
	Key         jsontext.Value `json:"key"`
	Value       jsontext.Value `json:"value"`
	Offset      jsontext.Value `json:"offset"`
	TimestampMS jsontext.Value `json:"timestamp_ms"`
}

func (s *source) parse() (topic string, record client.Record, err error) {
	var l jsonLine
	// Strict: a member that is not known, given twice, or no text is a mistake that would lose data.
	if err := json.Unmarshal(s.line, &l, json.RejectUnknownMembers(true)); err != nil {
		return "", record, explainJSON(err)
	}
	if string(bytes.TrimSpace(s.line)) == "null" {
		return "", record, errNoObject
	}
	topic = s.cmd.Topic
	var key, value string
	for _, member := range []struct {
		name string
		json jsontext.Value
		to   *string
	}{{"topic", l.Topic, &topic}, {"key", l.Key, &key}, {"value", l.Value, &value}} {
		if member.json == nil {
			continue
		}
		if kind := member.json.Kind(); kind != '"' {
			return "", record, fmt.Errorf("%s is %s: it must be a string", member.name, kindName(kind))
		}
		text, err := jsontext.AppendUnquote(nil, member.json)
		if err != nil {
			return "", record, fmt.Errorf("%s: %w", member.name, err)
		}
		*member.to = string(text)
	}
	switch {
	case topic == "" && l.Topic != nil:
		return "", record, errors.New("topic is empty")
	case topic == "":
		return "", record, errors.New("topic is missing, and the command line names none")
	case l.Value == nil:
		return "", record, errors.New("value is missing")
	case !s.cmd.Base64 && (l.Offset != nil || l.TimestampMS != nil):
		return "", record, errors.New("offset or timestamp_ms: a line of 'mq fetch -o json' needs --base64")
	case s.cmd.Base64:
		record, err = decodeBase64(key, value)
		return topic, record, err
	}
	return topic, client.Record{Key: []byte(key), Value: []byte(value)}, nil
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
