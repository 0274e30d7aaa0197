package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"example.com/mq/internal/replication/pair"
)

var errUnreachable = errors.New("the other machine is not reached")

// network is all connections. Packets move only when the scheduler says so.
type network struct {
	conns []*conn
	made  int
	cut   [2]bool // what this machine sends does not arrive
}

// conn is one connection. side 0 is who dialed.
type conn struct {
	number int
	ends   [2]*end
	flight [2][]packet // sent by a side, on its way to the other
	faulty bool        // something on its way was tampered with
}

// packet is what is on its way; nil data is the end of the stream.
type packet []byte

// end is one end of a connection: a pair.Link.
type end struct {
	w     *world
	conn  *conn
	side  int
	owner *process

	arrival *sync.Cond // on world.mu: the fields below have changed
	inbox   []packet
	over    bool // the stream from the other side has ended
	closed  bool // by its owner
}

var _ pair.Link = (*end)(nil)

// Write implements pair.Link. It never waits.
func (e *end) Write(head, body []byte) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.closed || e.over {
		return io.ErrClosedPipe
	}
	if e.owner.dead {
		return nil
	}
	p := make(packet, 0, len(head)+len(body))
	p = append(append(p, head...), body...)
	e.conn.flight[e.side] = append(e.conn.flight[e.side], p)
	e.w.note("%v sends %d bytes of kind %d on %d", e.owner.m.i, len(p), p[12], e.conn.number)
	return nil
}

// Read implements pair.Link.
func (e *end) Read() ([]byte, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	for len(e.inbox) == 0 {
		if e.closed {
			return nil, io.ErrClosedPipe
		}
		if e.over {
			return nil, io.EOF
		}
		e.arrival.Wait()
	}
	p := e.inbox[0]
	e.inbox = e.inbox[1:]
	return p, nil
}

// Ready implements pair.Link.
func (e *end) Ready() bool {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return len(e.inbox) > 0
}

// Close implements pair.Link.
func (e *end) Close() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.shut(!e.owner.dead)
	return nil
}

// shut closes the end; tell says whether the other side gets to know. Called with world.mu held.
func (e *end) shut(tell bool) {
	if e.closed {
		return
	}
	e.closed = true
	e.inbox = nil
	if tell {
		e.conn.flight[e.side] = append(e.conn.flight[e.side], nil)
	}
	e.arrival.Broadcast()
}

// dial is the pair.Dial of a process.
func (p *process) dial(context.Context) (pair.Link, error) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.machines[1-p.m.i].p
	if p.dead || q == nil || q.dead || q.n == nil || w.net.cut[0] || w.net.cut[1] {
		return nil, errUnreachable
	}
	c := &conn{number: w.net.made}
	w.net.made++
	for side, owner := range []*process{p, q} {
		c.ends[side] = &end{w: w, conn: c, side: side, owner: owner, arrival: sync.NewCond(&w.mu)}
	}
	w.net.conns = append(w.net.conns, c)
	w.note("connection %d from %d to %d", c.number, p.m.i, q.m.i)
	q.whenAwake(func() { q.serving.Go(func() { q.n.ServeLink(c.ends[1]) }) })
	return c.ends[0], nil
}

// connected reports whether a process has a connection that the other machine's process of now has made. What a leader sent
// before it died may still begin a session, which brings nothing that it has acknowledged alone since. (That both come together is
// not told apart.) Called with mu held.
func (w *world) connected(p *process) bool {
	return slices.ContainsFunc(w.net.conns, func(c *conn) bool {
		leader, follower := c.ends[0], c.ends[1]
		return follower.owner == p && !follower.closed && leader.owner == w.machines[1-p.m.i].p && !leader.owner.dead && !leader.closed
	})
}

// deliverable lists the directions that have a packet which may arrive now. Called with mu held.
func (w *world) deliverable() (list []direction) {
	w.net.conns = compact(w.net.conns)
	for _, c := range w.net.conns {
		for side := range c.flight {
			d := direction{c, side}
			if len(c.flight[side]) > 0 && !w.net.cut[c.ends[side].owner.m.i] && !d.to().owner.paused {
				list = append(list, d)
			}
		}
	}
	return list
}

// underWay lists the directions that have a packet. Called with mu held.
func (w *world) underWay() (list []direction) {
	for _, c := range w.net.conns {
		for side := range c.flight {
			if len(c.flight[side]) > 0 {
				list = append(list, direction{c, side})
			}
		}
	}
	return list
}

// compact forgets connections of which nothing can come any more.
func compact(conns []*conn) []*conn {
	left := conns[:0]
	for _, c := range conns {
		if !(c.ends[0].closed && c.ends[1].closed) {
			left = append(left, c)
		}
	}
	return left
}

// direction is one way of a connection.
type direction struct {
	c    *conn
	side int // who sends
}

func (d direction) to() *end { return d.c.ends[1-d.side] }

// deliver lets the next packet of a direction arrive. Called with mu held.
func (w *world) deliver(d direction) {
	p := d.c.flight[d.side][0]
	d.c.flight[d.side] = d.c.flight[d.side][1:]
	e := d.to()
	if e.closed {
		return
	}
	if p == nil {
		w.note("end of %d reaches %d", d.c.number, e.owner.m.i)
		e.over = true
	} else {
		w.note("deliver %d bytes of kind %d on %d to %d", len(p), p[12], d.c.number, e.owner.m.i)
		e.inbox = append(e.inbox, p)
	}
	e.arrival.Broadcast()
}

// disturb breaks what is on its way in a direction. Called with mu held.
func (w *world) disturb(d direction, how int) {
	f := d.c.flight[d.side]
	i := w.rng.IntN(len(f))
	d.c.faulty = true
	switch {
	case how == 0 && f[i] != nil:
		w.note("drop a packet of %d", d.c.number)
		d.c.flight[d.side] = append(f[:i:i], f[i+1:]...)
	case how == 1 && f[i] != nil:
		w.note("repeat a packet of %d", d.c.number)
		d.c.flight[d.side] = append(f[:i:i], append([]packet{f[i]}, f[i:]...)...)
	case how == 2 && len(f) > 1 && f[len(f)-1] != nil:
		w.note("mix up packets of %d", d.c.number)
		j := (i + 1) % len(f)
		f[i], f[j] = f[j], f[i]
	case how == 3 && f[i] != nil:
		w.note("change a packet of %d", d.c.number)
		b := bytes.Clone(f[i])
		b[w.rng.IntN(len(b))] ^= 1 << w.rng.IntN(8)
		f[i] = b
	default:
		w.reset(d.c)
	}
}

// reset ends a connection on both sides. Called with mu held.
func (w *world) reset(c *conn) {
	w.note("reset connection %d", c.number)
	c.flight = [2][]packet{}
	for _, e := range c.ends {
		e.owner.whenAwake(func() {
			e.over = true
			e.arrival.Broadcast()
		})
	}
}
