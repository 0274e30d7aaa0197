package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
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
	floor  fact.Offset
	names  []string // of topics, by id
	topics map[string]modelTopic
	groups map[[2]string]Group // by topic and group
	ids    []modelID           // those not forgotten, oldest first
}

// modelTopic has all records that are kept. Its slices are never changed in place, so that clones may share them.
type modelTopic struct {
	start, end fact.Offset
	cum        uint64 // of all records ever
	records    []modelRecord
	gaps       []Gap
	retention  fact.Retention
	deleted    bool
}

type modelRecord struct {
	offset fact.Offset
	size   uint64
	cum    uint64 // of all records before it
	timeMS int64
}

type modelID struct {
	topic, id string
	what      Remembered
	timeMS    int64
}

func newModel() *model {
	return &model{window: 3_600_000, topics: map[string]modelTopic{}, groups: map[[2]string]Group{}}
}

func (m *model) clone() *model {
	c := *m
	c.names, c.ids = slices.Clone(m.names), slices.Clone(m.ids)
	c.topics, c.groups = maps.Clone(m.topics), maps.Clone(m.groups)
	return &c
}

// topic finds a topic that has not been deleted.
func (m *model) topic(name string) (modelTopic, bool) {
	t, ok := m.topics[name]
	return t, ok && !t.deleted
}

func (m *model) id(name string) TopicID { return TopicID(slices.Index(m.names, name)) }

// from returns the records from an offset on.
func (t *modelTopic) from(start fact.Offset) []modelRecord {
	i := slices.IndexFunc(t.records, func(r modelRecord) bool { return r.offset >= start })
	if i < 0 {
		return nil
	}
	return t.records[i:]
}

// cumAt is the sum of the bytes before the first record from an offset on.
func (t *modelTopic) cumAt(start fact.Offset) uint64 {
	if rest := t.from(start); len(rest) > 0 {
		return rest[0].cum
	}
	return t.cum
}

// inGap says whether an offset is in a gap and not the first one there.
func (t *modelTopic) inGap(off fact.Offset) bool {
	return slices.ContainsFunc(t.gaps, func(g Gap) bool { return g.From < off && off < g.To })
}

// genOffset draws offsets at which something changes, and others.
func (m *model) genOffset(t *rapid.T, name string) fact.Offset {
	topic := m.topics[name]
	of := []fact.Offset{0, topic.start, topic.end, topic.end}
	for _, g := range topic.gaps {
		of = append(of, g.From, g.To, g.From+(g.To-g.From)/2)
	}
	for range min(4, len(topic.records)) {
		of = append(of, rapid.SampledFrom(topic.records).Draw(t, "record").offset)
	}
	off := rapid.SampledFrom(of).Draw(t, "offset")
	return (off + fact.Offset(rapid.SampledFrom([]int{0, 0, 0, 1, -1}).Draw(t, "off by"))) & fact.OffsetMax
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
	if !known {
		old.start, old.end = r.m.floor, r.m.floor
	}
	after := old
	after.deleted, after.records = false, slices.Clone(old.records)
	for i := range records {
		n := (int(e.Index) + i) % 5 // of 5 records, one has nothing
		records[i] = fact.Record{Key: make([]byte, n/2), Value: make([]byte, n-n/2)}
		after.records = append(after.records, modelRecord{after.end, uint64(n), after.cum, e.TimeMS})
		after.end++
		after.cum += uint64(n)
	}
	want := Remembered{Base: old.end, Count: count}
	if id != "" {
		want.Digest = fact.Digest{byte(e.Index), byte(count)}
		r.used[[2]string{topic, id}] = true
	}
	e.Kind = fact.KindAppended
	e.Payload = fact.AppendAppended(nil, []byte(topic), old.end, old.cum, []byte(id), want.Digest, records)
	if _, ok := r.m.remembered(topic, id, e.TimeMS); ok {
		r.refuse(t, e, ErrContradiction)
		return
	}
	if !known {
		r.m.names = append(r.m.names, topic)
	}
	effect := Effect{Topic: r.m.id(topic), Name: topic, First: old.end, Count: count}
	r.apply(t, e, effect, func(m *model) {
		m.topics[topic] = after
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
				r.moved(t, e, topic, "many", r.m.topics[topic].start)
			}
		},
		"append elsewhere": func(t *rapid.T) { // than at the end, or after as many bytes as there are
			e, topic := r.next(t), genTopic.Draw(t, "topic")
			end, cum, _, _ := r.s.Ended([]byte(topic))
			switch rapid.IntRange(0, 2).Draw(t, "mistake") {
			case 0:
				end += fact.Offset(rapid.IntRange(1, 3).Draw(t, "gap"))
			case 1:
				cum += uint64(rapid.IntRange(1, 3).Draw(t, "more bytes"))
			case 2:
				if cum--; cum == math.MaxUint64 {
					cum = 1
				}
			}
			e.Kind = fact.KindAppended
			e.Payload = fact.AppendAppended(nil, []byte(topic), end, cum, nil, fact.Digest{}, make([]fact.Record, 1))
			r.refuse(t, e, ErrContradiction)
		},
		"move group": func(t *rapid.T) {
			topic := genTopic.Draw(t, "topic")
			r.moved(t, r.next(t), topic, genGroup.Draw(t, "group"), r.m.genOffset(t, topic))
		},
		"retain":          r.retained,
		"keep":            r.kept,
		"configure":       r.configured,
		"delete topic":    r.topicDeleted,
		"delete group":    r.groupDeleted,
		"restored backup": r.restoredBackup,
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
		"checked": func(t *rapid.T) {
			e := r.next(t)
			e.Kind = fact.KindChecked
			r.apply(t, e, Effect{}, func(*model) {})
		},
		"what cannot come next": func(t *rapid.T) {
			e := r.next(t)
			e.Kind = fact.KindMarker
			want := ErrContradiction
			switch rapid.IntRange(0, 7).Draw(t, "mistake") {
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
				e.Kind = rapid.SampledFrom([]entry.Kind{0, 14, 255}).Draw(t, "kind")
				want = ErrUnknownKind
			case 7:
				e.Kind = rapid.SampledFrom([]entry.Kind{2, 4}).Draw(t, "kind")
				want = ErrRetiredKind
			case 6:
				e.Kind = rapid.SampledFrom([]entry.Kind{1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13}).Draw(t, "kind")
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
	if old, known := r.m.topic(topic); !known || next > old.end || old.inGap(next) {
		r.refuse(t, e, ErrContradiction)
		return
	}
	effect := Effect{Topic: r.m.id(topic), Name: topic, First: next}
	r.apply(t, e, effect, func(m *model) {
		m.groups[[2]string{topic, group}] = Group{Topic: effect.Topic, Name: group, Next: next, TimeMS: e.TimeMS}
	})
}

func (r *run) retained(t *rapid.T) {
	e, topic := r.next(t), genTopic.Draw(t, "topic")
	old, known := r.m.topic(topic)
	after := old
	after.start = r.m.genOffset(t, topic)
	after.records = old.from(after.start)
	after.gaps = slices.DeleteFunc(slices.Clone(old.gaps), func(g Gap) bool { return g.To <= after.start })
	cum, low := old.cumAt(after.start), old.cumAt(old.start)
	wrong := false
	switch rapid.IntRange(0, 9).Draw(t, "mistake") {
	case 0:
		cum, wrong = old.cum+1, true
	case 1:
		if wrong = low > 0; wrong {
			cum = low - 1
		}
	case 2: // within the bounds, and nothing or all is gone
		if wrong = after.start == old.start && low < old.cum; wrong {
			cum++
		}
		if len(after.records) == 0 && low < old.cum {
			cum, wrong = old.cum-1, true
		}
	}
	e.Kind, e.Payload = fact.KindTopicRetained, fact.AppendTopicRetained(nil, []byte(topic), after.start, cum)
	if !known || wrong || after.start < old.start || after.start > old.end || old.inGap(after.start) {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{Topic: r.m.id(topic), Name: topic, First: after.start}, func(m *model) { m.topics[topic] = after })
}

func (r *run) kept(t *rapid.T) {
	e, topic := r.next(t), genTopic.Draw(t, "topic")
	old, known := r.m.topic(topic)
	base := min(r.m.genOffset(t, topic), fact.OffsetMax-fact.BatchMax)
	records := make([]fact.KeptRecord, rapid.IntRange(1, fact.BatchMax).Draw(t, "count"))
	missing := false
	for i := range records {
		at := slices.IndexFunc(old.records, func(m modelRecord) bool { return m.offset == base+fact.Offset(i) })
		if missing = missing || at < 0; missing {
			if i > 0 {
				records[i].TimeMS = records[i-1].TimeMS
			}
			continue
		}
		records[i] = fact.KeptRecord{TimeMS: old.records[at].timeMS, Record: fact.Record{Value: make([]byte, old.records[at].size)}}
	}
	late := rapid.IntRange(0, 9).Draw(t, "late") == 0 && e.TimeMS < TimeMaxMS
	if late {
		records[len(records)-1].TimeMS = e.TimeMS + 1
	}
	e.Kind, e.Payload = fact.KindKept, fact.AppendKept(nil, []byte(topic), base, old.cumAt(base), records)
	if !known || missing || late {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{Topic: r.m.id(topic), Name: topic, First: base, Count: len(records)}, func(*model) {})
}

func (r *run) configured(t *rapid.T) {
	e, topic := r.next(t), genTopic.Draw(t, "topic")
	after, known := r.m.topic(topic)
	limit := rapid.SampledFrom([]fact.Limit{fact.LimitDefault, fact.LimitDefault, fact.LimitNone, 1, fact.OffsetMax})
	after.retention = fact.Retention{MS: limit.Draw(t, "ms"), Bytes: limit.Draw(t, "bytes"), Records: limit.Draw(t, "records")}
	e.Kind, e.Payload = fact.KindTopicConfigured, fact.AppendTopicConfigured(nil, []byte(topic), after.retention)
	if !known {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{Topic: r.m.id(topic), Name: topic}, func(m *model) { m.topics[topic] = after })
}

func (r *run) topicDeleted(t *rapid.T) {
	e, topic := r.next(t), genTopic.Draw(t, "topic")
	e.Kind, e.Payload = fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, []byte(topic))
	old, known := r.m.topic(topic)
	if !known {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{Topic: r.m.id(topic), Name: topic, First: old.end}, func(m *model) {
		m.topics[topic] = modelTopic{start: old.end, end: old.end, cum: old.cum, deleted: true}
		maps.DeleteFunc(m.groups, func(key [2]string, _ Group) bool { return key[0] == topic })
	})
}

func (r *run) groupDeleted(t *rapid.T) {
	e, topic, group := r.next(t), genTopic.Draw(t, "topic"), genGroup.Draw(t, "group")
	e.Kind, e.Payload = fact.KindGroupDeleted, fact.AppendGroupDeleted(nil, []byte(topic), []byte(group))
	if _, known := r.m.groups[[2]string{topic, group}]; !known {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{Topic: r.m.id(topic), Name: topic}, func(m *model) { delete(m.groups, [2]string{topic, group}) })
}

func (r *run) restoredBackup(t *rapid.T) {
	e := r.next(t)
	floor := r.m.floor/fact.RestoreStep + fact.Offset(rapid.IntRange(0, 2).Draw(t, "steps"))
	floor = max(1, floor) * fact.RestoreStep
	e.Kind, e.Payload = fact.KindRestored, fact.AppendRestored(nil, floor)
	if floor <= r.m.floor {
		r.refuse(t, e, ErrContradiction)
		return
	}
	r.apply(t, e, Effect{}, func(m *model) {
		m.floor = floor
		for name, topic := range m.topics {
			if topic.deleted {
				topic.start = floor
			} else {
				topic.gaps = append(slices.Clone(topic.gaps), Gap{topic.end, floor})
			}
			topic.end = floor
			m.topics[name] = topic
		}
	})
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
		compareFrozen(t, f.f, f.m)
		compareFrozen(t, r.s.FreezeTables(), r.m)
	}
}

func (r *run) compare(t *rapid.T, s *State, m *model) {
	if s.Applied() != m.last.Index || s.Term() != m.last.Term || s.TimeMS() != m.last.TimeMS || s.WindowMS() != m.window {
		t.Fatalf("state at %d, term %d, %d ms, window %d ms; model %+v", s.Applied(), s.Term(), s.TimeMS(), s.WindowMS(), m.last)
	}
	var live int
	var bytes, records uint64
	for _, topic := range m.topics {
		if !topic.deleted {
			live++
		}
		bytes += topic.cum - topic.cumAt(topic.start)
		records += uint64(len(topic.records))
	}
	if s.Topics() != len(m.topics) || s.Groups() != len(m.groups) || s.RequestIDs() < len(m.ids) || s.Floor() != m.floor {
		t.Fatalf("%d topics, %d groups, %d request ids, floor %d; model %d, %d, %d, %d",
			s.Topics(), s.Groups(), s.RequestIDs(), s.Floor(), len(m.topics), len(m.groups), len(m.ids), m.floor)
	}
	if s.LiveTopics() != live || s.LiveBytes() != bytes || s.LiveRecords() != records {
		t.Fatalf("%d topics live, %d bytes, %d records; model %d, %d, %d", s.LiveTopics(), s.LiveBytes(), s.LiveRecords(), live, bytes, records)
	}
	for i, name := range m.names {
		topic := m.topics[name]
		want := Topic{TopicID(i), name, topic.start, topic.end, topic.cumAt(topic.start), topic.cum, topic.retention, topic.gaps, topic.deleted}
		if got := s.TopicByID(TopicID(i)); !sameTopic(got, want) {
			t.Fatalf("topic %+v, want %+v", got, want)
		}
		if got, ok := s.Topic([]byte(name)); ok == topic.deleted || (ok && !sameTopic(got, want)) {
			t.Fatalf("topic %+v, %v; want %+v", got, ok, want)
		}
		if end, cum, id, known := s.Ended([]byte(name)); end != topic.end || cum != topic.cum || id != want.ID || !known {
			t.Fatalf("topic %d ended at %d, %d bytes, %v; want %+v", id, end, cum, known, want)
		}
		compareOffsets(t, s.TopicByID(TopicID(i)), &topic)
		for _, group := range []string{"a", "g", "h", "many", "never"} {
			want, known := m.groups[[2]string{name, group}]
			if got, ok := s.Group(TopicID(i), []byte(group)); ok != known || got != want {
				t.Fatalf("group %q of %q: %+v, %v; want %+v, %v", group, name, got, ok, want, known)
			}
		}
	}
	if end, cum, _, known := s.Ended([]byte("never")); end != m.floor || cum != 0 || known {
		t.Fatalf("a topic that never was ended at %d, %d bytes, %v", end, cum, known)
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
			_, _, id, known := s.Ended([]byte(used[0]))
			if !known {
				continue // used after the freeze
			}
			got, ok := s.RequestID(id, []byte(used[1]), now)
			if w, known := want[used]; ok != known || got != w {
				t.Fatalf("request id %q of %q at %d ms: %+v, %v; want %+v, %v", used[1], used[0], now, got, ok, w, known)
			}
		}
	}
}

func sameTopic(a, b Topic) bool {
	same := slices.Equal(a.Gaps, b.Gaps)
	a.Gaps, b.Gaps = nil, nil
	return same && fmt.Sprint(a) == fmt.Sprint(b)
}

// compareOffsets compares what a topic says about single offsets with its records.
func compareOffsets(t *rapid.T, got Topic, want *modelTopic) {
	if n := uint64(len(want.records)); got.Records() != n {
		t.Fatalf("%d records, want %d", got.Records(), n)
	}
	at := []fact.Offset{0, got.Start, got.End, got.End + 1, fact.OffsetMax}
	for _, g := range want.gaps {
		at = append(at, g.From-1, g.From, g.From+1, g.To-1, g.To, g.To+1)
	}
	for _, from := range at {
		for _, to := range at {
			n := 0
			for _, r := range want.records {
				if from <= r.offset && r.offset < to {
					n++
				}
			}
			if between := got.Between(from, to); between != uint64(n) {
				t.Fatalf("%d records between %d and %d, want %d, in %+v", between, from, to, n, got)
			}
		}
		next, gap, ok := got.Normal(from)
		wantNext, wantGap := from, Gap{}
		for _, g := range want.gaps { // rising
			if wantNext == g.From {
				if wantNext = g.To; wantGap == (Gap{}) {
					wantGap = g
				}
			}
		}
		if want.inGap(from) {
			i := slices.IndexFunc(want.gaps, func(g Gap) bool { return g.From < from && from < g.To })
			wantGap, wantNext = want.gaps[i], want.gaps[i].To
			for _, g := range want.gaps {
				if wantNext == g.From {
					wantNext = g.To
				}
			}
		}
		if next != wantNext || ok == want.inGap(from) || (gap == nil) != (wantGap == Gap{}) || (gap != nil && *gap != wantGap) {
			t.Fatalf("at %d a reader goes on at %d, %v, %v; want %d, %v", from, next, gap, ok, wantNext, wantGap)
		}
	}
	for _, n := range []int{0, 1, len(want.records) / 2, len(want.records) - 1, len(want.records), len(want.records) + 1} {
		if n < 0 {
			continue
		}
		off := want.end
		if n < len(want.records) {
			off = want.records[n].offset
		}
		if nth := got.Nth(uint64(n)); nth != off {
			t.Fatalf("record %d has the offset %d, want %d, in %+v", n, nth, off, got)
		}
	}
}

// compareFrozen compares what a frozen state lists.
func compareFrozen(t *rapid.T, f *Frozen, m *model) {
	if f.Topics() != len(m.names) {
		t.Fatalf("%d topics, want %d", f.Topics(), len(m.names))
	}
	n := 0
	for got := range f.EachTopic {
		if want := m.topics[got.Name]; m.names[n] != got.Name || got.End != want.end || got.Deleted != want.deleted || !sameTopic(got, f.TopicByID(got.ID)) {
			t.Fatalf("topic %d is %+v, want %+v", n, got, want)
		}
		n++
	}
	groups := maps.Clone(m.groups)
	for got := range f.EachGroup {
		key := [2]string{m.names[got.Topic], got.Name}
		if want := groups[key]; got != want {
			t.Fatalf("group %+v, want %+v", got, want)
		}
		delete(groups, key)
	}
	if n != len(m.names) || len(groups) > 0 {
		t.Fatalf("%d topics of %d listed, groups %v not", n, len(m.names), groups)
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &run{s: New(), m: newModel(), used: map[[2]string]bool{}}
		t.Repeat(r.actions())
	})
}
