package wal

import (
	"encoding/binary"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// scanBytes is how much a source reads at a time.
const scanBytes = 1 << 20

// source reads a file through a buffer, from front to back; going back is allowed, but slow.
type source struct {
	file vfs.File
	size int64 // of the file
	buf  []byte
	from int64 // buf holds the bytes from here on

	chunk   int64                 // how much to read at a time; 0 for scanBytes
	between func(bytes int) error // called after each read; may be nil
}

// reset turns s to another file and keeps the buffer's memory.
func (s *source) reset(f vfs.File, size int64) {
	s.file, s.size, s.buf, s.from = f, size, s.buf[:0], 0
}

// at returns the bytes from off on, at least n of them, and often many more. They are valid until the next
// call. off+n must not lie beyond the size.
func (s *source) at(off int64, n int) ([]byte, error) {
	if i := off - s.from; i >= 0 && i+int64(n) <= int64(len(s.buf)) {
		return s.buf[i:], nil
	}
	chunk := s.chunk
	if chunk == 0 {
		chunk = scanBytes
	}
	want := int(min(max(int64(n), chunk), s.size-off))
	if n > want {
		return nil, fmt.Errorf("read at byte %d: %w", off, io.ErrUnexpectedEOF)
	}
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	s.buf, s.from = s.buf[:want], off
	if got, err := s.file.ReadAt(s.buf, off); got < want {
		s.buf = s.buf[:0]
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF // somebody cut the file while we read
		}
		return nil, fmt.Errorf("read at byte %d: %w", off, err)
	}
	if s.between != nil {
		if err := s.between(want); err != nil {
			return nil, err
		}
	}
	return s.buf, nil
}

// frameAt decodes the frame at off.
func (s *source) frameAt(seed uint32, off int64, f *frame) (string, error) {
	if s.size-off < frameHeader {
		return frameShort, nil
	}
	b, err := s.at(off, frameHeader)
	if err != nil {
		return "", err
	}
	what := parse(seed, b, f)
	if what != frameShort || int64(f.size) > s.size-off {
		return what, nil
	}
	if b, err = s.at(off, f.size); err != nil {
		return "", err
	}
	return parse(seed, b, f), nil
}

// lastNonZero returns the position of the last byte at or after off that is not zero, or -1.
func (s *source) lastNonZero(off int64) (int64, error) {
	last := int64(-1)
	for off < s.size {
		b, err := s.at(off, 1)
		if err != nil {
			return 0, err
		}
		if !allZero(b) {
			i := len(b) - 1
			for b[i] == 0 {
				i--
			}
			last = off + int64(i)
		}
		off += int64(len(b))
	}
	return last, nil
}

// zero reports whether all bytes of [from, to) that are in the file are zero.
func (s *source) zero(from, to int64) (bool, error) {
	to = min(to, s.size)
	for from < to {
		b, err := s.at(from, 1)
		if err != nil {
			return false, err
		}
		b = b[:min(int64(len(b)), to-from)]
		if !allZero(b) {
			return false, nil
		}
		from += int64(len(b))
	}
	return true, nil
}

// errSearchLong: see search.
const errSearchLong = "too many bytes look like frames to search them all"

// search returns the first position in [from, to) where a valid frame begins whose index and commit index
// accept likes, or -1. Frames are found without their neighbours: by a plausible header, then by the CRC.
//
// The work is bounded: bytes that were made to look like frames, each of them long, could otherwise keep it
// busy for hours. Past the bound it gives up with a CorruptionError, which is the careful answer.
func (s *source) search(seed uint32, from, to int64, accept func(index, commit entry.Index) bool, f *frame) (int64, error) {
	budget := max(16*s.size, 1<<30)
	for off := from; off < min(to, s.size-frameHeader+1); {
		b, err := s.at(off, frameHeader)
		if err != nil {
			return 0, err
		}
		i := 0
		for ; i+frameHeader <= len(b) && off < to; i, off = i+frameAlign, off+frameAlign {
			h := b[i:]
			last := binary.LittleEndian.Uint64(h[32:])
			if last>>48 == 0 || last>>56 != 0 {
				continue // kind is 0, or the byte after it is not; true for zeros
			}
			index, lag := binary.LittleEndian.Uint64(h[8:]), uint64(binary.LittleEndian.Uint32(h[28:]))
			if lag == 0 || lag > index || !accept(entry.Index(index), entry.Index(index-lag)) {
				continue
			}
			what, err := s.frameAt(seed, off, f)
			if err != nil {
				return 0, err
			}
			if what == frameOK {
				return off, nil
			}
			if what != frameShort {
				budget -= int64(f.size)
			}
			if budget < 0 {
				return 0, &CorruptionError{Offset: off, Reason: errSearchLong}
			}
			// frameAt may have read other bytes into the buffer.
			off += frameAlign
			break
		}
	}
	return -1, nil
}

// walker follows the chain of frames through a segment.
type walker struct {
	source
	seed    uint32
	pos     int64       // where the next frame is expected
	want    entry.Index // its index
	prev    uint32      // CRC of the frame before it
	chained bool        // prev is known
	term    entry.Term  // of the frame before it, or of an earlier one; terms never go down
	frame   frame       // the last one read; valid ones only up to pos
	why     string      // walk stopped
}

// walk calls visit for each frame up to the first place where the expected one does not stand, or until
// the next one would be limit. Afterwards w.pos is that place, and w.why says what is there instead.
func (w *walker) walk(segment, limit entry.Index, visit func(*frame, entry.Position) error) error {
	f := &w.frame
	for w.want != limit {
		what, err := w.frameAt(w.seed, w.pos, f)
		if err != nil {
			return err
		}
		switch {
		case what != frameOK:
			w.why = what
			return nil
		case f.Index != w.want:
			w.why = fmt.Sprintf("entry %d stands in its place", f.Index)
			return nil
		case w.chained && f.prev != w.prev:
			w.why = "the frame does not follow the one before it"
			return nil
		case f.Term < w.term:
			w.why = fmt.Sprintf("its term is %d, and that of an entry before it %d", f.Term, w.term)
			return nil
		}
		p := entry.Position{Segment: segment, Offset: w.pos, Length: int64(f.size)}
		w.pos += int64(f.size)
		w.want++
		w.prev, w.chained, w.term = f.crc, true, f.Term
		if err := visit(f, p); err != nil {
			return err
		}
	}
	w.why = ""
	return nil
}
