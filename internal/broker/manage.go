package broker

import (
	"errors"

	"example.com/mq/internal/fact"
)

// lookMost is how often Retain looks at a record that was not visible the time before.
const lookMost = 10

// Retain moves the topic's start, and returns it: behind a gap, if one begins there.
func (b *Broker) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	if b.follower {
		return 0, &NotLeaderError{}
	}
	for range lookMost {
		cum, known, err := b.look(topic, start)
		if err != nil {
			return start, err
		}
		moved, err := b.retain(topic, start, cum, known)
		if !errors.Is(err, errLookAgain) {
			return moved, err
		}
	}
	return start, &UnavailableError{Reason: "records of the topic come and go too fast"}
}

// look finds how many bytes of a topic lie before an offset, if there is a record that all can see.
func (b *Broker) look(name []byte, off fact.Offset) (cum uint64, known bool, err error) {
	b.view.RLock()
	topic, ok := b.state.Topic(name)
	b.view.RUnlock()
	if !ok {
		return 0, false, nil
	}
	next, _, ok := topic.Normal(off)
	if !ok || next <= topic.Start || next >= topic.End {
		return 0, false, nil // then what is decided does not depend on it, or this is too early
	}
	cum, err = b.cumAt(name, next)
	if errors.Is(err, ErrTopicNotFound) || errors.As(err, new(*OffsetRangeError)) {
		return 0, false, nil // meanwhile: what is decided says so
	}
	return cum, err == nil, err
}

// retain moves the topic's start, given how many bytes of the topic lie before it. With known not set that is not known:
// then it returns errLookAgain, and nothing is done, if there is a record there that has been decided, or is still seen by
// nobody.
func (b *Broker) retain(topic []byte, start fact.Offset, cum uint64, known bool) (fact.Offset, error) {
	o := b.ops.get(opRetain)
	o.topic, o.offset, o.cum, o.cumKnown = topic, start, cum, known
	b.do(o)
	if errors.Is(o.err, errLookAgain) {
		b.ops.put(o)
		return start, errLookAgain
	}
	moved, err := o.next, b.final(o)
	b.ops.put(o)
	return moved, err
}

// ConfigureTopic changes the settings of a topic.
func (b *Broker) ConfigureTopic(c *Configure) (Settings, error) {
	if b.follower {
		return Settings{}, &NotLeaderError{}
	}
	o := b.ops.get(opConfigure)
	o.topic, o.configure = c.Topic, c
	b.do(o)
	settings, err := b.settings(o.retention), b.final(o)
	b.ops.put(o)
	return settings, err
}

// settings are those of a topic that has some of its own.
func (b *Broker) settings(own fact.Retention) Settings {
	return Settings{Own: own, Effective: fact.Retention{
		MS:      effective(own.MS, b.retention.MS),
		Bytes:   effective(own.Bytes, b.retention.Bytes),
		Records: effective(own.Records, b.retention.Records),
	}}
}

// effective is a limit that holds: a number or fact.LimitNone.
func effective(own, otherwise fact.Limit) fact.Limit {
	if own == fact.LimitDefault {
		own = otherwise
	}
	if own == fact.LimitDefault {
		return fact.LimitNone
	}
	return own
}

// DeleteTopic deletes a topic with its records, settings and groups, and returns where its offsets go on if it is published
// to again. Request ids are remembered all the same: a late retry of what was deleted is a duplicate. If it is tried again
// after an unknown outcome, there may be no topic any more.
func (b *Broker) DeleteTopic(topic []byte) (end fact.Offset, err error) {
	if b.follower {
		return 0, &NotLeaderError{}
	}
	o := b.ops.get(opDeleteTopic)
	o.topic = topic
	b.do(o)
	end, err = o.next, b.final(o)
	b.ops.put(o)
	return end, err
}

// DeleteGroup forgets a group's offset in a topic, and returns it.
func (b *Broker) DeleteGroup(topic, group []byte) (next fact.Offset, err error) {
	if b.follower {
		return 0, &NotLeaderError{}
	}
	o := b.ops.get(opDeleteGroup)
	o.topic, o.group = topic, group
	b.do(o)
	next, err = o.next, b.final(o)
	b.ops.put(o)
	return next, err
}

// Keep appends records once more that stand in an old segment, those that are still kept. It is for the one who tends the
// log: nothing that clients can see changes. Each run is at most fact.BatchMax records, as they were read.
func (b *Broker) Keep(k *Keep) error {
	if b.follower {
		return &NotLeaderError{}
	}
	o := b.ops.get(opKeep)
	o.keep, o.bytes = k, k.Bytes
	b.do(o)
	err := b.final(o)
	b.ops.put(o)
	return err
}

// Leads reports whether this node decides now.
func (b *Broker) Leads() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leading
}
