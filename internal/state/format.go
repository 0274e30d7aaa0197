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
	formatVersion = 1
	headerSize    = 80 // magic, version, zero, index, term, time, window, horizon, three counts
	idSize        = 48
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
	c.u64(uint64(f.topics.len))
	c.u64(uint64(f.groups.len))
	c.u64(uint64(f.ids.len()))
}

func (c *encoder) id(e *id) {
	c.buf = append(c.buf, e.key[:]...)
	c.buf = append(c.buf, e.digest[:]...)
	c.u64(uint64(e.base))
	c.u64(e.stamp)
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
	for range counts.ids {
		if d.id(s); d.err != nil {
			break
		}
	}
	if d.end(); d.err != nil {
		return nil, fmt.Errorf("restore state: %w", d.err)
	}
	if err := s.verifyTables(); err != nil {
		return nil, fmt.Errorf("restore state: %w: %w", ErrCorrupt, err)
	}
	if !s.ids.reindex() {
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
	return counts{topics: u64(56), groups: u64(64), ids: u64(72)}
}

func (d *decoder) topic(s *State) {
	t := topicRow{name: d.name(), start: fact.Offset(d.uvarint()), end: fact.Offset(d.uvarint())}
	if _, ok := s.topicIDs[t.name]; ok {
		d.corrupt("topic %q is there twice", t.name)
	}
	if d.err == nil {
		s.addTopic(t)
	}
}

func (d *decoder) group(s *State) {
	topic := d.uvarint()
	if topic >= uint64(s.topics.len) {
		d.corrupt("a group of topic %d, of %d topics", topic, s.topics.len)
	}
	g := groupRow{topic: TopicID(topic), name: d.name(), next: fact.Offset(d.uvarint())}
	if _, ok := s.groupIDs[groupKey{topic: g.topic, name: g.name}]; ok {
		d.corrupt("group %q of topic %d is there twice", g.name, topic)
	}
	if d.err == nil {
		s.addGroup(g)
	}
}

func (d *decoder) id(s *State) {
	b := d.take(idSize)
	if d.err != nil {
		return
	}
	s.ids.push(&id{
		key:    idKey(b[0:16]),
		digest: fact.Digest(b[16:32]),
		base:   fact.Offset(binary.LittleEndian.Uint64(b[32:])),
		stamp:  binary.LittleEndian.Uint64(b[40:]),
	})
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
