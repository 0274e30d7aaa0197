package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

var testLog = entry.LogID{7, 7}

// recorder is an applier that notes what it is told, and what it must not be.
type recorder struct {
	mu        sync.Mutex // guards the fields below
	log       *wal.Log
	at        entry.Index // told up to here
	leads     bool
	leadCalls int
	follows   int
	suspended string
	failed    error
	payloads  map[entry.Index]string // what Apply got
	wrong     []string
	hold      chan struct{} // while not nil, Apply waits for it
}

func (a *recorder) Committed(last entry.Index) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last <= a.at || last > a.log.Last() || !a.leads {
		a.wrong = append(a.wrong, fmt.Sprintf("committed %d after %d of %d, leads: %v", last, a.at, a.log.Last(), a.leads))
	}
	a.at = last
}

func (a *recorder) Apply(f *wal.Frames) error {
	a.mu.Lock()
	hold := a.hold
	a.mu.Unlock()
	if hold != nil {
		<-hold
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range f.Len() {
		e := f.Entry(i)
		if e.Index != a.at+1 || a.leads {
			a.wrong = append(a.wrong, fmt.Sprintf("apply %d after %d, leads: %v", e.Index, a.at, a.leads))
		}
		a.at = e.Index
		a.payloads[e.Index] = string(e.Payload)
	}
	return nil
}

func (a *recorder) Lead() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leads && a.at != a.log.Last() {
		a.wrong = append(a.wrong, fmt.Sprintf("lead with %d of %d applied", a.at, a.log.Last()))
	}
	a.leads, a.suspended = true, ""
	a.leadCalls++
}

func (a *recorder) Suspend(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspended = reason
}

func (a *recorder) Follow(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leads {
		a.wrong = append(a.wrong, "follow without lead")
	}
	a.leads, a.suspended = false, reason
	a.follows++
}

func (a *recorder) Failed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
}

func (a *recorder) look(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

// node is one node of a test cluster. Its disk outlives its role.
type node struct {
	t    *testing.T
	c    *cluster
	n    int
	mem  *memfs.FS
	disk *faultfs.FS

	mu     sync.Mutex // guards the fields below
	role   *Role      // of the last start
	up     bool
	hard   Hard
	behind []int
	fatal  error
	full   bool
	saves  int
	gate   chan struct{} // while not nil, operations of the kind gated on segments wait for it
	gated  string

	log     *wal.Log
	applier *recorder
}

// cluster is some nodes in one process, with a network that obeys.
type cluster struct {
	t     *testing.T
	nodes []*node
	clock clock.Clock

	mu      sync.Mutex
	random  *rand.Rand
	cut     map[[2]int]bool // from, to
	drop    float64
	repeat  float64
	jitter  time.Duration
	delay   time.Duration
	links   map[[2]int]chan []byte
	tap     func(from, to int, packet []byte) []byte // may change a packet; nil to drop
	stop    chan struct{}
	running sync.WaitGroup
	segment int64
	window  int64
}

// virtual runs a test on virtual time.
func virtual(t *testing.T, run func(*testing.T)) { synctest.Test(t, run) }

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{t: t, clock: clock.System{}, random: rand.New(rand.NewPCG(1, 2)), cut: map[[2]int]bool{},
		delay: time.Millisecond, links: map[[2]int]chan []byte{}, stop: make(chan struct{}), segment: 64 << 10}
	for i := range n {
		mem := memfs.New()
		one := &node{t: t, c: c, n: i, mem: mem, disk: faultfs.New(mem), hard: Hard{Vote: NoNode}, gated: "sync"}
		mem.OnOp(one.hold)
		c.nodes = append(c.nodes, one)
	}
	t.Cleanup(c.close)
	return c
}

// hold lets operations on the log wait while there is a gate.
func (n *node) hold(op memfs.Op) {
	n.mu.Lock()
	gate, kind := n.gate, n.gated
	n.mu.Unlock()
	if op.Kind == kind && !op.Done && gate != nil && strings.HasPrefix(op.Name, "log/") {
		<-gate
	}
}

// link carries packets from one node to another, in order.
func (c *cluster) link(from, to int) chan []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]int{from, to}
	ch := c.links[key]
	if ch == nil {
		ch = make(chan []byte, 4096)
		c.links[key] = ch
		c.running.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case p := <-ch:
					time.Sleep(c.delay) // of virtual time: how long it is on its way
					c.deliver(from, to, p)
				}
			}
		})
	}
	return ch
}

func (c *cluster) deliver(from, to int, packet []byte) {
	c.mu.Lock()
	lost := c.cut[[2]int{from, to}] || c.random.Float64() < c.drop
	twice := c.random.Float64() < c.repeat
	later := time.Duration(0)
	if c.jitter > 0 {
		later = time.Duration(c.random.Int64N(int64(c.jitter)))
	}
	tap := c.tap
	c.mu.Unlock()
	if lost {
		return
	}
	if tap != nil {
		if packet = tap(from, to, packet); packet == nil {
			return
		}
	}
	receive := func() {
		if r := c.nodes[to].running(); r != nil {
			if err := r.Receive(from, packet); err != nil {
				var refused *RefusedError
				if errors.As(err, &refused) && (refused.Code == CodeMalformed || refused.Code == CodeForeign) {
					c.t.Errorf("node %d, from node %d: %v", to, from, err)
				}
			}
		}
	}
	if twice {
		again := slices.Clone(packet)
		c.running.Go(func() {
			time.Sleep(later + 3*time.Millisecond)
			if r := c.nodes[to].running(); r != nil {
				_ = r.Receive(from, again)
			}
		})
	}
	if later > 0 { // and so in another order
		c.running.Go(func() {
			time.Sleep(later)
			receive()
		})
		return
	}
	receive()
}

func (n *node) running() *Role {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up {
		return nil
	}
	return n.role
}

// start opens the log and starts a role on it.
func (n *node) start() *Role {
	n.t.Helper()
	commit := entry.Index(0)
	log, _, err := wal.Open(wal.Config{FS: n.disk, Clock: n.c.clock, LogID: testLog, Create: true, SegmentBytes: n.c.segment, Inline: true}, 0,
		func(e *entry.Entry, _ entry.Position) error {
			commit = max(commit, e.Commit)
			return nil
		})
	if err != nil {
		n.t.Fatalf("node %d: %v", n.n, err)
	}
	if log.Durable() != log.Last() {
		if err := log.Sync(); err != nil {
			n.t.Fatal(err)
		}
	}
	applier := &recorder{log: log, payloads: map[entry.Index]string{}}
	r, err := New(n.config(log, applier, 0, commit))
	if err != nil {
		n.t.Fatalf("node %d: %v", n.n, err)
	}
	n.mu.Lock()
	n.log, n.applier, n.role, n.up = log, applier, r, true
	n.mu.Unlock()
	if err := r.Start(); err != nil {
		n.t.Fatal(err)
	}
	return r
}

func (n *node) config(log *wal.Log, applier replication.Applier, applied, commit entry.Index) Config {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Config{
		Self: n.n, Nodes: len(n.c.nodes), LogID: testLog, Log: log, Applied: applied, Commit: commit, Hard: n.hard,
		Applier: applier, Clock: n.c.clock, Random: rand.New(rand.NewPCG(uint64(n.n), 99)), Window: n.c.window,
		Marker: marker,
		Save: func(h Hard) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			if h.Term < n.hard.Term || h.Term == n.hard.Term && n.hard.Vote != NoNode && h.Vote != n.hard.Vote {
				n.t.Errorf("node %d: saves %+v after %+v", n.n, h, n.hard)
			}
			n.hard = h
			n.saves++
			return nil
		},
		Send: func(to int, packet []byte) {
			select {
			case n.c.link(n.n, to) <- packet:
			default:
			}
		},
		Behind: func(leader int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.behind = append(n.behind, leader)
		},
		Fatal: func(err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.fatal = err
		},
		Full: func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.full
		},
	}
}

func marker(f *wal.Frames, timeMS int64) { f.End(f.Begin(fact.KindMarker, timeMS)) }

// halt closes the role and the log of a node.
func (n *node) halt() {
	n.mu.Lock()
	r, log := n.role, n.log
	up := n.up
	n.up = false
	n.mu.Unlock()
	if !up {
		return
	}
	if err := r.Close(); err != nil {
		n.t.Error(err)
	}
	log.Close()
	n.check()
}

// crash is halt, and of what was not synced some is gone.
func (n *node) crash() {
	n.halt()
	n.c.mu.Lock()
	seed, state := n.c.random.Uint64(), n.c.random.IntN(6) // 0: all of it is gone
	n.c.mu.Unlock()
	n.mem = n.mem.Crash(seed, state).FS
	n.mem.OnOp(n.hold)
	n.disk = faultfs.New(n.mem)
}

func (n *node) check() {
	n.applier.look(func() {
		for _, w := range n.applier.wrong {
			n.t.Errorf("node %d: %s", n.n, w)
		}
		n.applier.wrong = nil
	})
}

func (c *cluster) start() {
	for _, n := range c.nodes {
		n.start()
	}
}

func (c *cluster) close() {
	for _, n := range c.nodes {
		n.halt()
	}
	close(c.stop)
	c.running.Wait()
}

// isolate cuts a node off, or connects it again.
func (c *cluster) isolate(n int, off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m := range c.nodes {
		c.cut[[2]int{n, m}], c.cut[[2]int{m, n}] = off, off
	}
}

// await waits, on virtual time, until done says so.
func (c *cluster) await(what string, done func() bool) {
	c.t.Helper()
	for range 20_000 {
		synctest.Wait()
		if done() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	for _, n := range c.nodes {
		if r := n.running(); r != nil {
			c.t.Logf("node %d: %+v, fatal %v", n.n, r.Info(), n.fatal)
		}
	}
	c.t.Fatalf("%s: not within 20 s", what)
}

// leader waits until a node decides that is in touch with a majority, and returns it.
func (c *cluster) leader() *node {
	c.t.Helper()
	var leader *node
	c.await("a leader", func() bool {
		leader = nil
		var term entry.Term
		for _, n := range c.nodes {
			r := n.running()
			if r == nil {
				continue
			}
			if info := r.Info(); info.Deciding && info.Term > term {
				leader, term = n, info.Term
			}
		}
		for _, n := range c.nodes { // not one that others have left behind
			if r := n.running(); leader != nil && r != nil && r.Info().Term > term {
				return false
			}
		}
		return leader != nil
	})
	return leader
}

func payloads(name string, n int) *wal.Frames {
	f := new(wal.Frames)
	for i := range n {
		f.End(fmt.Appendf(f.Begin(fact.KindMarker, 1), "%s-%d", name, i))
	}
	return f
}

// propose proposes n entries and fails the test if they are not taken.
func (n *node) propose(name string, count int) entry.Index {
	n.t.Helper()
	f := payloads(name, count)
	if err := propose(n.role, f); err != nil {
		n.t.Fatalf("node %d: propose %s: %v", n.n, name, err)
	}
	return f.Last()
}

// awaitApplied waits until nodes were told that index is committed.
func (c *cluster) awaitApplied(index entry.Index, nodes ...*node) {
	c.t.Helper()
	if len(nodes) == 0 {
		nodes = c.nodes
	}
	c.await(fmt.Sprintf("entry %d applied", index), func() bool {
		for _, n := range nodes {
			if n.running() == nil || n.running().Status().Committed < index {
				return false
			}
			at := entry.Index(0)
			n.applier.look(func() { at = n.applier.at })
			if at < index {
				return false
			}
		}
		return true
	})
}

// equal checks that the logs of all nodes are the same, byte for byte. All are down.
func (c *cluster) equal() {
	c.t.Helper()
	for _, n := range c.nodes[1:] {
		got, err := wal.Compare(vfs.FS(c.nodes[0].mem), "log", n.mem, "log")
		if err != nil || !got.Equal() {
			c.t.Errorf("the logs of nodes 0 and %d: %+v, %v", n.n, got, err)
		}
	}
}

// settle waits until all nodes have the same log and have applied it, then stops them and compares the logs.
func (c *cluster) settle() {
	c.t.Helper()
	l := c.leader()
	c.awaitApplied(l.log.Last())
	for _, n := range c.nodes {
		n.halt()
	}
	c.equal()
}

// propose is Propose of one who decides on what is applied.
func propose(r *Role, f *wal.Frames) error {
	_ = r.Resume() // if it refuses, so does Propose
	return r.Propose(f)
}
