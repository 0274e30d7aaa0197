package index

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// The log of the tests below follows from the number k of a frame alone: frames have 64 bytes and one record,
// take turns among four topics, and a segment holds 100 of them.
const (
	perSegment = 100
	turns      = 4
)

func nth(k int) frame {
	return frame{
		topic: fmt.Sprint("topic-", k%turns), first: fact.Offset(k / turns), count: 1,
		p: entry.Position{Segment: segmentOf(k), Offset: 512 + int64(k%perSegment)*64, Length: 64},
	}
}

func segmentOf(k int) entry.Index { return entry.Index(k/perSegment*perSegment + 1) }

func addAll(x *Index, from, to int) {
	for k := from; k < to; k++ {
		nth(k).addTo(x.Add)
	}
}

// scan is the scan of a segment for Rebuild.
func scan(segment entry.Index) func(func(string, fact.Offset, int, entry.Position)) error {
	return func(add func(string, fact.Offset, int, entry.Position)) error {
		for k := int(segment) - 1; k < int(segment)-1+perSegment; k++ {
			nth(k).addTo(add)
		}
		return nil
	}
}

// checkNth checks that Find returns the run of frame k.
func checkNth(t *testing.T, x *Index, k int) {
	t.Helper()
	f := nth(k)
	want := Run{f.p.Segment, f.p.Offset, f.p.End(), f.first, f.first}
	if got, err := x.Find([]byte(f.topic), f.first); got != want || err != nil {
		t.Fatalf("frame %d: Find = %v, %v, want %v", k, got, err, want)
	}
}

// failFS fails the operation number failAt with err, and all after it when stays is set. A write that fails
// has written half.
type failFS struct {
	vfs.FS
	ops, failAt int
	stays       bool
	err         error
}

func (f *failFS) fail() error {
	f.ops++
	if f.ops == f.failAt || f.stays && f.ops > f.failAt {
		return f.err
	}
	return nil
}

func (f *failFS) Create(name string) (vfs.File, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name)
	return failFile{file, f}, err
}

func (f *failFS) OpenRead(name string) (vfs.File, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenRead(name)
	return failFile{file, f}, err
}

func (f *failFS) Rename(from, to string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *failFS) Remove(name string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *failFS) List(dir string) ([]string, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *failFS) SyncDir(dir string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

type failFile struct {
	vfs.File
	fs *failFS
}

func (f failFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.fail(); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f failFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.fail(); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f failFile) Sync() error {
	if err := f.fs.fail(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f failFile) Size() (int64, error) {
	if err := f.fs.fail(); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f failFile) Close() error {
	return errors.Join(f.fs.fail(), f.File.Close())
}

// TestFlushErrors fails every single operation of a Flush, once or for good: the error is reported, nothing is
// lost, no file stays open, and the next Flush makes up for it.
func TestFlushErrors(t *testing.T) {
	for _, stays := range []bool{false, true} {
		failed := 0
		for k := 1; ; k++ {
			m := newFS(t)
			f := &failFS{FS: m, failAt: k, stays: stays, err: syscall.EIO}
			x := New(Config{FS: f, LogID: testLog})
			addAll(x, 0, 3*perSegment)
			err := x.Flush()
			if f.ops < k {
				if err != nil {
					t.Fatalf("nothing failed, but Flush: %v", err)
				}
				break
			}
			// The removal of a file that is not there, and of one that is in the way, is an error as any other.
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("operation %d failed: Flush: %v, want EIO", k, err)
			}
			failed++
			f.failAt = 0
			for i := range 3 * perSegment {
				f.stays = false
				checkNth(t, x, i)
			}
			mustDo(t, x.Flush)
			if names := x.unsaved(); len(names) > 0 {
				t.Fatalf("operation %d failed: %d segments without a file after the second Flush", k, len(names))
			}
			if names := m.OpenFiles(); len(names) > 0 {
				t.Fatalf("operation %d failed: %q are still open", k, names)
			}
			fresh := New(Config{FS: m, LogID: testLog})
			mustDo(t, func() error { return errors.Join(fresh.Load(1), fresh.Load(101)) })
			for i := range 2 * perSegment {
				checkNth(t, fresh, i)
			}
			if names, err := m.List("log"); err != nil || !slices.Equal(names, []string{FileName(1), FileName(101)}) {
				t.Fatalf("operation %d failed: files %q, %v", k, names, err)
			}
		}
		if failed < 14 {
			t.Errorf("only %d operations failed", failed)
		}
	}
}

// TestDiskFull: a full disk leaves no partial file, and Flush works as soon as there is room.
func TestDiskFull(t *testing.T) {
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog})
	addAll(x, 0, 2*perSegment)
	m.SetCapacity(512)
	if err := x.Flush(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Flush on a full disk: %v, want ENOSPC", err)
	}
	if names, err := m.List("log"); len(names) > 0 || err != nil {
		t.Errorf("files after a Flush on a full disk: %q, %v", names, err)
	}
	checkNth(t, x, 17)
	m.SetCapacity(1 << 30)
	mustDo(t, x.Flush)
	checkNth(t, x, 17)
}

// TestReadErrors fails every operation of a Find that reads a file: the error names the segment, and Rebuild
// helps. The same for Load.
func TestReadErrors(t *testing.T) {
	for k := 1; ; k++ {
		m := newFS(t)
		f := &failFS{FS: m}
		x := New(Config{FS: f, LogID: testLog})
		addAll(x, 0, 3*perSegment)
		mustDo(t, x.Flush)
		f.ops, f.failAt, f.stays, f.err = 0, k, true, syscall.EIO
		_, err := x.Find([]byte("topic-1"), 30)
		if f.ops < k {
			break
		}
		if err != nil { // closing a file that was read is no error worth reporting
			var se *SegmentError
			if !errors.As(err, &se) || se.Segment != 101 || !errors.Is(err, syscall.EIO) {
				t.Fatalf("operation %d failed: Find: %v, want a SegmentError of segment 101 for EIO", k, err)
			}
		}
		mustDo(t, func() error { return x.Rebuild(101, scan(101)) })
		checkNth(t, x, 30*turns+1)
	}
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog})
	addAll(x, 0, 3*perSegment)
	mustDo(t, x.Flush)
	for k := 1; ; k++ {
		f := &failFS{FS: m, failAt: k, stays: true, err: syscall.EIO}
		fresh := New(Config{FS: f, LogID: testLog})
		err := fresh.Load(1)
		if f.ops < k {
			break
		}
		var se *SegmentError
		if err != nil && (!errors.As(err, &se) || se.Segment != 1 || !errors.Is(err, syscall.EIO)) {
			t.Fatalf("operation %d failed: Load: %v, want a SegmentError of segment 1 for EIO", k, err)
		}
		if err != nil && len(fresh.segments)+len(fresh.topics) > 0 {
			t.Fatalf("operation %d failed: Load left something behind", k)
		}
	}
	var se *SegmentError
	if err := x.Load(1001); !errors.As(err, &se) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of a segment without a file: %v, want a SegmentError for fs.ErrNotExist", err)
	}
}

// TestDamageWhileRunning: an index file that goes bad, or away, under a running index is noticed, and Rebuild
// and Flush replace it.
func TestDamageWhileRunning(t *testing.T) {
	for name, harm := range map[string]func(*memfs.FS, string){
		"damaged": func(m *memfs.FS, name string) {
			b := readFile(t, m, name)
			b[headerSize+3] ^= 1
			writeFile(t, m, name, b)
		},
		"cut":     func(m *memfs.FS, name string) { writeFile(t, m, name, readFile(t, m, name)[:headerSize+1]) },
		"removed": func(m *memfs.FS, name string) { mustDo(t, func() error { return m.Remove(name) }) },
	} {
		m := newFS(t)
		x := New(Config{FS: m, LogID: testLog})
		addAll(x, 0, 3*perSegment)
		mustDo(t, x.Flush)
		harm(m, "log/"+FileName(1))
		_, err := x.Find([]byte("topic-0"), 3)
		var se *SegmentError
		if !errors.As(err, &se) || se.Segment != 1 {
			t.Errorf("%s: Find: %v, want a SegmentError of segment 1", name, err)
		}
		checkNth(t, x, perSegment+7) // the next segment is not touched
		for range 2 {
			mustDo(t, func() error { return x.Rebuild(1, scan(1)) })
			for k := range 2 * perSegment {
				checkNth(t, x, k)
			}
			mustDo(t, x.Flush)
			for k := range 2 * perSegment {
				checkNth(t, x, k)
			}
		}
	}
}

// TestCrash cuts the power at every moment of Flush and Drop, with everything that may survive of what was
// not durable: what Load then takes for an index is the right one, files of a finished Flush are there, and a
// node that starts on what is left can Flush again.
func TestCrash(t *testing.T) {
	states := 0
	check := func(m *memfs.FS, saved, oldest entry.Index, active int) {
		for c := range m.CrashStates(uint64(states), 64) {
			states++
			x := New(Config{FS: c.FS, LogID: testLog})
			for s := oldest; s < segmentOf(active); s += perSegment {
				if err := x.Load(s); err != nil {
					if s < saved {
						t.Fatalf("%v\nindex file of segment %d, written before, is lost: %v", c, s, err)
					}
					mustDo(t, func() error { return x.Rebuild(s, scan(s)) })
				}
			}
			addAll(x, int(segmentOf(active))-1, active)
			for k := int(oldest) - 1; k < active; k++ {
				checkNth(t, x, k)
			}
			mustDo(t, x.Flush)
			checkNth(t, x, int(oldest)-1)
			mustDo(t, func() error { return x.Drop(segmentOf(active)) })
			if names, err := c.FS.List("log"); err != nil || slices.ContainsFunc(names, func(n string) bool { return n != tmpName }) {
				t.Fatalf("%v\nfiles after all was dropped: %q, %v", c, names, err)
			}
		}
	}
	m := newFS(t)
	mustDo(t, func() error { return m.SyncDir(".") })
	x := New(Config{FS: m, LogID: testLog})
	saved, oldest, k := entry.Index(0), entry.Index(1), 0
	m.OnOp(func(op memfs.Op) { check(m, saved, oldest, k) })
	for _, upTo := range []int{2*perSegment + 10, 3*perSegment + 10} {
		addAll(x, k, upTo)
		k = upTo
		mustDo(t, x.Flush)
		saved = segmentOf(k)
	}
	oldest = segmentOf(2 * perSegment)
	mustDo(t, func() error { return x.Drop(oldest) })
	for c := range m.CrashStates(0, 64) {
		if names, err := c.FS.List("log"); err != nil || len(names) == 0 || names[0] != FileName(oldest) {
			t.Errorf("%v\nfiles after Drop: %q, %v", c, names, err)
		}
	}
	if states < 100 {
		t.Errorf("only %d crash states", states)
	}
}

// TestLeftovers: index files of segments that were dropped before a crash go with the next Drop, other files
// stay.
func TestLeftovers(t *testing.T) {
	m := newFS(t)
	keep := []string{"00000000000000000001.seg", FileName(300), "1.idx", "next.seg", "x.idx"}
	for _, name := range append([]string{FileName(1), FileName(299)}, keep...) {
		writeFile(t, m, path.Join("log", name), nil)
	}
	x := New(Config{FS: m, LogID: testLog})
	mustDo(t, func() error { return x.Drop(300) })
	if names, err := m.List("log"); err != nil || !slices.Equal(names, keep) {
		t.Errorf("files %q, %v, want %q", names, err, keep)
	}
	writeFile(t, m, path.Join("log", tmpName), []byte("half a file"))
	addAll(x, 300, 500)
	mustDo(t, x.Flush)
	if names, err := m.List("log"); err != nil || slices.Contains(names, tmpName) {
		t.Errorf("files %q, %v", names, err)
	}
}

// TestDropErrors fails every operation of a Drop: the segments are forgotten all the same, and the next Drop
// removes the files.
func TestDropErrors(t *testing.T) {
	for k := 1; ; k++ {
		m := newFS(t)
		f := &failFS{FS: m}
		x := New(Config{FS: f, LogID: testLog})
		addAll(x, 0, 4*perSegment)
		mustDo(t, x.Flush)
		f.ops, f.failAt, f.err = 0, k, syscall.EIO
		err := x.Drop(201)
		if f.ops < k {
			break
		}
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("operation %d failed: Drop: %v, want EIO", k, err)
		}
		if r, err := x.Find([]byte("topic-0"), 0); err != nil || r.Segment != 201 {
			t.Fatalf("operation %d failed: Find = %v, %v, want a run in segment 201", k, r, err)
		}
		mustDo(t, func() error { return x.Drop(201) })
		if names, err := m.List("log"); err != nil || !slices.Equal(names, []string{FileName(201)}) {
			t.Fatalf("operation %d failed: files %q, %v", k, names, err)
		}
	}
}

// TestDropped: segments that were dropped stay forgotten, the active one is not dropped, a topic without
// records takes no memory.
func TestDropped(t *testing.T) {
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog})
	x.Add("gone", 0, 1, entry.Position{Segment: 1, Offset: 512, Length: 64})
	addAll(x, 100, 2*perSegment+20)
	mustDo(t, x.Flush)
	mustDo(t, func() error { return x.Drop(5000) })
	if r, err := x.Find([]byte("topic-0"), 0); err != nil || r.Segment != 201 {
		t.Errorf("Find = %v, %v, want a run in segment 201, the active one", r, err)
	}
	if _, err := x.Find([]byte("gone"), 0); err != ErrNone || x.topics["gone"] != nil {
		t.Errorf("Find of a topic without records: %v, want ErrNone", err)
	}
	if len(x.cache.blocks) > 0 {
		t.Errorf("%d blocks of dropped segments in the cache", len(x.cache.blocks))
	}
	mustDo(t, func() error { return errors.Join(x.Load(101), x.Rebuild(101, scan(101))) })
	if r, err := x.Find([]byte("topic-0"), 0); err != nil || r.Segment != 201 || len(x.segments) != 1 {
		t.Errorf("after Load and Rebuild of a dropped segment: Find = %v, %v", r, err)
	}
	x.Add("gone", 1, 1, entry.Position{Segment: 201, Offset: 1 << 20, Length: 64})
	if r, err := x.Find([]byte("gone"), 0); err != nil || r.First != 1 {
		t.Errorf("Find of a topic that came back = %v, %v", r, err)
	}
}

// TestRebuildErrors: what scan reports fails Rebuild and changes nothing.
func TestRebuildErrors(t *testing.T) {
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog})
	addAll(x, 0, 3*perSegment)
	mustDo(t, x.Flush)
	type add = func(string, fact.Offset, int, entry.Position)
	at := func(n int64) entry.Position { return entry.Position{Segment: 101, Offset: 512 + 64*n, Length: 64} }
	if err := x.Rebuild(101, func(a add) error { a("t", 5, 2, at(0)); return syscall.EIO }); !errors.Is(err, syscall.EIO) {
		t.Errorf("Rebuild: %v, want the error of scan", err)
	}
	if err := x.Rebuild(201, scan(201)); err == nil {
		t.Errorf("Rebuild of the active segment: no error")
	}
	for k := range 3 * perSegment {
		checkNth(t, x, k)
	}
	if len(x.topics) != turns {
		t.Errorf("%d topics, want %d", len(x.topics), turns)
	}
	// A segment of which damage has left less.
	mustDo(t, func() error {
		return x.Rebuild(101, func(a add) error { a("topic-0", 26, 1, at(3)); return nil })
	})
	if r, err := x.Find([]byte("topic-0"), 25); err != nil || r.First != 26 {
		t.Errorf("Find in the gap = %v, %v, want the run of record 26", r, err)
	}
	if r, err := x.Find([]byte("topic-1"), 25); err != nil || r.First != 50 {
		t.Errorf("Find in the gap = %v, %v, want the run of record 50", r, err)
	}
}

// TestRebuildReplacesCached: a block that was in the cache does not outlive the Rebuild of its segment, even when
// the new one begins and ends with the same records.
func TestRebuildReplacesCached(t *testing.T) {
	x := New(Config{FS: newFS(t), LogID: testLog})
	addAll(x, 0, perSegment+1)
	mustDo(t, x.Flush)
	checkNth(t, x, 4)
	mustDo(t, func() error {
		return x.Rebuild(1, func(add func(string, fact.Offset, int, entry.Position)) error {
			for k := range perSegment {
				if k != 4 {
					nth(k).addTo(add)
				}
			}
			return nil
		})
	})
	mustDo(t, x.Flush)
	if r, err := x.Find([]byte("topic-0"), 1); err != nil || r.First != 2 {
		t.Errorf("Find of a record that is gone = %v, %v, want the run of record 2", r, err)
	}
}

// hookFS calls a function before it opens a file for reading.
type hookFS struct {
	vfs.FS
	beforeRead func()
}

func (h *hookFS) OpenRead(name string) (vfs.File, error) {
	if f := h.beforeRead; f != nil {
		h.beforeRead = nil
		f()
	}
	return h.FS.OpenRead(name)
}

// TestFindMeets lets a segment be dropped, or rebuilt and written anew, after Find has learned where its block
// is and before it reads it.
func TestFindMeets(t *testing.T) {
	for name, c := range map[string]struct {
		meets func(x *Index)
		want  frame
	}{
		"drop": {func(x *Index) { mustDo(t, func() error { return x.Drop(101) }) }, nth(100)},
		"keep and drop": {func(x *Index) {
			x.Add("topic-0", 1, 1, entry.Position{Segment: 201, Offset: 90000, Length: 64})
			mustDo(t, func() error { return x.Drop(101) })
		}, frame{first: 1, p: entry.Position{Offset: 90000}}},
		"rebuild": {func(x *Index) { mustDo(t, func() error { return x.Rebuild(1, scan(1)) }) }, nth(4)},
		"rebuild with another layout": {func(x *Index) {
			mustDo(t, func() error {
				return x.Rebuild(1, func(add func(string, fact.Offset, int, entry.Position)) error {
					nth(8).addTo(add)
					return nil
				})
			})
			mustDo(t, x.Flush)
		}, nth(8)},
	} {
		h := &hookFS{FS: newFS(t)}
		x := New(Config{FS: h, LogID: testLog})
		addAll(x, 0, 2*perSegment+1)
		mustDo(t, x.Flush)
		h.beforeRead = func() { c.meets(x) }
		r, err := x.Find([]byte("topic-0"), 1)
		if err != nil || r.First != c.want.first || r.Pos != c.want.p.Offset || h.beforeRead != nil {
			t.Errorf("%s: Find = %v, %v, want the run of frame %v", name, r, err, c.want)
		}
	}
}

// TestBugs: what no caller may do panics at once.
func TestBugs(t *testing.T) {
	m := newFS(t)
	fresh := func() *Index {
		x := New(Config{FS: m, LogID: testLog})
		addAll(x, 0, perSegment+1)
		return x
	}
	good := entry.Position{Segment: 101, Offset: 5000, Length: 64}
	for name, f := range map[string]func(*Index){
		"older segment":     func(x *Index) { x.Add("topic-1", 25, 1, entry.Position{Segment: 1, Offset: 9000, Length: 64}) },
		"older begin":       func(x *Index) { x.Begin(1) },
		"no record":         func(x *Index) { x.Add("topic-1", 25, 0, good) },
		"no bytes":          func(x *Index) { x.Add("topic-1", 25, 1, entry.Position{Segment: 101}) },
		"no name":           func(x *Index) { x.Add("", 0, 1, good) },
		"scan elsewhere":    func(x *Index) { _ = x.Rebuild(1, scan(101)) },
		"load after active": func(x *Index) { _ = x.Rebuild(201, scan(201)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(fresh())
		}()
	}
}

// TestConcurrent adds, flushes, rebuilds and drops while four goroutines look up what must be there. Run it
// with -race.
func TestConcurrent(t *testing.T) {
	const frames = 100 * perSegment
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog, CacheBytes: 8 << 10})
	var added, kept atomic.Int64 // frames below added are there, unless they are below kept
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for k := range frames {
			nth(k).addTo(x.Add)
			added.Store(int64(k) + 1)
		}
	})
	wg.Go(func() { // maintenance
		random := rand.New(rand.NewPCG(1, 1))
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			if err := x.Flush(); err != nil {
				t.Error(err)
			}
			low, high := kept.Load()/perSegment, added.Load()/perSegment
			if low+1 < high {
				s := entry.Index((low+random.Int64N(high-low-1))*perSegment + 1)
				if err := x.Rebuild(s, scan(s)); err != nil {
					t.Error(err)
				}
			}
			if high-low > 20 {
				low += random.Int64N(10)
				kept.Store(low * perSegment)
				if err := x.Drop(entry.Index(low*perSegment + 1)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for g := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(g)))
			for {
				select {
				case <-done:
					return
				default:
				}
				if g == 0 && added.Load() > 0 {
					s := segmentOf(int(added.Load() - 1))
					if !x.Alive(s, func(string) fact.Offset { return 0 }) {
						t.Errorf("segment %d is not alive", s)
					}
				}
				low, high := kept.Load(), added.Load()
				if low >= high {
					continue
				}
				k := int(low + random.Int64N(high-low))
				f := nth(k)
				r, err := x.Find([]byte(f.topic), f.first)
				switch want := (Run{f.p.Segment, f.p.Offset, f.p.End(), f.first, f.first}); {
				case err == nil && r == want:
				case err == nil && r.First > f.first && int64(k) < kept.Load(): // dropped meanwhile
				default:
					t.Errorf("frame %d: Find = %v, %v, want %v", k, r, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
