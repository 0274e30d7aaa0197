// Package e2e runs real mqd processes and looks at them from outside only.
package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

func TestMain(m *testing.M) { os.Exit(process.Main(m)) }

// small makes segments roll and die, and snapshots be taken, within a run of a few cycles.
var small = []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"}

// TestKill kills mqd at random instants under load, start-up included, and checks after each start that
// nothing acknowledged was lost and nothing else was made up. MQ_KILL_CYCLES says how often.
func TestKill(t *testing.T) {
	cycles := process.Count(t, "MQ_KILL_CYCLES", 5)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	l := load.New(load.Config{Seed: seed})
	node := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: process.Dir(t), Args: small})
	began, slowest := time.Now(), time.Duration(0)
	for cycle := range cycles {
		if cycle%8 == 7 {
			killEarly(t, node, time.Duration(dice.IntN(20_000))*time.Microsecond)
		}
		start := time.Now()
		p := node.StartReady()
		slowest = max(slowest, time.Since(start))
		// Everything from the start on now and then; else what is new since the last time.
		if err := l.ReadBack(t.Context(), p.URL, cycle%50 == 49); err != nil {
			t.Fatalf("cycle %d: %v\n%s", cycle, err, p.Stderr())
		}
		killDuring(t, l, p, time.Duration(5_000+dice.IntN(45_000))*time.Microsecond)
		if err := l.Err(); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
	}
	finish(t, l, node)
	report.Count(t, "kills", int64(cycles))
	report.Figure(t, "slowest start", slowest.Seconds(), "s")
	t.Logf("kill -9: cycles %d in %v, slowest start %v, %v, answers by status %v",
		cycles, time.Since(began).Round(time.Millisecond), slowest.Round(time.Millisecond), l.Checker.Report(), l.Statuses())
}

// killDuring lets the load run for a while and kills the process in the middle of it.
func killDuring(t *testing.T, l *load.Load, p *process.Process, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killer := time.AfterFunc(after, p.Kill)
	defer killer.Stop()
	l.Run(ctx, p.URL) // ends when every client has noticed
	select {
	case <-p.Ended():
	default:
		if ctx.Err() != nil {
			t.Errorf("clients did not notice within a minute that the process is dead")
		}
	}
	p.Kill()
	l.Checker.Restarted()
}

// killEarly starts mqd and kills it before it may be ready.
func killEarly(t *testing.T, node *process.Node, after time.Duration) {
	t.Helper()
	p := node.Start()
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.Ended():
		if p.ExitCode() != 0 {
			t.Errorf("mqd ended by itself: status %d\n%s", p.ExitCode(), p.Stderr())
		}
	}
	p.Kill()
}

// finish settles what is open, stops gracefully, and reads everything back once more from a new process.
func finish(t *testing.T, l *load.Load, node *process.Node) {
	t.Helper()
	p := node.StartReady()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := l.Settle(ctx, p.URL); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	l.Checker.Restarted()
	p = node.StartReady()
	if err := l.ReadBack(ctx, p.URL, true); err != nil {
		t.Errorf("%v\n%s", err, p.Stderr())
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	report.History(t, l.Checker.Report())
	if r := l.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		t.Error("the load did nothing")
	}
}

// TestStopUnderLoad stops mqd gracefully under load again and again: it exits with status 0, and what it
// acknowledged is there.
func TestStopUnderLoad(t *testing.T) {
	const cycles = 3
	seed := process.Seed(t)
	l := load.New(load.Config{Seed: seed})
	node := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: process.Dir(t), Args: small})
	for cycle := range cycles {
		p := node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
			t.Fatalf("cycle %d: %v\n%s", cycle, err, p.Stderr())
		}
		stopped := make(chan error, 1)
		time.AfterFunc(50*time.Millisecond, func() { stopped <- p.Stop() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		l.Run(ctx, p.URL)
		cancel()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		l.Checker.Restarted()
	}
	finish(t, l, node)
	report.Count(t, "graceful stops", cycles)
	t.Log(l.Checker.Report())
}

// TestSecondProcess starts a second mqd on the same data: it exits with status 1 and a line that says why,
// and the first goes on unharmed.
func TestSecondProcess(t *testing.T) {
	cfg := process.Config{Binary: process.Binary(t), Data: process.Dir(t)}
	first := process.NewNode(t, cfg).StartReady()
	second := process.NewNode(t, cfg).Start()
	select {
	case <-second.Ended():
	case <-time.After(10 * time.Second):
		t.Fatalf("the second process goes on\n%s", second.Stderr())
	}
	if code := second.ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1\n%s", code, second.Stderr())
	}
	if second.Stderr() == "" {
		t.Error("the second process does not say why it ends")
	}
	c := load.NewClient(first.URL)
	defer c.Close()
	if a := load.New(load.Config{}).Probe(t.Context(), c, 0); a.Outcome != load.Done {
		t.Errorf("publish to the first: %v", a)
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
}
