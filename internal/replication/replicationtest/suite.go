// Package replicationtest is the suite that every role passes: what package broker relies on, whatever a role
// calls committed.
package replicationtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// applier notes what the role reports.
type applier struct {
	mu        sync.Mutex
	committed []entry.Index
	failed    error
	changed   chan struct{} // capacity 1
}

func newApplier() *applier { return &applier{changed: make(chan struct{}, 1)} }

func (a *applier) Committed(last entry.Index) {
	a.mu.Lock()
	a.committed = append(a.committed, last)
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *applier) Failed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
}

func (a *applier) last() entry.Index {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.committed) == 0 {
		return 0
	}
	return a.committed[len(a.committed)-1]
}

// await waits until an index is committed.
func (a *applier) await(t *testing.T, index entry.Index) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for a.last() < index {
		select {
		case <-a.changed:
		case <-ctx.Done():
			t.Fatalf("committed up to %d, want %d", a.last(), index)
		}
	}
}

// rig is a role on a log in memory.
type rig struct {
	mem  *memfs.FS
	disk *faultfs.FS
	log  *wal.Log
	*applier
	replication.Role
}

// Make returns the role under test, on a log, reporting to an applier. What else it needs it makes itself.
type Make func(t *testing.T, log *wal.Log, applier replication.Applier) replication.Role

// Run runs the suite.
func Run(t *testing.T, makeRole Make) {
	start := func(t *testing.T) *rig {
		mem := memfs.New()
		r := &rig{mem: mem, disk: faultfs.New(mem), applier: newApplier()}
		log, _, err := wal.Open(wal.Config{FS: r.disk, Clock: clock.NewManual(time.UnixMilli(1)), LogID: entry.LogID{1}, Create: true,
			SegmentBytes: 64 << 10}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.log = log
		r.Role = makeRole(t, log, r.applier)
		t.Cleanup(func() {
			r.Role.Close()
			log.Close()
		})
		return r
	}
	propose := func(r *rig, n int) error {
		f := new(wal.Frames)
		for i := range n {
			f.End(append(f.Begin(fact.KindMarker, 1), fmt.Sprint(i)...))
		}
		return r.Propose(f)
	}

	t.Run("CommitsInOrder", func(t *testing.T) {
		r := start(t)
		want := entry.Index(0)
		for n := 1; n < 20; n++ {
			if err := propose(r, n); err != nil {
				t.Fatal(err)
			}
			want += entry.Index(n)
		}
		r.await(t, want)
		r.applier.mu.Lock()
		defer r.applier.mu.Unlock()
		for i, index := range r.committed {
			if i > 0 && index <= r.committed[i-1] {
				t.Fatalf("not rising: %v", r.committed)
			}
		}
	})
	t.Run("CommittedIsDurable", func(t *testing.T) {
		r := start(t)
		if err := propose(r, 3); err != nil {
			t.Fatal(err)
		}
		r.await(t, 3)
		after := r.mem.Crash(1, 0).FS // nothing survives that was not synced
		log, _, err := wal.Open(wal.Config{FS: after, Clock: clock.NewManual(time.UnixMilli(1)), LogID: entry.LogID{1}}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if log.Last() != 3 {
			t.Fatalf("%d entries survive a power cut, want 3", log.Last())
		}
	})
	t.Run("FailureIsFinal", func(t *testing.T) {
		for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Sync} {
			r := start(t)
			if err := propose(r, 1); err != nil {
				t.Fatal(err)
			}
			r.await(t, 1)
			r.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Name: "log/*", Err: syscall.EIO, Always: true})
			first := propose(r, 1)
			second := propose(r, 1)
			if first == nil && r.last() > 1 {
				t.Fatalf("%s failed, and %d is committed", kind, r.last())
			}
			if !errors.Is(second, replication.ErrFailedBefore) {
				t.Fatalf("%s: after the failure: %v", kind, second)
			}
			if r.last() != 1 || r.Status().Err == nil {
				t.Fatalf("%s: committed %d, status %+v", kind, r.last(), r.Status())
			}
		}
	})
	t.Run("FullIsNotFinal", func(t *testing.T) {
		r := start(t)
		if err := propose(r, 1); err != nil {
			t.Fatal(err)
		}
		fault := r.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/*", Err: syscall.ENOSPC, Always: true})
		if err := propose(r, 1); !errors.Is(err, wal.ErrFull) {
			t.Fatalf("got %v", err)
		}
		fault.Remove()
		if err := propose(r, 1); err != nil {
			t.Fatal(err)
		}
		r.await(t, 2)
	})
	t.Run("Close", func(t *testing.T) {
		r := start(t)
		if err := propose(r, 1); err != nil {
			t.Fatal(err)
		}
		r.await(t, 1)
		if err := r.Role.Close(); err != nil {
			t.Fatal(err)
		}
		if err := propose(r, 1); !errors.Is(err, replication.ErrStopped) {
			t.Fatalf("got %v", err)
		}
		if r.log.Last() != 1 {
			t.Fatal("something was appended after Close")
		}
	})
}
