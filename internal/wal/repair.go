package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

const (
	// damagedSuffix follows the name of a segment that was replaced: it is kept for those who look for the cause.
	// Recovery ignores such files.
	damagedSuffix = ".damaged"

	// Of a damaged file that cannot be read everywhere, pieces of evidenceBytes are kept, until evidenceHoles of
	// them could not be read: each may take the disk seconds.
	evidenceBytes = 64 << 10
	evidenceHoles = 16
)

// Repair receives a whole segment file from a peer, piece by piece, verifies it, and puts it in the place of one that is
// damaged, or missing. It belongs to one goroutine at a time; several may run, for different segments. What was received
// stays when the process ends, and the next Repair of the segment goes on there.
//
// The replaced file stays beside the new one, as <name>.damaged, until the segment is dropped: one for each segment, the
// newest, and none on a full disk.
type Repair struct {
	fs    vfs.FS
	dir   string
	id    entry.LogID
	log   *Log // nil when the log is not open
	first entry.Index
	size  int64
	name  string // of the segment
	part  part
	err   error // of an operation on files that must not be tried again
}

// NewRepair begins to repair, in the folder dir of a log that is not open, the segment of size bytes whose first entry is
// first, or goes on with it. Any segment may be repaired, also one of which there is no file. Errors: ErrFull when there
// is no room, ErrMismatch when no segment is like that, and those of the file system.
func NewRepair(fsys vfs.FS, dir string, id entry.LogID, first entry.Index, size int64) (*Repair, error) {
	r := &Repair{fs: fsys, dir: dir, id: id, first: first, size: size, name: path.Join(dir, segmentName(first))}
	return r, r.begin()
}

// Repair is NewRepair for an open log, of which only sealed segments can be repaired, and those behind the first that
// are missing (ErrMismatch). Readers that are in the old file finish there; all others see the new one. An error of
// writing makes the log fail, as one of Append does.
func (l *Log) Repair(first entry.Index, size int64) (*Repair, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	r := &Repair{fs: l.cfg.FS, dir: l.cfg.Dir, id: l.cfg.LogID, log: l, first: first, size: size, name: l.pathOf(first)}
	if _, err := l.niche(first); err != nil {
		return nil, fmt.Errorf("repair %s: %w", r.name, err)
	}
	return r, r.begin()
}

func (r *Repair) begin() error {
	if r.first == 0 || r.size < headerSize || r.size > segmentSizeMax {
		return fmt.Errorf("repair a segment of %d bytes that begins with entry %d: %w", r.size, r.first, ErrMismatch)
	}
	r.part = part{fs: r.fs, name: r.name + partSuffix, size: r.size}
	if err := r.part.open(); err != nil {
		return r.failed("open the part file", err)
	}
	return nil
}

// Have returns the number of bytes that are there.
func (r *Repair) Have() int64 { return r.part.have }

// Write adds p, the bytes of the file from Have on. ErrMismatch: it would reach beyond the size, and nothing was
// written. ErrFull: there is no room now.
func (r *Repair) Write(p []byte) error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.part.fits(len(p)); err != nil {
		return err
	}
	if err := r.part.write(p); err != nil {
		return r.failed("write", err)
	}
	return nil
}

// Close closes the part file and keeps it.
func (r *Repair) Close() error { return r.part.close() }

// Discard closes the part file and removes it: it is not wanted any more.
func (r *Repair) Discard() error {
	r.Close()
	if err := r.fs.Remove(r.part.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r.broken("remove", err)
	}
	return nil
}

// Finish verifies what was received and makes it the segment, durably. Its last entry is last. All bytes must be there
// and are verified: the header, the log id, the CRC and the chain of all frames, that they are those of the entries from
// first to last, and zeros behind them; that the segment follows the one before, and the one behind follows it, as far as
// these can be read. It returns the point of last, and closes the Repair.
//
// When no segment comes behind, this will be the one that the log goes on in. Then last may be any entry down to
// first-1, and bytes be missing behind it: what comes behind it becomes zeros.
//
// A *CorruptionError means that what was received is damaged, and ErrMismatch that it does not fit the segments beside
// it, or last does not: in both cases nothing was changed, but what was received is gone. ErrMismatch without Have
// having reached the size only means that bytes are missing. ErrSegmentGone: of an open log, the segment was dropped or
// cut in the meantime. ErrFull may be tried again. A crash at any moment leaves the old file or the new one.
func (r *Repair) Finish(last entry.Index) (Point, error) {
	for {
		if err := r.usable(); err != nil {
			return Point{}, err
		}
		n, err := r.niche()
		if err != nil {
			return Point{}, r.refuse(err)
		}
		p, err := r.verify(n, last)
		if err == nil {
			err = r.keepEvidence()
		}
		if err != nil {
			return Point{}, err
		}
		done, err := true, error(nil)
		if r.log != nil {
			done, err = r.log.replace(r, n)
		} else {
			err = r.rename()
		}
		if err != nil {
			return Point{}, err
		}
		if done {
			r.Close()
			return p, nil
		}
	}
}

// verify checks what was received, and makes it durable.
func (r *Repair) verify(n niche, last entry.Index) (Point, error) {
	final := n.after == 0
	switch {
	case last+1 < r.first || !final && last < r.first, !final && last >= n.after:
		return Point{}, r.refuse(fmt.Errorf("it cannot end with entry %d, and the next segment begin with %d: %w", last, n.after, ErrMismatch))
	case !final && r.part.have < r.size || r.part.have < headerSize:
		return Point{}, fmt.Errorf("repair %s: only %d of %d bytes are there: %w", r.name, r.part.have, r.size, ErrMismatch)
	}
	h, p, end, err := r.frames(last, final)
	if err == nil {
		err = r.beside(n, h, p)
	}
	if err != nil {
		return Point{}, r.refuse(err)
	}
	if final {
		if err := zeroRange(r.part.file, end, r.size); err != nil {
			return Point{}, r.failed("write", err)
		}
		r.part.have = r.size
	}
	if err := r.part.file.Sync(); err != nil {
		return Point{}, r.broken("sync", err) // even a full disk: see vfs.File
	}
	return p, nil
}

// frames reads what was received up to entry last, which ends at byte end, and, unless it is final, the zeros behind it.
func (r *Repair) frames(last entry.Index, final bool) (h segmentHeader, p Point, end int64, err error) {
	file := segmentFile{first: r.first, path: r.part.name, size: r.part.have}
	w := walker{seed: seedOf(r.id)}
	if h, err = w.follow(r.part.file, file, r.id, last, nil); err != nil {
		return h, p, 0, err
	}
	p = Point{Index: last, Term: w.term, CRC: w.prev}
	if h.size != r.size {
		err = &CorruptionError{Segment: r.first, Index: r.first, Reason: fmt.Sprintf("the segment was made with %d bytes, and not %d", h.size, r.size)}
		return h, p, 0, err
	}
	if final {
		return h, p, w.pos, nil
	}
	at, err := w.lastNonZero(w.pos)
	if err == nil && at >= 0 {
		err = &CorruptionError{Segment: r.first, Offset: w.pos, Index: last + 1, Reason: "the bytes after the last frame are not zero"}
	}
	return h, p, w.pos, err
}

// beside checks that the segment with header h, which ends with p, fits between those beside it. What cannot be read
// there, or is damaged, does not speak against it.
func (r *Repair) beside(n niche, h segmentHeader, p Point) error {
	var before Point
	known := false
	if n.before != 0 {
		err := r.neighbour(n.before, func(f vfs.File, s segmentFile) error {
			w := walker{seed: seedOf(r.id)}
			_, err := w.follow(f, s, r.id, r.first-1, nil)
			before, known = Point{Index: r.first - 1, CRC: w.prev}, err == nil
			return err
		})
		if err != nil {
			return err
		}
	}
	switch {
	case known && h.prev != before.CRC && h.prev != 0:
		return fmt.Errorf("it does not follow entry %d, whose CRC is %08x: %w", before.Index, before.CRC, ErrMismatch)
	case !known && n.missing && r.log != nil:
		return fmt.Errorf("the segment that begins with entry %d does not end with entry %d, or is damaged: %w", n.before, r.first-1, ErrMismatch)
	case n.after != p.Index+1:
		return nil
	}
	fits := true
	err := r.neighbour(n.after, func(f vfs.File, s segmentFile) (err error) {
		fits, err = follows(f, s, r.id, p)
		return err
	})
	if err == nil && !fits {
		err = fmt.Errorf("the next segment does not follow entry %d, whose CRC is %08x: %w", p.Index, p.CRC, ErrMismatch)
	}
	return err
}

// neighbour lets use read the segment that begins with entry first. Of all errors it returns only ErrVersion.
func (r *Repair) neighbour(first entry.Index, use func(vfs.File, segmentFile) error) error {
	s := segmentFile{first: first, path: path.Join(r.dir, segmentName(first))}
	f, err := r.fs.OpenRead(s.path)
	if err == nil {
		defer closeFile(f)
		if s.size, err = f.Size(); err == nil {
			err = use(f, s)
		}
	}
	if errors.Is(err, ErrVersion) {
		return err
	}
	return nil
}

// keepEvidence copies the file that will be replaced, as far as it can be read.
func (r *Repair) keepEvidence() error {
	old, err := r.fs.OpenRead(r.name)
	if err != nil {
		return nil // there is none, or nothing of it
	}
	defer closeFile(old)
	size, err := old.Size()
	if err != nil || size == 0 {
		return nil
	}
	name := r.name + damagedSuffix
	err = r.fs.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = r.copyTo(name, old, min(size, r.size))
	}
	if err == nil || !passing(err) {
		return r.failed("keep the damaged file", err)
	}
	if err := r.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r.failed("remove the copy of the damaged file", err)
	}
	return nil
}

// copyTo makes a file of the first size bytes of another one. Where that cannot be read it has zeros.
func (r *Repair) copyTo(name string, from vfs.File, size int64) error {
	to, err := r.fs.Create(name)
	if err != nil {
		return err
	}
	defer closeFile(to)
	b := make([]byte, evidenceBytes)
	holes := 0
	for off := int64(0); off < size && holes < evidenceHoles; off += evidenceBytes {
		n, err := from.ReadAt(b[:min(evidenceBytes, size-off)], off)
		if err != nil && err != io.EOF {
			holes++
			continue
		}
		if _, err := to.WriteAt(b[:n], off); err != nil {
			return err
		}
	}
	return to.Sync()
}

// rename puts the new file in the place of the old one, durably.
func (r *Repair) rename() error {
	if err := r.fs.Rename(r.part.name, r.name); err != nil {
		return r.broken("name the segment", err)
	}
	if err := r.fs.SyncDir(r.dir); err != nil {
		return r.broken("sync the folder", err)
	}
	return nil
}

// usable returns why the Repair can do nothing more, or nil.
func (r *Repair) usable() error {
	if r.log != nil {
		if err := r.log.Err(); err != nil {
			return err
		}
	}
	if r.err == nil && r.part.file == nil {
		return fmt.Errorf("repair %s: it was closed: %w", r.name, fs.ErrClosed)
	}
	return r.err
}

// refuse removes what was received if it is damaged or does not fit, and returns err.
func (r *Repair) refuse(err error) error {
	err = fmt.Errorf("repair %s: %w", r.name, err)
	if errors.As(err, new(*CorruptionError)) || errors.Is(err, ErrMismatch) || errors.Is(err, ErrSegmentGone) {
		if rmErr := r.Discard(); rmErr != nil {
			return fmt.Errorf("%w, because of %w", rmErr, err)
		}
	}
	return err
}

// failed returns err, nil or what was met in doing something. Unless it may be tried again later, it is the end.
func (r *Repair) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case noRoom(err):
		return fmt.Errorf("repair %s: %s: %w: %w", r.name, what, ErrFull, err)
	case passing(err):
		return fmt.Errorf("repair %s: %s: %w", r.name, what, err)
	}
	return r.broken(what, err)
}

// broken makes err the end of the Repair, and of the log. The kernel may hold pages of the part file that it calls clean
// and did not write, and the next process would find them good: so it is removed, if that is possible.
func (r *Repair) broken(what string, err error) error {
	err = fmt.Errorf("repair %s: %s: %w", r.name, what, err)
	if r.err == nil {
		r.err = err
		r.Close()
		r.fs.Remove(r.part.name) // the error above is what is told
	}
	if r.log != nil {
		return r.log.fail(err)
	}
	return err
}

// niche is where a repaired segment belongs.
type niche struct {
	before, after entry.Index // first entries of the segments beside it; 0 when there is none
	missing       bool        // there is no such segment
	old, next     *segment    // of an open log: the segment itself, and the one behind
}

// niche finds out where the segment belongs.
func (r *Repair) niche() (niche, error) {
	if r.log != nil {
		return r.log.niche(r.first)
	}
	names, err := r.fs.List(r.dir)
	if err != nil {
		return niche{}, fmt.Errorf("list the log: %w", err)
	}
	n := niche{missing: true}
	for _, name := range names { // sorted, and so are the numbers in them
		first, ok := parseSegmentName(name)
		switch {
		case !ok:
		case first < r.first:
			n.before = first
		case first == r.first:
			n.missing = false
		case n.after == 0:
			n.after = first
		}
	}
	return n, nil
}

// niche finds the place for a segment that begins with entry first: ErrSegmentGone if the log begins behind it, and
// ErrMismatch if it does not lie before the active one.
func (l *Log) niche(first entry.Index) (niche, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return niche{}, ErrClosed
	}
	i, found := slices.BinarySearchFunc(l.segments, first, func(s *segment, first entry.Index) int { return cmp.Compare(s.first, first) })
	n := niche{missing: !found}
	if found {
		n.old = l.segments[i]
	}
	if i > 0 {
		n.before = l.segments[i-1].first
	}
	if found {
		i++
	}
	switch {
	case i == len(l.segments):
		return n, ErrMismatch
	case i == 0:
		return n, ErrSegmentGone
	}
	n.next = l.segments[i]
	n.after = n.next.first
	return n, nil
}

// replace puts the file of r in the place of the segment, durably, and lets all who read from now on see it. It is false
// when the log has changed there since n was found out; nothing was done then.
func (l *Log) replace(r *Repair, n niche) (bool, error) {
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	now, err := l.niche(r.first)
	if err != nil {
		return false, r.refuse(err)
	}
	if now != n {
		return false, nil
	}
	if err := r.rename(); err != nil {
		return false, err
	}
	fresh := &segment{first: r.first, path: r.name, size: r.size}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false, ErrClosed
	}
	// Because of dropMu, only the active segment may have changed since.
	i := slices.IndexFunc(l.segments, func(s *segment) bool { return s.first >= r.first })
	list := append(slices.Clone(l.segments[:i]), fresh)
	if n.old != nil {
		i++
	}
	l.segments = append(list, l.segments[i:]...)
	l.mu.Unlock()
	if n.old != nil && n.old.discard() {
		l.files.Add(-1)
	}
	return true, nil
}
