package clock

import (
	"context"
	"slices"
	"sync"
	"time"

	"example.com/mq/internal/invariant"
)

// Manual is a clock that stands still until Advance moves it. It starts no goroutine.
type Manual struct {
	mu      sync.Mutex
	now     time.Duration  // since the clock was made; what timers go by
	wall    time.Time      // what Now returns at now 0
	pending []*manualTimer // Invariant: in the order in which they fire: by due, then by when they were set
	waiters []waiter
}

var _ Clock = (*Manual)(nil)

// waiter is a WaitTimers that waits.
type waiter struct {
	timers int
	ready  chan struct{} // closed once so many timers are pending
}

// NewManual returns a clock that shows the time start.
func NewManual(start time.Time) *Manual {
	return &Manual{wall: start.Round(0)} // without a monotonic reading, by which Sub would go
}

// Now implements Clock. The time it returns has no monotonic reading.
func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wall.Add(m.now)
}

// Monotonic implements Clock: the sum of what Advance has moved it by.
func (m *Manual) Monotonic() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Advance moves the clock on by d. The timers that become due fire before it returns, in order of time, and
// those of the same time in the order in which they were set; each sends the time at which it was due.
func (m *Manual) Advance(d time.Duration) {
	invariant.Check(d >= 0, "clock advanced by a negative duration")
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.now + d
	for len(m.pending) > 0 && m.pending[0].due <= end {
		t := m.pending[0]
		m.pending = slices.Delete(m.pending, 0, 1)
		t.fire()
	}
	m.now = end
}

// Next returns the time until the first pending timer fires, and false when none is pending.
func (m *Manual) Next() (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return 0, false
	}
	return m.pending[0].due - m.now, true
}

// Step changes what Now returns, forward or back, as somebody who sets the machine's clock does. Timers do not
// notice.
func (m *Manual) Step(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall = m.wall.Add(d)
}

// WaitTimers waits until at least n timers are pending: made or reset, and neither fired nor stopped. Before
// Advance it makes sure that the code under test waits for what Advance makes happen.
func (m *Manual) WaitTimers(ctx context.Context, n int) error {
	m.mu.Lock()
	w := waiter{timers: n, ready: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.wake()
	m.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wake ends the waiting of those whose timers are there. The caller holds mu.
func (m *Manual) wake() {
	m.waiters = slices.DeleteFunc(m.waiters, func(w waiter) bool {
		if len(m.pending) < w.timers {
			return false
		}
		close(w.ready)
		return true
	})
}

// NewTimer implements Clock. A timer with d <= 0 fires at once.
func (m *Manual) NewTimer(d time.Duration) Timer {
	t := &manualTimer{clock: m, c: make(chan time.Time, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	t.set(d)
	return t
}

type manualTimer struct {
	clock *Manual
	due   time.Duration // guarded by clock.mu
	c     chan time.Time
}

// C implements Timer.
func (t *manualTimer) C() <-chan time.Time { return t.c }

// Stop implements Timer.
func (t *manualTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.stop()
}

// Reset implements Timer.
func (t *manualTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	active := t.stop()
	t.set(d)
	return active
}

// stop takes the timer out of the clock, and what it sent out of the channel: like time.Timer, it then counts
// as not fired. The caller holds clock.mu, as does that of set and fire.
func (t *manualTimer) stop() bool {
	select {
	case <-t.c:
		return true
	default:
	}
	i := slices.Index(t.clock.pending, t)
	if i < 0 {
		return false
	}
	t.clock.pending = slices.Delete(t.clock.pending, i, i+1)
	return true
}

func (t *manualTimer) set(d time.Duration) {
	m := t.clock
	t.due = m.now + max(d, 0)
	if d <= 0 {
		t.fire()
		return
	}
	i, _ := slices.BinarySearchFunc(m.pending, t.due, func(p *manualTimer, due time.Duration) int {
		if p.due <= due {
			return -1
		}
		return 1
	})
	m.pending = slices.Insert(m.pending, i, t)
	m.wake()
}

func (t *manualTimer) fire() { t.c <- t.clock.wall.Add(t.due) }
