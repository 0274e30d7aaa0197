package memfs_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs/memfs"
)

func used(t *testing.T, m *memfs.FS) int64 {
	t.Helper()
	u, err := m.Usage()
	must(t, err)
	return u.TotalBytes - u.FreeBytes
}

// usedBy counts the sectors of all files in the root, but not those of zeros: they may be holes.
func usedBy(t *testing.T, m *memfs.FS) (n int64) {
	t.Helper()
	names, err := m.List(".")
	must(t, err)
	for _, name := range names {
		content := read(t, m, name)
		for len(content) > 0 {
			size := min(512, len(content))
			if strings.Trim(content[:size], "\x00") != "" {
				n += 512
			}
			content = content[size:]
		}
	}
	return n
}

func TestCapacity(t *testing.T) {
	m := memfs.New()
	m.SetCapacity(4 * 512)
	h := create(t, m, "a")
	n, err := h.WriteAt([]byte(strings.Repeat("A", 3000)), 100)
	if n != 2048-100 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt past the capacity: got %d, %v, want %d, %v", n, err, 2048-100, syscall.ENOSPC)
	}
	if got := used(t, m); got != 2048 {
		t.Errorf("used: got %d, want 2048", got)
	}
	if size, _ := h.Size(); size != 2048 {
		t.Errorf("size after a short write: got %d, want 2048", size)
	}
	write(t, h, sectors("BBBB"), 0) // what has its space can be overwritten
	n, err = h.WriteAt([]byte("C"), 2048)
	if n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt on a full disk: got %d, %v", n, err)
	}
	if size, _ := h.Size(); size != 2048 {
		t.Errorf("size after a failed write: got %d, want 2048", size)
	}
	must(t, h.Truncate(1<<20)) // a hole needs no space
	if err := h.Truncate(2 << 30); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("Truncate to 2 GiB: got error %v, want %v", err, syscall.EFBIG)
	}
	if _, err := h.WriteAt([]byte("x"), 2<<30); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("WriteAt at 2 GiB: got error %v, want %v", err, syscall.EFBIG)
	}
	must(t, h.Truncate(600))
	if got := used(t, m); got != 1024 {
		t.Errorf("used after Truncate: got %d, want 1024", got)
	}
	if n, err := h.WriteAt(make([]byte, 2000), 0); n != 2000 || err != nil { // zeros need space when written
		t.Errorf("WriteAt of zeros: got %d, %v", n, err)
	}
	if got := used(t, m); got != 2048 {
		t.Errorf("used after writing zeros: got %d, want 2048", got)
	}

	must(t, m.Remove("a"))
	if got := used(t, m); got != 2048 {
		t.Errorf("used by a removed file that is still open: got %d, want 2048", got)
	}
	if got := used(t, m.Clone()); got != 0 {
		t.Errorf("used in a clone by a removed file: got %d, want 0", got)
	}
	must(t, h.Close())
	if got := used(t, m); got != 0 {
		t.Errorf("used after Remove and Close: got %d, want 0", got)
	}

	replaced := create(t, m, "b")
	write(t, replaced, sectors("BBB"), 0)
	must(t, replaced.Close())
	write(t, create(t, m, "c"), sectors("C"), 0)
	must(t, m.Rename("c", "b"))
	if got := m.OpenFiles(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("open files: got %v", got)
	}
	if got := used(t, m.Clone()); got != 512 {
		t.Errorf("used in a clone after a file was replaced: got %d, want 512", got)
	}
	if got := used(t, m); got != 512 {
		t.Errorf("used after a file was replaced: got %d, want 512", got)
	}
	m.SetCapacity(100)
	if u, err := m.Usage(); u.FreeBytes != 0 || u.TotalBytes != 100 || err != nil {
		t.Errorf("Usage: got %+v, %v", u, err)
	}
}

func TestOnOp(t *testing.T) {
	m := memfs.New()
	var got []string
	m.OnOp(func(op memfs.Op) {
		state := "begin"
		if op.Done {
			state = "end"
		}
		names, err := m.List(".") // the hook may use the FS
		must(t, err)
		got = append(got, fmt.Sprint(state, " ", op.Kind, " ", op.Name, op.NewName, " ", op.Offset, op.Len, op.Size, names))
	})
	h := create(t, m, "a")
	write(t, h, "xyz", 7)
	must(t, h.Truncate(5))
	must(t, h.Sync())
	must(t, m.Rename("a", "b"))
	must(t, m.SyncDir("."))
	must(t, m.Remove("b"))
	want := `begin create a 0 0 0 []
end create a 0 0 0 [a]
begin write a 7 3 0 [a]
end write a 7 3 0 [a]
begin truncate a 0 0 5 [a]
end truncate a 0 0 5 [a]
begin sync a 0 0 0 [a]
end sync a 0 0 0 [a]
begin rename ab 0 0 0 [a]
end rename ab 0 0 0 [b]
begin syncdir . 0 0 0 [b]
end syncdir . 0 0 0 [b]
begin remove b 0 0 0 [b]
end remove b 0 0 0 []`
	if g := strings.Join(got, "\n"); g != want {
		t.Errorf("got\n%s\nwant\n%s", g, want)
	}
}

// The cost of a crash state of a log of 256 KiB in a prepared file, with one batch not yet durable.
func BenchmarkCrash(b *testing.B) {
	m := memfs.New()
	h, err := m.Create("a")
	if err != nil {
		b.Fatal(err)
	}
	h.WriteAt(make([]byte, 1<<20), 0)
	h.WriteAt([]byte(strings.Repeat("x", 256<<10)), 0)
	h.Sync()
	m.SyncDir(".")
	h.WriteAt([]byte(strings.Repeat("y", 16<<10)), 256<<10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Crash(1, i)
	}
}
