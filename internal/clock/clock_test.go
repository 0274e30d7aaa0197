package clock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fired returns what the timer sent, as time since start.
func fired(timer clock.Timer) string {
	select {
	case at := <-timer.C():
		return at.Sub(start).String()
	default:
		return "not fired"
	}
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestManualFiresWhenDue(t *testing.T) {
	m := clock.NewManual(start)
	late, soon := m.NewTimer(3*time.Second), m.NewTimer(time.Second)
	m.Advance(time.Second - 1)
	want(t, "soon, 1 ns before", fired(soon), "not fired")
	m.Advance(1)
	want(t, "soon", fired(soon), "1s")
	want(t, "soon, again", fired(soon), "not fired")
	want(t, "late", fired(late), "not fired")
	m.Advance(time.Minute)
	want(t, "late", fired(late), "3s") // when it was due, not when Advance ended
	want(t, "now", m.Now().Sub(start), time.Minute+time.Second)
	want(t, "timer with duration 0", fired(m.NewTimer(0)), "1m1s")
	want(t, "timer with negative duration", fired(m.NewTimer(-time.Second)), "1m1s")
}

func TestManualStopAndReset(t *testing.T) {
	m := clock.NewManual(start)
	timer := m.NewTimer(time.Second)
	want(t, "Stop of a pending timer", timer.Stop(), true)
	want(t, "Stop of a stopped timer", timer.Stop(), false)
	m.Advance(time.Hour)
	want(t, "stopped timer", fired(timer), "not fired")

	want(t, "Reset of a stopped timer", timer.Reset(time.Second), false)
	want(t, "Reset of a pending timer", timer.Reset(2*time.Second), true)
	m.Advance(time.Second)
	want(t, "reset timer", fired(timer), "not fired")
	m.Advance(time.Second)
	want(t, "reset timer", fired(timer), "1h0m2s")
	want(t, "Reset of a timer that fired", timer.Reset(time.Second), false)

	// A value that was sent but not received is taken back.
	m.Advance(time.Second)
	want(t, "Stop of a timer that fired unseen", timer.Stop(), true)
	want(t, "timer stopped after it fired", fired(timer), "not fired")
	timer.Reset(time.Second)
	m.Advance(time.Second)
	want(t, "Reset of a timer that fired unseen", timer.Reset(time.Minute), true)
	want(t, "timer reset after it fired", fired(timer), "not fired")
}

// The rules of Stop and Reset are those of time.Timer: the same script gives the same answers.
func TestManualIsLikeSystem(t *testing.T) {
	script := func(c clock.Clock, pass func(time.Duration)) (log []string) {
		note := func(what string, v any) { log = append(log, fmt.Sprint(what, " ", v)) }
		received := func(t clock.Timer) bool {
			select {
			case <-t.C():
				return true
			default:
				return false
			}
		}
		t := c.NewTimer(time.Second)
		note("stop pending", t.Stop())
		note("stop stopped", t.Stop())
		note("reset stopped", t.Reset(time.Second))
		note("reset pending", t.Reset(2*time.Second))
		pass(time.Second)
		note("received early", received(t))
		pass(time.Second)
		note("received", received(t))
		note("stop received", t.Stop())
		note("reset received", t.Reset(time.Second))
		pass(2 * time.Second)
		note("stop fired", t.Stop())
		note("received after stop", received(t))
		t.Reset(time.Second)
		pass(2 * time.Second)
		note("reset fired", t.Reset(time.Second))
		note("received after reset", received(t))
		t = c.NewTimer(0)
		pass(0)
		note("received at once", received(t))
		return log
	}
	m := clock.NewManual(start)
	got := script(m, m.Advance)
	var system []string
	synctest.Test(t, func(*testing.T) {
		system = script(clock.System{}, func(d time.Duration) {
			time.Sleep(d + time.Nanosecond) // of the bubble's virtual time; past the timers of the same moment
			synctest.Wait()
		})
	})
	want(t, "manual", fmt.Sprint(got), fmt.Sprint(system))
}

func TestManualManyTimers(t *testing.T) {
	m := clock.NewManual(start)
	var timers []clock.Timer
	for _, seconds := range []int{2, 1, 2, 3, 1} {
		timers = append(timers, m.NewTimer(time.Duration(seconds)*time.Second))
	}
	for range 3 {
		m.Advance(time.Second)
	}
	for i, timer := range timers {
		want(t, fmt.Sprint("timer ", i), fired(timer), []string{"2s", "1s", "2s", "3s", "1s"}[i])
	}
}

func TestManualNext(t *testing.T) {
	m := clock.NewManual(start)
	next := func() string { d, ok := m.Next(); return fmt.Sprint(d, ok) }
	want(t, "without timers", next(), "0s false")
	m.NewTimer(3 * time.Second)
	soon := m.NewTimer(2 * time.Second)
	m.Advance(time.Second)
	want(t, "with two", next(), "1s true")
	soon.Stop()
	want(t, "with one stopped", next(), "2s true")
	m.Advance(2 * time.Second)
	want(t, "when all have fired", next(), "0s false")
}

func TestManualStep(t *testing.T) {
	m := clock.NewManual(start)
	timer := m.NewTimer(time.Second)
	m.Step(time.Hour)
	want(t, "now", m.Now().Sub(start), time.Hour)
	want(t, "timer after the step", fired(timer), "not fired")
	m.Step(-2 * time.Hour)
	m.Advance(time.Second)
	want(t, "timer", fired(timer), (time.Second - time.Hour).String())
}

func TestManualWaitTimers(t *testing.T) {
	m := clock.NewManual(start)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := m.WaitTimers(ctx, 0); err != nil {
		t.Fatal(err)
	}
	woken := make(chan string)
	for i := range 2 {
		go func() { woken <- (<-m.NewTimer(time.Duration(i+1) * time.Second).C()).Sub(start).String() }()
	}
	if err := m.WaitTimers(ctx, 2); err != nil {
		t.Fatal(err)
	}
	m.Advance(time.Second)
	want(t, "first", <-woken, "1s")
	m.Advance(time.Second)
	want(t, "second", <-woken, "2s")

	canceled, cancelNow := context.WithCancel(ctx)
	cancelNow()
	m.NewTimer(time.Second)
	if err := m.WaitTimers(canceled, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitTimers of a timer that nobody makes: got %v", err)
	}
}

func TestSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock.Clock = clock.System{}
		before := c.Now()
		<-c.NewTimer(time.Minute).C()
		want(t, "passed", c.Now().Sub(before), time.Minute)
	})
}

func TestMonotonic(t *testing.T) {
	m := clock.NewManual(time.Unix(1000, 0))
	before := m.Monotonic()
	m.Advance(time.Second)
	m.Step(-time.Hour)
	want(t, "passed", m.Monotonic()-before, time.Second)
	synctest.Test(t, func(t *testing.T) {
		var c clock.Clock = clock.System{}
		before := c.Monotonic()
		<-c.NewTimer(time.Minute).C()
		want(t, "passed", c.Monotonic()-before, time.Minute)
	})
}
