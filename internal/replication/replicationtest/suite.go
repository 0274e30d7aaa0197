// Package replicationtest is the suite that every role passes: what package broker relies on, whatever a role
// calls committed.
package replicationtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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

// applier notes what the role reports, and what it must not do.
type applier struct {
	log *wal.Log

	mu        sync.Mutex // guards the fields below
	inCall    bool       // one of the calls that come one at a time runs
	leads     bool
	applied   entry.Index // last entry handed to Apply
	committed []entry.Index
	suspended string // reason of the last Suspend or Follow
	follows   int
	failed    error
	wrong     []string      // rules that were broken
	changed   chan struct{} // capacity 1
}

// call runs one of the calls that come one at a time.
func (a *applier) call(note func()) {
	a.mu.Lock()
	if a.inCall {
		a.wrong = append(a.wrong, "two calls at a time")
	}
	a.inCall = true
	a.mu.Unlock()
	runtime.Gosched() // for another call to show
	a.mu.Lock()
	note()
	a.inCall = false
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *applier) Committed(last entry.Index) {
	appended := a.log.Last()
	a.call(func() {
		if n := len(a.committed); n > 0 && last <= a.committed[n-1] {
			a.wrong = append(a.wrong, fmt.Sprintf("committed %d after %d", last, a.committed[n-1]))
		}
		if !a.leads || last <= a.applied || last > appended {
			a.wrong = append(a.wrong, fmt.Sprintf("committed %d of %d, leading: %v, applied: %d", last, appended, a.leads, a.applied))
		}
		a.committed = append(a.committed, last)
	})
}

func (a *applier) Apply(f *wal.Frames) error {
	a.call(func() {
		for i := range f.Len() {
			e := f.Entry(i)
			after := a.told()
			if a.leads || after != 0 && e.Index != after+1 {
				a.wrong = append(a.wrong, fmt.Sprintf("apply %d after %d, leading: %v", e.Index, after, a.leads))
			}
			a.applied = e.Index
		}
	})
	return nil
}

func (a *applier) Lead() {
	appended := a.log.Last()
	a.call(func() {
		if told := a.told(); !a.leads && told != 0 && told != appended {
			a.wrong = append(a.wrong, fmt.Sprintf("lead with entry %d applied of %d", told, appended))
		}
		a.leads = true
	})
}

// told returns the last entry that was reported in one way or the other. Called with mu held.
func (a *applier) told() entry.Index {
	if n := len(a.committed); n > 0 {
		return max(a.applied, a.committed[n-1])
	}
	return a.applied
}

func (a *applier) Suspend(reason string) { a.call(func() { a.suspended = reason }) }

func (a *applier) Follow(reason string) {
	a.call(func() {
		if !a.leads || reason == "" {
			a.wrong = append(a.wrong, fmt.Sprintf("follow for %q, leading: %v", reason, a.leads))
		}
		a.leads, a.suspended = false, reason
		a.follows++
	})
}

func (a *applier) Failed(err error) {
	a.mu.Lock()
	a.failed = err
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *applier) last() entry.Index {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.committed) == 0 {
		return 0
	}
	return a.committed[len(a.committed)-1]
}

// await waits until done, which is called with the mutex held, says so.
func (a *applier) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		a.mu.Lock()
		ok, committed, suspended, failed := done(), len(a.committed), a.suspended, a.failed
		a.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			t.Fatalf("%s: not within 10 s; %d calls of Committed, suspended for %q, failed: %v", what, committed, suspended, failed)
		}
	}
}

// awaitCommitted waits until an index is committed.
func (a *applier) awaitCommitted(t *testing.T, index entry.Index) {
	t.Helper()
	a.await(t, fmt.Sprintf("entry %d committed", index), func() bool {
		return len(a.committed) > 0 && a.committed[len(a.committed)-1] >= index
	})
}

// rig is a role on a log in memory.
type rig struct {
	mem  *memfs.FS
	disk *faultfs.FS
	log  *wal.Log
	*applier
	replication.Role
	base entry.Index // the last entry when the role began to lead: it may have added one of its own
}

// newRig makes a role, not started, on a log of some entries.
func newRig(t *testing.T, makeRole Make, entries int) *rig {
	t.Helper()
	mem := memfs.New()
	r := &rig{mem: mem, disk: faultfs.New(mem)}
	log, _, err := wal.Open(wal.Config{FS: r.disk, Clock: clock.NewManual(time.UnixMilli(1)), LogID: LogID, Create: true,
		SegmentBytes: 64 << 10}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if entries > 0 {
		if _, err := log.Append(frames("before", entries), 1, 0); err != nil {
			t.Fatal(err)
		}
		if err := log.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	r.log = log
	r.applier = &applier{log: log, changed: make(chan struct{}, 1)}
	r.Role = makeRole(t, log, r.applier)
	t.Cleanup(func() {
		if err := r.Role.Close(); err != nil {
			t.Error(err)
		}
		log.Close()
		r.applier.mu.Lock()
		defer r.applier.mu.Unlock()
		for _, w := range r.wrong {
			t.Error(w)
		}
	})
	return r
}

// start makes a role on an empty log and waits until it leads.
func start(t *testing.T, makeRole Make) *rig {
	t.Helper()
	r := newRig(t, makeRole, 0)
	r.start(t)
	return r
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	r.await(t, "leading", func() bool { return r.leads })
	r.base = r.log.Last()
}

// frames returns n entries with payloads that begin with a name.
func frames(name string, n int) *wal.Frames {
	f := new(wal.Frames)
	fill(f, name, n)
	return f
}

func fill(f *wal.Frames, name string, n int) {
	f.Reset()
	for i := range n {
		f.End(fmt.Appendf(f.Begin(fact.KindMarker, 1), "%s-%d", name, i))
	}
}

func (r *rig) propose(n int) error { return r.Propose(frames("entry", n)) }

// Propose is that of the role, by one who decides on what is applied.
func (r *rig) Propose(f *wal.Frames) error {
	resume(r.Role)
	return r.Role.Propose(f)
}

// resume tells a role whose lead comes and goes that the applier has begun anew. If it refuses, so does Propose.
func resume(role replication.Role) {
	if r, ok := role.(interface{ Resume() error }); ok {
		_ = r.Resume()
	}
}

// LogID is the identity of the log that a role gets from Run.
var LogID = entry.LogID{1}

// Make returns the role under test, not started, on a log that has the identity LogID, reporting to an applier. All
// that is in the log is durable. What else the role needs, a second node for example, Make makes itself.
type Make func(t *testing.T, log *wal.Log, applier replication.Applier) replication.Role

// Run runs the suite. The role must be able to commit: a Suspend that lasts makes it fail.
func Run(t *testing.T, makeRole Make) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Make)
	}{
		{"NothingBeforeLead", nothingBeforeLead},
		{"CommitsInOrder", commitsInOrder},
		{"ManyInFlight", manyInFlight},
		{"GoesOnBehindWhatIsThere", goesOn},
		{"CommittedIsDurable", committedIsDurable},
		{"FoldsAreEqual", foldsAreEqual},
		{"MayAnswerWhileHealthy", mayAnswer},
		{"ConfirmsWhileHealthy", confirms},
		{"FailureIsFinal", failureIsFinal},
		{"FullIsNotFinal", fullIsNotFinal},
		{"Close", closes},
		{"CloseWhileProposing", closeWhileProposing},
		{"CloseWithoutStart", closeWithoutStart},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, makeRole) })
	}
}

func nothingBeforeLead(t *testing.T, makeRole Make) {
	r := newRig(t, makeRole, 0)
	err := r.propose(1)
	var unavailable *replication.UnavailableError
	if !errors.Is(err, replication.ErrUnavailable) || !errors.As(err, &unavailable) || unavailable.Reason == "" {
		t.Fatalf("got %v", err)
	}
	if r.log.Last() != 0 {
		t.Fatal("something was appended")
	}
	r.start(t)
	if err := r.propose(1); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+1)
}

func commitsInOrder(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	want := r.base
	for n := 1; n < 20; n++ {
		if err := r.propose(n); err != nil {
			t.Fatal(err)
		}
		want += entry.Index(n)
	}
	r.awaitCommitted(t, want) // the applier checks the order
	if got := r.Status(); got.Committed != want || got.Err != nil || got.Term == 0 {
		t.Fatalf("status %+v, want %d committed", got, want)
	}
}

// What is in flight is not waited for, frames are used again as soon as they are committed, and the log holds what
// was proposed, in that order, over several segments.
func manyInFlight(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	const proposals, entries = 200, 20
	type flying struct {
		f    *wal.Frames
		last entry.Index
	}
	var flight []flying
	var want []string
	for n := range proposals {
		f := new(wal.Frames)
		if len(flight) > 0 && flight[0].last <= r.last() {
			f = flight[0].f
			flight = flight[1:]
		}
		fill(f, fmt.Sprint(n), entries)
		for i := range f.Len() {
			want = append(want, string(f.Payload(i)))
		}
		if err := r.Propose(f); err != nil {
			t.Fatal(err)
		}
		flight = append(flight, flying{f, r.base + entry.Index(len(want))})
	}
	r.awaitCommitted(t, r.base+proposals*entries)
	var got []string
	after := r.mem.Crash(1, 0).FS
	log, _, err := wal.Open(wal.Config{FS: after, Clock: clock.NewManual(time.UnixMilli(1)), LogID: LogID}, 0,
		func(e *entry.Entry, _ entry.Position) error {
			if e.Index > r.base {
				got = append(got, string(e.Payload))
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if !slices.Equal(got, want) {
		t.Fatalf("the log holds %d entries, and not what was proposed in %d", len(got), len(want))
	}
	if n := len(log.Segments()); n < 2 {
		t.Fatalf("%d segments: the log was meant to roll", n)
	}
}

func goesOn(t *testing.T, makeRole Make) {
	r := newRig(t, makeRole, 3)
	r.start(t)
	if got := r.Status().Committed; got != r.base || got < 3 {
		t.Fatalf("leading with %d of %d entries committed", got, r.base)
	}
	if err := r.propose(2); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+2)
}

func committedIsDurable(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	if err := r.propose(3); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+3)
	after := r.mem.Crash(1, 0).FS // nothing survives that was not synced
	log, _, err := wal.Open(wal.Config{FS: after, Clock: clock.NewManual(time.UnixMilli(1)), LogID: LogID}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if log.Last() != r.base+3 {
		t.Fatalf("%d entries survive a power cut, want %d", log.Last(), r.base+3)
	}
}

func mayAnswer(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	for n := range entry.Index(5) {
		if err := r.propose(1); err != nil {
			t.Fatal(err)
		}
		r.awaitCommitted(t, r.base+n+1)
		if !r.MayAnswer() {
			t.Fatalf("no answer may be given though %d is committed", n+1)
		}
	}
}

// Many at a time, while entries are proposed: what was committed before the call has been applied when it returns.
func confirms(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			for range 10 {
				before := r.last()
				if err := r.Confirm(ctx); err != nil {
					t.Error(err)
				}
				if got := r.last(); got < before {
					t.Errorf("confirmed with entry %d applied, and entry %d was committed before", got, before)
				}
			}
		})
	}
	for range 20 {
		if err := r.propose(1); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	r.awaitCommitted(t, r.base+20)
}

func failureIsFinal(t *testing.T, makeRole Make) {
	for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Sync} {
		r := start(t, makeRole)
		if err := r.propose(1); err != nil {
			t.Fatal(err)
		}
		r.awaitCommitted(t, r.base+1)
		r.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Name: "log/*", Err: syscall.EIO, Always: true})
		if err := r.propose(1); err == nil { // then the failure comes up later
			r.await(t, fmt.Sprintf("the failure of a %s reported", kind), func() bool { return r.failed != nil })
		}
		if err := r.propose(1); !errors.Is(err, replication.ErrFailedBefore) {
			t.Fatalf("%s: after the failure: %v", kind, err)
		}
		if r.last() != r.base+1 || r.Status().Err == nil {
			t.Fatalf("%s: committed %d, status %+v", kind, r.last(), r.Status())
		}
	}
}

func fullIsNotFinal(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	if err := r.propose(1); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+1)
	fault := r.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/*", Err: syscall.ENOSPC, Always: true})
	if err := r.propose(1); !errors.Is(err, wal.ErrFull) {
		t.Fatalf("got %v", err)
	}
	fault.Remove()
	if err := r.propose(1); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+2)
}

func closes(t *testing.T, makeRole Make) {
	r := start(t, makeRole)
	if err := r.propose(1); err != nil {
		t.Fatal(err)
	}
	r.awaitCommitted(t, r.base+1)
	for range 2 {
		if err := r.Role.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.propose(1); !errors.Is(err, replication.ErrStopped) {
			t.Fatalf("got %v", err)
		}
	}
	if r.log.Last() != r.base+1 {
		t.Fatal("something was appended after Close")
	}
}

// Close from several goroutines while another one proposes: it waits for that, and then nothing moves any more. Of
// what is in flight the applier has been told.
func closeWhileProposing(t *testing.T, makeRole Make) {
	for range 10 {
		r := start(t, makeRole)
		var wg sync.WaitGroup
		proposed := r.base // as far as Propose took it on
		var last error
		running := make(chan struct{})
		wg.Go(func() {
			for n := 0; ; n++ {
				if last = r.propose(1); last != nil {
					return
				}
				proposed++
				if n == 3 {
					close(running)
				}
			}
		})
		<-running
		r.applier.mu.Lock()
		r.suspended = "" // a role that waited for another node has said so at its start
		r.applier.mu.Unlock()
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(func() {
				if err := r.Role.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		closers.Wait()
		r.applier.mu.Lock()
		calls, told := len(r.committed), r.suspended != "" || r.failed != nil
		r.applier.mu.Unlock()
		committed, appended := r.last(), r.log.Last()
		wg.Wait()
		if !errors.Is(last, replication.ErrStopped) {
			t.Fatalf("got %v", last)
		}
		if committed < proposed && !told {
			t.Fatalf("closed with %d of %d committed, and nobody was told", committed, proposed)
		}
		r.applier.mu.Lock()
		defer r.applier.mu.Unlock()
		if r.log.Last() != appended || len(r.committed) != calls {
			t.Fatal("something was done after Close")
		}
	}
}

func closeWithoutStart(t *testing.T, makeRole Make) {
	r := newRig(t, makeRole, 0)
	if err := r.Role.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.propose(1); !errors.Is(err, replication.ErrStopped) {
		t.Fatalf("got %v", err)
	}
}
