package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// withinRoom says what is wrong with the room that the log of a node takes; nothing if it is within what is promised.
func withinRoom(n *Node) string {
	var sealed, live int64
	for _, s := range n.log.Segments() {
		if s.Sealed {
			sealed += s.Bytes
		}
	}
	for _, l := range n.index.Live(n.cleaner.startOf) {
		live += l.Bytes
	}
	if sealed > 2*live {
		return fmt.Sprintf("%d bytes of sealed segments for %d that live; %+v", sealed, live, n.cleaner.status())
	}
	return ""
}

// mixed returns a publish to one of two topics: records of the first stay, those of the second go.
func mixed(i int) *broker.Publish {
	p := &broker.Publish{Topic: []byte("stays"), RequestID: fmt.Append(nil, "id-", i), Records: []fact.Record{{Value: fmt.Append(nil, i, strings.Repeat(".", 300))}}}
	if i%2 == 1 {
		p.Topic, p.Records = []byte("goes"), []fact.Record{{Value: []byte(strings.Repeat("x", 1000))}}
	}
	return p
}

// checkStays reads the records of the first topic.
func checkStays(t *testing.T, fetch func(*broker.Fetch, broker.Sink) (broker.Page, error), count int) {
	t.Helper()
	next := fact.Offset(0)
	var sink sinkFunc = func(offset fact.Offset, _, value []byte, _ int64) {
		if want := fmt.Sprint(2*int(offset), strings.Repeat(".", 300)); offset != next || string(value) != want {
			t.Errorf("record %d is %.20q, want record %d: %.20q", offset, value, next, want)
		}
		next++
	}
	for int(next) < count {
		before := next
		if page, err := fetch(&broker.Fetch{Topic: []byte("stays"), Offset: next, Limit: 1000}, sink); err != nil || next == before {
			t.Fatalf("fetch at %d: %+v %v", before, page, err)
		}
	}
}

// TestCleanerInACluster: the leader cleans, the logs of all nodes stay the same, and all of them give room back. When the
// leader goes away in the middle, the next one goes on.
func TestCleanerInACluster(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	c.awaitAll()
	const count = 2000
	leader := func() (int, *Cluster) {
		for i := range 3 {
			if n := c.node(i); n != nil && n.serving() != nil {
				return i, n
			}
		}
		return -1, nil
	}
	do := func(what string, call func(n *Cluster) error) {
		t.Helper()
		c.await(what, func() string {
			_, n := leader()
			if n == nil {
				return "no leader"
			}
			if err := call(n); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	for i := range count {
		do("publish", func(n *Cluster) error { _, err := n.Publish(mixed(i)); return err })
	}
	do("retain", func(n *Cluster) error { _, err := n.Retain([]byte("goes"), count/2); return err })
	first, n := leader()
	c.await("the leader cleans", func() string {
		if life := n.life.Load(); life != nil && life.cleaner.status().MovedRecords > 0 {
			return ""
		}
		return fmt.Sprintf("%+v", n.life.Load().cleaner.status())
	})
	c.stop(first)
	moved := uint64(0)
	c.await("the next leader goes on", func() string {
		i, n := leader()
		if n == nil || i == first {
			return "no leader"
		}
		life := n.life.Load()
		if life == nil || life.broker.Load() == nil {
			return "no life"
		}
		moved = max(moved, life.cleaner.status().MovedRecords)
		// Any write lets the snapshots go on that have to cover what is dropped.
		if _, err := n.CommitGroup([]byte("stays"), []byte("g"), 1); err != nil {
			return err.Error()
		}
		return withinRoom(life)
	})
	if moved == 0 {
		t.Log("the first leader had moved all when it stopped")
	}
	c.start(first)
	c.awaitAll()
	for i := range 3 {
		c.await("all give room back", func() string {
			do("commit", func(n *Cluster) error { _, err := n.CommitGroup([]byte("stays"), []byte("g"), 1); return err })
			life := c.node(i).life.Load()
			if life == nil || life.broker.Load() == nil {
				return "no life"
			}
			return withinRoom(life)
		})
	}
	_, n = leader()
	checkStays(t, n.Fetch, count/2)
	for _, i := range []int{0, 1, 2, count - 2, count - 1} {
		if done, err := n.Publish(mixed(i)); err != nil || !done.Duplicate || done.Base != fact.Offset(i/2) {
			t.Errorf("retry of %d: %+v %v", i, done, err)
		}
	}
	for i := range 3 {
		c.stop(i)
	}
	for i := range 2 {
		d, err := wal.Compare(c.disks[i], logDir, c.disks[2], logDir)
		if err != nil || len(d.Differences) > 0 {
			t.Errorf("the logs of nodes %d and 2 differ: %+v %v", i, d, err)
		}
	}
}

// TestCleanerInAPair: the leader cleans, the follower's log stays the same, and both give room back; the follower can be
// promoted.
func TestCleanerInAPair(t *testing.T) {
	c := newCouple(t)
	c.start(1, Follower, 0)
	n := c.start(0, Leader, 1)
	c.await("writable", func() bool { return n.PairStatus().Writable })
	const count = 1000
	for i := range count {
		if _, err := n.Publish(mixed(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Retain([]byte("goes"), count/2); err != nil {
		t.Fatal(err)
	}
	c.await("room on both", func() bool {
		_, err := n.CommitGroup([]byte("stays"), []byte("g"), 1)
		return err == nil && withinRoom(n) == "" && withinRoom(c.nodes[1]) == ""
	})
	if n.cleaner.status().MovedRecords == 0 || c.nodes[1].cleaner.status().MovedRecords != 0 {
		t.Errorf("moved by the leader: %+v, by the follower: %+v", n.cleaner.status(), c.nodes[1].cleaner.status())
	}
	checkStays(t, n.Fetch, count/2)
	c.equal()
	c.stop(0)
	c.stop(1)
	n = c.start(1, Leader, 2)
	checkStays(t, n.Fetch, count/2)
	if _, err := n.Fetch(&broker.Fetch{Topic: []byte("goes"), Limit: 1}, sinkFunc(func(fact.Offset, []byte, []byte, int64) {})); !errors.As(err, new(*broker.OffsetGoneError)) {
		t.Errorf("a record that was retained: %v", err)
	}
}

// TestKilledAfterADrop: a leader that is killed right after it has dropped a segment may not know, without its follower, that
// what it has kept of it is committed. It does not call the records damaged then.
func TestKilledAfterADrop(t *testing.T) {
	for try := 1; !killedAfterADrop(t); try++ {
		if try == 10 {
			t.Fatal("the log went on between the entry and the drop, each time")
		}
	}
}

// killedAfterADrop reports whether nothing came between the entry that keeps and the drop: a marker would have told that the
// entry is committed.
func killedAfterADrop(t *testing.T) bool {
	c := newCouple(t)
	c.snapshots = 48 << 10 // so that most of the log is covered
	c.start(1, Follower, 0)
	n := c.start(0, Leader, 1)
	c.await("writable", func() bool { return n.PairStatus().Writable })
	const count = 1000
	for i := range count {
		if _, err := n.Publish(mixed(i)); err != nil {
			t.Fatal(err)
		}
	}
	n.cleaner.end()
	n.cleaner.wait()
	if _, err := n.Retain([]byte("goes"), count/2); err != nil {
		t.Fatal(err)
	}
	head := n.log.Segments()[0]
	c.await("a marker, and snapshots behind the segment", func() bool {
		n.keeper.mu.Lock()
		covered := n.keeper.covered >= head.Last
		n.keeper.mu.Unlock()
		return covered && n.log.Last() > head.Last && n.keeper.broker.Applied() == n.log.Last()
	})
	var killed *memfs.FS // no other goroutine removes segments
	c.fs[0].OnOp(func(op memfs.Op) {
		if op.Kind == "remove" && op.Done && op.Name == segmentFile(head.First) {
			killed = c.fs[0].Clone()
		}
	})
	j := newJob(n.log, head)
	piece, err := j.next(n.cleaner, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	j.cursor.Close()
	before := n.log.Last()
	if err := n.keeper.broker.Keep(&piece); err != nil {
		t.Fatal(err)
	}
	n.keeper.mu.Lock()
	err = n.keeper.drop()
	n.keeper.mu.Unlock()
	c.fs[0].OnOp(nil)
	if err != nil || killed == nil {
		t.Fatalf("the segment was not dropped: %v", err)
	}
	entries := new(wal.Frames)
	after := n.log.NewCursor(before + 1)
	defer after.Close()
	if _, err := after.Next(entries, n.log.Last(), 1<<20); err != nil || entries.Len() == 0 {
		t.Fatalf("%d entries after the drop: %v", entries.Len(), err)
	}
	if e := entries.Entry(entries.Len() - 1); e.Kind != fact.KindKept {
		return false
	}
	c.stop(0)
	c.fs[0] = killed
	c.stop(1)
	n = c.start(0, Leader, 1)
	if n.keeper.broker.Applied() == n.log.Last() {
		t.Fatal("all is known to be committed: this tests nothing")
	}
	none := sinkFunc(func(fact.Offset, []byte, []byte, int64) {})
	if _, err := n.Fetch(&broker.Fetch{Topic: []byte("stays"), Limit: 1}, none); !errors.As(err, new(*broker.UnavailableError)) {
		t.Errorf("a record that was kept once more in what may not be committed: %v", err)
	}
	if _, err := n.Fetch(&broker.Fetch{Topic: []byte("stays"), Offset: count/2 - 1, Limit: 1}, none); err != nil {
		t.Errorf("a record that stands elsewhere: %v", err)
	}
	c.start(1, Follower, 0)
	c.await("writable", func() bool { return n.PairStatus().Writable })
	checkStays(t, n.Fetch, count/2)
	return true
}
