package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
	"example.com/mq/test/sim/audit"
)

type outcome int

const (
	pending outcome = iota
	done
	notDone
	unknown
)

func (o outcome) String() string { return [...]string{"pending", "done", "not done", "unknown"}[o] }

// op is one request to one process.
type op struct {
	number int
	kind   string // publish, group, retain, fetch, snapshot, configure, delete, forget, seek
	topic  string
	group  string
	offset uint64
	limits *broker.Configure // of a configure
	seek   *broker.Seek      // of a seek
	byTime bool              // a fetch, from fromMS
	fromMS int64
	pub    *publication // of a publish
	p      *process

	sentAt   time.Duration // of p.active
	before   known         // what was known when it was sent
	outcome  outcome
	answered bool
	rogue    bool
}

// publication is records that a client wants stored once; with a request id it may be tried several times.
type publication struct {
	id       string
	topic    string
	values   []string
	attempts []*op
	base     int64 // where it is, once anybody knows; else -1
	acked    bool
	rogue    bool
}

// possible says that it may be stored.
func (p *publication) possible() bool {
	return !p.rogue && slices.ContainsFunc(p.attempts, func(o *op) bool { return o.outcome != notDone })
}

// known is what a reader may rely on.
type known struct {
	end   uint64 // of the topic: one past the highest acknowledged offset
	group uint64 // the highest acknowledged offset of the group
}

// ack is the highest acknowledged value at an epoch.
type ack struct {
	epoch, value uint64
}

type groupKey struct{ topic, group string }

func (k groupKey) compare(o groupKey) int {
	return cmp.Or(strings.Compare(k.topic, o.topic), strings.Compare(k.group, o.group))
}

// topicModel is what is known of a topic.
type topicModel struct {
	at       map[uint64]*publication // what is at an offset, as acknowledged or read
	ends     []ack
	start    uint64 // acknowledged
	startMax uint64 // asked for
	// free: its start may move by limits, and it may be deleted. What it must have then, only the book knows.
	free     bool
	deleting bool   // somebody has asked to delete it
	seen     uint64 // the highest start that was seen
}

type groupModel struct {
	moves  []ack
	asked  []uint64
	latest uint64
	moving *op // the last one sent
}

// oracle is what the clients know.
type oracle struct {
	topics map[string]*topicModel
	groups map[groupKey]*groupModel
	values map[string]*publication
	pubs   []*publication
	free   bool // all topics are
	began  []began
}

// began is a start that a client was told.
type began struct {
	request int
	topic   string
	start   fact.Offset
}

func newOracle(free bool) *oracle {
	return &oracle{free: free, topics: map[string]*topicModel{}, groups: map[groupKey]*groupModel{}, values: map[string]*publication{}}
}

func (o *oracle) topic(name string) *topicModel {
	t := o.topics[name]
	if t == nil {
		t = &topicModel{at: map[uint64]*publication{}, free: o.free || name >= "t2"}
		o.topics[name] = t
	}
	return t
}

func (o *oracle) group(k groupKey) *groupModel {
	g := o.groups[k]
	if g == nil {
		g = &groupModel{}
		o.groups[k] = g
	}
	return g
}

// upTo returns the highest value that was acknowledged by a leader of an epoch, or one before.
func upTo(acks []ack, epoch uint64) (most uint64) {
	for _, a := range acks {
		if a.epoch <= epoch {
			most = max(most, a.value)
		}
	}
	return most
}

// send makes up a request and sends it.
func (w *world) send(p *process) {
	o := &op{number: w.requests, p: p, topic: fmt.Sprint("t", w.rng.IntN(4)), rogue: p.rogue}
	w.requests++
	w.mu.Lock()
	t := w.oracle.topic(o.topic)
	end := upTo(t.ends, 1<<62)
	switch k := w.rng.IntN(100); {
	case !p.rogue && w.rng.IntN(12) == 0:
		w.manage(o, t, end)
	case k < 8 && end > t.startMax && !p.rogue:
		from := min(max(t.startMax, t.seen), end)
		o.kind, o.offset = "retain", from+uint64(w.rng.IntN(int(end-from)+1))
		t.startMax = max(t.startMax, o.offset)
		w.book.Asked(audit.Retain(o.topic, o.offset))
	case k < 18 && end > t.startMax && !p.rogue:
		o.kind, o.group = "group", fmt.Sprint("g", w.rng.IntN(2))
		g := w.oracle.group(groupKey{o.topic, o.group})
		if g.moving != nil && !g.moving.answered { // which of two comes first is open
			o.kind, o.before.group = "fetch", upTo(g.moves, p.epoch)
			break
		}
		g.moving = o
		from := min(max(t.startMax, g.latest, t.seen), end)
		o.offset = from + uint64(w.rng.IntN(int(end-from)+1))
		g.latest = max(g.latest, o.offset)
		g.asked = append(g.asked, o.offset)
		w.book.Asked(audit.Move(o.topic, o.group))
	case k < 35:
		o.kind = "fetch"
		if w.rng.IntN(2) == 0 {
			o.group = fmt.Sprint("g", w.rng.IntN(2))
			o.before.group = upTo(w.oracle.group(groupKey{o.topic, o.group}).moves, p.epoch)
		} else {
			o.offset = end + 1 - min(end+1, uint64(w.rng.IntN(12)))
			if w.rng.IntN(4) == 0 {
				o.offset = uint64(w.rng.IntN(int(end) + 2))
			}
		}
		o.before.end = upTo(t.ends, p.epoch)
	case k < 37:
		o.kind = "snapshot"
	case k < 55 && !p.rogue && w.retry(o):
		o.kind = "publish"
	default:
		o.kind = "publish"
		w.compose(o)
	}
	o.sentAt = p.active
	p.pending[o] = struct{}{}
	w.note("%v", o)
	p.whenAwake(func() { p.serving.Go(o.run) })
	w.mu.Unlock()
}

// manage makes up a request of those that change how long records are kept, or what a group reads. Called with mu held.
func (w *world) manage(o *op, t *topicModel, end uint64) {
	group := func() {
		o.group = "s"
		o.seek = &broker.Seek{Topic: []byte(o.topic), Group: []byte(o.group), By: broker.SeekBy(w.rng.IntN(4)), DryRun: w.rng.IntN(6) == 0}
		o.seek.Offset, o.seek.TimeMS = fact.Offset(w.rng.IntN(int(end)+2)), w.someTime()
	}
	switch k := w.rng.IntN(20); {
	case k < 5 && t.free:
		o.kind, o.limits = "configure", &broker.Configure{Topic: []byte(o.topic), Reset: w.rng.IntN(2) == 0}
		r := makeRetention(w.rng)
		for _, set := range []struct {
			to   **fact.Limit
			from fact.Limit
		}{{&o.limits.RetentionMS, r.MS}, {&o.limits.RetentionBytes, r.Bytes}, {&o.limits.RetentionRecords, r.Records}} {
			if w.rng.IntN(8) == 0 {
				set.from = fact.LimitNone
			}
			if set.from != 0 {
				*set.to = &set.from
			}
		}
		w.book.Asked(audit.Configure(o.topic))
	case k < 8 && t.free:
		o.kind, t.deleting = "delete", true
		w.book.Asked(audit.Delete(o.topic))
	case k < 12:
		o.kind = "seek"
		if group(); !o.seek.DryRun {
			w.book.Asked(audit.Move(o.topic, o.group))
		}
	case k < 14:
		o.kind, o.group = "forget", "s"
		w.book.Asked(audit.Forget(o.topic, o.group))
	default:
		o.kind, o.byTime, o.fromMS = "fetch", true, w.someTime()
		o.before.end = upTo(t.ends, o.p.epoch)
		w.stats.byTime++
	}
}

// someTime is one since the run began, or nearly so.
func (w *world) someTime() int64 {
	return epochStart.UnixMilli() - 1000 + w.rng.Int64N(w.now.Milliseconds()+2000)
}

func (o *op) String() string {
	s := fmt.Sprintf("request %d to %d: %s %s", o.number, o.p.m.i, o.kind, o.topic)
	if o.pub != nil {
		return fmt.Sprintf("%s id %q: %d records", s, o.pub.id, len(o.pub.values))
	}
	switch {
	case o.limits != nil:
		limit := func(l *fact.Limit) string {
			if l == nil {
				return "as is"
			}
			return fmt.Sprint(*l)
		}
		return fmt.Sprintf("%s reset: %v, %s ms, %s bytes, %s records", s, o.limits.Reset, limit(o.limits.RetentionMS), limit(o.limits.RetentionBytes),
			limit(o.limits.RetentionRecords))
	case o.seek != nil:
		return fmt.Sprintf("%s %s by %d to %d or %d, dry: %v", s, o.group, o.seek.By, o.seek.Offset, o.seek.TimeMS, o.seek.DryRun)
	case o.byTime:
		return fmt.Sprintf("%s from %d ms", s, o.fromMS)
	}
	return fmt.Sprintf("%s %s %d", s, o.group, o.offset)
}

// compose makes up a publish. Called with mu held.
func (w *world) compose(o *op) {
	p := &publication{topic: o.topic, base: -1, rogue: o.rogue}
	n := 1
	if w.rng.IntN(4) == 0 {
		n = 1 + w.rng.IntN(6)
	}
	for i := range n {
		size := w.rng.IntN(250)
		if w.rng.IntN(w.plan.large) == 0 {
			size = w.rng.IntN(3000)
		}
		v := fmt.Sprintf("v%d.%d;%s", o.number, i, strings.Repeat("x", size))
		p.values = append(p.values, v)
		w.oracle.values[v] = p
	}
	if w.rng.IntN(2) == 0 {
		p.id = fmt.Sprint("id", o.number)
	}
	p.attempts = append(p.attempts, o)
	w.oracle.pubs = append(w.oracle.pubs, p)
	o.pub = p
}

// retry picks a publish to send again, most often one whose outcome is unknown. Called with mu held.
func (w *world) retry(o *op) bool {
	var list, open []*publication
	for _, p := range w.oracle.pubs {
		if p.id != "" && !p.rogue {
			list = append(list, p)
			if !p.acked {
				open = append(open, p)
			}
		}
	}
	if len(open) > 0 && w.rng.IntN(4) > 0 {
		list = open
	}
	if len(list) == 0 {
		return false
	}
	o.pub = list[w.rng.IntN(len(list))]
	o.topic = o.pub.topic
	o.pub.attempts = append(o.pub.attempts, o)
	return true
}

// run is the request, in a goroutine of its own.
func (o *op) run() {
	n := o.p.n
	switch o.kind {
	case "publish":
		p := &broker.Publish{Topic: []byte(o.topic), RequestID: []byte(o.pub.id)}
		for _, v := range o.pub.values {
			p.Records = append(p.Records, fact.Record{Key: []byte("k"), Value: []byte(v)})
		}
		r, err := n.Publish(p)
		o.answer(err, func() { o.published(r) })
	case "group":
		_, err := n.CommitGroup([]byte(o.topic), []byte(o.group), fact.Offset(o.offset))
		o.answer(err, func() {
			g := o.p.w.oracle.group(groupKey{o.topic, o.group})
			g.moves = append(g.moves, ack{o.p.epoch, o.offset})
			o.done(audit.Move(o.topic, o.group))
		})
	case "retain":
		_, err := n.Retain([]byte(o.topic), fact.Offset(o.offset))
		o.answer(err, func() {
			t := o.p.w.oracle.topic(o.topic)
			t.start = max(t.start, o.offset)
			o.done(audit.Retain(o.topic, o.offset))
		})
	case "configure":
		_, err := n.ConfigureTopic(o.limits)
		o.answer(err, func() { o.done(audit.Configure(o.topic)) })
	case "delete":
		_, err := n.DeleteTopic([]byte(o.topic))
		o.answer(err, func() { o.done(audit.Delete(o.topic)) })
	case "forget":
		_, err := n.DeleteGroup([]byte(o.topic), []byte(o.group))
		o.answer(err, func() { o.done(audit.Forget(o.topic, o.group)) })
	case "seek":
		_, err := n.SeekGroup(o.seek)
		o.answer(err, func() {
			if !o.seek.DryRun {
				o.done(audit.Move(o.topic, o.group))
			}
		})
	case "snapshot":
		_, err := n.Snapshot()
		o.answer(err, func() {})
	case "fetch":
		var s sink
		q := &broker.Fetch{Topic: []byte(o.topic), Group: []byte(o.group), Offset: fact.Offset(o.offset), Limit: 20, ByTime: o.byTime, FromMS: o.fromMS}
		page, err := n.Fetch(q, &s)
		o.answer(err, func() { o.fetched(page, &s) })
		if errors.Is(err, broker.ErrTopicNotFound) && o.before.end > 0 && !o.rogue && !o.deleted() {
			o.p.w.failIfAlive(o.p, "reads deny nothing that was acknowledged",
				"request %d: topic %s is not found, and it has %d acknowledged records", o.number, o.topic, o.before.end)
		}
	}
}

// done notes that what the book was told of is acknowledged. Called with world.mu held.
func (o *op) done(what string) { o.p.w.book.Answered(what) }

// deleted reports whether the topic may be gone.
func (o *op) deleted() bool {
	o.p.w.mu.Lock()
	defer o.p.w.mu.Unlock()
	return o.p.w.oracle.topic(o.topic).deleting
}

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
	if o.answered || o.p.dead || w.ending {
		return
	}
	var un *broker.UnavailableError
	switch {
	case err == nil:
		if o.writes() && !o.rogue {
			w.acknowledged(o)
		}
		w.finish(o, done, "")
		good()
		return
	case errors.As(err, &un) && un.Unknown:
		w.finish(o, unknown, un.Reason)
	case errors.As(err, &un), errors.As(err, new(*broker.NotLeaderError)), errors.As(err, new(*broker.OffsetRangeError)),
		errors.As(err, new(*broker.OffsetGoneError)), errors.Is(err, broker.ErrTopicNotFound), errors.Is(err, broker.ErrGroupNotFound), errors.Is(err, broker.ErrStorageFull):
		w.finish(o, notDone, err.Error())
	default:
		w.finish(o, notDone, err.Error())
		w.violated("answers are of the kinds that are documented", "%v: %v", o, err)
	}
}

func (o *op) writes() bool {
	return o.kind != "fetch" && o.kind != "snapshot" && (o.seek == nil || !o.seek.DryRun)
}

// finish notes an outcome. Called with mu held.
func (w *world) finish(o *op, how outcome, why string) {
	if o.answered {
		return
	}
	o.answered, o.outcome = true, how
	if o.pub != nil && o.pub.base >= 0 && !o.pub.possible() {
		w.violated("what was refused never appears", "%v is refused, and stands at %d", o, o.pub.base)
	}
	delete(o.p.pending, o)
	w.stats.outcomes[how]++
	w.note("answer %d: %v %s", o.number, how, why)
}

// acknowledged checks that the process may acknowledge. Called with mu held.
func (w *world) acknowledged(o *op) {
	p := o.p
	w.stats.acks++
	if p.m.i == w.lead {
		p.m.swapped = false
	}
	if w.promise > p.epoch {
		w.violated("a leader acknowledges nothing once a higher epoch is promised",
			"request %d is acknowledged by machine %d in epoch %d, and epoch %d was promised at %v", o.number, p.m.i, p.epoch, w.promise, w.promiseAt)
	}
	if by, ok := w.ackers[p.epoch]; ok && by != p.m.i {
		w.violated("one node acknowledges in an epoch", "both do in epoch %d", p.epoch)
	}
	w.ackers[p.epoch] = p.m.i
}

// published takes "done" for a publish. Called with world.mu held.
func (o *op) published(r broker.Published) {
	w, p := o.p.w, o.pub
	if o.rogue {
		return
	}
	if r.Count != len(p.values) {
		w.violated("an answer fits its request", "request %d of %d records is answered with %+v", o.number, len(p.values), r)
	}
	if p.base >= 0 && p.base != int64(r.Base) {
		w.violated("one request id has one outcome", "publication of request %d is at %d, and at %d", o.number, p.base, r.Base)
	}
	p.acked = true
	for i := range p.values {
		w.place(o.topic, uint64(r.Base)+uint64(i), p, i, fmt.Sprintf("request %d", o.number))
	}
	t := w.oracle.topic(o.topic)
	t.ends = append(t.ends, ack{o.p.epoch, uint64(r.Base) + uint64(r.Count)})
	if !r.Duplicate && w.plan.sample > 0 && o.p.dice.IntN(w.plan.sample) == 0 {
		w.durable(o, uint64(r.Base))
	}
}

// place notes that record i of a publication stands at an offset. Called with mu held.
func (w *world) place(topic string, offset uint64, p *publication, i int, who string) {
	t := w.oracle.topic(topic)
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

// durable checks that a record that is acknowledged right now survives a power cut of both machines.
// Called with mu held.
func (w *world) durable(o *op, base uint64) {
	if w.oracle.topic(o.topic).free {
		return
	}
	for _, m := range w.machines {
		if m.gap || m.rogue || m.i != o.p.m.i && o.p.role == node.Standalone {
			continue
		}
		if !holds(m.disk().Crash(1, 0).FS, o.pub.values[0]) && base >= w.oracle.topic(o.topic).startMax {
			w.violated("what is acknowledged is durable on both nodes", "request %d is acknowledged, and would not survive a power cut of machine %d", o.number, m.i)
		}
	}
}

// fetched judges a page. Called with world.mu held.
func (o *op) fetched(page broker.Page, s *sink) {
	w := o.p.w
	if o.rogue {
		return
	}
	t := w.oracle.topic(o.topic)
	t.seen = max(t.seen, uint64(page.Start))
	w.oracle.began = append(w.oracle.began, began{o.number, o.topic, page.Start})
	from := o.offset
	if o.byTime {
		from = uint64(page.Next) - uint64(page.Records)
		w.book.Found(fmt.Sprintf("request %d", o.number), o.topic, o.fromMS, page.Start, fact.Offset(from), page.End)
	}
	if o.group != "" {
		from = uint64(page.Next) - uint64(page.Records)
		g := w.oracle.group(groupKey{o.topic, o.group})
		if from < o.before.group {
			w.violated("a group's offset does not go back", "request %d: group %s of %s is at %d, and was acknowledged at %d",
				o.number, o.group, o.topic, from, o.before.group)
		}
		if from != 0 && from != uint64(page.Start) && !slices.Contains(g.asked, from) {
			w.violated("a group is where somebody put it", "request %d: group %s of %s is at %d", o.number, o.group, o.topic, from)
		}
	}
	if page.Records == 0 && uint64(page.End) < o.before.end {
		w.violated("reads deny nothing that was acknowledged", "request %d: no record at %d of %s, which ends at %d, and %d are acknowledged",
			o.number, from, o.topic, page.End, o.before.end)
	}
	w.judge(fmt.Sprintf("request %d", o.number), o.topic, from, s)
	if n := len(s.values); n > 0 && w.plan.sample > 0 && o.p.dice.IntN(2) == 0 && w.alone == nil && !t.free {
		for _, m := range w.machines {
			if p := promiseOf(m.disk()); !m.gap && !m.rogue && p.First == 0 && p.WholeAt == 0 &&
				s.offsets[n-1] >= w.oracle.topic(o.topic).startMax && !holds(m.disk().Crash(1, 0).FS, s.values[n-1]) {
				w.violated("what is readable is durable on both nodes", "request %d: offset %d of %s would not survive a power cut of machine %d",
					o.number, s.offsets[n-1], o.topic, m.i)
			}
		}
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
