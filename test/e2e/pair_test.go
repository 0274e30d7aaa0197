package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// scenario is one of several things that may happen.
type scenario[T any] struct {
	name string
	do   T
}

// draw calls run with one scenario after another in random order, as often as a variable says; each comes once before any
// comes again.
func draw[T any](t *testing.T, dice *rand.Rand, variable string, otherwise int, all []scenario[T], run func(i int, s scenario[T])) {
	t.Helper()
	var order []int
	for i := range process.Count(t, variable, otherwise) {
		if len(order) == 0 {
			order = dice.Perm(len(all))
		}
		run(i, all[order[0]])
		report.Count(t, "mishaps", 1)
		order = order[1:]
	}
}

// patience is how long anything may take that must happen in the end. What must be fast is measured.
const patience = 30 * time.Second

// pair is two nodes, or more, of which at most one leads and follows another.
type pair struct {
	t      *testing.T
	dir    string // of all nodes
	nodes  []*pairNode
	leader int // index of the node that leads
	backup int // index of its follower
	epoch  int
	flags  []string     // of every node
	reach  load.Options // how clients reach the nodes
}

type pairNode struct {
	*process.Node
	url string
	p   *process.Process // what runs, or ran last; nil before the first start
}

// newPair returns a pair in which nothing runs yet. Node 0 leads first, with epoch 1.
func newPair(t *testing.T, flags ...string) *pair {
	t.Helper()
	p := &pair{t: t, dir: process.KeptDir(t), epoch: 1, flags: flags}
	p.addNode()
	p.addNode()
	return p
}

// addNode adds a node with an empty folder, and returns its index.
func (p *pair) addNode() int {
	p.t.Helper()
	address, err := process.FreeAddress()
	if err != nil {
		p.t.Fatal(err)
	}
	return p.add(process.Config{Listen: address}, "http://"+address)
}

func (p *pair) add(cfg process.Config, url string) int {
	i := len(p.nodes)
	cfg.Binary = process.Binary(p.t)
	cfg.Data = filepath.Join(p.dir, fmt.Sprintf("node-%d", i))
	cfg.Log = cfg.Data + ".log"
	cfg.Env = append(cfg.Env, "MQ_REPLICATION_TOKEN="+process.ReplicationToken)
	p.nodes = append(p.nodes, &pairNode{Node: process.NewNode(p.t, cfg), url: url})
	return i
}

// run starts a node with the flags of a role.
func (p *pair) run(i int, role ...string) *process.Process {
	p.t.Helper()
	n := p.nodes[i]
	n.Args = append(append([]string{}, p.flags...), role...)
	n.p = n.Start()
	return n.p
}

// lead starts a node as the leader, with the pair's epoch, of another one.
func (p *pair) lead(i, follower int) *process.Process {
	p.t.Helper()
	p.leader, p.backup = i, follower
	return p.run(i, "-role", "leader", "-epoch", fmt.Sprint(p.epoch), "-replica", p.nodes[follower].url)
}

func (p *pair) follow(i int) *process.Process {
	p.t.Helper()
	return p.run(i, "-role", "follower")
}

// start starts both nodes and waits until they are in step.
func (p *pair) start() {
	p.t.Helper()
	p.follow(1 - p.leader)
	p.lead(p.leader, 1-p.leader)
	p.awaitInStep()
}

func (p *pair) now() *process.Process { return p.nodes[p.leader].p }

// client returns a client that knows all nodes and goes on when none answers.
func (p *pair) client() *load.Client {
	o := p.reach
	o.Patient = true
	for i := range p.nodes {
		o.URLs = append(o.URLs, p.nodes[(p.leader+i)%len(p.nodes)].url)
	}
	return load.Open(o)
}

// clientOf returns a client of one node. heard may be nil.
func (p *pair) clientOf(i int, heard func(url, path string, a load.Answer)) *load.Client {
	o := p.reach
	o.URLs, o.Patient, o.Heard = []string{p.nodes[i].url}, true, heard
	return load.Open(o)
}

// awaitInStep waits until the follower has everything and writes are taken.
func (p *pair) awaitInStep() {
	p.t.Helper()
	p.await("leader and follower are in step", func() string {
		s, err := p.now().PairStatus()
		if err != nil || !s.InStep() {
			return fmt.Sprintf("%+v, %v", s, err)
		}
		// The follower is asked, too: it alone knows that it may be promoted.
		if s, err = p.nodes[p.backup].p.PairStatus(); err != nil || s.State != "streaming" {
			return fmt.Sprintf("follower: %+v, %v", s, err)
		}
		return ""
	})
}

// await waits until lacks returns nothing; else it says what is still lacking.
func (p *pair) await(what string, lacks func() string) {
	p.t.Helper()
	if err := await(lacks); err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.said())
	}
}

// await waits until lacks returns nothing; else the error says what is still lacking.
func await(lacks func() string) error {
	deadline := time.Now().Add(patience)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		still := lacks()
		if still == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", patience, still)
		}
		<-poll.C
	}
}

// said returns the end of what the nodes wrote to standard error.
func (p *pair) said() (text string) {
	for i, n := range p.nodes {
		if n.p != nil {
			text += fmt.Sprintf("--- node %d (%s):\n%s", i, n.url, n.p.Stderr())
		}
	}
	return text
}

// awaitEqual waits until two nodes have the same log, byte for byte. They must be quiet.
func (p *pair) awaitEqual(a, b int) {
	p.t.Helper()
	p.await("equal logs", func() string {
		c, err := p.compare(a, b)
		if err != nil || !c.Equal() {
			return fmt.Sprintf("%+v, %v", c, err)
		}
		return ""
	})
}

// awaitQuiet waits until the leader has written nothing for a while: after the last commit it writes a marker.
func (p *pair) awaitQuiet() {
	p.t.Helper()
	const (
		quiet = 400 * time.Millisecond
		often = 20 // answers without a change: one stall of the machine is no quiet
	)
	var last uint64
	since, same := time.Now(), 0
	p.await("a quiet log", func() string {
		s, err := p.now().PairStatus()
		if same++; err != nil || s.Last != last || s.Peer.Durable != last {
			last, since, same = s.Last, time.Now(), 0
		}
		if same >= often && time.Since(since) > quiet {
			return ""
		}
		return fmt.Sprintf("%+v, %v", s, err)
	})
}

func (p *pair) compare(a, b int) (wal.Comparison, error) {
	var folders [2]*vfs.OS
	for i, n := range []int{a, b} {
		folder, err := vfs.Open(p.nodes[n].Data)
		if err != nil {
			return wal.Comparison{}, err
		}
		defer folder.Close()
		folders[i] = folder
	}
	return wal.Compare(folders[0], "log", folders[1], "log")
}

// readBack checks what the leader has. Nothing else may be under way.
func (p *pair) readBack(l *load.Load, all bool) {
	p.t.Helper()
	c := p.clientOf(p.leader, nil)
	defer c.Close()
	if err := l.ReadBackBy(p.t.Context(), c, all); err != nil {
		p.t.Fatalf("%v\n%s", err, p.said())
	}
	p.check(l)
}

func (p *pair) check(l *load.Load) {
	p.t.Helper()
	if err := l.Err(); err != nil {
		p.t.Fatalf("%v\n%s", err, p.said())
	}
}

// stop stops what runs; each process must exit with status 0.
func (p *pair) stop() {
	p.t.Helper()
	for _, n := range p.nodes {
		if n.p == nil {
			continue
		}
		if err := n.p.Stop(); err != nil {
			p.t.Error(err)
		}
		n.p = nil
	}
}

// swap stops both nodes and lets the other one lead.
func (p *pair) swap() {
	p.t.Helper()
	p.stop()
	p.epoch++
	p.leader = 1 - p.leader
	p.start()
}

// finish settles what is open and reads everything back, from the leader and then from the other node, which is promoted
// for it.
func (p *pair) finish(l *load.Load) {
	p.t.Helper()
	p.awaitInStep()
	c := p.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := l.SettleBy(ctx, c); err != nil {
		p.t.Fatalf("%v\n%s", err, p.said())
	}
	l.Checker.Restarted()
	p.readBack(l, true)
	p.awaitEqual(0, 1)
	p.swap()
	l.Checker.Restarted()
	p.readBack(l, true)
	p.awaitEqual(0, 1)
	p.stop()
	report.History(p.t, l.Checker.Report())
	if r := l.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		p.t.Error("the load did nothing")
	}
}

// cuts returns how many side files there are of what was cut off the logs.
func (p *pair) cuts() (n int) {
	for _, node := range p.nodes {
		n += len(node.cuts(p.t))
	}
	return n
}

// cuts returns the names of the side files of a node.
func (n *pairNode) cuts(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(n.Data, "cut", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// wipe removes the folder of a node that does not run.
func (n *pairNode) wipe(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(n.Data); err != nil {
		t.Fatal(err)
	}
}

// running is a load that works in the background.
type running struct {
	*load.Load
	stop func() // ends it: each call that is under way is finished
}

// begin lets a load work until stop.
func begin(t *testing.T, l *load.Load, c *load.Client) *running {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		l.RunBy(ctx, c)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return &running{l, stop}
}

// awaitAck waits until a publish is acknowledged that was sent after an instant, and returns how long after it that is.
func (p *pair) awaitAck(l *load.Load, after time.Time) time.Duration {
	p.t.Helper()
	p.await("writes are taken", func() string {
		if l.LastAcknowledged().After(after) {
			return ""
		}
		return fmt.Sprintf("answers by status %v; %v", l.Statuses(), l.Err())
	})
	return time.Since(after)
}
