package fault

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
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
		Binary: process.Binary(t), Data: filepath.Join(im.dir, "data"),
		Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
	})
	began := time.Now()
	for cycle := range cycles {
		how := uint32(nothingFlushed)
		if dice.IntN(4) == 0 {
			how = journalFlushed
		}
		if cycle%8 == 7 { // while it starts
			p := node.Start()
			wait(t, p, time.Duration(dice.IntN(20_000))*time.Microsecond)
			im.cutPower(how)
			remount(im, node)
		}
		p := node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, cycle%50 == 49); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
		during(t, l, p, func(ctx context.Context) {
			if dice.IntN(2) == 0 {
				defer writeBack(ctx, dice, node.Data)()
			}
			wait(t, p, time.Duration(5_000+dice.IntN(45_000))*time.Microsecond)
			im.cutPower(how)
			// The process may see that its disk is gone, and must not acknowledge what it cannot keep.
			wait(t, p, time.Duration(dice.IntN(5_000))*time.Microsecond)
			p.Kill()
		})
		remount(im, node)
		l.Checker.Restarted()
		if err := l.Checker.Report().Err(); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
	}
	p := node.StartReady()
	finish(t, l, node, p)
	t.Logf("power cut: cycles %d in %v, %v, answers by status %v",
		cycles, time.Since(began).Round(time.Millisecond), l.Checker.Report(), l.Statuses())
}

// remount is what happens between a power cut and the next start.
func remount(im *image, node *process.Node) {
	im.t.Helper()
	node.Kill()
	im.unmount()
	im.mount()
}

// writeBack lets the kernel write pieces of the log's files at random, so that a power cut finds a part of
// a write on the disk and not another: a tear at a page boundary. It goes on until the function that it
// returns is called, or ctx is done.
func writeBack(ctx context.Context, dice *rand.Rand, data string) (stop func()) {
	own := rand.New(rand.NewPCG(dice.Uint64(), dice.Uint64()))
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		pace := time.NewTicker(200 * time.Microsecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			files, _ := filepath.Glob(filepath.Join(data, "log", "*")) // an empty answer does no harm
			for _, name := range files {
				writeBackFile(own, name)
			}
			<-pace.C
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

func writeBackFile(dice *rand.Rand, name string) {
	f, err := os.Open(name)
	if err != nil {
		return // it was renamed or dropped
	}
	defer f.Close()
	const page = 4096
	for range 8 {
		from := dice.Int64N(256) * page
		// Its outcome does not matter: it only asks for what the kernel may do at any time.
		_ = unix.SyncFileRange(int(f.Fd()), from, page*(1+dice.Int64N(8)), unix.SYNC_FILE_RANGE_WRITE)
	}
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
