package snapshot

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

const dir = "snapshots"

var logID = entry.LogID{'t', 'h', 'e', ' ', 'l', 'o', 'g'}

// newFS returns a file system with a durable, empty folder for snapshots.
func newFS(tb testing.TB) *memfs.FS {
	tb.Helper()
	m := memfs.New()
	if err := errors.Join(m.Mkdir(dir), m.SyncDir(".")); err != nil {
		tb.Fatal(err)
	}
	return m
}

// grow applies n entries to a state: records with request ids, and groups.
func grow(tb testing.TB, s *state.State, n int) *state.State {
	tb.Helper()
	for range n {
		i := uint64(s.Applied())
		e := entry.Entry{Index: s.Applied() + 1, Term: 3, TimeMS: 1_700_000_000_000 + int64(i), Kind: fact.KindAppended}
		topic := fmt.Appendf(nil, "topic-%d", i/2%3)
		known, _ := s.Topic(topic)
		if i%2 == 0 {
			id := binary.LittleEndian.AppendUint64(nil, i)
			e.Payload = fact.AppendAppended(nil, topic, known.End, known.EndCum, id, fact.Digest{byte(i)}, make([]fact.Record, 2))
		} else {
			e.Kind, e.Payload = fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, []byte("group"), known.End)
		}
		if _, err := s.Apply(&e); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

func write(tb testing.TB, fsys vfs.FS, s *state.State) Info {
	tb.Helper()
	info, err := Write(fsys, dir, logID, s.Freeze())
	if err != nil {
		tb.Fatal(err)
	}
	return info
}

// readFile and putFile go around package snapshot.
func readFile(tb testing.TB, fsys vfs.FS, name string) []byte {
	tb.Helper()
	f, err := fsys.OpenRead(path.Join(dir, name))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		tb.Fatal(err)
	}
	p := make([]byte, size)
	if _, err := f.ReadAt(p, 0); err != nil && size > 0 {
		tb.Fatal(err)
	}
	return p
}

func putFile(tb testing.TB, fsys vfs.FS, name string, p []byte) {
	tb.Helper()
	name = path.Join(dir, name)
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Fatal(err)
	}
	f, err := fsys.Create(name)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := f.WriteAt(p, 0); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
}

func names(tb testing.TB, fsys vfs.FS) []string {
	tb.Helper()
	all, err := fsys.List(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// loads demands that a state, and bad files of these names, are what Load finds.
func loads(tb testing.TB, fsys vfs.FS, want *state.State, bad ...string) {
	tb.Helper()
	got, info, gotBad, err := Load(fsys, dir, logID)
	if err != nil {
		tb.Fatal(err)
	}
	if got.Hash() != want.Hash() || info.Index != want.Applied() || info.Term != want.Term() || info.TimeMS != want.TimeMS() {
		tb.Fatalf("loaded %+v, bad %v; want index %d", info, gotBad, want.Applied())
	}
	if err := got.Verify(); err != nil {
		tb.Fatal(err)
	}
	var gotNames []string
	for _, b := range gotBad {
		gotNames = append(gotNames, strings.TrimPrefix(b.Name, dir+"/"))
	}
	if !slices.Equal(gotNames, bad) {
		tb.Fatalf("bad are %v, want %v", gotBad, bad)
	}
}

func TestNothingThere(t *testing.T) {
	m := newFS(t)
	loads(t, m, state.New())
	if _, _, _, err := Load(m, "elsewhere", logID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if kept, err := Prune(m, dir, logID, 2); err != nil || len(kept) != 0 {
		t.Errorf("Prune = %v, %v", kept, err)
	}
}

func TestWriteAndLoad(t *testing.T) {
	m := newFS(t)
	s := state.New()
	for _, n := range []int{1, 1, 9, 3000, 60_000} { // the last ones take several blocks and several syncs
		info := write(t, m, grow(t, s, n))
		if info.Index != s.Applied() || info.Name != fmt.Sprintf("%020d.snap", s.Applied()) {
			t.Errorf("info %+v at index %d", info, s.Applied())
		}
		if size, err := m.Size(path.Join(dir, info.Name)); err != nil || size != info.Bytes {
			t.Errorf("size %d, %v; info says %d", size, err, info.Bytes)
		}
		loads(t, m, s)
	}
	write(t, m, s) // once more at the same index
	loads(t, m, s)
	good, bad, err := List(m, dir, logID)
	if err != nil || len(good) != 5 || len(bad) != 0 || good[0].Index != s.Applied() || good[4].Index != 1 {
		t.Errorf("List = %v, %v, %v", good, bad, err)
	}
	if open := m.OpenFiles(); len(open) > 0 {
		t.Errorf("files are left open: %v", open)
	}
}

// The state before the first entry can be written too, and so can one whose last block is exactly full.
func TestSizesAroundBlocks(t *testing.T) {
	m := newFS(t)
	write(t, m, state.New())
	loads(t, m, state.New())

	for _, extra := range []int{-1, 0, 1} {
		for _, blocks := range []int{1, 2, 4, 5} {
			body := make([]byte, blocks*blockMax+extra)
			for i := range body {
				body[i] = byte(i / blockMax)
			}
			p := encodeFile(t, &Info{Index: 7}, body)
			name := fileName(7)
			putFile(t, m, name, p)
			if _, err := check(m, dir, name, logID); err != nil {
				t.Errorf("%d blocks and %d bytes: %v", blocks, extra, err)
			}
		}
	}
}

// encodeFile makes a snapshot file with any body.
func encodeFile(tb testing.TB, info *Info, body []byte) []byte {
	tb.Helper()
	m := newFS(tb)
	f, err := m.Create("x")
	if err != nil {
		tb.Fatal(err)
	}
	w := &bodyWriter{file: f, buf: appendHeader(nil, logID, info)}
	w.before = headerSum(w.buf)
	for len(body) > 0 { // in pieces that have nothing to do with blocks
		n := min(len(body), 10_007)
		if _, err := w.Write(body[:n]); err != nil {
			tb.Fatal(err)
		}
		body = body[n:]
	}
	size, err := w.finish()
	if err != nil {
		tb.Fatal(err)
	}
	p := make([]byte, size)
	if _, err := f.ReadAt(p, 0); err != nil {
		tb.Fatal(err)
	}
	return p
}

// The bytes of a snapshot. They may never change: there are such files on disks.
func TestGolden(t *testing.T) {
	m := newFS(t)
	s := grow(t, state.New(), 8)
	info := write(t, m, s)
	file := filepath.Join("testdata", "golden.txt")
	got := hex.Dump(readFile(t, m, info.Name))
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the bytes of a snapshot changed:\n%s", got)
	}
}

func TestParseName(t *testing.T) {
	for name, want := range map[string]entry.Index{
		"00000000000000001234.snap":     1234,
		"18446744073709551615.snap":     1<<64 - 1,
		"18446744073709551616.snap":     0,
		"00000000000000001234.snap.tmp": 0,
		"0000000000000001234.snap":      0,
		"+0000000000000001234.snap":     0,
		"0000000000000000123a.snap":     0,
		"00000000000000001234.SNAP":     0,
		".snap":                         0,
		"":                              0,
	} {
		if got, ok := parseName(name); got != want && ok || ok != (want != 0) {
			t.Errorf("parseName(%q) = %d, %v", name, got, ok)
		}
	}
}
