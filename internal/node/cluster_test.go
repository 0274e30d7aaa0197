package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// trio is a cluster of three nodes in this process, on disks in memory, over a network that loses nothing.
type trio struct {
	t     *testing.T
	disks [3]*memfs.FS

	mu    sync.Mutex
	nodes [3]*Cluster
	fatal [3]error
	wires [3][3]chan []byte
}

func newTrio(t *testing.T) *trio {
	c := &trio{t: t}
	var carrying sync.WaitGroup
	for from := range 3 {
		c.disks[from] = memfs.New()
		for to := range 3 {
			c.wires[from][to] = make(chan []byte, 1024)
			carrying.Go(func() { // ends when the wire is closed
				for packet := range c.wires[from][to] {
					if n := c.node(to); n != nil {
						n.PeerPacket(from, packet)
					}
				}
			})
		}
	}
	t.Cleanup(func() {
		for i := range 3 {
			c.stop(i)
		}
		for from := range 3 {
			for to := range 3 {
				close(c.wires[from][to])
			}
		}
		carrying.Wait()
	})
	return c
}

func (c *trio) node(i int) *Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

func (c *trio) start(list ...int) {
	c.t.Helper()
	for _, i := range list {
		n, err := OpenCluster(Config{
			FS: c.disks[i], Clock: clock.System{}, SegmentBytes: 64 << 10, SnapshotBytes: 64 << 10,
			Fatal: func(err error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.fatal[i] = err
			},
		}, ClusterConfig{
			Self: i, URLs: []string{"http://node-0", "http://node-1", "http://node-2"}, CheckEvery: 50 * time.Millisecond,
			Random: rand.New(rand.NewPCG(1, uint64(i))),
			Send: func(to int, packet []byte) {
				select {
				case c.wires[i][to] <- packet:
				default:
				}
			},
			Call: func(ctx context.Context, to int, request []byte) ([]byte, error) {
				if n := c.node(to); n != nil {
					return n.PeerAnswer(ctx, i, request), nil
				}
				return nil, errors.New("it is away")
			},
		})
		if err != nil {
			c.t.Fatal(err)
		}
		c.mu.Lock()
		c.nodes[i] = n
		c.mu.Unlock()
		if err := n.Recover(); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *trio) stop(i int) {
	c.mu.Lock()
	n := c.nodes[i]
	c.nodes[i] = nil
	c.mu.Unlock()
	if n != nil {
		if err := n.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

// await waits for a condition; it returns what is missing, or nothing.
func (c *trio) await(what string, missing func() string) {
	c.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for text := missing(); text != ""; text = missing() {
		select {
		case <-deadline.C:
			c.t.Fatalf("%s: %s", what, text)
		case <-poll.C:
		}
	}
}

// publish publishes to whoever leads.
func (c *trio) publish(value string) {
	c.t.Helper()
	c.await("publish", func() string {
		var errs []error
		for i := range 3 {
			if n := c.node(i); n != nil {
				p := &broker.Publish{Topic: []byte("t"), RequestID: []byte(value[:min(len(value), 50)]), Records: []fact.Record{{Value: []byte(value)}}}
				if _, err := n.Publish(p); err != nil {
					errs = append(errs, err)
					continue
				}
				return ""
			}
		}
		return fmt.Sprint(errs)
	})
}

// awaitAll waits until all nodes are whole, take part, and have applied the same.
func (c *trio) awaitAll() {
	c.t.Helper()
	c.await("all nodes are in step", func() string {
		applied := map[uint64]bool{}
		for i := range 3 {
			n := c.node(i)
			role := n.RaftRole()
			applied[role.AppliedIndex] = true
			if s := n.Status(); !s.Ready || role.Leader == nil || n.store.state().Phase != phaseWhole {
				return fmt.Sprintf("node %d: %+v %+v", i, s, role)
			}
		}
		if len(applied) != 1 {
			return fmt.Sprint(applied)
		}
		return ""
	})
}

func (c *trio) fatalOf(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal[i]
}

// The node whose fold is not that of the others takes no part any more, and says so; the others go on.
func TestOddOneOutIsQuarantined(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	for i := range 20 {
		c.publish(fmt.Sprint("before ", i))
	}
	known := func(i int) (at entry.Index, n int) {
		node := c.node(i)
		node.mu.Lock()
		defer node.mu.Unlock()
		if n = len(node.checks.order); n > 0 {
			at = node.checks.order[n-1]
		}
		return at, n
	}
	c.await("the folds are compared", func() string {
		for i := range 3 {
			if _, n := known(i); n == 0 {
				c.publish(fmt.Sprint("more ", time.Now().UnixNano())) // a check is logged only behind something new
				return fmt.Sprintf("node %d has checked nothing", i)
			}
		}
		return ""
	})
	c.awaitAll()
	at, _ := known(1)
	if s := c.node(2).Status(); !s.Ready {
		t.Fatalf("equal folds, and %+v", s)
	}
	c.await("node 2 is quarantined", func() string {
		if s := c.node(2).RaftStatus(); s.Phase == "quarantined" && strings.Contains(s.Reason, "2 nodes agree on another one") {
			return ""
		}
		// As if its memory had rotted. Again and again: a check that comes by itself takes the place of one that is due.
		c.node(2).checked(at, state.New().Freeze())
		return fmt.Sprintf("%+v", c.node(2).Status())
	})
	if s := c.node(2).Status(); s.Ready {
		t.Error("it is still ready")
	}
	c.publish("after")
	for i := range 2 {
		if c.node(i).RaftStatus().Phase != string(phaseWhole) {
			t.Errorf("node %d is quarantined, too", i)
		}
	}
}

// An empty folder in a member's place heals; an old one does, too; and who has the newer folder is not taken for the old one.
func TestEmptyAndOldFolders(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	c.publish("one")
	c.awaitAll()
	c.stop(2)
	old := c.disks[2].Clone()
	c.start(2)
	c.awaitAll()
	for i := range 50 {
		c.publish(fmt.Sprint("two ", i))
	}
	c.awaitAll()
	id := c.node(2).store.state().NodeID
	c.stop(2)
	c.disks[2] = memfs.New()
	c.start(2)
	c.awaitAll()
	healed := c.node(2).store.state()
	for i := range 2 {
		if m, own := healed.Members[i], c.node(i).store.state(); m.NodeID != own.NodeID || m.Incarnation != own.Members[i].Incarnation {
			t.Errorf("the healed node knows node %d as %+v", i, m)
		}
	}
	if healed.NodeID == id {
		t.Error("an empty folder took part as the node that it replaced")
	}
	for i := range 3 { // nobody but the old folder must heal
		c.stop(i)
	}
	c.disks[2] = old
	c.start(0, 1, 2)
	c.awaitAll()
	now := c.node(2).store.state()
	if now.NodeID == id || now.NodeID == healed.NodeID || now.Members[2].Incarnation <= healed.Members[2].Incarnation {
		t.Errorf("the old folder is %s, incarnation %d; it was %s, and its successor %s, incarnation %d",
			now.NodeID, now.Members[2].Incarnation, id, healed.NodeID, healed.Members[2].Incarnation)
	}
	for i := range 2 {
		if n := c.node(i).store.state().Members[i].Incarnation; n != healed.Members[i].Incarnation {
			t.Errorf("node %d healed, too", i)
		}
	}
	c.publish("three")
}

// The folder of a member runs in no other role, and in no other place.
func TestMembersFolderElsewhere(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	c.publish("one")
	c.awaitAll()
	for i := range 3 {
		c.stop(i)
	}
	for _, role := range []Role{Standalone, Leader, Follower} {
		n, err := Open(Config{Role: role, Epoch: 99, FS: c.disks[0]})
		if err == nil {
			n.Close()
			t.Errorf("it runs as %s", role)
		} else if !strings.Contains(err.Error(), "-role cluster") {
			t.Errorf("as %s: %v", role, err)
		}
	}
	c.disks[0], c.disks[1] = c.disks[1], c.disks[0]
	if _, err := OpenCluster(Config{FS: c.disks[0]}, ClusterConfig{Self: 0, URLs: []string{"a", "b", "c"}}); err == nil || !strings.Contains(err.Error(), "that of node 1") {
		t.Errorf("the folder of another node: %v", err)
	}
	if _, err := OpenCluster(Config{FS: c.disks[0]}, ClusterConfig{Self: 1, URLs: []string{"a", "b", "c", "d", "e"}}); err == nil || !strings.Contains(err.Error(), "cluster of 3 nodes") {
		t.Errorf("a cluster of another size: %v", err)
	}
}

// The folder of another cluster is refused.
func TestFolderOfAnotherCluster(t *testing.T) {
	c, d := newTrio(t), newTrio(t)
	for _, one := range []*trio{c, d} {
		one.start(0, 1, 2)
		one.publish("one")
		one.awaitAll()
	}
	c.stop(0)
	d.stop(0)
	c.disks[0] = d.disks[0]
	c.start(0)
	c.await("it is refused", func() string {
		if err := c.fatalOf(0); err != nil && errors.Is(err, errDifferently) {
			return ""
		}
		return fmt.Sprintf("%+v", c.node(0).Status())
	})
	c.publish("two")
}

// A segment that is missing in the middle of the log, where a snapshot covers it, comes from the others while the log is open,
// and its records can be read then.
func TestMissingSegmentIsReadAgain(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	const records = 100
	for i := range records {
		c.publish(fmt.Sprint(i, strings.Repeat(" ", 4<<10)))
	}
	c.awaitAll()
	if _, err := c.node(1).Snapshot(); err != nil && !errors.As(err, new(*broker.NotLeaderError)) {
		t.Fatal(err)
	}
	c.await("a snapshot covers the second segment", func() string {
		n := c.node(1).life.Load()
		segments := n.log.Segments()
		files, err := snapshot.Files(n.fs, snapshotDir)
		if err == nil && len(files) > 0 && len(segments) > 3 && files[0].Index > segments[2].Last {
			return ""
		}
		c.publish(fmt.Sprint("more ", time.Now().UnixNano(), strings.Repeat(" ", 4<<10)))
		return fmt.Sprint(segments, files, err)
	})
	gone := c.node(1).life.Load().log.Segments()[1].First
	c.stop(1)
	if err := c.disks[1].Remove(path.Join(logDir, fmt.Sprintf("%020d.seg", gone))); err != nil {
		t.Fatal(err)
	}
	c.start(1)
	c.await("all records are found", func() string {
		n := c.node(1).life.Load()
		if n == nil || n.broker.Load() == nil {
			return "it does not serve"
		}
		for i := range fact.Offset(records) {
			if run, err := n.index.Find([]byte("t"), i); err != nil || run.First > i {
				return fmt.Sprintf("record %d: %+v, %v", i, run, err)
			}
		}
		return ""
	})
}

// TestClusterOfARestoredFolder: in a log that was restored, a topic may begin at a gap: there is no record at its start, and
// that does not look as if the log had lost its head.
func TestClusterOfARestoredFolder(t *testing.T) {
	c := newTrio(t)
	cfg := Config{FS: c.disks[0], SegmentBytes: 64 << 10, SnapshotBytes: 64 << 10, Logger: testLogger(t)}
	open := func() *Node {
		n, err := Open(cfg)
		if err == nil {
			err = n.Recover()
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := open()
	for topic, count := range map[string]int{"empty": 1, "t": 300} {
		for range count {
			p := &broker.Publish{Topic: []byte(topic), Records: []fact.Record{{Value: make([]byte, 1000)}}}
			if _, err := n.Publish(p); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Retain([]byte(topic), fact.Offset(count-count/10)); err != nil {
			t.Fatal(err)
		}
	}
	c.await("the head is dropped", func() string {
		if n.log.Segments()[0].First > 1 {
			return ""
		}
		_, err := n.CommitGroup([]byte("t"), []byte("g"), 300) // lets snapshots go on
		return fmt.Sprint(n.log.Segments(), err)
	})
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := MarkRestored(c.disks[0], 0); err != nil {
		t.Fatal(err)
	}
	if err := open().Close(); err != nil {
		t.Fatal(err)
	}
	c.start(0, 1, 2)
	c.awaitAll()
	var lives [3]*Node
	for i := range 3 {
		lives[i] = c.node(i).life.Load()
		c.node(i).scrubHead(t.Context(), lives[i])
	}
	c.publish("goes on")
	c.awaitAll()
	for i := range 3 {
		if c.node(i).life.Load() != lives[i] {
			t.Errorf("node %d began anew", i)
		}
	}
}

// TestDamageInADroppedSegment: a node whose log is damaged at its end and in a segment that the others have dropped gets the
// end back, and cuts nothing.
func TestDamageInADroppedSegment(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	const records = 200
	for i := range records {
		c.publish(fmt.Sprint(i, strings.Repeat(" ", 4<<10)))
	}
	c.awaitAll()
	c.await("a snapshot covers the first segment", func() string {
		n := c.node(2).life.Load()
		files, err := snapshot.Files(n.fs, snapshotDir)
		if err == nil && len(files) > 0 && files[0].Index > n.log.Segments()[0].Last {
			return ""
		}
		return fmt.Sprint(files, err)
	})
	log := c.node(2).life.Load().log
	head, end := log.Segments()[0].First, log.Segments()[len(log.Segments())-1].First
	id := c.node(2).store.state().NodeID
	c.stop(2)
	c.await("the others drop their head", func() string {
		var errs []error
		for i := range 2 {
			_, err := c.node(i).Retain([]byte("t"), records-1)
			if errs = append(errs, err); err == nil {
				c.publish(fmt.Sprint("more ", time.Now().UnixNano(), strings.Repeat(" ", 4<<10)))
			}
		}
		for i := range 2 {
			if n := c.node(i).life.Load(); n == nil || n.log == nil || n.log.Segments()[0].First == head {
				return fmt.Sprint(errs)
			}
		}
		return ""
	})
	flipAt(t, c.disks[2], segmentFile(head), 2000)
	flipAt(t, c.disks[2], segmentFile(end), 600)
	c.start(2)
	c.awaitAll()
	if now := c.node(2).store.state().NodeID; now != id {
		t.Errorf("node %s became %s: it has cut what it had", id, now)
	}
}

// TestDamageWhereOthersGoOn: a segment is damaged in which this node's log ended, before an entry that nobody else got, and
// in which the logs of the others go on; or the segment that it began with that entry is, and the others have none that
// begins there. No node has it as it is here: it is cut before the damage, and fetched.
func TestDamageWhereOthersGoOn(t *testing.T) {
	for name, at := range map[string]int{"the segment before": 0, "the segment of its own": 1} {
		t.Run(name, func(t *testing.T) { damageWhereOthersGoOn(t, at) })
	}
}

func damageWhereOthersGoOn(t *testing.T, damaged int) {
	c := newTrio(t)
	c.start(0, 1, 2)
	for i := range 5 {
		c.publish(fmt.Sprint(i, strings.Repeat(" ", 4<<10)))
	}
	c.awaitAll()
	state := c.node(2).store.state()
	c.stop(2)

	// As if node 2 had led, begun a segment, and died before anybody had heard of it.
	id, err := ReadIdentity(c.disks[2])
	if err != nil {
		t.Fatal(err)
	}
	log, _, err := wal.Open(wal.Config{FS: c.disks[2], LogID: id, SegmentBytes: 64 << 10, Inline: true}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{60 << 10, 100, 100} {
		f := new(wal.Frames)
		f.End(append(f.Begin(fact.KindAppended, 1), make([]byte, size)...))
		if _, err := log.Append(f, entry.Term(state.Term), log.Last()); err != nil {
			t.Fatal(err)
		}
		if err := log.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	segments := log.Segments()
	if err := log.Close(); err != nil || len(segments) != 2 {
		t.Fatalf("%+v, %v", segments, err)
	}
	flipAt(t, c.disks[2], segmentFile(segments[damaged].First), 5000)
	for i := range 8 { // more than it had
		c.publish(fmt.Sprint("more ", i))
	}
	c.start(2)
	c.awaitAll()
	if now := c.node(2).store.state().NodeID; now == state.NodeID {
		t.Error("node 2 has lost what it had, and did not heal")
	}
}
