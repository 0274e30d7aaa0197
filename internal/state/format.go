package state

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// The encoded state is the body of a snapshot; docs/format/snapshot.md draws it. All of it is in the order
// of the log, so that equal states have equal bytes.

const (
	formatVersion = 2
	headerSize    = 88 // magic, version, zero, index, term, time, window, horizon, floor, three counts
	idSize        = 48
)

// Flags of a topic.
const (
	topicDeleted  = 1 << iota
	topicSettings // its settings follow
	topicGaps     // its gaps follow
)

var formatMagic = [8]byte{'m', 'q', 's', 't', 'a', 't', 'e', 0}

func (c *encoder) header(f *Frozen) {
	c.buf = append(c.buf, formatMagic[:]...)
	c.buf = binary.LittleEndian.AppendUint32(c.buf, formatVersion)
	c.buf = binary.LittleEndian.AppendUint32(c.buf, 0)
	c.u64(uint64(f.applied))
	c.u64(uint64(f.term))
	c.u64(uint64(f.timeMS))
	c.u64(uint64(f.windowMS))
	c.u64(uint64(f.horizonMS))
	c.u64(uint64(f.floor))
	c.u64(uint64(f.topics.len))
	c.u64(uint64(f.groups.len))
	c.u64(uint64(f.ids.len()))
}

func (c *encoder) topic(t *topicRow) {
	c.name(t.name)
	c.uvarint(uint64(t.start))
	c.uvarint(uint64(t.end))
	c.uvarint(t.startCum)
	c.uvarint(t.endCum)
	retention, gaps := t.retention(), t.gaps()
	var flags byte
	if t.deleted {
		flags |= topicDeleted
	}
	if retention != (fact.Retention{}) {
		flags |= topicSettings
	}
	if len(gaps) > 0 {
		flags |= topicGaps
	}
	c.buf = append(c.buf, flags)
	if flags&topicSettings != 0 {
		c.uvarint(retention.MS.Code())
		c.uvarint(retention.Bytes.Code())
		c.uvarint(retention.Records.Code())
	}
	if flags&topicGaps != 0 {
		c.uvarint(uint64(len(gaps)))
		for _, g := range gaps {
			c.uvarint(uint64(g.From))
			c.uvarint(uint64(g.To))
		}
	}
}

func (c *encoder) group(g *groupRow) {
	c.uvarint(uint64(g.topic))
	c.name(g.name)
	c.uvarint(uint64(g.next))
	c.uvarint(uint64(g.timeMS))
}

func (c *encoder) id(e *id) {
	c.buf = append(c.buf, e.key[:]...)
	c.buf = append(c.buf, e.digest[:]...)
	c.u64(uint64(e.base))
	c.u64(e.stamp)
}

func (e *id) decode(b []byte) {
	e.key, e.digest = idKey(b[0:16]), fact.Digest(b[16:32])
	e.base, e.stamp = fact.Offset(binary.LittleEndian.Uint64(b[32:])), binary.LittleEndian.Uint64(b[40:])
}

// Restore reads an encoded state to its end. It checks all that Verify checks, and that the encoding is the
// one that WriteTo makes. It needs memory in proportion to what it has read, whatever the counts claim.
// Errors wrap ErrCorrupt, ErrVersion, or the reader's error.
func Restore(r io.Reader) (*State, error) {
	d := decoder{r: bufio.NewReaderSize(r, flushAt)}
	s := New()
	counts := d.header(s)
	for range counts.topics {
		if d.topic(s); d.err != nil {
			break
		}
	}
	for range counts.groups {
		if d.group(s); d.err != nil {
			break
		}
	}
	ids := idFill{q: &s.ids}
	d.ids(s, &ids, counts.ids)
	if d.end(); d.err != nil {
		return nil, fmt.Errorf("restore state: %w", d.err)
	}
	if err := s.verifyTables(); err != nil {
		return nil, fmt.Errorf("restore state: %w: %w", ErrCorrupt, err)
	}
	if !ids.index() {
		return nil, fmt.Errorf("restore state: %w: a request id was used again before it expired", ErrCorrupt)
	}
	return s, nil
}

type counts struct{ topics, groups, ids uint64 }

// decoder reads until the first error.
type decoder struct {
	r   *bufio.Reader
	err error
}

func (d *decoder) corrupt(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
}

// ended turns the end of the input in the middle of something into ErrCorrupt.
func (d *decoder) ended(err error) {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		d.corrupt("it is cut off")
	} else if d.err == nil {
		d.err = err
	}
}

// take returns the next n bytes, valid until the next call, or zeros after an error.
func (d *decoder) take(n int) []byte {
	if d.err == nil {
		b, err := d.r.Peek(n)
		if err == nil {
			d.r.Discard(n) // cannot fail: they are in the buffer
			return b
		}
		d.ended(err)
	}
	return make([]byte, n)
}

func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		b, err := d.r.ReadByte()
		if err != nil {
			d.ended(err)
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if (b == 0 && shift > 0) || (shift == 63 && b > 1) {
				break
			}
			return v
		}
	}
	d.corrupt("a number is not in its shortest form")
	return 0
}

func (d *decoder) name() string {
	n := d.take(1)[0]
	return string(d.take(int(n)))
}

func (d *decoder) header(s *State) counts {
	b := d.take(headerSize)
	if d.err != nil {
		return counts{}
	}
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	switch version := binary.LittleEndian.Uint32(b[8:]); {
	case !bytes.Equal(b[:8], formatMagic[:]):
		d.corrupt("it does not begin with %q", formatMagic[:7])
	case version != formatVersion:
		d.err = fmt.Errorf("%w: %d", ErrVersion, version)
	case binary.LittleEndian.Uint32(b[12:]) != 0:
		d.corrupt("a reserved field is not zero")
	case u64(32) > TimeMaxMS:
		d.corrupt("time %d ms", u64(32))
	case u64(40) > fact.WindowMaxMS:
		d.corrupt("window %d ms", u64(40))
	case u64(48) > u64(32):
		d.corrupt("horizon %d ms after time %d ms", u64(48), u64(32))
	}
	if d.err != nil {
		return counts{}
	}
	s.applied, s.term = entry.Index(u64(16)), entry.Term(u64(24))
	s.timeMS, s.windowMS, s.horizonMS = int64(u64(32)), int64(u64(40)), int64(u64(48))
	s.floor = fact.Offset(u64(56))
	return counts{topics: u64(64), groups: u64(72), ids: u64(80)}
}

func (d *decoder) topic(s *State) {
	t := topicRow{
		name: d.name(), start: fact.Offset(d.uvarint()), end: fact.Offset(d.uvarint()), startCum: d.uvarint(), endCum: d.uvarint(),
	}
	flags := d.take(1)[0]
	if flags&^(topicDeleted|topicSettings|topicGaps) != 0 {
		d.corrupt("topic %q has the flags %#x", t.name, flags)
	}
	t.deleted = flags&topicDeleted != 0
	var retention fact.Retention
	if flags&topicSettings != 0 {
		if retention = (fact.Retention{MS: d.limit(), Bytes: d.limit(), Records: d.limit()}); retention == (fact.Retention{}) {
			d.corrupt("topic %q has settings that are none", t.name)
		}
	}
	var gaps []Gap
	if flags&topicGaps != 0 {
		gaps = d.gaps(t.name)
	}
	if _, ok := s.topicIDs[t.name]; ok {
		d.corrupt("topic %q is there twice", t.name)
	}
	if d.err == nil {
		t.setMore(retention, gaps)
		s.addTopic(t)
	}
}

func (d *decoder) limit() fact.Limit {
	code := d.uvarint()
	if code > fact.LimitCodeMax {
		d.corrupt("a limit has the code %d", code)
		return 0
	}
	return fact.LimitOf(code)
}

func (d *decoder) gaps(topic string) []Gap {
	n := d.uvarint()
	if n == 0 {
		d.corrupt("topic %q has gaps that are none", topic)
	}
	var gaps []Gap
	for range n {
		g := Gap{From: fact.Offset(d.uvarint()), To: fact.Offset(d.uvarint())}
		if d.err != nil {
			return nil
		}
		gaps = append(gaps, g)
	}
	return gaps
}

func (d *decoder) group(s *State) {
	topic := d.uvarint()
	if topic >= uint64(s.topics.len) {
		d.corrupt("a group of topic %d, of %d topics", topic, s.topics.len)
	}
	g := groupRow{topic: TopicID(topic), name: d.name(), next: fact.Offset(d.uvarint()), timeMS: int64(d.uvarint())}
	if _, ok := s.groupIDs[groupKey{topic: g.topic, name: g.name}]; ok {
		d.corrupt("group %q of topic %d is there twice", g.name, topic)
	}
	if d.err == nil {
		s.addGroup(g)
	}
}

// ids reads n request ids, as many at a time as the buffer holds.
func (d *decoder) ids(s *State, fill *idFill, n uint64) {
	var last *id
	for n > 0 && d.err == nil {
		b := d.take(int(min(n, flushAt/idSize)) * idSize)
		for ; len(b) > 0 && d.err == nil; b = b[idSize:] {
			e := fill.add(b)
			if err := s.verifyID(s.ids.next-1, e, last); err != nil {
				d.corrupt("%v", err)
			}
			last = e
			n--
		}
	}
}

// end demands that nothing follows.
func (d *decoder) end() {
	if d.err != nil {
		return
	}
	if _, err := d.r.ReadByte(); err == nil {
		d.corrupt("bytes follow its end")
	} else if !errors.Is(err, io.EOF) {
		d.err = err
	}
}
