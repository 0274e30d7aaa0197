package wal

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Point names an entry and, by its chained CRC, the whole log up to it: two logs with the same id whose points
// at one index are equal hold the same entries up to there, back to where the chain began in both.
type Point struct {
	Index entry.Index
	Term  entry.Term
	CRC   uint32 // of the entry's frame
}

// Tip returns the point of the last entry appended, synced or not; index and CRC are 0 for a new log. Of a log
// without entries it is the point before the first one, with term 0. The CRC is also 0, which proves nothing,
// when the last entry is damaged and the chain begins anew after it. It never waits for I/O.
func (l *Log) Tip() Point {
	l.tipMu.Lock()
	defer l.tipMu.Unlock()
	return l.tip
}

// end returns the tip, and where its frame ends, unless the active segment has no entries.
func (l *Log) end() (Point, entry.Position) {
	l.tipMu.Lock()
	defer l.tipMu.Unlock()
	return l.tip, l.tipEnd
}

// setTip notes the last entry, and that the next one goes to byte end of segment s.
func (l *Log) setTip(p Point, s *segment, end int64) {
	l.tipMu.Lock()
	defer l.tipMu.Unlock()
	l.tip, l.tipEnd = p, entry.Position{Segment: s.first, Offset: end}
}

// knowTerm notes the term of the tip, if p is the tip of a log without entries.
func (l *Log) knowTerm(p Point) {
	l.tipMu.Lock()
	defer l.tipMu.Unlock()
	if l.tip.Index == p.Index && l.tip.CRC == p.CRC && l.tip.Term == 0 {
		l.tip.Term = p.Term
	}
}

// PointAt returns the point of entry i, which must not be beyond the tip. It reads the segment that holds i,
// up to i, and verifies the chain in it. The point of the tip is known without reading, and that of the entry
// before the first one comes from the header of the first segment, with term 0. Below that it answers
// ErrSegmentGone; a *CorruptionError says what is damaged.
func (l *Log) PointAt(i entry.Index) (Point, error) {
	for {
		tip := l.Tip()
		if i == tip.Index {
			return tip, nil
		}
		if i > tip.Index {
			return Point{}, fmt.Errorf("the log ends with entry %d, and entry %d is asked for: %w", tip.Index, i, ErrMismatch)
		}
		s, _, err := l.holding(i)
		if errors.Is(err, ErrSegmentGone) { // the header of the first segment may know
			s, _, err = l.holding(i + 1)
			if err == nil && s.first != i+1 {
				err = ErrSegmentGone
			}
		}
		if err != nil {
			return Point{}, err
		}
		p, err := l.pointIn(s, i)
		if err != ErrSegmentGone { // dropped or replaced in the meantime: look again
			return p, err
		}
	}
}

// pointIn reads segment s up to entry i.
func (l *Log) pointIn(s *segment, i entry.Index) (Point, error) {
	f, err := l.acquire(s)
	if err != nil {
		return Point{}, err
	}
	defer s.release()
	w := walker{seed: l.seed}
	if _, err := w.follow(f, segmentFile{first: s.first, path: s.path, size: s.size}, l.cfg.LogID, i, nil); err != nil {
		return Point{}, err
	}
	return Point{Index: i, Term: w.term, CRC: w.prev}, nil
}

// holding returns the segment that holds entry i, or would hold it if it were appended now, and the last entry
// of it; 0 for the active segment, whose end only the tip knows. Before the first segment: ErrSegmentGone.
func (l *Log) holding(i entry.Index) (s *segment, last entry.Index, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n := sort.Search(len(l.segments), func(n int) bool { return l.segments[n].first > i })
	switch {
	case l.closed:
		return nil, 0, ErrClosed
	case n == 0:
		return nil, 0, ErrSegmentGone
	case n < len(l.segments):
		last = l.segments[n].first - 1
	}
	return l.segments[n-1], last, nil
}

// readHeader reads the header of a segment file and checks that it is that of s.
func readHeader(f vfs.File, s segmentFile, id entry.LogID) (segmentHeader, error) {
	b := make([]byte, min(headerSize, s.size))
	if n, err := f.ReadAt(b, 0); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return segmentHeader{}, fmt.Errorf("read the header of %s: %w", s.path, err)
	}
	h, err := decodeHeader(b)
	switch {
	case errors.Is(err, ErrVersion):
		return h, fmt.Errorf("segment %s: %w", s.path, err)
	case err != nil:
	case h.id != id:
		err = fmt.Errorf("the segment belongs to log %x, not to %x", h.id, id)
	case h.first != s.first:
		err = fmt.Errorf("the segment says that it begins with entry %d", h.first)
	default:
		return h, nil
	}
	return h, &CorruptionError{Segment: s.first, Index: s.first, Reason: err.Error()}
}

// follow reads a segment file from its header on up to entry last, all of which must be there, and calls visit,
// if that is not nil, for each frame. Afterwards w.pos, w.prev and w.term tell of the end of entry last.
func (w *walker) follow(f vfs.File, s segmentFile, id entry.LogID, last entry.Index, visit func(*frame, entry.Position) error) (segmentHeader, error) {
	h, err := readHeader(f, s, id)
	if err != nil {
		return h, err
	}
	if visit == nil {
		visit = func(*frame, entry.Position) error { return nil }
	}
	w.reset(f, s.size)
	w.pos, w.want, w.prev, w.chained, w.term = headerSize, s.first, h.prev, true, 0
	if err := w.walk(s.first, last+1, visit); err != nil {
		return h, err
	}
	if w.want != last+1 {
		return h, &CorruptionError{Segment: s.first, Offset: w.pos, Index: w.want, Reason: w.why}
	}
	return h, nil
}
