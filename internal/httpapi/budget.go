package httpapi

import (
	"sync"
	"sync/atomic"
	"time"
)

// budget shares out memory, first come, first served. While nobody waits it takes no lock.
//
// To be free of deadlock, whoever waits for a share holds none of the same budget.
type budget struct {
	left    atomic.Int64
	waiting atomic.Int64 // Invariant: len(queue), or one more for a moment

	mu    sync.Mutex
	queue []*share
}

// share is one that waits. done is closed when it has been given its bytes.
type share struct {
	n    int64
	done chan struct{}
}

func newBudget(n int64) *budget {
	b := &budget{}
	b.left.Store(n)
	return b
}

// tryTake takes n bytes if they are there and nobody waits, and reports whether it did.
func (b *budget) tryTake(n int64) bool { return b.waiting.Load() == 0 && b.grab(n) }

// spare is how much tryTake could get now.
func (b *budget) spare() int64 {
	if b.waiting.Load() > 0 {
		return 0
	}
	return b.left.Load()
}

func (b *budget) grab(n int64) bool {
	for {
		left := b.left.Load()
		if left < n {
			return false
		}
		if b.left.CompareAndSwap(left, left-n) {
			return true
		}
	}
}

// take waits for n bytes, at most for the given time, and reports whether it got them.
func (b *budget) take(n int64, wait time.Duration) bool {
	if b.tryTake(n) {
		return true
	}
	w := &share{n: n, done: make(chan struct{})}
	b.mu.Lock()
	// give adds to left and then looks at waiting; here waiting is set before left is read. So one of the
	// two sees the other, and no share that was given back goes unnoticed.
	b.waiting.Add(1)
	b.queue = append(b.queue, w)
	b.serveQueue()
	b.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.queue {
		if b.queue[i] == w {
			b.queue = append(b.queue[:i], b.queue[i+1:]...)
			b.waiting.Add(-1)
			b.serveQueue() // the one behind may need less
			return false
		}
	}
	return true // it came at the last moment
}

// give takes n bytes back.
func (b *budget) give(n int64) {
	b.left.Add(n)
	if b.waiting.Load() > 0 {
		b.mu.Lock()
		b.serveQueue()
		b.mu.Unlock()
	}
}

// serveQueue gives to those that wait, in order. b.mu is held.
func (b *budget) serveQueue() {
	for len(b.queue) > 0 && b.grab(b.queue[0].n) {
		close(b.queue[0].done)
		b.queue = b.queue[1:]
		b.waiting.Add(-1)
	}
}
