// Package clock passes time in: System is the real clock, Manual is moved by tests and simulations.
package clock

import "time"

// Clock tells the time and makes timers.
type Clock interface {
	// Now returns the wall-clock time, with a monotonic reading where the clock has one.
	Now() time.Time
	// Monotonic returns the time since some moment before. It never goes back and knows nothing of a wall clock that
	// is set; timers go by it.
	Monotonic() time.Duration
	// NewTimer returns a timer that fires once after d.
	NewTimer(d time.Duration) Timer
}

// Timer is a one-shot timer.
type Timer interface {
	// C receives the time once when the timer fires.
	C() <-chan time.Time
	// Stop and Reset behave like those of time.Timer (Go 1.23 and later: no stale value is received after).
	Stop() bool
	Reset(d time.Duration) bool
}
