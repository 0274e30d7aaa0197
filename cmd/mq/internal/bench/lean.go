package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/segmentio/asm/base64"

	"example.com/mq/api"
	"example.com/mq/client"
)

// leanPublisher publishes over a lean connection.
type leanPublisher struct {
	*conn
	ctx   context.Context // of the measurement; the connection is closed when it ends
	topic []byte          // as a JSON string
	// id makes request ids: 8 random bytes and a count. Empty for none.
	id    []byte
	count uint64
}

func newLeanPublisher(ctx context.Context, cfg *Config) (publisher, error) {
	c, err := dial(ctx, &cfg.Target)
	if err != nil {
		return nil, err
	}
	topic, err := json.Marshal(cfg.Topic)
	if err != nil {
		return nil, err
	}
	p := &leanPublisher{conn: c, ctx: ctx, topic: topic}
	if cfg.RequestIDs {
		p.id = binary.LittleEndian.AppendUint64(nil, rand.Uint64())
	}
	return p, nil
}

func (p *leanPublisher) send(values [][]byte) (first uint64, err error) {
	path := api.PathPublish
	b := append(p.body(), `{"topic":`...)
	b = append(b, p.topic...)
	if len(values) == 1 {
		b = append(b, `,"value":`...)
		b = appendBase64(b, values[0])
	} else {
		path = api.PathPublishBatch
		b = append(b, `,"messages":[`...)
		for i, value := range values {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"value":`...)
			b = appendBase64(b, value)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	if p.id != nil {
		p.count++
		b = append(b, `,"request_id":"`...)
		b = hex.AppendEncode(b, p.id)
		b = append(b, '-')
		b = strconv.AppendUint(b, p.count, 10)
		b = append(b, '"')
	}
	if err := p.conn.send(path, append(b, '}')); err != nil {
		return 0, err
	}
	answer, err := p.receive(p.ctx)
	if err != nil {
		return 0, err
	}
	return parseOffsets(answer, len(values))
}

func appendBase64(b, data []byte) []byte {
	n := base64.StdEncoding.EncodedLen(len(data))
	b = append(b, '"')
	b = slices.Grow(b, n)
	base64.StdEncoding.Encode(b[len(b):len(b)+n], data)
	return append(b[:len(b)+n], '"')
}

// parseOffsets reads the answer to a publish of count records, and checks that there is an offset for each,
// one after the other.
func parseOffsets(answer []byte, count int) (first uint64, err error) {
	if first, ok := parseOffsetsFast(answer, count); ok {
		return first, nil
	}
	var a struct {
		Offset  *uint64  `json:"offset"`
		Offsets []uint64 `json:"offsets"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return 0, fmt.Errorf("answer %.300s: %w", answer, err)
	}
	if a.Offset != nil {
		a.Offsets = append(a.Offsets, *a.Offset)
	}
	if len(a.Offsets) != count {
		return 0, fmt.Errorf("%d offsets for %d records", len(a.Offsets), count)
	}
	for i, offset := range a.Offsets {
		if offset != a.Offsets[0]+uint64(i) {
			return 0, errors.New("the offsets are not consecutive")
		}
	}
	return a.Offsets[0], nil
}

// parseOffsetsFast reads an answer in the exact form in which the server writes it.
func parseOffsetsFast(answer []byte, count int) (first uint64, ok bool) {
	b := bytes.TrimRight(answer, "\n")
	if count == 1 {
		if b, ok = bytes.CutPrefix(b, []byte(`{"offset":`)); ok {
			b, ok = bytes.CutSuffix(b, []byte(`}`))
			n, isNumber := number(b)
			return uint64(n), ok && isNumber
		}
	}
	if b, ok = bytes.CutPrefix(b, []byte(`{"offsets":[`)); !ok {
		return 0, false
	}
	if b, ok = bytes.CutSuffix(b, []byte(`]}`)); !ok {
		return 0, false
	}
	for i := range count {
		text, rest, more := bytes.Cut(b, []byte(`,`))
		n, ok := number(text)
		if i == 0 {
			first = uint64(n)
		}
		if !ok || uint64(n) != first+uint64(i) || more != (i < count-1) {
			return 0, false
		}
		b = rest
	}
	return first, true
}

// leanReader reads a topic over a lean connection. It asks for the next page before it decodes the last.
type leanReader struct {
	*conn
	ctx    context.Context
	head   []byte // a request up to the offset
	tail   []byte // and what follows it
	offset uint64 // that was asked for
	asked  bool
	page   client.Page
}

func newLeanReader(ctx context.Context, cfg *Config, offset uint64, wait bool) (reader, error) {
	c, err := dial(ctx, &cfg.Target)
	if err != nil {
		return nil, err
	}
	topic, err := json.Marshal(cfg.Topic)
	if err != nil {
		return nil, err
	}
	r := &leanReader{conn: c, ctx: ctx, offset: offset}
	r.head = fmt.Appendf(nil, `{"topic":%s,"offset":`, topic)
	r.tail = fmt.Appendf(nil, `,"limit":%d}`, api.LimitMax)
	if wait {
		r.tail = fmt.Appendf(nil, `,"limit":%d,"wait_ms":%d}`, api.LimitMax, api.WaitMSMax)
	}
	return r, nil
}

func (r *leanReader) ask(offset uint64) error {
	r.offset, r.asked = offset, true
	b := append(r.body(), r.head...)
	b = strconv.AppendUint(b, offset, 10)
	return r.conn.send(api.PathFetch, append(b, r.tail...))
}

func (r *leanReader) next() (*client.Page, error) {
	if !r.asked {
		if err := r.ask(r.offset); err != nil {
			return nil, err
		}
	}
	answer, err := r.receive(r.ctx)
	if err != nil {
		return nil, err
	}
	offset := r.offset
	next, _, end, ok := client.Bounds(answer)
	r.asked = false
	if ok && next < end {
		if err := r.ask(next); err != nil {
			return nil, err
		}
	}
	if err := r.page.Decode(answer); err != nil {
		return nil, err
	}
	if ok && r.page.NextOffset != next {
		return nil, errors.New("the answer has two next_offset")
	}
	if !r.asked {
		r.offset = r.page.NextOffset
	}
	return &r.page, checkPage(&r.page, offset)
}

// checkPage says whether the page holds the records from offset on without a gap.
func checkPage(page *client.Page, offset uint64) error {
	for i := range page.Records {
		if page.Records[i].Offset != offset {
			return fmt.Errorf("record %d was read instead of %d", page.Records[i].Offset, offset)
		}
		offset++
	}
	if page.NextOffset != offset {
		return fmt.Errorf("next_offset is %d instead of %d", page.NextOffset, offset)
	}
	return nil
}
