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
	var last *id
	for n := s.ids.first; n < s.ids.next; n++ {
		e := s.ids.at(n)
		if err := s.verifyID(n, e, last); err != nil {
			return err
		}
		last = e
	}
	return s.verifyIDIndex()
}

// verifyTables checks all but the request ids.
func (s *State) verifyTables() error {
	if s.applied == 0 && (s.term != 0 || s.timeMS != 0 || s.windowMS != WindowDefaultMS || s.topics.len != 0 || s.floor != 0) {
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
	return s.verifyGroups()
}

func (s *State) verifyTopics() error {
	if s.floor > fact.OffsetMax || s.floor%fact.RestoreStep != 0 {
		return fmt.Errorf("topics begin at %d", s.floor)
	}
	live, bytes, records := 0, uint64(0), uint64(0)
	for i := range s.topics.len {
		t := s.topics.at(i)
		switch id, ok := s.topicIDs[t.name]; {
		case len(t.name) == 0 || len(t.name) > fact.NameMax:
			return fmt.Errorf("topic %d has a name of %d bytes", i, len(t.name))
		case t.start > t.end || t.end == 0 || t.end > fact.OffsetMax || t.end < s.floor:
			return fmt.Errorf("topic %q holds %d to %d, topics begin at %d", t.name, t.start, t.end, s.floor)
		case !ok || int(id) != i:
			return fmt.Errorf("topic %d is not found by its name %q", i, t.name)
		}
		if err := s.verifyGaps(t); err != nil {
			return err
		}
		switch {
		case t.startCum > t.endCum || t.endCum > fact.CumMax || (t.records() == 0 && t.startCum != t.endCum):
			return fmt.Errorf("topic %q holds %d records, after %d to %d bytes", t.name, t.records(), t.startCum, t.endCum)
		case t.deleted && (t.start != t.end || t.more != nil || t.groups != 0):
			return fmt.Errorf("topic %q is deleted, and something is left of it", t.name)
		}
		if !t.deleted {
			live++
		}
		bytes += t.bytes()
		records += t.records()
	}
	if len(s.topicIDs) != s.topics.len {
		return fmt.Errorf("%d names for %d topics", len(s.topicIDs), s.topics.len)
	}
	if s.liveTopics != live || s.liveBytes != bytes || s.liveRecords != records {
		return fmt.Errorf("%d topics with %d bytes and %d records, counted as %d, %d and %d",
			live, bytes, records, s.liveTopics, s.liveBytes, s.liveRecords)
	}
	return nil
}

// verifyGaps checks that gaps rise, do not overlap, lie between start and end, and end where a restore may have made
// topics go on. The last restore left a gap in all that began before.
func (s *State) verifyGaps(t *topicRow) error {
	low := t.start
	for _, g := range t.gaps() {
		if g.From < low || g.From >= g.To || g.To > t.end || g.To > s.floor || g.To%fact.RestoreStep != 0 {
			return fmt.Errorf("topic %q has a gap from %d to %d, it holds %d to %d", t.name, g.From, g.To, t.start, t.end)
		}
		low = g.To
	}
	if t.start < s.floor && low != s.floor {
		return fmt.Errorf("topic %q has no gap before %d, it holds %d to %d", t.name, s.floor, t.start, t.end)
	}
	return nil
}

func (s *State) verifyGroups() error {
	count := make([]uint32, s.topics.len)
	for i := range s.groups.len {
		g := s.groups.at(i)
		if int(g.topic) >= s.topics.len {
			return fmt.Errorf("group %q of topic %d, of %d topics", g.name, g.topic, s.topics.len)
		}
		count[g.topic]++
		t := s.topics.at(int(g.topic))
		_, in := inside(t.gaps(), g.next)
		switch at, ok := s.groupIDs[groupKey{topic: g.topic, name: g.name}]; {
		case len(g.name) == 0 || len(g.name) > fact.NameMax:
			return fmt.Errorf("group %d has a name of %d bytes", i, len(g.name))
		case g.next > t.end || in:
			return fmt.Errorf("group %q of topic %q goes on at %d, the topic holds %d to %d", g.name, t.name, g.next, t.start, t.end)
		case g.timeMS < 0 || g.timeMS > s.timeMS:
			return fmt.Errorf("group %q of topic %q was moved at %d ms, in a state of %d ms", g.name, t.name, g.timeMS, s.timeMS)
		case !ok || int(at) != i:
			return fmt.Errorf("group %d is not found by its name %q", i, g.name)
		}
	}
	if len(s.groupIDs) != s.groups.len {
		return fmt.Errorf("%d names for %d groups", len(s.groupIDs), s.groups.len)
	}
	for i, n := range count {
		if t := s.topics.at(i); t.groups != n {
			return fmt.Errorf("topic %q has %d groups, counted as %d", t.name, n, t.groups)
		}
	}
	return nil
}

// verifyID checks request id n, which comes after last, or is the first one. Restore does it as it reads them.
func (s *State) verifyID(n uint64, e, last *id) error {
	var lastMS int64
	if last != nil {
		lastMS = last.timeMS()
	}
	switch {
	case e.timeMS() < lastMS || e.timeMS() > s.timeMS:
		return fmt.Errorf("request id %d of time %d ms comes after one of %d ms, in a state of %d ms", n, e.timeMS(), lastMS, s.timeMS)
	case e.count() == 0 || e.count() > fact.BatchMax || e.base > fact.OffsetMax-fact.Offset(e.count()):
		return fmt.Errorf("request id %d was used for %d records from %d", n, e.count(), e.base)
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
