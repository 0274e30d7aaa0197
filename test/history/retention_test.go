package history

import (
	"testing"
	"time"
)

// old is a page whose records are of another time.
func old(p Page, timeMS int64) Page {
	for i := range p.Records {
		p.Records[i].TimeMS = timeMS
	}
	return p
}

// from is a page whose topic begins at a start.
func from(start uint64, p Page) Page {
	p.Start = start
	return p
}

func remove(c *Checker, end uint64) {
	c.Deleting("t")
	c.Deleted("t", end, true)
}

func TestGoodRetention(t *testing.T) {
	c := New()
	publish(c, 0, "a1", "a2", "a3", "a4")
	c.Configuring("t", Policy{Records: 2})
	read(c, 2, from(2, page(2, 4, "a3", "a4")))
	c.Gone(c.Reading("t", 0, 100), 2)
	publish(c, 4, "b1")
	c.Gone(c.Reading("t", 2, 100), 3) // the end is not told
	read(c, 3, from(3, page(3, 5, "a4", "b1")))

	c.Configuring("t", Policy{Bytes: 3}) // a key of 1 byte, and a value of 2
	read(c, 4, from(4, page(4, 5, "b1")))
	now := time.Now().UnixMilli()
	c.Configuring("t", Policy{MS: 1})
	for time.Now().UnixMilli() < now+2 {
	}
	read(c, 5, from(5, page(5, 5)))

	publish(c, 5, "c1")
	late := c.Reading("t", 5, 100)
	remove(c, 6)
	c.Missing(late)
	c.Missing(c.Reading("t", 0, 100))
	publish(c, 6, "d1")
	read(c, 6, from(6, page(6, 7, "d1")))
	readGroup(c, from(6, page(6, 7, "d1")))
	c.Deleting("t")
	c.Missing(c.Reading("t", 0, 100)) // by an attempt without an answer
	c.Deleted("t", 0, false)
	if err := c.Report().Err(); err != nil {
		t.Error(err)
	}
}

func TestGoodByTime(t *testing.T) {
	c := New()
	publish(c, 0, "a1", "a2")
	read(c, 0, page(0, 2, "a1", "a2")) // of time 1000
	r := c.ReadingByTime("t", 1001, 100)
	publish(c, 2, "b1")
	c.Page(r, page(2, 3, "b1")) // it came meanwhile, and is older than what was asked for
	c.Page(c.ReadingByTime("t", 1000, 100), page(0, 3, "a1", "a2", "b1"))
	c.Page(c.ReadingByTime("t", 2000, 100), page(3, 3))
	if err := c.Report().Err(); err != nil {
		t.Error(err)
	}
}

func TestRetentionViolations(t *testing.T) {
	for _, test := range []struct {
		name    string
		want    Kind
		history func(c *Checker)
	}{
		{"a policy by records goes too far", Start, func(c *Checker) {
			publish(c, 0, "a1", "a2", "a3")
			c.Configuring("t", Policy{Records: 2})
			read(c, 2, from(2, page(2, 3, "a3")))
		}},
		{"a policy by bytes goes too far", Start, func(c *Checker) {
			publish(c, 0, "a1", "a2", "a3")
			c.Configuring("t", Policy{Bytes: 6})
			read(c, 2, from(2, page(2, 3, "a3")))
		}},
		{"a policy by time goes too far", Start, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			c.Configuring("t", Policy{MS: 3_600_000})
			read(c, 1, from(1, page(1, 2, "a2")))
		}},
		{"a policy goes too far, told by gone first", Start, func(c *Checker) {
			publish(c, 0, "a1", "a2", "a3")
			c.Configuring("t", Policy{Records: 2})
			c.Gone(c.Reading("t", 0, 100), 2)
			read(c, 2, from(2, page(2, 3, "a3")))
		}},
		{"a policy of another topic", Start, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			c.Configuring("u", Policy{Records: 1})
			read(c, 1, from(1, page(1, 2, "a2")))
		}},
		{"offsets begin anew after a delete", Reordered, func(c *Checker) {
			publish(c, 0, "a1")
			remove(c, 1)
			publish(c, 0, "b1")
		}},
		{"a delete loses the end", Lost, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			remove(c, 1)
		}},
		{"missing again after it came back", Lost, func(c *Checker) {
			publish(c, 0, "a1")
			remove(c, 1)
			publish(c, 1, "b1")
			c.Missing(c.Reading("t", 0, 100))
		}},
		{"what was deleted comes back", Start, func(c *Checker) {
			publish(c, 0, "a1")
			remove(c, 1)
			read(c, 0, page(0, 1, "a1"))
		}},
		{"a group outlives its topic", Group, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			commit(c, 2)
			remove(c, 2)
			publish(c, 2, "b1", "b2", "b3")
			readGroup(c, from(2, page(4, 5, "b3")))
		}},
		{"by time: too early", Answer, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			c.Page(c.ReadingByTime("t", 1001, 100), page(0, 2, "a1", "a2"))
		}},
		{"by time: too late", Answer, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			read(c, 0, page(0, 2, "a1", "a2"))
			c.Page(c.ReadingByTime("t", 1000, 100), page(1, 2, "a2"))
		}},
		{"by time: the time of a record changes", Changed, func(c *Checker) {
			publish(c, 0, "a1")
			read(c, 0, page(0, 1, "a1"))
			c.Page(c.ReadingByTime("t", 1000, 100), old(page(0, 1, "a1"), 1001))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := New()
			test.history(c)
			if r := c.Report(); r.Counts[test.want] == 0 {
				t.Errorf("not found: %v", r)
			}
		})
	}
}
