package raft

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Limits of the network.
const (
	heldMax     = 64              // packets that wait behind a cut
	callTimeout = 2 * time.Second // of a call whose request or answer is lost
)

var errUnreachable = errors.New("the other node is not reached")

// link is one way between two machines. Guarded by world.mu.
type link struct {
	cut  bool
	held []func()      // what waits for the end of the cut
	last time.Duration // when the last packet arrives; in order, no other comes before
}

// latency draws how long a packet takes. Called with mu held.
func (w *world) latency() time.Duration {
	p := &w.plan
	d := time.Duration(w.dice.ExpFloat64() * float64(p.latency))
	if p.lateOneIn > 0 && !w.quieting && w.dice.IntN(p.lateOneIn) == 0 {
		if by := time.Duration(w.dice.Int64N(int64(p.late))); !w.spares.Spare(faultNames[latePacket]) {
			d += by
		}
	}
	return max(d, 20*time.Microsecond)
}

// carry brings something over a link: arrive is called with mu held when, and if, it arrives; lost, if not nil, when it
// is certain that it does not. Called with mu held.
func (w *world) carry(from, to int, arrive, lost func()) {
	l := &w.links[from][to]
	if w.plan.dropOneIn > 0 && !w.quieting && w.dice.IntN(w.plan.dropOneIn) == 0 && !w.spares.Spare(faultNames[dropPacket]) {
		w.stats.dropped++
		if lost != nil {
			lost()
		}
		return
	}
	d := w.latency()
	if w.plan.inOrder {
		d = max(d, l.last-w.now+1)
		l.last = w.now + d
	}
	w.after(d, func() {
		switch {
		case !l.cut:
			arrive()
		case w.plan.holdCut && len(l.held) < heldMax:
			l.held = append(l.held, arrive)
		default:
			w.stats.dropped++
			if lost != nil {
				lost()
			}
		}
	})
}

// mend ends a cut: what was held arrives now. Called with mu held.
func (w *world) mend(from, to int) {
	l := &w.links[from][to]
	l.cut = false
	held := l.held
	l.held = nil
	if p := w.machines[from].p; p != nil && w.dice.IntN(2) == 0 {
		w.disconnect(p, to)
	}
	for _, arrive := range held {
		w.after(w.latency(), arrive)
	}
}

// send is the Send of a process.
func (p *process) send(to int, packet []byte) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead || w.ending {
		return
	}
	w.stats.packets++
	w.note("%d sends %d bytes of type %d to %d", p.m.i, len(packet), packet[packetType], to)
	if to < 0 || to >= len(w.machines) || to == p.m.i {
		w.violated("packets go to other nodes", "machine %d sends to %d", p.m.i, to)
		return
	}
	w.sent(p, to, packet)
	times := 1
	if w.plan.repeatOneIn > 0 && !w.quieting && w.dice.IntN(w.plan.repeatOneIn) == 0 && !w.spares.Spare(faultNames[repeatPacket]) {
		times = 2
	}
	for range times {
		w.carry(p.m.i, to, func() { w.receive(p.m.i, to, packet) }, nil)
	}
}

// receive hands a packet to the process that runs there. Called with mu held.
func (w *world) receive(from, to int, packet []byte) {
	q := w.machines[to].p
	if q == nil || q.dead || q.n == nil {
		return
	}
	q.whenAwake(func() {
		w.note("%d gets %d bytes of type %d of %d", to, len(packet), packet[packetType], from)
		q.serving.Go(func() { q.n.PeerPacket(from, packet) })
	})
}

// answer is what comes of a call.
type answer struct {
	bytes []byte
	err   error
}

// call is a call under way.
type call struct {
	p    *process
	got  chan answer // has room for one
	done bool
}

// settle ends the call. Called with mu held.
func (c *call) settle(a answer) {
	if c.done {
		return
	}
	c.done = true
	c.got <- a
	if i := slices.Index(c.p.open, c); i >= 0 {
		c.p.open = slices.Delete(c.p.open, i, i+1)
	}
}

func (c *call) fail() { c.settle(answer{err: errUnreachable}) }

// call is the Call of a process.
func (p *process) call(ctx context.Context, to int, request []byte) ([]byte, error) {
	w := p.w
	c := &call{p: p, got: make(chan answer, 1)}
	w.mu.Lock()
	if p.dead || w.ending {
		w.mu.Unlock()
		return nil, errUnreachable
	}
	w.stats.calls++
	w.note("%d calls %d with %d bytes", p.m.i, to, len(request))
	from := p.m.i
	p.open = append(p.open, c)
	fail := func() { w.after(w.latency(), c.fail) }
	w.carry(from, to, func() {
		q := w.machines[to].p
		if q == nil || q.dead || q.n == nil {
			fail()
			return
		}
		q.whenAwake(func() {
			q.serving.Go(func() {
				b := q.n.PeerAnswer(q.ctx, from, request)
				w.mu.Lock()
				defer w.mu.Unlock()
				if q.dead {
					fail()
					return
				}
				w.note("%d answers a call of %d with %d bytes", to, from, len(b))
				w.carry(to, from, func() { p.whenAwake(func() { c.settle(answer{bytes: b}) }) }, nil)
			})
		})
	}, nil)
	w.after(callTimeout, func() { p.whenAwake(c.fail) })
	w.mu.Unlock()
	select {
	case a := <-c.got:
		return a.bytes, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
