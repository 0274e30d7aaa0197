package wal

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
)

// TestVerifySegmentPace: the scrub reads all of a segment, in pieces, and stops when it is told to.
func TestVerifySegmentPace(t *testing.T) {
	cfg := testConfig(newMem(t))
	cfg.SegmentBytes = 1 << 20
	l, _, _ := mustOpen(t, cfg, 0)
	for len(l.Segments()) < 2 {
		mustPut(t, l, 100)
	}
	total, most := 0, 0
	err := l.VerifySegment(context.Background(), 1, func(bytes int) error {
		total, most = total+bytes, max(most, bytes)
		return nil
	})
	if err != nil || total < 1<<20-headerSize || total > 1<<20+64<<10 || most > scrubBytes {
		t.Errorf("read %d bytes, at most %d at a time, %v", total, most, err)
	}
	stop := errors.New("stop")
	if err := l.VerifySegment(context.Background(), 1, func(int) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	reads := 0
	err = l.VerifySegment(ctx, 1, func(int) error { reads++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || reads != 1 {
		t.Errorf("cancelled after %d reads: %v", reads, err)
	}
	active := l.Segments()[1].First
	if err := l.VerifySegment(context.Background(), active, nil); !errors.Is(err, ErrMismatch) {
		t.Errorf("the active segment: %v", err)
	}
	if err := l.VerifySegment(context.Background(), 2, nil); !errors.Is(err, ErrSegmentGone) {
		t.Errorf("no segment: %v", err)
	}
}

// TestVerifySegmentStale: a segment of an earlier time, good in itself, does not pass.
func TestVerifySegmentStale(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	var f Frames
	grow := func(segments int, term entry.Term) {
		for len(l.Segments()) < segments {
			gather(&f, l.Last()+1, 1)
			if _, err := l.Append(&f, term, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	grow(3, 1)
	s := l.Segments()[1]
	stale := readFile(t, mem, segmentPath(s.First))
	if err := l.Truncate(s.Last - 1); err != nil {
		t.Fatal(err)
	}
	grow(4, 2)
	if now := l.Segments()[1]; now != s {
		t.Fatalf("the segment is %+v now, and was %+v", now, s)
	}
	if err := l.VerifySegment(context.Background(), s.First, nil); err != nil {
		t.Fatal(err)
	}
	rewrite(t, mem, segmentPath(s.First), func([]byte) []byte { return stale })
	damage := (*CorruptionError)(nil)
	if err := l.VerifySegment(context.Background(), s.First, nil); !errors.As(err, &damage) || damage.Segment != s.First || damage.Index != s.Last {
		t.Errorf("the scrub found %v", err)
	}
	found, err := TakeSurvey(mem, "log", testID, 0)
	if err != nil || found.Intact() || found.Whole != s.Last {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestReadSegmentAt: a peer gets every byte of sealed segments, and of the active one what is durable.
func TestReadSegmentAt(t *testing.T) {
	p := newPatient(t, 2)
	list := p.log.Segments()
	active := list[len(list)-1]
	durable := p.log.active.end.Load()
	mustPutUnsynced(t, p.book, p.log)
	for _, s := range list {
		want := readFile(t, p.mem, segmentPath(s.First))
		if s == active {
			want = want[:durable]
		}
		var got []byte
		for {
			b := make([]byte, 1+p.rng.IntN(2000))
			n, err := p.log.ReadSegmentAt(b, s.First, int64(len(got)))
			got = append(got, b[:n]...)
			if err == io.EOF && n < len(b) {
				break
			}
			if err != nil || n < len(b) {
				t.Fatalf("%d bytes of %d, %v", n, len(b), err)
			}
		}
		if string(got) != string(want) {
			t.Errorf("segment %d: %d bytes, want %d", s.First, len(got), len(want))
		}
		if n, err := p.log.ReadSegmentAt(make([]byte, 10), s.First, 1<<40); n != 0 || err != io.EOF {
			t.Errorf("far behind the end: %d, %v", n, err)
		}
		if _, err := p.log.ReadSegmentAt(make([]byte, 10), s.First, -1); !errors.Is(err, ErrMismatch) {
			t.Errorf("before the beginning: %v", err)
		}
	}
	if _, err := p.log.DropBefore(list[1].First); err != nil {
		t.Fatal(err)
	}
	if _, err := p.log.ReadSegmentAt(make([]byte, 10), list[0].First, 0); err != ErrSegmentGone {
		t.Errorf("dropped: %v", err)
	}
}

// mustPutUnsynced appends one entry to the active segment.
func mustPutUnsynced(t testing.TB, b *book, l *Log) {
	t.Helper()
	b.f.Reset()
	b.f.End(append(b.f.Begin(2, testTime), "not synced"...))
	if l.pos+int64(b.f.Bytes()) > l.active.size {
		t.Fatal("the active segment is full")
	}
	if _, err := l.Append(&b.f, b.term, l.Durable()); err != nil {
		t.Fatal(err)
	}
	b.note(l, &b.f)
}

// TestRepairWhileUsed repairs segments over and over while others read, verify and drop them, and the log grows. No
// reader sees anything but good frames, and no repair a log that it does not fit.
func TestRepairWhileUsed(t *testing.T) {
	rounds := 60
	if invariant.Enabled {
		rounds = 15
	}
	p := newPatient(t, 7)
	list := p.peer.Segments()
	last := list[len(list)-2].Last
	var wait sync.WaitGroup
	stop := make(chan struct{})
	loop := func(do func() error) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	gone := func(err error) error {
		if errors.Is(err, ErrSegmentGone) {
			return nil
		}
		return err
	}
	for range 2 {
		loop(func() error {
			var f Frames
			c := p.log.NewCursor(list[0].First)
			defer c.Close()
			for c.next <= last {
				if _, err := c.Next(&f, last, 700); err != nil {
					return gone(err)
				}
			}
			return nil
		})
	}
	loop(func() error {
		for _, s := range list[:len(list)-1] {
			if err := gone(p.log.VerifySegment(context.Background(), s.First, nil)); err != nil {
				return err
			}
			b := make([]byte, 100)
			if _, err := p.log.ReadAt(b, s.First, headerSize); gone(err) != nil {
				return err
			}
			if _, err := p.log.PointAt(s.Last); gone(err) != nil {
				return err
			}
		}
		return nil
	})
	loop(func() error { return put(p.log, 1) })
	for round := range rounds {
		if round == rounds*2/3 {
			if _, err := p.log.DropBefore(list[1].First); err != nil {
				t.Error(err)
			}
		}
		s := list[p.rng.IntN(len(list)-1)]
		if _, err := p.healOpen(s); gone(err) != nil {
			t.Errorf("repair of %d: %v", s.First, err)
		}
	}
	close(stop)
	wait.Wait()
	if n := len(p.log.Segments()); n < len(list)-1 {
		t.Errorf("%d segments", n)
	}
	for _, s := range p.log.Segments()[:len(list)-2] {
		if err := p.log.VerifySegment(context.Background(), s.First, nil); err != nil {
			t.Error(err)
		}
	}
	p.log.Close()
	if open := p.mem.OpenFiles(); len(open) > 0 {
		t.Errorf("open after Close: %v", open)
	}
	if _, err := p.log.Repair(entry.Index(1), testSegment); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
