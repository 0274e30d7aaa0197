// Package state is the fold over the log: topics, groups and request ids as all entries up to one index
// leave them. It is pure. It does no I/O but for the reader and the writer it is given, reads no clock,
// starts no goroutine, and the same entries lead to the same state, byte for byte, on every replica.
//
// A State is changed by one goroutine at a time; while nobody changes it, any number may read it. The caller
// locks. A Frozen is the state at one moment: it may be read while the State goes on.
//
// The next stop of a publish is its answer.
package state

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// WindowDefaultMS is for how long request ids are remembered until a KindSettings fact says otherwise: 1 h.
const WindowDefaultMS = 3600 * 1000

// TimeMaxMS is the latest time that an entry can have.
const TimeMaxMS = fact.TimeMaxMS

// evictMost is how many expired request ids one entry removes. An entry adds at most one.
const evictMost = 16

// Remembered is the publish that a request id was used for.
type Remembered struct {
	Base   fact.Offset
	Count  int
	Digest fact.Digest
}

// Effect is what an applied entry did, for those who follow the log (the index, waiting readers).
type Effect struct {
	Kind  entry.Kind
	Topic TopicID // all but KindMarker, KindSettings, KindChecked and KindRestored
	Name  string  // of the topic: always the same string, not a copy
	// First is the offset of the first record of KindAppended and KindKept, the new offset of KindGroupMoved, and the new
	// start of KindTopicRetained and KindTopicDeleted.
	First fact.Offset
	Count int // of the records of KindAppended and KindKept
}

// State is the fold over the log up to one entry.
type State struct {
	applied  entry.Index
	term     entry.Term
	timeMS   int64 // of the last entry. Invariant: 0 <= timeMS <= TimeMaxMS
	windowMS int64
	// horizonMS is the time before which request ids are forgotten: the highest time minus window of all
	// entries. A longer window does not bring back what was forgotten.
	// Invariant: timeMS-windowMS <= horizonMS <= timeMS
	horizonMS int64
	// floor is where topics begin. Invariant: it is a multiple of fact.RestoreStep, and at most the end of any topic.
	floor fact.Offset

	topics   table[topicRow]
	topicIDs map[string]TopicID
	groups   table[groupRow]
	groupIDs map[groupKey]uint32
	ids      ids

	// Not encoded: they follow from the tables, or only tell that these changed.
	liveTopics                  int
	liveBytes, liveRecords      uint64
	namesVersion, groupsVersion uint64
}

// New returns the state before the first entry.
func New() *State {
	return &State{
		windowMS: WindowDefaultMS,
		topicIDs: make(map[string]TopicID),
		groupIDs: make(map[groupKey]uint32),
	}
}

// Applied is the index of the last entry that was applied, 0 for none.
func (s *State) Applied() entry.Index { return s.applied }

// Term is the term of the last entry that was applied, 0 for none.
func (s *State) Term() entry.Term { return s.term }

// TimeMS is the time of the last entry that was applied, 0 for none.
func (s *State) TimeMS() int64 { return s.timeMS }

// WindowMS is for how long request ids are remembered, in milliseconds.
func (s *State) WindowMS() int64 { return s.windowMS }

// RequestIDs is the number of request ids in memory, a few that are expired included.
func (s *State) RequestIDs() int { return s.ids.len() }

// RequestID returns what a request id was used for in a topic, and false when it is unknown or will be
// forgotten by an entry of the time nowMS: whoever decides then uses the same nowMS, or a later one, as the
// time of its entry. It remembers them for topics that are deleted, too.
func (s *State) RequestID(topic TopicID, requestID []byte, nowMS int64) (Remembered, bool) {
	key := keyOf(topic, requestID)
	n, ok := s.ids.find(&key)
	if !ok {
		return Remembered{}, false
	}
	e := s.ids.at(n)
	if e.timeMS() < s.horizonAt(nowMS) {
		return Remembered{}, false
	}
	return Remembered{Base: e.base, Count: e.count(), Digest: e.digest}, true
}

// horizonAt is the horizon that an entry of the time nowMS would leave.
func (s *State) horizonAt(nowMS int64) int64 { return max(s.horizonMS, nowMS-s.windowMS) }
