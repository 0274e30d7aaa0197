package index

import (
	"cmp"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// segment is what memory holds of one segment: who is in it, and, until its index file is written, the runs.
// A sealed segment's topics and runs do not change any more, so Flush reads them without the lock.
type segment struct {
	number entry.Index
	topics []*topic
	// runs of topics[i]; nil once they are in the index file.
	runs [][]run
	// saved: the index file is on disk. Its topics' places say where in it their blocks are.
	saved bool
}

// add records a frame for the topic in the given slot of the segment.
func (s *segment) add(slot uint32, first fact.Offset, count int, p entry.Position) {
	runs := s.runs[slot]
	if n := len(runs); n > 0 && runs[n-1].extend(first, count, p) {
		return
	}
	s.runs[slot] = append(runs, newRun(first, count, p))
}

// enter gives a topic that is new in the segment its slot.
func (s *segment) enter(t *topic) (slot uint32) {
	s.topics = append(s.topics, t)
	s.runs = append(s.runs, nil)
	return uint32(len(s.topics) - 1)
}

// place is the place of the topic in the slot of a segment that is in memory.
func (s *segment) place(slot int) place {
	runs := s.runs[slot]
	return place{segment: s.number, first: runs[0].first, last: runs[len(runs)-1].last(), at: uint32(slot)}
}

// searchSegment finds a segment by its number in a sorted list, or where it would stand.
func searchSegment(list []*segment, number entry.Index) (int, bool) {
	return slices.BinarySearchFunc(list, number, func(s *segment, n entry.Index) int { return cmp.Compare(s.number, n) })
}
