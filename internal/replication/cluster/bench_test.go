package cluster

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// waiter is an applier that lets the benchmark wait until an index is committed.
type waiter struct {
	nothing
	mu   sync.Mutex
	cond *sync.Cond
	last entry.Index
	lead bool
}

func (w *waiter) Committed(last entry.Index) { w.set(last, true) }
func (w *waiter) Lead()                      { w.set(0, true) }

func (w *waiter) set(last entry.Index, lead bool) {
	w.mu.Lock()
	w.last, w.lead = max(w.last, last), lead
	w.mu.Unlock()
	w.cond.Broadcast()
}

func (w *waiter) await(last entry.Index) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.lead || w.last < last {
		w.cond.Wait()
	}
}

// BenchmarkPropose proposes to three nodes in memory, and waits until what it has proposed is committed.
func BenchmarkPropose(b *testing.B) {
	for _, entries := range []int{1, 64} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			fs := memfs.New()
			log, _, err := wal.Open(wal.Config{FS: fs, LogID: testLog, Create: true}, 0, nil)
			if err != nil {
				b.Fatal(err)
			}
			w := &waiter{}
			w.cond = sync.NewCond(&w.mu)
			r := benchRole(b, log, w)
			w.await(0)
			f := new(wal.Frames)
			payload := make([]byte, 150)
			b.ReportAllocs()
			for b.Loop() {
				f.Reset()
				for range entries {
					f.End(append(f.Begin(fact.KindMarker, 1), payload...))
				}
				if err := propose(r, f); err != nil {
					b.Fatal(err)
				}
				w.await(f.Last())
			}
		})
	}
}

func benchRole(b *testing.B, log *wal.Log, applier replication.Applier) *Role {
	const n = 3
	roles := make([]*Role, n)
	var wg sync.WaitGroup
	links := make([]chan []byte, n*n)
	for i := range links {
		links[i] = make(chan []byte, 1000)
	}
	for i := range n {
		one, a := log, applier
		timeout := 100 * time.Millisecond
		if i > 0 {
			var err error
			one, _, err = wal.Open(wal.Config{FS: memfs.New(), LogID: testLog, Create: true}, 0, nil)
			if err != nil {
				b.Fatal(err)
			}
			a, timeout = nothing{}, time.Minute
		}
		r, err := New(Config{
			Self: i, Nodes: n, LogID: testLog, Log: one, Save: func(Hard) error { return nil }, Applier: a, Marker: marker,
			Clock: clock.System{}, Random: rand.New(rand.NewPCG(3, uint64(i))), ElectionTimeout: timeout,
			Send: func(to int, p []byte) { links[i*n+to] <- p },
		})
		if err != nil {
			b.Fatal(err)
		}
		roles[i] = r
	}
	stop := make(chan struct{})
	for from := range n {
		for to := range n {
			wg.Go(func() {
				for {
					select {
					case p := <-links[from*n+to]:
						_ = roles[to].Receive(from, p)
					case <-stop:
						return
					}
				}
			})
		}
	}
	for _, r := range roles {
		if err := r.Start(); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		for _, r := range roles {
			r.Close()
		}
		close(stop)
		wg.Wait()
	})
	return roles[0]
}
