package wal

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

var crashStates = flag.Int("crash-states", 40, "crash states to try after each file operation")

// life is a process that writes a log, watched at each operation on its files.
type life struct {
	mem     *memfs.FS
	patient bool // tries again what ErrFull refused
	// afterError, if not nil, is called with a log on which something failed.
	afterError func(*Log)

	// What is acknowledged is read before a picture of the disk is taken, the others after.
	acked, written, dropped atomic.Uint64

	mu     sync.Mutex
	points []point
}

// point is a picture of the disk in the middle of a life, and what must and may be found on it.
type point struct {
	mem                     *memfs.FS
	acked, written, dropped entry.Index
	op                      string
}

// watch takes a picture before each sync and after each operation.
func (l *life) watch() {
	l.mem.OnOp(func(op memfs.Op) {
		if !op.Done && op.Kind != "sync" && op.Kind != "syncdir" {
			return
		}
		p := point{acked: entry.Index(l.acked.Load()), op: fmt.Sprintf("%+v", op)}
		l.mu.Lock()
		defer l.mu.Unlock()
		p.mem = l.mem.Clone()
		p.written, p.dropped = entry.Index(l.written.Load()), entry.Index(l.dropped.Load())
		l.points = append(l.points, p)
	})
}

// appends appends groups of entries, the last of which are not synced.
func (l *life) appends(log *Log, synced bool, counts ...int) error {
	for _, n := range counts {
		l.written.Store(uint64(log.Last()) + uint64(n))
		var f Frames
		gather(&f, log.Last()+1, n)
		err := l.again(func() error {
			_, err := log.Append(&f, 1, entry.Index(l.acked.Load()))
			return err
		})
		if err != nil {
			return err
		}
		if !synced {
			continue
		}
		if err := log.Sync(); err != nil {
			return err
		}
		l.acked.Store(uint64(log.Durable()))
	}
	return nil
}

// again calls do until it finds room, if l is patient.
func (l *life) again(do func() error) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		if err := do(); !l.patient || !errors.Is(err, ErrFull) || time.Now().After(deadline) {
			return err
		}
	}
}

// drop drops what a snapshot at index i lets go.
func (l *life) drop(log *Log, i entry.Index) error {
	l.dropped.Store(uint64(i))
	_, err := log.DropBefore(i + 1)
	return err
}

// script runs a life from the creation of the log on, in which some things happen as many times as rounds says.
func (l *life) script(cfg Config, rounds int) (err error) {
	var log *Log
	err = l.again(func() error {
		log, _, err = Open(cfg, 0, nil)
		return err
	})
	if err != nil {
		return err
	}
	defer log.Close()
	defer func() {
		if err != nil && l.afterError != nil {
			l.afterError(log)
		}
	}()
	steps := []func() error{
		func() error { return l.appends(log, true, 1, 2, 1) },
		func() error { return l.appends(log, false, 2, 3) },
		func() error { return l.appends(log, true, 4, 1, 5, 3) },
		func() error { // roll with entries that are not synced
			for n := len(log.Segments()); len(log.Segments()) == n; {
				if err := l.appends(log, false, 1); err != nil {
					return err
				}
			}
			return l.appends(log, true, 1)
		},
		func() error { return l.appends(log, true, 12) }, // larger than a segment
		func() error { return l.appends(log, false, 6, 1) },
		func() error { return l.appends(log, true, 3) },
		func() error { return l.drop(log, log.Durable()-4) },
		func() error { return l.appends(log, true, 5, 6, 7) },
		func() error { return l.drop(log, log.Durable()) },
		func() error { return l.appends(log, false, 1) },
	}
	for range rounds {
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
	}
	return nil
}

// check opens the log as a new process would, checks what it finds, goes on, and dies again.
func (p *point) check(mem *memfs.FS, rng *rand.Rand, deaths int) error {
	l := &life{mem: mem}
	l.acked.Store(uint64(p.acked))
	l.written.Store(uint64(p.written))
	l.dropped.Store(uint64(p.dropped))
	if deaths > 0 {
		l.watch()
	}
	if in, err := Inspect(mem, "log", nil); p.acked > 0 && (err != nil || len(in.Damage) > 0) {
		return fmt.Errorf("inspect: %v, %w", in.Damage, err)
	}
	saw := new(seen)
	cfg := testConfig(mem)
	cfg.SegmentBytes = segmentBytesMin
	cfg.Create = p.acked == 0 && p.dropped == 0
	log, r, err := Open(cfg, p.dropped, saw.visit)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer log.Close()
	if len(r.Damage) > 0 {
		return fmt.Errorf("damage: %v", r.Damage)
	}
	if len(saw.entries) > 0 {
		if err := saw.checkDense(saw.entries[0].Index); err != nil {
			return err
		}
		if saw.last() != log.Last() {
			return fmt.Errorf("visited up to %d, last is %d", saw.last(), log.Last())
		}
		if first := saw.entries[0].Index; first > p.dropped+1 {
			return fmt.Errorf("visit begins with %d, entries after %d are needed", first, p.dropped)
		}
	}
	if last := log.Last(); last < p.acked || last > p.written || log.Durable() != last {
		return fmt.Errorf("log ends with %d, durable %d; acknowledged %d, written %d", last, log.Durable(), p.acked, p.written)
	}
	l.acked.Store(uint64(log.Last())) // what was read may be shown to clients from now on
	l.written.Store(uint64(log.Last()))
	if err := l.appends(log, true, 2, 1); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	if err := l.appends(log, false, 3); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	if deaths == 0 {
		return nil
	}
	log.Close() // ends the goroutine that also uses files
	mem.OnOp(nil)
	next := &l.points[rng.IntN(len(l.points))]
	crash := next.mem.Crash(rng.Uint64(), rng.IntN(1000))
	if err := next.check(crash.FS, rng, deaths-1); err != nil {
		return fmt.Errorf("after %s, and a second power cut: %w\n%v", next.op, err, crash)
	}
	return nil
}

// TestCrashStates cuts the power at every operation on files of a scripted run, in many ways each. What was
// acknowledged is there each time, byte for byte, nothing is there that was not written, and the log goes
// on, and survives a second and third power cut, in the middle of recovery, too.
func TestCrashStates(t *testing.T) {
	l := &life{mem: memfs.New()}
	l.watch()
	cfg := testConfig(l.mem)
	cfg.SegmentBytes = segmentBytesMin
	if err := l.script(cfg, 1); err != nil { // the log is closed then
		t.Fatal(err)
	}
	l.mem.OnOp(nil)
	states, limit := 0, *crashStates
	if invariant.Enabled {
		limit /= 4
	}
	for i := range l.points {
		p := &l.points[i]
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		if err := p.check(p.mem.Clone(), rng, 2); err != nil {
			t.Fatalf("kill at operation %d, %s: %v", i, p.op, err)
		}
		for crash := range p.mem.CrashStates(uint64(i), limit) {
			states++
			if err := p.check(crash.FS, rng, 2); err != nil {
				t.Fatalf("power cut at operation %d, %s:\n%v\n%v", i, p.op, err, crash)
			}
		}
	}
	report.Count(t, "crash states of a log", int64(states))
	t.Logf("%d operations, %d states", len(l.points), states)
}
