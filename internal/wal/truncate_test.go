package wal

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// afterwards checks a log that was cut after last, or whose cutting was cut short: it opens without damage, has
// the entries that were written up to least at any rate, and can be cut again, and goes on.
func (b *book) afterwards(t testing.TB, mem *memfs.FS, head, last, least entry.Index, rng *rand.Rand) error {
	t.Helper()
	cfg := testConfig(mem)
	cfg.Inline = true
	cfg.Create = false
	saw := new(seen)
	l, r, err := Open(cfg, head, saw.visit)
	if err != nil {
		return err
	}
	defer func() { l.Close() }()
	if len(r.Damage) > 0 {
		return fmt.Errorf("damage %v", r.Damage)
	}
	if l.Last() < least {
		return fmt.Errorf("the log ends with %d, want at least %d", l.Last(), least)
	}
	if err := b.holds(l, head); err != nil {
		return err
	}
	// Cut again, write something else there, and look once more.
	other := &book{rng: rng, term: b.term + 1, frames: slices.Clone(b.frames[:l.Last()])}
	if last <= l.Last() {
		if err := l.Truncate(last); err != nil {
			return fmt.Errorf("cut again: %w", err)
		}
		other.cut(last)
	}
	if err := cleanBehind(l); err != nil {
		return err
	}
	for range 3 {
		if err := errors.Join(other.grow(l), l.Sync()); err != nil {
			return fmt.Errorf("go on: %w", err)
		}
	}
	l.Close()
	if l, r, err = Open(cfg, head, nil); err != nil || r.Torn != nil || len(r.Damage) > 0 || l.Last() != entry.Index(len(other.frames)) {
		return fmt.Errorf("again: %+v, %w", r, err)
	}
	return other.holds(l, head)
}

// TestTruncate cuts random logs at random places, and cuts the power at each operation while it does.
func TestTruncate(t *testing.T) {
	seeds, limit := uint64(40), 12
	if invariant.Enabled {
		seeds, limit = 10, 6
	}
	states, levels, removed := 0, 0, 0
	for seed := range seeds {
		b := newBook(seed)
		mem := newMem(t)
		cfg := testConfig(mem)
		cfg.SegmentBytes = segmentBytesMin
		cfg.Inline = true
		l, _, _ := mustOpen(t, cfg, 0)
		mustGrow(t, b, l, 2+b.rng.IntN(20))
		head := entry.Index(0)
		if b.rng.IntN(2) == 0 {
			if _, err := l.DropBefore(l.Durable() / 3); err != nil {
				t.Fatal(err)
			}
			head = l.Segments()[0].First - 1
		}
		segments := l.Segments()
		last := head + entry.Index(b.rng.IntN(int(l.Last()-head)+1))
		switch b.rng.IntN(6) {
		case 0: // the end of a segment
			last = segments[b.rng.IntN(len(segments))].First - 1
		case 1: // the last ones, which are not synced
			mustGrow(t, b, l, 1)
			last = l.Last() - min(l.Last()-head, 2)
		}
		least := min(last, l.Durable())
		var points []*memfs.FS
		var ops []string
		mem.OnOp(func(op memfs.Op) {
			if op.Kind == "sync" {
				levels++
			}
			points, ops = append(points, mem.Clone()), append(ops, fmt.Sprintf("%+v", op))
		})
		err := l.Truncate(last)
		mem.OnOp(nil)
		if err != nil {
			t.Fatalf("seed %d: cut after %d of %d: %v", seed, last, l.Last(), err)
		}
		removed += len(segments) - len(l.Segments())
		want := Point{Index: last}
		if last > 0 {
			want = b.frames[last-1].point
		}
		if last == head {
			want.Term = 0
		}
		if l.Tip() != want || l.Last() != last || l.Durable() != last {
			t.Fatalf("seed %d: tip %+v, last %d, durable %d; cut after %+v", seed, l.Tip(), l.Last(), l.Durable(), want)
		}
		if err := cleanBehind(l); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		old := b.frames
		for i, p := range points {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			if err := b.afterwards(t, p.Clone(), head, last, least, rng); err != nil {
				t.Fatalf("seed %d: kill at %s, cut after %d: %v", seed, ops[i], last, err)
			}
			for crash := range p.CrashStates(uint64(i), limit) {
				states++
				if err := b.afterwards(t, crash.FS, head, last, least, rng); err != nil {
					t.Fatalf("seed %d: power cut at %s, cut after %d of %d: %v\n%v", seed, ops[i], last, len(old), err, crash)
				}
			}
		}
		// The log itself goes on.
		b.cut(last)
		mustGrow(t, b, l, 8)
		if err := b.holds(l, head); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if open := mem.OpenFiles(); len(open) > 0 {
			t.Errorf("seed %d: open after Close: %v", seed, open)
		}
		l, _, _ = mustOpen(t, cfg, head)
		if err := b.holds(l, head); err != nil || l.Last() != entry.Index(len(b.frames)) {
			t.Fatalf("seed %d: last %d of %d, %v", seed, l.Last(), len(b.frames), err)
		}
	}
	t.Logf("%d states, %d levels, %d segments removed", states, levels, removed)
	if !invariant.Enabled && (levels < 20 || removed < 20) {
		t.Error("the logs were too simple")
	}
}

// TestTruncateCursors: cursors and readers at or below the cut go on, those behind it find what comes then.
func TestTruncateCursors(t *testing.T) {
	for seed := range uint64(20) {
		mem := newMem(t)
		b := newBook(seed)
		l, _, _ := mustOpen(t, testConfig(mem), 0)
		mustGrow(t, b, l, 20)
		var f Frames
		var cursors []*Cursor
		var next []entry.Index
		for range 10 {
			at := 1 + entry.Index(b.rng.IntN(int(l.Last())))
			c := l.NewCursor(at)
			if _, err := c.Next(&f, l.Last(), 500); err != nil {
				t.Fatal(err)
			}
			cursors, next = append(cursors, c), append(next, f.Last()+1)
		}
		last := entry.Index(b.rng.IntN(int(l.Last()) + 1))
		if err := l.Truncate(last); err != nil {
			t.Fatal(err)
		}
		b.cut(last)
		for round := range 2 {
			for i, c := range cursors {
				for {
					place, err := c.Next(&f, 1<<60, 500)
					if err == io.EOF {
						break
					}
					if err == nil {
						err = b.matches(l, &f, place)
					}
					if err != nil || f.First() != next[i] {
						t.Fatalf("seed %d round %d: cut after %d, cursor at %d: %d, %v", seed, round, last, next[i], f.First(), err)
					}
					next[i] = f.Last() + 1
				}
				if next[i] <= l.Last() {
					t.Errorf("seed %d: EOF at %d of %d", seed, next[i], l.Last())
				}
			}
			for l.Last() < last+300 {
				mustGrow(t, b, l, 1)
			}
		}
		for _, c := range cursors {
			c.Close()
		}
		l.Close()
		if open := mem.OpenFiles(); len(open) > 0 {
			t.Errorf("seed %d: open after Close: %v", seed, open)
		}
	}
}

// TestTruncateGarbage: bytes behind the last frame of a sealed segment are zeroed when it becomes active again.
func TestTruncateGarbage(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	for len(l.Segments()) < 3 {
		mustPut(t, l, 3)
	}
	first, size := l.Segments()[1].First, l.Segments()[1].Bytes
	file, err := mem.Open(segmentPath(first))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{1}, size-1); err != nil {
		t.Fatal(err)
	}
	if err := l.Truncate(l.Segments()[2].First - 1); err != nil {
		t.Fatal(err)
	}
	if err := cleanBehind(l); err != nil {
		t.Error(err)
	}
	mustPut(t, l, 1)
}

func TestTruncateRefused(t *testing.T) {
	b := newBook(1)
	l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
	mustGrow(t, b, l, 40)
	if _, err := l.DropBefore(l.Segments()[2].First); err != nil {
		t.Fatal(err)
	}
	head, tip := l.Segments()[0].First, l.Tip()
	if err := l.Truncate(head - 2); !errors.Is(err, ErrSegmentGone) {
		t.Errorf("below the head: %v", err)
	}
	if err := l.Truncate(tip.Index + 1); !errors.Is(err, ErrMismatch) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := l.Truncate(tip.Index); err != nil || l.Tip() != tip || l.Err() != nil {
		t.Errorf("nothing to cut: %v", err)
	}
	l.Close()
	if err := l.Truncate(head); err != ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

// sectorFS stores, of the write that is cut short, only what lies before a sector boundary: where a kernel stops.
type sectorFS struct {
	vfs.FS
	writes, at, sectors int
}

type sectorFile struct {
	vfs.File
	fs *sectorFS
}

func (s *sectorFS) Open(name string) (vfs.File, error) {
	f, err := s.FS.Open(name)
	return &sectorFile{f, s}, err
}

func (f *sectorFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.writes++
	if f.fs.writes != f.fs.at {
		return f.File.WriteAt(p, off)
	}
	end := off&^(sectorSize-1) + int64(f.fs.sectors)*sectorSize
	if n := min(int64(len(p)), end-off); n > 0 {
		if _, err := f.File.WriteAt(p[:n], off); err != nil {
			return 0, err
		}
	}
	return 0, syscall.EIO
}

// TestTruncateErrors lets each operation of a Truncate fail. Either nothing was changed, or the log is done for,
// syncs nothing more, and the next process finds what must be there.
func TestTruncateErrors(t *testing.T) {
	type outcome struct{ unchanged, failed int }
	var got outcome
	check := func(what string, seed uint64, wrap func(*memfs.FS) (fsys vfs.FS, arm func(), hit func() bool)) bool {
		t.Helper()
		b := newBook(seed)
		mem := newMem(t)
		cfg := testConfig(mem)
		cfg.SegmentBytes = segmentBytesMin
		cfg.Inline = true
		build, _, _ := mustOpen(t, cfg, 0)
		mustGrow(t, b, build, 25)
		if err := build.Sync(); err != nil {
			t.Fatal(err)
		}
		build.Close()
		fsys, arm, hit := wrap(mem)
		cfg.FS = fsys
		l, _, _ := mustOpen(t, cfg, 0)
		tip, last := l.Tip(), l.Last()/2
		arm()
		err := l.Truncate(last)
		if !hit() {
			return false
		}
		switch {
		case err == nil:
			t.Errorf("%s: no error", what)
		case l.Err() == nil:
			got.unchanged++
			if l.Tip() != tip {
				t.Errorf("%s: %v, tip %+v, was %+v", what, err, l.Tip(), tip)
			}
			if err := errors.Join(l.Truncate(last), put(l, 1)); err != nil {
				t.Errorf("%s: try again: %v", what, err)
			}
			return true
		case !errors.Is(err, ErrFailed):
			t.Errorf("%s: %v, and the log %v", what, err, l.Err())
		default:
			got.failed++
			if err := put(l, 1); !errors.Is(err, ErrFailed) {
				t.Errorf("%s: append: %v", what, err)
			}
			if err := l.Truncate(last - 1); !errors.Is(err, ErrFailed) {
				t.Errorf("%s: cut again: %v", what, err)
			}
		}
		l.Close()
		rng := rand.New(rand.NewPCG(seed, 3))
		if err := b.afterwards(t, mem.Clone(), 0, last, last, rng); err != nil {
			t.Errorf("%s: restart: %v", what, err)
		}
		for crash := range mem.CrashStates(seed, 5) {
			if err := b.afterwards(t, crash.FS, 0, last, last, rng); err != nil {
				t.Fatalf("%s: power cut: %v\n%v", what, err, crash)
			}
		}
		return true
	}
	kinds := append(faultfs.Changes(), faultfs.Open, faultfs.Read)
	for _, kind := range kinds {
		for _, done := range []bool{false, true} {
			for k := 1; ; k++ {
				hit := check(fmt.Sprintf("%s %d done %t", kind, k, done), 1+uint64(k%4), func(mem *memfs.FS) (vfs.FS, func(), func() bool) {
					f := faultfs.New(mem)
					var injected *faultfs.Injected
					arm := func() {
						injected = f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO, Done: done})
					}
					return f, arm, func() bool { return len(injected.Hits()) > 0 }
				})
				if !hit {
					break
				}
			}
		}
	}
	for k := 1; ; k++ {
		hit := false
		for sectors := 1; sectors < 10; sectors += 2 {
			hit = check(fmt.Sprintf("write %d, %d sectors", k, sectors), 1+uint64(sectors%4), func(mem *memfs.FS) (vfs.FS, func(), func() bool) {
				s := &sectorFS{FS: mem, sectors: sectors}
				return s, func() { s.writes, s.at = 0, k }, func() bool { return s.writes >= k }
			}) || hit
		}
		if !hit {
			break
		}
	}
	t.Logf("%+v", got)
	if got.unchanged < 2 || got.failed < 10 {
		t.Errorf("too few faults hit: %+v", got)
	}
}
