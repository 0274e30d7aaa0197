package wal

import (
	"errors"
	"fmt"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs/memfs"
)

// TestCut cuts logs that are damaged behind a random entry, or not, and cuts the power while it does. Called again, it
// comes to its end: the log opens, has what it had up to that entry, and goes on.
func TestCut(t *testing.T) {
	states := 0
	seeds := uint64(60)
	if invariant.Enabled {
		seeds = 15
	}
	for seed := range seeds {
		p := newPatient(t, seed)
		list := p.log.Segments()
		p.log.Close()
		last := entry.Index(p.rng.IntN(int(p.peer.Last()) + 1))
		if p.rng.IntN(3) == 0 {
			last = list[p.rng.IntN(len(list))].First - 1
		}
		for range p.rng.IntN(3) {
			// Damage somewhere behind.
			from := p.rng.IntN(len(p.frames)-int(last)+1) + int(last)
			if from < len(p.frames) {
				one := p.frames[from]
				flip(t, p.mem, segmentPath(one.place.Segment), one.place.Offset+p.rng.Int64N(frameHeader-1))
			}
		}
		begun := p.mem.Clone()
		check := func(mem *memfs.FS) error {
			cfg := p.config()
			cfg.FS = mem
			if last == 0 {
				_, _, err := Open(Config{FS: mem, LogID: testID}, 0, nil)
				if !errors.Is(err, ErrEmpty) {
					return errors.Join(errors.New("segments are left"), err)
				}
				return nil
			}
			b := &book{rng: p.rng, term: p.term, frames: p.frames[:last:last]}
			l, r, err := Open(cfg, 0, nil)
			if err != nil {
				return err
			}
			defer l.Close()
			if l.Last() != last || r.Torn != nil || len(r.Damage) > 0 {
				t.Errorf("seed %d: last %d, want %d; %+v", seed, l.Last(), last, r)
			}
			return errors.Join(cleanBehind(l), b.holds(l, 0), b.grow(l), b.grow(l), l.Sync(), b.holds(l, 0))
		}
		p.mem.OnOp(func(op memfs.Op) {
			for c := range p.mem.CrashStates(seed, 4) {
				states++
				found, err := TakeSurvey(c.FS, "log", testID, 0)
				for _, s := range found.Segments {
					if s.Missing {
						err = fmt.Errorf("a hole: %+v", s)
					}
				}
				if err = errors.Join(err, Cut(c.FS, "log", testID, last)); err == nil {
					err = check(c.FS)
				}
				if err != nil {
					t.Fatalf("seed %d: cut after %d: power cut at %+v: %v\n%v", seed, last, op, err, c)
				}
			}
		})
		err := Cut(p.mem, "log", testID, last)
		p.mem.OnOp(nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := check(p.mem.Crash(seed, 0).FS); err != nil {
			t.Errorf("seed %d: cut after %d: %v", seed, last, err)
		}
		// Damage up to last is refused.
		if last > 0 {
			one := p.frames[last-1]
			flip(t, begun, segmentPath(one.place.Segment), one.place.Offset+9)
			if err := Cut(begun, "log", testID, last); !errors.As(err, new(*CorruptionError)) {
				t.Errorf("seed %d: damage before the cut: %v", seed, err)
			}
		}
	}
	if states < 10*int(seeds) {
		t.Errorf("only %d states", states)
	}
}
