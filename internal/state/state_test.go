package state

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
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
	records := []fact.Record{{Key: []byte("k"), Value: []byte("vv")}}
	var requestID [8]byte
	end, cum, _, _ := s.Ended(topic)
	apply := func(id []byte) {
		e.Index++
		e.Payload = fact.AppendAppended(e.Payload[:0], topic, end, cum, id, fact.Digest{}, records)
		end++
		cum += 3
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
			_, _, tid, _ := s.Ended([]byte("topic-" + string('0'+byte(i%10))))
			topic := s.TopicByID(tid)
			e.Index++
			e.TimeMS += int64(round) * 10_000 // later rounds forget as they go
			e.Kind, e.Payload = fact.KindAppended, fact.AppendAppended(nil, []byte(topic.Name), topic.End, topic.EndCum, id[:], fact.Digest{}, make([]fact.Record, 1))
			switch {
			case topic.Deleted: // it comes back
			case i%21 == 20: // rows of groups go
				e.Kind, e.Payload = fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, []byte(topic.Name))
			case i%3 == 0:
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
		e.Payload = fact.AppendAppended(nil, []byte("t"), end, 0, []byte{'a', byte(i)}, fact.Digest{byte(e.Index)}, make([]fact.Record, 1))
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

func TestMistakesOfCallers(t *testing.T) {
	for name, do := range map[string]func(){
		"topic out of range":        func() { New().TopicByID(0) },
		"frozen topic out of range": func() { New().Freeze().TopicByID(0) },
		"written without ids":       func() { New().FreezeTables().WriteTo(io.Discard) },
		"hashed without ids":        func() { New().FreezeTables().Hash() },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if s, ok := recover().(string); !ok || !strings.HasPrefix(s, "BUG: ") {
					t.Errorf("recovered %q", s)
				}
			}()
			do()
		})
	}
}

// Whoever keeps a sorted list of names makes it anew when the version changes, and only then.
func TestVersions(t *testing.T) {
	s := New()
	records := make([]fact.Record, 2)
	name, group := []byte("t"), []byte("g")
	for i, tt := range []struct {
		what          string
		kind          entry.Kind
		payload       []byte
		names, groups bool // change
	}{
		{"a topic begins", fact.KindAppended, fact.AppendAppended(nil, name, 0, 0, nil, fact.Digest{}, records), true, false},
		{"it grows", fact.KindAppended, fact.AppendAppended(nil, name, 2, 0, nil, fact.Digest{}, records), false, false},
		{"a group begins", fact.KindGroupMoved, fact.AppendGroupMoved(nil, name, group, 1), false, true},
		{"it moves", fact.KindGroupMoved, fact.AppendGroupMoved(nil, name, group, 2), false, false},
		{"the start moves", fact.KindTopicRetained, fact.AppendTopicRetained(nil, name, 2, 0), false, false},
		{"records are kept", fact.KindKept, fact.AppendKept(nil, name, 2, 0, make([]fact.KeptRecord, 2)), false, false},
		{"settings change", fact.KindTopicConfigured, fact.AppendTopicConfigured(nil, name, fact.Retention{MS: 1}), false, false},
		{"a group goes", fact.KindGroupDeleted, fact.AppendGroupDeleted(nil, name, group), false, true},
		{"it comes back", fact.KindGroupMoved, fact.AppendGroupMoved(nil, name, group, 1), false, true},
		{"the log is restored", fact.KindRestored, fact.AppendRestored(nil, fact.RestoreStep), false, false},
		{"the topic goes", fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, name), true, true},
		{"it comes back", fact.KindAppended, fact.AppendAppended(nil, name, fact.RestoreStep, 0, nil, fact.Digest{}, records), true, false},
		{"it goes without groups", fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, name), true, false},
	} {
		names, groups := s.NamesVersion(), s.GroupsVersion()
		if _, err := s.Apply(&entry.Entry{Index: entry.Index(i + 1), Term: 1, Kind: tt.kind, Payload: tt.payload}); err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if (s.NamesVersion() != names) != tt.names || (s.GroupsVersion() != groups) != tt.groups {
			t.Errorf("%s: names from version %d to %d, groups from %d to %d", tt.what, names, s.NamesVersion(), groups, s.GroupsVersion())
		}
	}
}

// Offsets of a topic that went over the floor by itself are never used again.
func TestRestoredBelowAnEnd(t *testing.T) {
	s := bigState(t, 3, 0, 0)
	s.topics.edit(1).end = fact.RestoreStep
	before := s.Hash()
	e := entry.Entry{Index: s.Applied() + 1, Term: 1, TimeMS: s.TimeMS(), Kind: fact.KindRestored, Payload: fact.AppendRestored(nil, fact.RestoreStep)}
	if _, err := s.Apply(&e); !errors.Is(err, ErrContradiction) || s.Hash() != before {
		t.Errorf("restored to the end of a topic: %v", err)
	}
	e.Payload = fact.AppendRestored(nil, 2*fact.RestoreStep)
	if _, err := s.Apply(&e); err != nil {
		t.Error(err)
	}
}

// Listing can stop anywhere.
func TestEachStops(t *testing.T) {
	f := bigState(t, 300, 300, 0).FreezeTables()
	topics, groups := 0, 0
	for range f.EachTopic {
		if topics++; topics == 200 {
			break
		}
	}
	for range f.EachGroup {
		if groups++; groups == 200 {
			break
		}
	}
	if topics != 200 || groups != 200 {
		t.Errorf("stopped after %d topics and %d groups", topics, groups)
	}
}

// A topic costs at most 160 bytes with all that belongs to it, its name included. So does one that is deleted.
func TestTopicMemory(t *testing.T) {
	const n = 100_000
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	s := bigState(t, n, 0, 0)
	live := (heap() - before) / n
	e := entry.Entry{Index: s.Applied(), Term: 1, TimeMS: s.TimeMS(), Kind: fact.KindTopicDeleted}
	for id := range TopicID(n) {
		e.Index++
		e.Payload = fact.AppendTopicDeleted(e.Payload[:0], []byte(s.TopicByID(id).Name))
		if _, err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	deleted := (heap() - before) / n
	t.Logf("%.1f bytes each, %.1f when they are deleted", live, deleted)
	if live > 160 || deleted > 160 {
		t.Errorf("topics take %.1f bytes each, %.1f when they are deleted", live, deleted)
	}
	runtime.KeepAlive(s)
}
