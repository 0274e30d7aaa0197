// Package faultfs wraps a vfs.FS and makes chosen operations fail: the k-th write, every sync of a file, and
// so on. It counts operations too, so that a test can first run without faults and then break each of them in
// turn. All methods may be called concurrently; it starts no goroutine.
package faultfs

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync"

	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
)

// Kind is a kind of operation.
type Kind string

// The kinds. Close never fails, and is not counted.
const (
	Create   Kind = "create"
	Open     Kind = "open" // Open and OpenRead
	Read     Kind = "read"
	Write    Kind = "write"
	Truncate Kind = "truncate"
	Sync     Kind = "sync"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	Mkdir    Kind = "mkdir"
	List     Kind = "list"
	Size     Kind = "size"
	SyncDir  Kind = "syncdir"
	Lock     Kind = "lock"
	Usage    Kind = "usage"
)

// Changes are the kinds that change something or make it durable.
func Changes() []Kind {
	return []Kind{Create, Write, Truncate, Sync, Rename, Remove, Mkdir, SyncDir}
}

// Fault says which operations fail, and how.
type Fault struct {
	// Kinds are the kinds that it is about; none means all.
	Kinds []Kind
	// Name is a pattern of path.Match for the name; for Rename one of the two must match. Empty matches all.
	// A handle has the name it was opened by.
	Name string
	// At is the number of the operation that fails, counting those that match, from Inject on: 1 or 0 is the
	// next one.
	At int
	// Always makes all that follow fail too.
	Always bool

	// Err is what the operation returns, wrapped in a *fs.PathError, most often a syscall.Errno.
	Err error
	// Done lets the operation take effect before it returns Err, as a rename may whose answer got lost.
	Done bool
	// Short is how many bytes of a write are stored before it returns Err (less than its length).
	Short int

	// Flip, without Err, changes what a read returns: one bit, number Bit modulo the bits that were read,
	// counting from the lowest of the first byte.
	Flip bool
	Bit  int
}

// Injected is a fault at work.
type Injected struct {
	fs    *FS
	fault Fault
	seen  int // operations that matched; guarded by fs.mu, as is hits
	hits  []Hit
}

// Hit is an operation that a fault hit.
type Hit struct {
	Kind Kind
	Name string // for Rename, "old to new"
}

// FS is a file system with faults.
type FS struct {
	fs vfs.FS

	mu     sync.Mutex
	faults []*Injected
	counts map[Kind]int
}

var _ vfs.FS = (*FS)(nil)

// New wraps a file system. There are no faults yet.
func New(fs vfs.FS) *FS { return &FS{fs: fs, counts: make(map[Kind]int)} }

// Inject adds a fault. When several match an operation, the one that was injected first hits.
func (f *FS) Inject(fault Fault) *Injected {
	_, err := path.Match(fault.Name, "")
	invariant.Check(err == nil, "bad pattern %q", fault.Name)
	invariant.Check((fault.Err != nil) != fault.Flip, "a fault needs either Err or Flip")
	if fault.Flip {
		fault.Kinds = []Kind{Read}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := &Injected{fs: f, fault: fault}
	f.faults = append(f.faults, i)
	return i
}

// Heal removes all faults.
func (f *FS) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Count returns how many operations of some kinds were called since New, failed ones included.
func (f *FS) Count(kinds ...Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, k := range kinds {
		n += f.counts[k]
	}
	return n
}

// Hits returns the operations that the fault hit so far.
func (i *Injected) Hits() []Hit {
	i.fs.mu.Lock()
	defer i.fs.mu.Unlock()
	return slices.Clone(i.hits)
}

// Remove ends the fault.
func (i *Injected) Remove() {
	i.fs.mu.Lock()
	defer i.fs.mu.Unlock()
	i.fs.faults = slices.DeleteFunc(i.fs.faults, func(other *Injected) bool { return other == i })
}

// hit counts an operation and returns the fault that hits it, or nil.
func (f *FS) hit(kind Kind, names ...string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
	var hit *Injected
	for _, i := range f.faults {
		if !i.fault.matches(kind, names) {
			continue
		}
		i.seen++
		at := max(i.fault.At, 1)
		if hit == nil && (i.seen == at || i.seen > at && i.fault.Always) {
			hit = i
		}
	}
	if hit == nil {
		return nil
	}
	hit.hits = append(hit.hits, Hit{Kind: kind, Name: label(names)})
	return &hit.fault
}

func (f *Fault) matches(kind Kind, names []string) bool {
	if len(f.Kinds) > 0 && !slices.Contains(f.Kinds, kind) {
		return false
	}
	return f.Name == "" || slices.ContainsFunc(names, func(name string) bool {
		ok, _ := path.Match(f.Name, name) // Inject checked the pattern
		return ok
	})
}

func label(names []string) string {
	if len(names) == 2 {
		return names[0] + " to " + names[1]
	}
	return names[0]
}

func (f *Fault) error(kind Kind, names ...string) error {
	return &fs.PathError{Op: string(kind), Path: label(names), Err: fmt.Errorf("injected: %w", f.Err)}
}

// do calls an operation that has no result but an error.
func (f *FS) do(call func() error, kind Kind, names ...string) error {
	hit := f.hit(kind, names...)
	if hit == nil {
		return call()
	}
	if hit.Done {
		if err := call(); err != nil {
			return err
		}
	}
	return hit.error(kind, names...)
}

// get calls an operation with a result, which the caller never sees when the operation is hit.
func get[T any](f *FS, call func() (T, error), dispose func(T), kind Kind, name string) (result T, err error) {
	err = f.do(func() error {
		result, err = call()
		return err
	}, kind, name)
	if err != nil {
		var none T
		if dispose != nil && any(result) != nil {
			dispose(result)
		}
		return none, err
	}
	return result, nil
}

func (f *FS) file(call func(string) (vfs.File, error), kind Kind, name string) (vfs.File, error) {
	h, err := get(f, func() (vfs.File, error) { return call(name) }, func(h vfs.File) { h.Close() }, kind, name)
	if err != nil {
		return nil, err
	}
	return &file{File: h, fs: f, name: name}, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) { return f.file(f.fs.Create, Create, name) }

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) { return f.file(f.fs.Open, Open, name) }

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(name string) (vfs.File, error) { return f.file(f.fs.OpenRead, Open, name) }

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	return f.do(func() error { return f.fs.Rename(oldName, newName) }, Rename, oldName, newName)
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.do(func() error { return f.fs.Remove(name) }, Remove, name)
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string) error {
	return f.do(func() error { return f.fs.Mkdir(name) }, Mkdir, name)
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	return get(f, func() ([]string, error) { return f.fs.List(dir) }, nil, List, dir)
}

// Size implements vfs.FS.
func (f *FS) Size(name string) (int64, error) {
	return get(f, func() (int64, error) { return f.fs.Size(name) }, nil, Size, name)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	return f.do(func() error { return f.fs.SyncDir(dir) }, SyncDir, dir)
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	return get(f, func() (io.Closer, error) { return f.fs.Lock(name) }, func(l io.Closer) { l.Close() }, Lock, name)
}

// Usage implements vfs.FS.
func (f *FS) Usage() (vfs.Usage, error) {
	return get(f, f.fs.Usage, nil, Usage, ".")
}

type file struct {
	vfs.File
	fs   *FS
	name string
}

func (h *file) ReadAt(p []byte, off int64) (int, error) {
	hit := h.fs.hit(Read, h.name)
	if hit != nil && !hit.Flip {
		return 0, hit.error(Read, h.name)
	}
	n, err := h.File.ReadAt(p, off)
	if hit != nil && n > 0 {
		bit := hit.Bit % (8 * n)
		p[bit/8] ^= 1 << (bit % 8)
	}
	return n, err
}

func (h *file) WriteAt(p []byte, off int64) (int, error) {
	hit := h.fs.hit(Write, h.name)
	if hit == nil {
		return h.File.WriteAt(p, off)
	}
	n := min(hit.Short, max(0, len(p)-1))
	stored := p[:n]
	if hit.Done {
		stored = p
	}
	if _, err := h.File.WriteAt(stored, off); err != nil {
		return 0, err
	}
	return n, hit.error(Write, h.name)
}

func (h *file) Truncate(size int64) error {
	return h.fs.do(func() error { return h.File.Truncate(size) }, Truncate, h.name)
}

func (h *file) Sync() error { return h.fs.do(h.File.Sync, Sync, h.name) }

func (h *file) Size() (int64, error) { return get(h.fs, h.File.Size, nil, Size, h.name) }
