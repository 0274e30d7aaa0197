package wal

import (
	"fmt"

	"example.com/mq/internal/entry"
)

// Place says where frames lie on every replica.
type Place struct {
	Segment entry.Index // first entry of the segment file, which names it
	Size    int64       // of that file in bytes, as in its header
	Prev    uint32      // CRC in the segment's header: of the last frame before it, or 0 where the chain begins anew
	Offset  int64       // in the file, of the first of the frames
}

// Place returns where the frames of f lie in the log, as Append, AppendReplica, Load or Cursor.Next put them.
func (l *Log) Place(f *Frames) Place { return f.place }

// placeOf returns a place in the active segment.
func (l *Log) placeOf(offset int64) Place {
	return Place{Segment: l.active.first, Size: l.active.size, Prev: l.active.prev, Offset: offset}
}

// Load fills f with frames that a peer sent, and that belong at p. f aliases raw until Reset, and never writes
// to it; the caller must leave it alone for so long. It checks all that can be checked without the log before
// them: that p is possible and raw fits there, that raw is whole frames of this log to the last byte, with
// zeros for padding, dense indexes, terms that never go down, and each chained to the one before it. It does
// not look at this log's entries, so any goroutine may call it.
//
// Whatever p and raw hold, it does not panic. A *CorruptionError says what is wrong; f is empty then.
func (l *Log) Load(f *Frames, p Place, raw []byte) error {
	f.Reset()
	off, err := load(f, l.seed, p, raw)
	if err != "" {
		f.Reset()
		return &CorruptionError{Segment: p.Segment, Offset: p.Offset + int64(off), Reason: err}
	}
	return nil
}

// load is Load. It returns what is wrong, and where in raw.
func load(f *Frames, seed uint32, p Place, raw []byte) (off int, what string) {
	switch {
	case p.Segment == 0 || p.Size < headerSize || p.Size > segmentSizeMax:
		return 0, "there is no such segment"
	case p.Offset < headerSize || p.Offset%frameAlign != 0 || p.Offset > p.Size || int64(len(raw)) > p.Size-p.Offset:
		return 0, "the frames do not fit at their place in the segment"
	case len(raw) == 0:
		return 0, frameZero
	}
	f.buf, f.loaded = raw[:len(raw):len(raw)], true
	var one frame
	var before frame // the one before
	for off < len(raw) {
		if what = parse(seed, raw[off:], &one); what != frameOK {
			return off, what
		}
		switch {
		case off == 0 && (one.Index < p.Segment || (one.Index == p.Segment) != (p.Offset == headerSize)):
			return off, fmt.Sprintf("entry %d does not belong there", one.Index)
		case off == 0 && one.Index == p.Segment && one.prev != p.Prev:
			return off, "the frame does not follow what its segment follows"
		case off > 0 && one.Index != before.Index+1:
			return off, fmt.Sprintf("entry %d follows entry %d", one.Index, before.Index)
		case off > 0 && one.prev != before.crc:
			return off, "the frame does not follow the one before it"
		case off > 0 && one.Term < before.Term:
			return off, fmt.Sprintf("its term is %d, and that of the entry before it %d", one.Term, before.Term)
		}
		f.starts = append(f.starts, off)
		off += one.size
		before = one
	}
	f.end, f.place = off, p
	return off, ""
}

// AppendReplica writes the frames of f, which Load checked, exactly where p says; p is what Load was given.
// They must follow the last entry: by index, by term, and by chain, except that in a new segment with Prev 0
// the chain begins anew. They go into the active segment behind the last frame, or, when p names the next entry
// as its segment, into a new segment of that size, to which the log rolls. An active segment without entries is given
// up when the frames belong into the one before it.
//
// ErrMismatch means that they do not fit here, ErrFull that there is no room for a new segment; nothing was
// done then. For all else see Append. There is no reserve on a replica: what fits its place is taken.
func (l *Log) AppendReplica(f *Frames, p Place) error {
	if err := l.Err(); err != nil {
		return err
	}
	if f.Len() == 0 || f.place != p {
		panic(fmt.Sprintf("BUG: wal: replica append of %d entries at %+v that were loaded for %+v", f.Len(), p, f.place))
	}
	next := l.Last() + 1
	if first := f.First(); first != next {
		return fmt.Errorf("entry %d where %d comes next: %w", first, next, ErrMismatch)
	}
	if term := f.term(0); term < l.term {
		return fmt.Errorf("entry %d of term %d after one of term %d: %w", next, term, l.term, ErrMismatch)
	}
	tip := Point{Index: f.Last(), Term: f.Term(), CRC: f.crc()}
	if l.pos == headerSize && p.Segment < l.active.first && p.Segment == l.beforeActive() {
		// This log began a segment before it crashed, and the leader did not.
		if err := l.leaveEmpty(); err != nil {
			return err
		}
	}
	if p == l.placeOf(l.pos) && f.prev() == l.prev {
		if err := l.allow(f.commit()); err != nil {
			return err
		}
		return l.write(f, tip)
	}
	// An active segment without entries may be replaced: the leader did so, too.
	if p.Segment != next || p.Prev != l.prev && p.Prev != 0 {
		return fmt.Errorf("entry %d with prev %08x at %+v, and the log goes on with prev %08x at %+v: %w",
			next, f.prev(), p, l.prev, l.placeOf(l.pos), ErrMismatch)
	}
	if err := l.roll(p.Size, true, p.Prev); err != nil {
		return err
	}
	if err := l.allow(f.commit()); err != nil {
		return err
	}
	return l.write(f, tip)
}

// beforeActive returns the first entry of the segment before the active one, 0 when there is none.
func (l *Log) beforeActive() entry.Index {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := len(l.segments); n > 1 {
		return l.segments[n-2].first
	}
	return 0
}
