package wal

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// used returns how many bytes of the disk are in use.
func used(t testing.TB, mem *memfs.FS) int64 {
	t.Helper()
	u, err := mem.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u.TotalBytes - u.FreeBytes
}

// fillUp appends until the log has no room, and returns the last index.
func fillUp(t *testing.T, l *Log) entry.Index {
	t.Helper()
	for range 10000 {
		err := put(l, 1)
		if errors.Is(err, ErrFull) {
			return l.Last()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the disk never got full")
	return 0
}

// TestFull: on a full disk appends answer ErrFull and change nothing, small facts can use the reserve, and
// everything goes on when there is room. A restart in between finds all that was acknowledged.
func TestFull(t *testing.T) {
	mem := newMem(t)
	manual := newManual()
	cfg := testConfig(mem)
	cfg.Clock = manual
	l, _, _ := mustOpen(t, cfg, 0)
	mustPut(t, l, 3)
	waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
	mem.SetCapacity(used(t, mem) + testSegment/2) // not enough for another one
	if l.Full() {
		t.Error("full although a segment is ready")
	}
	last := fillUp(t, l)
	if len(l.Segments()) != 2 {
		t.Errorf("segments %v", l.Segments())
	}
	if names, _ := mem.List("log"); len(names) != 2 {
		t.Errorf("something partial is left: %v", names)
	}
	if l.Err() != nil || l.Last() != last || l.Durable() != last {
		t.Errorf("after ErrFull: %v, last %d, durable %d", l.Err(), l.Last(), l.Durable())
	}
	if left := l.room.Load(); left < l.cfg.ReserveBytes {
		t.Errorf("%d bytes are left, the reserve is %d", left, l.cfg.ReserveBytes)
	}

	// The reserve works, to its end.
	var f Frames
	reserved := 0
	for ; ; reserved++ {
		gather(&f, l.Last()+1, 1)
		f.Reserve = true
		if _, err := l.Append(&f, 1, l.Durable()); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if reserved < 2 || !l.Full() {
		t.Errorf("%d entries went into the reserve, full %t", reserved, l.Full())
	}

	// Restart with nothing free at all.
	last = l.Last()
	l.Close()
	mem.SetCapacity(used(t, mem))
	l, r, saw := mustOpen(t, cfg, 0)
	if l.Last() != last || r.Torn != nil || saw.checkDense(1) != nil {
		t.Errorf("after a restart: %+v", r)
	}
	if err := put(l, 1); !errors.Is(err, ErrFull) {
		t.Errorf("append: %v", err)
	}

	// Room appears: it is noticed after Retry.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := manual.WaitTimers(ctx, 1); err != nil {
		t.Fatal(err)
	}
	mem.SetCapacity(used(t, mem) + 2*testSegment) // the reserve was used up, so one is kept back
	manual.Advance(cfg.Retry + defaultRetry)
	waitFor(t, "room is noticed", func() bool { return l.prep.current() == prepareReady })
	manual.Advance(cfg.Retry + defaultRetry)
	if l.Full() {
		t.Error("still full")
	}
	mustPut(t, l, 1)
	if l.Last() != last+1 {
		t.Errorf("last %d, want %d", l.Last(), last+1)
	}
	fillUp(t, l)

	// Dropping a segment makes room, without waiting for Retry.
	if n, err := l.DropBefore(l.Segments()[1].First); n != 1 || err != nil {
		t.Fatalf("dropped %d, %v", n, err)
	}
	waitFor(t, "room is noticed", func() bool { return !l.prep.isFull() })
	mustPut(t, l, 1)
}

// TestFullCreate: a log that cannot be created for want of room says so.
func TestFullCreate(t *testing.T) {
	mem := newMem(t)
	mem.SetCapacity(100)
	if _, _, err := Open(testConfig(mem), 0, nil); !errors.Is(err, ErrFull) {
		t.Errorf("open: %v", err)
	}
	mem.SetCapacity(1 << 20)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 1)
}

// TestFullLargeBatch: a batch that needs a segment of its own and finds no room for it leaves the log as it was.
func TestFullLargeBatch(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 3)
	waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
	mem.SetCapacity(used(t, mem) + 3*testSegment)
	if err := put(l, 300); !errors.Is(err, ErrFull) {
		t.Fatalf("append: %v", err)
	}
	for range 20 {
		mustPut(t, l, 3)
	}
	if n := len(l.Segments()); n < 2 {
		t.Errorf("%d segments", n)
	}
}

// TestFullShortWrite: on a file system that copies on write, even a write into a prepared segment can find
// the disk full. What it wrote is taken back before ErrFull is answered: a crash cannot bring it back.
func TestFullShortWrite(t *testing.T) {
	for _, short := range []int{0, 1, 100, 600, 1500} {
		mem := newMem(t)
		faults := faultfs.New(mem)
		l, _, _ := mustOpen(t, testConfig(faults), 0)
		mustPut(t, l, 3)
		waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
		faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Err: syscall.ENOSPC, Short: short})
		if err := put(l, 6); !errors.Is(err, ErrFull) || errors.Is(err, ErrFailed) {
			t.Fatalf("short write: %v", err)
		}
		if l.Last() != 3 || l.Err() != nil {
			t.Fatalf("last %d, err %v", l.Last(), l.Err())
		}
		for crash := range mem.CrashStates(1, 50) {
			c, r, saw := mustOpen(t, testConfig(crash.FS), 0)
			if c.Last() != 3 || r.Torn != nil || saw.checkDense(1) != nil {
				t.Errorf("after %d bytes: %+v after a power cut\n%v", short, r, crash)
			}
			c.Close()
		}
		mustPut(t, l, 2)
		l.Close()
		l, r, saw := mustOpen(t, testConfig(mem), 0)
		if l.Last() != 5 || r.Torn != nil || saw.checkDense(1) != nil {
			t.Errorf("after %d bytes: %+v", short, r)
		}
	}
}

// TestFullTwice: a short write that cannot be taken back is final.
func TestFullTwice(t *testing.T) {
	faults := faultfs.New(newMem(t))
	l, _, _ := mustOpen(t, testConfig(faults), 0)
	mustPut(t, l, 3)
	waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
	faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Err: syscall.ENOSPC, Short: 100, Always: true})
	if err := put(l, 6); !errors.Is(err, ErrFailed) || errors.Is(err, ErrFull) {
		t.Errorf("append: %v", err)
	}
	if l.Err() == nil {
		t.Error("no sticky error")
	}
}

// TestFullPartial: when the disk gets full in the middle of preparing a segment, the part is removed.
func TestFullPartial(t *testing.T) {
	mem := newMem(t)
	faults := faultfs.New(mem)
	cfg := testConfig(faults)
	cfg.Clock = newManual()
	l, _, _ := mustOpen(t, cfg, 0)
	waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
	l.Close()
	l, _, _ = mustOpen(t, cfg, 0)
	full := faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/prepare.tmp",
		Err: syscall.ENOSPC, Short: 1000, Always: true})
	mustPut(t, l, 20, 20) // rolls
	waitFor(t, "the disk is full", l.prep.isFull)
	if len(full.Hits()) == 0 {
		t.Error("no write failed")
	}
	if names, _ := mem.List("log"); len(names) != 2 {
		t.Errorf("something partial is left: %v", names)
	}
}

// TestFullKeepsASegment: whoever fills the disk, and whenever, so much is kept back once publishes are refused that the oldest
// segment can be moved behind the end, with some to spare for small facts.
func TestFullKeepsASegment(t *testing.T) {
	for name, spare := range map[string]int64{"the log": 3*testSegment + testSegment/2, "others": -1} {
		t.Run(name, func(t *testing.T) {
			for used0 := 1; used0 < 12; used0++ { // of the active segment, when others fill the disk
				mem := newMem(t)
				manual := newManual()
				cfg := testConfig(mem)
				cfg.Clock = manual
				l, _, _ := mustOpen(t, cfg, 0)
				for len(l.Segments()) < 3 {
					mustPut(t, l, 1)
				}
				mustPut(t, l, used0)
				waitFor(t, "the next segment is ready", func() bool { return l.prep.current() == prepareReady })
				mem.SetCapacity(used(t, mem) + max(0, spare))
				manual.Advance(cfg.Retry + defaultRetry)
				fillUp(t, l)
				if !l.Full() {
					t.Errorf("%d: it is not full", used0)
				}
				room, took := l.Room(), int64(0)
				if room < testSegment-headerSize {
					t.Errorf("%d: room for %d bytes, a segment has %d", used0, room, testSegment)
				}
				var f Frames
				for took < testSegment-headerSize {
					gather(&f, l.Last()+1, 1)
					f.Reserve = true
					if _, err := l.Append(&f, 1, l.Durable()); err != nil {
						t.Fatalf("%d: %d bytes went into the reserve: %v", used0, took, err)
					}
					took += int64(f.Bytes())
				}
				l.Close()
			}
		})
	}
}
