package catchup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// segmentHeader is where the first frame of a segment stands: docs/format/log.md.
const segmentHeader = 512

// reading is where a peer reads frames: it asks for the next ones again and again, and to find a place in a segment takes
// reading all before it.
type reading struct {
	log    *wal.Log
	term   entry.Term // in which the node leads; 0 when it does not
	cursor *wal.Cursor
	at     wal.Point // what was read, and sent, ends with this
	frames wal.Frames
	held   bool      // frames come next, and are at place
	place  wal.Place // of frames
}

// close lets go of the files. r may be nil.
func (r *reading) close() {
	if r != nil {
		r.cursor.Close()
	}
}

// take returns the reading of a peer behind a point, for the caller alone.
//
// Frames that are held were in the log once, and may have been cut off since. A leader cuts nothing, so they count as long
// as the same term is led. A cursor notices by itself.
func (s *Server) take(from int, log *wal.Log, now Standing, after wal.Point) (*reading, error) {
	term := entry.Term(0)
	if now.Leader {
		term = now.Term
	}
	s.mu.Lock()
	r := s.readings[from]
	s.readings[from] = nil
	s.mu.Unlock()
	if r != nil && r.log == log && (!r.held || term != 0 && term == r.term) {
		r.term = term
		if r.held && r.after() == after {
			r.at, r.held = after, false
		}
		if r.at == after {
			return r, nil
		}
	}
	r.close()
	if err := holds(log, after); err != nil {
		return nil, err
	}
	return &reading{log: log, term: term, cursor: log.NewCursor(after.Index + 1), at: after}, nil
}

// keep keeps r for the next request of the peer.
func (s *Server) keep(from int, r *reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings[from].close()
	s.readings[from] = r
}

// holds returns nil if the log holds a point. A point of term 0 stands before the first entry of the asker's log, which is
// the first one of a segment with that CRC in its header.
func holds(log *wal.Log, p wal.Point) error {
	if p.Term == 0 {
		place, err := log.SegmentPlace(p.Index + 1)
		switch list := log.Segments(); {
		case errors.Is(err, wal.ErrSegmentGone) && len(list) > 0 && p.Index+1 >= list[0].First:
			return fmt.Errorf("%w: no segment begins with entry %d", ErrDiffers, p.Index+1)
		case err != nil:
			return err
		case place.Prev != p.CRC:
			return fmt.Errorf("%w: the segment of entry %d follows %08x, not %08x", ErrDiffers, p.Index+1, place.Prev, p.CRC)
		}
		return nil
	}
	own, err := log.PointAt(p.Index)
	if err == nil && !same(own, p) {
		err = fmt.Errorf("%w: entry %d has term %d and CRC %08x here", ErrDiffers, p.Index, own.Term, own.CRC)
	}
	return err
}

// same reports whether two points at one index are the same, as far as their terms are known.
func same(a, b wal.Point) bool {
	return a.Index == b.Index && a.CRC == b.CRC && (a.Term == b.Term || a.Term == 0 || b.Term == 0)
}

// next makes sure that frames are held, at most limit bytes unless the first one is larger. io.EOF: there are none.
func (r *reading) next(limit int) error {
	if r.held {
		return nil
	}
	place, err := r.cursor.Next(&r.frames, maxIndex, limit)
	if err != nil {
		return err
	}
	r.place, r.held = place, true
	raw := r.frames.Raw()
	if prev := binary.LittleEndian.Uint32(raw[24:]); prev != r.at.CRC && !(place.Offset == segmentHeader && place.Prev == 0) {
		return fmt.Errorf("%w: entry %d follows %08x here", ErrDiffers, r.frames.First(), prev)
	}
	return nil
}

// after is the point of the last frame that is held.
func (r *reading) after() wal.Point { return lastPoint(&r.frames) }

// lastPoint returns the point of the last one of some frames.
func lastPoint(f *wal.Frames) wal.Point {
	n := f.Len() - 1
	at := f.Position(n).Offset - f.Position(0).Offset
	return wal.Point{Index: f.Last(), Term: f.Term(), CRC: binary.LittleEndian.Uint32(f.Raw()[at:])}
}

// frames answers with the frames behind a point.
func (s *Server) frames(from int, log *wal.Log, before Standing, q *request, a *answer, stand func() Standing) ([]byte, error) {
	r, err := s.take(from, log, before, q.after)
	if err != nil {
		return nil, err
	}
	const fields = answerHeader + 4
	limit := max(q.limit, 4<<10)
	b := make([]byte, fields, fields+pieceFields+limit)
	// Another piece only while there is much room: frames that do not fit any more were read in vain.
	for len(b) <= fields+limit/2 {
		room := cap(b) - len(b) - pieceFields
		err = r.next(room)
		if err == io.EOF && len(b) == fields && !same(log.Tip(), r.at) { // the log was cut, or has grown since
			err = firstError(holds(log, r.at), err)
		}
		if err != nil {
			break
		}
		raw := r.frames.Raw()
		if len(raw) > room && len(b) > fields {
			break // next time
		}
		if len(raw) > frameMax || q.have > 0 {
			if q.have > len(raw) {
				r.close()
				return nil, malformed("%d bytes of a frame of %d", q.have, len(raw))
			}
			part := raw[q.have:min(len(raw), q.have+limit)]
			a.length = len(raw)
			b = append(putPiece(b, r.place, len(part)), part...)
			break // the frame is held until it has arrived
		}
		b = append(putPiece(b, r.place, len(raw)), raw...)
		r.at, r.held = r.after(), false
	}
	if err != nil && err != io.EOF {
		r.close()
		if len(b) == fields {
			return nil, err
		}
		r = nil // the error comes next time
	}
	s.keep(from, r)
	if err == io.EOF { // it has everything: nothing need stay for it
		s.letGo(from)
	}
	a.standing = stand()
	a.encode(b[:0])
	return b, nil
}

// foundAt is what lookup finds at index 0: nothing, on every log.
var foundAt = found{state: foundPoint}

// lookSegments is how many segments are read for one request.
const lookSegments = 4

// lookup returns what a log has at some indexes. It reads each segment at most once, and not more than so many of them,
// from the highest index on down; 0: all. What it has not looked at is notLooked.
func lookup(log *wal.Log, indexes []entry.Index, segmentsMax int) ([]found, error) {
	out := make([]found, len(indexes))
	for i, index := range indexes {
		out[i].point.Index = index
	}
	list := log.Segments()
	if len(list) == 0 {
		return nil, wal.ErrClosed
	}
	tip := log.Tip()
	read := 0
	for n := len(list) - 1; n >= 0; n-- {
		end := tip.Index // of the entries that this segment holds
		if n+1 < len(list) {
			end = min(end, list[n+1].First-1)
		}
		within := make(map[entry.Index]*found)
		lowest := end
		for i, index := range indexes {
			switch {
			case index == tip.Index:
				out[i] = found{foundPoint, tip}
			case index > tip.Index:
				out[i].state = foundBeyond
			case index == 0:
				out[i] = foundAt
			case index+1 < list[0].First:
				out[i].state = foundGone
			case index+1 == list[0].First:
				p, err := log.PointAt(index)
				if err != nil {
					return nil, err
				}
				out[i] = found{foundPoint, p}
			case index >= list[n].First && index <= end:
				within[index] = &out[i]
				lowest = min(lowest, index)
			}
		}
		if len(within) == 0 {
			continue
		}
		if read++; segmentsMax > 0 && read > segmentsMax {
			break
		}
		if err := scan(log, lowest, end, within); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// scan finds points in one segment, which holds entries up to end, from the lowest index on.
func scan(log *wal.Log, lowest, end entry.Index, within map[entry.Index]*found) error {
	c := log.NewCursor(lowest)
	defer c.Close()
	var f wal.Frames
	for left := len(within); left > 0; {
		if _, err := c.Next(&f, end, 1<<20); err == io.EOF {
			return nil // cut meanwhile: not looked at
		} else if err != nil {
			return err
		}
		raw, base := f.Raw(), f.Position(0).Offset
		for i := range f.Len() {
			at := raw[f.Position(i).Offset-base:]
			index := entry.Index(binary.LittleEndian.Uint64(at[8:]))
			if one := within[index]; one != nil {
				term := entry.Term(binary.LittleEndian.Uint64(at[16:]))
				*one = found{foundPoint, wal.Point{Index: index, Term: term, CRC: binary.LittleEndian.Uint32(at)}}
				left--
			}
		}
	}
	return nil
}
