package broker

import (
	"context"
	"fmt"
	"sync"
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
	*Broker
}

// newRig makes a broker with a role that wrap makes of the log; nil for the standalone role.
func newRig(t *testing.T, wrap func(*rig) replication.Role) *rig {
	t.Helper()
	mem := memfs.New()
	r := &rig{t: t, fs: mem, mem: mem, clock: clock.NewManual(testStart)}
	if err := mem.Mkdir("log"); err != nil {
		t.Fatal(err)
	}
	r.open(true, wrap)
	return r
}

func (r *rig) open(create bool, wrap func(*rig) replication.Role) {
	r.t.Helper()
	fold := state.New()
	x := index.New(index.Config{FS: r.fs, LogID: entry.LogID{1}})
	log, _, err := wal.Open(wal.Config{FS: r.fs, Clock: r.clock, LogID: entry.LogID{1}, Create: create, SegmentBytes: 1 << 20}, 0,
		func(e *entry.Entry, p entry.Position) error {
			if e.Kind == fact.KindAppended {
				a, err := fact.DecodeAppended(e.Payload)
				if err != nil {
					return err
				}
				x.Add(string(a.Topic), a.Base, a.Count, p)
			}
			_, err := fold.Apply(e)
			return err
		})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = log
	r.Broker = New(Config{Log: log, State: fold, Index: x, Clock: r.clock, Window: time.Hour})
	var role replication.Role
	if wrap != nil {
		role = wrap(r)
	} else {
		role = standalone.New(log, r.Broker)
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

	mu       sync.Mutex
	proposed chan entry.Index // receives the last index of each proposal
	err      error
}

func newHeldRole(r *rig) *heldRole {
	return &heldRole{log: r.log, applier: r.Broker, proposed: make(chan entry.Index, 100)}
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

func newStandalone(r *rig) replication.Role { return standalone.New(r.log, r.Broker) }
