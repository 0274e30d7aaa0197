package node

import (
	"slices"

	"example.com/mq/internal/fact"
)

// Span is a stretch of offsets of a topic, From to To-1.
type Span struct {
	From, To fact.Offset // Invariant: From < To
}

// Spans are the offsets that were seen of one topic. They rise, and neither overlap nor touch each other.
type Spans []Span

// Add adds from to to-1. It is quick when what is added comes behind all that is there, or goes on at its end.
func (s *Spans) Add(from, to fact.Offset) {
	if from >= to {
		return
	}
	i, _ := slices.BinarySearchFunc(*s, from, func(e Span, at fact.Offset) int {
		if e.To < at {
			return -1
		}
		return 1
	})
	n := i
	for n < len(*s) && (*s)[n].From <= to {
		from, to = min(from, (*s)[n].From), max(to, (*s)[n].To)
		n++
	}
	*s = slices.Replace(*s, i, n, Span{from, to})
}

// Missing returns what of from to to-1 is not there.
func (s Spans) Missing(from, to fact.Offset) (missing Spans) {
	for _, e := range s {
		if e.To <= from {
			continue
		}
		if e.From >= to {
			break
		}
		if from < e.From {
			missing = append(missing, Span{from, e.From})
		}
		from = e.To
	}
	if from < to {
		missing = append(missing, Span{from, to})
	}
	return missing
}

// fill adds what is missing between an offset and the end: offsets that were given out, as those behind them show. Where
// they jump, because of a restore, the ones from the jump on were.
func (s *Spans) fill(from fact.Offset) {
	if len(*s) == 0 {
		return
	}
	for _, hole := range s.Missing(from, (*s)[len(*s)-1].To) {
		s.Add(max(hole.From, hole.To/fact.RestoreStep*fact.RestoreStep), hole.To)
	}
}

// Within returns what of from to to-1 is there.
func (s Spans) Within(from, to fact.Offset) (there Spans) {
	for _, e := range s {
		if low, high := max(e.From, from), min(e.To, to); low < high {
			there = append(there, Span{low, high})
		}
	}
	return there
}

// Count returns how many offsets there are.
func (s Spans) Count() (n uint64) {
	for _, e := range s {
		n += uint64(e.To - e.From)
	}
	return n
}
