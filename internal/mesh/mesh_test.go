package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
)

// TestPackets: every node reaches every other one, whole, in order, small and large.
func TestPackets(t *testing.T) {
	run(t, 3, func(t *testing.T, c *cluster) {
		large := strings.Repeat("x", 3<<20)
		for _, d := range c.nodes {
			for to := range c.n {
				if to == d.self {
					continue
				}
				for i := range 100 {
					d.mesh.Send(to, fmt.Appendf(nil, "%d", i))
				}
				d.mesh.Send(to, []byte(large))
				d.mesh.Send(to, nil)
				d.mesh.Send(to, []byte("end"))
			}
		}
		synctest.Wait()
		for _, d := range c.nodes {
			got := d.packets()
			for from := range c.n {
				if from == d.self {
					continue
				}
				var want []string
				for i := range 100 {
					want = append(want, fmt.Sprintf("%d %d", from, i))
				}
				want = append(want, fmt.Sprintf("%d %s", from, large), fmt.Sprintf("%d ", from), fmt.Sprintf("%d end", from))
				mine := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s[0] != byte('0'+from) })
				if !slices.Equal(mine, want) {
					t.Errorf("node %d got %d packets of %d: %.200q", d.self, len(mine), from, mine)
				}
			}
			for _, p := range d.mesh.Peers() {
				if !p.Connected || p.Dropped != 0 || p.Refused != "" || p.LastContact < 0 {
					t.Errorf("node %d: %+v", d.self, p)
				}
			}
		}
	})
}

// TestUrgent: what may overtake does, and all else stays in order.
func TestUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		hold := make(chan struct{})
		var order []string
		c.nodes[1].packet = func(_ int, p []byte) {
			<-hold
			order = append(order, string(p))
		}
		c.nodes[0].config = func(cfg *Config) { cfg.Urgent = func(p []byte) bool { return p[0] == 'u' } }
		c.startAll()
		defer c.stopAll()
		// The first is on its way, and the receiver stops there: net.Pipe holds nothing, so what follows waits.
		c.nodes[0].mesh.Send(1, bytes.Repeat([]byte("a"), 2*readBuffer))
		synctest.Wait()
		c.nodes[0].mesh.Send(1, bytes.Repeat([]byte("b"), 2*readBuffer))
		synctest.Wait()
		for _, s := range []string{"c", "u1", "d", "u2"} {
			c.nodes[0].mesh.Send(1, []byte(s))
		}
		close(hold)
		synctest.Wait()
		var got []string
		for _, s := range order {
			got = append(got, s[:min(2, len(s))])
		}
		if want := []string{"aa", "bb", "u1", "u2", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestQueueIsBounded: a peer that takes nothing costs so much memory and no more, is given up, and the others notice nothing.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, pipes)
		hold := make(chan struct{})
		var stuck atomic.Int64
		c.nodes[1].packet = func(int, []byte) { stuck.Add(1); <-hold }
		for _, d := range c.nodes {
			d.config = func(cfg *Config) { cfg.QueueBytes = 1 << 20 }
		}
		c.startAll()
		defer c.stopAll()
		defer close(hold)
		began := time.Now()
		packet := bytes.Repeat([]byte("p"), 100<<10)
		for range 100 {
			c.nodes[0].mesh.Send(1, packet)
		}
		synctest.Wait()
		if d := time.Since(began); d != 0 {
			t.Errorf("Send waited for %v", d)
		}
		box := &c.nodes[0].mesh.peers[1].out[packets].Load().box
		if box.bytes > 1<<20 || box.bytes < 700<<10 {
			t.Errorf("%d bytes wait", box.bytes)
		}
		full := c.nodes[0].dropped(DropFull)
		if full < 85 || full > 92 {
			t.Errorf("%d packets were dropped", full)
		}
		c.nodes[0].mesh.Send(2, []byte("hello"))
		synctest.Wait()
		if got := c.nodes[2].packets(); !slices.Equal(got, []string{"0 hello"}) {
			t.Errorf("the other got %q", got)
		}
		time.Sleep(2 * silenceMax)
		synctest.Wait()
		if n := c.nodes[0].dropped(DropLost); n == 0 || len(c.nodes[0].lostTo()) == 0 || c.nodes[0].lostTo()[0] != 1 {
			t.Errorf("%d packets lost, streams lost: %v", n, c.nodes[0].lostTo())
		}
		if n := stuck.Load(); n != 1 {
			t.Errorf("%d packets were handed over at once", n) // the streams that replace the first wait for it
		}
	})
}

// TestQuietStreamsStay: pings keep streams open on which nothing is said, for both sides.
func TestQuietStreamsStay(t *testing.T) {
	run(t, 3, func(t *testing.T, c *cluster) {
		var conns int
		for _, d := range c.nodes {
			conns += d.dials()
		}
		time.Sleep(time.Minute)
		for _, d := range c.nodes {
			conns -= d.dials()
			if len(d.lostTo()) > 0 {
				t.Errorf("node %d lost %v", d.self, d.lostTo())
			}
			for _, p := range d.mesh.Peers() {
				if p.LastContact > pingEvery+2*mindEvery {
					t.Errorf("node %d: %+v", d.self, p)
				}
			}
		}
		if conns != 0 {
			t.Errorf("%d more connections", -conns)
		}
	})
}

// deaf is a connection on which, from some moment on, nothing goes through, and nobody is told.
type deaf struct {
	net.Conn
	dead, closed chan struct{}
}

func (c *deaf) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		select {
		case <-c.dead:
			if err != nil {
				<-c.closed
				return 0, err
			}
		default:
			return n, err
		}
	}
}

func (c *deaf) Write(p []byte) (int, error) {
	select {
	case <-c.dead:
		return len(p), nil // into the buffers of this machine
	default:
		return c.Conn.Write(p)
	}
}

func (c *deaf) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.Conn.Close()
}

// TestHalfOpen: a connection that went dead without a word is found within about 3 s, by both sides.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := make(chan struct{})
		c := newCluster(t, 2, nil)
		c.connect = func() (net.Conn, net.Conn) {
			a, b := net.Pipe()
			return &deaf{a, dead, make(chan struct{})}, &deaf{b, dead, make(chan struct{})}
		}
		c.startAll()
		defer c.stopAll()
		time.Sleep(10 * time.Second)
		close(dead)
		c.mu.Lock()
		c.connect = pipes
		c.mu.Unlock()
		began := time.Now()
		for len(c.nodes[0].lostTo()) == 0 || len(c.nodes[1].lostTo()) == 0 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if time.Since(began) > time.Minute {
				t.Fatal("not found")
			}
		}
		if d := time.Since(began); d < silenceMax-pingEvery-2*mindEvery || d > silenceMax+2*mindEvery {
			t.Errorf("found after %v", d)
		}
		c.settle()
		c.nodes[0].mesh.Send(1, []byte("again"))
		synctest.Wait()
		if got := c.nodes[1].packets(); !slices.Equal(got, []string{"0 again"}) {
			t.Errorf("got %q", got)
		}
	})
}

// TestHeldUp: a process that was stopped for a while does not take the others for gone because of that.
func TestHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		mine := clock.NewManual(time.Now())
		c.nodes[0].config = func(cfg *Config) { cfg.Clock = mine }
		c.startAll()
		defer c.stopAll()
		step := func(d time.Duration) {
			mine.Advance(d)
			synctest.Wait()
		}
		for range 4 {
			step(mindEvery)
		}
		step(10 * time.Second)      // SIGSTOP, SIGCONT: what came meanwhile is not read yet
		time.Sleep(2 * time.Second) // now it is: node 1 sends pings
		step(mindEvery)
		if n := len(c.nodes[0].lostTo()); n > 0 {
			t.Error("the stream was given up")
		}
		for range 20 { // and from here on nothing comes: node 1 stands still
			step(mindEvery)
		}
		if n := len(c.nodes[0].lostTo()); n == 0 {
			t.Error("the stream stays for ever")
		}
	})
}

// TestReconnect: a node that comes back is connected at once, in both directions.
func TestReconnect(t *testing.T) {
	run(t, 3, func(t *testing.T, c *cluster) {
		logged := c.nodes[0].log.count("no connection")
		c.nodes[2].stop()
		synctest.Wait()
		if !slices.Equal(c.nodes[0].lostTo(), []int{2}) || !slices.Equal(c.nodes[1].lostTo(), []int{2}) {
			t.Errorf("lost %v, %v", c.nodes[0].lostTo(), c.nodes[1].lostTo())
		}
		c.nodes[0].mesh.Send(2, []byte("nobody there"))
		if n := c.nodes[0].dropped(DropNoStream); n != 1 {
			t.Errorf("%d dropped", n)
		}
		_, err := c.nodes[0].mesh.Call(t.Context(), 2, nil)
		if unreachable := (*UnreachableError)(nil); !errors.As(err, &unreachable) || unreachable.Node != 2 {
			t.Errorf("Call: %v", err)
		}
		time.Sleep(time.Minute)
		dials := c.nodes[0].dials()
		c.nodes[2].hello.Boot++
		c.nodes[2].start()
		time.Sleep(2 * pauseMin) // not the pause of up to a second that the others are in
		synctest.Wait()
		if !c.connected() {
			t.Error("not all are connected")
		}
		if n := c.nodes[0].dials() - dials; n != 2 {
			t.Errorf("%d connections", n)
		}
		if n := c.nodes[0].log.count("no connection") - logged; n != 1 {
			t.Errorf("logged %d times: %s", n, c.nodes[0].log)
		}
	})
}

// TestBriefStreams: streams that come about and break at once do not follow each other without a rest, though each side
// hears of the other with each of them.
func TestBriefStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, func() (net.Conn, net.Conn) {
			a, b := net.Pipe()
			time.AfterFunc(time.Millisecond, func() { a.Close() })
			return a, b
		})
		for _, d := range c.nodes {
			d.start()
		}
		time.Sleep(time.Minute)
		c.stopAll()
		if n := c.nodes[0].dials() + c.nodes[1].dials(); n < 4*60 || n > 4*130 {
			t.Errorf("%d connections in a minute, for four streams", n)
		}
	})
}

// TestPause: without the other side, attempts become rare, and not in step.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		var times []time.Duration
		began := time.Now()
		c.nodes[0].config = func(cfg *Config) {
			cfg.Dial = func(context.Context, int) (net.Conn, error) {
				c.nodes[0].mu.Lock()
				times = append(times, time.Since(began))
				c.nodes[0].mu.Unlock()
				return nil, errors.New("connection refused")
			}
		}
		c.nodes[0].start()
		time.Sleep(time.Minute)
		c.nodes[0].stop()
		if n := len(times); n < 2*60 || n > 2*130 {
			t.Errorf("%d attempts in a minute, for two streams", n)
		}
		if n := c.nodes[0].log.count("\n"); n != 1 {
			t.Errorf("log: %s", c.nodes[0].log)
		}
	})
}

// TestCheckRefuses: a peer that is not wanted gets nothing through, learns why, and both say so once.
func TestCheckRefuses(t *testing.T) {
	for name, row := range map[string]struct {
		change func(c *cluster)
		want   string // what node 0 says about node 1
		other  string // and node 1 about node 0
	}{
		"check": {func(c *cluster) {
			c.nodes[1].check = func(from int, h Hello) error { return fmt.Errorf("node %d with boot %d\nis old", from, h.Boot) }
		}, "refused by the other node: node 0 with boot 1 is old", "refused by this node: node 0 with boot 1 is old"},
		"other cluster": {func(c *cluster) { c.nodes[0].hello.Fingerprint[5]++ },
			"refused by this node: node 1 belongs to another cluster", "refused by this node: node 0 belongs to another cluster"},
		"other size": {func(c *cluster) { c.nodes[1].config = func(cfg *Config) { cfg.Nodes = 3 } },
			"refused by this node: node 1 belongs to a cluster of 3 nodes", "refused by this node: node 0 belongs to a cluster of 2 nodes"},
		"other number": {func(c *cluster) { c.nodes[1].config = func(cfg *Config) { cfg.Self, cfg.Nodes = 2, 3 }; c.n = 3 },
			"refused by", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, pipes)
				row.change(c)
				for _, d := range c.nodes {
					d.start()
				}
				defer c.stopAll()
				for range 300 {
					time.Sleep(100 * time.Millisecond)
					c.nodes[0].mesh.Send(1, []byte("x"))
				}
				synctest.Wait()
				for i, want := range []string{row.want, row.other} {
					if want == "" {
						continue
					}
					d := c.nodes[i]
					p := d.mesh.Peers()[0]
					if p.Connected || !strings.HasPrefix(p.Refused, want) {
						t.Errorf("node %d: %+v, want %s", i, p, want)
					}
					if n := d.log.count("refused"); n < 1 || n > 4 {
						t.Errorf("node %d logged: %s", i, d.log)
					}
					if got := d.packets(); len(got) > 0 {
						t.Errorf("node %d got %q", i, got)
					}
				}
			})
		})
	}
}

// TestAcceptorRefused: a node that accepts a stream, and is refused by the side that connected, learns why.
func TestAcceptorRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		c.nodes[0].check = func(int, Hello) error { return errors.New("it lost its log") }
		c.cut[[2]int{1, 0}] = true
		for _, d := range c.nodes {
			d.start()
		}
		defer c.stopAll()
		time.Sleep(10 * time.Second)
		if p := c.nodes[1].mesh.Peers()[0]; p.Refused != "refused by the other node: it lost its log" {
			t.Errorf("%+v", p)
		}
		if n := c.nodes[1].log.count("it lost its log"); n != 1 {
			t.Errorf("log: %s", c.nodes[1].log)
		}
	})
}
