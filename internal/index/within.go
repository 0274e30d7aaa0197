package index

import (
	"example.com/mq/internal/entry"
)

// Held is a run with the name of its topic.
type Held struct {
	Topic string
	Run
}

// Within returns the runs that overlap the bytes from from to to-1 of a segment and hold the newest copy of a record: what
// is lost when these bytes are damaged. It goes through all topics of the segment, and reads their blocks of its index
// file; those that cannot be used it leaves out, and returns the first error.
func (x *Index) Within(number entry.Index, from, to int64) (held []Held, err error) {
	for at, more := 0, true; more; at += lockStep {
		var blocks []wanted
		blocks, more = x.blocksOf(number, at, func(name string, r Run) {
			if r.Pos < to && r.End > from {
				held = append(held, Held{name, r})
			}
		})
		for _, b := range blocks {
			runs, blockErr := x.block(b)
			if blockErr != nil && err == nil {
				err = &SegmentError{Segment: number, Err: blockErr}
			}
			for _, r := range runs {
				if r.pos < to && r.end() > from && r.first <= b.place.last() && r.last() >= b.place.first {
					held = append(held, Held{b.topic.name, r.in(b.place)})
				}
			}
		}
	}
	return held, err
}

// blocksOf looks at some topics of a segment, from the given one on. It calls visit for the runs that are in memory, returns
// the blocks of the others, and whether there are more topics.
func (x *Index) blocksOf(number entry.Index, from int, visit func(string, Run)) (blocks []wanted, more bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	i, known := searchSegment(x.segments, number)
	if !known {
		return nil, false
	}
	s := x.segments[i]
	end := min(len(s.topics), from+lockStep)
	for _, t := range s.topics[min(from, end):end] {
		first, last := t.span(number)
		for _, p := range t.places[first:last] {
			switch {
			case p.segment != number:
			case p.size > 0:
				blocks = append(blocks, wanted{t, s, p})
			default:
				for _, r := range s.lists[p.at].runs {
					if r.first <= p.last() && r.last() >= p.first {
						visit(t.name, r.in(p))
					}
				}
			}
		}
	}
	return blocks, end < len(s.topics)
}
