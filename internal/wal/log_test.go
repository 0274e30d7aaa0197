package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// waitFor waits until cond holds.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for !cond() {
		if ctx.Err() != nil {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond) // polling, not synchronising
	}
}

func TestAppend(t *testing.T) {
	l, r, _ := mustOpen(t, testConfig(newMem(t)), 0)
	if r.First != 1 || r.Last != 0 || l.Last() != 0 || l.Durable() != 0 {
		t.Errorf("a new log is %+v, last %d, durable %d", r, l.Last(), l.Durable())
	}
	if got, want := l.Segments(), (Segment{First: 1, Last: 0, Bytes: testSegment}); len(got) != 1 || got[0] != want {
		t.Errorf("segments %v, want %v", got, want)
	}
	var f Frames
	gather(&f, 1, 3)
	if f.Len() != 3 || f.Bytes() != frameSize(sizeOf(1))+frameSize(sizeOf(2))+frameSize(sizeOf(3)) {
		t.Errorf("gathered %d entries, %d bytes", f.Len(), f.Bytes())
	}
	first, err := l.Append(&f, 5, 0)
	if first != 1 || err != nil {
		t.Fatalf("append: %d, %v", first, err)
	}
	if l.Last() != 3 || l.Durable() != 0 {
		t.Errorf("before sync: last %d, durable %d", l.Last(), l.Durable())
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if l.Durable() != 3 || l.Segments()[0].Last != 3 {
		t.Errorf("after sync: durable %d, segments %v", l.Durable(), l.Segments())
	}
	for i := range f.Len() {
		e, p := f.Entry(i), f.Position(i)
		want := payloadOf(e.Index, sizeOf(e.Index))
		if e.Index != entry.Index(i+1) || e.Term != 5 || e.Commit != 0 || e.Kind != 2 ||
			e.TimeMS != testTime+int64(i+1) || !bytes.Equal(e.Payload, want) || !bytes.Equal(f.Payload(i), want) {
			t.Errorf("entry %d is %+v", i, e)
		}
		buf := make([]byte, p.Length)
		if n, err := l.ReadAt(buf, p.Segment, p.Offset); n != len(buf) || err != nil {
			t.Fatalf("read %+v: %d, %v", p, n, err)
		}
		got, n, err := l.Parse(buf)
		if err != nil || int64(n) != p.Length || !equalEntry(got, e) || !bytes.Equal(got.Payload, want) {
			t.Errorf("parsed %+v, %d, %v", got, n, err)
		}
	}
}

func TestParse(t *testing.T) {
	var f Frames
	gather(&f, 1, 2)
	f.finish(seedOf(testID), 0, 1, 1, 0)
	l := &Log{seed: seedOf(testID)}
	first := int(f.Position(0).Length)
	for n := range first {
		_, need, err := l.Parse(f.buf[:n])
		want := first
		if n < frameHeader {
			want = frameHeader
		}
		if err != ErrShort || need != want {
			t.Fatalf("%d bytes: need %d, %v", n, need, err)
		}
	}
	for _, b := range [][]byte{make([]byte, 100), bytes.Repeat([]byte{0xff}, 100), f.buf[8:first]} {
		_, _, err := l.Parse(b)
		if c := (*CorruptionError)(nil); !errors.As(err, &c) {
			t.Errorf("%x: %v", b[:40], err)
		}
	}
	other := &Log{seed: seedOf(entry.LogID{1})}
	if _, _, err := other.Parse(f.buf); err == nil {
		t.Error("a frame of another log is good")
	}
	f.buf[first-1] = 1 // padding
	if _, _, err := l.Parse(f.buf); err == nil && sizeOf(1)%8 != 0 {
		t.Error("padding that is not zero is good")
	}
}

// TestFramesReuse: an entry that was begun and not ended leaves no trace, and nothing is allocated once the
// buffer has its size.
func TestFramesReuse(t *testing.T) {
	var f Frames
	buf := append(f.Begin(2, 1), "never ended, and much longer than what comes after it"...)
	_ = buf
	f.End(append(f.Begin(2, 1), "x"...))
	if f.Len() != 1 || f.Bytes() != 48 || string(f.Payload(0)) != "x" {
		t.Errorf("%d entries, %d bytes, payload %q", f.Len(), f.Bytes(), f.Payload(0))
	}
	f.Reserve = true
	f.Reset()
	if f.Reserve || f.Len() != 0 || f.Bytes() != 0 {
		t.Errorf("after Reset: %+v", f)
	}
	l, _, _ := mustOpen(t, Config{FS: newMem(t), LogID: testID, SegmentBytes: 16 << 20, Create: true}, 0)
	payload := payloadOf(1, 100)
	round := func() {
		f.Reset()
		for range 10 {
			f.End(append(f.Begin(2, testTime), payload...))
		}
		f.finish(l.seed, 7, 1, 1, 0)
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("a round allocates %v times", n)
	}
}

func TestFramesBugs(t *testing.T) {
	for name, do := range map[string]func(f *Frames, l *Log){
		"kind 0":        func(f *Frames, _ *Log) { f.Begin(0, 1) },
		"negative time": func(f *Frames, _ *Log) { f.Begin(1, -1) },
		"far future":    func(f *Frames, _ *Log) { f.Begin(1, timeMax+1) },
		"too large":     func(f *Frames, _ *Log) { f.End(append(f.Begin(1, 1), make([]byte, PayloadMax+1)...)) },
		"empty append":  func(f *Frames, l *Log) { l.Append(f, 1, 0) },
		"commit beyond": func(f *Frames, l *Log) { f.End(f.Begin(1, 1)); l.Append(f, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(new(Frames), l)
		})
	}
}

func TestReopen(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	for round := range 20 {
		mustPut(t, l, 1, 4, 2)
		want := l.Last()
		l.Close()
		if open := mem.OpenFiles(); len(open) != 0 {
			t.Fatalf("files open after Close: %v", open)
		}
		var r Recovered
		var saw *seen
		l, r, saw = mustOpen(t, testConfig(mem), 0)
		if l.Last() != want || r.Last != want || l.Durable() != want || r.First != 1 || r.Torn != nil {
			t.Fatalf("round %d: last %d, want %d, recovered %+v", round, l.Last(), want, r)
		}
		if err := saw.checkDense(1); err != nil || saw.last() != want {
			t.Fatalf("round %d: %v, visited up to %d of %d", round, err, saw.last(), want)
		}
	}
	if n := len(l.Segments()); n < 4 {
		t.Errorf("%d segments; the test wants some rolls", n)
	}
}

// TestLargeBatch: a group of entries never spans segments, and gets a larger one when it needs it.
func TestLargeBatch(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 1, 100, 1, 1)
	list := l.Segments()
	if len(list) != 3 && len(list) != 2 || list[1].Bytes <= testSegment || list[1].First != 2 {
		t.Errorf("segments %v", list)
	}
	mustPut(t, l, 10, 10, 10, 10, 10, 10, 10, 10, 10)
	list = l.Segments()
	if last := list[len(list)-1]; last.Bytes != testSegment {
		t.Errorf("the segments after a large one have its size: %v", list)
	}
	l.Close()
	l, _, saw := mustOpen(t, testConfig(mem), 0)
	if err := saw.checkDense(1); err != nil || l.Last() != 193 {
		t.Errorf("%v, last %d", err, l.Last())
	}
}

func TestScanSegment(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 20, 20, 20)
	var f Frames
	gather(&f, l.Last()+1, 2)
	if _, err := l.Append(&f, 1, l.Durable()); err != nil {
		t.Fatal(err)
	}
	want := entry.Index(1)
	scan := func(first entry.Index) ([]Damage, error) {
		return l.ScanSegment(first, func(e *entry.Entry, p entry.Position) error {
			if e.Index != want || p.Segment != first || !bytes.Equal(e.Payload, payloadOf(want, sizeOf(want))) {
				t.Errorf("entry %d where %d should be", e.Index, want)
			}
			want++
			return nil
		})
	}
	list := l.Segments()
	for _, s := range list {
		if damage, err := scan(s.First); err != nil || damage != nil {
			t.Fatalf("scan: %v, %v", damage, err)
		}
		if want != s.Last+1 {
			t.Errorf("scan ended before %d, segment is %+v", want, s)
		}
	}
	if want != l.Durable()+1 {
		t.Errorf("scanned up to %d, durable is %d", want-1, l.Durable())
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if _, err := l.ScanSegment(1, func(*entry.Entry, entry.Position) error { return stop }); err != stop {
		t.Errorf("error of visit: %v", err)
	}
	if _, err := l.ScanSegment(2, nil); err != ErrSegmentGone {
		t.Errorf("no such segment: %v", err)
	}

	// Damage in a sealed segment is skipped and named.
	file, err := mem.Open(segmentPath(1))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{1, 2, 3}, headerSize+200); err != nil {
		t.Fatal(err)
	}
	got := new(seen)
	damage, err := l.ScanSegment(1, got.visit)
	if err != nil || len(damage) != 1 || damage[0].First != damage[0].Last || len(got.entries) != int(list[0].Last)-1 {
		t.Errorf("scan over damage: %v, %v, %d entries of %d", damage, err, len(got.entries), list[0].Last)
	}
}

func TestDrop(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 20, 20, 20, 20)
	list := l.Segments()
	if len(list) < 4 {
		t.Fatalf("segments %v", list)
	}
	if n, err := l.DropBefore(list[0].Last); n != 0 || err != nil {
		t.Errorf("dropped %d, %v, with an entry still needed", n, err)
	}
	if n, err := l.DropBefore(list[2].First); n != 2 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	if _, err := l.ReadAt(make([]byte, 10), list[0].First, headerSize); err != ErrSegmentGone {
		t.Errorf("read of a dropped segment: %v", err)
	}
	if n, err := l.DropBefore(1 << 60); n != len(list)-3 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	active := list[len(list)-1]
	if got := l.Segments(); len(got) != 1 || got[0].First != active.First {
		t.Errorf("left: %v", got)
	}
	mustPut(t, l, 1)
	after := active.First - 1
	l.Close()
	_, r, saw := mustOpen(t, testConfig(mem), after)
	if r.First != active.First || saw.checkDense(active.First) != nil {
		t.Errorf("after reopening: %+v", r)
	}
}

// blockingFS lets a test hold up Sync and ReadAt.
type blockingFS struct {
	vfs.FS
	sync, read chan chan struct{} // if not nil: each call sends a channel, and waits until that is closed
}

type blockingFile struct {
	vfs.File
	fs *blockingFS
}

func (b *blockingFS) wrap(f vfs.File, err error) (vfs.File, error) { return &blockingFile{f, b}, err }

func (b *blockingFS) Open(name string) (vfs.File, error)     { return b.wrap(b.FS.Open(name)) }
func (b *blockingFS) Create(name string) (vfs.File, error)   { return b.wrap(b.FS.Create(name)) }
func (b *blockingFS) OpenRead(name string) (vfs.File, error) { return b.wrap(b.FS.OpenRead(name)) }

func hold(c chan chan struct{}) {
	if c != nil {
		wait := make(chan struct{})
		c <- wait
		<-wait
	}
}

func (f *blockingFile) Sync() error {
	hold(f.fs.sync)
	return f.File.Sync()
}

func (f *blockingFile) ReadAt(p []byte, off int64) (int, error) {
	hold(f.fs.read)
	return f.File.ReadAt(p, off)
}

// TestReadDuringSync: readers do not wait for a sync.
func TestReadDuringSync(t *testing.T) {
	b := &blockingFS{FS: newMem(t)}
	l, _, _ := mustOpen(t, testConfig(b), 0)
	mustPut(t, l, 3)
	waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
	b.sync = make(chan chan struct{})
	done := make(chan error)
	go func() { done <- put(l, 1) }() // ends before the test does, see below
	var release chan struct{}
	select {
	case release = <-b.sync:
	case err := <-done:
		t.Fatalf("appended without a sync: %v", err)
	}
	if n, err := l.ReadAt(make([]byte, 100), 1, headerSize); n != 100 || err != nil {
		t.Errorf("read during a sync: %d, %v", n, err)
	}
	if _, err := l.ScanSegment(1, new(seen).visit); err != nil {
		t.Errorf("scan during a sync: %v", err)
	}
	if got := l.Segments(); got[0].Last != 3 {
		t.Errorf("segments during a sync: %v", got)
	}
	if l.Last() != 4 || l.Durable() != 3 {
		t.Errorf("during a sync: last %d, durable %d", l.Last(), l.Durable())
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.sync = nil
}

// TestDropDuringRead: a read that runs ends well although its segment is dropped.
func TestDropDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMem(t)
		b := &blockingFS{FS: mem}
		l, _, _ := mustOpen(t, testConfig(b), 0)
		mustPut(t, l, 20, 20)
		b.read = make(chan chan struct{})
		done := make(chan error, 1)
		go func() { // ends when it is released
			_, err := l.ReadAt(make([]byte, 100), 1, headerSize)
			done <- err
		}()
		held := <-b.read
		release := sync.OnceFunc(func() { close(held) })
		defer release()
		synctest.Wait() // the next segment is prepared
		if n, err := l.DropBefore(l.Segments()[1].First); n != 1 || err != nil {
			t.Fatalf("dropped %d, %v", n, err)
		}
		synctest.Wait()
		open := len(mem.OpenFiles())
		release()
		if err := <-done; err != nil {
			t.Errorf("read of a segment dropped meanwhile: %v", err)
		}
		if now := len(mem.OpenFiles()); now != open-1 {
			t.Errorf("%d files open, %d before the read ended", now, open)
		}
	})
}

// TestReaders reads, scans, rolls and drops at the same time, for the race detector.
func TestReaders(t *testing.T) {
	l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
	mustPut(t, l, 3)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() { // ended by stop, waited for below
			buf := make([]byte, 300)
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, s := range l.Segments() {
					if _, err := l.ReadAt(buf, s.First, headerSize); err != nil && err != ErrSegmentGone && err != io.EOF {
						t.Error(err)
						return
					}
					damage, err := l.ScanSegment(s.First, func(e *entry.Entry, p entry.Position) error {
						if !bytes.Equal(e.Payload, payloadOf(e.Index, sizeOf(e.Index))) {
							return fmt.Errorf("entry %d has a wrong payload", e.Index)
						}
						return nil
					})
					if err != nil && err != ErrSegmentGone || len(damage) > 0 {
						t.Error(err, damage)
						return
					}
				}
			}
		})
	}
	for i := range 150 {
		mustPut(t, l, 1+i%7)
		if i%10 == 9 {
			if _, err := l.DropBefore(l.Last() - 60); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	readers.Wait()
}

// TestFileLimit: not every sealed segment stays open.
func TestFileLimit(t *testing.T) {
	mem := newMem(t)
	cfg := testConfig(mem)
	cfg.SegmentBytes = segmentBytesMin
	l, _, _ := mustOpen(t, cfg, 0)
	for len(l.Segments()) < openFilesMax+40 {
		mustPut(t, l, 5)
	}
	buf := make([]byte, 100)
	for range 2 {
		for _, s := range l.Segments() {
			if _, err := l.ReadAt(buf, s.First, headerSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(mem.OpenFiles()); n > openFilesMax+3 {
		t.Errorf("%d files are open", n)
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no file system": func(c *Config) { c.FS = nil },
		"small segment":  func(c *Config) { c.SegmentBytes = 100 },
		"large segment":  func(c *Config) { c.SegmentBytes = 1 << 40 },
		"large reserve":  func(c *Config) { c.ReserveBytes = testSegment },
		"no create":      func(c *Config) { c.Create = false },
	} {
		cfg := testConfig(newMem(t))
		change(&cfg)
		if l, _, err := Open(cfg, 0, nil); err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := Open(testConfig(newMem(t)), 7, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("a new log after a snapshot: %v", err)
	}
	mem := newMem(t)
	cfg := testConfig(mem)
	cfg.Create = false
	if _, _, err := Open(cfg, 0, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty folder: %v", err)
	}
	if names, _ := mem.List("log"); len(names) > 0 {
		t.Errorf("files were made: %v", names)
	}
}

func TestClosed(t *testing.T) {
	l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
	mustPut(t, l, 1)
	l.Close()
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := put(l, 1); err != ErrClosed {
		t.Errorf("append: %v", err)
	}
	if _, err := l.ReadAt(nil, 1, 0); err != ErrClosed {
		t.Errorf("read: %v", err)
	}
	if _, err := l.DropBefore(1); err != ErrClosed {
		t.Errorf("drop: %v", err)
	}
}

// TestObserver: the figures arrive, and a prepared file is used again by the next process.
func TestObserver(t *testing.T) {
	mem := newMem(t)
	var mu sync.Mutex
	var synced, rolled, prepared int
	cfg := testConfig(mem)
	cfg.Observer = Observer{
		Synced:   func(_ time.Duration, bytes int) { synced += bytes },
		Rolled:   func() { rolled++ },
		Prepared: func(time.Duration) { mu.Lock(); prepared++; mu.Unlock() },
	}
	l, _, _ := mustOpen(t, cfg, 0)
	mustPut(t, l, 20, 20)
	if want := 0; synced <= want || rolled != 2 {
		t.Errorf("synced %d bytes, rolled %d times", synced, rolled)
	}
	waitFor(t, "the third segment is prepared", func() bool { mu.Lock(); defer mu.Unlock(); return prepared == 3 })
	l.Close()

	creates := 0
	mem.OnOp(func(op memfs.Op) {
		if op.Kind == "create" {
			creates++
		}
	})
	l, _, _ = mustOpen(t, cfg, 0)
	mustPut(t, l, 20)
	l.Close()
	mem.OnOp(nil)
	if creates > 2 { // the file after the one that was ready, once it is done and once begun
		t.Errorf("%d files created", creates)
	}
}

// TestProgress: Open tells how far it is.
func TestProgress(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 20, 20, 20)
	n := len(l.Segments())
	l.Close()
	cfg := testConfig(mem)
	var last, total int64
	calls := 0
	cfg.Progress = func(done, of int64) {
		if done <= last || done > of {
			t.Errorf("progress %d of %d after %d", done, of, last)
		}
		last, total = done, of
		calls++
	}
	mustOpen(t, cfg, 0)
	if calls != n || last != total || total != int64(n)*testSegment {
		t.Errorf("%d calls, %d of %d bytes", calls, last, total)
	}
}

// newManual returns a clock that stands still.
func newManual() *clock.Manual { return clock.NewManual(time.UnixMilli(testTime)) }
