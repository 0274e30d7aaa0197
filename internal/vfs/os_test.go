package vfs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/vfstest"
)

func open(t *testing.T, dir string) *vfs.OS {
	t.Helper()
	f, err := vfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOS(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) vfs.FS { return open(t, t.TempDir()) })
}

func TestOpenMissingFolder(t *testing.T) {
	if _, err := vfs.Open(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v, want %v", err, os.ErrNotExist)
	}
}

// A symbolic link that leads out of the root is as good a way out as "..".
func TestSymlinksDoNotLeaveRoot(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"file": secret, "folder": outside} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	f := open(t, dir)
	for _, name := range []string{"file", "folder/secret"} {
		if h, err := f.OpenRead(name); err == nil {
			h.Close()
			t.Errorf("OpenRead(%s): no error", name)
		}
		if h, err := f.Open(name); err == nil {
			h.Close()
			t.Errorf("Open(%s): no error", name)
		}
		if _, err := f.Size(name); err == nil {
			t.Errorf("Size(%s): no error", name)
		}
		if l, err := f.Lock(name); err == nil {
			l.Close()
			t.Errorf("Lock(%s): no error", name)
		}
	}
	if _, err := f.Create("folder/new"); err == nil {
		t.Error("Create(folder/new): no error")
	}
	if err := f.Remove("folder/secret"); err == nil {
		t.Error("Remove(folder/secret): no error")
	}
	if _, err := f.List("folder"); err == nil {
		t.Error("List(folder): no error")
	}
}

func TestFilesArePrivate(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	h, err := f.Create("a")
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if err := f.Mkdir("d"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"a": 0o600, "d": os.ModeDir | 0o700} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s: got %v, want %v", name, info.Mode(), want)
		}
	}
}

// Two FS values stand for two processes here: flock keeps open files apart, not processes.
func TestLockHoldsAcrossFileSystems(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	l, err := a.Lock("LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lock("LOCK"); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("got error %v, want %v", err, vfs.ErrLocked)
	}
	l.Close()
	l, err = b.Lock("LOCK")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A child process must not inherit the lock: it would hold it after this process died.
func TestLockIsNotInherited(t *testing.T) {
	f := open(t, t.TempDir())
	l, err := f.Lock("LOCK")
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat") // lives until its input ends
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l, err = f.Lock("LOCK")
	if err != nil {
		t.Errorf("lock is held by a child process: %v", err)
	} else {
		l.Close()
	}
	in.Close()
	child.Wait()
}

// The limit on the size of files makes the kernel write a part of what it is asked for, without an error.
// WriteAt must try the rest, and report why that fails.
func TestShortWriteIsAnError(t *testing.T) {
	h, err := open(t, t.TempDir()).Create("a")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1000, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	n, writeErr := h.WriteAt(make([]byte, 4096), 0)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if n >= 4096 || !errors.Is(writeErr, syscall.EFBIG) {
		t.Errorf("got %d, %v, want %v", n, writeErr, syscall.EFBIG)
	}
	if size, err := h.Size(); size != 1000 || err != nil {
		t.Errorf("size: got %d, %v, want 1000: was there no short write?", size, err)
	}
}

func TestWriteAndSyncDoNotAllocate(t *testing.T) {
	f := open(t, t.TempDir())
	h, err := f.Create("a")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := make([]byte, 100)
	got := testing.AllocsPerRun(10, func() {
		if _, err := h.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
		if err := h.Sync(); err != nil {
			t.Fatal(err)
		}
		if _, err := h.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations per write, sync and read, want 0", got)
	}
}
