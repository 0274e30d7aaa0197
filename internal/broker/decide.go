package broker

import (
	"maps"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/state"
)

// decider is what deciding needs besides the fold. It is owned by whoever holds the baton.
type decider struct {
	batch  overlay     // changes of the batch at hand
	flight overlay     // of batches proposed but not in the fold yet; stays empty where Propose commits
	last   entry.Index // proposed
	timeMS int64       // of the entry decided last
}

// overlay is a set of changes on top of the fold.
type overlay struct {
	topics map[string]*pendingTopic
	ids    map[pendingID]pendingPublish
	hot    *pendingTopic // the topic found last: publishes to one topic come in rows
}

type pendingTopic struct {
	name       string
	id         state.TopicID
	known      bool // the fold has the topic, so id is valid
	start, end fact.Offset
	last       entry.Index // in flight: once this is applied, the fold knows as much
}

type pendingID struct{ topic, id string }

type pendingPublish struct {
	base   fact.Offset
	count  int
	digest fact.Digest
	hangs  bool        // not known to be committed
	last   entry.Index // as in pendingTopic
}

func (d *decider) init(last entry.Index) {
	d.last = last
	for _, v := range []*overlay{&d.batch, &d.flight} {
		v.topics = make(map[string]*pendingTopic)
		v.ids = make(map[pendingID]pendingPublish)
	}
}

// begin starts a batch on top of a fold that has applied everything up to and including an index.
func (d *decider) begin(applied entry.Index) {
	clear(d.batch.topics)
	clear(d.batch.ids)
	d.batch.hot = nil
	maps.DeleteFunc(d.flight.topics, func(_ string, t *pendingTopic) bool { return t.last <= applied })
	maps.DeleteFunc(d.flight.ids, func(_ pendingID, p pendingPublish) bool { return p.last <= applied })
}

// proposed notes that the batch at hand has been proposed. If it is still in flight its changes are kept.
func (d *decider) proposed(last entry.Index, inFlight bool) {
	d.last = last
	if !inFlight {
		return
	}
	for name, t := range d.batch.topics {
		t.last = last
		d.flight.topics[name] = t
	}
	for id, p := range d.batch.ids {
		p.last = last
		d.flight.ids[id] = p
	}
}

// take says which ops may be logged: all, or, on a full disk, ever fewer.
type take int

const (
	takeAll     take = iota
	takeSmall        // no publishes
	takeFreeing      // retains only
)

// decide turns the ops of a batch into facts, in order, each on top of those before it. It answers at once
// those that need no entry, and refuses with ErrStorageFull those that need one and may not have it. It may be
// called again for the same batch when nothing of it was done.
func (b *Broker) decide(t *batch, take take) {
	d := &b.deciding
	t.frames.Reset()
	t.frames.Reserve = true // small facts may always use it; a publish and a marker may not
	t.frames.Frees = take == takeFreeing
	t.retained = false

	b.view.RLock()
	defer b.view.RUnlock()
	d.begin(b.state.Applied())
	d.timeMS = max(d.timeMS, b.state.TimeMS(), b.clock.Now().UnixMilli())
	for _, o := range t.ops {
		o.err, o.hangs, o.published = nil, false, Published{}
		switch o.kind {
		case opPublish:
			b.decidePublish(t, o, take)
		case opGroup:
			if topic := b.pending(o.topic); b.inRange(topic, o) && b.mayLog(o, take < takeFreeing) {
				t.frames.End(fact.AppendGroupMoved(t.frames.Begin(fact.KindGroupMoved, d.timeMS), o.topic, o.group, o.offset))
				o.hangs = true
			}
		case opRetain:
			if topic := b.pending(o.topic); b.inRange(topic, o) {
				t.frames.End(fact.AppendTopicRetained(t.frames.Begin(fact.KindTopicRetained, d.timeMS), o.topic, o.offset))
				topic.start = o.offset
				o.hangs = true
				t.retained = true
			}
		case opSettings:
			if b.mayLog(o, take < takeFreeing) {
				t.frames.End(fact.AppendSettings(t.frames.Begin(fact.KindSettings, d.timeMS), o.windowMS))
				o.hangs = true
			}
		case opMarker:
			if b.mayLog(o, take == takeAll) {
				t.frames.Reserve = false
				t.frames.End(t.frames.Begin(fact.KindMarker, d.timeMS))
				o.hangs = true
			}
		default:
			invariant.Check(false, "op of kind %d", o.kind)
		}
	}
}

// inRange checks that the op's topic exists and its offset lies from start to end; if not, it answers.
func (b *Broker) inRange(topic *pendingTopic, o *op) bool {
	switch {
	case topic == nil:
		o.err = ErrTopicNotFound
	case o.offset < topic.start || o.offset > topic.end:
		o.err = &OffsetRangeError{Start: topic.start, End: topic.end}
	default:
		return true
	}
	return false
}

// mayLog answers an op that must not be logged on a full disk.
func (b *Broker) mayLog(o *op, may bool) bool {
	if !may {
		o.err = ErrStorageFull
	}
	return may
}

func (b *Broker) decidePublish(t *batch, o *op, take take) {
	d, p := &b.deciding, o.publish
	topic := b.pending(p.Topic)
	if len(p.RequestID) > 0 {
		if before, ok := b.remembered(topic, p.RequestID); ok {
			if before.digest != o.digest || before.count != len(p.Records) {
				o.err = ErrRequestIDConflict
				return
			}
			o.published = Published{Base: before.base, Count: before.count, Duplicate: true}
			o.hangs = before.hangs
			return
		}
	}
	if !b.mayLog(o, take == takeAll) {
		return
	}
	if topic == nil {
		topic = &pendingTopic{name: string(p.Topic)}
		d.batch.topics[topic.name] = topic
		d.batch.hot = topic
	}
	t.frames.End(fact.AppendAppended(t.frames.Begin(fact.KindAppended, d.timeMS), p.Topic, topic.end, p.RequestID, o.digest, p.Records))
	t.frames.Reserve = false
	o.hangs = true
	o.published = Published{Base: topic.end, Count: len(p.Records)}
	if len(p.RequestID) > 0 {
		d.batch.ids[pendingID{topic.name, string(p.RequestID)}] = pendingPublish{base: topic.end, count: len(p.Records), digest: o.digest, hangs: true}
	}
	topic.end += fact.Offset(len(p.Records))
}

// pending returns the topic as the batch at hand may change it, or nil if there is none.
func (b *Broker) pending(name []byte) *pendingTopic {
	d := &b.deciding
	if d.batch.hot != nil && d.batch.hot.name == string(name) {
		return d.batch.hot
	}
	topic := d.batch.topics[string(name)]
	if topic == nil {
		if ahead := d.flight.topics[string(name)]; ahead != nil {
			changed := *ahead
			topic = &changed
			if below, ok := b.state.Topic(name); ok {
				topic.id, topic.known = below.ID, true // its first batch has been applied meanwhile
			}
		} else if below, ok := b.state.Topic(name); ok {
			topic = &pendingTopic{name: below.Name, id: below.ID, known: true, start: below.Start, end: below.End}
		} else {
			return nil
		}
		d.batch.topics[topic.name] = topic
	}
	d.batch.hot = topic
	return topic
}

// remembered looks a request id up in the batch at hand, in flight, and in the fold.
func (b *Broker) remembered(topic *pendingTopic, id []byte) (pendingPublish, bool) {
	if topic == nil {
		return pendingPublish{}, false
	}
	d := &b.deciding
	if len(d.batch.ids) > 0 || len(d.flight.ids) > 0 {
		key := pendingID{topic.name, string(id)}
		if p, ok := d.batch.ids[key]; ok {
			return p, true
		}
		if p, ok := d.flight.ids[key]; ok {
			return p, true
		}
	}
	if topic.known {
		if r, ok := b.state.RequestID(topic.id, id, d.timeMS); ok {
			return pendingPublish{base: r.Base, count: r.Count, digest: r.Digest}, true
		}
	}
	return pendingPublish{}, false
}
