package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// syncBytes is how much is written to a file before it is synced in the background.
const syncBytes = 8 << 20

// sparse is a data folder into which a backup is restored. The log fills each of its files with zeros before it writes to
// it, so that a publish changes no metadata; here nobody publishes, and everything would be written twice. So zeros at the
// end of a new file only make it longer. What is written is synced as it comes, so that the sync at the end of a segment,
// for which all wait, is short.
type sparse struct {
	vfs.FS
	inline bool // start no goroutine
}

// Create implements vfs.FS.
func (s sparse) Create(name string) (vfs.File, error) {
	f, err := s.FS.Create(name)
	if err != nil || path.Dir(name) != node.LogDir {
		return f, err
	}
	return &sparseFile{File: f, inline: s.inline}, nil
}

// sparseFile is a file of the log. One goroutine writes at a time.
type sparseFile struct {
	vfs.File
	inline  bool
	written bool  // something else than zeros
	size    int64 // while not written
	dirty   int   // bytes written since the last sync
	syncing chan error
}

// WriteAt implements vfs.File.
func (f *sparseFile) WriteAt(p []byte, off int64) (int, error) {
	if !f.written && off == f.size && isZero(p) {
		f.size += int64(len(p))
		if err := f.File.Truncate(f.size); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	f.written = true
	n, err := f.File.WriteAt(p, off)
	f.dirty += n
	if err == nil && f.dirty >= syncBytes && !f.inline {
		if err = f.await(); err == nil {
			f.dirty = 0
			f.syncing = make(chan error, 1)
			go func() { f.syncing <- f.File.Sync() }() // await gets its outcome
		}
	}
	return n, err
}

// await waits for the sync that runs in the background.
func (f *sparseFile) await() error {
	if f.syncing == nil {
		return nil
	}
	err := <-f.syncing
	f.syncing <- err // for all that come: after an error nothing more is synced
	if err == nil {
		f.syncing = nil
	}
	return err
}

// Sync implements vfs.File.
func (f *sparseFile) Sync() error {
	if !f.written {
		return nil // it has nothing that could be lost
	}
	if err := f.await(); err != nil {
		return err
	}
	f.dirty = 0
	return f.File.Sync()
}

// Close implements vfs.File.
func (f *sparseFile) Close() error {
	return errors.Join(f.await(), f.File.Close())
}

// zeros is compared with and written, and never changed.
var zeros [1 << 20]byte

func isZero(p []byte) bool {
	for len(p) > len(zeros) {
		if string(p[:len(zeros)]) != string(zeros[:]) {
			return false
		}
		p = p[len(zeros):]
	}
	return string(p) == string(zeros[:len(p)])
}

// fillLast does for the file at the end of the log what was left out: a node goes on there. What is prepared for the one
// after it goes; the node makes its own.
func fillLast(fsys vfs.FS, last wal.Segment, end int64) error {
	names, err := fsys.List(node.LogDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "next.seg" || name == "prepare.tmp" {
			if err := fsys.Remove(path.Join(node.LogDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	f, err := fsys.Open(path.Join(node.LogDir, fmt.Sprintf("%020d.seg", uint64(last.First))))
	if err != nil {
		return err
	}
	for err == nil && end < last.Bytes {
		n := min(int64(len(zeros)), last.Bytes-end)
		_, err = f.WriteAt(zeros[:n], end)
		end += n
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
