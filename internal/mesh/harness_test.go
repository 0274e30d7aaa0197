package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
)

// cluster is some nodes in one process, connected by what connect makes.
type cluster struct {
	t       *testing.T
	n       int
	nodes   []*node
	connect func() (dialed, accepted net.Conn)

	mu  sync.Mutex
	cut map[[2]int]bool // from, to: no connection is made
}

// node is one of them, through its lives.
type node struct {
	c     *cluster
	self  int
	mesh  *Mesh
	hello Hello
	log   *logBuffer

	mu     sync.Mutex
	got    []string // packets, "from text"
	lost   []int
	drops  map[Drop]int
	conns  []net.Conn // dialed by it, the newest last
	check  func(from int, h Hello) error
	packet func(from int, packet []byte)
	answer func(ctx context.Context, from int, request []byte) []byte
	config func(*Config)
}

// pipes makes connections in memory, that wait for a reader with each write.
func pipes() (net.Conn, net.Conn) { return net.Pipe() }

// newCluster makes nodes that do not run yet.
func newCluster(t *testing.T, n int, connect func() (net.Conn, net.Conn)) *cluster {
	c := &cluster{t: t, n: n, connect: connect, cut: make(map[[2]int]bool)}
	for i := range n {
		d := &node{c: c, self: i, log: &logBuffer{}, drops: make(map[Drop]int)}
		d.hello = Hello{Fingerprint: [32]byte{1}, NodeID: [16]byte{byte(i + 1)}, LogID: [16]byte{9}, Boot: 1, Nonce: uint64(100 + i)}
		c.nodes = append(c.nodes, d)
	}
	return c
}

// start runs a life of the node.
func (d *node) start() {
	cfg := Config{
		Self: d.self, Nodes: d.c.n, Dial: d.dial, Hello: func() Hello { return d.hello },
		Check: func(from int, h Hello) error {
			if d.check != nil {
				return d.check(from, h)
			}
			return nil
		},
		Packet: func(from int, packet []byte) {
			if d.packet != nil {
				d.packet(from, packet)
				return
			}
			d.mu.Lock()
			d.got = append(d.got, fmt.Sprintf("%d %s", from, packet))
			d.mu.Unlock()
		},
		Answer: func(ctx context.Context, from int, request []byte) []byte {
			if d.answer != nil {
				return d.answer(ctx, from, request)
			}
			return fmt.Appendf(nil, "%d asked %s", from, request)
		},
		Lost: func(peer int) {
			d.mu.Lock()
			d.lost = append(d.lost, peer)
			d.mu.Unlock()
		},
		Clock: clock.System{}, Random: rand.New(rand.NewPCG(1, uint64(d.self))), Logger: slog.New(slog.NewTextHandler(d.log, nil)),
		Observer: Observer{Dropped: func(_ int, why Drop, n int) {
			d.mu.Lock()
			d.drops[why] += n
			d.mu.Unlock()
		}},
	}
	if d.config != nil {
		d.config(&cfg)
	}
	m := New(cfg)
	d.c.mu.Lock()
	d.mesh = m
	d.c.mu.Unlock()
	m.Start()
}

// stop ends a life: connections and all.
func (d *node) stop() {
	d.c.mu.Lock()
	m := d.mesh
	d.mesh = nil
	d.c.mu.Unlock()
	if m != nil {
		m.Close()
	}
}

func (d *node) dial(ctx context.Context, to int) (net.Conn, error) {
	if to >= len(d.c.nodes) {
		return nil, errors.New("no such host")
	}
	d.c.mu.Lock()
	other, cut, connect := d.c.nodes[to].mesh, d.c.cut[[2]int{d.self, to}], d.c.connect
	d.c.mu.Unlock()
	if other == nil || cut {
		return nil, errors.New("connection refused")
	}
	near, far := connect()
	go func() { // ends with the stream, which Close of either side ends
		other.Serve(far)
		far.Close()
	}()
	d.mu.Lock()
	d.conns = append(d.conns, near)
	d.mu.Unlock()
	return near, nil
}

// packets returns what came, and forgets it.
func (d *node) packets() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	got := d.got
	d.got = nil
	return got
}

// lostTo returns to which peers streams broke.
func (d *node) lostTo() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lost)
}

// dials returns how many connections it made.
func (d *node) dials() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

func (d *node) dropped(why Drop) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drops[why]
}

// run runs f in a bubble with a cluster that is started, connected, and stopped at the end.
func run(t *testing.T, n int, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n, pipes)
		c.startAll()
		defer c.stopAll()
		f(t, c)
	})
}

func (c *cluster) startAll() {
	for _, d := range c.nodes {
		d.start()
	}
	c.settle()
}

// settle waits until all that are up are connected.
func (c *cluster) settle() {
	c.t.Helper()
	for range 100 {
		synctest.Wait()
		if c.connected() {
			return
		}
		time.Sleep(50 * time.Millisecond) // of the bubble's time
	}
	c.t.Fatal("the nodes do not connect")
}

func (c *cluster) connected() bool {
	for _, d := range c.nodes {
		for to, p := range d.mesh.peers {
			if p != nil && c.nodes[to].mesh != nil && (p.out[packets].Load() == nil || p.out[calls].Load() == nil) {
				return false
			}
		}
	}
	return true
}

func (c *cluster) stopAll() {
	for _, d := range c.nodes {
		d.stop()
	}
}

// logBuffer is a log that many goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *logBuffer) count(s string) int { return strings.Count(b.String(), s) }

var _ io.Writer = (*logBuffer)(nil)
