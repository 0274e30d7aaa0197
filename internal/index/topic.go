package index

import (
	"math"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// topic is what memory holds of one topic: its name, once for all segments, and its places.
type topic struct {
	name string
	// places say, offset by offset, which segment holds the newest copy of a record. Places of segments that were
	// dropped may stand among them for a while.
	// Invariant: each place's first is above the last of the place before.
	places []place
	// in is the last segment whose topics name this one because of Add, and slot is where; 0 before the first.
	in   entry.Index
	slot uint32
	// mixed: segments may decrease from one place to the next, because records were kept.
	// Invariant: where it is false, segments never decrease.
	mixed bool
}

// place says where records of one topic with consecutive offsets are in one segment. There is one for each topic
// and segment, one more for every blockRuns runs of a topic that others interrupt often, and one more wherever
// offsets are missing or have a newer copy in a later segment. 32 bytes, no pointers: with many topics and
// segments these are most of the memory that the index takes.
type place struct {
	segment entry.Index
	first   fact.Offset
	count   uint32 // records, at least 1
	// at is the position of a block in the segment's index file, or, while size is 0, of a list in
	// segment.lists: the segment is active or its index file is not written yet. Block and list may hold more
	// than the place: what was taken from it.
	at   uint32
	size uint32
	// bytes of the frames that hold the records, at most MaxUint32; a share of them once records were taken.
	bytes uint32
}

func (p place) last() fact.Offset { return p.first + fact.Offset(p.count) - 1 }
func (p place) next() fact.Offset { return p.first + fact.Offset(p.count) }

// part is what is left of p when it keeps only records first to last. All records count as equally large, and
// none as nothing.
func (p place) part(first, last fact.Offset) place {
	count := uint32(last-first) + 1
	p.bytes = uint32((uint64(p.bytes)*uint64(count) + uint64(p.count) - 1) / uint64(p.count))
	p.first, p.count = first, count
	return p
}

// grow makes p cover one more frame, which begins with record p.next.
func (p *place) grow(count int, bytes int64) {
	p.count += uint32(count)
	p.bytes = saturated(int64(p.bytes) + bytes)
}

// saturated is a number of bytes as a place holds it.
func saturated(bytes int64) uint32 { return uint32(min(bytes, math.MaxUint32)) }

// add records a frame at the end of segment s, which no place of the topic is after.
func (t *topic) add(s *segment, first fact.Offset, count int, p entry.Position) {
	n := len(t.places)
	if n > 0 && s.goesOn(t.places[n-1], first, count) { // nearly always
		s.extend(&t.places[n-1], first, count, p)
		return
	}
	if n > 0 && t.places[n-1].last() >= first {
		// Records that are in older segments: they are kept.
		i, last := t.find(first), first+fact.Offset(count)-1
		if i > 0 && s.goesOn(t.places[i-1], first, count) && !t.within(s.number, i, last) {
			t.cut(i, last)
			s.extend(&t.places[i-1], first, count, p)
			return
		}
	}
	if t.in != s.number {
		t.in, t.slot = s.number, s.enter(t)
	}
	t.put(s.list(t.slot, first, count, p))
}

// within tells whether a place from i on that begins at last or before is in the segment.
func (t *topic) within(segment entry.Index, i int, last fact.Offset) bool {
	for ; i < len(t.places) && t.places[i].first <= last; i++ {
		if t.places[i].segment == segment {
			return true
		}
	}
	return false
}

// cut takes the records up to last from the places from i on.
func (t *topic) cut(i int, last fact.Offset) {
	j := i
	for j < len(t.places) && t.places[j].last() <= last {
		j++
	}
	if j < len(t.places) && t.places[j].first <= last {
		t.places[j] = t.places[j].part(last+1, t.places[j].last())
	}
	if j > i {
		t.places = slices.Delete(t.places, i, j)
	}
}

// put adds a place. What it has in common with places of later segments stays theirs; places of the same segment
// and of earlier ones lose what they have in common with it.
func (t *topic) put(p place) {
	n := len(t.places)
	if n == 0 || t.places[n-1].last() < p.first {
		t.mixed = t.mixed || n > 0 && t.places[n-1].segment > p.segment
		t.places = append(t.places, p)
		return
	}
	from := t.find(p.first)
	to := from
	for to < n && t.places[to].first <= p.last() {
		to++
	}
	if from == to {
		t.places = slices.Insert(t.places, from, p)
		t.mixed = t.mixed || !rising(t.places[max(from-1, 0):from+2])
		return
	}
	var room [8]place
	merged := merge(room[:0], t.places[from:to], p)
	t.places = slices.Replace(t.places, from, to, merged...)
	t.mixed = t.mixed || !rising(t.places[max(from-1, 0):min(from+len(merged)+1, len(t.places))])
}

// merge appends to dst what stays of p and of old, the places that have records in common with it.
func merge(dst, old []place, p place) []place {
	if q := old[0]; q.first < p.first && q.segment <= p.segment {
		dst = append(dst, q.part(q.first, p.first-1))
	}
	rest := p.first // of p, not yet in dst
	for _, q := range old {
		if q.segment <= p.segment {
			continue
		}
		if q.first > rest {
			dst = append(dst, p.part(rest, q.first-1))
		}
		dst = append(dst, q)
		rest = q.next()
	}
	if rest <= p.last() {
		dst = append(dst, p.part(rest, p.last()))
	}
	if q := old[len(old)-1]; q.last() > p.last() && q.segment <= p.segment {
		dst = append(dst, q.part(p.next(), q.last()))
	}
	return dst
}

// rising tells whether segments never decrease from one place to the next.
func rising(places []place) bool {
	for i := 1; i < len(places); i++ {
		if places[i].segment < places[i-1].segment {
			return false
		}
	}
	return true
}

// find returns the position of the first place that ends at off or later; len(t.places) when there is none.
func (t *topic) find(off fact.Offset) int { return findPlace(t.places, off) }

func findPlace(places []place, off fact.Offset) int {
	lo, hi := 0, len(places)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if places[mid].last() < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// findFrom is find among the places in segment oldest or a later one.
func (t *topic) findFrom(off fact.Offset, oldest entry.Index) int {
	i := t.find(off)
	if i == len(t.places) || t.places[i].segment >= oldest {
		return i
	}
	if !t.mixed {
		return max(i, t.from(oldest))
	}
	for i < len(t.places) && t.places[i].segment < oldest {
		i++ // not many, and not for long: trim leaves none
	}
	return i
}

// from returns the position of the first place in the given segment or a later one, of a topic that is not mixed.
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

// span returns between which positions the places of a segment are; there may be others.
func (t *topic) span(segment entry.Index) (from, to int) {
	if t.mixed {
		return 0, len(t.places)
	}
	return t.from(segment), t.from(segment + 1)
}

// lastIn returns the last record whose newest copy is in the segment, and at how many places it has looked.
func (t *topic) lastIn(segment entry.Index) (last fact.Offset, found bool, looked int) {
	from, to := t.span(segment)
	for i := to - 1; i >= from; i-- {
		if p := t.places[i]; p.segment == segment {
			return p.last(), true, to - i
		}
	}
	return 0, false, to - from
}

// moveToFile makes the places in the lists of a segment point to the blocks of its index file, which holds those
// of list i in blocks[i].
func (t *topic) moveToFile(segment entry.Index, blocks [][]place) {
	from, to := t.span(segment)
	for i := from; i < to; i++ {
		p := t.places[i]
		if p.segment != segment {
			continue
		}
		inFile := blocks[p.at]
		b := findPlace(inFile, p.first)
		if inFile[b].last() >= p.last() { // nearly always
			t.places[i] = inFile[b].part(p.first, p.last())
			continue
		}
		var parts []place
		for ; b < len(inFile) && inFile[b].first <= p.last(); b++ {
			parts = append(parts, inFile[b].part(max(p.first, inFile[b].first), min(p.last(), inFile[b].last())))
		}
		t.places = slices.Replace(t.places, i, i+1, parts...)
		i, to = i+len(parts)-1, to+len(parts)-1
	}
}

// remove takes the places in a segment away.
func (t *topic) remove(segment entry.Index) {
	t.places = slices.DeleteFunc(t.places, func(p place) bool { return p.segment == segment })
	t.mixed = t.mixed && !rising(t.places)
}

// trim frees the places before segment oldest, and tells whether any place is left. Where they stand at the front
// it waits until they are half of all, which keeps the cost per place constant.
func (t *topic) trim(oldest entry.Index) (alive bool) {
	if t.mixed {
		t.places = slices.DeleteFunc(t.places, func(p place) bool { return p.segment < oldest })
		t.mixed = !rising(t.places)
		if cap(t.places) > 2*len(t.places) {
			t.places = slices.Clone(t.places)
		}
	} else if dead := t.from(oldest); 2*dead >= len(t.places) {
		t.places = slices.Clone(t.places[dead:])
	}
	return len(t.places) > 0
}
