package wal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

const asideSuffix = ".cut-1"

// TestCutAside cuts logs that are damaged behind a random entry, and, where a snapshot covers that, before it, and cuts the
// power while it does. Called again, it comes to its end: the log opens, has what it had up to that entry, goes on, and
// every byte of every segment that was there before is in a file.
func TestCutAside(t *testing.T) {
	states, early := 0, 0
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
			from := p.rng.IntN(len(p.frames)-int(last)+1) + int(last)
			if from < len(p.frames) {
				one := p.frames[from]
				flip(t, p.mem, segmentPath(one.place.Segment), one.place.Offset+p.rng.Int64N(frameHeader-1))
			}
		}
		covered := entry.Index(0) // a snapshot has what the entries up to here did
		if last > 2 && p.rng.IntN(2) == 0 {
			covered = entry.Index(1 + p.rng.IntN(int(last)-1))
			one := p.frames[covered-1]
			flip(t, p.mem, segmentPath(one.place.Segment), one.place.Offset+p.rng.Int64N(frameHeader-1))
			early++
		}
		before := contents(t, p.mem)
		check := func(mem *memfs.FS) error {
			cfg := p.config()
			cfg.FS = mem
			l, r, err := Open(cfg, covered, nil)
			if err != nil {
				return err
			}
			defer l.Close()
			if l.Last() != last || r.Torn != nil || covered == 0 && len(r.Damage) > 0 {
				return fmt.Errorf("last %d, want %d; %+v", l.Last(), last, r)
			}
			if err := kept(t, mem, before); err != nil {
				return err
			}
			if covered > 0 {
				return errors.Join(cleanBehind(l), put(l, 3))
			}
			b := &book{rng: p.rng, term: p.term, frames: p.frames[:last:last]}
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
				if err = errors.Join(err, CutAside(c.FS, "log", testID, last, asideSuffix)); err == nil {
					err = check(c.FS)
				}
				if err != nil {
					t.Fatalf("seed %d: cut after %d: power cut at %+v: %v\n%v", seed, last, op, err, c)
				}
			}
		})
		err := CutAside(p.mem, "log", testID, last, asideSuffix)
		p.mem.OnOp(nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := check(p.mem.Crash(seed, 0).FS); err != nil {
			t.Errorf("seed %d: cut after %d: %v", seed, last, err)
		}
	}
	if states < 10*int(seeds) || early < 5 {
		t.Errorf("only %d states, %d logs with damage before", states, early)
	}
}

// contents returns the files of a log's segments.
func contents(t *testing.T, fsys vfs.FS) map[string][]byte {
	t.Helper()
	names, err := fsys.List("log")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, segmentSuffix) && strings.HasPrefix(name, "0") {
			files[name] = readFile(t, fsys, "log/"+name)
		}
	}
	return files
}

// kept returns an error unless each of the files is there, under its name or set aside.
func kept(t *testing.T, fsys vfs.FS, before map[string][]byte) error {
	t.Helper()
	for name, want := range before {
		found := false
		for _, now := range []string{name, name + asideSuffix} {
			if _, err := fsys.Size("log/" + now); err == nil && bytes.Equal(readFile(t, fsys, "log/"+now), want) {
				found = true
			}
		}
		if !found {
			return fmt.Errorf("what was in %s is nowhere", name)
		}
	}
	return nil
}

// TestCutAsideRefused: nothing is changed when the last entry that would stay cannot be read, or is before the log.
func TestCutAsideRefused(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 10, 10, 10, 10, 10, 10)
	first := l.Segments()[1].First
	p := l.Segments()[0]
	if _, err := l.DropBefore(first); err != nil {
		t.Fatal(err)
	}
	l.Close()
	var at entry.Position
	if _, err := Inspect(mem, "log", func(e *entry.Entry, p entry.Position) error {
		if e.Index == first+3 {
			at = p
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	flip(t, mem, segmentPath(at.Segment), at.Offset+frameHeader+1)
	before := contents(t, mem)
	if err := CutAside(mem, "log", testID, first+3, asideSuffix); !errors.As(err, new(*CorruptionError)) {
		t.Errorf("an entry that is damaged: %v", err)
	}
	if err := CutAside(mem, "log", testID, p.First, asideSuffix); !errors.Is(err, ErrMismatch) {
		t.Errorf("an entry that was dropped: %v", err)
	}
	if err := kept(t, mem, before); err != nil || len(contents(t, mem)) != len(before) {
		t.Errorf("something was changed: %v", err)
	}
	if e, ok := Salvage(mem, "log", at.Segment, at.Offset); !ok || e.Index != first+3 || e.Kind != 2 || len(e.Payload) != sizeOf(first+3) {
		t.Errorf("salvage: %+v %v", e, ok)
	}
	if _, ok := Salvage(mem, "log", at.Segment, at.Offset+8); ok {
		t.Error("salvaged what is no frame")
	}
	if err := CutAside(mem, "log", testID, first+2, asideSuffix); err != nil {
		t.Error(err)
	}
	if l, _, _ := mustOpen(t, testConfig(mem), first-1); l.Last() != first+2 {
		t.Errorf("last %d, want %d", l.Last(), first+2)
	}
}
