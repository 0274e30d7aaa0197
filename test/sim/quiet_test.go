package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	// reconcileAfter is when the operator looks why the pair does not write, and quietMax when that is too long.
	reconcileAfter = 15 * time.Second
	quietMax       = 90 * time.Second
)

// promiseFile is what the simulation reads of pair.json.
type promiseFile struct {
	Epoch   uint64 `json:"epoch"`
	Leader  string `json:"leader"`
	First   uint64 `json:"first"`
	WholeAt uint64 `json:"whole_at"`
}

func promiseOf(fsys vfs.FS) (p promiseFile) {
	json.Unmarshal(content(fsys, "pair.json"), &p) // without a file: nothing was promised
	return p
}

// quiet ends all faults, and checks what must hold then.
func (w *world) quiet() {
	w.heal()
	w.mu.Lock()
	w.note("QUIET")
	w.mu.Unlock()
	if !w.inStep() {
		return
	}
	lead := w.machines[w.lead].p
	if !w.write(lead, 4) {
		return
	}
	w.readAll(lead)
	w.retries(lead)
	w.tidy()
	w.readAll(lead) // the same from where the cleaner has put it
	w.groups(lead)
	if !w.until(10*time.Second, w.applied) {
		w.fail("the follower applies what is committed", "leader: %+v; follower: %+v", w.status(w.lead), w.status(1-w.lead))
	}
	w.compareFolders()
	if w.violation == nil && w.rng.IntN(3) == 0 {
		w.failover()
	}
}

// write publishes, which must work when all is quiet. It reports whether there is an answer to each.
func (w *world) write(lead *process, requests int) bool {
	var ops []*op
	for range requests {
		o := &op{number: w.requests, p: lead, kind: "publish", topic: fmt.Sprint("t", w.rng.IntN(4))}
		w.requests++
		w.mu.Lock()
		w.compose(o)
		o.sentAt = lead.active
		lead.pending[o] = struct{}{}
		w.note("%v", o)
		w.mu.Unlock()
		lead.serving.Go(o.run)
		ops = append(ops, o)
	}
	w.settle()
	if !w.until(10*time.Second, func() bool { return len(lead.pending) == 0 }) {
		w.fail("writes work when quiet", "the last publishes are not answered")
		return false
	}
	for _, o := range ops {
		if o.outcome != done {
			w.fail("writes work when quiet", "%v: %v", o, o.outcome)
		}
	}
	return true
}

// tidyMax is how long limits and the cleaner may take when all is quiet, in seconds.
const tidyMax = 60

// tidy lets time pass until all topics are within their limits, and both logs take no more room than promised. A follower may
// wait for one more entry, where only its older snapshot needs a segment, and nothing is written: it gets one after half the time.
func (w *world) tidy() {
	why := ""
	for second := range tidyMax {
		if w.until(time.Second, func() bool { return false }); w.violation != nil {
			return
		}
		if second == tidyMax/2 && strings.HasPrefix(why, fmt.Sprintf("machine %d has", 1-w.lead)) {
			w.stats.prodded++
			if !w.write(w.machines[w.lead].p, 1) {
				return
			}
		}
		if why = w.untidy(); why == "" {
			return
		}
	}
	if w.violation == nil {
		w.fail("space is given back", "after %d s: %s", tidyMax, why)
	}
}

// groups checks that all groups stand where the log says.
func (w *world) groups(p *process) {
	w.book.Groups(func(topic, group string, next fact.Offset) {
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
	for _, m := range w.machines {
		if m.p == nil || m.p.n == nil {
			return fmt.Sprintf("machine %d is down", m.i)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	lead := w.machines[w.lead]
	upTo := entry.Index(lead.p.n.PairStatus().AppliedIndex)
	if w.read(lead.fs, upTo); w.violation != nil {
		return ""
	}
	if w.book.Next() <= upTo {
		w.violated("nothing committed is dropped unread", "the book ends before entry %d, and entry %d is applied", w.book.Next(), upTo)
		return ""
	}
	const slackMS = 3000
	if text := w.book.Behind(epochStart.Add(w.now).UnixMilli(), slackMS); text != "" {
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

// heal ends all faults.
func (w *world) heal() {
	w.mu.Lock()
	w.net.cut = [2]bool{}
	w.plan.slow, w.plan.dieStarting = 0, 0
	for _, c := range w.net.conns {
		if c.faulty {
			w.reset(c)
		}
	}
	w.mu.Unlock()
	for _, m := range w.machines {
		m.fs.SetCapacity(capacity)
		p := m.p
		if p == nil {
			continue
		}
		p.fault.Heal()
		w.mu.Lock()
		p.slow, p.armed = 0, 0
		w.mu.Unlock()
		if p.paused {
			p.resume(w.rng.IntN(2) == 0)
			w.settle()
		}
		if m.p != nil && (p.broken || p.stopping) {
			w.takeDown(m)
		}
	}
	if w.alone != nil {
		w.takeDown(w.alone)
		w.mu.Lock()
		w.alone = nil
		w.mu.Unlock()
	}
	w.settle()
}

// move lets one packet arrive, or else time pass.
func (w *world) move() {
	w.mu.Lock()
	list := w.deliverable()
	if len(list) > 0 {
		w.deliver(list[w.rng.IntN(len(list))])
	}
	w.mu.Unlock()
	if len(list) == 0 {
		w.tick(500 * time.Millisecond)
	}
	w.settle()
}

// until moves on until ok, and reports whether that came in time.
func (w *world) until(limit time.Duration, ok func() bool) bool {
	for end := w.now + limit; w.violation == nil && !ok(); {
		if w.now > end {
			return false
		}
		w.move()
	}
	return w.violation == nil
}

func (w *world) status(i int) any {
	if p := w.machines[i].p; p != nil && p.n != nil {
		return p.n.PairStatus()
	}
	return "down"
}

// inStep brings both nodes up in their roles, and waits until writes work and the follower is whole.
func (w *world) inStep() bool {
	began, looked := w.now, w.now
	for w.violation == nil {
		for _, m := range w.machines {
			leads, role := m.i == w.lead, node.Follower
			if leads {
				role = node.Leader
			}
			if p := m.p; p != nil && (p.role != role || leads && p.epoch != w.epoch) {
				w.takeDown(m)
			}
			if m.p == nil {
				if leads && w.fenced {
					w.fenced = false
					w.epoch = max(w.epoch, w.promise) + 1
				}
				w.start(m)
				w.settle()
			}
		}
		lead, other := w.machines[w.lead].p, w.machines[1-w.lead].p
		if lead != nil && other != nil && lead.recovered && other.recovered && lead.n != nil && other.n != nil {
			l, f := lead.n.PairStatus(), other.n.PairStatus()
			p := promiseOf(other.m.fs)
			if l.Writable && f.State == "streaming" && p.First == 0 && p.WholeAt == 0 && len(lead.pending)+len(other.pending) == 0 && !w.leftovers() {
				return true
			}
			if w.now-looked > reconcileAfter {
				looked = w.now
				w.reconcile(l.Reason)
			}
		} else if w.now-looked > reconcileAfter && w.machines[w.lead].p == nil {
			looked = w.now
			w.reconcile("the leader does not start")
		}
		if w.now-began > quietMax {
			w.fail("writes work when quiet", "leader: %+v; follower: %+v", w.status(w.lead), w.status(1-w.lead))
			return false
		}
		w.move()
	}
	return false
}

// leftovers reports whether something of a connection that has ended on one side is still on its way.
func (w *world) leftovers() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.deliverable() {
		if d.c.ends[0].closed || d.c.ends[1].closed {
			return true
		}
	}
	return false
}

// reconcile is the operator, who reads why the pair does not write, and does as he is told.
func (w *world) reconcile(reason string) {
	other := w.machines[1-w.lead]
	w.mu.Lock()
	w.note("the operator reads: %s", reason)
	w.mu.Unlock()
	switch {
	case strings.Contains(reason, "has dropped what comes next"):
		w.stats.behind++
		w.takeDown(other)
		w.replace(other)
	case strings.Contains(reason, "the logs differ") || strings.Contains(reason, "it has lost acknowledged entries"):
		w.stats.diverged++
		if !other.rogue {
			w.fail("a node that was in order is taken back", "machine %d: %s", other.i, reason)
			return
		}
		w.takeDown(other)
		w.replace(other)
	default: // another leader was started with this epoch
		w.takeDown(w.machines[w.lead])
		w.epoch++
	}
}

// applied reports whether both folds are at the end of both logs.
func (w *world) applied() bool {
	l, f := w.machines[w.lead].p.n.PairStatus(), w.machines[1-w.lead].p.n.PairStatus()
	return l.AppliedIndex == l.LastIndex && f.AppliedIndex == l.AppliedIndex && f.DurableIndex == l.LastIndex
}

// inTime calls f in a goroutine of the process, and moves on until it has returned: the leader may be at work by itself.
func (w *world) inTime(p *process, f func()) {
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
	}
}

// readAll reads everything that a node has, and checks that nothing is missing.
func (w *world) readAll(p *process) {
	for _, name := range slices.Sorted(maps.Keys(w.oracle.topics)) {
		w.inTime(p, func() { w.readTopic(p.n, name, w.oracle.topics[name]) })
	}
	for _, k := range slices.SortedFunc(maps.Keys(w.oracle.groups), groupKey.compare) {
		g := w.oracle.groups[k]
		if w.oracle.topic(k.topic).deleting {
			continue // the book knows
		}
		most := upTo(g.moves, 1<<62)
		var s sink
		var page broker.Page
		var err error
		w.inTime(p, func() {
			page, err = p.n.Fetch(&broker.Fetch{Topic: []byte(k.topic), Group: []byte(k.group), Limit: 1}, &s)
		})
		if at := uint64(page.Next) - uint64(page.Records); most > 0 && (err != nil || at < most) {
			w.fail("no acknowledged move of a group is lost", "group %s of %s is at %d (%v), and %d was acknowledged", k.group, k.topic, at, err, most)
		}
	}
}

func (w *world) readTopic(n *node.Node, name string, t *topicModel) {
	most, next := upTo(t.ends, 1<<62), fact.Offset(0)
	for {
		var s sink
		page, err := n.Fetch(&broker.Fetch{Topic: []byte(name), Offset: next, Limit: 1000}, &s)
		var gone *broker.OffsetGoneError
		switch {
		case errors.As(err, &gone) && next == 0:
			next = gone.Start
			continue
		case errors.Is(err, broker.ErrTopicNotFound) && (len(t.at) == 0 || t.deleting):
			return // the book knows
		case err != nil:
			w.fail("no acknowledged record is lost", "topic %s at %d: %v", name, next, err)
			return
		}
		w.mu.Lock()
		w.judge("the end", name, uint64(next), &s)
		next = page.Next
		if next < page.End {
			w.mu.Unlock()
			continue
		}
		if uint64(page.Start) < t.start {
			w.violated("no acknowledged retain is lost", "topic %s starts at %d, and %d was acknowledged", name, page.Start, t.start)
		}
		if uint64(page.Start) > t.startMax && !t.free {
			w.violated("a topic starts where somebody asked for", "topic %s starts at %d", name, page.Start)
		}
		if uint64(page.End) < most {
			w.violated("no acknowledged record is lost", "topic %s ends at %d, and %d are acknowledged", name, page.End, most)
		}
		for offset := range t.at {
			if offset >= uint64(page.End) {
				w.violated("nothing is read that is later gone", "topic %s ends at %d, and offset %d was read", name, page.End, offset)
			}
		}
		for _, p := range w.oracle.pubs { // a batch is there whole
			if p.topic == name && p.base >= 0 && uint64(p.base)+uint64(len(p.values)) > uint64(page.End) {
				w.violated("a batch is there whole", "of %d records at %d of %s only a part is there", len(p.values), p.base, name)
			}
		}
		w.mu.Unlock()
		return
	}
}

// retries sends again what was acknowledged with a request id.
func (w *world) retries(lead *process) {
	for _, p := range w.oracle.pubs {
		if w.violation != nil {
			return
		}
		if !p.acked || p.id == "" || p.rogue || w.rng.IntN(4) > 0 {
			continue
		}
		q := &broker.Publish{Topic: []byte(p.topic), RequestID: []byte(p.id)}
		for _, v := range p.values {
			q.Records = append(q.Records, fact.Record{Key: []byte("k"), Value: []byte(v)})
		}
		var r broker.Published
		var err error
		w.inTime(lead, func() { r, err = lead.n.Publish(q) })
		if err != nil || !r.Duplicate || int64(r.Base) != p.base {
			w.fail("one request id has one outcome", "%q of %s at %d is answered with %+v, %v", p.id, p.topic, p.base, r, err)
		}
	}
}

// compareFolders stops both nodes, and compares what is on their disks.
func (w *world) compareFolders() {
	for _, i := range []int{w.lead, 1 - w.lead} {
		m := w.machines[i]
		if w.violation != nil {
			return
		}
		m.p.stop()
		w.settle()
		if !w.until(10*time.Second, func() bool { return m.p == nil }) {
			w.fail("a node stops in time", "machine %d", i)
			return
		}
	}
	a, b := w.machines[w.lead], w.machines[1-w.lead]
	w.audit(a.fs, b.fs)
	d, err := wal.Compare(a.fs, "log", b.fs, "log")
	if err != nil || !d.Equal() {
		w.fail("both logs are equal when quiet", "%+v, %v", d, err)
		return
	}
	var hashes [2][32]byte
	var entries map[cutLine]bool
	for i, m := range w.machines {
		if hashes[i], entries, err = fold(m.fs); err != nil {
			w.fail("the fold can be read", "machine %d: %v", i, err)
			return
		}
	}
	if hashes[0] != hashes[1] {
		w.fail("both folds are equal when quiet", "%x and %x", hashes[0], hashes[1])
	}
	for _, m := range w.machines {
		for line, text := range cutEntries(m.fs) {
			if m.cut[line] && entries[line] && w.plainCut(text) {
				w.fail("what is cut was never acknowledged", "machine %d has cut off %.100s", m.i, text)
			}
		}
	}
}

// audit has the book judge all that was seen, by the logs of both nodes, which are closed.
func (w *world) audit(logs ...vfs.FS) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, fsys := range logs {
		w.read(fsys, math.MaxUint64)
	}
	if err := w.book.Judge(); err != nil {
		w.violated("what clients see is in the log", "%v", err)
	}
	for _, s := range w.oracle.began {
		if !w.book.Began(s.topic, s.start) {
			w.violated("a topic starts where the log says", "request %d: %s starts at %d", s.request, s.topic, s.start)
		}
	}
	w.stats.kept, w.stats.moved, w.stats.deleted = w.book.Kept, w.book.Moved, w.book.Deleted
}

// plainCut tells whether a line of a side file is a record that is in the log now at the same offset.
func (w *world) plainCut(text string) bool {
	var line struct {
		Topic  string
		Offset *uint64
		Value  []byte
	}
	if json.Unmarshal([]byte(text), &line) != nil || line.Offset == nil {
		return false
	}
	p := w.oracle.values[string(line.Value)]
	return p != nil && p.acked && w.oracle.topic(line.Topic).at[*line.Offset] == p
}

// fold reads the state of a folder from its newest snapshot and its log, and the entries of the log.
func fold(fsys vfs.FS) (sum [32]byte, entries map[cutLine]bool, err error) {
	id, err := node.ReadIdentity(fsys)
	if err != nil {
		return sum, nil, err
	}
	s, _, bad, err := snapshot.Load(fsys, "snapshots", id)
	if err != nil || len(bad) > 0 {
		return sum, nil, fmt.Errorf("snapshots: %v %w", bad, err)
	}
	entries = make(map[cutLine]bool)
	_, err = wal.Inspect(fsys, "log", func(e *entry.Entry, _ entry.Position) error {
		entries[lineOf(e)] = true
		if e.Index <= s.Applied() {
			return nil
		}
		_, err := s.Apply(e)
		return err
	})
	return s.Hash(), entries, err
}

// failover promotes the follower, and reads everything there.
func (w *world) failover() {
	old := w.lead
	w.promote(w.machines[1-old])
	w.settle()
	if w.lead == old {
		w.fail("a follower that is in step can be promoted", "machine %d is refused", 1-old)
		return
	}
	if w.inStep() {
		w.readAll(w.machines[w.lead].p)
		w.audit(w.machines[w.lead].fs)
	}
}
