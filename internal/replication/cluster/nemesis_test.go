package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
)

// Everything goes wrong at once, from a seed: cuts, lost, repeated and late packets, power cuts, transfers. Afterwards
// all logs are the same, byte for byte, and hold what was reported as committed.
func TestNemesis(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() || invariant.Enabled { // with the race detector it takes long
		seeds = 6
	}
	entries, terms := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e, n := nemesis(t, seed)
				entries, terms = entries+e, terms+n
			})
		})
	}
	if n := int(seeds); entries < 10*n || terms < 3*n {
		t.Errorf("only %d entries were committed, in %d terms", entries, terms)
	}
}

func nemesis(t *testing.T, seed uint64) (committedEntries, terms int) {
	random := rand.New(rand.NewPCG(seed, 5))
	c := newCluster(t, 3+2*int(seed%2))
	c.segment = 8 << 10
	c.random = rand.New(rand.NewPCG(seed, 6))
	c.start()
	committed := map[entry.Index]string{} // as a leader's applier was told
	leaders := map[entry.Term]int{}
	count, down := 0, 0
	for step := range 120 {
		c.mu.Lock()
		c.drop, c.repeat = 0.1*random.Float64(), 0.1*random.Float64()
		c.jitter = time.Duration(random.IntN(20)) * time.Millisecond
		c.mu.Unlock()
		n := c.nodes[random.IntN(len(c.nodes))]
		switch random.IntN(12) {
		case 0:
			c.isolate(n.n, true)
		case 1:
			c.isolate(n.n, false)
		case 2:
			c.mu.Lock()
			clear(c.cut)
			c.mu.Unlock()
		case 3:
			m := c.nodes[random.IntN(len(c.nodes))]
			c.mu.Lock()
			c.cut[[2]int{n.n, m.n}] = random.IntN(2) == 0 // one way
			c.mu.Unlock()
		case 4:
			if n.running() != nil && down < len(c.nodes)/2 {
				n.crash()
				down++
			}
		case 5, 6:
			if n.running() == nil {
				n.start()
				down--
			}
		case 7:
			if r := n.running(); r != nil {
				_ = r.Transfer(within(t, 200*time.Millisecond), NoNode)
			}
		case 8: // all at once
			if step%40 == 17 {
				for _, n := range c.nodes {
					if n.running() != nil {
						n.crash()
					}
				}
				for _, n := range c.nodes {
					n.start()
				}
				down = 0
			}
		}
		for range random.IntN(8) {
			for _, n := range c.nodes {
				r := n.running()
				if r == nil {
					continue
				}
				info := r.Info()
				if info.Role == RoleLeader {
					if other, ok := leaders[info.Term]; ok && other != n.n {
						t.Errorf("nodes %d and %d lead in term %d", n.n, other, info.Term)
					}
					leaders[info.Term] = n.n
				}
				count++
				f := payloads(fmt.Sprint("entry-", count), 1+random.IntN(4))
				if err := propose(r, f); err != nil {
					continue
				}
				first, last := f.First(), f.Last()
				time.Sleep(time.Duration(random.IntN(6)) * time.Millisecond)
				n.applier.look(func() {
					if n.applier.leads && n.applier.at >= last {
						for i := first; i <= last; i++ {
							want := string(f.Payload(int(i - first)))
							if old, ok := committed[i]; ok && old != want {
								t.Errorf("entry %d was committed as %q and as %q", i, old, want)
							}
							committed[i] = want
						}
					}
				})
			}
		}
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		for _, n := range c.nodes {
			n.mu.Lock()
			if n.fatal != nil {
				t.Fatalf("step %d, node %d: %v", step, n.n, n.fatal)
			}
			n.mu.Unlock()
		}
	}
	c.mu.Lock()
	clear(c.cut)
	c.drop, c.repeat, c.jitter = 0, 0, 0
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.crash()
		n.start()
	}
	l := c.leader()
	c.awaitApplied(l.log.Last())
	for _, n := range c.nodes {
		for i, want := range committed {
			if got := n.applier.payloads[i]; got != want {
				t.Errorf("node %d: entry %d is %q, and was committed as %q", n.n, i, got, want)
			}
		}
	}
	c.settle()
	return len(committed), len(leaders)
}
