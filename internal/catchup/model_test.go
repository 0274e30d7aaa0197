package catchup

import (
	"errors"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// cluster is three nodes that elect leaders as raft would, and catch up from each other and in no other way.
type cluster struct {
	*testing.T
	hosts  []*host
	lines  []*line
	leader int
	term   entry.Term
	commit wal.Point // the last entry that a majority has had from the leader of its term, and that is known to be so
	cuts   int
}

// newer reports whether a node with the log a may be elected by one with the log b.
func newer(a, b wal.Point) bool { return a.Term > b.Term || a.Term == b.Term && a.Index >= b.Index }

// elect makes a node the leader that a majority may vote for.
func (c *cluster) elect() {
	for _, n := range c.hosts[0].rng.Perm(len(c.hosts)) {
		votes := 0
		for _, h := range c.hosts {
			if newer(c.hosts[n].log.Tip(), h.log.Tip()) {
				votes++
			}
		}
		if votes > len(c.hosts)/2 {
			c.hosts[c.leader].lead(c.term, false)
			c.term++
			c.leader = n
			c.hosts[n].lead(c.term, true)
			return
		}
	}
	c.Fatal("nobody can be elected")
}

// advance commits what a majority has.
func (c *cluster) advance() {
	lead := c.hosts[c.leader]
	for i := lead.log.Last(); i > c.commit.Index; i-- {
		p := c.point(lead, i)
		if p.Term != c.term {
			return
		}
		have := 0
		for _, h := range c.hosts {
			if h.log.Durable() >= i && c.point(h, i) == p {
				have++
			}
		}
		if have > len(c.hosts)/2 {
			c.commit = p
			lead.commit(i)
			return
		}
	}
}

func (c *cluster) point(h *host, i entry.Index) wal.Point {
	p, err := h.log.PointAt(i)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

// catchUp brings one node up to the leader, or not quite.
func (c *cluster) catchUp(n int, cut bool) {
	h, l := c.hosts[n], c.lines[c.leader]
	l.limit = uint32(1000 + h.rng.IntN(8000))
	l.calls = 0
	l.after = func(call int, _, b []byte) ([]byte, error) {
		if cut && h.rng.IntN(4) == 0 {
			return nil, errCut
		}
		return b, nil
	}
	had := h.log.Last()
	known := h.standing.Commit
	res, err := Extend(c.Context(), l.client(), h.log, ExtendOptions{Demand: Demand{Leader: true, MinTerm: c.term}, Commit: known, Inline: h.rng.IntN(2) == 0})
	if err != nil && !errors.Is(err, errCut) {
		c.Fatalf("node %d catches up with node %d: %v", n, c.leader, err)
	}
	if res.Cut > 0 {
		c.cuts++
	}
	if err == nil {
		lead := c.hosts[c.leader].log.Tip()
		if tip := h.log.Tip(); tip != lead && (tip.Index < lead.Index || c.point(h, lead.Index) != lead) {
			c.Fatalf("node %d ended with %+v, node %d with %+v; before with %d", n, tip, c.leader, lead, had)
		}
		h.lead(c.term, false)
		h.commit(min(c.hosts[c.leader].standing.Commit, lead.Index))
	}
}

// TestModel elects, appends, and catches up at random. What was committed stays on every node that had it, whatever
// happens, and in the end all logs are the same.
func TestModel(t *testing.T) {
	cuts := 0
	for seed := range uint64(25) {
		c := &cluster{T: t, term: 1}
		for n := range 3 {
			h := newHost(t, seed*3+uint64(n))
			h.lead(1, n == 0)
			c.hosts, c.lines = append(c.hosts, h), append(c.lines, serve(t, h))
		}
		rng := c.hosts[1].rng
		for range 40 {
			switch rng.IntN(6) {
			case 0:
				c.elect()
			case 1, 2:
				lead := c.hosts[c.leader]
				lead.append(1 + rng.IntN(8))
				lead.sync()
			default:
				if n := rng.IntN(3); n != c.leader {
					c.catchUp(n, rng.IntN(3) == 0)
				}
			}
			c.advance()
			if i := c.commit.Index; i > 0 {
				have := 0
				for _, h := range c.hosts {
					if h.log.Last() >= i && c.point(h, i) == c.commit {
						have++
					}
				}
				if have < 2 {
					t.Fatalf("seed %d: %d nodes have entry %d, which is committed", seed, have, i)
				}
			}
		}
		c.elect()
		lead := c.hosts[c.leader]
		lead.append(60)
		lead.sync()
		for n, h := range c.hosts {
			if n != c.leader {
				c.catchUp(n, false)
				mustEqual(t, lead.mem, h.mem, h.log)
			}
			again := openLog(t, logConfig(h.mem.(*memfs.FS).Clone()))
			if again.Tip() != lead.log.Tip() {
				t.Errorf("seed %d: node %d opens with %+v, want %+v", seed, n, again.Tip(), lead.log.Tip())
			}
		}
		cuts += c.cuts
	}
	if cuts < 20 {
		t.Errorf("only %d logs were cut", cuts)
	}
}
