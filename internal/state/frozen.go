package state

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// Frozen is the state at one moment. It never changes and any goroutine may read it.
type Frozen struct {
	applied   entry.Index
	term      entry.Term
	timeMS    int64
	windowMS  int64
	horizonMS int64
	floor     fact.Offset
	topics    view[topicRow]
	groups    view[groupRow]
	ids       idView
	noIDs     bool // only the tables are there
}

// Freeze returns the state as it is now. It is cheap: it copies one pointer for each 128 topics, each 128
// groups and each 512 request ids. What changes afterwards is copied, chunk by chunk, when it changes.
func (s *State) Freeze() *Frozen {
	f := s.head()
	f.topics, f.groups, f.ids = s.topics.freeze(), s.groups.freeze(), s.ids.freeze()
	return f
}

// FreezeTables returns the topics and groups as they are now, for who lists them. It has no request ids, so it is
// cheaper than Freeze, and can neither be written nor hashed.
func (s *State) FreezeTables() *Frozen {
	f := s.head()
	f.topics, f.groups, f.noIDs = s.topics.freeze(), s.groups.freeze(), true
	return f
}

// now returns the state for the caller to read before it is changed. It copies nothing.
func (s *State) now() *Frozen {
	f := s.head()
	f.topics, f.groups, f.ids = s.topics.view(), s.groups.view(), s.ids.idView
	return f
}

func (s *State) head() *Frozen {
	return &Frozen{applied: s.applied, term: s.term, timeMS: s.timeMS, windowMS: s.windowMS, horizonMS: s.horizonMS, floor: s.floor}
}

// Hash identifies the state: replicas that applied the same entries have the same hash. It takes about 50 ms
// for a million request ids; where the caller holds a lock, Freeze and Frozen.Hash keep it shorter.
func (s *State) Hash() [32]byte { return s.now().Hash() }

// Index is the index of the last entry of the state.
func (f *Frozen) Index() entry.Index { return f.applied }

// Term is the term of the last entry of the state.
func (f *Frozen) Term() entry.Term { return f.term }

// TimeMS is the time of the last entry of the state.
func (f *Frozen) TimeMS() int64 { return f.timeMS }

// Topics is the number of topics, those that are deleted included. Their ids are the numbers below it.
func (f *Frozen) Topics() int { return f.topics.len }

// TopicByID returns a topic, also one that is deleted. An id that no topic has is a mistake of the caller.
func (f *Frozen) TopicByID(id TopicID) Topic {
	if int64(id) >= int64(f.topics.len) {
		panic(fmt.Sprintf("BUG: topic %d of %d", id, f.topics.len))
	}
	return f.topics.at(int(id)).topic(id)
}

// EachTopic calls yield for each topic in the order of the ids, also for those that are deleted, until it returns false.
func (f *Frozen) EachTopic(yield func(Topic) bool) {
	for i := range f.topics.len {
		if !yield(f.topics.at(i).topic(TopicID(i))) {
			return
		}
	}
}

// EachGroup calls yield for each group, in no useful order, until it returns false.
func (f *Frozen) EachGroup(yield func(Group) bool) {
	for i := range f.groups.len {
		if !yield(f.groups.at(i).group()) {
			return
		}
	}
}

// Hash identifies the state; see State.Hash.
func (f *Frozen) Hash() [32]byte {
	h := sha256.New()
	f.WriteTo(h) // a hash returns no error
	return [32]byte(h.Sum(nil))
}

// WriteTo writes the encoded state: the same state, the same bytes. It writes about 64 KiB at a time.
func (f *Frozen) WriteTo(w io.Writer) (int64, error) {
	if f.noIDs {
		panic("BUG: a state that was frozen without its request ids is written")
	}
	enc := encoder{w: w, buf: make([]byte, 0, flushAt+encodedMax)}
	enc.header(f)
	for i := range f.topics.len {
		enc.topic(f.topics.at(i))
		enc.flush(flushAt)
	}
	for i := range f.groups.len {
		enc.group(f.groups.at(i))
		enc.flush(flushAt)
	}
	for n := f.ids.first; n < f.ids.next; n++ {
		enc.id(f.ids.at(n))
		enc.flush(flushAt)
	}
	enc.flush(1)
	return enc.written, enc.err
}

// flushAt is how many bytes the encoder gathers, and encodedMax is more than any single thing takes, a
// topic with hundreds of gaps aside.
const (
	flushAt    = 64 << 10
	encodedMax = 512
)

// encoder gathers bytes and writes them to w until the first error.
type encoder struct {
	w       io.Writer
	buf     []byte
	written int64
	err     error
}

// flush writes what was gathered if it is at least so much.
func (c *encoder) flush(atLeast int) {
	if len(c.buf) < atLeast {
		return
	}
	if c.err == nil {
		var n int
		n, c.err = c.w.Write(c.buf)
		c.written += int64(n)
	}
	c.buf = c.buf[:0]
}

func (c *encoder) uvarint(v uint64) { c.buf = binary.AppendUvarint(c.buf, v) }

func (c *encoder) u64(v uint64) { c.buf = binary.LittleEndian.AppendUint64(c.buf, v) }

func (c *encoder) name(s string) {
	c.buf = append(c.buf, byte(len(s)))
	c.buf = append(c.buf, s...)
}
