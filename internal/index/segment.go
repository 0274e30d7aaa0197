package index

import (
	"cmp"
	"math"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// segment is what memory holds of one segment: who is in it, and, until its index file is written, the runs.
// A sealed segment's topics and lists do not change any more, so Flush reads them without the lock.
type segment struct {
	number entry.Index // at least 1
	// topics that have records in it, also those whose records all have a newer copy in a later segment.
	topics []*topic
	// lists hold the runs; nil once they are in the index file. Where two have records in common, which no log
	// should hold, the later list wins: its frames are the later ones.
	lists []list
	// saved: the index file is on disk. Its topics' places say where in it their blocks are.
	saved bool
}

// list holds the runs of records of one topic with consecutive offsets, in log order. A topic has one for what is
// appended, and others for what is kept.
type list struct {
	runs []run  // Invariant: each begins with the record after the last of the run before, and at its end or later
	slot uint32 // of the topic in segment.topics
}

// enter gives a topic that is new in the segment its slot.
func (s *segment) enter(t *topic) (slot uint32) {
	s.topics = append(s.topics, t)
	return uint32(len(s.topics) - 1)
}

// list begins a list with a frame, and returns its place.
func (s *segment) list(slot uint32, first fact.Offset, count int, p entry.Position) place {
	r := newRun(first, count, p)
	s.lists = append(s.lists, list{slot: slot, runs: []run{r}})
	return place{segment: s.number, first: first, count: r.count, at: uint32(len(s.lists) - 1), bytes: r.size}
}

// goesOn tells whether a frame that begins with record first can go to the end of the list that p is in, if no other
// place of this segment has records of the frame. One that has lost its end to such a place never goes on.
func (s *segment) goesOn(p place, first fact.Offset, count int) bool {
	return p.segment == s.number && p.next() == first && int64(p.count)+int64(count) <= math.MaxUint32
}

// extend adds a frame to the list that p is in.
func (s *segment) extend(p *place, first fact.Offset, count int, at entry.Position) {
	l := &s.lists[p.at]
	if !l.runs[len(l.runs)-1].extend(first, count, at) {
		l.runs = append(l.runs, newRun(first, count, at))
	}
	p.grow(count, at.Length)
}

// parts returns what the given lists, those of one topic, hold without what a later one has, in order of the
// offsets.
func (s *segment) parts(lists []int) []place {
	var t topic
	for _, i := range lists {
		p := placeOf(s.lists[i].runs)
		p.segment, p.at = entry.Index(i), uint32(i) // the later list wins, as the later segment does elsewhere
		t.put(p)
	}
	for i := range t.places {
		t.places[i].segment = s.number
	}
	return t.places
}

// searchSegment finds a segment by its number in a sorted list, or where it would stand.
func searchSegment(list []*segment, number entry.Index) (int, bool) {
	return slices.BinarySearchFunc(list, number, func(s *segment, n entry.Index) int { return cmp.Compare(s.number, n) })
}
