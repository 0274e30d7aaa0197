package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"example.com/mq/test/history"
	"example.com/mq/test/linear"
)

// Recording is what a few clients saw that use small topics together, for package linear to judge. Unlike those of a
// Load, its clients write to the same groups, and read what others have just written. The topic changes every few dozen
// calls, so that no history becomes too long to be judged.
type Recording struct {
	began time.Time

	mu         sync.Mutex // guards all below
	clients    int
	calls      int
	start, end uint64 // of the topic that calls are about now, as far as anybody knows
	operations []linear.Operation
}

// callsPerTopic is how many calls a Recording makes about one topic.
const callsPerTopic = 80

// NewRecording returns a Recording of nothing.
func NewRecording() *Recording { return &Recording{began: time.Now()} }

// Run lets some clients call by way of c until ctx is done, and returns when all their calls have ended. It may be called
// again, and at the same time, by another client for example.
func (r *Recording) Run(ctx context.Context, c *Client, clients int, seed uint64) {
	r.mu.Lock()
	first := r.clients
	r.clients += clients
	r.mu.Unlock()
	var all sync.WaitGroup
	for i := range clients {
		m := &scribe{recording: r, c: c, name: fmt.Sprintf("c%d", first+i), number: first + i, rand: rand.New(rand.NewPCG(seed, uint64(4000+i)))}
		all.Go(func() { m.run(ctx) })
	}
	all.Wait()
}

// Complete reads every topic to its end, so that less remains open for the judge. Nothing else need be under way.
func (r *Recording) Complete(ctx context.Context, c *Client) {
	r.mu.Lock()
	last := r.calls / callsPerTopic
	m := &scribe{recording: r, c: c, number: r.clients}
	r.clients++
	r.mu.Unlock()
	for i := 0; i <= last && ctx.Err() == nil; i++ {
		const limit = 1000
		for from, more := uint64(0), true; more; {
			o := linear.Operation{Kind: linear.Fetch, Topic: fmt.Sprintf("recorded-%d", i), Offset: from, Limit: limit}
			a := m.do(ctx, &o)
			more = a.Code == linear.OffsetGone || a.Outcome == Done && o.Next < o.End
			if from = o.Next; a.Code == linear.OffsetGone {
				from = o.Start
			}
		}
	}
}

// Operations returns all calls that have ended so far.
func (r *Recording) Operations() []linear.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]linear.Operation(nil), r.operations...)
}

// topic returns the name of the topic that the next call is about, and what is known of it.
func (r *Recording) topic() (name string, start, end uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; r.calls%callsPerTopic == 0 {
		r.start, r.end = 0, 0
	}
	return r.name(), r.start, r.end
}

// name returns the name of the topic that calls are about now. r.mu is held.
func (r *Recording) name() string { return fmt.Sprintf("recorded-%d", r.calls/callsPerTopic) }

func (r *Recording) add(o linear.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, o)
	if o.Outcome == linear.Done && o.Topic == r.name() {
		r.start, r.end = max(r.start, o.Start), max(r.end, o.End, o.Base+uint64(len(o.Values)))
	}
}

// scribe is one client of a Recording. It makes one call at a time.
type scribe struct {
	recording *Recording
	c         *Client
	name      string
	number    int
	rand      *rand.Rand
	published int

	pending *linear.Operation // a publish whose outcome is unknown, to be sent again
}

func (m *scribe) run(ctx context.Context) {
	for ctx.Err() == nil {
		o := m.choose()
		a := m.do(ctx, &o)
		m.learn(o)
		if a.Outcome != Done && !pause(ctx, time.Millisecond) {
			return
		}
	}
}

// do makes a call and records it.
func (m *scribe) do(ctx context.Context, o *linear.Operation) Answer {
	o.Client, o.Call = m.number, int64(time.Since(m.recording.began))
	a := m.call(ctx, o)
	o.Return, o.Outcome, o.Code = int64(time.Since(m.recording.began)), linear.Outcome(a.Outcome), a.Code
	m.recording.add(*o)
	return a
}

// learn remembers what is to be sent again.
func (m *scribe) learn(o linear.Operation) {
	switch {
	case o.Kind != linear.Publish:
	case o.Outcome == linear.Unknown:
		m.pending = &o
	case o.Outcome == linear.Done || o.Code == linear.RequestIDConflict:
		m.pending = nil
	}
}

// choose invents the next call.
func (m *scribe) choose() linear.Operation {
	if m.pending != nil && m.rand.IntN(2) == 0 {
		return linear.Operation{Kind: linear.Publish, Topic: m.pending.Topic, RequestID: m.pending.RequestID, Values: m.pending.Values}
	}
	topic, start, end := m.recording.topic()
	o := linear.Operation{Topic: topic, Limit: 1 + m.rand.IntN(5), Group: fmt.Sprint("g", m.rand.IntN(2))}
	switch dice := m.rand.IntN(20); {
	case dice < 8:
		o.Kind = linear.Publish
		m.published++
		o.RequestID = fmt.Sprintf("%s-%d", m.name, m.published)
		for i := range 1 + m.rand.IntN(3) {
			o.Values = append(o.Values, fmt.Sprintf("%s-%d.%d", m.name, m.published, i))
		}
	case dice < 13: // mostly at the end, where a leader must know that it leads
		o.Kind, o.Offset = linear.Fetch, end
		if m.rand.IntN(3) == 0 {
			o.Offset = start + m.rand.Uint64N(end-start+1)
		}
	case dice < 17:
		o.Kind = linear.GroupFetch
	case dice < 19 || end == start:
		o.Kind, o.Offset = linear.Commit, start+m.rand.Uint64N(end-start+1)
	default:
		o.Kind, o.Offset = linear.Retain, start+m.rand.Uint64N(min(end-start, 3))
	}
	return o
}

// call makes the call of an operation and fills in the answer.
func (m *scribe) call(ctx context.Context, o *linear.Operation) Answer {
	switch o.Kind {
	case linear.Publish:
		records := make([]history.Record, len(o.Values))
		for i, v := range o.Values {
			records[i].Value = []byte(v)
		}
		offsets, duplicate, a := m.c.publish(ctx, o.Topic, o.RequestID, records, len(records) > 1)
		if a.Outcome == Done && len(offsets) != len(records) {
			a.Outcome, a.Code = NotDone, fmt.Sprintf("%d offsets for %d records", len(offsets), len(records))
		}
		if a.Outcome == Done {
			o.Base, o.Duplicate = offsets[0], duplicate
		}
		return a
	case linear.Fetch, linear.GroupFetch:
		in, path := fetchRequest{Topic: o.Topic, Offset: &o.Offset, Limit: o.Limit}, "/v1/fetch"
		if o.Kind == linear.GroupFetch {
			in, path = fetchRequest{Topic: o.Topic, Group: o.Group, Limit: o.Limit}, "/v1/groups/fetch"
		}
		var out fetched
		a := m.c.call(ctx, path, in, &out)
		o.Next, o.Start, o.End = out.Next, out.Start, out.End
		for i, r := range out.Records {
			if i == 0 {
				o.Base = r.Offset
			}
			if r.Offset != o.Base+uint64(i) {
				a.Outcome, a.Code = NotDone, "the offsets of the records are not consecutive"
			}
			o.Records = append(o.Records, string(r.Value))
		}
		if a.Code == linear.OffsetGone {
			o.Start = a.Start
		}
		return a
	case linear.Commit:
		var out committed
		a := m.c.call(ctx, "/v1/groups/commit", commitRequest{Group: o.Group, Topic: o.Topic, Next: o.Offset}, &out)
		o.Next = out.Next
		return a
	case linear.Retain:
		var out retained
		a := m.c.call(ctx, "/v1/topics/retain", retainRequest{Topic: o.Topic, Start: o.Offset}, &out)
		o.Start = out.Start
		return a
	}
	panic(fmt.Sprintf("BUG: an operation of kind %d", o.Kind))
}

// expected are the codes of errors that a client may get.
var expected = map[string]bool{
	linear.TopicNotFound: true, linear.OffsetGone: true, linear.OffsetOutOfRange: true, "unavailable": true, "not_leader": true,
}

// Judge decides whether what was recorded is linearizable. Up to most may be spent on each topic and group; what is not
// decided by then counts as linearizable, unless it is more than one topic in twenty. what tells how much was judged.
func (r *Recording) Judge(most time.Duration) (what string, err error) {
	byTopic := map[string][]linear.Operation{}
	calls, undecided := 0, 0
	for _, o := range r.Operations() {
		byTopic[o.Topic] = append(byTopic[o.Topic], o)
		calls++
		if o.Code != "" && !expected[o.Code] {
			return "", fmt.Errorf("an answer that no client should get: %v", o)
		}
	}
	for _, operations := range byTopic {
		switch err := linear.Check(operations, most); {
		case errors.Is(err, linear.ErrUndecided):
			undecided++
		case err != nil:
			return "", err
		}
	}
	what = fmt.Sprintf("%d calls of %d topics, %d of which are undecided", calls, len(byTopic), undecided)
	if undecided > 1+len(byTopic)/20 {
		return what, fmt.Errorf("%s: %w", what, linear.ErrUndecided)
	}
	return what, nil
}
