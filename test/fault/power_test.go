package fault

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestPowerCut cuts the power under load: the file system forgets what was not synced, is unmounted dirty,
// and recovers its journal at the next mount. MQ_POWER_CYCLES says how often.
func TestPowerCut(t *testing.T) {
	im := newImage(t, 96)
	cycles := process.Count(t, "MQ_POWER_CYCLES", 3)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 98))
	l := load.New(load.Config{Seed: seed})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(im.Dir, "data"),
		Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
	})
	began := time.Now()
	for cycle := range cycles {
		how := nemesis.NothingFlushed
		if dice.IntN(4) == 0 {
			how = nemesis.JournalFlushed
		}
		if cycle%8 == 7 { // while it starts
			p := node.Start()
			wait(t, p, time.Duration(dice.IntN(20_000))*time.Microsecond)
			im.cutPower(how)
			im.remount(node)
		}
		p := node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, cycle%50 == 49); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
		during(t, l, p, func(ctx context.Context) {
			if dice.IntN(2) == 0 {
				defer nemesis.WriteBack(ctx, dice, filepath.Join(node.Data, "log"))()
			}
			wait(t, p, time.Duration(5_000+dice.IntN(45_000))*time.Microsecond)
			im.cutPower(how)
			// The process may see that its disk is gone, and must not acknowledge what it cannot keep.
			wait(t, p, time.Duration(dice.IntN(5_000))*time.Microsecond)
			p.Kill()
		})
		im.remount(node)
		l.Checker.Restarted()
		if err := l.Checker.Report().Err(); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
	}
	p := node.StartReady()
	finish(t, l, node, p)
	report.Count(t, "power cuts", int64(cycles))
	report.History(t, l.Checker.Report())
	t.Logf("power cut: cycles %d in %v, %v, answers by status %v",
		cycles, time.Since(began).Round(time.Millisecond), l.Checker.Report(), l.Statuses())
}

// wait waits for d, or until the process is gone, which is a failure.
func wait(t *testing.T, p *process.Process, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.Ended():
		t.Errorf("mqd ended by itself: status %d\n%s", p.ExitCode(), p.Stderr())
	}
}

// during runs the load and, beside it, what happens to the process. It returns when both are over.
func during(t *testing.T, l *load.Load, p *process.Process, happens func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		happens(ctx)
		cancel()
	}()
	l.Run(ctx, p.URL)
	<-over
}

// finish settles what is open with a process that is ready, stops it, and reads all back from another.
func finish(t *testing.T, l *load.Load, node *process.Node, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := l.ReadBack(ctx, p.URL, true); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
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
	if err := l.Checker.Report().Err(); err != nil {
		t.Error(err)
	}
	if r := l.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		t.Error("the load did nothing")
	}
}
