package history

import (
	"fmt"
	"testing"
)

// A test's history is about topic "t". Records are named by a letter and a number: the value is the name.

func record(name string) Record { return Record{Key: []byte("k"), Value: []byte(name)} }

func send(c *Checker, names ...string) *Sent {
	p := Publish{Name: names[0], Topic: "t"}
	for _, n := range names {
		p.Records = append(p.Records, record(n))
	}
	return c.Send(p)
}

func offsets(from uint64, n int) []uint64 {
	var o []uint64
	for i := range n {
		o = append(o, from+uint64(i))
	}
	return o
}

// publish sends and acknowledges.
func publish(c *Checker, at uint64, names ...string) *Sent {
	s := send(c, names...)
	c.Done(s, offsets(at, len(names)), false)
	return s
}

// page makes the answer of a fetch from an offset.
func page(from, end uint64, names ...string) Page {
	p := Page{Next: from + uint64(len(names)), End: end}
	for i, n := range names {
		p.Records = append(p.Records, Stored{Offset: from + uint64(i), Record: record(n), TimeMS: 1000})
	}
	return p
}

func read(c *Checker, from uint64, p Page) { c.Page(c.Reading("t", from, 100), p) }

func readGroup(c *Checker, p Page) { c.Page(c.GroupReading("g", "t", 100), p) }

func commit(c *Checker, next uint64) {
	c.Committing("g", "t", next)
	c.Committed("g", "t", next)
}

func TestGoodHistory(t *testing.T) {
	c := New()
	publish(c, 0, "a1")
	batch := send(c, "b1", "b2", "b3")
	c.Unknown(batch)
	other := send(c, "c1")
	c.Done(other, offsets(4, 1), false)
	read(c, 0, page(0, 5, "a1", "b1", "b2", "b3", "c1"))
	c.Done(batch, offsets(1, 3), true) // retried
	c.Done(batch, offsets(1, 3), true) // and again
	refused := send(c, "a2")
	c.Refused(refused)
	open := send(c, "a3") // refused, but an earlier attempt is open
	c.Unknown(open)
	c.Refused(open)
	read(c, 5, page(5, 6, "a3"))
	read(c, 9, Page{Next: 6, End: 6})

	readGroup(c, page(0, 6, "a1"))
	commit(c, 2)
	readGroup(c, page(2, 6, "b2", "b3"))
	c.Committing("g", "t", 4)
	c.Restarted()
	readGroup(c, page(4, 6, "c1"))
	c.Committing("g", "t", 5)
	c.NotCommitted("g", "t")
	readGroup(c, page(4, 6, "c1"))
	commit(c, 1) // back, on purpose
	readGroup(c, page(1, 6, "b1"))

	c.Retaining("t", 3)
	c.Retained("t", 3)
	c.Gone(c.Reading("t", 0, 100), 3)
	moved := page(3, 6, "b3")
	moved.Start = 3
	readGroup(c, moved) // the group fell below the start

	r := c.Report()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Acknowledged != 5 {
		t.Errorf("acknowledged = %d, want 5", r.Acknowledged)
	}
}

// A commit that is answered during a fetch says nothing about it.
func TestCommitDuringGroupFetch(t *testing.T) {
	c := New()
	publish(c, 0, "a1", "a2")
	r := c.GroupReading("g", "t", 100)
	commit(c, 1)
	c.Page(r, page(0, 2, "a1", "a2"))
	if err := c.Report().Err(); err != nil {
		t.Fatal(err)
	}
}

// A leader that does not know all that was acknowledged may show what it knows.
func TestDoubt(t *testing.T) {
	c := New()
	publish(c, 0, "a1")
	publish(c, 1, "a2")
	c.Doubt(true)
	read(c, 0, page(0, 1, "a1"))
	c.Retaining("t", 1)
	c.Retained("t", 1)
	read(c, 0, page(0, 1, "a1"))
	c.Doubt(false)
	read(c, 1, Page{Records: page(1, 2, "a2").Records, Next: 2, Start: 1, End: 2})
	if err := c.Report().Err(); err != nil {
		t.Fatal(err)
	}
}

func TestViolations(t *testing.T) {
	tests := []struct {
		name string
		want Kind
		run  func(c *Checker)
	}{
		{"acknowledged record behind the end", Lost, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			read(c, 0, page(0, 1, "a1"))
		}},
		{"record seen, then gone", Lost, func(c *Checker) {
			c.Unknown(send(c, "a1"))
			read(c, 0, page(0, 1, "a1"))
			read(c, 0, Page{})
		}},
		{"no record behind what is in doubt", Lost, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			c.Doubt(true)
			read(c, 1, Page{Next: 1, End: 1})
		}},
		{"an old start without records, in doubt", Start, func(c *Checker) {
			publish(c, 0, "a1")
			c.Retaining("t", 1)
			c.Retained("t", 1)
			c.Doubt(true)
			read(c, 1, Page{Next: 1, Start: 0, End: 1})
		}},
		{"doubt is over", Lost, func(c *Checker) {
			publish(c, 0, "a1", "a2")
			c.Doubt(true)
			c.Doubt(false)
			read(c, 0, page(0, 1, "a1"))
		}},
		{"topic gone", Lost, func(c *Checker) {
			publish(c, 0, "a1")
			c.Missing(c.Reading("t", 0, 100))
		}},
		{"acknowledged, then refused", Lost, func(c *Checker) { c.Refused(publish(c, 0, "a1")) }},
		{"offset used again", Changed, func(c *Checker) {
			publish(c, 0, "a1")
			send(c, "a2")
			read(c, 0, page(0, 1, "a2"))
		}},
		{"offset used again, seen by acknowledgements only", Changed, func(c *Checker) {
			first, second := send(c, "a1"), send(c, "b1")
			c.Done(first, offsets(0, 1), false)
			c.Done(second, offsets(0, 1), false)
		}},
		{"two records change places", Changed, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			read(c, 0, page(0, 2, "a2", "a1"))
		}},
		{"time changes", Changed, func(c *Checker) {
			publish(c, 0, "a1")
			read(c, 0, page(0, 1, "a1"))
			p := page(0, 1, "a1")
			p.Records[0].TimeMS++
			read(c, 0, p)
		}},
		{"later publish of one publisher stands before the earlier", Reordered, func(c *Checker) {
			hole := send(c, "b1")
			c.Unknown(hole)
			publish(c, 1, "a1")
			publish(c, 0, "a2")
		}},
		{"the same, seen by a read only", Reordered, func(c *Checker) {
			publish(c, 1, "a1")
			c.Unknown(send(c, "a2"))
			read(c, 0, page(0, 2, "a2", "a1"))
		}},
		{"retry stored again", Duplicated, func(c *Checker) {
			s := send(c, "a1")
			c.Unknown(s)
			read(c, 0, page(0, 1, "a1"))
			c.Done(s, offsets(1, 1), false)
		}},
		{"retry acknowledged at another offset", Duplicated, func(c *Checker) {
			c.Done(publish(c, 0, "a1"), offsets(1, 1), true)
		}},
		{"one record at two offsets of a page", Duplicated, func(c *Checker) {
			c.Unknown(send(c, "a1"))
			read(c, 0, page(0, 2, "a1", "a1"))
		}},
		{"record twice, the first one forgotten", Foreign, func(c *Checker) {
			for i := range 2000 {
				publish(c, uint64(i), fmt.Sprintf("a%d", i))
			}
			c.Retaining("t", 2000)
			c.Retained("t", 2000)
			p := page(2000, 2001, "a7")
			p.Start = 2000
			read(c, 2000, p)
		}},
		{"only the head of a batch is visible", Torn, func(c *Checker) {
			c.Unknown(send(c, "a1", "a2", "a3"))
			read(c, 0, page(0, 2, "a1", "a2"))
		}},
		{"only the tail of a batch is stored", Duplicated, func(c *Checker) {
			c.Unknown(send(c, "b1"))
			c.Unknown(send(c, "a1", "a2", "a3"))
			read(c, 0, page(0, 4, "b1", "a2", "a3", "b1"))
		}},
		{"another record inside a batch", Changed, func(c *Checker) {
			c.Unknown(send(c, "a1", "a2", "a3"))
			c.Unknown(send(c, "b1"))
			read(c, 0, page(0, 4, "a1", "b1", "a2", "a3"))
		}},
		{"batch answered with offsets that are not consecutive", Gap, func(c *Checker) {
			c.Done(send(c, "a1", "a2"), []uint64{0, 2}, false)
		}},
		{"batch answered with too few offsets", Answer, func(c *Checker) {
			c.Done(send(c, "a1", "a2"), []uint64{0}, false)
		}},
		{"record that nobody published", Foreign, func(c *Checker) { read(c, 0, page(0, 1, "z9")) }},
		{"damaged record", Foreign, func(c *Checker) {
			publish(c, 0, "a1")
			p := page(0, 1, "a1")
			p.Records[0].Value[1] ^= 1
			read(c, 0, p)
		}},
		{"damaged key", Foreign, func(c *Checker) {
			publish(c, 0, "a1")
			p := page(0, 1, "a1")
			p.Records[0].Key[0] ^= 1
			read(c, 0, p)
		}},
		{"refused, then seen", Refused, func(c *Checker) {
			c.Refused(send(c, "a1"))
			read(c, 0, page(0, 1, "a1"))
		}},
		{"seen, then refused", Refused, func(c *Checker) {
			s := send(c, "a1")
			read(c, 0, page(0, 1, "a1"))
			c.Refused(s)
		}},
		{"hole in a page", Gap, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			publish(c, 2, "a3")
			p := page(0, 3, "a1", "a3")
			p.Records[1].Offset = 2
			p.Next = 3
			read(c, 0, p)
		}},
		{"page begins late", Gap, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			read(c, 0, page(1, 2, "a2"))
		}},
		{"page skips records silently", Gap, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			p := page(0, 2, "a1")
			p.Next = 2
			read(c, 0, p)
		}},
		{"empty page below the end", Gap, func(c *Checker) {
			publish(c, 0, "a1")
			read(c, 0, Page{End: 1, Next: 1})
		}},
		{"next offset beyond the end", Gap, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			c.Page(c.Reading("t", 0, 100), Page{Records: page(0, 0, "a1", "a2").Records, Next: 2, End: 1})
		}},
		{"too many records", Answer, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			c.Page(c.Reading("t", 0, 1), page(0, 2, "a1", "a2"))
		}},
		{"first attempt called a duplicate", Answer, func(c *Checker) {
			c.Done(send(c, "a1"), offsets(0, 1), true)
		}},
		{"repeat not called a duplicate", Answer, func(c *Checker) {
			c.Done(publish(c, 0, "a1"), offsets(0, 1), false)
		}},
		{"group goes back after a restart", Group, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			commit(c, 1)
			c.Restarted()
			readGroup(c, page(0, 2, "a1", "a2"))
		}},
		{"group goes forward alone", Group, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			readGroup(c, page(1, 2, "a2"))
		}},
		{"group at the end goes back", Group, func(c *Checker) {
			publish(c, 0, "a1")
			commit(c, 1)
			readGroup(c, page(0, 1, "a1"))
		}},
		{"commit lost by a kill comes back later", Group, func(c *Checker) {
			publish(c, 0, "a1")
			publish(c, 1, "a2")
			c.Committing("g", "t", 1)
			c.Restarted()
			readGroup(c, page(0, 2, "a1", "a2"))
			readGroup(c, page(1, 2, "a2"))
		}},
		{"refused commit takes effect", Group, func(c *Checker) {
			publish(c, 0, "a1")
			c.Committing("g", "t", 1)
			c.NotCommitted("g", "t")
			readGroup(c, Page{Next: 1, End: 1})
		}},
		{"group jumps beyond the start", Group, func(c *Checker) {
			publish(c, 0, "a1", "a2", "a3")
			c.Retaining("t", 1)
			c.Retained("t", 1)
			p := page(2, 3, "a3")
			p.Start = 1
			readGroup(c, p)
		}},
		{"commit answered with another offset", Answer, func(c *Checker) {
			c.Committing("g", "t", 1)
			c.Committed("g", "t", 0)
		}},
		{"start goes back", Start, func(c *Checker) {
			publish(c, 0, "a1")
			c.Retaining("t", 1)
			c.Retained("t", 1)
			read(c, 0, page(0, 1, "a1"))
		}},
		{"start moves alone", Start, func(c *Checker) {
			publish(c, 0, "a1")
			c.Gone(c.Reading("t", 0, 100), 1)
		}},
		{"retain moves too far", Start, func(c *Checker) {
			c.Retaining("t", 1)
			c.Retained("t", 2)
		}},
		{"offset above the start called gone", Answer, func(c *Checker) {
			publish(c, 0, "a1")
			c.Gone(c.Reading("t", 0, 100), 0)
		}},
	}
	reached := map[Kind]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := New()
			test.run(c)
			r := c.Report()
			if r.Counts[test.want] == 0 {
				t.Errorf("no violation of kind %q: %v", test.want, r)
			}
			if r.Err() == nil {
				t.Error("Err() = nil")
			}
			reached[test.want] = true
		})
	}
	for k := range kindEnd {
		if !reached[k] {
			t.Errorf("no test reaches kind %q", k)
		}
	}
}

func TestForgetKeepsWhatIsAlive(t *testing.T) {
	c := New()
	var s []*Sent
	for i := range 3000 {
		s = append(s, publish(c, uint64(2*i), fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)))
	}
	c.Retaining("t", 2001) // the middle of a batch
	c.Retained("t", 2001)
	if got := len(c.topics["t"].sent); got != 2*(3000-1000) {
		t.Errorf("%d sums are kept, want %d", got, 2*(3000-1000))
	}
	c.Done(s[0], offsets(0, 2), true) // a repeat of a forgotten one is still known
	c.Done(s[1000], offsets(2000, 2), true)
	p := page(2001, 6000, "b1000", "a1001")
	p.Start = 2001
	read(c, 2001, p)
	if err := c.Report().Err(); err != nil {
		t.Error(err)
	}
}
