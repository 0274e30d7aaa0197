package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/replicationtest"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// nothing is an applier for nodes of which nothing is wanted.
type nothing struct{ replication.Applier }

func (nothing) Apply(*wal.Frames) error { return nil }
func (nothing) Lead()                   {}
func (nothing) Suspend(string)          {}
func (nothing) Follow(string)           {}
func (nothing) Failed(error)            {}

// trio is a role under test, node 0, which leads because the others have no patience to, and others as they are.
type trio struct {
	roles []*Role
	queue []chan []byte
	stop  chan struct{}
	wg    sync.WaitGroup
}

// newTrio makes a role on log, one of n nodes that are connected in memory, in real time.
func newTrio(t *testing.T, n int, log *wal.Log, applier replication.Applier) *trio {
	c := &trio{roles: make([]*Role, n), stop: make(chan struct{})}
	make1 := func(self int, log *wal.Log, applier replication.Applier) *Role {
		timeout := 100 * time.Millisecond
		if self > 0 {
			timeout = time.Minute // they follow
		}
		r, err := New(Config{
			Self: self, Nodes: n, LogID: replicationtest.LogID, Log: log, Hard: Hard{Vote: NoNode},
			Save: func(Hard) error { return nil }, Applier: applier, Marker: marker, Clock: clock.System{},
			Random: rand.New(rand.NewPCG(3, uint64(self))), ElectionTimeout: timeout,
			Send: func(to int, packet []byte) { c.carry(self, to, packet) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range n * n {
		c.queue = append(c.queue, make(chan []byte, 1000))
	}
	// The log of the others is as long as this one's, so that what is in it is committed.
	c.roles[0] = make1(0, log, applier)
	for i := 1; i < n; i++ {
		other, _, err := wal.Open(wal.Config{FS: memfs.New(), LogID: replicationtest.LogID, Create: true, SegmentBytes: 64 << 10}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.roles[i] = make1(i, other, nothing{})
		if err := c.roles[i].Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.roles[i].Close(); err != nil {
				t.Error(err)
			}
			other.Close()
		})
	}
	for from := range n {
		for to := range n {
			c.wg.Go(func() {
				for {
					select {
					case <-c.stop:
						return
					case p := <-c.queue[from*n+to]:
						if err := c.roles[to].Receive(from, p); err != nil && c.roles[to].Status().Err == nil {
							continue // it was closed
						}
					}
				}
			})
		}
	}
	t.Cleanup(func() {
		close(c.stop)
		c.wg.Wait()
	})
	return c
}

func (c *trio) carry(from, to int, packet []byte) {
	select {
	case c.queue[from*len(c.roles)+to] <- packet:
	default:
	}
}

func TestRole(t *testing.T) {
	for name, n := range map[string]int{"1": 1, "3": 3} {
		t.Run(name, func(t *testing.T) {
			replicationtest.Run(t, func(t *testing.T, log *wal.Log, applier replication.Applier) replication.Role {
				return newTrio(t, n, log, applier).roles[0]
			})
		})
	}
}

func TestRoleLosesItsLead(t *testing.T) {
	replicationtest.RunLosable(t, func(t *testing.T, log *wal.Log, applier replication.Applier) replicationtest.Losable {
		c := newTrio(t, 3, log, applier)
		hand := func(from, to int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := c.roles[from].Transfer(ctx, to); err != nil {
				t.Fatal(err)
			}
		}
		return replicationtest.Losable{
			Role:   c.roles[0],
			Lose:   func(t *testing.T) { hand(0, 1) },
			Regain: func(t *testing.T) { hand(1, 0) },
		}
	})
}
