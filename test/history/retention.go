package history

import (
	"math"
	"time"
)

// Policy says which records of a topic the broker may drop by itself: all but the newest, by number or by the bytes of their
// keys and values, and those that are older. 0 is no limit.
type Policy struct {
	MS, Bytes int64
	Records   uint64
}

// due reports whether a policy lets go of a record.
func (c *Checker) due(t *topic, p Policy, offset, end uint64) bool {
	if p.Records > 0 && end-offset > p.Records {
		return true
	}
	first := t.slot(offset)
	if first == nil || first.sent == nil {
		return true // nothing is known of it
	}
	if born := max(first.timeMS, first.sent.bornMS); p.MS > 0 && born+p.MS <= time.Now().UnixMilli() {
		return true
	}
	bytes := int64(0)
	for at := offset; p.Bytes > 0 && at < end; at++ {
		s := t.slot(at)
		if s.sent == nil {
			return true // whoever published it does not know of it yet
		}
		if bytes += s.sent.sizes[at-s.sent.base]; bytes > p.Bytes {
			return true
		}
	}
	return false
}

// asked reports whether somebody asked for a start, or a policy that was asked for, at any time, lets go of the record before
// it with the topic's end at end. c.mu is held.
func (c *Checker) asked(t *topic, start, end uint64) bool {
	if start <= t.startMost || start <= t.dueMost || t.deleting {
		return true
	}
	for _, p := range t.policies {
		if start <= end && c.due(t, p, start-1, end) {
			t.dueMost = start
			return true
		}
	}
	return false
}

// Configuring records that a topic is about to get settings.
func (c *Checker) Configuring(topic string, p Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	for _, known := range t.policies {
		if known == p {
			return
		}
	}
	t.policies = append(t.policies, p)
}

// Deleting records that a topic is about to be deleted. Nobody else may publish to it until Deleted, and what became of all
// that was published must be known.
func (c *Checker) Deleting(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(topic).deleting = true
}

// Deleted records that the topic is gone: when it comes back it goes on at end. known is false when the answer does not tell
// where that is, since an attempt before did it.
func (c *Checker) Deleted(topic string, end uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	if known && end != t.end {
		c.violated(Lost, topic, "deleted with its end at %d; it was %d", end, t.end)
	}
	t.deleting, t.deleted = false, t.end
	t.start, t.startMost = t.end, max(t.startMost, t.end)
	t.forget()
	for k, g := range c.groups {
		if k.topic == topic {
			g.possible = []attempt{{}}
			g.version++
		}
	}
}

// ReadingByTime records that a fetch from a time on is about to be sent.
func (c *Checker) ReadingByTime(topic string, fromMS int64, limit int) Reading {
	r := c.Reading(topic, 0, limit)
	r.byTime, r.fromMS = true, fromMS
	return r
}

// byTime checks where a fetch from a time on began. c.mu is held.
func (c *Checker) byTime(t *topic, r Reading, from uint64, p Page) {
	// What came while the fetch was under way may be older: it was looked for before that was committed. So may be what a
	// leader learns of only then.
	for _, record := range p.Records {
		if record.TimeMS < r.fromMS && from < r.end && !c.doubt {
			c.violated(Answer, r.topic, "from time %d on: offset %d has time %d", r.fromMS, record.Offset, record.TimeMS)
		}
	}
	if from <= p.Start || from <= t.slotsAt {
		return
	}
	if s := t.slot(from - 1); s.timeMS >= r.fromMS {
		c.violated(Answer, r.topic, "from time %d on: it begins at %d, but %d has time %d", r.fromMS, from, from-1, s.timeMS)
	}
}

// Any is a start above all that anybody can ask for.
const Any = math.MaxUint64
