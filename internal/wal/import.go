package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// importPoint is what a segment was found to hold.
type importPoint struct {
	size int64
	prev uint32 // in its header
	last Point
}

// Import receives a sealed segment from a peer, piece by piece, in a file that recovery ignores until it is
// complete and verified. It belongs to one goroutine at a time; several may run, for different segments.
//
// A full disk is ErrFull, and may be tried again. After any other error of writing the log takes no more entries.
type Import struct {
	log   *Log
	first entry.Index
	size  int64
	part  part // the file until it is complete
	done  bool // the segment stands under its name
}

// Import begins to receive the segment of size bytes whose first entry is first, or goes on where an earlier
// process stopped. Of a segment that is there already, Have is size. It must lie before the log's first
// segment, unless it is known and sealed; else, and when it is there with another size: ErrMismatch.
func (l *Log) Import(first entry.Index, size int64) (*Import, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	name := l.pathOf(first)
	im := &Import{log: l, first: first, size: size, part: part{fs: l.cfg.FS, name: name + partSuffix, size: size}}
	if first == 0 || size < headerSize || size > segmentSizeMax {
		return nil, fmt.Errorf("import a segment of %d bytes that begins with entry %d: %w", size, first, ErrMismatch)
	}
	list := l.Segments()
	if len(list) == 0 || first >= list[len(list)-1].First {
		return nil, fmt.Errorf("import %s behind the log's first segment: %w", name, ErrMismatch)
	}
	n, err := l.cfg.FS.Size(name)
	switch {
	case err == nil && n != size:
		return nil, fmt.Errorf("import %s of %d bytes, and it is there with %d: %w", name, size, n, ErrMismatch)
	case err == nil:
		im.part.have, im.done = size, true
		return im, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, im.failed("look for the segment", err)
	case list[0].First <= first:
		return nil, fmt.Errorf("import %s, which is not a segment of this log: %w", name, ErrMismatch)
	}
	if err := im.part.open(); err != nil {
		return nil, im.failed("open the part file", err)
	}
	return im, nil
}

// Have returns the number of bytes that are there.
func (im *Import) Have() int64 { return im.part.have }

// Write adds p, the bytes from Have on. ErrMismatch: it would reach beyond the size, and nothing was written.
func (im *Import) Write(p []byte) error {
	if err := im.usable(); err != nil {
		return err
	}
	if err := im.part.fits(len(p)); err != nil {
		return err
	}
	if err := im.part.write(p); err != nil {
		return im.failed("write", err)
	}
	return nil
}

// Sync makes durable what is there, so that it need not be sent again after a power cut.
func (im *Import) Sync() error {
	if err := im.usable(); err != nil || im.done {
		return err
	}
	if err := im.part.file.Sync(); err != nil {
		return im.broken(fmt.Errorf("sync %s: %w", im.part.name, err)) // even a full disk: see vfs.File
	}
	return nil
}

// Finish makes a segment of what was received, durably. It must be complete (ErrMismatch); every byte is
// verified: the header, the frames of the entries from first to last with their CRC and chain, and zeros behind
// them. visit is called for each entry in order; the entry and its payload are valid only during the call. An
// error of visit ends it and is returned; Finish may be called again. A *CorruptionError means that the file was
// removed, and must be fetched anew. Finish closes the Import, unless it returns another error than that.
//
// A segment that was there already is not visited; its point is remembered, or, once after Open, found by
// verifying the segment again. If it is damaged it is removed, too, unless it is part of the log.
//
// The segment becomes part of the log by Prepend, or by Open.
func (im *Import) Finish(last entry.Index, visit func(*entry.Entry, entry.Position) error) (Point, error) {
	if err := im.usable(); err != nil {
		return Point{}, err
	}
	l := im.log
	file := segmentFile{first: im.first, path: l.pathOf(im.first), size: im.size}
	if im.done {
		p, err := l.verified(file, last)
		if errors.As(err, new(*CorruptionError)) && im.first < l.Segments()[0].First { // it is not part of the log yet
			if rmErr := l.cfg.FS.Remove(file.path); rmErr != nil {
				return Point{}, l.fail(fmt.Errorf("remove %s, because of %w: %w", file.path, err, rmErr))
			}
		}
		return p.last, err
	}
	if im.part.have != im.size {
		return Point{}, fmt.Errorf("finish %s with %d of %d bytes: %w", im.part.name, im.part.have, im.size, ErrMismatch)
	}
	if err := im.Sync(); err != nil {
		return Point{}, err
	}
	p, err := verifySegment(im.part.file, file, l.cfg.LogID, last, visit)
	if c := (*CorruptionError)(nil); errors.As(err, &c) {
		im.Close()
		if rmErr := l.cfg.FS.Remove(im.part.name); rmErr != nil {
			return Point{}, l.fail(fmt.Errorf("remove %s, because of %w: %w", im.part.name, err, rmErr))
		}
	}
	if err != nil {
		return Point{}, err
	}
	if err := l.cfg.FS.Rename(im.part.name, file.path); err != nil {
		return Point{}, l.fail(fmt.Errorf("name the segment: %w", err))
	}
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return Point{}, l.fail(fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err))
	}
	im.Close()
	im.done = true
	l.remember(im.first, p)
	return p.last, nil
}

// Close closes the file and keeps it, so that another Import can go on.
func (im *Import) Close() error { return im.part.close() }

// usable returns why the Import can do nothing more, or nil.
func (im *Import) usable() error {
	if err := im.log.Err(); err != nil {
		return err
	}
	if im.part.file == nil && !im.done {
		return fmt.Errorf("import %s: it was closed: %w", im.part.name, fs.ErrClosed)
	}
	return nil
}

// failed returns err, and makes the log fail unless it may be tried again later.
func (im *Import) failed(what string, err error) error {
	err = fmt.Errorf("import %s: %s: %w", im.part.name, what, err)
	switch {
	case noRoom(err):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case passing(err):
		return err
	}
	return im.broken(err)
}

// broken makes err the end of the log. The kernel may hold pages of the part file that it calls clean and did not write,
// and the next process would find them good: so the file is removed, if that is possible.
func (im *Import) broken(err error) error {
	if im.part.file != nil {
		im.Close()
		im.log.cfg.FS.Remove(im.part.name) // the error is what is told
	}
	return im.log.fail(err)
}

func (l *Log) pathOf(first entry.Index) string { return path.Join(l.cfg.Dir, segmentName(first)) }

// verifySegment reads a sealed segment from end to end. Every byte of it must be as it was written. visit may
// be nil.
func verifySegment(f vfs.File, s segmentFile, id entry.LogID, last entry.Index, visit func(*entry.Entry, entry.Position) error) (importPoint, error) {
	w := walker{seed: seedOf(id)}
	return w.verify(f, s, id, last, visit)
}

// verify is verifySegment.
func (w *walker) verify(f vfs.File, s segmentFile, id entry.LogID, last entry.Index, visit func(*entry.Entry, entry.Position) error) (importPoint, error) {
	h, err := w.follow(f, s, id, last, func(f *frame, p entry.Position) error {
		if visit == nil {
			return nil
		}
		return visit(&f.Entry, p)
	})
	if err != nil {
		return importPoint{}, err
	}
	at, err := w.lastNonZero(w.pos)
	if err != nil {
		return importPoint{}, fmt.Errorf("read %s: %w", s.path, err)
	}
	reason := ""
	switch {
	case last < s.first:
		reason = frameZero
	case at >= 0:
		reason = "the bytes after the last frame are not zero"
	case h.size != s.size:
		reason = fmt.Sprintf("the segment was made with %d bytes, and has %d", h.size, s.size)
	default:
		return importPoint{size: s.size, prev: h.prev, last: Point{Index: last, Term: w.term, CRC: w.prev}}, nil
	}
	return importPoint{}, &CorruptionError{Segment: s.first, Offset: w.pos, Index: last + 1, Reason: reason}
}

// verified returns what a segment file holds up to its last entry, from memory or by verifying it.
func (l *Log) verified(s segmentFile, last entry.Index) (importPoint, error) {
	l.mu.RLock()
	p, ok := l.imported[s.first]
	l.mu.RUnlock()
	if ok && p.size == s.size && p.last.Index == last {
		return p, nil
	}
	f, err := l.cfg.FS.OpenRead(s.path)
	if err != nil {
		return importPoint{}, fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(f)
	if p, err = verifySegment(f, s, l.cfg.LogID, last, nil); err == nil {
		l.remember(s.first, p)
	}
	return p, err
}

func (l *Log) remember(first entry.Index, p importPoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.imported[first] = p
}

// strangers returns the segment files that lie before the log's first segment, oldest first.
func (l *Log) strangers() ([]segmentFile, error) {
	head := l.Segments()
	if len(head) == 0 {
		return nil, ErrClosed
	}
	list, err := listSegments(l.cfg.FS, l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	n := 0
	for n < len(list) && list[n].first < head[0].First {
		n++
	}
	return list[:n], nil
}

// Prepend makes the segments in the folder that lie before the first segment a part of the log, durably. There
// may be none. Each must have been verified, by Import.Finish since Open, or else is verified here, and begin
// where the one before ends, by index and chain; our first one must follow the last of them. A
// *CorruptionError says what is not so; then nothing was changed.
func (l *Log) Prepend() error {
	if err := l.Err(); err != nil {
		return err
	}
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	list, err := l.strangers()
	if err != nil || len(list) == 0 {
		return err
	}
	l.mu.RLock()
	head := l.segments[0] // stays the first one, because of dropMu
	l.mu.RUnlock()
	var fresh []*segment
	var before Point
	for i, s := range list {
		last := head.first - 1
		if i+1 < len(list) {
			last = list[i+1].first - 1
		}
		p, err := l.verified(s, last)
		if err != nil {
			return fmt.Errorf("prepend: %w", err)
		}
		if i > 0 && p.prev != before.CRC && p.prev != 0 {
			return notFollowing(s.first, before)
		}
		before = p.last
		fresh = append(fresh, &segment{first: s.first, path: s.path, size: s.size})
	}
	h, err := l.headerOf(head)
	if err != nil {
		return fmt.Errorf("prepend: %w", err)
	}
	if h.prev != before.CRC && h.prev != 0 {
		return notFollowing(head.first, before)
	}
	// A process may have died between naming a segment and the sync of the folder.
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return l.fail(fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.segments = append(fresh, l.segments...)
	clear(l.imported)
	l.knowTerm(before)
	return nil
}

func notFollowing(first entry.Index, before Point) error {
	return fmt.Errorf("prepend: %w", &CorruptionError{Segment: first, Index: first,
		Reason: fmt.Sprintf("the segment does not follow entry %d, whose CRC is %08x", before.Index, before.CRC)})
}

// headerOf reads the header of a segment of the log.
func (l *Log) headerOf(s *segment) (segmentHeader, error) {
	f, err := l.acquire(s)
	if err != nil {
		return segmentHeader{}, err
	}
	defer s.release()
	return readHeader(f, segmentFile{first: s.first, path: s.path, size: s.size}, l.cfg.LogID)
}

// DropImports removes what was imported and is not part of the log: all part files, and the segments that lie
// before the first one. It is for a sync that starts anew. No Import or Repair may be in use.
func (l *Log) DropImports() error {
	if err := l.Err(); err != nil {
		return err
	}
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	list, err := l.strangers()
	if err != nil {
		return err
	}
	names, err := l.cfg.FS.List(l.cfg.Dir)
	if err != nil {
		return fmt.Errorf("list the log: %w", err)
	}
	var drop []string
	for _, s := range list {
		drop = append(drop, s.path)
	}
	for _, name := range names {
		segment, ok := strings.CutSuffix(name, partSuffix)
		if _, named := parseSegmentName(segment); ok && named {
			drop = append(drop, path.Join(l.cfg.Dir, name))
		}
	}
	if len(drop) == 0 {
		return nil
	}
	for _, name := range drop {
		if err := l.cfg.FS.Remove(name); err != nil {
			return l.fail(fmt.Errorf("drop what was imported: %w", err))
		}
	}
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return l.fail(fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err))
	}
	l.mu.Lock()
	clear(l.imported)
	l.mu.Unlock()
	l.prep.retryNow()
	return nil
}
