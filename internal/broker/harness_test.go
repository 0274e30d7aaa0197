package broker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/standalone"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

var testStart = time.UnixMilli(1_700_000_000_000)

// rig is a broker on a log in memory.
type rig struct {
	t     *testing.T
	fs    vfs.FS
	mem   *memfs.FS
	clock *clock.Manual
	log   *wal.Log
	// segmentBytes is the size of segments, and reads, if not nil, stands between the broker and the log.
	segmentBytes int64
	reads        func(Log) Log
	ticks        func(*clock.Manual) clock.Clock // likewise, between the broker and the clock
	hooked       *hookedLog                      // what reads made, in a keptRig
	idle         time.Duration                   // before a marker is written; 0 for the default
	*Broker
}

// newRig makes a broker with a role that wrap makes of the log; nil for the standalone role.
func newRig(t *testing.T, wrap func(*rig) replication.Role) *rig {
	t.Helper()
	r := &rig{t: t, segmentBytes: 1 << 20}
	r.create(wrap)
	return r
}

// create makes the log and the broker of a rig that has its settings.
func (r *rig) create(wrap func(*rig) replication.Role) {
	r.t.Helper()
	r.mem = memfs.New()
	r.fs, r.clock = r.mem, clock.NewManual(testStart)
	if err := r.mem.Mkdir("log"); err != nil {
		r.t.Fatal(err)
	}
	r.open(true, wrap)
}

func (r *rig) open(create bool, wrap func(*rig) replication.Role) {
	r.t.Helper()
	fold := state.New()
	x := index.New(index.Config{FS: r.fs, LogID: entry.LogID{1}})
	log, _, err := wal.Open(wal.Config{FS: r.fs, Clock: r.clock, LogID: entry.LogID{1}, Create: create, SegmentBytes: r.segmentBytes}, 0,
		func(e *entry.Entry, p entry.Position) error {
			s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
			if err != nil {
				return err
			}
			if ok {
				x.Add(string(s.Topic), s.Base, s.Count, p)
			}
			_, err = fold.Apply(e)
			return err
		})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = log
	var reads Log = log
	if r.reads != nil {
		reads = r.reads(log)
	}
	var ticks clock.Clock = r.clock
	if r.ticks != nil {
		ticks = r.ticks(r.clock)
	}
	r.Broker = New(Config{Log: reads, State: fold, Index: x, Clock: ticks, Window: time.Hour, IdleMarker: r.idle})
	var role replication.Role
	if wrap != nil {
		role = wrap(r)
	} else {
		role = standalone.New(log, entry.StandaloneTerm, r.Broker)
	}
	if err := r.Start(role); err != nil {
		r.t.Fatal(err)
	}
	b := r.Broker
	r.t.Cleanup(func() {
		b.Close()
		log.Close()
	})
}

// reopen closes the broker and opens another one on the same files.
func (r *rig) reopen() {
	r.t.Helper()
	r.Broker.Close()
	if err := r.log.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open(false, nil)
}

func publishOf(topic, id string, values ...string) *Publish {
	p := &Publish{Topic: []byte(topic), RequestID: []byte(id)}
	for _, v := range values {
		p.Records = append(p.Records, fact.Record{Key: []byte("k"), Value: []byte(v)})
	}
	return p
}

func (r *rig) publish(topic, id string, values ...string) Published {
	r.t.Helper()
	done, err := r.Publish(publishOf(topic, id, values...))
	if err != nil {
		r.t.Fatalf("publish %q: %v", values, err)
	}
	return done
}

// list collects records as "offset:value".
type list struct {
	mu      sync.Mutex
	records []string
}

func (l *list) Record(offset fact.Offset, _, value []byte, _ int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, fmt.Sprintf("%d:%s", offset, value))
}

func (r *rig) fetch(topic string, from fact.Offset, limit int) ([]string, Page) {
	r.t.Helper()
	var l list
	page, err := r.Fetch(&Fetch{Topic: []byte(topic), Offset: from, Limit: limit}, &l)
	if err != nil {
		r.t.Fatalf("fetch %s from %d: %v", topic, from, err)
	}
	return l.records, page
}

// heldRole commits only when it is told to, as a role does that waits for others.
type heldRole struct {
	log     *wal.Log
	applier replication.Applier
	late    bool        // Start does not lead
	unsure  atomic.Bool // MayAnswer says no

	proposed chan entry.Index // receives the last index of each proposal

	mu  sync.Mutex // guards the field below
	err error      // of every Propose
}

func newHeldRole(r *rig) *heldRole {
	return &heldRole{log: r.log, applier: r.Broker, proposed: make(chan entry.Index, 1000)}
}

// newHeldRig makes a broker that leads with a heldRole, and has recorded its settings as entry 1.
func newHeldRig(t *testing.T, wrap func(*heldRole) replication.Role) (*rig, *heldRole) {
	t.Helper()
	var role *heldRole
	r := newRig(t, func(r *rig) replication.Role {
		role = newHeldRole(r)
		go func() { r.Committed(<-role.proposed) }() // the settings, which Start waits for
		if wrap != nil {
			return wrap(role)
		}
		return role
	})
	t.Cleanup(func() { role.away("the test is over") }) // or the last marker waits for ever
	return r, role
}

func (h *heldRole) Start() error {
	if !h.late {
		h.applier.Lead()
	}
	return nil
}

func (h *heldRole) MayAnswer() bool { return !h.unsure.Load() }

func (h *heldRole) Confirm(context.Context) error { return nil }

// away makes every Propose answer that the role is unavailable; an empty reason ends that.
func (h *heldRole) away(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = nil
	if reason != "" {
		h.err = &replication.UnavailableError{Reason: reason}
	}
}

func (h *heldRole) Propose(f *wal.Frames) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	first, err := h.log.Append(f, 1, 0)
	if err != nil {
		return err
	}
	if err := h.log.Sync(); err != nil {
		return err
	}
	h.proposed <- first + entry.Index(f.Len()) - 1
	return nil
}

func (h *heldRole) Status() replication.Status { return replication.Status{Term: 1} }
func (h *heldRole) Close() error               { return nil }

// next waits for a proposal and returns its last index.
func (h *heldRole) next(t *testing.T) entry.Index {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case i := <-h.proposed:
		return i
	case <-ctx.Done():
		t.Fatal("nothing was proposed")
		return 0
	}
}

func newStandalone(r *rig) replication.Role {
	return standalone.New(r.log, entry.StandaloneTerm, r.Broker)
}

// outcome is how a write ended.
type outcome struct {
	done Published
	err  error
}

// start publishes in another goroutine.
func (r *rig) start(p *Publish) chan outcome {
	c := make(chan outcome, 1)
	go func() {
		done, err := r.Publish(p)
		c <- outcome{done, err}
	}()
	return c
}

// startGroup commits a group offset in another goroutine.
func (r *rig) startGroup(topic, group string, next fact.Offset) chan outcome {
	c := make(chan outcome, 1)
	go func() {
		_, err := r.CommitGroup([]byte(topic), []byte(group), next)
		c <- outcome{err: err}
	}()
	return c
}

// queued waits until so many ops wait to be decided.
func (r *rig) queued(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		r.Broker.mu.Lock()
		got := len(r.queue)
		r.Broker.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%d ops are queued, want %d", got, n)
		}
	}
}

// answer waits for the outcome of a write.
func answer(t *testing.T, c chan outcome) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case o := <-c:
		return o
	case <-ctx.Done():
		t.Fatal("no answer")
		return outcome{}
	}
}

// wantUnavailable checks that an error says so, with a reason, and whether the outcome is unknown.
func wantUnavailable(t *testing.T, err error, reason string, unknown bool) {
	t.Helper()
	var un *UnavailableError
	if !errors.As(err, &un) || un.Reason != reason || un.Unknown != unknown {
		t.Fatalf("got %v, want %q, unknown: %v", err, reason, unknown)
	}
}

// wantDone checks that a write was done.
func wantDone(t *testing.T, o outcome, want Published) {
	t.Helper()
	if o.err != nil || o.done != want {
		t.Fatalf("got %+v, want %+v", o, want)
	}
}
