package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"pgregory.net/rapid"
)

// model is the fold as one would explain it: maps, slices and no thought of speed.
type model struct {
	last   entry.Entry // without payload
	window int64
	names  []string // of topics, by id
	topics map[string]modelTopic
	groups map[[2]string]fact.Offset // by topic and group
	ids    []modelID                 // those not forgotten, oldest first
}

type modelTopic struct{ start, end fact.Offset }

type modelID struct {
	topic, id string
	what      Remembered
	timeMS    int64
}

func newModel() *model {
	return &model{window: 3_600_000, topics: map[string]modelTopic{}, groups: map[[2]string]fact.Offset{}}
}

func (m *model) clone() *model {
	c := *m
	c.names, c.ids = slices.Clone(m.names), slices.Clone(m.ids)
	c.topics, c.groups = maps.Clone(m.topics), maps.Clone(m.groups)
	return &c
}

// rememberedAt returns what is remembered when an entry of that time has been applied.
func (m *model) rememberedAt(timeMS int64) []modelID {
	for i, e := range m.ids {
		if e.timeMS >= timeMS-m.window {
			return m.ids[i:]
		}
	}
	return nil
}

func (m *model) remembered(topic, id string, timeMS int64) (Remembered, bool) {
	for _, e := range m.rememberedAt(timeMS) {
		if e.topic == topic && e.id == id {
			return e.what, true
		}
	}
	return Remembered{}, false
}

// run drives a State and its model with the same entries.
type run struct {
	s      *State
	m      *model
	used   map[[2]string]bool // topics and request ids that were ever used
	frozen []frozenModel
}

type frozenModel struct {
	f    *Frozen
	m    *model
	hash [32]byte
}

// apply applies an entry that must be accepted, and lets the model follow.
func (r *run) apply(t *rapid.T, e entry.Entry, want Effect, follow func(*model)) {
	got, err := r.s.Apply(&e)
	if err != nil {
		t.Fatal(err)
	}
	want.Kind = e.Kind
	if got != want {
		t.Fatalf("effect %+v, want %+v", got, want)
	}
	r.m.last = e
	follow(r.m)
	r.m.ids = r.m.rememberedAt(e.TimeMS)
}

// refuse applies an entry that must be refused and change nothing.
func (r *run) refuse(t *rapid.T, e entry.Entry, want error) {
	before := r.s.Hash()
	if effect, err := r.s.Apply(&e); !errors.Is(err, want) || effect != (Effect{}) {
		t.Fatalf("Apply(%+v) = %+v, %v; want the error %v", e, effect, err, want)
	}
	if r.s.Hash() != before {
		t.Fatalf("a refused entry changed the state")
	}
}

// next returns the head of an entry that may come next.
func (r *run) next(t *rapid.T) entry.Entry {
	step := rapid.SampledFrom([]int64{0, 0, 0, 1, 1000, r.m.window, r.m.window + 1}).Draw(t, "time step")
	term := r.m.last.Term + entry.Term(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "term step"))
	return entry.Entry{Index: r.m.last.Index + 1, Term: max(term, 1), TimeMS: min(r.m.last.TimeMS+step, TimeMaxMS)}
}

var (
	genTopic = rapid.SampledFrom([]string{"a", "b", "c", "/..", "a\x00", string(bytes.Repeat([]byte("n"), 255))})
	genGroup = rapid.SampledFrom([]string{"a", "g", "h"})
	genID    = rapid.SampledFrom([]string{"1", "2", "3", "a"})
)

func (r *run) appended(t *rapid.T, e entry.Entry, topic, id string, count int) {
	records := make([]fact.Record, count)
	old, known := r.m.topics[topic]
	want := Remembered{Base: old.end, Count: count}
	if id != "" {
		want.Digest = fact.Digest{byte(e.Index), byte(count)}
		r.used[[2]string{topic, id}] = true
	}
	e.Kind = fact.KindAppended
	e.Payload = fact.AppendAppended(nil, []byte(topic), old.end, []byte(id), want.Digest, records)
	if _, ok := r.m.remembered(topic, id, e.TimeMS); ok {
		r.refuse(t, e, ErrContradiction)
		return
	}
	if !known {
		r.m.names = append(r.m.names, topic)
	}
	effect := Effect{Topic: TopicID(slices.Index(r.m.names, topic)), Name: topic, First: old.end, Count: count}
	r.apply(t, e, effect, func(m *model) {
		m.topics[topic] = modelTopic{old.start, old.end + fact.Offset(count)}
		if id != "" {
			m.ids = append(m.ids, modelID{topic, id, want, e.TimeMS})
		}
	})
}

func (r *run) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			r.appended(t, r.next(t), genTopic.Draw(t, "topic"), "", rapid.IntRange(1, fact.BatchMax).Draw(t, "count"))
		},
		"append with request id": func(t *rapid.T) {
			r.appended(t, r.next(t), genTopic.Draw(t, "topic"), genID.Draw(t, "id"), rapid.IntRange(1, 3).Draw(t, "count"))
		},
		"append many": func(t *rapid.T) { // more than one chunk of each table holds
			n := rapid.IntRange(1, 2*chunkRows+10).Draw(t, "n")
			same := rapid.Bool().Draw(t, "same topic")
			for i := range n {
				topic := "a"
				if !same && i < 2*chunkRows {
					topic = fmt.Sprintf("many-%d", i)
				}
				e := entry.Entry{Index: r.m.last.Index + 1, Term: max(r.m.last.Term, 1), TimeMS: r.m.last.TimeMS}
				r.appended(t, e, topic, fmt.Sprintf("id-%d", i), 1)
				if same {
					continue
				}
				e = entry.Entry{Index: r.m.last.Index + 1, Term: r.m.last.Term, TimeMS: r.m.last.TimeMS}
				r.moved(t, e, topic, "many", 0)
			}
		},
		"append with gap": func(t *rapid.T) {
			e, topic := r.next(t), genTopic.Draw(t, "topic")
			e.Kind = fact.KindAppended
			base := r.m.topics[topic].end + fact.Offset(rapid.IntRange(1, 3).Draw(t, "gap"))
			e.Payload = fact.AppendAppended(nil, []byte(topic), base, nil, fact.Digest{}, make([]fact.Record, 1))
			r.refuse(t, e, ErrContradiction)
		},
		"move group": func(t *rapid.T) {
			topic := genTopic.Draw(t, "topic")
			next := rapid.Uint64Range(0, uint64(r.m.topics[topic].end)+1).Draw(t, "next")
			r.moved(t, r.next(t), topic, genGroup.Draw(t, "group"), fact.Offset(next))
		},
		"retain": func(t *rapid.T) {
			e, topic := r.next(t), genTopic.Draw(t, "topic")
			old, known := r.m.topics[topic]
			start := fact.Offset(rapid.Uint64Range(0, uint64(old.end)+1).Draw(t, "start"))
			e.Kind, e.Payload = fact.KindTopicRetained, fact.AppendTopicRetained(nil, []byte(topic), start)
			if !known || start < old.start || start > old.end {
				r.refuse(t, e, ErrContradiction)
				return
			}
			effect := Effect{Topic: TopicID(slices.Index(r.m.names, topic)), Name: topic, First: start}
			r.apply(t, e, effect, func(m *model) { m.topics[topic] = modelTopic{start, old.end} })
		},
		"settings": func(t *rapid.T) {
			e := r.next(t)
			window := rapid.SampledFrom([]int64{0, 1, 1000, 5000, 3_600_000, fact.WindowMaxMS}).Draw(t, "window")
			e.Kind, e.Payload = fact.KindSettings, fact.AppendSettings(nil, window)
			r.apply(t, e, Effect{}, func(m *model) { m.window = window })
		},
		"marker": func(t *rapid.T) {
			e := r.next(t)
			e.Kind = fact.KindMarker
			r.apply(t, e, Effect{}, func(*model) {})
		},
		"what cannot come next": func(t *rapid.T) {
			e := r.next(t)
			e.Kind = fact.KindMarker
			want := ErrContradiction
			switch rapid.IntRange(0, 6).Draw(t, "mistake") {
			case 0:
				e.Index++
			case 1:
				e.Index--
			case 2:
				e.Term = r.m.last.Term - 1 // or the highest of all, when there was none
				if e.Term+1 == 0 {
					e.Term = 0
				}
			case 3:
				e.TimeMS = r.m.last.TimeMS - 1
			case 4:
				e.TimeMS = TimeMaxMS + 1
			case 5:
				e.Kind = rapid.SampledFrom([]entry.Kind{0, 6, 255}).Draw(t, "kind")
				want = ErrUnknownKind
			case 6:
				e.Kind = entry.Kind(rapid.IntRange(1, 5).Draw(t, "kind"))
				e.Payload = bytes.Repeat([]byte{0xff}, 20)
				want = fact.ErrMalformed
			}
			r.refuse(t, e, want)
		},
		"freeze": func(*rapid.T) {
			r.frozen = append(r.frozen, frozenModel{r.s.Freeze(), r.m.clone(), r.s.Hash()})
		},
		"restore": func(t *rapid.T) { r.s = restored(t, r.s.Freeze()) },
		"go back": func(t *rapid.T) {
			if len(r.frozen) == 0 {
				t.Skip("nothing is frozen")
			}
			f := rapid.SampledFrom(r.frozen).Draw(t, "frozen")
			r.s, r.m = restored(t, f.f), f.m.clone()
		},
		"": r.check,
	}
}

func (r *run) moved(t *rapid.T, e entry.Entry, topic, group string, next fact.Offset) {
	e.Kind, e.Payload = fact.KindGroupMoved, fact.AppendGroupMoved(nil, []byte(topic), []byte(group), next)
	if old, known := r.m.topics[topic]; !known || next > old.end {
		r.refuse(t, e, ErrContradiction)
		return
	}
	effect := Effect{Topic: TopicID(slices.Index(r.m.names, topic)), Name: topic, First: next}
	r.apply(t, e, effect, func(m *model) { m.groups[[2]string{topic, group}] = next })
}

// restored writes a frozen state and reads it back.
func restored(t *rapid.T, f *Frozen) *State {
	var buf bytes.Buffer
	if n, err := f.WriteTo(&buf); err != nil || n != int64(buf.Len()) {
		t.Fatalf("WriteTo = %d, %v; wrote %d", n, err, buf.Len())
	}
	s, err := Restore(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if s.Hash() != f.Hash() {
		t.Fatal("the restored state has another hash")
	}
	return s
}

// check compares all that can be observed, of the state and of every frozen one.
func (r *run) check(t *rapid.T) {
	if err := r.s.Verify(); err != nil {
		t.Fatal(err)
	}
	r.compare(t, r.s, r.m)
	if i := int(r.m.last.Index); i%4 == 0 && len(r.frozen) > 0 {
		f := r.frozen[i/4%len(r.frozen)]
		if f.f.Hash() != f.hash {
			t.Fatal("a frozen state changed")
		}
		r.compare(t, restored(t, f.f), f.m)
	}
}

func (r *run) compare(t *rapid.T, s *State, m *model) {
	if s.Applied() != m.last.Index || s.Term() != m.last.Term || s.TimeMS() != m.last.TimeMS || s.WindowMS() != m.window {
		t.Fatalf("state at %d, term %d, %d ms, window %d ms; model %+v", s.Applied(), s.Term(), s.TimeMS(), s.WindowMS(), m.last)
	}
	if s.Topics() != len(m.topics) || s.Groups() != len(m.groups) || s.RequestIDs() < len(m.ids) {
		t.Fatalf("%d topics, %d groups, %d request ids; model %d, %d, %d",
			s.Topics(), s.Groups(), s.RequestIDs(), len(m.topics), len(m.groups), len(m.ids))
	}
	for i, name := range m.names {
		want := Topic{TopicID(i), name, m.topics[name].start, m.topics[name].end}
		if got, ok := s.Topic([]byte(name)); !ok || got != want || s.TopicByID(TopicID(i)) != want {
			t.Fatalf("topic %+v, want %+v", got, want)
		}
		for _, group := range []string{"a", "g", "h", "many", "never"} {
			want, known := m.groups[[2]string{name, group}]
			if got, ok := s.Group(TopicID(i), []byte(group)); ok != known || got != want {
				t.Fatalf("group %q of %q: %d, %v; want %d, %v", group, name, got, ok, want, known)
			}
		}
	}
	if _, ok := s.Topic([]byte("never")); ok {
		t.Fatal("a topic that never was")
	}
	// Three of these each time, so that the test is not too slow.
	later := []int64{-1, 0, 1, 1000, m.window, m.window + 1}
	for i := range 3 {
		now := m.last.TimeMS + later[(i*2+int(m.last.Index))%len(later)]
		want := map[[2]string]Remembered{}
		for _, e := range m.rememberedAt(max(now, m.last.TimeMS)) {
			want[[2]string{e.topic, e.id}] = e.what
		}
		for used := range r.used {
			topic, ok := s.Topic([]byte(used[0]))
			if !ok {
				continue // used after the freeze
			}
			got, ok := s.RequestID(topic.ID, []byte(used[1]), now)
			if w, known := want[used]; ok != known || got != w {
				t.Fatalf("request id %q of %q at %d ms: %+v, %v; want %+v, %v", used[1], used[0], now, got, ok, w, known)
			}
		}
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &run{s: New(), m: newModel(), used: map[[2]string]bool{}}
		t.Repeat(r.actions())
	})
}
