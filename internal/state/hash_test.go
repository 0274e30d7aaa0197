package state

import (
	"bytes"
	"fmt"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// history is a log that uses everything the fold holds, with request ids that expire and are used again.
func history(tb testing.TB) []entry.Entry {
	tb.Helper()
	s := New()
	var list []entry.Entry
	add := func(timeMS int, kind entry.Kind, payload []byte) {
		e := entry.Entry{Index: entry.Index(len(list) + 1), Term: entry.Term(1 + len(list)/100), TimeMS: int64(timeMS), Kind: kind, Payload: payload}
		if _, err := s.Apply(&e); err != nil {
			tb.Fatal(err)
		}
		list = append(list, e)
	}
	add(0, fact.KindSettings, fact.AppendSettings(nil, 100))
	for i := range 400 {
		name := fmt.Appendf(nil, "t%d", i%7)
		end, cum, _, _ := s.Ended(name)
		topic, _ := s.Topic(name)
		records := make([]fact.Record, 1+i%3)
		records[0].Value = make([]byte, i%5)
		appended := fact.AppendAppended(nil, name, end, cum, fmt.Appendf(nil, "r%d", i%150), fact.Digest{byte(i)}, records)
		switch {
		case i < 7:
			add(i, fact.KindAppended, appended)
		case i%10 == 3:
			add(i, fact.KindChecked, nil)
			add(i, fact.KindAppended, appended)
		case i%10 == 5 && topic.Name != "":
			add(i, fact.KindGroupMoved, fact.AppendGroupMoved(nil, name, fmt.Appendf(nil, "g%d", i%4), topic.Start))
		case i%10 == 6 && topic.Name != "":
			add(i, fact.KindTopicConfigured, fact.AppendTopicConfigured(nil, name, fact.Retention{MS: fact.Limit(i % 4), Records: fact.Limit(i % 3)}))
		case i%10 == 8 && topic.Records() > 1:
			add(i, fact.KindTopicRetained, fact.AppendTopicRetained(nil, name, topic.Nth(1), topic.StartCum))
		case i%10 == 9 && topic.Records() > 0:
			add(i, fact.KindKept, fact.AppendKept(nil, name, topic.Nth(topic.Records()-1), topic.EndCum, make([]fact.KeptRecord, 1)))
		case i%50 == 44 && topic.Name != "":
			add(i, fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, name))
		case i%50 == 47:
			var of Group
			for g := range s.FreezeTables().EachGroup {
				of = g
			}
			add(i, fact.KindGroupDeleted, fact.AppendGroupDeleted(nil, []byte(s.TopicByID(of.Topic).Name), []byte(of.Name)))
		case i == 130 || i == 390:
			add(i, fact.KindRestored, fact.AppendRestored(nil, s.Floor()+fact.RestoreStep))
		default:
			add(i, fact.KindAppended, appended)
		}
	}
	kinds := map[entry.Kind]int{}
	for _, e := range list {
		kinds[e.Kind]++
	}
	if len(kinds) != 10 {
		tb.Fatalf("kinds of entries: %v", kinds)
	}
	return list
}

// The hash depends on the entries, and not on whether a replica applied them all or began with a snapshot, wherever that
// was taken.
func TestHashWhateverTheHistory(t *testing.T) {
	log := history(t)
	replay := func(s *State, entries []entry.Entry) *State {
		t.Helper()
		for i := range entries {
			if _, err := s.Apply(&entries[i]); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	want := replay(New(), log).Freeze().Hash()
	s := New()
	for n := range log {
		replay(s, log[n:n+1])
		if n%9 == 0 {
			restored, err := Restore(bytes.NewReader(encode(t, s)))
			if err != nil {
				t.Fatal(err)
			}
			if got := replay(restored, log[n+1:]).Freeze().Hash(); got != want {
				t.Fatalf("from a snapshot at entry %d: another hash", n+1)
			}
			if n%27 == 0 {
				if s, err = Restore(bytes.NewReader(encode(t, s))); err != nil { // it goes on from there itself
					t.Fatal(err)
				}
			}
		}
	}
	if s.Freeze().Hash() != want {
		t.Fatal("after many restores: another hash")
	}
}

// Whatever is wrong in memory shows in the hash.
func TestHashTellsWhatIsWrong(t *testing.T) {
	fold := func() *State {
		s := New()
		for _, e := range history(t) {
			if _, err := s.Apply(&e); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	want := fold().Hash()
	for name, change := range map[string]func(*State){
		"nothing":      nil,
		"index":        func(s *State) { s.applied++ },
		"term":         func(s *State) { s.term++ },
		"time":         func(s *State) { s.timeMS++ },
		"window":       func(s *State) { s.windowMS++ },
		"horizon":      func(s *State) { s.horizonMS-- },
		"floor":        func(s *State) { s.floor++ },
		"topic start":  func(s *State) { s.topics.edit(6).start++ },
		"topic end":    func(s *State) { s.topics.edit(0).end++ },
		"start cum":    func(s *State) { s.topics.edit(1).startCum++ },
		"end cum":      func(s *State) { s.topics.edit(2).endCum++ },
		"settings":     func(s *State) { t := s.topics.edit(0); t.setMore(fact.Retention{Bytes: 77}, t.gaps()) },
		"gap":          func(s *State) { t := s.topics.edit(0); t.setMore(t.retention(), []Gap{{1, 2}}) },
		"deleted":      func(s *State) { t := s.topics.edit(4); t.deleted = !t.deleted },
		"topic name":   func(s *State) { s.topics.edit(3).name = "T3" },
		"group topic":  func(s *State) { s.groups.edit(0).topic = 1 },
		"group name":   func(s *State) { s.groups.edit(1).name = "x" },
		"group time":   func(s *State) { s.groups.edit(0).timeMS ^= 1 },
		"group next":   func(s *State) { s.groups.edit(1).next ^= 1 },
		"id key":       func(s *State) { s.ids.at(s.ids.first).key[15] ^= 1 },
		"id digest":    func(s *State) { s.ids.at(s.ids.next - 1).digest[0] ^= 1 },
		"id base":      func(s *State) { s.ids.at(s.ids.next-1).base++ },
		"id count":     func(s *State) { s.ids.at(s.ids.next-1).stamp++ },
		"id forgotten": func(s *State) { s.ids.first++ },
	} {
		s := fold()
		if change != nil {
			change(s)
		}
		if same := s.Freeze().Hash() == want; same != (change == nil) {
			t.Errorf("%s: the same hash: %v", name, same)
		}
	}
}
