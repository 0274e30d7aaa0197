package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"example.com/mq/api"
	"github.com/segmentio/asm/base64"
)

// StoredRecord is a record as the broker keeps it.
type StoredRecord struct {
	Offset      uint64
	TimestampMS int64 // when the broker took it, in milliseconds since the Unix epoch
	Key, Value  []byte
}

// Time is when the broker took the record.
func (r *StoredRecord) Time() time.Time { return time.UnixMilli(r.TimestampMS) }

// Page is the answer to a fetch.
type Page struct {
	Records []StoredRecord
	// NextOffset is where to read, or what to commit, next.
	NextOffset uint64
	// StartOffset is the first offset that the topic still keeps.
	StartOffset uint64
	// EndOffset is one past the last committed record.
	EndOffset uint64

	arena []byte // what the keys and values of Records point into
}

// Decode reads the body of a fetch answer into p. It is for programs that bring their own transport; all
// methods of Client have decoded their answers already.
//
// It takes the memory that p already holds: the records which an earlier Decode into p gave are no longer
// valid. The records do not point into answer. It does not check offsets.
func (p *Page) Decode(answer []byte) error {
	// The server writes one form. What is exactly that form needs no general parser, which would take ten
	// times as long as finding, sending and receiving the records; all else goes the slow way.
	if p.decodeFast(answer) {
		return nil
	}
	return p.decodeSlow(answer)
}

// decodeFast decodes an answer in the exact form in which the server writes it, and returns false for all
// others, valid or not. Invariant: where it returns true, decodeSlow gives the same page (FuzzDecode).
func (p *Page) decodeFast(answer []byte) bool {
	p.Records = p.Records[:0]
	if need := base64.StdEncoding.DecodedLen(len(answer)); cap(p.arena) < need {
		p.arena = make([]byte, need)
	}
	// Base64 shrinks, so all keys and values of the answer fit into the arena.
	arena := p.arena[:cap(p.arena)]
	b, ok := cut(answer, `{"records":[`)
	if !ok {
		return false
	}
	for first := true; ; first = false {
		if rest, end := cut(b, `]`); end {
			b = rest
			break
		}
		if !first {
			if b, ok = cut(b, `,`); !ok {
				return false
			}
		}
		if b, ok = cut(b, `{"offset":`); !ok {
			return false
		}
		p.Records = append(p.Records, StoredRecord{})
		r := &p.Records[len(p.Records)-1]
		if r.Offset, b, ok = cutNumber(b); !ok {
			return false
		}
		if rest, has := cut(b, `,"key":"`); has {
			if r.Key, arena, b, ok = cutBase64(rest, arena); !ok {
				return false
			}
		}
		if b, ok = cut(b, `,"value":"`); !ok {
			return false
		}
		if r.Value, arena, b, ok = cutBase64(b, arena); !ok {
			return false
		}
		if b, ok = cut(b, `,"timestamp_ms":`); !ok {
			return false
		}
		var ms uint64
		if ms, b, ok = cutNumber(b); !ok {
			return false
		}
		r.TimestampMS = int64(ms)
		if b, ok = cut(b, `}`); !ok {
			return false
		}
	}
	p.NextOffset, p.StartOffset, p.EndOffset, ok = cutBounds(b)
	return ok
}

// cutBounds reads what follows the records of an answer.
func cutBounds(b []byte) (next, start, end uint64, ok bool) {
	if b, ok = cut(b, `,"next_offset":`); !ok {
		return 0, 0, 0, false
	}
	if next, b, ok = cutNumber(b); !ok {
		return 0, 0, 0, false
	}
	if b, ok = cut(b, `,"start_offset":`); !ok {
		return 0, 0, 0, false
	}
	if start, b, ok = cutNumber(b); !ok {
		return 0, 0, 0, false
	}
	if b, ok = cut(b, `,"end_offset":`); !ok {
		return 0, 0, 0, false
	}
	if end, b, ok = cutNumber(b); !ok {
		return 0, 0, 0, false
	}
	if b, ok = cut(b, `}`); !ok {
		return 0, 0, 0, false
	}
	return next, start, end, len(bytes.TrimRight(b, "\r\n")) == 0
}

// boundsMax is more than the bounds at the end of an answer can take.
const boundsMax = 160

// Bounds finds NextOffset, StartOffset and EndOffset at the end of a fetch answer without decoding its
// records, so that the next fetch can be sent first. It returns false when the answer does not end in the
// form in which the server writes it; Decode may still understand it. What it returns is to be compared with
// what Decode says.
func Bounds(answer []byte) (next, start, end uint64, ok bool) {
	tail := answer[max(0, len(answer)-boundsMax):]
	i := bytes.LastIndexByte(tail, ']')
	if i < 0 {
		return 0, 0, 0, false
	}
	return cutBounds(tail[i+1:])
}

// cut removes prefix from the front of b.
func cut(b []byte, prefix string) ([]byte, bool) {
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return b, false
	}
	return b[len(prefix):], true
}

// cutNumber reads a whole number of at most 18 digits, which cannot overflow.
func cutNumber(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		n = n*10 + uint64(d)
	}
	if i == 0 || i > 18 || (i > 1 && b[0] == '0') {
		return 0, b, false
	}
	return n, b[i:], true
}

// cutBase64 decodes b up to its first quote into the front of arena. b begins after the opening quote.
func cutBase64(b, arena []byte) (data, restArena, rest []byte, ok bool) {
	n := bytes.IndexByte(b, '"')
	if n < 0 || n%4 != 0 {
		return nil, arena, b, false
	}
	text, rest := b[:n], b[n+1:]
	want := n / 4 * 3
	if n > 0 && text[n-1] == '=' {
		want--
		if text[n-2] == '=' {
			want--
		}
	}
	got, err := base64.StdEncoding.Decode(arena[:n/4*3], text)
	// The decoder passes over line ends, which JSON does not allow inside a string: then got is too small.
	if err != nil || got != want {
		return nil, arena, b, false
	}
	return arena[:got:got], arena[got:], rest, true
}

// decodeSlow decodes any fetch answer.
func (p *Page) decodeSlow(answer []byte) error {
	var a struct {
		Records *[]struct {
			Offset      *uint64 `json:"offset"`
			Key         []byte  `json:"key"`
			Value       *[]byte `json:"value"`
			TimestampMS *int64  `json:"timestamp_ms"`
		} `json:"records"`
		NextOffset  *uint64 `json:"next_offset"`
		StartOffset *uint64 `json:"start_offset"`
		EndOffset   *uint64 `json:"end_offset"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("decode fetch answer: %w", err)
	}
	if a.Records == nil || a.NextOffset == nil || a.StartOffset == nil || a.EndOffset == nil {
		return errors.New("decode fetch answer: a field is missing")
	}
	p.Records = p.Records[:0]
	p.NextOffset, p.StartOffset, p.EndOffset = *a.NextOffset, *a.StartOffset, *a.EndOffset
	for _, r := range *a.Records {
		if r.Offset == nil || r.Value == nil || r.TimestampMS == nil {
			return errors.New("decode fetch answer: a record lacks a field")
		}
		p.Records = append(p.Records, StoredRecord{*r.Offset, *r.TimestampMS, r.Key, *r.Value})
	}
	return nil
}

// check says whether the page can be the answer to a fetch from offset on; a fetch by a group or by time may begin
// anywhere (exact is false). A page that passes never sends its reader backwards and leaves no record out: offsets only jump
// where a restore from a backup made them.
func (p *Page) check(offset uint64, exact bool) error {
	if n := max(p.NextOffset, p.EndOffset, p.StartOffset); n > api.OffsetMax {
		return fmt.Errorf("an offset of %d", n)
	}
	if len(p.Records) == 0 {
		if p.NextOffset != p.EndOffset {
			return fmt.Errorf("no records, but next_offset %d is not end_offset %d", p.NextOffset, p.EndOffset)
		}
		return nil
	}
	if first := p.Records[0].Offset; exact && !follows(first, offset) {
		return fmt.Errorf("the records begin at %d instead of %d", first, offset)
	}
	next := p.Records[0].Offset
	for i := range p.Records {
		if p.Records[i].Offset > api.OffsetMax || !follows(p.Records[i].Offset, next) {
			return fmt.Errorf("record %d stands where %d belongs", p.Records[i].Offset, next)
		}
		next = p.Records[i].Offset + 1
	}
	if !follows(p.NextOffset, next) || p.EndOffset < next {
		return fmt.Errorf("next_offset %d and end_offset %d after records up to %d", p.NextOffset, p.EndOffset, next-1)
	}
	return nil
}

// follows says whether offset can be the next one where next is the lowest that it can be.
func follows(offset, next uint64) bool {
	return offset == next || offset > next && offset%api.RestoreStep == 0
}
