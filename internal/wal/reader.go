package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// ReadAt reads len(p) bytes at off of the segment that is named by its first index. It returns fewer, with
// io.EOF, only at the end of the file. It answers ErrSegmentGone for a segment that was dropped; one that is
// dropped while the read runs is read to the end. The bytes are not checked: see Parse.
func (l *Log) ReadAt(p []byte, segment entry.Index, off int64) (int, error) {
	s, f, _, _, err := l.open(segment)
	if err != nil {
		return 0, err
	}
	defer s.release()
	return s.readAt(f, p, off)
}

// ReadSegmentAt is ReadAt for a peer that fetches the segment: it reads the bytes of the file as they are, header
// included, of a sealed segment the whole file, of the active one what is durable. There it answers io.EOF.
// A segment that Truncate cuts while the read runs may yield zeros in the place of what was cut.
func (l *Log) ReadSegmentAt(p []byte, segment entry.Index, off int64) (int, error) {
	s, f, _, end, err := l.open(segment)
	if err != nil {
		return 0, err
	}
	defer s.release()
	if off < 0 {
		return 0, fmt.Errorf("read %s at byte %d: %w", s.path, off, ErrMismatch)
	}
	short := int64(len(p)) > end-off
	if short {
		p = p[:max(0, end-off)]
	}
	n := 0
	if len(p) > 0 {
		n, err = s.readAt(f, p, off)
	}
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// readAt reads from f, the open file of s.
func (s *segment) readAt(f vfs.File, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read %s at byte %d: %w", s.path, off, err)
	}
	return n, err
}

// open returns the segment named first and its open file, which stays open until s.release, and what find returns.
func (l *Log) open(first entry.Index) (s *segment, f vfs.File, last entry.Index, end int64, err error) {
	for {
		if s, last, end, err = l.find(first); err != nil {
			return nil, nil, 0, 0, err
		}
		if f, err = l.acquire(s); err != ErrSegmentGone { // else it was dropped or replaced in the meantime: look again
			return s, f, last, end, err
		}
	}
}

// acquire opens the file of s, if it is not open, and keeps it open until s.release.
func (l *Log) acquire(s *segment) (vfs.File, error) {
	f, opened, err := s.acquire(l.cfg.FS, l.tick.Add(1))
	if opened {
		l.files.Add(1)
		l.closeSomeFile()
	}
	if s.dropping.Load() && errors.Is(err, fs.ErrNotExist) {
		err = errDropping
	}
	return f, err
}

// Parse decodes the frame at the start of buf, checks all that can be checked on a frame alone, and returns
// its length with padding. ErrShort means that buf ends before the frame does; the length is then how many
// bytes are needed, as far as buf tells. Everything else that is not a good frame is a *CorruptionError,
// which does not know the place. The entry's payload aliases buf.
//
// A good frame belongs to this log, but maybe not to this place: compare its index with what is expected.
func (l *Log) Parse(buf []byte) (entry.Entry, int, error) {
	var f frame
	switch what := parse(l.seed, buf, &f); what {
	case frameOK:
		return f.Entry, f.size, nil
	case frameShort:
		return entry.Entry{}, f.size, ErrShort
	default:
		return entry.Entry{}, 0, &CorruptionError{Reason: what}
	}
}

// ScanSegment reads a whole segment, of the active one what is durable, and calls visit for each good frame
// in order. It skips what is damaged, and returns it. The entry and its payload are valid only during the
// call. It stops at the first error of visit, and returns it.
func (l *Log) ScanSegment(first entry.Index, visit func(*entry.Entry, entry.Position) error) ([]Damage, error) {
	s, f, last, end, err := l.open(first)
	if err != nil {
		return nil, err
	}
	defer s.release()
	if last < first {
		return nil, nil // active, and nothing in it is durable yet
	}
	file := segmentFile{first: first, path: s.path, size: end}
	r := &recovery{walker: walker{seed: l.seed}, id: l.cfg.LogID, report: true, visit: visit}
	r.reset(f, end)
	return r.wholeSegment(&file, last, end == s.size)
}

// wholeSegment reads the frames from the first of a segment to last, which is known to have been written.
func (r *recovery) wholeSegment(file *segmentFile, last entry.Index, sealed bool) ([]Damage, error) {
	head, err := r.at(0, int(min(headerSize, file.size)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file.path, err)
	}
	if err := r.header(file, head); err != nil {
		return nil, err
	}
	for more := true; more; {
		if err := r.walk(file.first, last+1, r.entry); err != nil {
			return r.found.Damage, err
		}
		if r.want == last+1 {
			break
		}
		if more, err = r.resync(file, last+1, r.why); err != nil {
			return r.found.Damage, err
		}
	}
	if sealed {
		err = r.sealedEnd(file)
	}
	return r.found.Damage, err
}
