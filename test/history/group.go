package history

import "slices"

type groupKey struct{ group, topic string }

// groupOffset is what a group's offset may be: what was last known, or what any attempt to commit since
// then would have made it. The clients of a group must not commit concurrently.
type groupOffset struct {
	possible []attempt // in their order; the first is known to have happened
	version  int       // counts changes, to tell whether one came between the two ends of a fetch
}

// attempt is a commit of a group's offset.
type attempt struct {
	offset uint64
	life   int // of the broker that it was sent to
}

// groupReading is the part of a Reading that is about a group.
type groupReading struct {
	key     groupKey
	version int
}

func (c *Checker) group(k groupKey) *groupOffset {
	g := c.groups[k]
	if g == nil {
		g = &groupOffset{possible: []attempt{{}}}
		c.groups[k] = g
	}
	return g
}

// GroupReading records that a fetch of a group is about to be sent.
func (c *Checker) GroupReading(group, topic string, limit int) Reading {
	r := c.Reading(topic, 0, limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := groupKey{group, topic}
	r.group = &groupReading{k, c.group(k).version}
	return r
}

// groupAt checks where a fetch of a group began. c.mu is held.
func (c *Checker) groupAt(r Reading, at, start uint64) {
	g := c.group(r.group.key)
	if g.version != r.group.version {
		return // a commit was sent or answered during the fetch
	}
	// The last attempt that fits is taken: an earlier one with the same offset changes nothing.
	for i, a := range slices.Backward(g.possible) {
		if at == a.offset {
			// What was sent to a broker that is dead did not happen, or it would show now.
			later := slices.DeleteFunc(g.possible[i+1:], func(a attempt) bool { return a.life < c.life })
			g.possible = append([]attempt{a}, later...)
			return
		}
	}
	// A group that fell below the start goes on from the start.
	for _, a := range g.possible {
		if a.offset < at && at <= start {
			return
		}
	}
	c.violated(Group, r.topic, "group %s is at %d with the start at %d; the commits sent since the last one that is known are %v",
		r.group.key.group, at, start, g.possible)
}

// Committing records that a commit of a group's offset is about to be sent.
func (c *Checker) Committing(group, topic string, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.group(groupKey{group, topic})
	g.possible = append(g.possible, attempt{next, c.life})
	g.version++
}

// Committed records that the last commit was acknowledged.
func (c *Checker) Committed(group, topic string, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.group(groupKey{group, topic})
	if last := g.possible[len(g.possible)-1].offset; last != next {
		c.violated(Answer, topic, "group %s: commit of %d answered %d", group, last, next)
	}
	g.possible = g.possible[len(g.possible)-1:]
	g.version++
}

// NotCommitted records that the last commit was refused.
func (c *Checker) NotCommitted(group, topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.group(groupKey{group, topic})
	g.possible = g.possible[:len(g.possible)-1]
	g.version++
}

// Retaining records that a topic's start is about to be moved.
func (c *Checker) Retaining(topic string, start uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	t.startMost = max(t.startMost, start)
}

// Retained records that the start was moved.
func (c *Checker) Retained(topic string, start uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	if !c.asked(t, start, t.end) {
		c.violated(Start, topic, "the start was moved to %d; nobody asked for more than %d", start, t.startMost)
	}
	t.start = max(t.start, start)
	t.forget()
}

// Bounds returns what is known of a topic: every record from start on and below end must be readable.
func (c *Checker) Bounds(topic string) (start, end uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	return t.start, t.end
}

// StartMost returns the highest start of a topic that anybody asked for: Any if it may be deleted, or policies move it.
func (c *Checker) StartMost(topic string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.topic(topic); len(t.policies) == 0 && !t.deleting && t.deleted == 0 {
		return t.startMost
	}
	return Any
}
