package state

import (
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// Apply adds the next entry to the fold. It keeps no reference to the entry or its payload.
//
// It does not fail for what was decided by the rules. It returns an error, and changes nothing, for an entry
// that is not the next one, is of an unknown kind, does not decode, or contradicts what is known
// (ErrUnknownKind, fact.ErrMalformed, ErrContradiction). The records of an Appended are not looked at.
func (s *State) Apply(e *entry.Entry) (Effect, error) {
	effect, err := s.apply(e)
	if err != nil {
		return Effect{}, fmt.Errorf("apply entry %d: %w", e.Index, err)
	}
	s.applied, s.term, s.timeMS = e.Index, e.Term, e.TimeMS
	s.horizonMS = s.horizonAt(s.timeMS)
	s.ids.evict(s.horizonMS, evictMost)
	return effect, nil
}

// apply does what the kind of entry asks for. When it returns an error, it has changed nothing.
func (s *State) apply(e *entry.Entry) (effect Effect, err error) {
	if err := s.follows(e); err != nil {
		return Effect{}, err
	}
	switch e.Kind {
	case fact.KindMarker:
		err = fact.DecodeMarker(e.Payload)
	case fact.KindAppended:
		effect, err = s.applyAppended(e)
	case fact.KindGroupMoved:
		effect, err = s.applyGroupMoved(e)
	case fact.KindTopicRetained:
		effect, err = s.applyTopicRetained(e)
	case fact.KindSettings:
		err = s.applySettings(e)
	default:
		err = fmt.Errorf("%w: kind %d", ErrUnknownKind, e.Kind)
	}
	effect.Kind = e.Kind
	return effect, err
}

// follows checks that an entry can come after the last one.
func (s *State) follows(e *entry.Entry) error {
	switch {
	case e.Index != s.applied+1:
		return fmt.Errorf("%w: it comes after entry %d", ErrContradiction, s.applied)
	case e.Term < s.term || e.Term == 0:
		return fmt.Errorf("%w: term %d after term %d", ErrContradiction, e.Term, s.term)
	case e.TimeMS < s.timeMS || e.TimeMS > TimeMaxMS:
		return fmt.Errorf("%w: time %d ms after time %d ms", ErrContradiction, e.TimeMS, s.timeMS)
	}
	return nil
}

func (s *State) applyAppended(e *entry.Entry) (Effect, error) {
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, known := s.topicIDs[string(a.Topic)]
	var end fact.Offset
	if known {
		end = s.topics.at(int(id)).end
	} else {
		id = TopicID(s.topics.len)
	}
	if a.Base != end {
		return Effect{}, fmt.Errorf("%w: records of topic %q begin at %d, its end is %d", ErrContradiction, a.Topic, a.Base, end)
	}
	if len(a.RequestID) > 0 {
		if err := s.remember(id, &a, e.TimeMS); err != nil {
			return Effect{}, err
		}
	}
	if !known {
		s.addTopic(topicRow{name: string(a.Topic)})
	}
	t := s.topics.edit(int(id))
	t.end += fact.Offset(a.Count)
	return Effect{Topic: id, Name: t.name, First: a.Base, Count: a.Count}, nil
}

// remember adds a request id, unless it is remembered already: then the publish was a retry, and should have
// been answered without an entry.
func (s *State) remember(topic TopicID, a *fact.Appended, timeMS int64) error {
	key := keyOf(topic, a.RequestID)
	if n, ok := s.ids.find(&key); ok && s.ids.at(n).timeMS() >= s.horizonAt(timeMS) {
		return fmt.Errorf("%w: request id %q was used in topic %q before", ErrContradiction, a.RequestID, a.Topic)
	}
	s.ids.add(&id{
		key:    key,
		digest: a.Digest,
		base:   a.Base,
		stamp:  uint64(timeMS)<<8 | uint64(a.Count),
	})
	return nil
}

// applyGroupMoved accepts an offset below the topic's start, which is harmless: the group goes on from the
// start. So a group may be moved and its topic retained at the same time, in either order.
func (s *State) applyGroupMoved(e *entry.Entry) (Effect, error) {
	m, err := fact.DecodeGroupMoved(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, ok := s.topicIDs[string(m.Topic)]
	if !ok {
		return Effect{}, fmt.Errorf("%w: group %q of topic %q, which has no records", ErrContradiction, m.Group, m.Topic)
	}
	t := s.topics.at(int(id))
	if m.Next > t.end {
		return Effect{}, fmt.Errorf("%w: group %q of topic %q goes on at %d, its end is %d", ErrContradiction, m.Group, m.Topic, m.Next, t.end)
	}
	if i, ok := s.groupIDs[groupKey{topic: id, name: string(m.Group)}]; ok {
		s.groups.edit(int(i)).next = m.Next
	} else {
		s.addGroup(groupRow{topic: id, name: string(m.Group), next: m.Next})
	}
	return Effect{Topic: id, Name: t.name, First: m.Next}, nil
}

func (s *State) applyTopicRetained(e *entry.Entry) (Effect, error) {
	r, err := fact.DecodeTopicRetained(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, ok := s.topicIDs[string(r.Topic)]
	if !ok {
		return Effect{}, fmt.Errorf("%w: start of topic %q, which has no records", ErrContradiction, r.Topic)
	}
	if t := s.topics.at(int(id)); r.Start < t.start || r.Start > t.end {
		return Effect{}, fmt.Errorf("%w: start %d of topic %q, which holds %d to %d", ErrContradiction, r.Start, r.Topic, t.start, t.end)
	}
	t := s.topics.edit(int(id))
	t.start = r.Start
	return Effect{Topic: id, Name: t.name, First: r.Start}, nil
}

func (s *State) applySettings(e *entry.Entry) error {
	windowMS, err := fact.DecodeSettings(e.Payload)
	if err != nil {
		return err
	}
	s.windowMS = windowMS
	return nil
}

func (s *State) addTopic(t topicRow) {
	s.topicIDs[t.name] = TopicID(s.topics.len)
	s.topics.push(t)
}

func (s *State) addGroup(g groupRow) {
	s.groupIDs[groupKey{topic: g.topic, name: g.name}] = uint32(s.groups.len)
	s.groups.push(g)
}
