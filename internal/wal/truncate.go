package wal

import (
	"fmt"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// cut is where and how a log is to be cut.
type cut struct {
	kept    int // segments that stay
	segment *segment
	header  segmentHeader
	tip     Point // the last entry that stays
	pos     int64 // of its end
	end     int64 // of the last byte that is not zero
	levels  []int64
}

// Truncate removes all entries after last, durably. last must not be beyond the tip (ErrMismatch), nor below
// the entry before the first one (ErrSegmentGone). The log goes on behind last in the segment that holds it,
// whose rest is zeros then as in a new one; a sealed segment becomes active again. Reads and cursors at or
// below last are not disturbed; those beyond may meet what looks like damage while it runs, and afterwards
// find what was appended since. The caller sees to it that nothing that was acknowledged is cut, and that
// Config.Proven is not beyond last at the next Open.
//
// A crash at any moment leaves a log that opens without damage, and ends at last or behind it, with the
// entries that it had: docs/format/log.md says why. An error before anything was changed is only returned; after
// that the log takes no more entries.
func (l *Log) Truncate(last entry.Index) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	tip := l.Tip()
	if last == tip.Index {
		return nil
	}
	if last > tip.Index {
		return fmt.Errorf("cut the log after entry %d, and it ends with entry %d: %w", last, tip.Index, ErrMismatch)
	}
	return l.cutAfter(last)
}

// leaveEmpty gives up the active segment, which has no entries, so that the log goes on in the one before it: there a
// peer has what comes next.
func (l *Log) leaveEmpty() error {
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	return l.cutAfter(l.Last())
}

// cutAfter is Truncate, where last may be the tip. Called with dropMu held.
func (l *Log) cutAfter(last entry.Index) error {
	c, err := l.planCut(last)
	if err != nil {
		return fmt.Errorf("cut the log after entry %d: %w", last, err)
	}
	s, file := c.segment, l.file
	if s != l.active {
		// A handle for writing. Readers keep theirs, and the old segment, until they leave.
		if file, err = l.cfg.FS.Open(s.path); err != nil {
			return fmt.Errorf("cut the log: %w", err)
		}
		s = &segment{first: s.first, path: s.path, size: min(s.size, c.header.size), prev: c.header.prev, file: file}
	}
	gone := l.forget(c, s)
	l.active, l.file, l.pos = s, file, c.pos
	l.prev, l.term = c.tip.CRC, c.tip.Term
	l.room.Store(s.size - l.pos)
	if err := l.removeAll(gone); err != nil {
		return l.fail(fmt.Errorf("cut the log after entry %d: %w", last, err))
	}
	if err := zeroLevels(file, c.levels, c.end); err != nil {
		return l.fail(fmt.Errorf("cut %s after entry %d: %w", s.path, last, err))
	}
	l.synced()
	return nil
}

// planCut reads the segment that holds entry last. It changes nothing.
func (l *Log) planCut(last entry.Index) (*cut, error) {
	l.mu.RLock()
	list := l.segments // dropMu keeps it as it is
	l.mu.RUnlock()
	if last+1 < list[0].first {
		return nil, ErrSegmentGone
	}
	n := 1
	for n < len(list) && list[n].first <= last {
		n++
	}
	c := &cut{kept: n, segment: list[n-1]}
	limit := l.Last()
	if n < len(list) {
		limit = list[n].first - 1
	}
	f, err := l.acquire(c.segment)
	if err != nil {
		return nil, err
	}
	defer c.segment.release()
	w := walker{seed: l.seed}
	// proof is the entry of which no frame that stays, while later ones are zeroed, may say that it is committed.
	proof := last + 1
	file := segmentFile{first: c.segment.first, path: c.segment.path, size: c.segment.size}
	c.header, err = w.follow(f, file, l.cfg.LogID, limit, func(f *frame, p entry.Position) error {
		switch {
		case f.Index <= last:
			c.tip, c.pos = Point{Index: f.Index, Term: f.Term, CRC: f.crc}, p.End()
		case f.Index == last+1 || f.Commit >= proof:
			proof = f.Index
			c.levels = append(c.levels, p.Offset)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if last < c.segment.first { // all of it goes
		c.tip, c.pos = Point{Index: last, CRC: c.header.prev}, headerSize
	}
	at, err := w.lastNonZero(w.pos)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file.path, err)
	}
	c.end = max(w.pos, at+1)
	if len(c.levels) == 0 { // last is the end of its segment
		c.levels = append(c.levels, c.pos)
	}
	return c, nil
}

// forget takes what is cut out of the log's memory, so that nobody begins to read it, and returns the segments
// that go. s takes the place of the last one that stays.
func (l *Log) forget(c *cut, s *segment) []*segment {
	l.setTip(c.tip, s, c.pos)
	l.mu.Lock()
	l.durable.Store(min(l.durable.Load(), uint64(c.tip.Index)))
	l.last.Store(uint64(c.tip.Index))
	s.end.Store(c.pos)
	old := l.segments
	l.segments = append(slices.Clone(old[:c.kept-1]), s)
	l.mu.Unlock()
	l.cuts.Add(1)
	for _, o := range old[c.kept-1:] {
		// A sealed segment that is open is counted in files; the active one is not.
		if o != s && o.discard() && o != l.active {
			l.files.Add(-1)
		}
	}
	return old[c.kept:]
}

// removeAll removes segments, the newest first, each durably before the next: a crash must not leave a hole.
func (l *Log) removeAll(list []*segment) error {
	for _, s := range slices.Backward(list) {
		if err := l.cfg.FS.Remove(s.path); err != nil {
			return err
		}
		if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
			return fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err)
		}
		l.prep.retryNow()
	}
	return nil
}

// zeroLevels zeros f from levels[0] to end, from the last level back to the first, each durably before the next.
func zeroLevels(f vfs.File, levels []int64, end int64) error {
	for _, from := range slices.Backward(levels) {
		if err := zeroRange(f, from, end); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		end = from
	}
	return nil
}
