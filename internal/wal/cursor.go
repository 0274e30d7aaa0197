package wal

import (
	"errors"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Cursor reads frames in the order of the log, for replication and for applying. It belongs to one goroutine
// at a time. It keeps the file of a segment open, also when that was dropped, until it moves on or Close.
type Cursor struct {
	log  *Log
	next entry.Index

	segment *segment // in use; nil when there is none
	file    vfs.File // of segment
	cuts    uint64   // Log.cuts, when what follows was found
	place   Place    // of entry next
	prev    uint32   // CRC of the frame before it
	chained bool     // prev is known
	term    entry.Term
}

// NewCursor returns a cursor whose first frame is that of entry next. It reads nothing yet.
func (l *Log) NewCursor(next entry.Index) *Cursor {
	if next == 0 {
		panic("BUG: wal: a cursor at entry 0")
	}
	return &Cursor{log: l, next: next}
}

// Close releases the file of the segment.
func (c *Cursor) Close() {
	if c.segment != nil {
		c.segment.release()
		c.segment, c.file = nil, nil
	}
}

// Next fills f with the frames of the entries that follow, up to entry to or the last one appended, synced or
// not: all of one segment, at least one, and not more than maxBytes, unless the first one alone is larger. It
// returns their place. io.EOF means that the next entry is beyond to, or not there yet.
//
// Each frame is verified: its CRC, its index, its term, and that it follows the one before it, as far as the
// cursor has read. A *CorruptionError says which is damaged, and ErrSegmentGone that the segment was dropped.
// After an error, Next may be called again; it goes on where it was.
//
// To find the first frame takes reading a segment up to it, and so it is after a Truncate. From there on
// everything is read once, directly into f, whose memory is used again as long as maxBytes is at most 4 MiB.
func (c *Cursor) Next(f *Frames, to entry.Index, maxBytes int) (Place, error) {
	f.Reset()
	cuts := c.log.cuts.Load() // first: should a Truncate come in between, the next call finds its place anew
	tip, tipEnd := c.log.end()
	to = min(to, tip.Index)
	if c.next > to {
		return Place{}, io.EOF
	}
	last, err := c.seek(cuts)
	if err != nil {
		return Place{}, err
	}
	if last > 0 {
		to = min(to, last)
	}
	end := min(c.place.Size, c.segment.size) // less than its header says only of a file whose unused end is cut off
	if tipEnd.Segment == c.place.Segment {
		end = min(end, tipEnd.Offset) // do not read what is not yet written
	}
	if err := c.fill(f, to, maxBytes, end); err != nil {
		return Place{}, err
	}
	f.place = c.place
	c.next += entry.Index(f.Len())
	c.place.Offset += int64(f.end)
	c.prev, c.chained, c.term = f.crc(), true, f.Term()
	return f.place, nil
}

// seek makes sure that c is in the segment of entry next, at its place. It returns the segment's last entry,
// 0 if it is the active one.
func (c *Cursor) seek(cuts uint64) (entry.Index, error) {
	for {
		s, last, err := c.log.holding(c.next)
		if err != nil {
			c.Close()
			return 0, err
		}
		if s == c.segment && cuts == c.cuts {
			return last, nil
		}
		if err = c.enter(s, cuts); err == nil {
			return last, nil
		}
		if !errors.Is(err, ErrSegmentGone) { // else it was dropped or replaced in the meantime: look again
			return 0, err
		}
	}
}

// enter moves on to segment s and finds the place of entry next in it.
func (c *Cursor) enter(s *segment, cuts uint64) error {
	l := c.log
	f, err := l.acquire(s)
	if err != nil {
		return err
	}
	file := segmentFile{first: s.first, path: s.path, size: s.size}
	w := walker{seed: l.seed}
	h, err := w.follow(f, file, l.cfg.LogID, c.next-1, nil)
	if err == nil && c.next == s.first {
		w.term = 0
		if c.chained && cuts == c.cuts {
			w.term = c.term
			if h.prev != c.prev && h.prev != 0 {
				err = &CorruptionError{Segment: s.first, Index: s.first, Reason: "the segment does not follow the one before it"}
			}
		}
	}
	if err != nil {
		s.release()
		return err
	}
	c.Close()
	c.segment, c.file, c.cuts = s, f, cuts
	c.place = Place{Segment: s.first, Size: h.size, Prev: h.prev, Offset: w.pos}
	c.prev, c.chained, c.term = w.prev, true, w.term
	return nil
}

// fill reads frames up to entry to, of which the last ends at or before byte end of the file.
func (c *Cursor) fill(f *Frames, to entry.Index, maxBytes int, end int64) error {
	b, err := c.read(f, 0, int(min(int64(max(maxBytes, frameHeader)), end-c.place.Offset)))
	if err != nil {
		return err
	}
	var one frame
	want, prev, term := c.next, c.prev, c.term
	for want <= to {
		what := parse(c.log.seed, b[f.end:], &one)
		if what == frameShort && f.end == 0 && int64(one.size) <= end-c.place.Offset {
			if b, err = c.read(f, len(b), one.size); err != nil { // the first one is larger than what was read
				return err
			}
			continue
		}
		switch {
		case what != frameOK:
		case one.Index != want:
			what = fmt.Sprintf("entry %d stands in its place", one.Index)
		case one.prev != prev:
			what = "the frame does not follow the one before it"
		case one.Term < term:
			what = fmt.Sprintf("its term is %d, and that of an entry before it %d", one.Term, term)
		}
		if f.end > 0 && (what != frameOK || f.end+one.size > maxBytes) {
			break // more of it, or an error, next time
		}
		if what != frameOK {
			return &CorruptionError{Segment: c.place.Segment, Offset: c.place.Offset, Index: want, Reason: what}
		}
		f.starts = append(f.starts, f.end)
		f.end += one.size
		want, prev, term = want+1, one.crc, one.Term
	}
	return nil
}

// read returns the first n bytes at the place of c, in the buffer of f, which has the first have of them already.
func (c *Cursor) read(f *Frames, have, n int) ([]byte, error) {
	if n < 0 {
		n = 0
	}
	if cap(f.buf) < n {
		b := make([]byte, n, max(n, 2*cap(f.buf)))
		copy(b, f.buf[:have])
		f.buf = b
	}
	f.buf = f.buf[:n]
	if got, err := c.file.ReadAt(f.buf[have:], c.place.Offset+int64(have)); got < n-have {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read %s at byte %d: %w", c.segment.path, c.place.Offset, err)
	}
	return f.buf, nil
}
