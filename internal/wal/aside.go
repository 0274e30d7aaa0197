package wal

import (
	"errors"
	"fmt"
	"io/fs"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// cuttingSuffix follows the name of the segment that CutAside makes end earlier, while it is made. Recovery ignores such a
// file.
const cuttingSuffix = ".cutting"

// CutAside makes a log that is not open end with entry last, as Cut does, and keeps all that it takes away: a segment that
// begins behind last gets suffix behind its name, and of the one that holds last a copy with suffix is kept. It is for an
// operator who gives up what comes behind last, and must be able to look at it again. Unlike Cut it needs no peer to have
// what it cuts, does not mind damage before last, which stays as it is, and never goes on without its copy, for want of
// room for instance.
//
// last must be good (*CorruptionError), or come right before the first entry of the log (ErrMismatch if it comes
// earlier). Nothing is changed then.
//
// A crash leaves a log that ends where it did, or at the end of one of its segments behind last, or with last. Note down
// durably that this log is being cut, and call CutAside again with the same suffix.
func CutAside(fsys vfs.FS, dir string, id entry.LogID, last entry.Index, suffix string) error {
	list, err := listSegments(fsys, dir)
	if err != nil {
		return err
	}
	n := 0
	for n < len(list) && list[n].first <= last {
		n++
	}
	if n == 0 && len(list) > 0 && list[0].first == last+1 {
		n = 1 // a log is never without a segment
	}
	if n == 0 {
		return fmt.Errorf("cut the log after entry %d, before its first one: %w", last, ErrMismatch)
	}
	a := asideCut{fs: fsys, dir: dir, id: id, last: last, suffix: suffix, segment: list[n-1]}
	if err := a.find(); err != nil {
		return fmt.Errorf("cut the log after entry %d: %w", last, err)
	}
	for i := len(list) - 1; i >= n; i-- { // each durably before the next: no crash may leave a hole
		if err := fsys.Rename(list[i].path, list[i].path+suffix); err != nil {
			return fmt.Errorf("cut the log after entry %d: %w", last, err)
		}
		if err := fsys.SyncDir(dir); err != nil {
			return fmt.Errorf("sync folder %s: %w", dir, err)
		}
	}
	if err := a.cut(); err != nil {
		return fmt.Errorf("cut the log after entry %d: %w", last, err)
	}
	return nil
}

// asideCut cuts the segment that holds the last entry that stays.
type asideCut struct {
	fs      vfs.FS
	dir     string
	id      entry.LogID
	last    entry.Index
	suffix  string
	segment segmentFile

	end  int64 // of the last entry
	size int64 // that the file was made with
	done bool  // it ends there
}

// find reads the segment up to the last entry that stays. It changes nothing.
func (a *asideCut) find() error {
	s := &a.segment
	f, err := a.fs.OpenRead(s.path)
	if err != nil {
		return err
	}
	defer closeFile(f)
	if a.last < s.first {
		a.end = headerSize
	}
	r := &recovery{walker: walker{seed: seedOf(a.id)}, id: a.id, report: true}
	r.visit = func(e *entry.Entry, p entry.Position) error {
		if e.Index == a.last {
			a.end = p.End()
		}
		return nil
	}
	r.reset(f, s.size)
	if _, err := r.wholeSegment(s, a.last, false); err != nil {
		return err
	}
	if a.end == 0 || a.end > s.size {
		return &CorruptionError{Segment: s.first, Offset: r.pos, Index: a.last, Reason: "the entry that would be the last one cannot be read"}
	}
	if a.size = s.size; s.made > 0 {
		a.size = max(s.made, a.end)
	}
	at, err := r.lastNonZero(a.end)
	a.done = at < 0 && s.size == a.size
	return err
}

// cut copies the segment to where it is kept, and then puts one in its place that ends with the last entry. The name is
// never missing: a log that lost its last segment looks like one that ends earlier.
func (a *asideCut) cut() error {
	tmp := a.segment.path + cuttingSuffix
	if err := a.fs.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier attempt
		return err
	}
	if a.done {
		return nil
	}
	kept := a.segment.path + a.suffix
	if err := a.fs.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.copy(kept, a.segment.size, a.segment.size); err != nil {
		return fmt.Errorf("keep a copy: %w", err)
	}
	if err := a.copy(tmp, a.end, a.size); err != nil {
		return err
	}
	if err := a.fs.SyncDir(a.dir); err != nil { // the copy is there before what it is a copy of goes
		return fmt.Errorf("sync folder %s: %w", a.dir, err)
	}
	if err := a.fs.Rename(tmp, a.segment.path); err != nil {
		return err
	}
	if err := a.fs.SyncDir(a.dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", a.dir, err)
	}
	return nil
}

// copy makes a file of the first bytes of the segment, and zeros up to size.
func (a *asideCut) copy(name string, bytes, size int64) error {
	from, err := a.fs.OpenRead(a.segment.path)
	if err != nil {
		return err
	}
	defer closeFile(from)
	to, err := a.fs.Create(name)
	if err != nil {
		return err
	}
	defer closeFile(to)
	r := source{file: from, size: bytes}
	for off := int64(0); off < bytes; {
		b, err := r.at(off, 1)
		if err != nil {
			return err
		}
		if _, err := to.WriteAt(b, off); err != nil {
			return err
		}
		off += int64(len(b))
	}
	if err := zeroRange(to, bytes, size); err != nil {
		return err
	}
	return to.Sync()
}
