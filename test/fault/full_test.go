package fault

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// The figures of the promise: how soon a publish is refused, and how soon it works again.
const (
	refuseMax = 100 * time.Millisecond
	returnMax = time.Second
	// returnSyncs is how many syncs stand between a retain and the first publish.
	returnSyncs = 8
)

// TestDiskFull fills the disk under load again and again. A full disk costs publishes only: they are refused
// soon, fetches and the small writes that help to free room go on, a kill does no harm, a start works with
// nothing free, and publishes come back by themselves. MQ_FULL_CYCLES says how often.
func TestDiskFull(t *testing.T) {
	im := newImage(t, 64)
	cycles := process.Count(t, "MQ_FULL_CYCLES", 3)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 97))
	l := load.New(load.Config{Seed: seed, Quiet: true, Large: 50, ValueMax: 200 << 10})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(im.Dir, "data"),
		Args: []string{"-segment-bytes", "2097152", "-snapshot-bytes", "2097152"},
	})
	f := &filling{t: t, im: im, load: l, node: node, dice: dice, probe: newProbe(t, im)}
	began := time.Now()
	for cycle := range cycles {
		if cycle%3 == 2 {
			f.byItself()
		} else {
			f.cycle(cycle%2 == 1)
		}
		if err := l.Err(); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, f.p.Stderr())
		}
	}
	finish(t, l, node, node.StartReady())
	report.Count(t, "times the disk was full", int64(cycles))
	report.Figure(t, "slowest refusal", f.slowestRefusal.Seconds(), "s")
	report.History(t, l.Checker.Report())
	t.Logf("disk full: cycles %d in %v, slowest refusal %v, slowest return %v, %v, answers by status %v",
		cycles, time.Since(began).Round(time.Millisecond), f.slowestRefusal, f.slowestReturn, l.Checker.Report(), l.Statuses())
}

// newProbe makes a small file that can be written to when the disk is full.
func newProbe(t *testing.T, im *image) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(im.Dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // before the file system is unmounted
	if _, err := f.Write(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return f
}

// filling is one run of TestDiskFull.
type filling struct {
	t    *testing.T
	im   *image
	load *load.Load
	node *process.Node
	dice *rand.Rand
	p    *process.Process // what runs now

	probe *os.File // on the disk that is full, with a block of its own

	slowestRefusal, slowestReturn time.Duration
}

// cycle fills the disk from outside, with a kill in the middle if kill is set, and makes room from outside.
func (f *filling) cycle(kill bool) {
	f.t.Helper()
	f.start()
	f.spare()
	filler := f.im.fill("filler", 0)
	if kill {
		f.run(func(context.Context) {
			wait(f.t, f.p, time.Duration(f.dice.IntN(60_000))*time.Microsecond)
			f.p.Kill()
		})
		f.load.Checker.Restarted()
		f.im.fill("filler", 0)
		if free := f.im.free(); free > 0 {
			f.t.Logf("%d bytes are free at the start with a full disk", free)
		}
		f.start()
	}
	f.untilRefused()
	f.im.fill("filler", 0) // what a refused attempt to prepare a segment gave back
	f.whileFull()
	f.remove(filler)
	f.end()
}

// byItself lets mqd fill the disk alone. Then retention alone must make room: that is what its reserve of
// disk space is for.
func (f *filling) byItself() {
	f.t.Helper()
	f.start()
	f.spare()
	f.awaitReserve()
	filler := f.im.fill("filler", 12<<20)
	f.untilRefused()
	f.whileFull()
	if err := f.load.Retain(f.t.Context(), f.p.URL); err != nil {
		f.t.Fatalf("with a full disk: %v\n%s", err, f.p.Stderr())
	}
	f.returns("retention")
	f.remove(filler)
	f.end()
}

// spare makes something that can be deleted while the disk is full. Of a process that was killed with a full disk it is there
// already.
func (f *filling) spare() {
	f.t.Helper()
	if err := f.load.Spare(f.t.Context(), f.p.URL); err != nil {
		f.t.Fatalf("%v\n%s", err, f.p.Stderr())
	}
}

// awaitReserve waits until mqd has set aside the disk space that it needs when the disk is full. It does so
// in the background after a start that finds room.
func (f *filling) awaitReserve() {
	f.t.Helper()
	for began := time.Now(); ; wait(f.t, f.p, time.Millisecond) {
		if _, err := os.Stat(filepath.Join(f.node.Data, "ballast")); err == nil {
			return
		}
		if time.Since(began) > 20*time.Second {
			f.t.Fatalf("mqd sets no disk space aside; free: %d\n%s", f.im.free(), f.p.Stderr())
		}
	}
}

// untilRefused runs the load until a publish is refused, and a little longer.
func (f *filling) untilRefused() {
	f.t.Helper()
	f.load.ForgetStatuses()
	f.run(func(ctx context.Context) {
		for f.load.Statuses()[http.StatusInsufficientStorage] == 0 && ctx.Err() == nil {
			wait(f.t, f.p, time.Millisecond)
		}
		wait(f.t, f.p, 20*time.Millisecond)
	})
}

// whileFull looks at what must be refused, and what must not, while the disk is full.
func (f *filling) whileFull() {
	f.t.Helper()
	f.refused()
	if err := f.load.ReadBack(f.t.Context(), f.p.URL, true); err != nil {
		f.t.Fatalf("with a full disk: %v\n%s", err, f.p.Stderr())
	}
	if err := f.load.Consume(f.t.Context(), f.p.URL); err != nil {
		f.t.Fatalf("with a full disk: %v\n%s", err, f.p.Stderr())
	}
	if err := f.load.Manage(f.t.Context(), f.p.URL); err != nil {
		f.t.Fatalf("with a full disk: %v\n%s", err, f.p.Stderr())
	}
	if status, body, err := f.p.Get("/healthz"); status != http.StatusOK {
		f.t.Errorf("/healthz with a full disk: %d %s %v", status, body, err)
	}
}

func (f *filling) remove(filler string) {
	f.t.Helper()
	if err := os.Remove(filler); err != nil {
		f.t.Fatal(err)
	}
	f.im.sync() // the file system gives room back when its journal is written
	f.returns("a file was removed")
}

// end works with room for a while, gives up what is stored so that the next cycle finds room, and kills mqd.
func (f *filling) end() {
	f.t.Helper()
	f.run(func(context.Context) { wait(f.t, f.p, 30*time.Millisecond) })
	if err := f.load.ReadBack(f.t.Context(), f.p.URL, false); err != nil {
		f.t.Fatalf("%v\n%s", err, f.p.Stderr())
	}
	if err := f.load.Retain(f.t.Context(), f.p.URL); err != nil {
		f.t.Fatal(err)
	}
	f.p.Kill()
	f.load.Checker.Restarted()
}

func (f *filling) start() {
	f.t.Helper()
	f.p = f.node.StartReady()
	if err := f.load.ReadBack(f.t.Context(), f.p.URL, true); err != nil {
		f.t.Fatalf("%v\n%s", err, f.p.Stderr())
	}
}

func (f *filling) run(happens func(context.Context)) {
	f.t.Helper()
	during(f.t, f.load, f.p, happens)
}

// refused looks at publishes to a full disk. Small ones may fit where large ones do not, so the sizes go
// down until none does.
func (f *filling) refused() {
	f.t.Helper()
	c := load.NewClient(f.p.URL)
	defer c.Close()
	sizes := []int{255 << 10, 32 << 10, 1 << 10, 0}
	const (
		most    = 5000 // publishes: the room that is left in a segment, many times
		refusal = 20   // in a row
	)
	var took []time.Duration
	for i, at := 0, 0; len(took) < refusal; i++ {
		a := f.load.Probe(f.t.Context(), c, sizes[at])
		switch {
		case a.Status == http.StatusInsufficientStorage && a.Code == "storage_full":
			if at < len(sizes)-1 {
				at++
			} else {
				took = append(took, a.Took)
			}
		case a.Outcome != load.Done || i >= most:
			f.t.Fatalf("publish of %d bytes to a full disk, the %dth: %v, want 507 storage_full\n%s", sizes[at], i+1, a, f.p.Stderr())
		case i%10 == 9 || len(took) > 0:
			at, took = 0, nil // a little room was found, or given back by what tidies up
		}
	}
	slices.Sort(took)
	f.slowestRefusal = max(f.slowestRefusal, took[len(took)-1])
	// The median: a single one may wait for the processor on a busy machine.
	if median := took[len(took)/2]; median > refuseMax {
		f.t.Errorf("a publish is refused after %v, want %v at most", median, refuseMax)
	}
}

// returns waits until publishes work again without a restart. How long that may take depends on the disk: what gives room back
// syncs two snapshots, folders and a segment, one after the other. So syncs beside it are timed.
func (f *filling) returns(why string) {
	f.t.Helper()
	c := load.NewClient(f.p.URL)
	defer c.Close()
	ended, slowest := make(chan struct{}), make(chan time.Duration, 1)
	go func() { slowest <- f.slowestSync(ended) }() // ended and awaited below
	began := time.Now()
	for {
		a := f.load.Probe(f.t.Context(), c, 0)
		if a.Outcome == load.Done {
			break
		}
		if time.Since(began) > 10*returnMax {
			f.t.Fatalf("publish %v after %s: %v; free: %d\n%s", time.Since(began), why, a, f.im.free(), f.p.Stderr())
		}
		wait(f.t, f.p, time.Millisecond)
	}
	took := time.Since(began)
	close(ended)
	sync := <-slowest
	f.slowestReturn = max(f.slowestReturn, took)
	if most := returnMax + returnSyncs*sync; took > most {
		f.t.Errorf("publishes came back %v after %s at %v, want %v at most, with syncs of %v; free: %d\n%s",
			took, why, began.Format(time.StampMilli), most, sync, f.im.free(), f.p.Stderr())
	}
}

// slowestSync overwrites a small file and syncs it, again and again until it is ended, and tells how long that took at most.
func (f *filling) slowestSync(ended <-chan struct{}) (slowest time.Duration) {
	for {
		began := time.Now()
		_, err := f.probe.WriteAt([]byte("probe"), 0)
		if err == nil {
			err = f.probe.Sync()
		}
		if err != nil {
			f.t.Errorf("probe: %v", err)
			return 0
		}
		slowest = max(slowest, time.Since(began))
		select {
		case <-ended:
			return slowest
		case <-time.After(50 * time.Millisecond):
		}
	}
}
