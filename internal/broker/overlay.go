package broker

import (
	"maps"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
)

// decider is what deciding needs besides the fold. It is owned by whoever holds the baton.
type decider struct {
	batch  overlay     // changes of the batch at hand
	flight overlay     // of batches proposed but not in the fold yet; stays empty where Propose commits
	lead   uint64      // the lead that all of this is of; 0 for none yet
	last   entry.Index // proposed
	timeMS int64       // of the entry decided last
	ahead  bool        // the batch at hand is decided on top of what is in flight
	// spare are topics of earlier batches, at most spareMax, to be used again: most batches change only a few.
	spare []*pendingTopic
}

const spareMax = 64

// overlay is a set of changes on top of the fold.
type overlay struct {
	topics map[string]*pendingTopic
	groups map[pendingName]pendingGroup
	ids    map[pendingName]pendingPublish
	hot    *pendingTopic // the topic found last: publishes to one topic come in rows
}

// pendingTopic is a topic as it will be once all that is decided is applied.
type pendingTopic struct {
	state.Topic      // its ID is valid if known
	known       bool // the fold has the topic, deleted or not
	// emptied says that the topic is deleted, in the batch at hand or in flight, so that the fold's groups of it are gone.
	emptied   bool
	emptiedBy entry.Index // last entry of the batch that deletes it; 0 for the batch at hand
	last      entry.Index // in flight: once this is applied, the fold knows as much
}

// pendingName is a name within a topic: a group, or a request id.
type pendingName struct{ topic, name string }

type pendingGroup struct {
	next    fact.Offset
	deleted bool
	last    entry.Index // as in pendingTopic
}

type pendingPublish struct {
	base   fact.Offset
	count  int
	digest fact.Digest
	hangs  bool        // not known to be committed
	ahead  bool        // proposed in an earlier batch, so its outcome is not that of the batch at hand
	last   entry.Index // as in pendingTopic
}

// init prepares for deciding under a lead, on top of a fold that has applied everything up to and including an index.
func (d *decider) init(lead uint64, last entry.Index) {
	d.lead, d.last, d.timeMS = lead, last, 0
	for _, v := range []*overlay{&d.batch, &d.flight} {
		v.topics = make(map[string]*pendingTopic)
		v.groups = make(map[pendingName]pendingGroup)
		v.ids = make(map[pendingName]pendingPublish)
	}
}

// begin starts a batch on top of a fold that has applied everything up to and including an index.
func (d *decider) begin(applied entry.Index) {
	for _, t := range d.batch.topics { // those in flight are not there any more
		d.recycle(t)
	}
	clear(d.batch.topics)
	clear(d.batch.groups)
	clear(d.batch.ids)
	d.batch.hot = nil
	d.ahead = d.last > applied
	maps.DeleteFunc(d.flight.topics, func(_ string, t *pendingTopic) bool {
		if t.last > applied {
			return false
		}
		d.recycle(t)
		return true
	})
	maps.DeleteFunc(d.flight.groups, func(_ pendingName, g pendingGroup) bool { return g.last <= applied })
	maps.DeleteFunc(d.flight.ids, func(_ pendingName, p pendingPublish) bool { return p.last <= applied })
}

// proposed notes that the batch at hand has been proposed. If it is still in flight its changes are kept.
func (d *decider) proposed(last entry.Index, inFlight bool) {
	d.last = last
	if !inFlight {
		return
	}
	for name, t := range d.batch.topics {
		t.last = last
		if t.emptied && t.emptiedBy == 0 {
			t.emptiedBy = last
		}
		if before := d.flight.topics[name]; before != nil {
			d.recycle(before)
		}
		d.flight.topics[name] = t
	}
	clear(d.batch.topics)
	d.batch.hot = nil
	for name, g := range d.batch.groups {
		g.last = last
		d.flight.groups[name] = g
	}
	for id, p := range d.batch.ids {
		p.last, p.ahead = last, true
		d.flight.ids[id] = p
	}
}

// recycle takes a topic that nothing points to any more.
func (d *decider) recycle(t *pendingTopic) {
	if len(d.spare) < spareMax {
		d.spare = append(d.spare, t)
	}
}

// topic returns a copy of a topic.
func (d *decider) topic(t pendingTopic) *pendingTopic {
	var copied *pendingTopic
	if n := len(d.spare); n > 0 {
		copied, d.spare = d.spare[n-1], d.spare[:n-1]
	} else {
		copied = new(pendingTopic)
	}
	*copied = t
	return copied
}

// pending returns the topic as the batch at hand may change it, also one that is deleted, or nil if there never was one.
func (b *Broker) pending(name []byte) *pendingTopic {
	d := &b.deciding
	if d.batch.hot != nil && d.batch.hot.Name == string(name) {
		return d.batch.hot
	}
	topic := d.batch.topics[string(name)]
	if topic == nil {
		if ahead := d.flight.topics[string(name)]; ahead != nil {
			topic = b.above(ahead)
		} else if topic = b.below(name); topic == nil {
			return nil
		}
		d.batch.topics[topic.Name] = topic
	}
	d.batch.hot = topic
	return topic
}

// above returns a topic that is in flight for the batch at hand. Some of its batches may have been applied meanwhile.
func (b *Broker) above(ahead *pendingTopic) *pendingTopic {
	topic := b.deciding.topic(*ahead)
	if !topic.known {
		_, _, topic.ID, topic.known = b.state.Ended([]byte(topic.Name))
	}
	if topic.emptied && topic.emptiedBy <= b.state.Applied() {
		topic.emptied = false // the fold has dropped the groups, and those that it has now are of the topic that came back
	}
	return topic
}

// below returns a topic that the fold has, deleted or not, or nil.
func (b *Broker) below(name []byte) *pendingTopic {
	_, _, id, ok := b.state.Ended(name)
	if !ok {
		return nil
	}
	return b.deciding.topic(pendingTopic{Topic: b.state.TopicByID(id), known: true})
}

// live returns the topic as pending does, or nil if there is none or it is deleted.
func (b *Broker) live(name []byte) *pendingTopic {
	if topic := b.pending(name); topic != nil && !topic.Deleted {
		return topic
	}
	return nil
}

// create returns a topic to append to: the one that pending found, which may be nil or deleted.
func (b *Broker) create(topic *pendingTopic, name []byte) *pendingTopic {
	if topic != nil {
		topic.Deleted = false
		return topic
	}
	floor := b.state.Floor()
	topic = b.deciding.topic(pendingTopic{Topic: state.Topic{Name: string(name), Start: floor, End: floor}})
	b.deciding.batch.topics[topic.Name] = topic
	b.deciding.batch.hot = topic
	return topic
}

// delete deletes the topic with its groups.
func (b *Broker) delete(t *pendingTopic) {
	t.Start, t.StartCum, t.Retention, t.Gaps = t.End, t.EndCum, fact.Retention{}, nil
	t.Deleted, t.emptied, t.emptiedBy = true, true, 0
	d := &b.deciding
	for _, groups := range []map[pendingName]pendingGroup{d.flight.groups, d.batch.groups} {
		for name := range groups {
			if name.topic == t.Name {
				d.batch.groups[name] = pendingGroup{deleted: true}
			}
		}
	}
}

// group looks a group up in the batch at hand, in flight, and in the fold, and says where it goes on.
func (b *Broker) group(topic *pendingTopic, name []byte) (fact.Offset, bool) {
	d := &b.deciding
	if len(d.batch.groups) > 0 || len(d.flight.groups) > 0 {
		key := pendingName{topic.Name, string(name)}
		if g, ok := d.batch.groups[key]; ok {
			return g.next, !g.deleted
		}
		if g, ok := d.flight.groups[key]; ok {
			return g.next, !g.deleted
		}
	}
	if topic.known && !topic.emptied {
		if g, ok := b.state.Group(topic.ID, name); ok {
			return g.Next, true
		}
	}
	return 0, false
}

// remembered looks a request id up in the batch at hand, in flight, and in the fold. Those of a deleted topic count.
func (b *Broker) remembered(topic *pendingTopic, id []byte) (pendingPublish, bool) {
	if topic == nil {
		return pendingPublish{}, false
	}
	d := &b.deciding
	if len(d.batch.ids) > 0 || len(d.flight.ids) > 0 {
		key := pendingName{topic.Name, string(id)}
		if p, ok := d.batch.ids[key]; ok {
			return p, true
		}
		if p, ok := d.flight.ids[key]; ok {
			return p, true
		}
	}
	if topic.known {
		if r, ok := b.state.RequestID(topic.ID, id, d.timeMS); ok {
			return pendingPublish{base: r.Base, count: r.Count, digest: r.Digest}, true
		}
	}
	return pendingPublish{}, false
}
