package load

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"example.com/mq/test/history"
)

// publisher sends one publish after another and goes on only when it knows the outcome of the one before,
// except for those without a request id, whose unknown outcome stays unknown.
type publisher struct {
	load *Load
	name string
	rand *rand.Rand
	next int // number of the next publish

	topics []string // empty: those of the load

	pending *publish   // not known to be done or refused
	old     []*publish // some of those that are done
}

// publish is one publish with what is needed to send it again.
type publish struct {
	topic     string
	requestID string // empty for none
	records   []history.Record
	batch     bool
	sent      *history.Sent
	made      time.Time
	open      bool // an attempt has no known outcome
}

func newPublisher(l *Load, i int) *publisher {
	return &publisher{load: l, name: fmt.Sprintf("%sp%d", l.cfg.Prefix, i), rand: rand.New(rand.NewPCG(l.cfg.Seed, uint64(1000+i)))}
}

func (p *publisher) run(ctx context.Context, c *Client) {
	for ctx.Err() == nil {
		p.forget()
		var a Answer
		switch dice := p.rand.IntN(100); {
		case p.pending == nil && dice < 5 && len(p.old) > 0:
			a = p.repeat(ctx, c)
		case p.pending == nil && dice < 8 && len(p.old) > 0:
			a = p.conflict(ctx, c)
		default:
			a = p.step(ctx, c)
		}
		switch {
		case a.Status == 0:
			if !c.goesOn(ctx) {
				return
			}
		case a.Outcome != Done && !pause(ctx, time.Millisecond): // 507 or 503: do not spin
			return
		}
	}
}

// step sends a new publish, or the pending one again.
func (p *publisher) step(ctx context.Context, c *Client) Answer {
	if p.pending == nil {
		p.pending = p.make()
		p.pending.sent = p.load.Checker.Send(history.Publish{
			Name: p.pending.name(), Topic: p.pending.topic, Records: p.pending.records,
		})
	}
	q := p.pending
	h := p.load.Checker
	// One record may go by either endpoint, and the request id covers both.
	batch := q.batch || p.rand.IntN(10) == 0
	began := time.Now()
	offsets, duplicate, a := c.publish(ctx, q.topic, q.requestID, q.records, batch)
	p.load.note(a)
	p.load.notePublish(began, a, duplicate)
	switch a.Outcome {
	case Done:
		h.Done(q.sent, offsets, duplicate)
		p.pending = nil
		if q.requestID != "" {
			p.remember(q)
		}
	case NotDone:
		h.Refused(q.sent)
		// That another node leads, or none, speaks of this attempt only: what became of an earlier one is still to be
		// found out.
		if !a.elsewhere() || !q.open || q.requestID == "" {
			p.pending = nil
		}
		if a.refused() {
			p.load.strangeAnswer("publish "+q.name(), a)
		}
	case Unknown:
		h.Unknown(q.sent)
		q.open = true
		if q.requestID == "" {
			p.pending = nil
		}
	}
	return a
}

// Probe publishes one record of about so many bytes, without a request id, for tests that look at a single
// answer. The checker judges it like any other.
func (l *Load) Probe(ctx context.Context, c *Client, size int) Answer {
	l.mu.Lock()
	l.probes++
	name := fmt.Sprintf("%sprobe-%d ", l.cfg.Prefix, l.probes)
	l.mu.Unlock()
	topic := l.cfg.Topics[0]
	records := []history.Record{{Value: append([]byte(name), make([]byte, size)...)}}
	sent := l.Checker.Send(history.Publish{Name: name, Topic: topic, Records: records})
	offsets, duplicate, a := c.publish(ctx, topic, "", records, false)
	switch l.note(a).Outcome {
	case Done:
		l.Checker.Done(sent, offsets, duplicate)
	case NotDone:
		l.Checker.Refused(sent)
	case Unknown:
		l.Checker.Unknown(sent)
	}
	return a
}

// settle sends the pending publish until its outcome is known.
func (p *publisher) settle(ctx context.Context, c *Client) error {
	for p.pending != nil {
		a := p.step(ctx, c)
		if p.pending != nil && !pause(ctx, time.Millisecond) {
			return fmt.Errorf("%s does not learn the outcome of its publish: %v", p.name, a)
		}
	}
	return nil
}

// repeat sends again what is done: the answer must be the same.
func (p *publisher) repeat(ctx context.Context, c *Client) Answer {
	q := p.old[p.rand.IntN(len(p.old))]
	offsets, duplicate, a := c.publish(ctx, q.topic, q.requestID, q.records, q.batch)
	p.load.note(a)
	switch {
	case a.Outcome == Done:
		p.load.Checker.Done(q.sent, offsets, duplicate)
	case a.refused():
		p.load.strangeAnswer("repeat of "+q.name(), a)
	}
	return a
}

// mayRepeat repeats until there is an answer: a node that has just come back may know of no leader yet.
func (p *publisher) mayRepeat(ctx context.Context, c *Client) error {
	for {
		a := p.repeat(ctx, c)
		if a.Outcome == Done {
			return nil
		}
		if a.Outcome != Unknown && !a.elsewhere() || !pause(ctx, time.Millisecond) {
			return fmt.Errorf("%s cannot repeat a publish: %v", p.name, a)
		}
	}
}

// conflict uses a request id that is taken for another record: it must be refused.
func (p *publisher) conflict(ctx context.Context, c *Client) Answer {
	q := p.old[p.rand.IntN(len(p.old))]
	p.next++
	records := []history.Record{{Value: fmt.Appendf(nil, "%s-%d conflict", p.name, p.next)}}
	sent := p.load.Checker.Send(history.Publish{Name: string(records[0].Value), Topic: q.topic, Records: records})
	_, _, a := c.publish(ctx, q.topic, q.requestID, records, false)
	p.load.note(a)
	switch {
	case a.Outcome == Unknown:
		// Whatever happened to the answer, it must not be stored.
		p.load.Checker.Refused(sent)
	case a.Status == http.StatusConflict || (a.Outcome == NotDone && !a.refused()):
		p.load.Checker.Refused(sent)
	default:
		p.load.strangeAnswer("other record with the request id of "+q.name(), a)
	}
	if a.Status == http.StatusConflict {
		a.Outcome = Done // as it should be
	}
	return a
}

func (p *publisher) remember(q *publish) {
	const most = 32
	if len(p.old) < most {
		p.old = append(p.old, q)
		return
	}
	p.old[p.rand.IntN(most)] = q
}

// forget drops what is too old to be sent again.
func (p *publisher) forget() {
	if most := p.load.cfg.RepeatMax; most > 0 {
		p.old = slices.DeleteFunc(p.old, func(q *publish) bool { return time.Since(q.made) > most })
	}
}

// make invents a publish. Every record says whose it is.
func (p *publisher) make() *publish {
	p.next++
	topics := p.load.cfg.Topics
	if len(p.topics) > 0 {
		topics = p.topics
	}
	q := &publish{topic: topics[p.rand.IntN(len(topics))], made: time.Now()}
	for p.load.churner != nil && q.topic == p.load.cfg.Prefix+lasting && p.rand.IntN(10) > 0 {
		q.topic = topics[p.rand.IntN(len(topics))] // it gets little
	}
	n := 1
	if p.rand.IntN(4) == 0 {
		q.batch = true
		n = 1 + p.rand.IntN(32)
	}
	for i := range n {
		r := history.Record{Value: p.fill(fmt.Appendf(nil, "%s-%d.%d ", p.name, p.next, i), p.valueSize(n))}
		if p.rand.IntN(2) == 0 {
			r.Key = p.fill(nil, 1+p.rand.IntN(20))
		}
		q.records = append(q.records, r)
	}
	// Who deletes a topic must know what is in it.
	if p.rand.IntN(10) > 0 || len(p.topics) > 0 {
		q.requestID = fmt.Sprintf("%s-%d", p.name, p.next)
	}
	return q
}

// valueSize is mostly small, and at times up to ValueMax, for a publish of n records.
func (p *publisher) valueSize(n int) int {
	switch {
	case p.rand.IntN(100) < p.load.cfg.Large:
		return p.rand.IntN(p.load.cfg.ValueMax) / n
	case p.rand.IntN(4) == 0:
		return p.rand.IntN(4096)
	default:
		return p.rand.IntN(200)
	}
}

func (p *publisher) fill(b []byte, n int) []byte {
	for len(b) < n {
		b = append(b, byte(p.rand.Uint32()))
	}
	return b
}

func (q *publish) name() string {
	first, _, _ := bytes.Cut(q.records[0].Value, []byte(" "))
	return fmt.Sprintf("%s (%d records, request id %q)", first, len(q.records), q.requestID)
}
