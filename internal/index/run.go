package index

import (
	"math"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
)

// runBytesMax is where a run is cut. A reader fetches a whole run with one read, so this is the size of a
// read that costs little more than a small one, and the most that is read in vain for a single record. One
// frame is a run of its own however long it is.
const runBytesMax = 32 << 10

// Run is a stretch of one segment file that belongs to one topic: bytes Pos to End hold consecutive frames,
// all of this topic, and nothing else, and their records, First to Last among them, follow each other without a
// gap. Records before First and after Last, if there are any, stand in a later segment once more: who goes on
// reading past Last reads the right records, but should ask Find for them when they are damaged here.
type Run struct {
	Segment     entry.Index
	Pos, End    int64
	First, Last fact.Offset
}

// run is a Run as it is kept for a known segment, whoever has newer copies: 24 bytes, no pointers.
type run struct {
	pos   int64
	first fact.Offset
	size  uint32 // bytes, at least 1
	count uint32 // records, at least 1
}

func (r run) end() int64        { return r.pos + int64(r.size) }
func (r run) last() fact.Offset { return r.first + fact.Offset(r.count) - 1 }

// in is the run as far as it belongs to p.
func (r run) in(p place) Run {
	return Run{Segment: p.segment, Pos: r.pos, End: r.end(), First: max(r.first, p.first), Last: min(r.last(), p.last())}
}

// extend makes r cover one more frame, if the frame goes on where r ends, in the file and in the topic.
func (r *run) extend(first fact.Offset, count int, p entry.Position) bool {
	if p.Offset != r.end() || first != r.last()+1 || int64(r.size)+p.Length > runBytesMax {
		return false
	}
	r.size += uint32(p.Length)
	r.count += uint32(count)
	return true
}

// newRun is the run of a single frame. The log's limits keep frames and batches far below what fits.
func newRun(first fact.Offset, count int, p entry.Position) run {
	if count < 1 || int64(count) > math.MaxUint32 || p.Length < 1 || p.Length > math.MaxUint32 || p.Offset < 0 {
		invariant.Check(false, "index: frame without records or of an impossible size")
	}
	return run{pos: p.Offset, first: first, size: uint32(p.Length), count: uint32(count)}
}

// findRun returns the position of the first run that ends at off or later; len(runs) when there is none.
func findRun(runs []run, off fact.Offset) int {
	lo, hi := 0, len(runs)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if runs[mid].last() < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// clip returns the runs of records first to last, which are all in runs. Those at both ends may be cut; their
// bytes are not.
func clip(runs []run, first, last fact.Offset) []run {
	runs = runs[findRun(runs, first) : findRun(runs, last)+1]
	end := len(runs) - 1
	if runs[0].first == first && runs[end].last() == last {
		return runs
	}
	runs = slices.Clone(runs)
	if r := &runs[0]; r.first < first {
		r.count -= uint32(first - r.first)
		r.first = first
	}
	runs[end].count -= uint32(runs[end].last() - last)
	return runs
}

// placeOf is the place, wherever it is, of all records of runs, whose offsets are consecutive.
func placeOf(runs []run) place {
	bytes := int64(0)
	for _, r := range runs {
		bytes += int64(r.size)
	}
	first, last := runs[0].first, runs[len(runs)-1].last()
	return place{first: first, count: uint32(last - first + 1), bytes: saturated(bytes)}
}

// hold tells whether runs hold all records of a place.
func hold(runs []run, p place) bool {
	return runs[0].first <= p.first && p.last() <= runs[len(runs)-1].last()
}
