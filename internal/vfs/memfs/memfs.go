// Package memfs keeps files in memory and knows what a power cut may leave of them.
//
// Beside what a program sees (the page cache), an FS remembers what is durable: for each file the content at
// its last Sync and every write and truncation since, for each folder the names at its last SyncDir and every
// creation, renaming and removal since. From that CrashStates builds what the disk may hold after power
// returns, and Clone what a new process finds after kill -9. Both may be called at any moment of a run, most
// usefully from the hook that OnOp sets; the run itself goes on undisturbed.
//
// Content is stored in immutable sectors, so a clone or crash state shares nearly all its memory with the
// original: its cost grows with what is not yet durable, hardly with the size of the files.
//
// All methods may be called concurrently. Package memfs starts no goroutine.
package memfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"example.com/mq/internal/vfs"
)

// capacityDefault is the size of the disk until SetCapacity says otherwise.
const capacityDefault = 1 << 40

// FS is a file system in memory.
type FS struct {
	mu       sync.Mutex
	root     *folder
	used     int64 // allocated sectors of all files that have a name or an open handle
	capacity int64 // in bytes
	open     map[*file]struct{}
	hook     func(Op)
}

var _ vfs.FS = (*FS)(nil)

// node is an *inode or a *folder.
type node any

// folder is a folder as the program sees it, and what of it is durable.
type folder struct {
	names   map[string]node
	synced  map[string]node
	pending []nameChange // since the last SyncDir; applying all of them to synced gives names
}

// nameChange is a creation (from is empty), a removal (to is empty) or a renaming of node.
type nameChange struct {
	from, to string
	node     node
}

func (c nameChange) apply(names map[string]node) {
	if c.from != "" {
		delete(names, c.from)
	}
	if c.to != "" {
		names[c.to] = c.node
	}
}

// New returns an empty file system.
func New() *FS {
	return &FS{root: newFolder(), capacity: capacityDefault, open: make(map[*file]struct{})}
}

func newFolder() *folder {
	return &folder{names: make(map[string]node), synced: make(map[string]node)}
}

// Op is a call that changes the file system or makes a change durable, as the hook of OnOp sees it.
type Op struct {
	Kind    string // create, rename, remove, mkdir, syncdir, lock, write, truncate, sync
	Name    string
	NewName string // of rename
	Offset  int64  // of write
	Len     int    // of write
	Size    int64  // of truncate
	Done    bool   // false: about to be done; true: done, or failed
}

// OnOp sets a function that is called before and after each operation that changes something or makes it
// durable. It runs in the goroutine of the caller, with no lock held: it may use the FS, but operations of its
// own call it again. A power cut during an operation needs no hook of its own: before a Sync it is among the
// crash states, and for everything else among those after.
func (m *FS) OnOp(hook func(Op)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// begin announces an operation and returns what announces its end.
func (m *FS) begin(op Op) func() {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	if hook == nil {
		return func() {}
	}
	hook(op)
	return func() {
		op.Done = true
		hook(op)
	}
}

// SetCapacity sets the size of the disk in bytes. It may be less than what is used: then nothing is free.
func (m *FS) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// OpenFiles returns the names, as they were opened, of the handles not yet closed, sorted.
func (m *FS) OpenFiles() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for f := range m.open {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return names
}

// Create implements vfs.FS.
func (m *FS) Create(name string) (vfs.File, error) {
	defer m.begin(Op{Kind: "create", Name: name})()
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	if dir.names[base] != nil {
		return nil, pathError("create", name, fs.ErrExist)
	}
	return m.handle(dir.create(base), name, false), nil
}

// create adds an empty file.
func (d *folder) create(base string) *inode {
	n := &inode{named: true}
	d.change(nameChange{to: base, node: n})
	return n
}

func (d *folder) change(c nameChange) {
	c.apply(d.names)
	d.pending = append(d.pending, c)
}

// Open implements vfs.FS.
func (m *FS) Open(name string) (vfs.File, error) { return m.openFile(name, false) }

// OpenRead implements vfs.FS.
func (m *FS) OpenRead(name string) (vfs.File, error) { return m.openFile(name, true) }

func (m *FS) openFile(name string, readOnly bool) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.file(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return m.handle(n, name, readOnly), nil
}

func (m *FS) handle(n *inode, name string, readOnly bool) *file {
	f := &file{fs: m, inode: n, name: name, readOnly: readOnly}
	n.handles++
	m.open[f] = struct{}{}
	return f
}

// Rename implements vfs.FS.
func (m *FS) Rename(oldName, newName string) error {
	defer m.begin(Op{Kind: "rename", Name: oldName, NewName: newName})()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldName, newName); err != nil {
		return pathError("rename", oldName+" to "+newName, err)
	}
	return nil
}

func (m *FS) rename(oldName, newName string) error {
	n, err := m.file(oldName)
	if err != nil {
		return err
	}
	dir, to, err := m.parent(newName)
	if err != nil {
		return err
	}
	if path.Dir(oldName) != path.Dir(newName) {
		return syscall.EXDEV // as between two disks: nobody needs it, and its durability would be hard to state
	}
	if oldName == newName {
		return nil
	}
	switch old := dir.names[to].(type) {
	case *folder:
		return syscall.EISDIR
	case *inode:
		old.named = false
		defer m.release(old)
	}
	dir.change(nameChange{from: path.Base(oldName), to: to, node: n})
	return nil
}

// Remove implements vfs.FS.
func (m *FS) Remove(name string) error {
	defer m.begin(Op{Kind: "remove", Name: name})()
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.file(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	dir, base, _ := m.parent(name)
	dir.change(nameChange{from: base, node: n})
	n.named = false
	m.release(n)
	return nil
}

// release gives back the space of a file that nobody can reach any more.
func (m *FS) release(n *inode) {
	if !n.named && n.handles == 0 {
		m.used -= n.now.allocated()
	}
}

// Mkdir implements vfs.FS.
func (m *FS) Mkdir(name string) error {
	defer m.begin(Op{Kind: "mkdir", Name: name})()
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == "." {
		return nil
	}
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("mkdir", name, err)
	}
	switch dir.names[base].(type) {
	case nil:
		dir.change(nameChange{to: base, node: newFolder()})
	case *inode:
		return pathError("mkdir", name, syscall.ENOTDIR)
	}
	return nil
}

// List implements vfs.FS.
func (m *FS) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.folder(dir)
	if err != nil {
		return nil, pathError("list", dir, err)
	}
	var names []string
	for name, n := range d.names {
		if _, ok := n.(*inode); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Size implements vfs.FS.
func (m *FS) Size(name string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.file(name)
	if err != nil {
		return 0, pathError("size", name, err)
	}
	return n.now.size, nil
}

// SyncDir implements vfs.FS.
func (m *FS) SyncDir(dir string) error {
	defer m.begin(Op{Kind: "syncdir", Name: dir})()
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.folder(dir)
	if err != nil {
		return pathError("syncdir", dir, err)
	}
	d.synced, d.pending = maps.Clone(d.names), nil
	return nil
}

// Lock implements vfs.FS. A Clone and a crash state hold no locks.
func (m *FS) Lock(name string) (io.Closer, error) {
	defer m.begin(Op{Kind: "lock", Name: name})()
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	n, ok := dir.names[base].(*inode)
	switch {
	case dir.names[base] == nil:
		n = dir.create(base)
	case !ok:
		return nil, pathError("lock", name, syscall.EISDIR)
	case n.locked:
		return nil, pathError("lock", name, vfs.ErrLocked)
	}
	n.locked = true
	f := m.handle(n, name, true)
	f.lock = true
	return f, nil
}

// Usage implements vfs.FS.
func (m *FS) Usage() (vfs.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return vfs.Usage{FreeBytes: max(0, m.capacity-m.used*sectorBytes), TotalBytes: m.capacity}, nil
}

// folder finds a folder by its name.
func (m *FS) folder(name string) (*folder, error) {
	if !fs.ValidPath(name) {
		return nil, fs.ErrInvalid
	}
	d := m.root
	if name == "." {
		return d, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		switch n := d.names[part].(type) {
		case *folder:
			d = n
		case *inode:
			return nil, syscall.ENOTDIR
		default:
			return nil, fs.ErrNotExist
		}
	}
	return d, nil
}

// parent finds the folder that holds, or would hold, name.
func (m *FS) parent(name string) (*folder, string, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, "", fs.ErrInvalid
	}
	d, err := m.folder(path.Dir(name))
	return d, path.Base(name), err
}

// file finds a file by its name.
func (m *FS) file(name string) (*inode, error) {
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	switch n := dir.names[base].(type) {
	case *inode:
		return n, nil
	case *folder:
		return nil, syscall.EISDIR
	}
	return nil, fs.ErrNotExist
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Clone returns what a new process finds after this one was killed at this moment: everything written is
// there, what was not durable still is not, and all locks and handles are gone. The clone has no hook.
func (m *FS) Clone() *FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &FS{capacity: m.capacity, open: make(map[*file]struct{})}
	copies := make(map[*inode]*inode)
	c.root = m.root.clone(copies, make(map[*folder]*folder))
	for _, n := range copies {
		if n.named {
			c.used += n.now.allocated()
		}
	}
	return c
}

func (d *folder) clone(files map[*inode]*inode, folders map[*folder]*folder) *folder {
	if c := folders[d]; c != nil {
		return c
	}
	c := newFolder()
	folders[d] = c
	copyOf := func(n node) node {
		switch n := n.(type) {
		case *folder:
			return n.clone(files, folders)
		case *inode:
			if files[n] == nil {
				files[n] = n.clone()
			}
			return files[n]
		}
		panic(fmt.Sprintf("BUG: node is a %T", n))
	}
	for name, n := range d.names {
		c.names[name] = copyOf(n)
	}
	for name, n := range d.synced {
		c.synced[name] = copyOf(n)
	}
	for _, change := range d.pending {
		change.node = copyOf(change.node)
		c.pending = append(c.pending, change)
	}
	return c
}
