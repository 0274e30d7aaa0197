package broker

import (
	"cmp"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
)

const (
	// policyEvery is how often topics are held against their limits, policyLeast how long after one pass the next may follow
	// where HoldToLimits asks for it.
	policyEvery = time.Second
	policyLeast = policyEvery / 10
	// policyReadMax is how long one pass may read the log. What is left over is looked at in the next one.
	policyReadMax = policyEvery / 4
	// policyWait is how long a topic is left alone whose records cannot be read now.
	policyWait = 10 * time.Second
	// policyFacts is how many starts are moved at the same time, so that they share a group commit.
	policyFacts = 64
	// policyStep: by time a start is moved no sooner than the limit divided by this after it was moved last, and than
	// policyEvery, so that a topic that is written to steadily does not cost one fact for each record.
	policyStep = 100
)

// policy moves the starts of topics up, by facts, when they exceed their limits: as many records from the start on, as many
// bytes, and those that are older, by the time of the log. It acts only while this node leads; who leads next goes on.
//
// Limits of records and bytes cost nothing to check, since the fold has the figures. For limits of time it remembers when the
// topic is due, and reads nothing before that. Its goroutine, started by Start, owns the fields, and ends with Close.
type policy struct {
	b      *Broker
	tenure *tenure // in which what follows was learnt
	// heads has what is known of the first records of topics with a limit of time, and of topics to be left alone for a while.
	// Invariant: topics without limits are in it for one pass at most.
	heads map[state.TopicID]head
	from  state.TopicID // where the next pass begins
	// idle says that the last pass left nothing to do before nextMS, as long as the log ends at applied.
	idle    bool
	applied entry.Index
	nextMS  int64
}

// head is what the policy knows of the first record of a topic. Times are in ms and those of the log.
type head struct {
	start    fact.Offset // that it is about
	oldestMS int64       // of the first record from start on that can be read, or -1 if that was not looked at
	movedMS  int64       // when the start was moved by time, or 0
	waitMS   int64       // before this the topic is left alone
}

// due is when the oldest record exceeds a limit of time, or should be looked at.
func (h *head) due(limitMS int64) int64 {
	due := h.movedMS
	if due > 0 {
		due += max(limitMS/policyStep, policyEvery.Milliseconds())
	}
	if h.oldestMS >= 0 {
		due = max(due, h.oldestMS+min(limitMS, state.TimeMaxMS)+1)
	}
	return max(due, h.waitMS)
}

// policyLoop runs until Close. The timer, which it takes over, ends the first policyLeast.
func (b *Broker) policyLoop(timer clock.Timer) {
	p := &policy{b: b}
	defer timer.Stop()
	least := policyLeast
	for {
		select {
		case <-timer.C():
		case <-b.stop:
			return
		}
		timer.Reset(policyEvery - least)
		select {
		case <-timer.C():
		case <-b.limits:
		case <-b.stop:
			return
		}
		b.lists.expire(b.clock.Monotonic())
		p.pass()
		if least = policyLeast; p.from != 0 { // it has read as much as it may in a second
			least = policyEvery - policyLeast
		}
		timer.Reset(least)
	}
}

// HoldToLimits has topics held against their limits soon, and not only once a second: much has been published. It does not
// wait, and may be called often.
func (b *Broker) HoldToLimits() {
	select {
	case b.limits <- struct{}{}:
	default:
	}
}

// pass holds all topics against their limits. What is in the way of it (a full disk, a lost lead) ends it, and has been
// reported; the next one begins anew.
func (p *policy) pass() {
	tenure := p.b.tenure.Load()
	if tenure == nil {
		*p = policy{b: p.b}
		return
	}
	if tenure != p.tenure {
		*p = policy{b: p.b, tenure: tenure, heads: make(map[state.TopicID]head)}
	}
	nowMS, applied, topics := p.now()
	if p.idle && applied == p.applied && nowMS < p.nextMS {
		return
	}
	p.idle, p.applied, p.nextMS = true, applied, state.TimeMaxMS+1
	m := mover{b: p.b, tenure: tenure, room: make(chan struct{}, policyFacts)}
	defer m.sent.Wait()
	began := p.b.clock.Monotonic()
	timed := 0
	first := p.from
	for done := 0; done < topics; {
		at := (int(first) + done) % topics
		n := min(listStep, topics-at, topics-done)
		due, more := p.due(state.TopicID(at), n, nowMS)
		timed += more
		for i := range due {
			if m.ended() || p.b.clock.Monotonic()-began > policyReadMax {
				p.idle, p.from = false, due[i].ID
				return
			}
			p.move(&due[i], nowMS, &m)
		}
		done += n
	}
	p.from = 0
	p.forget(timed)
}

// now returns the time of the log if something were logged now, the index of its last entry, and the number of topics.
func (p *policy) now() (nowMS int64, applied entry.Index, topics int) {
	p.b.view.RLock()
	defer p.b.view.RUnlock()
	return max(p.b.clock.Now().UnixMilli(), p.b.state.TimeMS()), p.b.state.Applied(), p.b.state.Topics()
}

// due returns those of n topics from one on that must be looked at, and how many of them have a limit of time.
func (p *policy) due(from state.TopicID, n int, nowMS int64) (due []state.Topic, timed int) {
	p.b.view.RLock()
	defer p.b.view.RUnlock()
	for id := from; id < from+state.TopicID(n); id++ {
		t := p.b.state.TopicByID(id)
		if t.Start == t.End { // deleted, too
			continue
		}
		limit := p.b.settings(t.Retention).Effective
		if limit.MS != fact.LimitNone {
			timed++
		}
		if over(t.Records(), limit.Records) || over(t.EndCum-t.StartCum, limit.Bytes) {
			if h, ok := p.heads[id]; !ok || h.start != t.Start || h.waitMS <= nowMS {
				due = append(due, t)
				continue
			}
			p.again(p.heads[id].waitMS)
		}
		if limit.MS == fact.LimitNone || t.Records() == 0 {
			continue
		}
		h, ok := p.heads[id]
		if !ok || h.start != t.Start {
			due = append(due, t)
		} else if at := h.due(int64(limit.MS)); at <= nowMS {
			due = append(due, t)
		} else {
			p.again(at)
		}
	}
	return due, timed
}

func over(n uint64, limit fact.Limit) bool { return limit != fact.LimitNone && n > uint64(limit) }

// again says that a pass is due at a time.
func (p *policy) again(ms int64) { p.nextMS = min(p.nextMS, ms) }

// move looks at a topic and moves its start to where its limits want it.
func (p *policy) move(t *state.Topic, nowMS int64, m *mover) {
	l := p.b.lookerOf(*t, nowMS)
	defer l.release()
	limit := p.b.settings(t.Retention).Effective
	h, ok := p.heads[t.ID]
	if !ok || h.start != t.Start {
		if h.start > t.Start {
			h.movedMS = 0 // what was to move it has failed
		}
		h = head{start: t.Start, oldestMS: -1, movedMS: h.movedMS}
	}
	to, err := p.target(l, limit, &h, nowMS)
	switch {
	case err != nil:
		h.waitMS = nowMS + policyWait.Milliseconds()
		if p.b.mayLogDamage() {
			p.b.logger.Warn("a topic cannot be held against its limits now", "topic", t.Name, "err", err)
		}
	case to.off > t.Start:
		h.start, h.oldestMS = to.off, -1
		m.move(t, to)
		p.idle = false
	case over(t.Records(), limit.Records) || over(t.EndCum-t.StartCum, limit.Bytes) || h.oldestMS < 0:
		h.waitMS = nowMS + policyWait.Milliseconds() // damage is in the way
	}
	if h.waitMS > nowMS || limit.MS != fact.LimitNone {
		p.heads[t.ID] = h
		p.again(h.due(int64(limit.MS)))
	} else {
		delete(p.heads, t.ID)
	}
}

// target returns where the start of a topic must be by its limits: not below where it is.
func (p *policy) target(l *looker, limit fact.Retention, h *head, nowMS int64) (found, error) {
	t := &l.topic
	to := found{off: t.Start, cum: t.StartCum}
	if n := t.Records(); over(n, limit.Records) {
		off := t.Nth(n - uint64(limit.Records))
		cum, err := l.cum(off)
		if err != nil {
			return found{}, err
		}
		to = found{off: off, cum: cum}
	}
	if over(t.EndCum-t.StartCum, limit.Bytes) {
		f, err := l.startFor(uint64(limit.Bytes))
		if err != nil {
			return found{}, err
		}
		to = later(to, f)
	}
	if limit.MS == fact.LimitNone || to.off >= t.End {
		return to, nil
	}
	if to.off == t.Start && h.oldestMS < 0 {
		s, ok, err := l.first(t.Nth(0))
		if err != nil || !ok {
			return found{}, cmp.Or(err, errNothingReadable)
		}
		h.oldestMS = s.timeMS
	}
	if h.oldestMS >= 0 && h.due(int64(limit.MS)) > nowMS {
		return to, nil
	}
	f, err := l.startOf(nowMS - min(int64(limit.MS), nowMS))
	if err != nil {
		return found{}, err
	}
	if f.off > to.off {
		h.movedMS = nowMS
	}
	return later(to, f), nil
}

var errNothingReadable = errors.New("none of its records can be read")

func later(a, b found) found {
	if b.off > a.off {
		return b
	}
	return a
}

// forget drops what is known of topics that have no limits any more, when that is much.
func (p *policy) forget(timed int) {
	if len(p.heads) <= 2*timed+listStep {
		return
	}
	maps.DeleteFunc(p.heads, func(id state.TopicID, h head) bool {
		p.b.view.RLock()
		defer p.b.view.RUnlock()
		t := p.b.state.TopicByID(id)
		return t.Start == t.End || p.b.settings(t.Retention).Effective.MS == fact.LimitNone
	})
}

// mover sends the facts of one pass, several at a time.
type mover struct {
	b      *Broker
	tenure *tenure
	room   chan struct{} // holds a value for each fact on its way
	sent   sync.WaitGroup
	failed atomic.Bool
}

// ended reports whether nothing more can be moved: this node does not lead any more, the disk is full, the broker closes.
func (m *mover) ended() bool {
	select {
	case <-m.b.stop:
		return true
	default:
		return m.failed.Load() || m.b.tenure.Load() != m.tenure
	}
}

// move logs that a topic starts at to. It waits only while too many others are on their way. That the topic was deleted
// meanwhile, its settings changed, or its start moved by others, is no matter.
func (m *mover) move(t *state.Topic, to found) {
	topic, own := t.Name, t.Retention
	m.room <- struct{}{}
	m.sent.Go(func() { // awaited by pass
		defer func() { <-m.room }()
		o := m.b.ops.get(opRetain)
		o.topic, o.offset, o.cum, o.cumKnown = []byte(topic), to.off, to.cum, true
		o.byPolicy, o.retention = true, own
		m.b.do(o)
		if err := o.err; err != nil && !errors.Is(err, ErrTopicNotFound) && !errors.Is(err, errLookAgain) && !errors.As(err, new(*OffsetRangeError)) {
			m.failed.Store(true)
		}
		m.b.ops.put(o)
	})
}
