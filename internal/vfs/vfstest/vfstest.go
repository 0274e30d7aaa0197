// Package vfstest is the suite that every implementation of vfs.FS passes. What survives a power cut it
// cannot see: the tests of package memfs and the power cuts in test/fault do.
package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"testing"

	"example.com/mq/internal/vfs"
)

// Run tests the file systems that newFS makes: each must be empty.
func Run(t *testing.T, newFS func(t *testing.T) vfs.FS) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, f vfs.FS)
	}{
		{"ReadWrite", testReadWrite},
		{"Hole", testHole},
		{"EndOfFile", testEndOfFile},
		{"Truncate", testTruncate},
		{"NegativeOffset", testNegativeOffset},
		{"Create", testCreate},
		{"ReadOnly", testReadOnly},
		{"TwoHandles", testTwoHandles},
		{"Missing", testMissing},
		{"Closed", testClosed},
		{"Rename", testRename},
		{"RenameAcrossFolders", testRenameAcrossFolders},
		{"Remove", testRemove},
		{"Mkdir", testMkdir},
		{"List", testList},
		{"Names", testNames},
		{"Lock", testLock},
		{"LockRace", testLockRace},
		{"Usage", testUsage},
		{"Concurrent", testConcurrent},
		{"Model", testModel},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newFS(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// create makes a file with some content and closes it when the test ends.
func create(t *testing.T, f vfs.FS, name, content string) vfs.File {
	t.Helper()
	h, err := f.Create(name)
	must(t, err)
	t.Cleanup(func() { h.Close() }) // some tests close it before
	write(t, h, content, 0)
	return h
}

func write(t *testing.T, h vfs.File, content string, off int64) {
	t.Helper()
	n, err := h.WriteAt([]byte(content), off)
	if n != len(content) || err != nil {
		t.Fatalf("WriteAt(%d bytes, %d): got %d, %v", len(content), off, n, err)
	}
}

func wantContent(t *testing.T, h vfs.File, want string) {
	t.Helper()
	size, err := h.Size()
	must(t, err)
	got := make([]byte, size)
	if n, err := h.ReadAt(got, 0); int64(n) != size || err != nil && err != io.EOF {
		t.Fatalf("ReadAt(%d bytes, 0): got %d, %v", size, n, err)
	}
	if string(got) != want {
		t.Errorf("content: got %.100q (%d bytes), want %.100q (%d bytes)", got, len(got), want, len(want))
	}
}

func wantFile(t *testing.T, f vfs.FS, name, want string) {
	t.Helper()
	h, err := f.OpenRead(name)
	must(t, err)
	wantContent(t, h, want)
	must(t, h.Close())
	size, err := f.Size(name)
	if size != int64(len(want)) || err != nil {
		t.Errorf("Size(%s): got %d, %v, want %d", name, size, err, len(want))
	}
}

func wantList(t *testing.T, f vfs.FS, dir string, want ...string) {
	t.Helper()
	got, err := f.List(dir)
	must(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("List(%s): got %q, want %q", dir, got, want)
	}
}

func testReadWrite(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "hello world")
	write(t, h, "W", 6)
	wantContent(t, h, "hello World")
	write(t, h, "", 100) // writes nothing, so it moves no end
	must(t, h.Sync())
	must(t, h.Sync())
	must(t, f.SyncDir("."))
	must(t, h.Close())
	wantFile(t, f, "a", "hello World")

	h, err := f.Open("a")
	must(t, err)
	write(t, h, "!", 11)
	wantContent(t, h, "hello World!")
	got := make([]byte, 5)
	if n, err := h.ReadAt(got, 6); n != 5 || err != nil || string(got) != "World" {
		t.Errorf("ReadAt in the middle: got %d, %v, %q", n, err, got)
	}
	must(t, h.Close())
}

func testHole(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "x")
	write(t, h, "y", 5000)
	wantContent(t, h, "x"+string(make([]byte, 4999))+"y")
}

func testEndOfFile(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "0123456789")
	for _, c := range []struct {
		off  int64
		size int
		n    int
		err  error
	}{
		{0, 10, 10, nil},
		{0, 11, 10, io.EOF},
		{9, 2, 1, io.EOF},
		{10, 1, 0, io.EOF},
		{1 << 40, 1, 0, io.EOF},
		{10, 0, 0, nil},
		{99, 0, 0, nil},
	} {
		n, err := h.ReadAt(make([]byte, c.size), c.off)
		if n != c.n || err != c.err {
			t.Errorf("ReadAt(%d bytes, %d): got %d, %v, want %d, %v", c.size, c.off, n, err, c.n, c.err)
		}
	}
}

func testTruncate(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", string(bytes.Repeat([]byte("x"), 2000)))
	must(t, h.Truncate(700))
	wantContent(t, h, string(bytes.Repeat([]byte("x"), 700)))
	must(t, h.Truncate(3000)) // what was cut off must not come back
	wantContent(t, h, string(bytes.Repeat([]byte("x"), 700))+string(make([]byte, 2300)))
	must(t, h.Truncate(0))
	write(t, h, "end", 10)
	wantContent(t, h, string(make([]byte, 10))+"end")
}

func testNegativeOffset(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "x")
	if n, err := h.ReadAt(make([]byte, 1), -1); n != 0 || err == nil || err == io.EOF {
		t.Errorf("ReadAt(-1): got %d, %v, want an error", n, err)
	}
	if n, err := h.WriteAt([]byte("y"), -1); n != 0 || err == nil {
		t.Errorf("WriteAt(-1): got %d, %v, want an error", n, err)
	}
	if err := h.Truncate(-1); err == nil {
		t.Error("Truncate(-1): no error")
	}
	wantContent(t, h, "x")
}

func testCreate(t *testing.T, f vfs.FS) {
	create(t, f, "a", "first")
	_, err := f.Create("a")
	wantErr(t, "Create of what exists", err, fs.ErrExist)
	wantFile(t, f, "a", "first")
}

func testReadOnly(t *testing.T, f vfs.FS) {
	create(t, f, "a", "x")
	h, err := f.OpenRead("a")
	must(t, err)
	defer h.Close()
	if n, err := h.WriteAt([]byte("y"), 0); n != 0 || err == nil {
		t.Errorf("WriteAt on a file open for reading: got %d, %v, want an error", n, err)
	}
	if err := h.Truncate(0); err == nil {
		t.Error("Truncate of a file open for reading: no error")
	}
	wantContent(t, h, "x")
}

func testTwoHandles(t *testing.T, f vfs.FS) {
	a := create(t, f, "a", "x")
	b, err := f.OpenRead("a")
	must(t, err)
	write(t, a, "yz", 0)
	wantContent(t, b, "yz")
	must(t, a.Close())
	wantContent(t, b, "yz")
	must(t, b.Close())
}

func testMissing(t *testing.T, f vfs.FS) {
	create(t, f, "other", "")
	for _, name := range []string{"missing", "missing/file"} {
		_, err := f.Open(name)
		wantErr(t, "Open "+name, err, fs.ErrNotExist)
		_, err = f.OpenRead(name)
		wantErr(t, "OpenRead "+name, err, fs.ErrNotExist)
		_, err = f.Size(name)
		wantErr(t, "Size "+name, err, fs.ErrNotExist)
		wantErr(t, "Remove "+name, f.Remove(name), fs.ErrNotExist)
		_, err = f.List(name)
		wantErr(t, "List "+name, err, fs.ErrNotExist)
		wantErr(t, "SyncDir "+name, f.SyncDir(name), fs.ErrNotExist)
	}
	wantErr(t, "Rename", f.Rename("missing", "other"), fs.ErrNotExist)
	_, err := f.Create("missing/file")
	wantErr(t, "Create in a missing folder", err, fs.ErrNotExist)
	_, err = f.Lock("missing/file")
	wantErr(t, "Lock in a missing folder", err, fs.ErrNotExist)
	wantErr(t, "Mkdir in a missing folder", f.Mkdir("missing/folder"), fs.ErrNotExist)
	if err := f.SyncDir("other"); err == nil {
		t.Error("SyncDir of a file: no error")
	}
	if _, err := f.List("other"); err == nil {
		t.Error("List of a file: no error")
	}
	wantList(t, f, ".", "other")
}

func testClosed(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "x")
	must(t, h.Close())
	_, err := h.ReadAt(make([]byte, 1), 0)
	wantErr(t, "ReadAt", err, fs.ErrClosed)
	_, err = h.WriteAt([]byte("y"), 0)
	wantErr(t, "WriteAt", err, fs.ErrClosed)
	_, err = h.Size()
	wantErr(t, "Size", err, fs.ErrClosed)
	wantErr(t, "Truncate", h.Truncate(0), fs.ErrClosed)
	wantErr(t, "Sync", h.Sync(), fs.ErrClosed)
	wantErr(t, "Close", h.Close(), fs.ErrClosed)
	wantFile(t, f, "a", "x")
}

func testRename(t *testing.T, f vfs.FS) {
	must(t, f.Mkdir("d"))
	replaced := create(t, f, "d/b", "old")
	moved := create(t, f, "d/a", "new")
	must(t, f.Rename("d/a", "d/b"))
	must(t, f.SyncDir("d"))
	wantList(t, f, "d", "b")
	wantFile(t, f, "d/b", "new")
	wantContent(t, replaced, "old") // open handles stay with their files
	write(t, moved, "N", 0)
	wantFile(t, f, "d/b", "New")
	must(t, f.Rename("d/b", "d/b"))
	wantFile(t, f, "d/b", "New")
	must(t, f.Rename("d/b", "d/c"))
	wantList(t, f, "d", "c")
}

func testRenameAcrossFolders(t *testing.T, f vfs.FS) {
	must(t, f.Mkdir("d"))
	create(t, f, "a", "x")
	if err := f.Rename("a", "d/a"); err == nil {
		t.Error("Rename to another folder: no error")
	}
	wantFile(t, f, "a", "x")
	wantList(t, f, "d")
}

func testRemove(t *testing.T, f vfs.FS) {
	h := create(t, f, "a", "x")
	must(t, f.Remove("a"))
	must(t, f.SyncDir("."))
	wantList(t, f, ".")
	write(t, h, "y", 1)
	must(t, h.Sync())
	wantContent(t, h, "xy")
	create(t, f, "a", "another")
	wantContent(t, h, "xy")
	wantFile(t, f, "a", "another")
}

func testMkdir(t *testing.T, f vfs.FS) {
	must(t, f.Mkdir("d"))
	create(t, f, "d/a", "x")
	must(t, f.Mkdir("d"))
	must(t, f.Mkdir("."))
	must(t, f.Mkdir("d/e"))
	create(t, f, "d/e/b", "y")
	must(t, f.SyncDir("."))
	must(t, f.SyncDir("d"))
	wantFile(t, f, "d/a", "x")
	wantFile(t, f, "d/e/b", "y")
	if err := f.Mkdir("d/a"); err == nil {
		t.Error("Mkdir in the place of a file: no error")
	}
	if _, err := f.Open("d"); err == nil {
		t.Error("Open of a folder: no error")
	}
}

func testList(t *testing.T, f vfs.FS) {
	wantList(t, f, ".")
	for _, name := range []string{"b", "c", "a"} {
		create(t, f, name, "")
	}
	must(t, f.Mkdir("d"))
	create(t, f, "d/x", "")
	wantList(t, f, ".", "a", "b", "c")
	wantList(t, f, "d", "x")
}

func testNames(t *testing.T, f vfs.FS) {
	must(t, f.Mkdir("d"))
	create(t, f, "a", "x")
	for _, name := range []string{"", "..", "../a", "/a", "/etc/passwd", "d/../a", "d/../../a", "d//a", "./a", "a/"} {
		_, err := f.Create(name)
		errs := map[string]error{"Create": err}
		_, errs["Open"] = f.Open(name)
		_, errs["OpenRead"] = f.OpenRead(name)
		errs["Rename from"] = f.Rename(name, "b")
		errs["Rename to"] = f.Rename("a", name)
		errs["Remove"] = f.Remove(name)
		errs["Mkdir"] = f.Mkdir(name)
		_, errs["List"] = f.List(name)
		_, errs["Size"] = f.Size(name)
		errs["SyncDir"] = f.SyncDir(name)
		_, errs["Lock"] = f.Lock(name)
		for what, err := range errs {
			if err == nil {
				t.Errorf("%s(%q): no error", what, name)
			}
		}
	}
	wantList(t, f, ".", "a")
}

func testLock(t *testing.T, f vfs.FS) {
	l, err := f.Lock("LOCK")
	must(t, err)
	wantList(t, f, ".", "LOCK")
	_, err = f.Lock("LOCK")
	wantErr(t, "second Lock", err, vfs.ErrLocked)
	other, err := f.Lock("OTHER")
	must(t, err)
	must(t, other.Close())
	must(t, l.Close())
	l, err = f.Lock("LOCK")
	must(t, err)
	must(t, l.Close())
	create(t, f, "a", "x")
	l, err = f.Lock("a")
	must(t, err)
	wantFile(t, f, "a", "x")
	must(t, l.Close())
}

func testLockRace(t *testing.T, f vfs.FS) {
	const rivals = 8
	results := make(chan io.Closer, rivals)
	for range rivals {
		go func() {
			l, err := f.Lock("LOCK")
			if err != nil && !errors.Is(err, vfs.ErrLocked) {
				t.Errorf("Lock: %v", err)
			}
			results <- l
		}()
	}
	got := 0
	for range rivals {
		if l := <-results; l != nil {
			got++
			defer l.Close()
		}
	}
	if got != 1 {
		t.Errorf("%d hold the lock, want 1", got)
	}
}

func testUsage(t *testing.T, f vfs.FS) {
	u, err := f.Usage()
	must(t, err)
	if u.FreeBytes <= 0 || u.TotalBytes < u.FreeBytes {
		t.Errorf("Usage: got %+v", u)
	}
}

func testConcurrent(t *testing.T, f vfs.FS) {
	const workers, pieces, size = 4, 16, 700
	h := create(t, f, "a", "")
	must(t, h.Truncate(workers*pieces*size))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			want, got := bytes.Repeat([]byte{byte('a' + w)}, size), make([]byte, size)
			for i := range pieces {
				off := int64(i*workers+w) * size
				if _, err := h.WriteAt(want, off); err != nil {
					t.Errorf("WriteAt: %v", err)
				}
				if _, err := h.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
					t.Errorf("ReadAt: got %.20q, %v", got, err)
				}
			}
			if err := h.Sync(); err != nil {
				t.Errorf("Sync: %v", err)
			}
		})
		wg.Go(func() {
			name := fmt.Sprint(w)
			for range pieces {
				own, err := f.Create(name)
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				err = errors.Join(own.Close(), f.Rename(name, name+"x"), f.Remove(name+"x"), f.SyncDir("."))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantList(t, f, ".", "a")
}
