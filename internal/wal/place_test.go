package wal

import (
	"errors"
	"io"
	"testing"

	"example.com/mq/internal/entry"
)

// TestBehind: the place behind the last entry is known while the active segment is empty, in every way that it can come
// to be so, and an entry that belongs there finds it.
func TestBehind(t *testing.T) {
	p := newPairOfLogs(t, 4)
	if place, ok := p.leader.Behind(); ok {
		t.Errorf("an empty log: %+v", place)
	}
	if got, want := p.leader.Next(), (Place{Segment: 1, Size: testSegment, Offset: headerSize}); got != want {
		t.Errorf("next in an empty log: %+v, want %+v", got, want)
	}
	for len(p.leader.Segments()) < 3 {
		mustGrow(t, p.book, p.leader, 1)
	}
	if err := errors.Join(p.catchUp(), p.sync()); err != nil {
		t.Fatal(err)
	}
	want := p.follower.Next()
	if place, ok := p.follower.Behind(); !ok || place != want || want != p.leader.Next() {
		t.Errorf("behind %+v, %t; next %+v, of the leader %+v", place, ok, want, p.leader.Next())
	}
	check := func(what string) {
		t.Helper()
		if place, ok := p.follower.Behind(); !ok || place != want {
			t.Errorf("%s: behind %+v, %t; want %+v", what, place, ok, want)
		}
		if next := p.follower.Next(); next.Segment != p.follower.Last()+1 || next.Offset != headerSize || next.Prev != p.follower.Tip().CRC {
			t.Errorf("%s: next %+v, tip %+v", what, next, p.follower.Tip())
		}
	}
	if err := p.follower.roll(headerSize, false, p.follower.prev); err != nil {
		t.Fatal(err)
	}
	check("rolled")
	if err := p.follower.roll(2*testSegment, true, p.follower.prev); err != nil {
		t.Fatal(err)
	}
	check("rolled to a larger one")
	p.follower.Close()
	p.follower, _, _ = mustOpen(t, p.config(p.followerMem), 0)
	check("opened")
	p.follower.Close()
	p.follower, _, _ = mustOpen(t, p.config(p.followerMem), p.follower.Last())
	check("opened with a snapshot")
	if got := p.follower.Tip(); got != p.leader.Tip() {
		t.Errorf("tip %+v, want %+v", got, p.leader.Tip())
	}
	// Dropped: then there is no place, and the entry must begin a segment.
	dropped := p.followerMem.Clone()
	l, _, _ := mustOpen(t, p.config(dropped), p.follower.Last())
	if _, err := l.DropBefore(l.Last() + 1); err != nil {
		t.Fatal(err)
	}
	if place, ok := l.Behind(); ok || len(l.Segments()) != 1 {
		t.Errorf("dropped: %+v", place)
	}
	// Damaged: the same.
	damaged := p.followerMem.Clone()
	flip(t, damaged, segmentPath(want.Segment), headerSize+9)
	l, _, _ = mustOpen(t, p.config(damaged), p.follower.Last())
	if place, ok := l.Behind(); ok {
		t.Errorf("damaged: %+v", place)
	}
	if err := p.live(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.leader.Sync(), p.sync()); err != nil {
		t.Fatal(err)
	}
	if c, err := p.compare(); err != nil || !c.Equal() {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestBehindPrepended: a replica that began with an empty segment, and then got its history, knows where that ends, and
// the term of its last entry, and goes on in the last segment of the history.
func TestBehindPrepended(t *testing.T) {
	o := newPatient(t, 6)
	list := o.peer.Segments()
	sealed := list[len(list)-2]
	want := o.frames[sealed.Last-1]
	begin, err := o.peer.SegmentPlace(sealed.Last + 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := o.config()
	cfg.FS, cfg.Begin = newMem(t), &begin
	l, _, _ := mustOpen(t, cfg, 0)
	if place, ok := l.Behind(); ok {
		t.Errorf("before: %+v", place)
	}
	for _, s := range list[:len(list)-1] {
		im, err := l.Import(s.First, s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, s.Bytes)
		if _, err := o.peer.ReadSegmentAt(b, s.First, 0); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if err := im.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := im.Finish(s.Last, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Prepend(); err != nil {
		t.Fatal(err)
	}
	if l.Tip() != want.point {
		t.Errorf("tip %+v, want %+v", l.Tip(), want.point)
	}
	place, ok := l.Behind()
	end := want.place
	end.Offset += entry.Position{Length: int64(len(want.raw))}.End()
	if !ok || place != end {
		t.Fatalf("behind %+v, %t; want %+v", place, ok, end)
	}
	// Another leader did not roll there.
	var f, loaded Frames
	f.End(append(f.Begin(2, testTime), "x"...))
	if place.Offset+int64(f.Bytes()) > place.Size {
		t.Skip("no room")
	}
	f.finish(l.seed, want.point.CRC, sealed.Last+1, want.point.Term+1, 0)
	if err := l.Load(&loaded, place, f.Raw()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.AppendReplica(&loaded, place), l.Sync(), cleanBehind(l)); err != nil {
		t.Fatal(err)
	}
	if got := l.Segments(); got[len(got)-1].First != sealed.First || l.Last() != sealed.Last+1 {
		t.Errorf("segments %+v", got)
	}
}
