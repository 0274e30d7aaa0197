package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

func TestElectsAndReplicates(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c := newCluster(t, nodes)
				c.start()
				l := c.leader()
				var last entry.Index
				for i := range 50 {
					last = l.propose(fmt.Sprint("entry-", i), 1+i%7)
				}
				c.awaitApplied(last)
				for _, n := range c.nodes {
					if n == l {
						continue
					}
					if err := propose(n.role, payloads("no", 1)); !errors.Is(err, replication.ErrUnavailable) {
						t.Errorf("node %d: got %v", n.n, err)
					}
				}
				if nodes > 1 && len(l.log.Segments()) < 1 {
					t.Error("no segments")
				}
				c.settle()
			})
		})
	}
}

// A leader that dies is replaced, what was acknowledged stays, and when it comes back its log is cut where it must be.
func TestReplacesALeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.segment = 8 << 10
		c.start()
		for round := range 6 {
			l := c.leader()
			last := entry.Index(0)
			for i := range 40 {
				last = l.propose(fmt.Sprint("round-", round, "-", i), 5)
			}
			c.awaitApplied(last, l)
			c.isolate(l.n, true)
			for i := range 30 { // these reach nobody
				if err := propose(l.role, payloads(fmt.Sprint("lost-", round, "-", i), 5)); err != nil && !errors.Is(err, replication.ErrUnavailable) {
					t.Fatal(err)
				}
			}
			c.await("another leader", func() bool {
				for _, n := range c.nodes {
					if n != l && n.role.Info().Deciding {
						return true
					}
				}
				return false
			})
			m := c.leader()
			if m == l {
				t.Fatal("the old leader leads on")
			}
			last = m.propose(fmt.Sprint("after-", round), 3)
			c.await("the old leader stepped down", func() bool { return !l.role.Info().Deciding })
			c.isolate(l.n, false)
			c.awaitApplied(last)
		}
		c.settle()
	})
}

func TestLosesRepeatsAndReorders(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.segment = 16 << 10
		c.drop, c.repeat, c.jitter = 0.05, 0.1, 10*time.Millisecond
		c.start()
		done := 0
		for i := 0; done < 150; i++ {
			l := c.leader()
			if err := propose(l.role, payloads(fmt.Sprint("entry-", i), 1+i%5)); err == nil {
				done++
			} else if !errors.Is(err, replication.ErrUnavailable) {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Millisecond)
		}
		c.mu.Lock()
		c.drop, c.repeat, c.jitter = 0, 0, 0
		c.mu.Unlock()
		c.settle()
	})
}

// A proposal of many megabytes is on its way to the others all at once: none of it waits for an answer.
func TestSendsALargeProposalAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.segment = 16 << 20
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 1))
		gate := make(chan struct{})
		for _, n := range c.others(l) { // nobody answers
			n.mu.Lock()
			n.gate = gate
			n.mu.Unlock()
		}
		f := new(wal.Frames)
		for range 20 {
			f.End(append(f.Begin(fact.KindMarker, 1), make([]byte, 300<<10)...))
		}
		if err := propose(l.role, f); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Millisecond) // before the next heartbeat is answered
		for _, n := range c.others(l) {
			n.role.mu.Lock()
			if got := n.role.window.last(); got != uint64(f.Last()) {
				t.Errorf("node %d has got entry %d of %d", n.n, got, f.Last())
			}
			n.role.mu.Unlock()
			n.mu.Lock()
			n.gate = nil
			n.mu.Unlock()
		}
		close(gate)
		c.settle()
	})
}
