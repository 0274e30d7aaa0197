package wal

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"example.com/mq/internal/entry"
)

// TestCursor reads a growing log with several cursors, in random steps, and compares with what was written.
func TestCursor(t *testing.T) {
	for seed := range uint64(12) {
		b := newBook(seed)
		l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
		var f Frames
		cursors := make(map[*Cursor]entry.Index) // the next entry of each
		for step := range 500 {
			if b.rng.IntN(3) == 0 || l.Last() == 0 {
				mustGrow(t, b, l, 1)
			}
			if len(cursors) < 4 || b.rng.IntN(10) == 0 {
				next := 1 + entry.Index(b.rng.IntN(int(l.Last())+1))
				cursors[l.NewCursor(next)] = next
			}
			for c, next := range cursors {
				to := entry.Index(b.rng.IntN(int(l.Last()) + 3))
				maxBytes := []int{0, 10, 100, 1000, 5000, 50000, 1 << 20}[b.rng.IntN(7)]
				place, err := c.Next(&f, to, maxBytes)
				if next > min(to, l.Last()) {
					if err != io.EOF || f.Len() != 0 {
						t.Fatalf("seed %d step %d: next %d to %d: %d entries, %v, want EOF", seed, step, next, to, f.Len(), err)
					}
					continue
				}
				if err == nil && f.First() != next {
					err = fmt.Errorf("first %d, want %d", f.First(), next)
				}
				if err == nil {
					err = b.matches(l, &f, place)
				}
				if err == nil {
					err = b.wholeStep(&f, to, maxBytes)
				}
				if err != nil {
					t.Fatalf("seed %d step %d: %v", seed, step, err)
				}
				cursors[c] = f.Last() + 1
				if b.rng.IntN(20) == 0 {
					c.Close() // it opens the file again
				}
			}
		}
		if len(l.Segments()) < 10 {
			t.Errorf("only %d segments", len(l.Segments()))
		}
		for c := range cursors {
			c.Close()
		}
	}
}

// wholeStep checks that f holds as much as it may, and not more.
func (b *book) wholeStep(f *Frames, to entry.Index, maxBytes int) error {
	last := f.Last()
	if last > to || f.Bytes() > maxBytes && f.Len() > 1 {
		return fmt.Errorf("entries up to %d of %d, %d bytes of %d", last, to, f.Bytes(), maxBytes)
	}
	if last == to || last == entry.Index(len(b.frames)) {
		return nil
	}
	next := b.frames[last]
	if next.place.Segment == b.frames[last-1].place.Segment && f.Bytes()+len(next.raw) <= maxBytes {
		return fmt.Errorf("entry %d of %d bytes would fit, too: %d of %d", last+1, len(next.raw), f.Bytes(), maxBytes)
	}
	return nil
}

// TestCursorConcurrent reads while the log grows, rolls and drops, for the race detector.
func TestCursorConcurrent(t *testing.T) {
	l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() { // ended by stop, waited for below
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			var f Frames
			next := entry.Index(1)
			c := l.NewCursor(next)
			defer func() { c.Close() }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := c.Next(&f, l.Tip().Index, 1+rng.IntN(10000))
				switch {
				case err == io.EOF:
				case err == ErrSegmentGone:
					c.Close()
					next = l.Segments()[0].First
					c = l.NewCursor(next)
				case err != nil || f.First() != next:
					t.Errorf("first %d, want %d, %v", f.First(), next, err)
					return
				default:
					next = f.Last() + 1
					if _, err := l.PointAt(next - 1); err != nil && err != ErrSegmentGone {
						t.Error(err)
					}
				}
			}
		})
	}
	for i := range 200 {
		mustPut(t, l, 1+i%9)
		if i%20 == 19 {
			if _, err := l.DropBefore(l.Last() - 100); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	readers.Wait()
}

// TestCursorDamage: damage is named by its entry, the frames before it are handed out, and when the bytes are
// good again the same cursor goes on.
func TestCursorDamage(t *testing.T) {
	mem := newMem(t)
	b := newBook(3)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustGrow(t, b, l, 60)
	for i, one := range b.frames {
		if i%7 != 3 {
			continue
		}
		file, err := mem.Open(segmentPath(one.place.Segment))
		if err != nil {
			t.Fatal(err)
		}
		at := b.rng.IntN(len(one.raw))
		if _, err := file.WriteAt([]byte{one.raw[at] ^ 0x10}, one.place.Offset+int64(at)); err != nil {
			t.Fatal(err)
		}
		first := entry.Index(max(1, i-b.rng.IntN(20)))
		c, at2 := l.NewCursor(first), first
		var f Frames
		for range 2 {
			for {
				place, err := c.Next(&f, l.Last(), 1+b.rng.IntN(5000))
				if err == nil {
					if err := b.matches(l, &f, place); err != nil {
						t.Fatal(err)
					}
					at2 = f.Last() + 1
					continue
				}
				damage := (*CorruptionError)(nil)
				if !errors.As(err, &damage) || damage.Index != entry.Index(i+1) || damage.Segment != one.place.Segment || damage.Offset != one.place.Offset {
					t.Fatalf("entry %d at %+v: %v", i+1, one.place, err)
				}
				break
			}
			if at2 != entry.Index(i+1) {
				t.Errorf("handed out up to %d, entry %d is damaged", at2-1, i+1)
			}
		}
		if _, err := l.PointAt(one.point.Index); one.point.Index != l.Last() && err == nil {
			t.Errorf("PointAt of a damaged entry: %v", err)
		}
		if _, err := file.WriteAt(one.raw[at:at+1], one.place.Offset+int64(at)); err != nil {
			t.Fatal(err)
		}
		file.Close()
		place, err := c.Next(&f, l.Last(), 1)
		if err == nil {
			err = b.matches(l, &f, place)
		}
		if err != nil || f.First() != entry.Index(i+1) {
			t.Errorf("after the repair: entry %d, %v", f.First(), err)
		}
		c.Close()
	}
}

// TestCursorForged: a frame or header whose CRC is right is not enough.
func TestCursorForged(t *testing.T) {
	forge := func(i entry.Index, index entry.Index, term entry.Term, prev uint32) []byte {
		var f Frames
		gather(&f, i, 1)
		f.finish(seedOf(testID), prev, index, term, 0)
		return f.Raw()
	}
	for name, c := range map[string]func(at Place, i entry.Index, prev uint32) (int64, []byte){
		"other chain": func(at Place, i entry.Index, prev uint32) (int64, []byte) { return at.Offset, forge(i, i, 1, prev+1) },
		"other index": func(at Place, i entry.Index, prev uint32) (int64, []byte) { return at.Offset, forge(i, i+1, 1, prev) },
		"lower term":  func(at Place, i entry.Index, prev uint32) (int64, []byte) { return at.Offset, forge(i, i, 0, prev) },
		"header": func(at Place, i entry.Index, prev uint32) (int64, []byte) {
			h := segmentHeader{id: testID, first: at.Segment, prev: prev + 1, size: at.Size}
			return 0, h.encode()
		},
	} {
		mem := newMem(t)
		l, _, _ := mustOpen(t, testConfig(mem), 0)
		var f Frames
		crc, at := make(map[entry.Index]uint32), make(map[entry.Index]Place)
		for len(l.Segments()) < 3 {
			gather(&f, l.Last()+1, 1)
			if _, err := l.Append(&f, 1, 0); err != nil {
				t.Fatal(err)
			}
			crc[f.Last()], at[f.Last()] = f.crc(), l.Place(&f)
		}
		i := l.Segments()[1].First + 2
		if name == "header" {
			i = l.Segments()[1].First
		}
		file, err := mem.Open(segmentPath(at[i].Segment))
		if err != nil {
			t.Fatal(err)
		}
		off, b := c(at[i], i, crc[i-1])
		if _, err := file.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		file.Close()
		cursor := l.NewCursor(1)
		for err == nil {
			_, err = cursor.Next(&f, l.Last(), 1000)
		}
		damage := (*CorruptionError)(nil)
		if !errors.As(err, &damage) || damage.Index != i || damage.Segment != at[i].Segment || damage.Offset != off {
			t.Errorf("%s: %v, want entry %d", name, err, i)
		}
		cursor.Close()
	}
}

func TestCursorGone(t *testing.T) {
	mem := newMem(t)
	b := newBook(4)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustGrow(t, b, l, 40)
	var f Frames
	c := l.NewCursor(1)
	if _, err := c.Next(&f, l.Last(), 1); err != nil {
		t.Fatal(err)
	}
	second := l.Segments()[1].First
	if _, err := l.DropBefore(second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(&f, l.Last(), 1); err != ErrSegmentGone {
		t.Errorf("next in a dropped segment: %v", err)
	}
	if _, err := l.PointAt(second - 2); err != ErrSegmentGone {
		t.Errorf("point below the head: %v", err)
	}
	if p, err := l.PointAt(second - 1); err != nil || p != (Point{Index: second - 1, CRC: b.frames[second-2].point.CRC}) {
		t.Errorf("point before the first entry: %+v, %v", p, err)
	}
	if _, err := l.PointAt(l.Last() + 1); !errors.Is(err, ErrMismatch) {
		t.Errorf("point beyond the end: %v", err)
	}
	for i := second; i <= l.Last(); i++ {
		if p, err := l.PointAt(i); err != nil || p != b.frames[i-1].point {
			t.Fatalf("point at %d: %+v, %v, want %+v", i, p, err, b.frames[i-1].point)
		}
	}
	open := len(mem.OpenFiles())
	c = l.NewCursor(second)
	if _, err := c.Next(&f, l.Last(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DropBefore(l.Last()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if now := len(mem.OpenFiles()); now > open {
		t.Errorf("%d files open, %d before", now, open)
	}
	l.Close()
	if _, err := c.Next(&f, 1<<60, 1); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
	c.Close()
}

// TestTerms: a term that goes down is a bug of the caller in Append, and damage where it stands in a file.
func TestTerms(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	var f Frames
	gather(&f, 1, 2)
	if _, err := l.Append(&f, 7, 0); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("append with a lower term: no panic")
			}
		}()
		gather(&f, 3, 1)
		l.Append(&f, 6, 0)
	}()
	// Write what Append would not.
	tip := l.Tip()
	gather(&f, 3, 1)
	f.finish(l.seed, tip.CRC, 3, 6, 2)
	if _, err := l.file.WriteAt(f.buf, l.pos); err != nil {
		t.Fatal(err)
	}
	if err := l.file.Sync(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	damage := (*CorruptionError)(nil)
	if _, _, err := Open(testConfig(mem), 0, nil); !errors.As(err, &damage) || damage.Index != 3 {
		t.Errorf("open a log whose terms go down: %v", err)
	}
}

// TestTipTerm: the tip's term is known after a restart, even when nothing but headers had to be read.
func TestTipTerm(t *testing.T) {
	mem := newMem(t)
	b := newBook(9)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustGrow(t, b, l, 30)
	if err := l.roll(testSegment, false, l.prev); err != nil { // as before an append that never comes
		t.Fatal(err)
	}
	want := l.Tip()
	if want != b.frames[len(b.frames)-1].point || want.Term < 2 {
		t.Errorf("tip %+v, want %+v", want, b.frames[len(b.frames)-1].point)
	}
	l.Close()
	l, _, saw := mustOpen(t, testConfig(mem), want.Index)
	if l.Tip() != want || len(saw.entries) != 0 {
		t.Errorf("tip after a restart: %+v, want %+v; visited %d", l.Tip(), want, len(saw.entries))
	}
}

// TestCursorAllocs: once the buffer has its size, reading allocates nothing, but for the header of each segment.
func TestCursorAllocs(t *testing.T) {
	l, _, _ := mustOpen(t, Config{FS: newMem(t), LogID: testID, SegmentBytes: 4 << 20, Create: true}, 0)
	var f Frames
	for l.room.Load() > 1<<20 {
		gather(&f, l.Last()+1, 20)
		if _, err := l.Append(&f, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	c := l.NewCursor(1)
	defer c.Close()
	read := func() {
		if _, err := c.Next(&f, l.Last(), 16<<10); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		read()
	}
	if n := testing.AllocsPerRun(100, read); n != 0 {
		t.Errorf("Next allocates %v times", n)
	}
}
