package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/logfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

// faultMax is the highest k for which the k-th operation of a kind fails.
func faultMax() int {
	if invariant.Enabled {
		return 30
	}
	return 200
}

// TestErrors lets the k-th operation of each kind fail in a scripted run. After that the log acknowledges
// nothing and syncs nothing, and a new process finds what was acknowledged before, with and without a power
// cut.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault faultfs.Fault
	}{
		{"write", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Err: syscall.EIO}},
		{"write short", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Err: syscall.EIO, Short: 300}},
		{"write done", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Err: syscall.EIO, Short: 1 << 30}},
		{"sync", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, Err: syscall.EIO}},
		{"sync full", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, Err: syscall.ENOSPC}},
		{"create", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Create}, Err: syscall.EIO}},
		{"rename", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Rename}, Err: syscall.EIO}},
		{"rename done", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Rename}, Err: syscall.EIO, Done: true}},
		{"remove", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Remove}, Err: syscall.EIO}},
		{"syncdir", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.SyncDir}, Err: syscall.EIO}},
		{"mkdir", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Mkdir}, Err: syscall.EIO}},
		{"open, size, list", faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Open, faultfs.Size, faultfs.List}, Err: syscall.EMFILE}},
	} {
		t.Run(c.name, func(t *testing.T) {
			hits := 0
			for k := 1; k <= faultMax(); k++ {
				c.fault.At = k
				if !errorRun(t, c.fault) {
					break // the run has fewer such operations
				}
				hits++
			}
			report.Count(t, "operations that fail", int64(hits))
			t.Logf("%d faults", hits)
			if hits == 0 {
				t.Error("the fault never hit")
			}
		})
	}
}

// errorRun runs the script with one fault, and reports whether it hit.
func errorRun(t *testing.T, fault faultfs.Fault) bool {
	t.Helper()
	l := &life{mem: memfs.New()}
	faults := faultfs.New(l.mem)
	injected := faults.Inject(fault)
	l.afterError = func(log *Log) {
		if log.Err() == nil {
			return // nothing was at stake: a file could not be removed
		}
		log.prep.stop() // its last sync may have been under way when the log failed
		syncs, durable := faults.Count(faultfs.Sync, faultfs.SyncDir), log.Durable()
		if err := put(log, 1); !errors.Is(err, ErrFailed) {
			t.Errorf("k %d: append after a failure: %v", fault.At, err)
		}
		if err := log.Sync(); !errors.Is(err, ErrFailed) || !errors.Is(err, fault.Err) {
			t.Errorf("k %d: sync after a failure: %v", fault.At, err)
		}
		if _, err := log.DropBefore(1 << 60); !errors.Is(err, ErrFailed) {
			t.Errorf("k %d: drop after a failure: %v", fault.At, err)
		}
		if n := faults.Count(faultfs.Sync, faultfs.SyncDir); n != syncs || log.Durable() != durable {
			t.Errorf("k %d: %d syncs after a failure, durable %d and then %d", fault.At, n-syncs, durable, log.Durable())
		}
	}
	cfg := testConfig(faults)
	cfg.SegmentBytes = segmentBytesMin
	err := l.script(cfg, 8)
	if len(injected.Hits()) == 0 {
		return false
	}
	what := fmt.Sprintf("k %d, %v, %v", fault.At, injected.Hits(), err)
	p := &point{mem: l.mem, acked: entry.Index(l.acked.Load()), written: entry.Index(l.written.Load()), dropped: entry.Index(l.dropped.Load())}
	rng := rand.New(rand.NewPCG(2, uint64(fault.At)))
	if err := p.check(l.mem.Clone(), rng, 0); err != nil {
		t.Errorf("%s: restart: %v", what, err)
	}
	for crash := range l.mem.CrashStates(uint64(fault.At), 4) {
		if err := p.check(crash.FS, rng, 0); err != nil {
			t.Fatalf("%s: power cut: %v\n%v", what, err, crash)
		}
	}
	return true
}

// TestFailedSyncIsFinal: a sync that failed once, of however many, is told, makes nothing durable, and is the last one.
func TestFailedSyncIsFinal(t *testing.T) {
	for _, failure := range []error{syscall.EIO, syscall.ENOSPC} {
		faults := faultfs.New(memfs.New())
		l, _, _ := mustOpen(t, testConfig(faults), 0)
		mustPut(t, l, 2)
		waitFor(t, "a segment is ready", func() bool { return l.prep.current() == prepareReady }) // so that nobody else syncs
		durable := l.Durable()
		faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, Err: failure})
		if err := put(l, 1); !errors.Is(err, ErrFailed) || !errors.Is(err, failure) {
			t.Errorf("%v: the sync returned %v", failure, err)
		}
		if l.Durable() != durable || !errors.Is(l.Err(), ErrFailed) {
			t.Errorf("%v: durable up to entry %d, before %d, and the log says %v", failure, l.Durable(), durable, l.Err())
		}
		syncs := faults.Count(faultfs.Sync, faultfs.SyncDir)
		if err := l.Sync(); !errors.Is(err, ErrFailed) {
			t.Errorf("%v: the next sync returned %v", failure, err)
		}
		if err := put(l, 1); !errors.Is(err, ErrFailed) {
			t.Errorf("%v: the next append returned %v", failure, err)
		}
		if n := faults.Count(faultfs.Sync, faultfs.SyncDir); n != syncs {
			t.Errorf("%v: %d syncs after the one that failed", failure, n-syncs)
		}
		l.Close()
	}
}

// TestNoSpaceAnywhere lets the k-th write or create find the disk full, once. The log goes on, and nothing of
// what was refused is seen, also after a power cut.
func TestNoSpaceAnywhere(t *testing.T) {
	for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Create} {
		for k := 1; k <= faultMax(); k++ {
			l := &life{mem: memfs.New(), patient: true}
			faults := faultfs.New(l.mem)
			injected := faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.ENOSPC, Short: 300})
			cfg := testConfig(faults)
			cfg.SegmentBytes = segmentBytesMin
			cfg.Retry = time.Millisecond
			if err := l.script(cfg, 8); err != nil {
				t.Fatalf("%s %d, %v: %v", kind, k, injected.Hits(), err)
			}
			if len(injected.Hits()) == 0 {
				break
			}
			p := &point{acked: entry.Index(l.acked.Load()), written: entry.Index(l.written.Load()), dropped: entry.Index(l.dropped.Load())}
			rng := rand.New(rand.NewPCG(3, uint64(k)))
			for crash := range l.mem.CrashStates(uint64(k), 5) {
				if err := p.check(crash.FS, rng, 0); err != nil {
					t.Fatalf("%s %d, %v: %v\n%v", kind, k, injected.Hits(), err, crash)
				}
			}
		}
	}
}

// lines collects what logfs writes, in two parts: the preparer works beside the writer.
type lines struct {
	mu                sync.Mutex
	writer, preparing strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(string(p), preparingName) {
		return l.preparing.Write(p)
	}
	return l.writer.Write(p)
}

// TestOrder compares the order of writes, syncs and renamings with a golden file. A sync that got lost shows
// up there.
func TestOrder(t *testing.T) {
	out := new(lines)
	mem := memfs.New()
	cfg := testConfig(logfs.New(mem, out))
	var text strings.Builder
	section := func(name string) {
		out.mu.Lock()
		defer out.mu.Unlock()
		fmt.Fprintf(&text, "# %s\n%s", name, out.writer.String())
		if out.preparing.Len() > 0 {
			fmt.Fprintf(&text, "beside it:\n%s", out.preparing.String())
		}
		text.WriteString("\n")
		out.writer.Reset()
		out.preparing.Reset()
	}
	var l *Log
	ready := func() {
		t.Helper()
		waitFor(t, "a segment is ready", func() bool { return l.prep.current() == prepareReady })
	}
	l, _, _ = mustOpen(t, cfg, 0)
	ready()
	section("create")
	mustPut(t, l, 2)
	section("append")
	for len(l.Segments()) == 1 {
		out.writer.Reset()
		mustPut(t, l, 10)
		ready()
	}
	section("append that needs a new segment")
	var f Frames
	gather(&f, l.Last()+1, 2)
	if _, err := l.Append(&f, 1, l.Durable()); err != nil {
		t.Fatal(err)
	}
	for len(l.Segments()) == 2 {
		gather(&f, l.Last()+1, 10)
		if _, err := l.Append(&f, 1, l.Durable()); err != nil {
			t.Fatal(err)
		}
	}
	ready()
	section("append that needs a new segment, after others that were not synced")
	mustPut(t, l, 1)
	section("sync")
	if _, err := l.DropBefore(l.Last()); err != nil {
		t.Fatal(err)
	}
	section("drop two segments")
	at := new(seen)
	if _, err := l.ScanSegment(l.Segments()[0].First, at.visit); err != nil {
		t.Fatal(err)
	}
	first := l.Segments()[0].First
	gather(&f, l.Last()+1, 4)
	if _, err := l.Append(&f, 1, l.Durable()); err != nil {
		t.Fatal(err)
	}
	torn := f.Position(2)
	l.Close()
	section("append that is not synced, close")
	file, err := mem.Open(segmentPath(first))
	if err != nil {
		t.Fatal(err)
	}
	if err := zeroRange(file, torn.Offset, torn.Offset+500); err != nil {
		t.Fatal(err)
	}
	file.Close()
	l, r, _ := mustOpen(t, cfg, first-1)
	if r.Torn == nil || l.Last() != r.Torn.Index-1 {
		t.Errorf("recovered %+v", r)
	}
	ready()
	section("open after a crash: write the unproven frames again, cut the torn one")
	goldenText(t, "order.txt", text.String())
}
