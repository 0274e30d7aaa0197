package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// A frame proves that an entry was committed. On the log that it was written for, the entry was durable before.
// On a replica that catches up it need not be: there, frames arrive together with those that they prove, and a
// power cut may leave the proof and lose the proven. So before such frames are written, the mark says from
// which entry on frames prove nothing about this log. docs/format/log.md has the format.
const (
	markName    = "unproven.mark"
	markTmpName = "mark.tmp"
	markMagic   = "mqmark\x00\x00"
	markVersion = 1
	markSize    = 44
)

// proofMark is what the file says. The zero value: there is none.
type proofMark struct {
	set   bool
	index entry.Index // frames prove no entry beyond it
}

// proves returns the highest entry that a frame with a commit index shows to have been durable in this log.
func (m proofMark) proves(commit entry.Index) entry.Index {
	if m.set {
		return min(commit, m.index)
	}
	return commit
}

func encodeMark(id entry.LogID, index entry.Index) []byte {
	b := make([]byte, markSize)
	copy(b, markMagic)
	binary.LittleEndian.PutUint32(b[8:], markVersion)
	copy(b[16:32], id[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(index))
	binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	return b
}

// readMark reads the mark of the log in dir, if there is one.
func readMark(fsys vfs.FS, dir string, id entry.LogID) (proofMark, error) {
	name := path.Join(dir, markName)
	f, err := fsys.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return proofMark{}, nil
	}
	if err != nil {
		return proofMark{}, fmt.Errorf("open %s: %w", name, err)
	}
	defer closeFile(f)
	b := make([]byte, markSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return proofMark{}, fmt.Errorf("read %s: %w", name, err)
	}
	switch {
	case string(b[:8]) != markMagic || crc32.Checksum(b[:40], castagnoli) != binary.LittleEndian.Uint32(b[40:]):
		err = &CorruptionError{Reason: "its checksum is wrong"}
	case binary.LittleEndian.Uint32(b[8:]) != markVersion:
		err = ErrVersion
	case entry.LogID(b[16:32]) != id:
		err = &CorruptionError{Reason: "it belongs to another log"}
	default:
		return proofMark{set: true, index: entry.Index(binary.LittleEndian.Uint64(b[32:]))}, nil
	}
	return proofMark{}, fmt.Errorf("%s: %w", name, err)
}

// allow gets ready for frames that say that entries up to commit are committed, before they are written.
func (l *Log) allow(commit entry.Index) error {
	durable := l.Durable()
	switch {
	case commit <= durable && l.mark.set:
		return l.unmark()
	case commit > durable && (!l.mark.set || l.mark.index > durable):
		return l.setMark(durable)
	}
	return nil
}

// setMark makes a mark, durably.
func (l *Log) setMark(index entry.Index) error {
	err := l.writeMark(index)
	switch {
	case err == nil:
		l.mark = proofMark{set: true, index: index}
		return nil
	case noRoom(err):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case passing(err):
		return err
	}
	return l.fail(fmt.Errorf("mark what no frame proves: %w", err))
}

// writeMark makes the file, or replaces it.
func (l *Log) writeMark(index entry.Index) error {
	fsys, tmp := l.cfg.FS, path.Join(l.cfg.Dir, markTmpName)
	f, err := fsys.Create(tmp)
	if errors.Is(err, fs.ErrExist) { // an earlier attempt did not come to its end
		f, err = fsys.Open(tmp)
	}
	if err != nil {
		return err
	}
	defer closeFile(f)
	if _, err := f.WriteAt(encodeMark(l.cfg.LogID, index), 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return l.fail(fmt.Errorf("sync %s: %w", tmp, err)) // also of a full disk: see vfs.File
	}
	if err := fsys.Rename(tmp, path.Join(l.cfg.Dir, markName)); err != nil {
		return err
	}
	return fsys.SyncDir(l.cfg.Dir)
}

// unmark removes the mark, when no frame in the log proves an entry that is not durable: commit indexes never go
// down, so that of the next frame tells. It is gone before that frame is written, for which it must not speak.
func (l *Log) unmark() error {
	if err := l.cfg.FS.Remove(path.Join(l.cfg.Dir, markName)); err != nil {
		return l.fail(fmt.Errorf("remove the mark: %w", err))
	}
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return l.fail(fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err))
	}
	l.mark = proofMark{}
	return nil
}
