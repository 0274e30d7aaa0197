package history

// Page is the answer to a fetch.
type Page struct {
	Records          []Stored
	Next, Start, End uint64
}

// Stored is a record as it was read.
type Stored struct {
	Offset uint64
	Record
	TimeMS int64
}

// Reading is a fetch that has begun.
type Reading struct {
	topic  string
	from   uint64
	limit  int
	group  *groupReading // nil for a fetch by offset
	byTime bool          // a fetch from a time on: fromMS
	fromMS int64
	end    uint64 // what is known at the beginning must hold for the answer
	start  uint64
}

// Reading records that a fetch is about to be sent.
func (c *Checker) Reading(topic string, from uint64, limit int) Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(topic)
	return Reading{topic: topic, from: from, limit: limit, end: t.end, start: t.start}
}

// Missing records that a fetch was answered: no such topic.
func (c *Checker) Missing(r Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// It may have been deleted before, or meanwhile.
	if t := c.topic(r.topic); r.end > 0 && !t.deleting && t.deleted < r.end {
		c.violated(Lost, r.topic, "the topic is gone; its end was %d", r.end)
	}
}

// Gone records that a fetch was answered: below the start, which is start.
func (c *Checker) Gone(r Reading, start uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(r.topic)
	if len(t.policies) == 0 {
		c.started(t, r, start, t.end)
	} else if t.start < start { // the answer does not tell the end, so that the next page is judged
		t.start = start
	}
	if start <= r.from {
		c.violated(Answer, r.topic, "offset %d is called gone with the start at %d", r.from, start)
	}
}

// Page records the answer of a fetch.
func (c *Checker) Page(r Reading, p Page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topic(r.topic)
	old := c.doubt && len(p.Records) > 0
	if !old || p.Start >= r.start {
		c.started(t, r, p.Start, p.End)
	}
	if p.End < r.end && !old {
		c.violated(Lost, r.topic, "the end is %d; it was %d before", p.End, r.end)
	}
	from := r.from
	if r.group != nil || r.byTime {
		from = p.Next
		if len(p.Records) > 0 {
			from = p.Records[0].Offset
		}
	}
	if r.group != nil {
		c.groupAt(r, from, p.Start)
	}
	c.checkShape(r, from, p)
	for _, record := range p.Records {
		c.checkRecord(t, r.topic, record, p.End)
	}
	if r.byTime {
		c.byTime(t, r, from, p)
	}
	c.report.Read += len(p.Records)
	t.end = max(t.end, p.End)
	t.forget()
}

// started checks a start that was answered, together with an end. c.mu is held.
func (c *Checker) started(t *topic, r Reading, start, end uint64) {
	if start < r.start {
		c.violated(Start, r.topic, "the start is %d; it was %d before", start, r.start)
	}
	if !c.asked(t, start, end) {
		c.violated(Start, r.topic, "the start is %d; nobody asked for more than %d", start, t.startMost)
	}
	t.start = max(t.start, start)
}

// checkShape checks the offsets of an answer against each other. c.mu is held.
func (c *Checker) checkShape(r Reading, from uint64, p Page) {
	for i, record := range p.Records {
		if record.Offset != from+uint64(i) {
			c.violated(Gap, r.topic, "read from %d: record %d has offset %d", from, i, record.Offset)
			return
		}
	}
	n := uint64(len(p.Records))
	switch {
	case len(p.Records) > r.limit:
		c.violated(Answer, r.topic, "%d records with limit %d", len(p.Records), r.limit)
	case n > 0 && p.Next != from+n:
		c.violated(Gap, r.topic, "read from %d: %d records, and the next offset is %d", from, n, p.Next)
	case n == 0 && p.Next != p.End:
		c.violated(Gap, r.topic, "read from %d: no records, next offset %d, end %d", from, p.Next, p.End)
	case n == 0 && from < p.End:
		c.violated(Gap, r.topic, "read from %d: no records, but the end is %d", from, p.End)
	case p.Next > p.End:
		c.violated(Gap, r.topic, "read from %d: next offset %d is beyond the end %d", from, p.Next, p.End)
	}
}

// checkRecord checks one record that was read in an answer with this end. c.mu is held.
func (c *Checker) checkRecord(t *topic, topic string, r Stored, end uint64) {
	slot := t.slot(r.Offset)
	if slot == nil {
		return // another client moved the start meanwhile, and the record is forgotten
	}
	sum := sumOf(r.Key, r.Value)
	s := t.sent[sum]
	if s == nil {
		c.violated(Foreign, topic, "offset %d: %.40q", r.Offset, r.Value)
		return
	}
	for i := range s.sums {
		if s.sums[i] == sum {
			c.place(s, r.Offset-uint64(i))
			if whole := r.Offset - uint64(i) + uint64(len(s.sums)); end < whole {
				c.violated(Torn, topic, "%s: record %d of %d is at %d, and the end is %d", s.name, i, len(s.sums), r.Offset, end)
			}
		}
	}
	switch {
	case slot.sent != s && slot.sent != nil:
		c.violated(Changed, topic, "offset %d: %s, before %s", r.Offset, s.name, slot.sent.name)
	case slot.timeMS != 0 && slot.timeMS != r.TimeMS:
		c.violated(Changed, topic, "offset %d: time %d, before %d", r.Offset, r.TimeMS, slot.timeMS)
	}
	slot.timeMS = r.TimeMS
}
