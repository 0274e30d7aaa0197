package index

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

const (
	// lockStep is for how many topics the lock is held at a time by what goes through many, so that publishers do
	// not wait for a segment with many topics.
	lockStep = 256
	// placeStep is the same for places.
	placeStep = 4096
)

// Live says how much of a segment is still needed.
type Live struct {
	Segment entry.Index
	// Bytes of the frames with records at or above their topic's start that are not in a later segment. Of a
	// stretch that is needed in part it is a share: as if its records were equally large.
	Bytes  int64
	Sealed bool // not the active segment
	Saved  bool // the index file is written
}

// Live returns what lives in each segment that is known, in log order. It goes through all places, some 25 ns
// each, without holding publishers up; what is added meanwhile may be counted or not. start is called once for
// each topic, without any lock held.
func (x *Index) Live(start func(topic string) fact.Offset) []Live {
	x.mu.RLock()
	c := census{x: x, live: make([]Live, len(x.segments)), left: placeStep}
	for i, s := range x.segments {
		c.live[i] = Live{Segment: s.number, Sealed: s != x.active, Saved: s.saved}
	}
	topics := make([]*topic, 0, lockStep)
	starts := make([]fact.Offset, lockStep)
	count := func() {
		x.mu.RUnlock()
		for i, t := range topics {
			starts[i] = start(t.name)
		}
		x.mu.RLock()
		for i, t := range topics {
			c.count(t, starts[i])
		}
		topics = topics[:0]
	}
	// The map is read only while the lock is held. In the pauses topics may come and go, which a range allows.
	for _, t := range x.topics {
		if topics = append(topics, t); len(topics) == lockStep {
			count()
		}
	}
	count()
	x.mu.RUnlock()
	return c.live
}

// census is the state of one Live.
type census struct {
	x    *Index
	live []Live
	at   int // of the segment that was counted last
	left int // places before the next pause
}

// count adds the places of a topic from its start on. Called with mu held, which it lets go now and then.
func (c *census) count(t *topic, start fact.Offset) {
	for off := start; ; {
		i := t.findFrom(off, c.x.oldest)
		if i == len(t.places) {
			return
		}
		for ; i < len(t.places) && c.left > 0; i++ {
			p := t.places[i]
			if p.first < start {
				p = p.part(start, p.last())
			}
			c.add(p.segment, int64(p.bytes))
			off = p.next()
			c.left--
		}
		if c.left == 0 {
			c.left = placeStep
			c.x.mu.RUnlock()
			c.x.mu.RLock()
		}
	}
}

// add finds the segment by its number. Places of segments that came or went since Live began do not count.
func (c *census) add(number entry.Index, bytes int64) {
	if c.at == len(c.live) || c.live[c.at].Segment != number {
		if c.at++; c.at >= len(c.live) || c.live[c.at].Segment != number { // mostly it is the next one
			c.at = searchLive(c.live, number)
		}
	}
	if c.at < len(c.live) && c.live[c.at].Segment == number {
		c.live[c.at].Bytes += bytes
	}
}

func searchLive(live []Live, number entry.Index) int {
	lo, hi := 0, len(live)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if live[mid].Segment < number {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// Alive tells whether a segment holds the newest copy of a record at or above its topic's start. A segment that
// the index does not know counts as alive. start is called without any lock held.
func (x *Index) Alive(segment entry.Index, start func(topic string) fact.Offset) bool {
	for from := 0; ; {
		names, lasts, next, known := x.lastOf(segment, from)
		if !known {
			return true
		}
		for i, name := range names {
			if lasts[i] >= start(name) {
				return true
			}
		}
		if next == from {
			return false
		}
		from = next
	}
}

// lastOf looks at some topics of a segment, from the given one on, and returns those that have records in it, the
// last record of each, and where to go on.
func (x *Index) lastOf(segment entry.Index, from int) (names []string, lasts []fact.Offset, next int, known bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	i, known := searchSegment(x.segments, segment)
	if !known {
		return nil, nil, 0, false
	}
	topics, places := x.segments[i].topics, 0
	for next = from; next < min(len(topics), from+lockStep) && places < placeStep; next++ {
		last, found, looked := topics[next].lastIn(segment)
		if found {
			names = append(names, topics[next].name)
			lasts = append(lasts, last)
		}
		places += looked
	}
	return names, lasts, next, true
}
