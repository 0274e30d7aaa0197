package wal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"example.com/mq/internal/entry"
)

// written is one frame of a log as a test knows it.
type written struct {
	raw   []byte
	place Place // its own
	point Point
}

// book is what a test knows of a log: the frames that were appended, and not cut.
type book struct {
	rng    *rand.Rand
	term   entry.Term
	frames []written // of entries 1, 2, ...
	f      Frames
}

func newBook(seed uint64) *book { return &book{rng: rand.New(rand.NewPCG(seed, 1)), term: 1} }

// grow appends a group of random size to l, which may need a larger segment, and may have a new term. It is not
// synced.
func (b *book) grow(l *Log) error {
	if b.rng.IntN(10) == 0 {
		b.term += entry.Term(1 + b.rng.IntN(3))
	}
	n, size := 1+b.rng.IntN(6), 300
	switch b.rng.IntN(12) {
	case 0:
		size = 6000 // may be larger than a segment
	case 1:
		n = 1 + b.rng.IntN(60)
	}
	b.f.Reset()
	for i := range entry.Index(n) {
		index := l.Last() + 1 + i
		buf := b.f.Begin(2, testTime+int64(index))
		b.f.End(append(buf, payloadOf(index*7+entry.Index(b.term), b.rng.IntN(size))...))
	}
	// Anything up to what is durable may be known to be committed.
	commit := l.Durable()
	if b.rng.IntN(3) > 0 {
		commit -= min(commit, entry.Index(b.rng.IntN(40)))
	}
	if n := len(b.frames); n > 0 {
		before, _, _ := l.Parse(b.frames[n-1].raw)
		commit = max(commit, before.Commit)
	}
	if _, err := l.Append(&b.f, b.term, commit); err != nil {
		return err
	}
	b.note(l, &b.f)
	return nil
}

// note notes the frames of f, which have their place.
func (b *book) note(l *Log, f *Frames) {
	raw := f.Raw()
	for i := range f.Len() {
		p := f.Position(i)
		at := p.Offset - l.Place(f).Offset
		one := written{raw: bytes.Clone(raw[at : at+p.Length]), place: l.Place(f)}
		one.place.Offset = p.Offset
		e := f.Entry(i)
		var fr frame
		parse(l.seed, one.raw, &fr)
		one.point = Point{Index: e.Index, Term: e.Term, CRC: fr.crc}
		b.frames = append(b.frames, one)
	}
}

// cut forgets the entries after last.
func (b *book) cut(last entry.Index) {
	b.frames = b.frames[:last]
	if last > 0 {
		b.term = max(b.term, b.frames[last-1].point.Term)
	}
}

// matches checks that f holds exactly the frames that were written, each at its place.
func (b *book) matches(l *Log, f *Frames, place Place) error {
	if f.Len() == 0 || place != l.Place(f) || f.Last() != f.First()+entry.Index(f.Len()-1) {
		return fmt.Errorf("%d entries, %d to %d, at %+v and %+v", f.Len(), f.First(), f.Last(), place, l.Place(f))
	}
	raw := f.Raw()
	for i := range f.Len() {
		want := b.frames[f.First()-1+entry.Index(i)]
		if n := len(want.raw); len(raw) < n || !bytes.Equal(raw[:n], want.raw) || want.place != place ||
			f.Position(i).Offset != place.Offset || f.Entry(i).Index != want.point.Index {
			return fmt.Errorf("entry %d is not what was written: at %+v, want %+v", f.Entry(i).Index, place, want.place)
		}
		raw = raw[len(want.raw):]
		place.Offset += int64(len(want.raw))
	}
	if len(raw) > 0 || f.Term() != b.frames[f.Last()-1].point.Term {
		return fmt.Errorf("%d bytes left, term %d", len(raw), f.Term())
	}
	return nil
}

// holds checks that a log that was just opened has the entries after from up to its end, and no others.
func (b *book) holds(l *Log, from entry.Index) error {
	if l.Last() > entry.Index(len(b.frames)) {
		return fmt.Errorf("the log ends with entry %d, and %d were written", l.Last(), len(b.frames))
	}
	c := l.NewCursor(from + 1)
	defer c.Close()
	var f Frames
	for at := from; at < l.Last(); at = f.Last() {
		place, err := c.Next(&f, l.Last(), 1<<20)
		if err != nil {
			return err
		}
		if err := b.matches(l, &f, place); err != nil {
			return err
		}
	}
	if last := l.Last(); last > from && l.Tip() != b.frames[last-1].point {
		return fmt.Errorf("tip %+v, want %+v", l.Tip(), b.frames[last-1].point)
	}
	return nil
}

// cleanBehind checks that nothing but zeros stands behind the end of the log in its active segment.
func cleanBehind(l *Log) error {
	clean, err := allZeroAt(l.file, l.pos, int(l.active.size-l.pos))
	if err == nil && !clean {
		err = fmt.Errorf("bytes behind %d of %s are not zero", l.pos, l.active.path)
	}
	return err
}

func mustGrow(t testing.TB, b *book, l *Log, times int) {
	t.Helper()
	for range times {
		if err := b.grow(l); err != nil {
			t.Fatal(err)
		}
		if b.rng.IntN(3) > 0 {
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
