package state

import (
	"encoding/binary"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// What every publish does allocates nothing, with a request id all but nothing.
func TestHotPathAllocations(t *testing.T) {
	s := smallState(t)
	topic := []byte("orders")
	e := entry.Entry{Index: s.Applied(), Term: 3, TimeMS: s.TimeMS(), Kind: fact.KindAppended}
	records := make([]fact.Record, 1)
	var requestID [8]byte
	end := fact.Offset(3)
	apply := func(id []byte) {
		e.Index++
		e.Payload = fact.AppendAppended(e.Payload[:0], topic, end, id, fact.Digest{}, records)
		end++
		if _, err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	apply([]byte("grow the buffer"))
	if n := testing.AllocsPerRun(1000, func() { apply(nil) }); n > 0 {
		t.Errorf("Apply without request id allocates %v times", n)
	}
	if n := testing.AllocsPerRun(10_000, func() {
		binary.LittleEndian.PutUint64(requestID[:], uint64(e.Index))
		e.TimeMS++
		apply(requestID[:])
	}); n > 0 {
		t.Errorf("Apply with request id allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		id, ok := s.Topic(topic)
		s.TopicByID(id.ID)
		_, found := s.Group(id.ID, []byte("g"))
		_, remembered := s.RequestID(id.ID, requestID[:], e.TimeMS)
		if !ok || !found || !remembered {
			t.Fatal("not found")
		}
	}); n > 0 {
		t.Errorf("looking things up allocates %v times", n)
	}
}

// A frozen state is read by another goroutine while the state goes on; the race detector watches.
func TestFrozenIsReadWhileStateChanges(t *testing.T) {
	s := bigState(t, 300, 300, 700)
	e := entry.Entry{Index: s.Applied(), Term: 1, TimeMS: s.TimeMS()}
	for round := range 20 {
		want := s.Hash()
		f := s.Freeze()
		got := make(chan [32]byte)
		go func() { got <- f.Hash() }()
		for i := range 200 {
			var id [8]byte
			binary.LittleEndian.PutUint64(id[:], uint64(e.Index))
			topic, _ := s.Topic([]byte("topic-" + string('0'+byte(i%10))))
			e.Index++
			e.TimeMS += int64(round) * 10_000 // later rounds forget as they go
			e.Kind, e.Payload = fact.KindAppended, fact.AppendAppended(nil, []byte(topic.Name), topic.End, id[:], fact.Digest{}, make([]fact.Record, 1))
			if i%3 == 0 {
				e.Kind, e.Payload = fact.KindGroupMoved, fact.AppendGroupMoved(nil, []byte(topic.Name), id[:1+i%8], topic.End)
			}
			if _, err := s.Apply(&e); err != nil {
				t.Fatal(err)
			}
		}
		if <-got != want {
			t.Fatalf("round %d: the frozen state changed", round)
		}
	}
	if err := s.Verify(); err != nil {
		t.Fatal(err)
	}
}

// After a long pause, one entry lets go of a few request ids only, and those behind it of the rest.
func TestEvictsLittleAtATime(t *testing.T) {
	s := bigState(t, 1, 0, 1000)
	e := entry.Entry{Term: 1, Kind: fact.KindMarker, TimeMS: s.TimeMS() + s.WindowMS() + 1, Index: s.Applied()}
	topic, _ := s.Topic([]byte("topic-0"))
	for left := 1000; left > 0; {
		e.Index++
		if _, err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if left = max(0, left-evictMost); s.RequestIDs() != left {
			t.Fatalf("%d request ids in memory, want %d", s.RequestIDs(), left)
		}
		for _, id := range []uint64{0, 500, 999} { // forgotten at once, all the same
			if _, ok := s.RequestID(topic.ID, binary.LittleEndian.AppendUint64(nil, id), 0); ok {
				t.Fatalf("request id %d is still known", id)
			}
		}
	}
}

// A longer window does not bring back what was forgotten, even while it is in memory.
func TestLongerWindowBringsNothingBack(t *testing.T) {
	s := bigState(t, 1, 0, 1000)
	e := entry.Entry{Term: 1, Kind: fact.KindMarker, TimeMS: s.TimeMS() + s.WindowMS() + 1, Index: s.Applied() + 1}
	if _, err := s.Apply(&e); err != nil {
		t.Fatal(err)
	}
	e.Index++
	e.Kind, e.Payload = fact.KindSettings, fact.AppendSettings(nil, fact.WindowMaxMS)
	if _, err := s.Apply(&e); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*State{s, reload(t, s)} {
		if _, ok := s.RequestID(0, binary.LittleEndian.AppendUint64(nil, 999), 0); ok || s.RequestIDs() == 0 {
			t.Errorf("known: %v, %d request ids in memory", ok, s.RequestIDs())
		}
	}
}

// An expired request id that is still in memory can be used again, and is let go of without harm.
func TestUseAgainBeforeEviction(t *testing.T) {
	s := New()
	e := entry.Entry{Term: 1, TimeMS: 1, Kind: fact.KindAppended}
	end := fact.Offset(0)
	use := func(i int) {
		e.Index++
		e.Payload = fact.AppendAppended(nil, []byte("t"), end, []byte{'a', byte(i)}, fact.Digest{byte(e.Index)}, make([]fact.Record, 1))
		end++
		if _, err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if r, ok := s.RequestID(0, []byte{'a', byte(i)}, 0); !ok || r.Base != end-1 || r.Digest[0] != byte(e.Index) {
			t.Fatalf("request id %d: %+v, %v", i, r, ok)
		}
	}
	const n = 200
	for i := range n {
		use(i)
	}
	e.TimeMS += s.WindowMS() + 1
	for i := range n {
		use(n - 1 - i) // the last ones are in memory twice for a while
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		s = reload(t, s)
	}
	if s.RequestIDs() != n {
		t.Errorf("%d request ids in memory, want %d", s.RequestIDs(), n)
	}
}

func TestTopicByIDOutOfRange(t *testing.T) {
	defer func() {
		if s, ok := recover().(string); !ok || !strings.HasPrefix(s, "BUG: ") {
			t.Errorf("recovered %q", s)
		}
	}()
	New().TopicByID(0)
}
