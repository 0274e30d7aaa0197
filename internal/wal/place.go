package wal

import (
	"example.com/mq/internal/entry"
)

// SegmentPlace returns the place of the first frame of a segment, which a segment need not have yet. It reads the
// segment's header.
func (l *Log) SegmentPlace(first entry.Index) (Place, error) {
	s, f, _, _, err := l.open(first)
	if err != nil {
		return Place{}, err
	}
	defer s.release()
	h, err := readHeader(f, segmentFile{first: s.first, path: s.path, size: s.size}, l.cfg.LogID)
	if err != nil {
		return Place{}, err
	}
	return Place{Segment: first, Size: h.size, Prev: h.prev, Offset: headerSize}, nil
}

// Next returns the place of the next entry in the active segment: right behind the last one, or, when the segment has
// none, at its start. Whether a frame fits there is for the caller to see. Like Append, it belongs to the one who
// owns the end of the log. It never waits for I/O.
func (l *Log) Next() Place { return l.placeOf(l.pos) }

// Behind returns the place right behind the last entry, in the segment that holds it. That is Next, unless the active
// segment has no entries: then it is a place in the segment before, where AppendReplica puts frames, and gives the
// empty segment up. It is false when there is no such place: the log has no entry, or the segment was dropped, or is
// damaged. Like Append, it belongs to the one who owns the end of the log. It reads that segment only if it became a part
// of the log just now, by Prepend; else it never waits for I/O.
func (l *Log) Behind() (Place, bool) {
	if l.pos > headerSize {
		return l.Next(), true
	}
	before := l.beforeActive()
	if before != 0 && l.behind.Segment != before {
		l.behind = l.endOf(before)
	}
	return l.behind, before != 0 && l.behind.Segment == before
}

// endOf reads a sealed segment and returns the place behind its last frame; the zero value if it cannot be read.
func (l *Log) endOf(first entry.Index) Place {
	s, f, last, _, err := l.open(first)
	if err != nil {
		return Place{}
	}
	defer s.release()
	w := walker{seed: l.seed}
	h, err := w.follow(f, segmentFile{first: s.first, path: s.path, size: s.size}, l.cfg.LogID, last, nil)
	if err != nil {
		return Place{}
	}
	return Place{Segment: first, Size: h.size, Prev: h.prev, Offset: w.pos}
}
