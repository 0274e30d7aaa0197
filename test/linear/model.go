package linear

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

// state is a topic and the offset of a group. It is never changed: a step makes another one.
type state struct {
	start   uint64
	records []record // from offset 0 on. The topic exists if there is one
	group   uint64
	// Invariant: start <= len(records).
}

func (s *state) end() uint64 { return uint64(len(s.records)) }

// model is a topic that does one thing at a time.
func (t *topic) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &state{} },
		Step: func(s, input, _ any) (bool, any) {
			c := input.(call)
			next, ok := t.step(s.(*state), &c)
			return ok, next
		},
		Equal: func(a, b any) bool {
			x, y := a.(*state), b.(*state)
			return x.start == y.start && x.group == y.group && slices.Equal(x.records, y.records)
		},
		Hash: func(s any) uint64 { return s.(*state).hash() },
		DescribeOperation: func(input, _ any) string {
			c := input.(call)
			return c.Operation.String()
		},
		DescribeState: func(s any) string {
			x := s.(*state)
			return fmt.Sprintf("[%d, %d) group at %d", x.start, x.end(), x.group)
		},
	}
}

// hash is FNV-1a over what tells states of one history apart.
func (s *state) hash() uint64 {
	h := uint64(14695981039346656037)
	mix := func(v uint64) { h = (h ^ v) * 1099511628211 }
	mix(s.start)
	mix(s.end())
	for _, r := range s.records[max(0, len(s.records)-8):] {
		mix(uint64(r.publish)<<32 | uint64(uint32(r.at)))
	}
	mix(s.group)
	return h
}

// step reports whether the call may take effect now with the answer that it got, and what the topic is then.
func (t *topic) step(s *state, c *call) (*state, bool) {
	switch c.Kind {
	case Publish:
		return t.stepPublish(s, c)
	case Fetch:
		return s, s.mayFetch(t, c)
	case GroupFetch:
		return s, s.mayGroupFetch(t, c)
	case Commit:
		return s.move(c, func(next *state) { next.group = c.Offset }, c.Next)
	case Retain:
		return s.move(c, func(next *state) { next.start = c.Offset }, c.Start)
	}
	panic(fmt.Sprintf("BUG: a call of kind %d", c.Kind))
}

func (t *topic) stepPublish(s *state, c *call) (*state, bool) {
	base, conflict := -1, false
	if id := t.publications[c.publish].id; id != "" {
		base = slices.Index(s.records, record{int32(c.publish), 0})
		conflict = base < 0 && slices.ContainsFunc(s.records, func(r record) bool { return t.publications[r.publish].id == id })
	}
	switch {
	case c.Outcome == NotDone:
		return s, conflict
	case c.Outcome == Unknown && (base >= 0 || conflict):
		return s, true
	case conflict:
		return s, false
	case base >= 0:
		return s, c.Duplicate && c.Base == uint64(base)
	case c.Outcome == Done && (c.Duplicate || c.Base != s.end()):
		return s, false
	}
	next := *s
	next.records = slices.Grow(slices.Clone(s.records), len(c.Values))
	for i := range c.Values {
		next.records = append(next.records, record{int32(c.publish), int32(i)})
	}
	return &next, true
}

// mayFetch reports whether a fetch may be answered so. An answer with records may be old, but what it says was true.
func (s *state) mayFetch(t *topic, c *call) bool {
	switch {
	case c.Code == TopicNotFound:
		return s.end() == 0
	case c.Code == OffsetGone:
		return c.Offset < c.Start && c.Start <= s.start
	case s.end() == 0 || c.Offset < c.Start:
		return false
	case len(c.records) == 0:
		return c.Offset >= s.end() && c.Next == s.end() && c.End == s.end() && c.Start == s.start
	}
	return c.Base == c.Offset && c.Start <= s.start && s.holds(t, c)
}

// mayGroupFetch reports whether a fetch of a group may be answered so: it begins where the group stands.
func (s *state) mayGroupFetch(t *topic, c *call) bool {
	at := max(s.group, s.start)
	switch {
	case c.Code == TopicNotFound:
		return s.end() == 0
	case s.end() == 0 || c.Start != s.start:
		return false
	case len(c.records) == 0:
		return at == s.end() && c.Next == s.end() && c.End == s.end()
	}
	return c.Base == at && s.holds(t, c)
}

// holds reports whether the records of an answer stand where it says, its offsets fit together, and its end was the end
// once: there it is between two publishes.
func (s *state) holds(t *topic, c *call) bool {
	n := uint64(len(c.records))
	if n > uint64(c.Limit) || c.Next != c.Base+n || c.Next > c.End || c.End > s.end() {
		return false
	}
	last := s.records[c.End-1]
	return int(last.at) == t.publications[last.publish].size-1 && slices.Equal(s.records[c.Base:c.Next], c.records)
}

// move is a step that moves an offset to c.Offset. answered is what a call that is done says of it.
func (s *state) move(c *call, to func(next *state), answered uint64) (*state, bool) {
	inside := s.start <= c.Offset && c.Offset <= s.end() && s.end() > 0
	switch {
	case c.Outcome == NotDone && c.Code == TopicNotFound:
		return s, s.end() == 0
	case c.Outcome == NotDone:
		return s, s.end() > 0 && !inside
	case c.Outcome == Done && (!inside || answered != c.Offset):
		return s, false
	case !inside:
		return s, true
	}
	next := *s
	to(&next)
	return &next, true
}
