package broker

import (
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
)

// DescribeTopic tells all about a topic, and where its groups stand, up to so many of them. Offsets, bytes and settings are of
// one moment within the call, each group and each time of another one: they change meanwhile.
func (b *Broker) DescribeTopic(topic []byte, groups int) (TopicDescription, error) {
	if err := b.mayTell(); err != nil {
		return TopicDescription{}, err
	}
	for try := 1; ; try++ {
		d, again, err := b.describe(topic)
		if err != nil {
			return TopicDescription{}, err
		}
		if again && try < lookTries {
			continue // its first record was dropped while it was looked at
		}
		b.view.RLock()
		t, ok := b.state.Topic(topic)
		b.view.RUnlock()
		if !ok {
			return TopicDescription{}, ErrTopicNotFound
		}
		rows := b.lists.groupsNow(b).of(t.ID)
		d.GroupsTotal = len(rows)
		d.Groups, _ = b.groupPage(rows, "", groups)
		return d, nil
	}
}

// describe is DescribeTopic without the groups. again says that the topic's start has moved meanwhile.
func (b *Broker) describe(topic []byte) (d TopicDescription, again bool, err error) {
	l, err := b.lookAt(topic)
	if err != nil {
		return TopicDescription{}, false, err
	}
	defer l.release()
	t := &l.topic
	d = TopicDescription{
		TopicSummary: summaryOf(t),
		Settings:     b.settings(t.Retention),
		OldestMS:     -1, NewestMS: -1,
	}
	n := t.Records()
	if n == 0 {
		return d, false, nil
	}
	if d.OldestMS, err = l.time(t.Nth(0)); err != nil {
		return d, false, err
	}
	if d.NewestMS, err = l.time(t.Nth(n - 1)); err != nil {
		return d, false, err
	}
	if d.OldestMS < 0 || d.NewestMS < 0 {
		b.view.RLock()
		now, ok := b.state.Topic(topic)
		b.view.RUnlock()
		again = !ok || now.Start != t.Start
	}
	return d, again, nil
}

// time returns the time of a record, or -1 if it cannot be read.
func (l *looker) time(off fact.Offset) (int64, error) {
	s, ok, err := l.at(off)
	if err != nil || !ok {
		return -1, err
	}
	return s.timeMS, nil
}

// DescribeGroup tells where a group stands in a topic.
func (b *Broker) DescribeGroup(topic, group []byte) (GroupState, error) {
	if err := b.mayTell(); err != nil {
		return GroupState{}, err
	}
	t, g, err := b.groupNow(topic, group)
	if err != nil {
		return GroupState{}, err
	}
	return groupOf(&t, &g), nil
}

// groupNow looks a topic and one of its groups up.
func (b *Broker) groupNow(topic, group []byte) (state.Topic, state.Group, error) {
	b.view.RLock()
	defer b.view.RUnlock()
	t, ok := b.state.Topic(topic)
	if !ok {
		return state.Topic{}, state.Group{}, ErrTopicNotFound
	}
	g, ok := b.state.Group(t.ID, group)
	if !ok {
		return t, state.Group{}, ErrGroupNotFound
	}
	return t, g, nil
}
