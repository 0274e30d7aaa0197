package state

import (
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// applyTopicConfigured replaces the settings of a topic.
func (s *State) applyTopicConfigured(e *entry.Entry) (Effect, error) {
	c, err := fact.DecodeTopicConfigured(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(c.Topic)
	if !ok {
		return Effect{}, contradicts("settings of topic %q, which has no records", c.Topic)
	}
	if c.Retention != t.retention() {
		t = s.topics.edit(int(id))
		t.setMore(c.Retention, t.gaps())
	}
	return Effect{Topic: id, Name: t.name}, nil
}

// applyTopicDeleted leaves of a topic where its offsets go on, and the request ids, which are forgotten in their time: a
// late retry of a publish that was deleted is still one.
func (s *State) applyTopicDeleted(e *entry.Entry) (Effect, error) {
	d, err := fact.DecodeTopicDeleted(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(d.Topic)
	if !ok {
		return Effect{}, contradicts("topic %q is deleted, which has no records", d.Topic)
	}
	s.removeGroups(id)
	s.liveRecords -= t.records()
	s.liveBytes -= t.bytes()
	s.liveTopics--
	s.namesVersion++
	t = s.topics.edit(int(id))
	*t = topicRow{name: t.name, start: t.end, end: t.end, startCum: t.endCum, endCum: t.endCum, deleted: true}
	return Effect{Topic: id, Name: t.name, First: t.end}, nil
}

// applyRestored makes all topics go on at the floor, with a gap behind what they hold.
func (s *State) applyRestored(e *entry.Entry) error {
	floor, err := fact.DecodeRestored(e.Payload)
	if err != nil {
		return err
	}
	if floor <= s.floor {
		return contradicts("restored to go on at %d after %d", floor, s.floor)
	}
	for i := range s.topics.len {
		if t := s.topics.at(i); t.end >= floor {
			return contradicts("restored to go on at %d, the end of topic %q is %d", floor, t.name, t.end)
		}
	}
	s.floor = floor
	for i := range s.topics.len {
		t := s.topics.edit(i)
		if t.deleted {
			t.start, t.end = floor, floor
			continue
		}
		t.setMore(t.retention(), append(slices.Clone(t.gaps()), Gap{From: t.end, To: floor}))
		t.end = floor
	}
	return nil
}
