package state

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// applyAppended adds records to a topic, which begins, or comes back after it was deleted, with its first ones.
func (s *State) applyAppended(e *entry.Entry) (Effect, error) {
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	size, err := a.Size()
	if err != nil {
		return Effect{}, err
	}
	end, cum, id, known := s.Ended(a.Topic)
	if !known {
		id = TopicID(s.topics.len)
	}
	if a.Base != end {
		return Effect{}, contradicts("records of topic %q begin at %d, its end is %d", a.Topic, a.Base, end)
	}
	if a.Cum != cum {
		return Effect{}, contradicts("records of topic %q begin after %d bytes, there are %d", a.Topic, a.Cum, cum)
	}
	if len(a.RequestID) > 0 {
		if err := s.remember(id, &a, e.TimeMS); err != nil {
			return Effect{}, err
		}
	}
	if !known {
		s.addTopic(topicRow{name: string(a.Topic), start: end, end: end})
	}
	t := s.topics.edit(int(id))
	if t.deleted {
		t.deleted = false
		s.liveTopics++
		s.namesVersion++
	}
	t.end += fact.Offset(a.Count)
	t.endCum += size
	s.liveRecords += uint64(a.Count)
	s.liveBytes += size
	return Effect{Topic: id, Name: t.name, First: a.Base, Count: a.Count}, nil
}

// remember adds a request id, unless it is remembered already: then the publish was a retry, and should have
// been answered without an entry.
func (s *State) remember(topic TopicID, a *fact.Appended, timeMS int64) error {
	key := keyOf(topic, a.RequestID)
	if n, ok := s.ids.find(&key); ok && s.ids.at(n).timeMS() >= s.horizonAt(timeMS) {
		return contradicts("request id %q was used in topic %q before", a.RequestID, a.Topic)
	}
	s.ids.add(&id{
		key:    key,
		digest: a.Digest,
		base:   a.Base,
		stamp:  uint64(timeMS)<<8 | uint64(a.Count),
	})
	return nil
}

// applyKept changes nothing: the records are there already. Those who follow the log learn that they stand here now.
// Cum is not compared with anything: where records before these are damaged, the topic's StartCum is no exact figure.
func (s *State) applyKept(e *entry.Entry) (Effect, error) {
	k, err := fact.DecodeKept(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	lastMS, err := k.LastMS()
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(k.Topic)
	if !ok {
		return Effect{}, contradicts("kept records of topic %q, which has none", k.Topic)
	}
	end := k.Base + fact.Offset(k.Count)
	switch {
	case k.Base < t.start || end > t.end:
		return Effect{}, contradicts("kept records %d to %d of topic %q, which holds %d to %d", k.Base, end, k.Topic, t.start, t.end)
	case covered(t.gaps(), k.Base, end) > 0:
		return Effect{}, contradicts("kept records %d to %d of topic %q, which has a gap there", k.Base, end, k.Topic)
	case lastMS > e.TimeMS:
		return Effect{}, contradicts("a kept record of topic %q has the time %d ms, the entry %d ms", k.Topic, lastMS, e.TimeMS)
	}
	return Effect{Topic: id, Name: t.name, First: k.Base, Count: k.Count}, nil
}

// applyTopicRetained moves the start of a topic. Gaps below it go.
func (s *State) applyTopicRetained(e *entry.Entry) (Effect, error) {
	r, err := fact.DecodeTopicRetained(e.Payload)
	if err != nil {
		return Effect{}, err
	}
	id, t, ok := s.live(r.Topic)
	if !ok {
		return Effect{}, contradicts("start of topic %q, which has no records", r.Topic)
	}
	if r.Start < t.start || r.Start > t.end {
		return Effect{}, contradicts("start %d of topic %q, which holds %d to %d", r.Start, r.Topic, t.start, t.end)
	}
	if g, in := inside(t.gaps(), r.Start); in {
		return Effect{}, contradicts("start %d of topic %q, which has a gap from %d to %d", r.Start, r.Topic, g.From, g.To)
	}
	after := *t
	after.start, after.startCum = r.Start, r.Cum
	if gaps := dropGaps(t.gaps(), r.Start); len(gaps) < len(t.gaps()) {
		after.setMore(t.retention(), gaps)
	}
	switch {
	case r.Cum < t.startCum || r.Cum > t.endCum,
		r.Start == t.start && r.Cum != t.startCum,
		after.records() == 0 && r.Cum != t.endCum:
		return Effect{}, contradicts("start %d of topic %q after %d bytes, it holds %d to %d after %d to %d bytes",
			r.Start, r.Topic, r.Cum, t.start, t.end, t.startCum, t.endCum)
	}
	s.liveRecords -= t.records() - after.records()
	s.liveBytes -= t.bytes() - after.bytes()
	*s.topics.edit(int(id)) = after
	return Effect{Topic: id, Name: after.name, First: r.Start}, nil
}
