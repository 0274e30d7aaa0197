package state

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// applyGroupMoved accepts an offset below the topic's start, which is harmless: the group goes on from the
// start. So a group may be moved and its topic retained at the same time, in either order.
func (s *State) applyGroupMoved(e *entry.Entry) (Effect, error) {
	m, err := fact.DecodeGroupMoved(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(m.Topic)
	if !ok {
		return Effect{}, contradicts("group %q of topic %q, which has no records", m.Group, m.Topic)
	}
	if m.Next > t.end {
		return Effect{}, contradicts("group %q of topic %q goes on at %d, its end is %d", m.Group, m.Topic, m.Next, t.end)
	}
	if g, in := inside(t.gaps(), m.Next); in {
		return Effect{}, contradicts("group %q of topic %q goes on at %d, in a gap from %d to %d", m.Group, m.Topic, m.Next, g.From, g.To)
	}
	if i, ok := s.groupIDs[groupKey{topic: id, name: string(m.Group)}]; ok {
		g := s.groups.edit(int(i))
		g.next, g.timeMS = m.Next, e.TimeMS
	} else {
		s.addGroup(groupRow{topic: id, name: string(m.Group), next: m.Next, timeMS: e.TimeMS})
	}
	return Effect{Topic: id, Name: t.name, First: m.Next}, nil
}

func (s *State) applyGroupDeleted(e *entry.Entry) (Effect, error) {
	d, err := fact.DecodeGroupDeleted(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(d.Topic)
	if !ok {
		return Effect{}, contradicts("group %q is deleted of topic %q, which has no records", d.Group, d.Topic)
	}
	i, ok := s.groupIDs[groupKey{topic: id, name: string(d.Group)}]
	if !ok {
		return Effect{}, contradicts("group %q is deleted of topic %q, which does not have it", d.Group, d.Topic)
	}
	s.removeGroup(int(i))
	return Effect{Topic: id, Name: t.name}, nil
}
