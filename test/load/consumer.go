package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// consumer is the only member of its group: it reads all topics in turn and commits what it read, or a part.
type consumer struct {
	load  *Load
	group string
	rand  *rand.Rand
}

func newConsumer(l *Load, i int) *consumer {
	return &consumer{load: l, group: fmt.Sprintf("%sg%d", l.cfg.Prefix, i), rand: rand.New(rand.NewPCG(l.cfg.Seed, uint64(2000+i)))}
}

func (g *consumer) run(ctx context.Context, c *Client) {
	for ctx.Err() == nil {
		for _, topic := range g.load.cfg.Topics {
			if ctx.Err() != nil || !g.step(ctx, c, topic) {
				return
			}
		}
	}
}

// step reads and commits once, and reports whether the broker still answers.
func (g *consumer) step(ctx context.Context, c *Client, topic string) bool {
	page, a := c.groupFetch(ctx, g.load.Checker, g.group, topic, 1+g.rand.IntN(300), g.rand.IntN(10))
	g.load.note(a)
	switch {
	case a.Status == 0:
		return c.goesOn(ctx)
	case a.refused() && a.Status != http.StatusNotFound:
		g.load.strangeAnswer("fetch of group "+g.group, a)
	}
	n := uint64(len(page.Records))
	if n == 0 {
		return a.Outcome == Done || pause(ctx, 5*time.Millisecond)
	}
	next := page.Next
	switch dice := g.rand.IntN(20); {
	case dice == 0:
		return true // as if it had died before the commit
	case dice < 4:
		next -= g.rand.Uint64N(n)
	case dice == 4 && next > page.Start:
		next = page.Start + g.rand.Uint64N(next-page.Start) // back, on purpose: a replay
	}
	a = g.load.note(c.commit(ctx, g.load.Checker, g.group, topic, next))
	if a.refused() {
		// Right only when the start was moved over it meanwhile.
		if start := g.load.Checker.StartMost(topic); a.Code != "offset_out_of_range" || next >= start {
			g.load.strangeAnswer(fmt.Sprintf("commit of %d by group %s with the start at most at %d", next, g.group, start), a)
		}
	}
	return a.Status != 0 || c.goesOn(ctx)
}

// reader follows all topics and looks back at times.
type reader struct {
	load *Load
	rand *rand.Rand
	next map[string]uint64
}

func newReader(l *Load, i int) *reader {
	return &reader{load: l, rand: rand.New(rand.NewPCG(l.cfg.Seed, uint64(3000+i))), next: map[string]uint64{}}
}

func (r *reader) run(ctx context.Context, c *Client) {
	for ctx.Err() == nil {
		for _, topic := range r.load.cfg.Topics {
			if ctx.Err() != nil || !r.step(ctx, c, topic) {
				return
			}
		}
	}
}

// step reads once and reports whether the broker still answers.
func (r *reader) step(ctx context.Context, c *Client, topic string) bool {
	h := r.load.Checker
	from, follows := r.next[topic], true
	if start, end := h.Bounds(topic); r.rand.IntN(4) == 0 && end > start {
		from, follows = start+r.rand.Uint64N(end-start), false
	}
	page, a := c.fetch(ctx, h, topic, from, 1+r.rand.IntN(200), r.rand.IntN(10))
	r.load.note(a)
	switch {
	case a.Status == 0:
		return c.goesOn(ctx)
	case a.Status == http.StatusGone && follows:
		r.next[topic] = a.Start
	case a.refused() && a.Status != http.StatusNotFound && a.Status != http.StatusGone:
		r.load.strangeAnswer(fmt.Sprintf("fetch of %q from %d", topic, from), a)
	case a.Outcome == Done && follows:
		r.next[topic] = page.Next
	}
	return a.Outcome == Done || a.Status == http.StatusGone || pause(ctx, 5*time.Millisecond)
}
