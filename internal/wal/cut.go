package wal

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Cut makes a log that is not open end with entry last, whatever comes behind: it is for a log that is damaged there, or
// holds what nobody else has, and is fetched anew from there on. (Truncate is for a log that is open.) The entries in the
// segment of last, up to last, must be good, and so must its header (*CorruptionError); nothing else is looked at, so see
// that there is no damage before. With last below the first segment all segments go. What is cut is kept as Repair
// keeps what it replaces.
//
// A crash leaves segments that begin behind last, or a log that ends as it should; or one that ends with the damage. So
// note down durably that this log is being cut, and call Cut again. It is up to the caller that nothing that was
// acknowledged is lost with it.
func Cut(fsys vfs.FS, dir string, id entry.LogID, last entry.Index) error {
	list, err := listSegments(fsys, dir)
	if err != nil {
		return err
	}
	n := 0
	for n < len(list) && list[n].first <= last {
		n++
	}
	for _, s := range slices.Backward(list[n:]) { // each durably before the next: no crash may leave a hole
		if err := fsys.Rename(s.path, s.path+damagedSuffix); err != nil {
			return fmt.Errorf("cut the log after entry %d: %w", last, err)
		}
		if err := fsys.SyncDir(dir); err != nil {
			return fmt.Errorf("sync folder %s: %w", dir, err)
		}
	}
	if n == 0 {
		return nil
	}
	if err := cutSegment(fsys, dir, id, list[n-1], last); err != nil {
		return fmt.Errorf("cut the log after entry %d: %w", last, err)
	}
	return nil
}

// cutSegment makes segment s, the last one, end with entry last.
func cutSegment(fsys vfs.FS, dir string, id entry.LogID, s segmentFile, last entry.Index) error {
	f, err := fsys.OpenRead(s.path)
	if err != nil {
		return err
	}
	defer closeFile(f)
	w := walker{seed: seedOf(id)}
	h, err := w.follow(f, s, id, last, nil)
	if err != nil {
		return err
	}
	if end, err := w.lastNonZero(w.pos); err == nil && end < 0 && s.size == h.size {
		return nil // it ends there
	}
	r := &Repair{fs: fsys, dir: dir, id: id, first: s.first, size: h.size, name: path.Join(dir, segmentName(s.first))}
	r.part = part{fs: fsys, name: r.name + partSuffix}
	if err := r.Discard(); err != nil { // of a peer, maybe
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	defer r.Close()
	b := make([]byte, min(w.pos, scanBytes))
	for r.Have() < w.pos {
		p := b[:min(int64(len(b)), w.pos-r.Have())]
		if n, err := f.ReadAt(p, r.Have()); n < len(p) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := r.Write(p); err != nil {
			return err
		}
	}
	_, err = r.Finish(last)
	return err
}
