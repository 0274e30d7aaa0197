// Package logfs wraps a vfs.FS and writes each operation that changes something, or makes it durable, as a line
// of text. In a golden file the lines show the order of writes, syncs and renamings, so that a sync that got
// lost shows up as a difference. They are the same whatever FS is below:
//
//	create log/prepare.tmp
//	write log/prepare.tmp 0-65536 zeros
//	sync log/prepare.tmp
//	rename log/prepare.tmp to log/next.seg
//	syncdir log
//	write log/next.seg 0-512
//	close log/next.seg
//
// A handle goes by the present name of its file. An operation that failed ends with ": " and the error. A line
// is written when its operation is done. All methods may be called concurrently; it starts no goroutine.
package logfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"example.com/mq/internal/vfs"
)

// FS is a file system that writes down what happens.
type FS struct {
	vfs.FS // reading operations are not written down

	mu      sync.Mutex
	w       io.Writer
	handles map[*file]struct{}
}

var _ vfs.FS = (*FS)(nil)

// New wraps a file system. It calls w.Write once per line, never twice at the same time.
func New(fs vfs.FS, w io.Writer) *FS {
	return &FS{FS: fs, w: w, handles: make(map[*file]struct{})}
}

// log writes a line. The caller holds mu.
func (f *FS) log(err error, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if err != nil {
		line += ": " + text(err)
	}
	io.WriteString(f.w, line+"\n")
}

func (f *FS) lockedLog(err error, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log(err, format, args...)
}

// text says what went wrong in words that do not depend on the FS below.
func text(err error) string {
	for _, known := range []error{fs.ErrExist, fs.ErrNotExist, fs.ErrClosed, fs.ErrInvalid, vfs.ErrLocked} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return err.Error()
}

func (f *FS) handle(h vfs.File, err error, op, name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log(err, "%s %s", op, name)
	if err != nil {
		return nil, err
	}
	l := &file{File: h, fs: f, name: name}
	f.handles[l] = struct{}{}
	return l, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	h, err := f.FS.Create(name)
	return f.handle(h, err, "create", name)
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	h, err := f.FS.Open(name)
	return f.handle(h, err, "open", name)
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	err := f.FS.Rename(oldName, newName)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log(err, "rename %s to %s", oldName, newName)
	if err != nil {
		return err
	}
	for h := range f.handles {
		switch h.name {
		case oldName:
			h.name = newName
		case newName:
			h.name += " (replaced)"
		}
	}
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	err := f.FS.Remove(name)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log(err, "remove %s", name)
	if err != nil {
		return err
	}
	for h := range f.handles {
		if h.name == name {
			h.name += " (removed)"
		}
	}
	return nil
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string) error {
	err := f.FS.Mkdir(name)
	f.lockedLog(err, "mkdir %s", name)
	return err
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	err := f.FS.SyncDir(dir)
	f.lockedLog(err, "syncdir %s", dir)
	return err
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	l, err := f.FS.Lock(name)
	f.lockedLog(err, "lock %s", name)
	if err != nil {
		return nil, err
	}
	return &lock{Closer: l, fs: f, name: name}, nil
}

type lock struct {
	io.Closer
	fs   *FS
	name string
}

func (l *lock) Close() error {
	err := l.Closer.Close()
	l.fs.lockedLog(err, "unlock %s", l.name)
	return err
}

// file is a handle that can write.
type file struct {
	vfs.File
	fs   *FS
	name string // guarded by fs.mu
}

// log writes a line that starts with the operation and the name.
func (h *file) log(err error, op, rest string) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	h.fs.log(err, "%s %s%s", op, h.name, rest)
}

func (h *file) WriteAt(p []byte, off int64) (int, error) {
	n, err := h.File.WriteAt(p, off)
	rest := fmt.Sprintf(" %d-%d", off, off+int64(len(p)))
	if zeros(p) {
		rest += " zeros"
	}
	h.log(err, "write", rest)
	return n, err
}

func zeros(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func (h *file) Truncate(size int64) error {
	err := h.File.Truncate(size)
	h.log(err, "truncate", fmt.Sprint(" ", size))
	return err
}

func (h *file) Sync() error {
	err := h.File.Sync()
	h.log(err, "sync", "")
	return err
}

func (h *file) Close() error {
	err := h.File.Close()
	h.log(err, "close", "")
	if err == nil {
		h.fs.mu.Lock()
		defer h.fs.mu.Unlock()
		delete(h.fs.handles, h)
	}
	return err
}
