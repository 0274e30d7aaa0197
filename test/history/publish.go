package history

import (
	"fmt"
	"time"
)

// Record is a key and a value. No two records of one run may be equal: the checker tells them apart by
// their bytes.
type Record struct{ Key, Value []byte }

// Publish is a publish of one record or a batch.
type Publish struct {
	Name    string // for messages: which publisher, and its how manieth
	Topic   string
	Records []Record
}

// Sent is a publish that was sent at least once.
type Sent struct {
	name  string
	topic string
	sums  []sum
	sizes []int64 // bytes of keys and values
	floor uint64  // the topic's known end when the publish was first sent: it must stand at or after that

	bornMS int64 // when it was first sent; the broker stamps it later

	placed bool // base is known
	base   uint64

	done    bool // acknowledged
	refused bool // the only attempt was answered with a refusal
	unknown bool // an attempt has no answer, so the records may appear
}

// Send records that a publish is about to be sent for the first time. Attempts with the same request id
// share one Sent.
func (c *Checker) Send(p Publish) *Sent {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(p.Topic)
	s := &Sent{name: p.Name, topic: p.Topic, floor: t.end, bornMS: time.Now().UnixMilli()}
	for _, r := range p.Records {
		sum := sumOf(r.Key, r.Value)
		if t.sent[sum] != nil {
			panic(fmt.Sprintf("BUG: records of %s and %s are equal", t.sent[sum].name, p.Name))
		}
		t.sent[sum] = s
		s.sums = append(s.sums, sum)
		s.sizes = append(s.sizes, int64(len(r.Key)+len(r.Value)))
	}
	return s
}

// Done records an acknowledgement. duplicate is what the answer says about itself.
func (c *Checker) Done(s *Sent, offsets []uint64, duplicate bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(offsets) != len(s.sums) {
		c.violated(Answer, s.topic, "%s: %d records, but %d offsets", s.name, len(s.sums), len(offsets))
		return
	}
	for i, o := range offsets {
		if o != offsets[0]+uint64(i) {
			c.violated(Gap, s.topic, "%s: offsets of the batch are not consecutive: %v", s.name, offsets)
			return
		}
	}
	switch {
	case s.done && !duplicate:
		c.violated(Answer, s.topic, "%s: acknowledged again, but not called a duplicate", s.name)
	case !s.done && !s.unknown && duplicate:
		c.violated(Answer, s.topic, "%s: called a duplicate at the first attempt", s.name)
	}
	c.place(s, offsets[0])
	if !s.done {
		s.done = true
		c.report.Acknowledged += len(s.sums)
	}
	t := c.topic(s.topic)
	t.end = max(t.end, offsets[0]+uint64(len(offsets)))
}

// Unknown records that an attempt brought no answer, or one that leaves the outcome open.
func (c *Checker) Unknown(s *Sent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.unknown = true
}

// Refused records an answer that says: not done. It counts only when no earlier attempt is open, since it
// speaks of this attempt. After it, the publish must not be sent again.
func (c *Checker) Refused(s *Sent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.done:
		c.violated(Lost, s.topic, "%s: acknowledged at %d, then refused with the same request id", s.name, s.base)
	case s.unknown:
	case s.placed:
		c.violated(Refused, s.topic, "%s: seen at %d, then refused", s.name, s.base)
	default:
		s.refused = true
	}
}

// place learns where a publish stands, from its answer or from a read. c.mu is held.
func (c *Checker) place(s *Sent, base uint64) {
	if s.placed {
		if s.base != base {
			c.violated(Duplicated, s.topic, "%s: at %d and at %d", s.name, s.base, base)
		}
		return
	}
	s.placed, s.base = true, base
	if s.refused {
		c.violated(Refused, s.topic, "%s: at %d", s.name, base)
	}
	if base < s.floor {
		c.violated(Reordered, s.topic, "%s: at %d, but when it was sent the topic's end was %d already", s.name, base, s.floor)
	}
	t := c.topic(s.topic)
	for i := range s.sums {
		switch slot := t.slot(base + uint64(i)); {
		case slot == nil:
		case slot.sent == nil:
			slot.sent = s
		case slot.sent != s:
			c.violated(Changed, s.topic, "offset %d holds record %d of %s and record %d of %s",
				base+uint64(i), i, s.name, base+uint64(i)-slot.sent.base, slot.sent.name)
		}
	}
}
