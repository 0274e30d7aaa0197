package faultfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/vfs/vfstest"
)

func TestWithoutFaults(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) vfs.FS { return faultfs.New(memfs.New()) })
}

// With a fault that never comes up it must not be in the way either.
func TestWithFarFault(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) vfs.FS {
		f := faultfs.New(memfs.New())
		f.Inject(faultfs.Fault{At: 1 << 30, Err: syscall.EIO})
		return f
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// operations calls every kind once, on files a and b that exist, and returns the kinds that failed with EIO.
func operations(t *testing.T, m *memfs.FS, f *faultfs.FS) (failed []faultfs.Kind) {
	t.Helper()
	failure := func(kind faultfs.Kind, err error) bool {
		if err == nil {
			return false
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: got error %v, want EIO", kind, err)
		}
		failed = append(failed, kind)
		return true
	}
	closing := func(kind faultfs.Kind, c io.Closer, err error) {
		if !failure(kind, err) {
			must(t, c.Close())
		} else if c != nil {
			t.Errorf("%s returned both a handle and an error", kind)
		}
	}
	h, err := f.Create("new")
	closing(faultfs.Create, closer(h), err)
	l, err := f.Lock("LOCK")
	closing(faultfs.Lock, l, err)
	h, err = f.Open("a")
	if !failure(faultfs.Open, err) {
		_, err = h.ReadAt(make([]byte, 1), 0)
		failure(faultfs.Read, err)
		_, err = h.WriteAt([]byte("xyz"), 0)
		failure(faultfs.Write, err)
		failure(faultfs.Truncate, h.Truncate(2))
		failure(faultfs.Sync, h.Sync())
		_, err = h.Size()
		failure(faultfs.Size, err)
		must(t, h.Close())
	}
	failure(faultfs.Rename, f.Rename("a", "c"))
	failure(faultfs.Remove, f.Remove("b"))
	failure(faultfs.Mkdir, f.Mkdir("d"))
	_, err = f.List(".")
	failure(faultfs.List, err)
	failure(faultfs.SyncDir, f.SyncDir("."))
	_, err = f.Usage()
	failure(faultfs.Usage, err)
	if open := m.OpenFiles(); len(open) > 0 {
		t.Errorf("handles left open: %v", open)
	}
	return failed
}

func closer(h vfs.File) io.Closer {
	if h == nil {
		return nil
	}
	return h
}

func newFS(t *testing.T) (*memfs.FS, *faultfs.FS) {
	t.Helper()
	m := memfs.New()
	for _, name := range []string{"a", "b"} {
		h, err := m.Create(name)
		must(t, err)
		_, err = h.WriteAt([]byte(name), 0)
		must(t, err)
		must(t, h.Close())
	}
	return m, faultfs.New(m)
}

var kinds = []faultfs.Kind{
	faultfs.Create, faultfs.Lock, faultfs.Open, faultfs.Read, faultfs.Write, faultfs.Truncate, faultfs.Sync,
	faultfs.Size, faultfs.Rename, faultfs.Remove, faultfs.Mkdir, faultfs.List, faultfs.SyncDir, faultfs.Usage,
}

func TestEachKind(t *testing.T) {
	for _, done := range []bool{false, true} {
		for _, kind := range kinds {
			m, f := newFS(t)
			i := f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Err: syscall.EIO, Done: done})
			if got := operations(t, m, f); len(got) != 1 || got[0] != kind {
				t.Errorf("fault for %s: %v failed", kind, got)
			}
			if hits := i.Hits(); len(hits) != 1 || hits[0].Kind != kind {
				t.Errorf("fault for %s: hits are %v", kind, hits)
			}
			for _, k := range kinds {
				if n := f.Count(k); n != 1 && kind != faultfs.Open {
					t.Errorf("fault for %s: count of %s is %d, want 1", kind, k, n)
				}
			}
			// What took effect?
			took := map[faultfs.Kind]bool{
				faultfs.Create: exists(m, "new"), faultfs.Lock: exists(m, "LOCK"), faultfs.Rename: exists(m, "c"),
				faultfs.Remove: !exists(m, "b"), faultfs.Mkdir: m.SyncDir("d") == nil,
			}
			if effect, ok := took[kind]; ok && effect != done {
				t.Errorf("failed %s with Done %v: effect is %v", kind, done, effect)
			}
		}
	}
}

func exists(m *memfs.FS, name string) bool {
	_, err := m.Size(name)
	return err == nil
}

// With the fault at 1, 2, 3, ... each operation fails in turn, until none does.
func TestEachOperation(t *testing.T) {
	want := append(slices.Clone(kinds), "")
	for at := 1; at <= len(want); at++ {
		m, f := newFS(t)
		f.Inject(faultfs.Fault{At: at, Err: syscall.EIO})
		got := operations(t, m, f)
		if at == len(want) && len(got) == 0 {
			break
		}
		if len(got) != 1 || got[0] != want[at-1] {
			t.Errorf("fault at %d: %v failed, want %s", at, got, want[at-1])
		}
	}
}

func TestAlways(t *testing.T) {
	_, f := newFS(t)
	h, err := f.Open("a")
	must(t, err)
	i := f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, At: 2, Always: true, Err: syscall.EROFS})
	must(t, h.Sync())
	for range 3 {
		if err := h.Sync(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("Sync: got error %v, want EROFS", err)
		}
	}
	if n := len(i.Hits()); n != 3 {
		t.Errorf("got %d hits, want 3", n)
	}
	i.Remove()
	must(t, h.Sync())
	f.Inject(faultfs.Fault{Err: syscall.EIO})
	f.Heal()
	must(t, h.Sync())
	if n := f.Count(faultfs.Sync, faultfs.Open); n != 7 {
		t.Errorf("count: got %d, want 7", n)
	}
}

func TestName(t *testing.T) {
	m := memfs.New()
	f := faultfs.New(m)
	must(t, f.Mkdir("log"))
	i := f.Inject(faultfs.Fault{Name: "log/*.tmp", Always: true, Err: syscall.EIO})
	for _, c := range []struct {
		name string
		fail bool
	}{{"a.tmp", false}, {"log/a", false}, {"log/a.tmp", true}} {
		h, err := f.Create(c.name)
		if (err != nil) != c.fail {
			t.Errorf("Create(%s): got error %v", c.name, err)
		}
		if err == nil {
			must(t, h.Close())
		}
	}
	for _, names := range [][2]string{{"log/a", "log/b.tmp"}, {"log/b.tmp", "log/a"}} {
		var pathErr *fs.PathError
		if err := f.Rename(names[0], names[1]); !errors.As(err, &pathErr) || pathErr.Path != names[0]+" to "+names[1] {
			t.Errorf("Rename(%s, %s): got error %v", names[0], names[1], err)
		}
	}
	want := "[{create log/a.tmp} {rename log/a to log/b.tmp} {rename log/b.tmp to log/a}]"
	if got := fmt.Sprint(i.Hits()); got != want {
		t.Errorf("hits: got %s, want %s", got, want)
	}
}

func TestShortWrite(t *testing.T) {
	for _, c := range []struct {
		fault faultfs.Fault
		n     int
		want  string
	}{
		{faultfs.Fault{Err: syscall.ENOSPC}, 0, "a"},
		{faultfs.Fault{Err: syscall.ENOSPC, Short: 3}, 3, "xyz"},
		{faultfs.Fault{Err: syscall.ENOSPC, Short: 99}, 4, "xyzz"}, // never all of it
		{faultfs.Fault{Err: syscall.EIO, Done: true}, 0, "xyzzy"},
	} {
		m, f := newFS(t)
		h, err := f.Open("a")
		must(t, err)
		c.fault.Kinds = []faultfs.Kind{faultfs.Write}
		f.Inject(c.fault)
		n, err := h.WriteAt([]byte("xyzzy"), 0)
		if n != c.n || !errors.Is(err, c.fault.Err) {
			t.Errorf("%+v: got %d, %v, want %d", c.fault, n, err, c.n)
		}
		size, err := m.Size("a")
		must(t, err)
		got := make([]byte, size)
		_, err = h.ReadAt(got, 0)
		must(t, err)
		if string(got) != c.want {
			t.Errorf("%+v: file holds %q, want %q", c.fault, got, c.want)
		}
	}
}

func TestFlip(t *testing.T) {
	_, f := newFS(t)
	h, err := f.Open("a")
	must(t, err)
	_, err = h.WriteAt([]byte("abc"), 0)
	must(t, err)
	f.Inject(faultfs.Fault{At: 2, Flip: true, Bit: 8 + 1})
	f.Inject(faultfs.Fault{At: 3, Flip: true, Bit: 24})
	for _, want := range []string{"abc", "a`c", "`bc", "abc"} {
		got := make([]byte, 10)
		n, err := h.ReadAt(got, 0)
		if n != 3 || err != io.EOF || string(got[:3]) != want {
			t.Errorf("got %d, %v, %q, want %q", n, err, got[:3], want)
		}
	}
}
