package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// couple is two data folders, and the nodes that run on them now.
type couple struct {
	t     *testing.T
	fs    [2]*memfs.FS
	mu    sync.Mutex // guards nodes
	nodes [2]*Node
	fatal [2]chan error
	seg   int64
	// timeout is how long a leader waits for its follower, and a takeover for the leader before.
	timeout time.Duration
	// snapshots is how much log comes between them.
	snapshots int64
}

func newCouple(t *testing.T) *couple {
	c := &couple{t: t, seg: 64 << 10, snapshots: 1 << 20, timeout: 2 * time.Second}
	for i := range c.fs {
		c.fs[i] = memfs.New()
		c.fatal[i] = make(chan error, 1)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	return c
}

func (c *couple) config(i int, role Role, epoch uint64) Config {
	return Config{
		FS: c.fs[i], Role: role, Epoch: termOf(epoch), ReplicaTimeout: c.timeout, SegmentBytes: c.seg, SnapshotBytes: c.snapshots,
		Logger: testLogger(c.t), Replica: "http://other",
		Fatal: func(err error) { c.fatal[i] <- err },
		Dial: func(context.Context) (pair.Link, error) {
			c.mu.Lock()
			other := c.nodes[1-i]
			c.mu.Unlock()
			if other == nil {
				return nil, errors.New("the other node is down")
			}
			a, b := net.Pipe()
			go other.ServePeer(b)
			return pair.NewWire(a), nil
		},
	}
}

func (c *couple) start(i int, role Role, epoch uint64) *Node {
	c.t.Helper()
	n, err := Open(c.config(i, role, epoch))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.nodes[i] = n
	c.mu.Unlock()
	return n
}

func (c *couple) stop(i int) {
	if n := c.nodes[i]; n != nil {
		c.mu.Lock()
		c.nodes[i] = nil
		c.mu.Unlock()
		if err := n.Close(); err != nil {
			c.t.Errorf("close node %d: %v", i, err)
		}
	}
}

func (c *couple) await(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s does not come; node 0: %+v; node 1: %+v", what, c.status(0), c.status(1))
		}
	}
}

func (c *couple) status(i int) any {
	if c.nodes[i] == nil {
		return "down"
	}
	return c.nodes[i].PairStatus()
}

func (c *couple) publish(i int, topic, value string) error {
	_, err := c.nodes[i].Publish(&broker.Publish{Topic: []byte(topic), Records: []fact.Record{{Key: []byte("k"), Value: []byte(value)}}})
	return err
}

func (c *couple) equal() {
	c.t.Helper()
	var d wal.Comparison
	c.await("equality", func() bool {
		var err error
		d, err = wal.Compare(c.fs[0], logDir, c.fs[1], logDir)
		return err == nil && d.Equal()
	})
}

func TestPairSmoke(t *testing.T) {
	c := newCouple(t)
	c.start(1, Follower, 0)
	c.start(0, Leader, 1)
	c.await("writable", func() bool { return c.nodes[0].PairStatus().Writable })
	for i := range 100 {
		if err := c.publish(0, "t", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.equal()
	if err := c.publish(1, "t", "x"); !errors.As(err, new(*broker.NotLeaderError)) {
		t.Fatalf("the follower answers %v", err)
	}
	// The follower goes away.
	c.stop(1)
	c.await("unwritable", func() bool { return !c.nodes[0].PairStatus().Writable })
	if err := c.publish(0, "t", "x"); !errors.As(err, new(*broker.UnavailableError)) {
		t.Fatalf("without a follower: %v", err)
	}
	c.start(1, Follower, 0)
	c.await("writable", func() bool { return c.nodes[0].PairStatus().Writable })
	if err := c.publish(0, "t", "y"); err != nil {
		t.Fatal(err)
	}
	c.equal()
	// The leader dies, the follower is promoted, the leader comes back as follower.
	c.stop(0)
	c.stop(1)
	c.start(1, Leader, 2)
	c.start(0, Follower, 0)
	c.await("writable", func() bool { return c.nodes[1].PairStatus().Writable })
	if err := c.publish(1, "t", "z"); err != nil {
		t.Fatal(err)
	}
	c.equal()
}

func TestPairFullSync(t *testing.T) {
	c := newCouple(t)
	c.start(0, Standalone, 0)
	value := string(make([]byte, 1000))
	for i := range 3000 {
		if err := c.publish(0, fmt.Sprint("t", i%7), value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.nodes[0].Snapshot(); err != nil {
		t.Fatal(err)
	}
	c.stop(0)
	c.start(0, Leader, 5)
	c.start(1, Follower, 0)
	c.await("writable", func() bool { return c.nodes[0].PairStatus().Writable })
	for i := range 100 {
		if err := c.publish(0, "t", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.await("whole", func() bool { return c.nodes[1].PairStatus().State == "streaming" })
	c.equal()
	c.stop(0)
	c.stop(1)
	c.start(1, Leader, 6)
	c.start(0, Follower, 0)
	c.await("writable", func() bool { return c.nodes[1].PairStatus().Writable })
	if err := c.publish(1, "t", "z"); err != nil {
		t.Fatal(err)
	}
	c.equal()
}

var _ vfs.FS = (*memfs.FS)(nil)

func termOf(epoch uint64) entry.Term { return entry.Term(epoch) }

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func testLogger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(testWriter{t}, nil)) }

// Facts that contradict the fold, though their frames are sound, stop the follower with an error; they do not end the
// process, and nothing of them is served or kept in a snapshot.
func TestContradictingFactStopsTheFollower(t *testing.T) {
	c := newCouple(t)
	c.start(1, Follower, 0)
	c.start(0, Leader, 1)
	c.await("writable", func() bool { return c.nodes[0].PairStatus().Writable })
	if err := c.publish(0, "t", "v"); err != nil {
		t.Fatal(err)
	}
	c.equal()
	c.stop(0)
	n := c.nodes[1]
	c.await("applied", func() bool { return n.replica.Applied() > 0 })
	f := new(wal.Frames)
	f.End(fact.AppendAppended(f.Begin(fact.KindAppended, 1), []byte("t"), 77, 0, nil, fact.Digest{}, []fact.Record{{Value: []byte("x")}}))
	if _, err := n.log.Append(f, 1, n.log.Last()); err != nil {
		t.Fatal(err)
	}
	if err := n.log.Sync(); err != nil {
		t.Fatal(err)
	}
	n.replica.Commit(n.log.Last())
	c.await("failure", func() bool { return n.PairStatus().State == string(pair.StateFailed) })
	if s := n.Status(); s.Ready || !strings.Contains(s.Reason, "apply the log") {
		t.Fatalf("status %+v", s)
	}
}

// stuckLink takes the history slowly, and nothing of it once stuck says so, as a network does that is full because the
// other side has stopped.
type stuckLink struct {
	pair.Link
	stuck  func() bool
	chunks int // by Write alone
	once   sync.Once
	closed chan struct{}
}

func (l *stuckLink) Write(head, body []byte) error {
	const chunk = 10 // docs/format/replication.md
	if head[12] == chunk {
		l.chunks++
		for taken := false; !taken; taken = l.chunks < 50 { // the rest is for the time when it is stuck
			select {
			case <-l.closed:
				return net.ErrClosed
			case <-time.After(5 * time.Millisecond):
			}
			if l.stuck() {
				<-l.closed
				return net.ErrClosed
			}
		}
	}
	return l.Link.Write(head, body)
}

func (l *stuckLink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Link.Close()
}

// G17: a follower that hangs in a full sync does not hang the writes: the piece that nobody takes ends the session.
func TestHungFullSyncEndsTheSession(t *testing.T) {
	c := newCouple(t)
	c.start(0, Standalone, 0)
	for range 400 { // 100 segments
		if err := c.publish(0, "t", string(make([]byte, 16000))); err != nil {
			t.Fatal(err)
		}
	}
	c.stop(0)
	c.start(1, Follower, 0)
	cfg := c.config(0, Leader, 1)
	dial := cfg.Dial
	var leader atomic.Pointer[Node]
	cfg.Dial = func(ctx context.Context) (pair.Link, error) {
		link, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return &stuckLink{Link: link, closed: make(chan struct{}), stuck: func() bool {
			return leader.Load().PairStatus().Writable
		}}, nil
	}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	leader.Store(n)
	c.mu.Lock()
	c.nodes[0] = n
	c.mu.Unlock()
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	c.await("writes beside the full sync", func() bool { return n.PairStatus().Writable })
	answered := make(chan error, 1)
	go func() { // ended by the node
		for {
			_, err := n.Publish(&broker.Publish{Topic: []byte("t"), Records: []fact.Record{{Value: []byte("v")}}})
			if err != nil && strings.Contains(err.Error(), "has not answered in time") {
				answered <- err
				return
			}
		}
	}()
	select {
	case <-answered:
	case <-time.After(10 * time.Second):
		t.Fatalf("no write is refused while the follower takes nothing: %+v", n.PairStatus())
	}
}

// G20: a follower's folder that has promised, and has no log yet, cannot lead, and trying that does not give it a log id
// of its own, with which its leader would refuse it.
func TestRefusedStartKeepsTheIdentity(t *testing.T) {
	c := newCouple(t)
	c.start(1, Follower, 0)
	self := c.nodes[1].identity.nodeID()
	self[0] ^= 1
	if err := c.nodes[1].promises.SetPromise(pair.Promise{Epoch: 1, Leader: self, Lease: time.Second, First: 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[1].promises.SetPromise(pair.Promise{}); err == nil {
		t.Fatal("a lower epoch was promised")
	}
	c.stop(1)
	for _, role := range []Role{Leader, Standalone} {
		if n, err := Open(c.config(1, role, 2)); err == nil {
			n.Close()
			t.Fatalf("started as %s", role)
		}
	}
	id, err := readIdentity(c.fs[1])
	if err != nil || id.LogID != "" {
		t.Fatalf("identity %+v, %v", id, err)
	}
}

// A stop is heard while a takeover waits for the lease, and nothing is promised then.
func TestInterruptedTakeover(t *testing.T) {
	c := newCouple(t)
	c.timeout = time.Minute // the lease is not over before the stop
	c.start(1, Follower, 0)
	c.start(0, Leader, 1)
	c.await("writable", func() bool { return c.nodes[0].PairStatus().Writable })
	c.stop(0)
	c.stop(1)
	n, err := Open(c.config(1, Leader, 2))
	if err != nil {
		t.Fatal(err)
	}
	n.Interrupt()
	if err := n.Recover(); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("recover: %v", err)
	}
	if p := n.promises.Promise(); p.Epoch != 1 {
		t.Fatalf("promise %+v", p)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTail: what the end of the log may change is known, whatever the fact.
func TestTail(t *testing.T) {
	tail := broker.Tail{Topics: map[string]struct{}{}, Groups: map[broker.GroupName]struct{}{}, Retained: map[string]struct{}{}, Kept: map[string]struct{}{}}
	record := fact.Record{Value: []byte("v")}
	for _, e := range []entry.Entry{
		{Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("appended"), 0, 0, nil, fact.Digest{}, []fact.Record{record})},
		{Kind: fact.KindKept, Payload: fact.AppendKept(nil, []byte("kept"), 0, 0, []fact.KeptRecord{{Record: record}})},
		{Kind: fact.KindTopicRetained, Payload: fact.AppendTopicRetained(nil, []byte("retained"), 1, 1)},
		{Kind: fact.KindTopicDeleted, Payload: fact.AppendTopicDeleted(nil, []byte("deleted"))},
		{Kind: fact.KindGroupMoved, Payload: fact.AppendGroupMoved(nil, []byte("t"), []byte("moved"), 1)},
		{Kind: fact.KindGroupDeleted, Payload: fact.AppendGroupDeleted(nil, []byte("t"), []byte("gone"))},
		{Kind: fact.KindMarker},
		{Kind: fact.KindChecked},
		{Kind: fact.KindTopicConfigured, Payload: fact.AppendTopicConfigured(nil, []byte("t"), fact.Retention{})},
	} {
		if tail.Other {
			t.Errorf("something else before %v", e.Kind)
		}
		if err := addToTail(&tail, &e); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(tail), "{map[appended:{}] map[{t gone}:{} {t moved}:{}] map[deleted:{} retained:{}] map[kept:{}] true}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := addToTail(&tail, &entry.Entry{Kind: fact.KindTopicDeleted}); err == nil {
		t.Error("a fact that is malformed")
	}
}
