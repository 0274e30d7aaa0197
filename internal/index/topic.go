package index

import (
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// topic is what memory holds of one topic: its name, once for all segments, and its places.
type topic struct {
	name string
	// places are in log order. Places of segments that were dropped may stand at the front for a while.
	// Invariant: segments never decrease, and each place's first is above the last of the place before.
	places []place
}

// place says where the runs of one topic in one segment are. There is one for each topic and segment, and
// one more for every blockRuns runs of a topic that others interrupt often. 32 bytes, no pointers: with many
// topics and segments these are most of the memory that the index takes.
type place struct {
	segment     entry.Index
	first, last fact.Offset
	// at is the position of a block in the segment's index file, or, while size is 0, of the runs in
	// segment.runs: the segment is active or its index file is not written yet.
	at   uint32
	size uint32
}

// find returns the position of the first place that ends at off or later and is in segment oldest or a later
// one; len(t.places) when there is none.
func (t *topic) find(off fact.Offset, oldest entry.Index) int {
	lo, hi := 0, len(t.places)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.places[mid].last < off || t.places[mid].segment < oldest {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// from returns the position of the first place in the given segment or a later one.
func (t *topic) from(segment entry.Index) int {
	lo, hi := 0, len(t.places)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.places[mid].segment < segment {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// fits tells whether places, all of the given segment, keep the order when they replace those that t has
// for that segment.
func (t *topic) fits(segment entry.Index, places []place) bool {
	before, after := t.from(segment), t.from(segment+1)
	if before > 0 && t.places[before-1].last >= places[0].first {
		return false
	}
	return after == len(t.places) || places[len(places)-1].last < t.places[after].first
}

// replace puts places, which may be none, where those that t has for the segment are.
func (t *topic) replace(segment entry.Index, places ...place) {
	t.places = slices.Replace(t.places, t.from(segment), t.from(segment+1), places...)
}

// trim frees the places before segment oldest once they are half of all, which keeps the cost per place
// constant, and tells whether any place is left.
func (t *topic) trim(oldest entry.Index) (alive bool) {
	dead := t.from(oldest)
	if 2*dead >= len(t.places) {
		t.places = slices.Clone(t.places[dead:])
	}
	return len(t.places) > 0
}
