package state

import (
	"fmt"

	"example.com/mq/internal/fact"
)

// Verify checks everything that must hold in any state that entries can lead to, and that the indexes in
// memory agree with the tables. It takes time in proportion to the size of the state.
func (s *State) Verify() error {
	if err := s.verifyTables(); err != nil {
		return err
	}
	return s.verifyIDIndex()
}

// verifyTables checks all but the index of the request ids.
func (s *State) verifyTables() error {
	if s.applied == 0 && (s.term != 0 || s.timeMS != 0 || s.windowMS != WindowDefaultMS || s.topics.len != 0) {
		return fmt.Errorf("there is something before the first entry")
	}
	if s.applied != 0 && s.term == 0 {
		return fmt.Errorf("entry %d has no term", s.applied)
	}
	if s.horizonMS < s.timeMS-s.windowMS || s.horizonMS > s.timeMS {
		return fmt.Errorf("request ids are forgotten before %d ms, at %d ms with a window of %d ms", s.horizonMS, s.timeMS, s.windowMS)
	}
	if uint64(s.topics.len) > uint64(s.applied) || uint64(s.groups.len) > uint64(s.applied) || uint64(s.ids.len()) > uint64(s.applied) {
		return fmt.Errorf("there is more of something than the %d entries can have made", s.applied)
	}
	if err := s.verifyTopics(); err != nil {
		return err
	}
	if err := s.verifyGroups(); err != nil {
		return err
	}
	return s.verifyIDs()
}

func (s *State) verifyTopics() error {
	for i := range s.topics.len {
		t := s.topics.at(i)
		switch id, ok := s.topicIDs[t.name]; {
		case len(t.name) == 0 || len(t.name) > fact.NameMax:
			return fmt.Errorf("topic %d has a name of %d bytes", i, len(t.name))
		case t.start > t.end || t.end == 0 || t.end > fact.OffsetMax:
			return fmt.Errorf("topic %q holds %d to %d", t.name, t.start, t.end)
		case !ok || int(id) != i:
			return fmt.Errorf("topic %d is not found by its name %q", i, t.name)
		}
	}
	if len(s.topicIDs) != s.topics.len {
		return fmt.Errorf("%d names for %d topics", len(s.topicIDs), s.topics.len)
	}
	return nil
}

func (s *State) verifyGroups() error {
	for i := range s.groups.len {
		g := s.groups.at(i)
		if int(g.topic) >= s.topics.len {
			return fmt.Errorf("group %q of topic %d, of %d topics", g.name, g.topic, s.topics.len)
		}
		t := s.topics.at(int(g.topic))
		switch at, ok := s.groupIDs[groupKey{topic: g.topic, name: g.name}]; {
		case len(g.name) == 0 || len(g.name) > fact.NameMax:
			return fmt.Errorf("group %d has a name of %d bytes", i, len(g.name))
		case g.next > t.end:
			return fmt.Errorf("group %q of topic %q goes on at %d, its end is %d", g.name, t.name, g.next, t.end)
		case !ok || int(at) != i:
			return fmt.Errorf("group %d is not found by its name %q", i, g.name)
		}
	}
	if len(s.groupIDs) != s.groups.len {
		return fmt.Errorf("%d names for %d groups", len(s.groupIDs), s.groups.len)
	}
	return nil
}

func (s *State) verifyIDs() error {
	var last int64
	for n := s.ids.first; n < s.ids.next; n++ {
		e := s.ids.at(n)
		switch {
		case e.timeMS() < last || e.timeMS() > s.timeMS:
			return fmt.Errorf("request id %d of time %d ms comes after one of %d ms, in a state of %d ms", n, e.timeMS(), last, s.timeMS)
		case e.count() == 0 || e.count() > fact.BatchMax || e.base > fact.OffsetMax-fact.Offset(e.count()):
			return fmt.Errorf("request id %d was used for %d records from %d", n, e.count(), e.base)
		}
		last = e.timeMS()
	}
	return nil
}

func (s *State) verifyIDIndex() error {
	again := 0
	for n := s.ids.first; n < s.ids.next; n++ {
		e := s.ids.at(n)
		switch at, ok := s.ids.find(&e.key); {
		case !ok || at < n:
			return fmt.Errorf("request id %d is not found by its key", n)
		case at > n && s.ids.at(at).timeMS() == e.timeMS():
			return fmt.Errorf("request id %d was used again before it expired", n)
		case at > n:
			again++
		}
	}
	if s.ids.index.len() != s.ids.len()-again {
		return fmt.Errorf("%d keys for %d request ids", s.ids.index.len(), s.ids.len()-again)
	}
	return nil
}
