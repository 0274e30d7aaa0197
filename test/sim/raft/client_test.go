package raft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/test/linear"
	"example.com/mq/test/sim/audit"
)

const (
	// answerMax is how long a request may wait while its process runs.
	answerMax = 20 * time.Second
	// topicCalls is after how many calls clients turn to another topic: a short history is quick to judge.
	topicCalls = 40
	// topicsLive is how many topics clients use at a time.
	topicsLive = 3
)

type outcome int

const (
	pending outcome = iota
	done
	notDone
	unknown
)

func (o outcome) String() string { return [...]string{"pending", "done", "not done", "unknown"}[o] }

// client sends one request at a time, and does not wait for ever.
type client struct {
	w      *world
	i      int
	leader int          // as it believes; -1: unknown
	task   *publication // to be tried again
	tries  int
}

// op is one request to one process.
type op struct {
	number int
	client *client // nil in the end
	p      *process
	pub    *publication // of a publish
	wait   time.Duration
	linear.Operation
	snapshot bool
	apart    *apart // what is not part of the history that must be linearizable

	sentAt   time.Duration // of p.active
	before   known         // what was known when it was sent
	outcome  outcome
	answered bool
	redirect int // the node it was sent to instead; -1: none
}

// apart is a request that is judged by the log alone.
type apart struct {
	what                   string            // that the book knows it by
	limits                 *broker.Configure // of a configure
	seek                   *broker.Seek      // of a seek
	delete, forget, byTime bool              // of a topic, of a group; a fetch
	fromMS                 int64             // of the fetch
}

// publication is records that a client wants stored once; with a request id it may be tried several times.
type publication struct {
	id       string
	topic    string
	values   []string
	attempts []*op
	base     int64 // where it is, once anybody knows; else -1
	acked    bool
}

// possible says that it may be stored.
func (p *publication) possible() bool {
	return slices.ContainsFunc(p.attempts, func(o *op) bool { return o.outcome != notDone })
}

// known is what a reader may rely on.
type known struct {
	end   uint64 // of the topic: one past the highest acknowledged offset
	start uint64 // acknowledged
}

// topicModel is what is known of a topic.
type topicModel struct {
	name string
	// retained: its start may move. Then it may stay open which records it had, which makes its history hard to judge.
	retained bool
	// free: its start may move by limits, and it may be deleted. What it must have then only the book knows.
	free, deleting bool
	at             map[uint64]*publication // what is at an offset, as acknowledged or read
	known          known
	asked          uint64 // the highest start asked for
	calls          int
	history        []linear.Operation
	groups         map[string]*groupModel
}

// groupModel is a group whose offset only moves forward, because one call at a time moves it.
type groupModel struct {
	moved  uint64 // acknowledged
	latest uint64 // asked for
	moving *op    // the last one sent
}

// oracle is what the clients know.
type oracle struct {
	topics map[string]*topicModel
	live   [topicsLive]*topicModel
	names  []string // of topics, in order
	values map[string]*publication
	pubs   []*publication
	free   bool // all topics are
	began  []began
}

// began is a start that a client was told.
type began struct {
	request int
	topic   string
	start   uint64
}

func newOracle(free bool) *oracle {
	o := &oracle{free: free, topics: map[string]*topicModel{}, values: map[string]*publication{}}
	for i := range o.live {
		o.renew(i)
	}
	return o
}

// renew makes a new topic.
func (o *oracle) renew(i int) {
	t := &topicModel{name: fmt.Sprint("t", len(o.names)), retained: len(o.names)%4 == 3, free: o.free || len(o.names)%4 == 1, at: map[uint64]*publication{}, groups: map[string]*groupModel{}}
	o.names = append(o.names, t.name)
	o.topics[t.name], o.live[i] = t, t
}

// moment is when something is seen, in the order of all that is seen. Called with mu held.
func (w *world) moment() int64 {
	w.moments++
	return w.moments
}

// next sends the client's next request. Called with mu held.
func (c *client) next() {
	w := c.w
	if w.quieting || w.ending {
		return
	}
	to := c.leader
	if to < 0 || w.rng.IntN(20) == 0 {
		to = w.rng.IntN(len(w.machines))
	}
	o := c.compose()
	w.submit(o, to)
	if !o.answered {
		w.after(time.Duration(500+w.rng.IntN(3500))*ms, func() {
			if !o.answered {
				w.stats.abandoned++
				w.finish(o, unknown, "the client waits no longer")
			}
		})
	}
}

// compose makes up a request, or tries one again.
func (c *client) compose() *op {
	w := c.w
	o := &op{number: w.requests, client: c, redirect: -1}
	w.requests++
	o.Client = c.i
	if c.task != nil {
		c.tries++
		w.oracle.topics[c.task.topic].calls++
		w.attempt(o, c.task)
		return o
	}
	slot := w.rng.IntN(topicsLive)
	if w.oracle.live[slot].calls >= topicCalls {
		w.oracle.renew(slot)
	}
	t := w.oracle.live[slot]
	o.Topic, o.Limit = t.name, 1+w.rng.IntN(20)
	o.before = t.known
	end := t.known.end
	switch k := w.rng.IntN(100); {
	case w.rng.IntN(12) == 0 || t.free && w.rng.IntN(12) == 0:
		w.manage(o, t)
	case k < 8 && end > t.asked && (t.retained || t.free):
		o.Kind, o.Offset = linear.Retain, t.asked+uint64(w.rng.IntN(int(end-t.asked)+1))
		t.asked = max(t.asked, o.Offset)
		w.book.Asked(audit.Retain(o.Topic, o.Offset))
	case k < 14:
		o.Kind, o.Group = linear.Commit, "any"
		o.Offset = uint64(w.rng.IntN(int(end) + 2))
		if g := t.group("forward"); w.rng.IntN(2) == 0 && (g.moving == nil || g.moving.answered && g.moving.outcome != unknown) && end > t.asked {
			o.Group, g.moving = "forward", o
			from := min(max(t.asked, g.latest), end)
			o.Offset = from + uint64(w.rng.IntN(int(end-from)+1))
			g.latest = max(g.latest, o.Offset)
		}
		w.book.Asked(audit.Move(o.Topic, o.Group))
	case k < 25:
		o.Kind, o.Group = linear.GroupFetch, []string{"any", "forward"}[w.rng.IntN(2)]
	case k < 42:
		o.Kind, o.Offset = linear.Fetch, end-min(end, uint64(w.rng.IntN(6)))
		if w.rng.IntN(4) == 0 {
			o.Offset = uint64(w.rng.IntN(int(end) + 3))
		}
		if w.rng.IntN(3) == 0 {
			o.wait = time.Duration(w.rng.IntN(1500)) * ms
		}
	case k < 44:
		o.snapshot = true
	case k < 50 && w.again(o):
	default:
		w.attempt(o, w.publication(o.number, t.name))
		o.Kind = linear.Publish
	}
	if !o.snapshot {
		t.calls++
	}
	return o
}

// manage makes up a request of those that change how long records are kept, or what a group reads, and of those that ask by
// time. Called with mu held.
func (w *world) manage(o *op, t *topicModel) {
	a := &apart{}
	o.apart = a
	topic, group := []byte(t.name), []byte("s")
	k := w.rng.IntN(20)
	switch {
	case k < 8 && t.free:
		a.what, a.limits = audit.Configure(t.name), &broker.Configure{Topic: topic, Reset: w.rng.IntN(2) == 0}
		r := makeRetention(w.rng)
		for _, set := range []struct {
			to   **fact.Limit
			from fact.Limit
		}{{&a.limits.RetentionMS, r.MS}, {&a.limits.RetentionBytes, r.Bytes}, {&a.limits.RetentionRecords, r.Records}} {
			if w.rng.IntN(8) == 0 {
				set.from = fact.LimitNone
			}
			if set.from != 0 {
				*set.to = &set.from
			}
		}
	case k < 11 && t.free:
		a.what, a.delete, t.deleting = audit.Delete(t.name), true, true
	case k < 14:
		a.seek = &broker.Seek{Topic: topic, Group: group, By: broker.SeekBy(w.rng.IntN(4)), DryRun: w.rng.IntN(6) == 0}
		a.seek.Offset, a.seek.TimeMS = fact.Offset(w.rng.IntN(int(t.known.end)+2)), w.someTime()
		w.stats.seeks++
		if !a.seek.DryRun {
			a.what = audit.Move(t.name, "s")
		}
	case k < 15:
		a.what, a.forget = audit.Forget(t.name, "s"), true
	default:
		a.byTime, a.fromMS = true, w.someTime()
		w.stats.byTime++
	}
	if a.what != "" {
		w.book.Asked(a.what)
	}
}

// someTime is one since a little before now, most often, or since the run began.
func (w *world) someTime() int64 {
	back := min(w.now, 3*second).Milliseconds()
	if w.rng.IntN(3) == 0 {
		back = w.now.Milliseconds()
	}
	return epochStart.Add(w.now).UnixMilli() - w.rng.Int64N(back+1000)
}

// runApart is run for what is apart.
func (o *op) runApart() {
	n, a, topic := o.p.n, o.apart, []byte(o.Topic)
	var err error
	switch {
	case a.limits != nil:
		_, err = n.ConfigureTopic(a.limits)
	case a.seek != nil:
		_, err = n.SeekGroup(a.seek)
	case a.delete:
		_, err = n.DeleteTopic(topic)
	case a.forget:
		_, err = n.DeleteGroup(topic, []byte("s"))
	default:
		var s sink
		page, err := n.Fetch(&broker.Fetch{Topic: topic, ByTime: true, FromMS: a.fromMS, Limit: o.Limit}, &s)
		o.answer(err, func() {
			o.fetched(page, &s)
			o.p.w.book.Found(fmt.Sprintf("request %d", o.number), o.Topic, a.fromMS, page.Start, fact.Offset(o.Base), page.End)
		})
		return
	}
	o.answer(err, func() {
		if a.what != "" {
			o.p.w.book.Answered(a.what)
		}
	})
}

// seen adds a call to the history. There, values are named by how they begin: the rest of them is looked at as they come.
func (t *topicModel) seen(o linear.Operation) {
	o.Values, o.Records = names(o.Values), names(o.Records)
	t.history = append(t.history, o)
}

func names(values []string) (list []string) {
	for _, v := range values {
		name, _, _ := strings.Cut(v, ";")
		list = append(list, name)
	}
	return list
}

func (t *topicModel) group(name string) *groupModel {
	g := t.groups[name]
	if g == nil {
		g = &groupModel{}
		t.groups[name] = g
	}
	return g
}

// publication makes up records. Called with mu held.
func (w *world) publication(number int, topic string) *publication {
	p := &publication{topic: topic, base: -1}
	n := 1
	if w.rng.IntN(4) == 0 {
		n = 1 + w.rng.IntN(6)
	}
	for i := range n {
		size := w.rng.IntN(200)
		if w.rng.IntN(w.plan.large) == 0 {
			size = w.rng.IntN(3000)
		}
		v := fmt.Sprintf("v%d.%d;%s", number, i, strings.Repeat("x", size))
		p.values = append(p.values, v)
		w.oracle.values[v] = p
	}
	if w.rng.IntN(3) > 0 {
		p.id = fmt.Sprint("id", number)
	}
	w.oracle.pubs = append(w.oracle.pubs, p)
	return p
}

// attempt makes a request of a publication.
func (w *world) attempt(o *op, p *publication) {
	o.Kind, o.pub, o.Topic, o.Values, o.RequestID = linear.Publish, p, p.topic, p.values, p.id
	o.before = w.oracle.topics[p.topic].known
	p.attempts = append(p.attempts, o)
}

// again picks a publish to send again, acknowledged or not. Called with mu held.
func (w *world) again(o *op) bool {
	var list []*publication
	for _, p := range w.oracle.pubs[max(0, len(w.oracle.pubs)-60):] {
		if p.id != "" && len(w.oracle.topics[p.topic].history) < topicCalls+20 {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return false
	}
	w.attempt(o, list[w.rng.IntN(len(list))])
	return true
}

// submit sends a request to a machine. Called with mu held.
func (w *world) submit(o *op, to int) {
	w.note("request %d of %d to %d: %v", o.number, o.Client, to, o)
	p := w.machines[to].p
	o.Call = w.moment()
	if p == nil || p.dead || p.n == nil || p.stopping && p.closing {
		w.finish(o, notDone, "connection refused")
		return
	}
	o.p, o.sentAt = p, p.active
	p.pending = append(p.pending, o)
	if p.paused {
		p.asked = append(p.asked, func() { p.serving.Go(o.run) })
		return
	}
	p.serving.Go(o.run)
}

func (o *op) String() string {
	switch {
	case o.snapshot:
		return "snapshot"
	case o.apart != nil && o.apart.byTime:
		return fmt.Sprintf("fetch %s from %d ms", o.Topic, o.apart.fromMS)
	case o.apart != nil && o.apart.limits != nil:
		l := o.apart.limits
		limit := func(l *fact.Limit) string {
			if l == nil {
				return "as is"
			}
			return fmt.Sprint(*l)
		}
		return fmt.Sprintf("%s, reset: %v, %s ms, %s bytes, %s records", o.apart.what, l.Reset, limit(l.RetentionMS), limit(l.RetentionBytes),
			limit(l.RetentionRecords))
	case o.apart != nil && o.apart.seek != nil:
		q := o.apart.seek
		return fmt.Sprintf("seek %s by %d to %d or %d ms, dry: %v", o.Topic, q.By, q.Offset, q.TimeMS, q.DryRun)
	case o.apart != nil:
		return o.apart.what
	case o.pub != nil:
		return fmt.Sprintf("publish %s id %q: %d records", o.Topic, o.pub.id, len(o.pub.values))
	}
	return fmt.Sprintf("%v %s %s %d", o.Kind, o.Topic, o.Group, o.Offset)
}

// run is the request, in a goroutine of its own.
func (o *op) run() {
	n := o.p.n
	topic := []byte(o.Topic)
	switch {
	case o.apart != nil:
		o.runApart()
	case o.snapshot:
		_, err := n.Snapshot()
		o.answer(err, func() {})
	case o.Kind == linear.Publish:
		r, err := n.Publish(o.pub.request())
		o.answer(err, func() { o.published(r) })
	case o.Kind == linear.Commit:
		next, err := n.CommitGroup(topic, []byte(o.Group), fact.Offset(o.Offset))
		o.answer(err, func() {
			o.Next = uint64(next)
			o.p.w.book.Answered(audit.Move(o.Topic, o.Group))
			if o.Group == "forward" {
				g := o.p.w.oracle.topics[o.Topic].group("forward")
				g.moved = max(g.moved, o.Offset)
			}
		})
	case o.Kind == linear.Retain:
		start, err := n.Retain(topic, fact.Offset(o.Offset))
		o.answer(err, func() {
			o.Start = uint64(start)
			o.p.w.book.Answered(audit.Retain(o.Topic, o.Offset))
			t := o.p.w.oracle.topics[o.Topic]
			t.known.start = max(t.known.start, o.Offset)
		})
	default:
		var s sink
		q := &broker.Fetch{Topic: topic, Group: []byte(o.Group), Offset: fact.Offset(o.Offset), Limit: o.Limit, Wait: o.wait}
		page, err := n.Fetch(q, &s)
		o.answer(err, func() { o.fetched(page, &s) })
	}
}

// request is the publish.
func (p *publication) request() *broker.Publish {
	q := &broker.Publish{Topic: []byte(p.topic), RequestID: []byte(p.id)}
	for _, v := range p.values {
		q.Records = append(q.Records, fact.Record{Key: []byte("k"), Value: []byte(v)})
	}
	return q
}

// sink takes the records of a fetch.
type sink struct {
	offsets []uint64
	keys    []string
	values  []string
	times   []int64
}

func (s *sink) Record(offset fact.Offset, key, value []byte, timeMS int64) {
	s.offsets = append(s.offsets, uint64(offset))
	s.keys = append(s.keys, string(key))
	s.values = append(s.values, string(value))
	s.times = append(s.times, timeMS)
}

// answer takes the node's answer. good is called, with world.mu held, when it is "done".
func (o *op) answer(err error, good func()) {
	w := o.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(o.p.pending, o); i >= 0 {
		o.p.pending = slices.Delete(o.p.pending, i, i+1)
	}
	if o.answered || o.p.dead || w.ending {
		return
	}
	if o.client != nil && w.plan.dropOneIn > 0 && w.dice.IntN(2*w.plan.dropOneIn) == 0 && !w.spares.Spare(faultNames[dropPacket]) {
		w.finish(o, unknown, "the answer is lost")
		return
	}
	var un *broker.UnavailableError
	var leader *broker.NotLeaderError
	var gone *broker.OffsetGoneError
	var rng *broker.OffsetRangeError
	var corrupt *broker.CorruptError
	switch {
	case err == nil:
		good()
		w.finish(o, done, "")
	case errors.As(err, &un) && un.Unknown:
		w.finish(o, unknown, un.Reason)
	case errors.As(err, &leader):
		o.redirect = w.machineAt(leader.Leader)
		w.stats.redirects++
		w.finish(o, notDone, "not the leader: "+leader.Leader)
	case errors.As(err, &un), errors.Is(err, broker.ErrStorageFull), errors.Is(err, broker.ErrGroupNotFound):
		w.finish(o, notDone, err.Error())
	case errors.As(err, &rng):
		o.Code = linear.OffsetOutOfRange
		w.finish(o, notDone, err.Error())
	case errors.As(err, &gone):
		o.Code, o.Start = linear.OffsetGone, uint64(gone.Start)
		w.finish(o, notDone, err.Error())
	case errors.Is(err, broker.ErrTopicNotFound):
		o.Code = linear.TopicNotFound
		if o.before.end > 0 && !w.oracle.topics[o.Topic].deleting {
			w.violated("reads deny nothing that was acknowledged", "request %d: topic %s is not found, and it has %d acknowledged records",
				o.number, o.Topic, o.before.end)
		}
		w.finish(o, notDone, err.Error())
	case errors.As(err, &corrupt) && o.p.m.hurt:
		w.stats.corrupt++
		w.finish(o, notDone, err.Error())
	default:
		w.finish(o, notDone, err.Error())
		w.violated("answers are of the kinds that are documented", "request %d: %v: %v", o.number, o, err)
	}
}

// machineAt is the machine with an address, -1 for none. Called with mu held.
func (w *world) machineAt(url string) int {
	if url == "" {
		return -1
	}
	for i := range w.machines {
		if url == address(i) {
			return i
		}
	}
	w.violated("clients are sent to members", "%q is none", url)
	return -1
}

// finish notes an outcome. Called with mu held.
func (w *world) finish(o *op, how outcome, why string) {
	if o.answered {
		return
	}
	o.answered, o.outcome = true, how
	o.Return = w.moment()
	if o.pub != nil && o.pub.base >= 0 && !o.pub.possible() {
		w.violated("what was refused never appears", "request %d, %v, is refused, and stands at %d", o.number, o, o.pub.base)
	}
	w.stats.outcomes[how]++
	if how == done && !o.snapshot {
		w.stats.acks++
	}
	w.note("answer %d: %v %s", o.number, how, why)
	if !o.snapshot && o.apart == nil {
		o.Outcome = [...]linear.Outcome{done: linear.Done, notDone: linear.NotDone, unknown: linear.Unknown}[how]
		w.oracle.topics[o.Topic].seen(o.Operation)
	}
	if o.client != nil {
		o.client.answered(o)
	}
}

// answered decides what the client does next. Called with mu held.
func (c *client) answered(o *op) {
	w := c.w
	soon := time.Duration(1+w.rng.IntN(60*(1+c.tries))) * ms
	again := o.pub != nil && o.pub.id != "" && c.tries < 10 && o.Code == ""
	switch o.outcome {
	case done:
		if o.p != nil && !o.snapshot {
			c.leader = o.p.m.i
		}
		c.task, c.tries = nil, 0
		soon = time.Duration(w.rng.ExpFloat64() * float64(w.plan.think))
	case notDone:
		if c.leader = o.redirect; c.leader >= 0 {
			soon = ms
		}
		c.task = nil
		if again {
			c.task = o.pub
		}
	case unknown:
		c.leader = -1
		c.task = nil
		if again {
			c.task = o.pub
		}
	}
	if c.task == nil {
		c.tries = 0
	}
	w.after(soon, c.next)
}

// published takes "done" for a publish. Called with world.mu held.
func (o *op) published(r broker.Published) {
	w, p := o.p.w, o.pub
	o.Base, o.Duplicate = uint64(r.Base), r.Duplicate
	if r.Count != len(p.values) {
		w.violated("an answer fits its request", "request %d of %d records is answered with %+v", o.number, len(p.values), r)
		return
	}
	if p.base >= 0 && p.base != int64(r.Base) {
		w.violated("one request id has one outcome", "publication of request %d is at %d, and at %d", o.number, p.base, r.Base)
	}
	p.acked = true
	for i := range p.values {
		w.place(o.Topic, uint64(r.Base)+uint64(i), p, i, fmt.Sprintf("request %d", o.number))
	}
	t := w.oracle.topics[o.Topic]
	t.known.end = max(t.known.end, uint64(r.Base)+uint64(r.Count))
	if w.plan.sample > 0 && w.dice.IntN(w.plan.sample) == 0 && uint64(r.Base) >= t.asked && !t.free {
		w.majorityHolds(o, "what is acknowledged is durable on a majority", p.values[0])
	}
}

// place notes that record i of a publication stands at an offset. Called with mu held.
func (w *world) place(topic string, offset uint64, p *publication, i int, who string) {
	t := w.oracle.topics[topic]
	if before := t.at[offset]; before != nil && (before != p || before.base+int64(i) != int64(offset)) {
		w.violated("what stands at an offset never changes", "%s: offset %d of %s holds %.20q, and before %.20q", who, offset, topic, p.values[i],
			before.values[int64(offset)-before.base])
		return
	}
	base := int64(offset) - int64(i)
	if p.base >= 0 && p.base != base || p.topic != topic {
		w.violated("a record is stored once", "%s: %.20q is at %d of %s, and at %d of %s", who, p.values[i], offset, topic, p.base+int64(i), p.topic)
		return
	}
	p.base = base
	t.at[offset] = p
	if !p.possible() {
		w.violated("what was refused never appears", "%s: %.20q at %d of %s", who, p.values[i], offset, topic)
	}
}

// majorityHolds checks that a value would survive a power cut of all machines, on a majority of them. One that has just
// lost its folder may have been of the majority. Called with mu held.
func (w *world) majorityHolds(o *op, invariant, value string) {
	n := 0
	for _, m := range w.machines {
		if m.hurt || holds(m.disk().Crash(1, 0).FS, value) {
			n++
		}
	}
	if 2*n <= len(w.machines) {
		w.violated(invariant, "request %d: %.20q of %s would survive a power cut on %d of %d", o.number, value, o.Topic, n, len(w.machines))
	}
}

// fetched judges a page. Called with world.mu held.
func (o *op) fetched(page broker.Page, s *sink) {
	w := o.p.w
	w.oracle.began = append(w.oracle.began, began{o.number, o.Topic, uint64(page.Start)})
	o.Next, o.Start, o.End, o.Records = uint64(page.Next), uint64(page.Start), uint64(page.End), s.values
	o.Base = o.Next - uint64(page.Records)
	if page.Records != len(s.values) {
		w.violated("an answer fits its request", "request %d has %d records, and says %d", o.number, len(s.values), page.Records)
	}
	if page.Records == 0 && o.End < o.before.end {
		w.violated("reads deny nothing that was acknowledged", "request %d: no record at %d of %s, which ends at %d, and %d are acknowledged",
			o.number, o.Base, o.Topic, o.End, o.before.end)
	}
	w.judge(fmt.Sprintf("request %d", o.number), o.Topic, o.Base, s)
	t := w.oracle.topics[o.Topic]
	if n := len(s.values); n > 0 && w.plan.sample > 0 && w.dice.IntN(w.plan.sample) == 0 && s.offsets[n-1] >= t.asked && !t.free {
		w.majorityHolds(o, "what is readable is durable on a majority", s.values[n-1])
	}
}

// judge checks records that were read. Called with mu held.
func (w *world) judge(who, topic string, from uint64, s *sink) {
	for k, v := range s.values {
		if s.offsets[k] != from+uint64(k) {
			w.violated("offsets are dense", "%s: offset %d of %s comes where %d should", who, s.offsets[k], topic, from+uint64(k))
			return
		}
		p := w.oracle.values[v]
		if p == nil {
			w.violated("nothing is read that nobody wrote", "%s: %.40q at %d of %s", who, v, s.offsets[k], topic)
			return
		}
		w.place(topic, s.offsets[k], p, slices.Index(p.values, v), who)
		w.book.Saw(who, topic, fact.Offset(s.offsets[k]), s.keys[k], v, s.times[k])
	}
}

// holds tells whether a value is in the log of a folder.
func holds(fs vfs.FS, value string) bool {
	names, _ := fs.List("log")
	for _, name := range names {
		if strings.HasSuffix(name, ".seg") && bytes.Contains(content(fs, "log/"+name), []byte(value)) {
			return true
		}
	}
	return false
}
