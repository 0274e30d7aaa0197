package clock

import "time"

// System is the clock of the machine.
type System struct{}

var _ Clock = System{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

var began = time.Now()

// Monotonic implements Clock.
func (System) Monotonic() time.Duration { return time.Since(began) }

// NewTimer implements Clock.
func (System) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }
