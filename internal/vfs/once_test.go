package vfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// Reading once leaves in the page cache what was there, and nothing else.
func TestOnce(t *testing.T) {
	const size = 4 << 20
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	if _, err := f.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	cached := func() uint64 {
		t.Helper()
		var stat unix.Cachestat_t
		if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: size}, &stat, 0); err != nil {
			t.Skipf("this kernel does not tell what is in the page cache: %v", err)
		}
		return stat.Cache
	}
	if err := unix.Fadvise(int(f.Fd()), 0, size, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n := cached(); n > 0 {
		t.Skipf("the file system keeps %d pages", n)
	}
	if _, err := f.ReadAt(make([]byte, 64<<10), 1<<20); err != nil { // others read this
		t.Fatal(err)
	}
	before := cached()
	fsys := open(t, dir)
	file, err := fsys.OpenRead("file")
	if err != nil {
		t.Fatal(err)
	}
	once := vfs.Once(file)
	defer once.Close()
	got := make([]byte, size)
	for at := 0; at < size; at += 64 << 10 {
		if _, err := once.ReadAt(got[at:at+64<<10], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("it has read something else")
	}
	after := cached()
	if before == 0 || after < 16 || after > before {
		t.Errorf("%d pages in the cache before, %d afterwards", before, after)
	}
}

// What another file system has is read as it is.
func TestOnceElsewhere(t *testing.T) {
	mem := memfs.New()
	f, err := mem.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if vfs.Once(f) != f {
		t.Error("a file in memory was changed")
	}
}
