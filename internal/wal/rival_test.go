package wal

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs/memfs"
)

// member is one of the logs of a cluster.
type member struct {
	mem    *memfs.FS
	log    *Log
	loaded Frames
	commit entry.Index // that it was told of
}

// cluster is a few logs that have one leader at a time. What the leader appends, and nobody else has, the next leader
// may not have: the others give it up for what the next leader has there.
type cluster struct {
	*book
	members []*member
	leader  int
	commit  entry.Index // durable on most
	sizes   []int64
	figures struct{ cut, cutRolls, otherRolls, crashes, empty int }
}

func (c *cluster) config(i int) Config {
	cfg := testConfig(c.members[i].mem)
	cfg.Inline = true
	cfg.SegmentBytes = c.sizes[i]
	return cfg
}

func newCluster(t testing.TB, seed uint64) *cluster {
	t.Helper()
	c := &cluster{book: newBook(seed), sizes: []int64{segmentBytesMin, segmentBytesMin, segmentBytesMin}}
	if seed%3 == 2 {
		c.sizes = []int64{segmentBytesMin, 2 * segmentBytesMin, segmentBytesMin + 1024}
	}
	for i := range 3 {
		c.members = append(c.members, &member{mem: newMem(t)})
		c.members[i].log, _, _ = mustOpen(t, c.config(i), 0)
	}
	return c
}

// propose appends a group to the leader's log.
func (c *cluster) propose(t testing.TB) error {
	m := c.members[c.leader]
	var f Frames
	n, size := 1+c.rng.IntN(6), 300
	if c.rng.IntN(8) == 0 {
		size = 5000 // may need a larger segment
	}
	for i := range entry.Index(n) {
		index := m.log.Last() + 1 + i
		buf := f.Begin(2, testTime)
		f.End(append(buf, payloadOf(index*7+entry.Index(c.term), c.rng.IntN(size))...))
	}
	next := m.log.Next()
	_, err := m.log.Append(&f, c.term, m.commit)
	if p := m.log.Place(&f); err == nil && p.Segment == next.Segment && p.Size == next.Size && p != next {
		t.Errorf("the next place is %+v, and the frames came to %+v", next, p)
	}
	return err
}

// follow sends what member i lacks of the leader's log, as a cluster does: frame by frame, each of which either begins
// a segment, and says so, or stands right behind the one before it.
func (c *cluster) follow(t testing.TB, i int, to entry.Index) error {
	from, m := c.members[c.leader].log, c.members[i]
	match := min(from.Last(), m.log.Last())
	for {
		a, err := from.PointAt(match)
		if err != nil {
			return err
		}
		b, err := m.log.PointAt(match)
		if err != nil {
			return err
		}
		if a.CRC == b.CRC {
			break
		}
		match--
	}
	if match < to && match < m.log.Last() {
		if match < m.commit {
			return fmt.Errorf("member %d would cut after %d, and %d is committed", i, match, m.commit)
		}
		before := len(m.log.Segments())
		c.figures.cut++
		if err := m.log.Truncate(match); err != nil {
			return err
		}
		c.figures.cutRolls += before - len(m.log.Segments())
	}
	cursor := from.NewCursor(match + 1)
	defer cursor.Close()
	var f Frames
	for m.log.Last() < to {
		place, err := cursor.Next(&f, to, 1)
		if err != nil {
			return err
		}
		want := place
		if place.Offset != headerSize {
			if m.log.pos == headerSize && m.log.Last() > 0 {
				c.figures.empty++
			}
			got, ok := m.log.Behind()
			if !ok || got != want {
				t.Errorf("behind entry %d is %+v, %t, and the leader's place is %+v", m.log.Last(), got, ok, want)
				return errors.New("no place")
			}
		} else if m.log.active.first == place.Segment && m.log.active.size != place.Size {
			c.figures.otherRolls++
		}
		if err := m.log.Load(&m.loaded, place, bytes.Clone(f.Raw())); err != nil {
			return err
		}
		if err := m.log.AppendReplica(&m.loaded, place); err != nil {
			return err
		}
	}
	return nil
}

// crash cuts the power of member i, after which it may begin a segment and not get to write to it.
func (c *cluster) crash(t testing.TB, i int) error {
	m := c.members[i]
	durable := m.log.Durable()
	m.log.Close()
	state := m.mem.Crash(c.rng.Uint64(), c.rng.IntN(50))
	m.mem = state.FS
	var r Recovered
	m.log, r, _ = mustOpen(t, c.config(i), 0)
	if len(r.Damage) > 0 || m.log.Last() < durable {
		return fmt.Errorf("member %d: %+v, last %d, was durable %d\n%v", i, r, m.log.Last(), durable, state)
	}
	m.commit = min(m.commit, m.log.Last())
	if c.rng.IntN(2) == 0 && m.log.pos > headerSize {
		return m.log.roll(headerSize, false, m.log.prev)
	}
	return nil
}

// elect makes a leader of a member that has all that is committed, and whose log is the newest of two.
func (c *cluster) elect() {
	var able []int
	for i, m := range c.members {
		votes := 0
		for _, o := range c.members {
			a, b := m.log.Tip(), o.log.Tip()
			if a.Term > b.Term || a.Term == b.Term && a.Index >= b.Index {
				votes++
			}
		}
		if votes >= 2 {
			able = append(able, i)
		}
	}
	c.leader = able[c.rng.IntN(len(able))]
	c.term += entry.Term(1 + c.rng.IntN(2))
}

// advance finds out what is committed: durable on two of three, and of the leader's term.
func (c *cluster) advance(reached []entry.Index) error {
	reached = slices.Sorted(slices.Values(reached))
	from := c.members[c.leader].log
	at := reached[len(reached)-2]
	if at <= c.commit {
		return nil
	}
	if p, err := from.PointAt(at); err != nil || p.Term != c.term {
		return err
	}
	c.commit = at
	return nil
}

// TestRivals lets random leaders append, and the others follow, with power cuts on any side: what a leader did not get
// to most is cut elsewhere, over rolls that the next leader does not make, or makes elsewhere. In the end all logs are
// the same, byte for byte.
func TestRivals(t *testing.T) {
	var sum struct{ cut, cutRolls, otherRolls, crashes, empty int }
	seeds := uint64(80)
	if invariant.Enabled {
		seeds = 20
	}
	for seed := range seeds {
		c := newCluster(t, seed)
		for range 40 {
			reached := []entry.Index{0, 0, 0}
			for range c.rng.IntN(4) {
				if err := c.propose(t); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			for i, m := range c.members {
				last := c.members[c.leader].log.Last()
				if i == c.leader {
					if c.rng.IntN(3) > 0 {
						if err := m.log.Sync(); err != nil {
							t.Fatal(err)
						}
					}
					reached[i] = m.log.Durable()
					continue
				}
				if c.rng.IntN(3) == 0 {
					continue
				}
				to := last
				if c.rng.IntN(3) == 0 {
					to -= min(last, entry.Index(c.rng.IntN(10)))
				}
				if err := c.follow(t, i, to); err != nil {
					t.Fatalf("seed %d: follow: %v", seed, err)
				}
				if c.rng.IntN(3) > 0 && m.log.Last() >= to {
					if err := m.log.Sync(); err != nil {
						t.Fatal(err)
					}
					if a, err := c.members[c.leader].log.PointAt(to); err == nil {
						if b, err := m.log.PointAt(to); err == nil && a.CRC == b.CRC {
							reached[i] = to
						}
					}
				}
			}
			if err := c.advance(reached); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for i, m := range c.members {
				if i == c.leader || reached[i] > 0 {
					m.commit = max(m.commit, min(c.commit, max(reached[i], m.commit)))
				}
			}
			c.members[c.leader].commit = max(c.members[c.leader].commit, min(c.commit, c.members[c.leader].log.Last()))
			switch c.rng.IntN(5) {
			case 0:
				c.elect()
			case 1:
				c.figures.crashes++
				if err := c.crash(t, c.rng.IntN(3)); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				c.elect()
			}
		}
		if err := errors.Join(c.propose(t), c.members[c.leader].log.Sync()); err != nil {
			t.Fatal(err)
		}
		lead := c.members[c.leader]
		for i, m := range c.members {
			if i == c.leader {
				continue
			}
			if err := errors.Join(c.follow(t, i, lead.log.Last()), m.log.Sync(), cleanBehind(m.log)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got, err := Compare(lead.mem, "log", m.mem, "log")
			if err != nil || !got.Equal() || got.Last != lead.log.Last() {
				t.Errorf("seed %d: %+v, %v", seed, got, err)
			}
		}
		f := c.figures
		sum.cut, sum.cutRolls, sum.otherRolls = sum.cut+f.cut, sum.cutRolls+f.cutRolls, sum.otherRolls+f.otherRolls
		sum.crashes, sum.empty = sum.crashes+f.crashes, sum.empty+f.empty
		for _, m := range c.members {
			m.log.Close()
		}
	}
	t.Logf("%+v", sum)
	if !invariant.Enabled && (sum.cut < 120 || sum.cutRolls < 40 || sum.otherRolls < 5 || sum.crashes < 200 || sum.empty < 10) {
		t.Errorf("too simple: %+v", sum)
	}
}
