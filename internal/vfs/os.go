package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Records are nobody's business but the broker's: other users cannot read what it makes.
const (
	fileMode   = 0o600
	folderMode = 0o700
)

// OS is the FS on a folder of the operating system's file system. Neither names nor symbolic links lead out
// of it. All methods but Close may be called concurrently.
type OS struct {
	root *os.Root
}

var _ FS = (*OS)(nil)

// Open returns the FS whose root is a folder, which must exist.
func Open(root string) (*OS, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	return &OS{root: r}, nil
}

// Close lets go of the root folder. Open files and locks stay as they are.
func (o *OS) Close() error { return o.root.Close() }

// Create implements FS.
func (o *OS) Create(name string) (File, error) {
	return o.open("create", name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Open implements FS.
func (o *OS) Open(name string) (File, error) { return o.open("open", name, os.O_RDWR) }

// OpenRead implements FS.
func (o *OS) OpenRead(name string) (File, error) { return o.open("open", name, os.O_RDONLY) }

func (o *OS) open(op, name string, flags int) (File, error) {
	if err := valid(op, name); err != nil {
		return nil, err
	}
	f, err := o.root.OpenFile(name, flags, fileMode)
	if err != nil {
		return nil, err
	}
	return newOSFile(f)
}

// valid refuses a name that is not in its shortest form: os.Root would follow "a/../b" too, but an FS whose
// names are not unique is hard to reason about, and memfs has no such names.
func valid(op, name string) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return nil
}

// Rename implements FS. Both names must be in the same folder.
func (o *OS) Rename(oldName, newName string) error {
	if err := errors.Join(valid("rename", oldName), valid("rename", newName)); err != nil {
		return err
	}
	if path.Dir(oldName) != path.Dir(newName) {
		// Which SyncDir makes a move between folders durable is different from one file system to the next.
		return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: syscall.EXDEV}
	}
	return o.root.Rename(oldName, newName)
}

// Remove implements FS.
func (o *OS) Remove(name string) error {
	if err := valid("remove", name); err != nil {
		return err
	}
	return o.root.Remove(name)
}

// Mkdir implements FS.
func (o *OS) Mkdir(name string) error {
	if err := valid("mkdir", name); err != nil {
		return err
	}
	err := o.root.Mkdir(name, folderMode)
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := o.root.Stat(name); statErr == nil && info.IsDir() {
			return nil
		}
	}
	return err
}

// List implements FS.
func (o *OS) List(dir string) ([]string, error) {
	d, err := o.folder("list", dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Size implements FS.
func (o *OS) Size(name string) (int64, error) {
	if err := valid("size", name); err != nil {
		return 0, err
	}
	info, err := o.root.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// SyncDir implements FS.
func (o *OS) SyncDir(dir string) error {
	d, err := o.folder("syncdir", dir)
	if err != nil {
		return err
	}
	// Closing a folder cannot lose anything.
	defer d.Close()
	return d.Sync()
}

func (o *OS) folder(op, name string) (*os.File, error) {
	if err := valid(op, name); err != nil {
		return nil, err
	}
	// O_DIRECTORY: else a file in the place of the folder would be synced, and nothing said.
	return o.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// Lock implements FS with flock, which holds between processes and between open files of one process.
func (o *OS) Lock(name string) (io.Closer, error) {
	if err := valid("lock", name); err != nil {
		return nil, err
	}
	f, err := o.root.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	err = control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
}

// Usage implements FS.
func (o *OS) Usage() (Usage, error) {
	d, err := o.folder("usage", ".")
	if err != nil {
		return Usage{}, err
	}
	defer d.Close()
	var s unix.Statfs_t
	if err := control(d, func(fd int) error { return unix.Fstatfs(fd, &s) }); err != nil {
		return Usage{}, &fs.PathError{Op: "usage", Path: ".", Err: err}
	}
	block := int64(s.Frsize) // the unit of Blocks and Bavail; 0 on a few file systems
	if block == 0 {
		block = int64(s.Bsize)
	}
	return Usage{FreeBytes: int64(s.Bavail) * block, TotalBytes: int64(s.Blocks) * block}, nil
}

// control calls a system call on the descriptor of f, which cannot be closed meanwhile.
func control(f *os.File, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	if err := conn.Control(func(fd uintptr) {
		callErr = retry(func() error { return call(int(fd)) })
	}); err != nil {
		return err
	}
	return callErr
}

// retry repeats a call that a signal interrupted: FUSE and network file systems let signals through.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// osFile is a File on an os.File, whose ReadAt and WriteAt are pread and pwrite, repeated after signals and
// short transfers: they return fewer bytes than asked for only with an error. When WriteAt fails, more may be
// written than it says.
type osFile struct {
	*os.File
	conn   syscall.RawConn
	sync   func(fd uintptr)      // fdatasync; made once, so that Sync allocates nothing
	failed atomic.Pointer[error] // of the first Sync that failed
}

var _ File = (*osFile)(nil)

func newOSFile(f *os.File) (*osFile, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	o := &osFile{File: f, conn: conn}
	o.sync = o.datasync
	return o, nil
}

func (f *osFile) datasync(fd uintptr) {
	if err := retry(func() error { return unix.Fdatasync(int(fd)) }); err != nil {
		failure := err // its own variable, so that only a failure allocates
		f.failed.CompareAndSwap(nil, &failure)
	}
}

// Sync implements File. It holds callers to the contract: once it failed, it fails for ever and does not ask
// the kernel again, which may have dropped the data and would report success. For this reason too, the error
// may be that of another Sync of the file at the same time.
func (f *osFile) Sync() error {
	if f.failed.Load() == nil {
		if err := f.conn.Control(f.sync); err != nil {
			return &fs.PathError{Op: "sync", Path: f.Name(), Err: fs.ErrClosed} // what else fails before the call
		}
	}
	if err := f.failed.Load(); err != nil {
		return &fs.PathError{Op: "sync", Path: f.Name(), Err: *err}
	}
	return nil
}

// Size implements File.
func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
