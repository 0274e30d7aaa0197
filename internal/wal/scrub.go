package wal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sort"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// scrubBytes is how much VerifySegment reads at a time.
const scrubBytes = 256 << 10

// VerifySegment reads a sealed segment from end to end and checks every byte of it: the header, each frame and the chain
// of them, the zeros behind the last one, and that the next segment follows it. It opens the file by its name, as the
// next process would. A *CorruptionError says what is wrong; it is for Repair, as any error of reading is.
// ErrSegmentGone means that the segment was dropped, or cut, in the meantime, ErrMismatch that it is the active one. That
// entries are missing between this segment and the next, maybe in a file of their own, is damage of this one.
//
// It reads 256 KiB at a time, or a longer frame at once. between, if it is not nil, is called after each read with the
// number of bytes, so that it can wait before the next one; its error ends the reading and is returned. So does ctx.
func (l *Log) VerifySegment(ctx context.Context, first entry.Index, between func(bytes int) error) error {
	for {
		s, last, err := l.sealed(first)
		if err != nil {
			return err
		}
		err = l.verifyNamed(s, last, func(bytes int) error {
			if err := ctx.Err(); err != nil || between == nil {
				return err
			}
			return between(bytes)
		})
		if !errors.As(err, new(*CorruptionError)) {
			return err
		}
		// What is wrong may only be that it was cut, dropped, or replaced in between.
		if now, end, nowErr := l.sealed(first); nowErr == nil && now == s && end == last {
			return err
		}
	}
}

// verifyNamed verifies the file of s, a sealed segment that ends with entry last.
func (l *Log) verifyNamed(s *segment, last entry.Index, between func(bytes int) error) error {
	l.dropMu.Lock() // so that the file is there if the segment is
	f, err := l.cfg.FS.OpenRead(s.path)
	l.dropMu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return &CorruptionError{Segment: s.first, Index: s.first, Reason: "the file is missing"}
	}
	if err != nil {
		return fmt.Errorf("verify a segment: %w", err)
	}
	f = vfs.Once(f)
	defer closeFile(f)
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("verify %s: %w", s.path, err)
	}
	w := walker{seed: l.seed, source: source{chunk: scrubBytes, between: between}}
	p, err := w.verify(f, segmentFile{first: s.first, path: s.path, size: size}, l.cfg.LogID, last, nil)
	if err != nil {
		return err
	}
	follows, err := l.followedBy(p.last)
	if err != nil {
		return err
	}
	if !follows {
		return &CorruptionError{Segment: s.first, Offset: w.pos, Index: last, Reason: "the next segment does not follow its last frame"}
	}
	return nil
}

// sealed returns the sealed segment named first, and its last entry: ErrSegmentGone if there is no such segment, and
// ErrMismatch if it is the active one.
func (l *Log) sealed(first entry.Index) (*segment, entry.Index, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].first >= first })
	switch {
	case l.closed:
		return nil, 0, ErrClosed
	case i == len(l.segments) || l.segments[i].first != first:
		return nil, 0, ErrSegmentGone
	case i+1 == len(l.segments):
		return nil, 0, fmt.Errorf("segment %s is still written to: %w", l.segments[i].path, ErrMismatch)
	}
	return l.segments[i], l.segments[i+1].first - 1, nil
}

// followedBy reports whether the segment that begins behind entry p follows it, or nothing speaks against it.
func (l *Log) followedBy(p Point) (bool, error) {
	s, f, _, _, err := l.open(p.Index + 1)
	switch {
	case errors.Is(err, ErrSegmentGone) || errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	}
	defer s.release()
	return follows(f, segmentFile{first: s.first, path: s.path, size: s.size}, l.cfg.LogID, p)
}

// follows reports whether segment s follows entry p. A header that is damaged does not speak against it.
func follows(f vfs.File, s segmentFile, id entry.LogID, p Point) (bool, error) {
	h, err := readHeader(f, s, id)
	if errors.As(err, new(*CorruptionError)) {
		return true, nil
	}
	return h.prev == 0 || h.prev == p.CRC, err
}
