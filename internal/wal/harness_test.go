package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

var testID = entry.LogID{0x6d, 0x71, 0x20, 0x74, 0x65, 0x73, 0x74, 0x20, 0x6c, 0x6f, 0x67, 0x20, 1, 2, 3, 4}

const (
	testSegment = 8 << 10
	testTime    = 1_700_000_000_000
)

func testConfig(fsys vfs.FS) Config {
	return Config{FS: fsys, LogID: testID, SegmentBytes: testSegment, Create: true}
}

// payloadOf returns the payload of test entry i: a function of the index alone, without zero bytes.
func payloadOf(i entry.Index, size int) []byte {
	b := make([]byte, size)
	x := uint32(i)*2654435761 + 1
	for j := range b {
		x = x*1664525 + 1013904223
		b[j] = byte(x>>24) | 1
	}
	copy(b, fmt.Sprintf("entry %d ", i))
	return b
}

// sizeOf returns the payload size of test entry i: mostly small, sometimes more than a sector.
func sizeOf(i entry.Index) int { return 20 + int(i*37%150) + int(i%5/4)*700 }

// seen is what a visit saw.
type seen struct {
	entries []entry.Entry
	at      []entry.Position
}

func (s *seen) visit(e *entry.Entry, p entry.Position) error {
	c := *e
	c.Payload = bytes.Clone(e.Payload)
	s.entries, s.at = append(s.entries, c), append(s.at, p)
	return nil
}

// last returns the index of the last entry seen, or 0.
func (s *seen) last() entry.Index {
	if len(s.entries) == 0 {
		return 0
	}
	return s.entries[len(s.entries)-1].Index
}

// checkDense fails unless the entries are the test entries first, first+1, ...
func (s *seen) checkDense(first entry.Index) error {
	for i, e := range s.entries {
		if want := first + entry.Index(i); e.Index != want {
			return fmt.Errorf("entry %d where %d should be", e.Index, want)
		}
		if want := payloadOf(e.Index, sizeOf(e.Index)); !bytes.Equal(e.Payload, want) {
			return fmt.Errorf("entry %d has another payload: %d bytes, want %d", e.Index, len(e.Payload), len(want))
		}
	}
	return nil
}

// gather puts n test entries, the first with index first, into f.
func gather(f *Frames, first entry.Index, n int) {
	f.Reset()
	for i := range entry.Index(n) {
		buf := f.Begin(2, testTime+int64(first+i))
		f.End(append(buf, payloadOf(first+i, sizeOf(first+i))...))
	}
}

// put appends and syncs n test entries as one group commit.
func put(l *Log, n int) error {
	var f Frames
	gather(&f, l.Last()+1, n)
	if _, err := l.Append(&f, max(1, l.Tip().Term), l.Durable()); err != nil {
		return err
	}
	return l.Sync()
}

// mark appends and syncs an idle marker.
func mark(l *Log) error {
	var f Frames
	f.End(f.Begin(1, testTime+int64(l.Last()+1)))
	if _, err := l.Append(&f, max(1, l.Tip().Term), l.Durable()); err != nil {
		return err
	}
	return l.Sync()
}

func mustPut(t testing.TB, l *Log, counts ...int) {
	t.Helper()
	for _, n := range counts {
		if err := put(l, n); err != nil {
			t.Fatalf("append %d entries: %v", n, err)
		}
	}
}

func mustOpen(t testing.TB, cfg Config, after entry.Index) (*Log, Recovered, *seen) {
	t.Helper()
	s := new(seen)
	l, r, err := Open(cfg, after, s.visit)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l, r, s
}

// readFile returns the content of a file.
func readFile(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

// writeFile makes, or overwrites and cuts, a file, durably.
func writeFile(t testing.TB, fsys vfs.FS, name string, b []byte) {
	t.Helper()
	if err := fsys.Remove(name); err != nil && !errors.Is(err, errNotExist) {
		t.Fatal(err)
	}
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := fsys.SyncDir("log"); err != nil {
		t.Fatal(err)
	}
}

// newMem returns a file system in memory with a log folder.
func newMem(t testing.TB) *memfs.FS {
	t.Helper()
	m := memfs.New()
	if err := m.Mkdir("log"); err != nil {
		t.Fatal(err)
	}
	if err := m.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	return m
}

func segmentPath(first entry.Index) string { return "log/" + segmentName(first) }
