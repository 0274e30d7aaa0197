package state

import (
	"fmt"
	"slices"

	"example.com/mq/internal/fact"
)

// TopicID numbers the topics in the order of their first records, from 0. It is the same on every replica. A topic
// that is deleted keeps its number, for when it comes back.
type TopicID uint32

// Topic is a topic as it is now. It holds the records from Start to End-1, less the gaps.
type Topic struct {
	ID         TopicID
	Name       string
	Start, End fact.Offset // Invariant: Start <= End
	// StartCum and EndCum are how many bytes keys and values of all records before Start and before End have, ever. So
	// EndCum-StartCum are kept.
	// Invariant: StartCum <= EndCum, and they are equal when no record is kept.
	StartCum, EndCum uint64
	Retention        fact.Retention // its own settings
	Gaps             []Gap          // rising, between Start and End; nearly always none. Not to be changed.
	Deleted          bool           // nothing is left but where its offsets go on. Invariant: then Start == End
}

// Gap says that a topic never had the records From to To-1, or lost them: a restore from a backup jumped over them.
type Gap struct {
	From, To fact.Offset // Invariant: From < To, and To is a multiple of fact.RestoreStep
}

// Records is how many records are kept.
func (t *Topic) Records() uint64 { return uint64(t.End-t.Start) - covered(t.Gaps, t.Start, t.End) }

// Between is how many records are kept that have an offset from from to to-1.
func (t *Topic) Between(from, to fact.Offset) uint64 {
	from, to = max(from, t.Start), min(to, t.End)
	if from >= to {
		return 0
	}
	return uint64(to-from) - covered(t.Gaps, from, to)
}

// Nth returns the offset of the record before which n others are kept, and End when no more than n are kept.
func (t *Topic) Nth(n uint64) fact.Offset {
	at := t.Start
	for _, g := range t.Gaps {
		if left := uint64(g.From - at); n >= left {
			n, at = n-left, g.To
		} else {
			break
		}
	}
	if n >= uint64(t.End-at) {
		return t.End
	}
	return at + fact.Offset(n)
}

// Normal returns the offset that a reader at off goes on at. Where a gap begins, it has read all there is before the
// gap, and goes on behind it: next is where the gap ends, and gap is the one it crosses. Inside a gap ok is false: the
// reader has seen records that the restore lost; they end at gap.From, and next is where others go on. Elsewhere next
// is off, and gap is nil.
func (t *Topic) Normal(off fact.Offset) (next fact.Offset, gap *Gap, ok bool) {
	next, ok = off, true
	for i := range t.Gaps {
		switch g := &t.Gaps[i]; {
		case next < g.From:
			return next, gap, ok
		case next == g.From:
			next = g.To
			if gap == nil {
				gap = g
			}
		case next < g.To:
			next, gap, ok = g.To, g, false
		}
	}
	return next, gap, ok
}

// covered is how many of the offsets from from to to-1 lie in gaps.
func covered(gaps []Gap, from, to fact.Offset) uint64 {
	var n fact.Offset
	for _, g := range gaps {
		if low, high := max(g.From, from), min(g.To, to); low < high {
			n += high - low
		}
	}
	return uint64(n)
}

// inside finds the gap that off lies in, behind its first offset.
func inside(gaps []Gap, off fact.Offset) (Gap, bool) {
	for _, g := range gaps {
		if off > g.From && off < g.To {
			return g, true
		}
	}
	return Gap{}, false
}

// topicRow is a topic in the table: 64 bytes and the name.
type topicRow struct {
	name             string
	start, end       fact.Offset
	startCum, endCum uint64
	more             *topicMore // nil for most. What it points to never changes, so that views may share it.
	groups           uint32     // rows of the table of groups that are of this topic
	deleted          bool
}

// topicMore is what few topics have.
type topicMore struct {
	retention fact.Retention
	gaps      []Gap
}

func (t *topicRow) retention() fact.Retention {
	if t.more == nil {
		return fact.Retention{}
	}
	return t.more.retention
}

func (t *topicRow) gaps() []Gap {
	if t.more == nil {
		return nil
	}
	return t.more.gaps
}

// setMore keeps what is not the default.
func (t *topicRow) setMore(retention fact.Retention, gaps []Gap) {
	if t.more = nil; retention != (fact.Retention{}) || len(gaps) > 0 {
		t.more = &topicMore{retention: retention, gaps: gaps}
	}
}

func (t *topicRow) records() uint64 { return uint64(t.end-t.start) - covered(t.gaps(), t.start, t.end) }

func (t *topicRow) bytes() uint64 { return t.endCum - t.startCum }

// topic returns the row as others see it.
func (t *topicRow) topic(id TopicID) Topic {
	return Topic{
		ID: id, Name: t.name, Start: t.start, End: t.end, StartCum: t.startCum, EndCum: t.endCum,
		Retention: t.retention(), Gaps: t.gaps(), Deleted: t.deleted,
	}
}

// Topics is the number of topics, those that are deleted included. Their ids are the numbers below it.
func (s *State) Topics() int { return s.topics.len }

// LiveTopics is the number of topics that are not deleted.
func (s *State) LiveTopics() int { return s.liveTopics }

// NamesVersion changes whenever a topic appears, comes back or is deleted. It says nothing across restarts.
func (s *State) NamesVersion() uint64 { return s.namesVersion }

// LiveBytes is how many bytes of keys and values all topics keep.
func (s *State) LiveBytes() uint64 { return s.liveBytes }

// LiveRecords is how many records all topics keep.
func (s *State) LiveRecords() uint64 { return s.liveRecords }

// Floor is the offset at which topics that are new begin: 0, or that of the last restore from a backup.
func (s *State) Floor() fact.Offset { return s.floor }

// Topic finds a topic by name. It finds none that is deleted.
func (s *State) Topic(name []byte) (Topic, bool) {
	id, row, ok := s.live(name)
	if !ok {
		return Topic{}, false
	}
	return row.topic(id), true
}

// TopicByID returns a topic, also one that is deleted. An id that no topic has is a mistake of the caller.
func (s *State) TopicByID(id TopicID) Topic {
	if int64(id) >= int64(s.topics.len) {
		panic(fmt.Sprintf("BUG: topic %d of %d", id, s.topics.len))
	}
	return s.topics.at(int(id)).topic(id)
}

// Ended tells where a topic goes on, also one that is deleted: the offset of its next record, and the bytes of all
// before. known is false for a name that never had records: it would begin at Floor, and has no id.
func (s *State) Ended(name []byte) (end fact.Offset, cum uint64, id TopicID, known bool) {
	id, known = s.topicIDs[string(name)]
	if !known {
		return s.floor, 0, 0, false
	}
	t := s.topics.at(int(id))
	return t.end, t.endCum, id, true
}

// live finds a topic that is not deleted.
func (s *State) live(name []byte) (TopicID, *topicRow, bool) {
	id, ok := s.topicIDs[string(name)]
	if !ok {
		return 0, nil, false
	}
	t := s.topics.at(int(id))
	return id, t, !t.deleted
}

func (s *State) addTopic(t topicRow) {
	s.topicIDs[t.name] = TopicID(s.topics.len)
	s.topics.push(t)
	s.namesVersion++
	if !t.deleted {
		s.liveTopics++
	}
	s.liveBytes += t.bytes()
	s.liveRecords += t.records()
}

// dropGaps returns the gaps that end behind start.
func dropGaps(gaps []Gap, start fact.Offset) []Gap {
	for len(gaps) > 0 && gaps[0].To <= start {
		gaps = gaps[1:]
	}
	return slices.Clip(gaps)
}
