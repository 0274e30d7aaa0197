package replicationtest

import (
	"fmt"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// sequence is facts of every kind, each on top of those before it, as who decides makes them.
func sequence(timeMS int64) []entry.Entry {
	var list []entry.Entry
	add := func(kind entry.Kind, p []byte) {
		timeMS++
		list = append(list, entry.Entry{Kind: kind, TimeMS: timeMS, Payload: p})
	}
	topic, other, group := []byte("orders"), []byte("other"), []byte("billing")
	records := func(n int) (list []fact.Record) {
		for i := range n {
			list = append(list, fact.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "%04d", i)})
		}
		return list
	}
	appended := func(topic []byte, base fact.Offset, cum uint64, id string, n int) {
		add(fact.KindAppended, fact.AppendAppended(nil, topic, base, cum, []byte(id), fact.DigestOf(records(n)), records(n)))
	}
	add(fact.KindSettings, fact.AppendSettings(nil, 3600_000))
	first := timeMS + 1
	appended(topic, 0, 0, "id", 5)
	appended(other, 0, 0, "", 1)
	appended(topic, 5, 25, "", 3)
	add(fact.KindTopicConfigured, fact.AppendTopicConfigured(nil, topic, fact.Retention{MS: fact.LimitNone, Records: 100}))
	add(fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, group, 4))
	add(fact.KindTopicRetained, fact.AppendTopicRetained(nil, topic, 2, 10))
	var kept []fact.KeptRecord
	for _, r := range records(5)[2:] {
		kept = append(kept, fact.KeptRecord{TimeMS: first, Record: r})
	}
	add(fact.KindKept, fact.AppendKept(nil, topic, 2, 10, kept))
	add(fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, group, 2)) // a seek
	add(fact.KindChecked, nil)
	add(fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, []byte("audit"), 8))
	add(fact.KindGroupDeleted, fact.AppendGroupDeleted(nil, topic, group))
	add(fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, topic))
	add(fact.KindMarker, nil)
	appended(topic, 8, 40, "id 2", 2)
	add(fact.KindRestored, fact.AppendRestored(nil, fact.RestoreStep))
	appended(topic, fact.RestoreStep, 50, "", 1)
	add(fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, group, 10)) // where the gap begins
	appended([]byte("new"), fact.RestoreStep, 0, "", 1)
	add(fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, other))
	return list
}

// foldsAreEqual proposes facts of every kind, some at a time, and compares the fold of what was proposed with that of the log
// as a power cut leaves it.
func foldsAreEqual(t *testing.T, makeRole Make) {
	for most := 1; most <= 4; most++ {
		r := start(t, makeRole)
		want := state.New()
		fold(t, r.log, want)
		list := sequence(want.TimeMS())
		var proposals []*wal.Frames
		for at := 0; at < len(list); at += most {
			f := new(wal.Frames)
			for _, e := range list[at:min(at+most, len(list))] {
				f.End(append(f.Begin(e.Kind, e.TimeMS), e.Payload...))
			}
			if err := r.Propose(f); err != nil {
				t.Fatal(err)
			}
			proposals = append(proposals, f)
		}
		r.awaitCommitted(t, r.base+entry.Index(len(list)))
		for _, f := range proposals {
			for i := range f.Len() {
				e := f.Entry(i)
				if _, err := want.Apply(&e); err != nil {
					t.Fatal(err)
				}
			}
		}
		after := r.mem.Crash(1, 0).FS
		log, _, err := wal.Open(wal.Config{FS: after, Clock: clock.NewManual(time.UnixMilli(1)), LogID: LogID}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := state.New()
		fold(t, log, got)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err := got.Verify(); err != nil {
			t.Fatal(err)
		}
		if got.Applied() != want.Applied() || got.Freeze().Hash() != want.Freeze().Hash() {
			t.Fatalf("the log folds to another state: %d topics at entry %d, want %d at %d", got.Topics(), got.Applied(), want.Topics(), want.Applied())
		}
	}
}

// fold applies all that is in a log.
func fold(t *testing.T, log *wal.Log, s *state.State) {
	t.Helper()
	c := log.NewCursor(1)
	defer c.Close()
	for f := new(wal.Frames); s.Applied() < log.Last(); {
		if _, err := c.Next(f, log.Last(), 1<<20); err != nil {
			t.Fatal(err)
		}
		for i := range f.Len() {
			e := f.Entry(i)
			if _, err := s.Apply(&e); err != nil {
				t.Fatal(err)
			}
		}
	}
}
