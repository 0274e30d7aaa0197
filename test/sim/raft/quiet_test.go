package raft

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/linear"
)

// quietMax is how long a cluster may take to be whole once all faults have ended.
const quietMax = 90 * time.Second

// How long the history of a topic may be, and how many of its calls may have an unknown outcome, to be judged, and how long
// that may take: the search is exponential at worst.
const (
	historyMax = 120
	unknownMax = 16
	judgeMax   = 500 * ms
)

// quiet ends all faults, and checks what must hold then.
func (w *world) quiet() {
	began := w.now
	w.heal()
	if !w.until(quietMax, w.inStep) {
		w.fail("a cluster mends when all faults end", "after %v:%s", quietMax, w.standings())
		return
	}
	w.stats.quiet = w.now - began
	if w.writes(); w.violation != nil {
		return
	}
	w.readAll()
	w.retries()
	w.tidy()
	w.readAll() // the same from where the cleaner has put it
	w.groups()
	if !w.until(20*time.Second, w.inStep) {
		w.fail("followers apply what is committed", "after 20 s:%s", w.standings())
		return
	}
	w.compareFolders()
	if w.violation == nil && w.rng.IntN(3) == 0 {
		w.restartAll()
	}
	w.audit()
}

// tidyMax is how long limits and the cleaner may take when all is quiet.
const tidyMax = 60 * second

// tidy lets time pass until all topics are within their limits, and no log takes more room than promised.
func (w *world) tidy() {
	why := ""
	for end := w.now + tidyMax; w.now < end; {
		if why = w.untidy(); why == "" || w.violation != nil {
			return
		}
		w.until(500*ms, func() bool { return false })
	}
	if w.violation == nil {
		w.fail("space is given back", "after %v: %s", tidyMax, why)
	}
}

// groups checks that all groups stand where the log says.
func (w *world) groups() {
	p := w.leader()
	if p == nil {
		return // which has been said
	}
	w.book.Groups(func(topic, group string, next fact.Offset) {
		if w.violation != nil {
			return
		}
		var g broker.GroupState
		var err error
		w.inTime(p, func() { g, err = p.n.DescribeGroup([]byte(topic), []byte(group)) })
		if err != nil || g.Next != max(next, g.Start) {
			w.fail("a group stands where the log says", "group %s of %s was moved to %d, and is %+v, %v", group, topic, next, g, err)
		}
	})
}

// untidy tells what keeps more than it should, or "".
func (w *world) untidy() string {
	if !w.inStep() {
		return "not all are in step"
	}
	lead := w.leader()
	upTo := entry.Index(lead.standing().applied)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.read(lead.mem, upTo); w.violation != nil {
		return ""
	}
	if w.book.Next() <= upTo {
		w.violated("nothing committed is dropped unread", "the book ends before entry %d, and entry %d is applied", w.book.Next(), upTo)
		return ""
	}
	const slackMS = 3000
	if text := w.book.Behind(epochStart.Add(w.now+lead.m.skew).UnixMilli(), slackMS); text != "" {
		return text
	}
	for _, m := range w.machines {
		sealed, live, err := w.book.Room(m.fs)
		if err != nil {
			w.violated("the log can be read", "machine %d: %v", m.i, err)
		}
		if sealed > 2*live+w.plan.segment {
			return fmt.Sprintf("machine %d has %d bytes of sealed segments for %d that live", m.i, sealed, live)
		}
	}
	return ""
}

// audit has the book judge all that was seen, by the logs of all nodes.
func (w *world) audit() {
	lead := w.leader()
	if w.violation != nil || lead == nil {
		return
	}
	upTo := entry.Index(lead.standing().applied)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		w.read(m.fs, upTo)
	}
	if w.book.Next() <= upTo {
		w.violated("nothing committed is dropped unread", "the book ends before entry %d, and entry %d is applied", w.book.Next(), upTo)
		return
	}
	if err := w.book.Judge(); err != nil {
		w.violated("what clients see is in the log", "%v", err)
	}
	for _, s := range w.oracle.began {
		if !w.book.Began(s.topic, fact.Offset(s.start)) {
			w.violated("a topic starts where the log says", "request %d: %s starts at %d", s.request, s.topic, s.start)
		}
	}
	w.stats.kept, w.stats.moved, w.stats.deleted = w.book.Kept, w.book.Moved, w.book.Deleted
}

// heal ends all faults.
func (w *world) heal() {
	w.mu.Lock()
	w.quieting = true
	w.note("QUIET")
	for from := range w.links {
		for to := range w.links[from] {
			w.links[from][to].last = 0
			if w.links[from][to].cut {
				w.mend(from, to)
			}
		}
	}
	w.mu.Unlock()
	for _, m := range w.machines {
		m.disk().SetCapacity(capacity)
		m.hadUpTo = 0 // some of it may never have been committed
		p := m.p
		if p == nil {
			continue
		}
		p.fault.Heal()
		w.mu.Lock()
		p.armed = 0
		w.mu.Unlock()
		if p.paused {
			p.resume(w.rng.IntN(6))
		}
		if m.p == p && (p.broken || m.hurt || m.rotten) { // what rots in a cold place is found after a start, or much later
			p.kill(false)
		}
		w.settle()
	}
}

// inStep reports whether all machines are whole, one leads, and all have applied all.
func (w *world) inStep() bool {
	var lead standing
	for _, m := range w.machines {
		p := m.p
		if p == nil || p.dead || !p.recovered || p.stopping || len(p.pending) > 0 || m.hurt && !m.intact() {
			return false
		}
		switch s := p.standing(); {
		case !s.whole || s.leads && lead.leads:
			return false
		case s.leads:
			lead = s
		}
	}
	for _, m := range w.machines {
		if s := m.p.standing(); s.term != lead.term || s.commit != lead.commit || s.applied != lead.commit || lead.applied != lead.commit {
			return false
		}
	}
	return lead.leads
}

// standings tells how all machines stand, for messages.
func (w *world) standings() string {
	var b strings.Builder
	for _, m := range w.machines {
		switch p := m.p; {
		case p == nil:
			fmt.Fprintf(&b, "\n\tmachine %d: down", m.i)
		case p.n == nil || !p.recovered:
			fmt.Fprintf(&b, "\n\tmachine %d: starting", m.i)
		default:
			fmt.Fprintf(&b, "\n\tmachine %d: %+v, %d requests", m.i, p.standing(), len(p.pending))
		}
	}
	return b.String()
}

// leader is the process that leads.
func (w *world) leader() *process {
	for _, m := range w.machines {
		if m.p.standing().leads {
			return m.p
		}
	}
	return nil
}

// writes publishes, and finds all of it stored in time. A leader whose disk hung a moment ago may refuse at first, and one
// that is handing over does not know.
func (w *world) writes() {
	var pubs [3]*publication
	var last [len(pubs)]*op
	w.mu.Lock()
	for i := range pubs {
		number := w.requests
		w.requests++
		pubs[i] = w.publication(number, w.oracle.names[w.rng.IntN(len(w.oracle.names))])
		pubs[i].id = fmt.Sprint("id", number)
	}
	w.mu.Unlock()
	stored := w.until(10*second, func() bool {
		left := 0
		for i, p := range pubs {
			if p.acked {
				continue
			}
			left++
			if lead := w.leader(); lead != nil && (last[i] == nil || last[i].answered) {
				w.mu.Lock()
				last[i] = &op{number: w.requests, redirect: -1}
				w.requests++
				w.attempt(last[i], p)
				w.submit(last[i], lead.m.i)
				w.mu.Unlock()
			}
		}
		return left == 0
	})
	if !stored {
		w.fail("writes work when quiet", "not all of %v is stored:%s", last, w.standings())
	}
}

// inTime calls f in a goroutine of the process, and lets time pass until it has returned.
func (w *world) inTime(p *process, f func()) bool {
	finished := false
	p.serving.Go(func() {
		f()
		w.mu.Lock()
		defer w.mu.Unlock()
		finished = true
	})
	w.settle()
	if !w.until(10*time.Second, func() bool { return finished }) {
		w.fail("every answer comes in time", "a request to machine %d when all is quiet", p.m.i)
		return false
	}
	return true
}

// readAll reads everything that the leader has, and checks that nothing is missing.
func (w *world) readAll() {
	p := w.leader()
	if p == nil {
		w.fail("a leader stays when all is quiet", "nobody leads:%s", w.standings())
		return
	}
	for _, name := range w.oracle.names {
		if w.violation != nil || !w.inTime(p, func() { w.readTopic(p.n, w.oracle.topics[name]) }) {
			return
		}
		g := w.oracle.topics[name].groups["forward"]
		if g == nil || g.moved == 0 || w.oracle.topics[name].deleting {
			continue
		}
		var s sink
		var page broker.Page
		var err error
		w.inTime(p, func() {
			page, err = p.n.Fetch(&broker.Fetch{Topic: []byte(name), Group: []byte("forward"), Limit: 1}, &s)
		})
		if at := uint64(page.Next) - uint64(page.Records); err != nil || at < g.moved {
			w.fail("no acknowledged move of a group is lost", "the group of %s is at %d (%v), and %d was acknowledged", name, at, err, g.moved)
		}
	}
}

func (w *world) readTopic(n *node.Cluster, t *topicModel) {
	next := fact.Offset(0)
	for {
		var s sink
		w.mu.Lock()
		o := linear.Operation{Client: len(w.clients), Kind: linear.Fetch, Topic: t.name, Offset: uint64(next), Limit: 1000, Call: w.moment()}
		w.mu.Unlock()
		page, err := n.Fetch(&broker.Fetch{Topic: []byte(t.name), Offset: next, Limit: o.Limit}, &s)
		var gone *broker.OffsetGoneError
		switch {
		case errors.As(err, &gone) && next == 0:
			next = gone.Start
			continue
		case errors.Is(err, broker.ErrTopicNotFound) && (len(t.at) == 0 || t.deleting):
			return // the book knows
		case err != nil:
			w.fail("no acknowledged record is lost", "topic %s at %d: %v", t.name, next, err)
			return
		}
		w.mu.Lock()
		w.judge("the end", t.name, uint64(next), &s)
		o.Next, o.Start, o.End, o.Records = uint64(page.Next), uint64(page.Start), uint64(page.End), s.values
		o.Base, o.Return = o.Next-uint64(page.Records), w.moment()
		t.seen(o)
		next = page.Next
		if next < page.End {
			w.mu.Unlock()
			continue
		}
		w.whole(t, page)
		w.mu.Unlock()
		return
	}
}

// whole checks that nothing is missing of a topic. Called with mu held.
func (w *world) whole(t *topicModel, page broker.Page) {
	if uint64(page.Start) < t.known.start {
		w.violated("no acknowledged retain is lost", "topic %s starts at %d, and %d was acknowledged", t.name, page.Start, t.known.start)
	}
	if uint64(page.Start) > t.asked && !t.free {
		w.violated("a topic starts where somebody asked for", "topic %s starts at %d", t.name, page.Start)
	}
	if uint64(page.End) < t.known.end {
		w.violated("no acknowledged record is lost", "topic %s ends at %d, and %d are acknowledged", t.name, page.End, t.known.end)
	}
	for offset := range t.at {
		if offset >= uint64(page.End) {
			w.violated("nothing is read that is later gone", "topic %s ends at %d, and offset %d was read", t.name, page.End, offset)
		}
	}
	for _, p := range w.oracle.pubs {
		if p.topic == t.name && p.base >= 0 && uint64(p.base)+uint64(len(p.values)) > uint64(page.End) {
			w.violated("a batch is there whole", "of %d records at %d of %s only a part is there", len(p.values), p.base, t.name)
		}
	}
}

// retries sends again what was acknowledged with a request id.
func (w *world) retries() {
	for _, q := range w.oracle.pubs {
		if !q.acked || q.id == "" || w.rng.IntN(8) > 0 {
			continue
		}
		p := w.leader()
		if p == nil || w.violation != nil {
			return
		}
		var r broker.Published
		var err error
		w.inTime(p, func() { r, err = p.n.Publish(q.request()) })
		if err != nil || !r.Duplicate || int64(r.Base) != q.base {
			w.fail("one request id has one outcome", "%q of %s at %d is answered with %+v, %v", q.id, q.topic, q.base, r, err)
		}
	}
}

// compareFolders compares what is on all disks.
func (w *world) compareFolders() {
	last := entry.Index(math.MaxUint64) // that all have: one may be on its way
	for _, m := range w.machines[1:] {
		d, err := wal.Compare(w.machines[0].fs, "log", m.fs, "log")
		if err != nil || len(d.Differences) > 0 {
			w.fail("all logs are equal when quiet", "machines 0 and %d: %+v, %v", m.i, d, err)
			return
		}
		last = min(last, d.LastA, d.LastB)
	}
	var first [32]byte
	for _, m := range w.machines {
		sum, err := fold(m.fs, last)
		if err != nil {
			w.fail("the fold can be read", "machine %d: %v", m.i, err)
			return
		}
		if m.i == 0 {
			first = sum
		}
		if sum != first {
			w.fail("all folds are equal when quiet", "machines 0 and %d: %x and %x", m.i, first, sum)
		}
	}
}

// fold reads the state of a folder up to an entry from its newest snapshot and its log.
func fold(fsys vfs.FS, last entry.Index) (sum [32]byte, err error) {
	id, err := node.ReadIdentity(fsys)
	if err != nil {
		return sum, err
	}
	s, _, bad, err := snapshot.Load(fsys, "snapshots", id)
	if err != nil || len(bad) > 0 {
		return sum, fmt.Errorf("snapshots: %v %w", bad, err)
	}
	_, err = wal.Inspect(fsys, "log", func(e *entry.Entry, _ entry.Position) error {
		if e.Index <= s.Applied() || e.Index > last {
			return nil
		}
		_, err := s.Apply(e)
		return err
	})
	return s.Hash(), err
}

// restartAll ends all processes, starts them again, and reads everything.
func (w *world) restartAll() {
	power := w.rng.IntN(2) == 0
	for _, m := range w.machines {
		m.p.kill(power)
	}
	w.settle()
	if !w.until(30*time.Second, w.inStep) {
		w.fail("a cluster starts unaided", "after 30 s:%s", w.standings())
		return
	}
	w.readAll()
}

// linearizable checks what clients saw.
func (w *world) linearizable(s *stats) error {
	for _, name := range w.oracle.names {
		t := w.oracle.topics[name]
		if t.free {
			continue // the log says what clients could see
		}
		open := 0
		for _, o := range t.history {
			if o.Outcome == linear.Unknown {
				open++
			}
		}
		err := linear.ErrUndecided
		if len(t.history) <= historyMax && open <= unknownMax {
			err = linear.Check(t.history, judgeMax)
		}
		switch {
		case errors.Is(err, linear.ErrUndecided):
			s.unjudged++
		case err != nil:
			return fmt.Errorf("INVARIANT %q: %w", "what clients see is linearizable", err)
		default:
			s.linearized += len(t.history)
		}
	}
	return nil
}
