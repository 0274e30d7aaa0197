package catchup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// newOrigin is a host that has dropped its head, has snapshots, and a tail that is not committed.
func newOrigin(t testing.TB, seed uint64, dropped, tail int) *host {
	t.Helper()
	h := newHost(t, seed)
	h.grow(100)
	list := h.log.Segments()
	if dropped > 0 {
		if _, err := h.log.DropBefore(list[dropped].First); err != nil {
			t.Fatal(err)
		}
		h.snapshot(list[dropped].First+1, 3000)
	}
	h.snapshot(h.standing.Commit-5, 3000)
	h.append(tail)
	h.sync()
	return h
}

// TestFull fetches everything, and goes on afterwards.
func TestFull(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			h := newOrigin(t, seed, int(seed%3)*2, int(seed%4)*15)
			l := serve(t, h)
			f := newFolder(t)
			var done, total int64
			c := l.client()
			if seed%2 == 0 {
				c.LogID = entry.LogID{}
			}
			opt := FullOptions{Demand: Demand{Leader: true, MinTerm: 1}, Inline: seed%3 == 0, Progress: func(d, n int64) { done, total = d, n }}
			res, err := Full(t.Context(), c, f, opt)
			if err != nil || res.Last != h.log.Tip() || !f.whole || f.resets != 1 {
				t.Fatalf("seed %d: full: %+v, %v, whole %v", seed, res, err, f.whole)
			}
			if done != total || total != f.written {
				t.Errorf("progress %d of %d, and %d bytes were written", done, total, f.written)
			}
			if !bytes.Equal(f.snap, h.files[h.standing.Commit-5]) {
				t.Error("another snapshot")
			}
			mustEqual(t, h.mem, f.mem, f.log)
			if a, b := h.log.Segments(), f.log.Segments(); a[0] != b[0] || len(a) != len(b) {
				t.Errorf("%d segments from %+v on, want %d from %+v on", len(b), b[0], len(a), a[0])
			}
			h.grow(20)
			extend(t, l, f.log, ExtendOptions{Commit: res.Peer.Commit})
			mustEqual(t, h.mem, f.mem, f.log)
		})
	}
}

// TestFullBegin begins the log before the first entry that may not be committed, so that what the peer's successor replaces
// can be cut here, too.
func TestFullBegin(t *testing.T) {
	for seed := range uint64(10) {
		h := newOrigin(t, seed, 1, 0)
		committed := h.log.Last()
		h.append(50) // across segments
		l := serve(t, h)
		f := newFolder(t)
		if _, err := Full(t.Context(), l.client(), f, FullOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := h.log.Truncate(committed); err != nil {
			t.Fatal(err)
		}
		h.lead(2, true)
		h.append(30)
		extend(t, l, f.log, ExtendOptions{Commit: committed})
		h.sync()
		mustEqual(t, h.mem, f.mem, f.log)

		// The same while the folder is not whole: only the begin of its log is known to be committed.
		g := newFolder(t)
		m, err := l.client().Manifest(t.Context())
		if err != nil || m.Start.Segment > m.Commit+1 {
			t.Fatalf("start %+v, commit %d, %v", m.Start, m.Commit, err)
		}
		if err := g.Reset(testID, m.Start); err != nil {
			t.Fatal(err)
		}
		extend(t, l, g.log, ExtendOptions{})
		if err := h.log.Truncate(committed); err != nil {
			t.Fatal(err)
		}
		h.lead(3, true)
		h.grow(30)
		if _, err := Full(t.Context(), l.client(), g, FullOptions{}); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, h.mem, g.mem, g.log)
	}
}

// TestFullCut cuts the connection and the power at every call, and goes on with what has come,
// from another peer.
func TestFullCut(t *testing.T) {
	uncut := serve(t, newOrigin(t, 3, 2, 20))
	if _, err := Full(t.Context(), uncut.client(), newFolder(t), FullOptions{}); err != nil {
		t.Fatal(err)
	}
	for cut := 1; ; cut++ {
		h := newOrigin(t, 3, 2, 20)
		l := serve(t, h)
		f := newFolder(t)
		reached := false
		l.after = func(n int, _, b []byte) ([]byte, error) {
			if reached = reached || n == cut; n == cut {
				return nil, errCut
			}
			return b, nil
		}
		_, err := Full(t.Context(), l.client(), f, FullOptions{})
		if !reached {
			if err != nil || cut < 10 {
				t.Fatalf("%d calls, %v", cut, err)
			}
			return
		}
		if !errors.Is(err, errCut) || f.whole {
			t.Fatalf("cut at call %d: %v, whole %v", cut, err, f.whole)
		}
		for c := range f.mem.(*memfs.FS).CrashStates(uint64(cut), 3) {
			f.restart(c.FS)
			break
		}
		before := l.calls
		h = h.clone() // another node leads
		l = serve(t, h)
		h.grow(3)
		if _, err := Full(t.Context(), l.client(), f, FullOptions{}); err != nil {
			t.Fatalf("cut at call %d: %v", cut, err)
		}
		if f.resets > 1 {
			t.Errorf("cut at call %d: began anew", cut)
		}
		if before+l.calls > uncut.calls+10 { // what was a tail of frames may be segments now
			t.Errorf("cut at call %d: %d more calls, and all are %d", cut, l.calls, uncut.calls)
		}
		mustEqual(t, h.mem, f.mem, f.log)
	}
}

// TestFullDamagedFiles fetches again what arrives damaged, and gives up when it always does.
func TestFullDamagedFiles(t *testing.T) {
	for _, c := range []struct {
		kind  kind
		times int
		want  error
		bad   int
	}{
		{kindSegment, 1, nil, 1}, {kindSegment, 100, ErrDamaged, fileTries},
		{kindSnapshot, 2, nil, 2}, {kindSnapshot, fileTries, nil, fileTries}, {kindSnapshot, 100, ErrDamaged, 2 * fileTries},
	} {
		h := newOrigin(t, 4, 2, 0)
		l := serve(t, h)
		f := newFolder(t)
		flips := 0
		l.after = func(n int, q, b []byte) ([]byte, error) {
			if q[5] == byte(c.kind) && flips < c.times {
				flips++
				b[answerHeader+16+100] ^= 1
				seal(b)
			}
			return b, nil
		}
		_, err := Full(t.Context(), l.client(), f, FullOptions{})
		if !errors.Is(err, c.want) || c.want == nil && err != nil || f.bad != c.bad {
			t.Errorf("%+v: %v after %d damaged files", c, err, f.bad)
		}
		if c.want == nil {
			mustEqual(t, h.mem, f.mem, f.log)
			older := c.times == fileTries && c.kind == kindSnapshot
			if newest := h.standing.Commit - 5; older == bytes.Equal(f.snap, h.files[newest]) {
				t.Errorf("%+v: the wrong snapshot", c)
			}
		}
	}
}

// TestFullVanishing drops segments and snapshots of the peer while they are fetched: a new manifest is made.
func TestFullVanishing(t *testing.T) {
	for at := 2; at < 14; at++ {
		h := newOrigin(t, 5, 0, 0)
		h.snapshot(h.standing.Commit/2, 2000)
		l := serve(t, h)
		f := newFolder(t)
		l.before = func(n int, _ []byte) error {
			if n == at {
				if !l.s.Held() {
					t.Error("not held")
				}
				h.grow(10)
				clear(h.files)
				h.snapshot(h.standing.Commit, 1000)
				list := h.log.Segments()
				if _, err := h.log.DropBefore(list[len(list)-3].First); err != nil {
					t.Fatal(err)
				}
			}
			return nil
		}
		if _, err := Full(t.Context(), l.client(), f, FullOptions{}); err != nil {
			t.Fatalf("dropped before call %d: %v", at, err)
		}
		if a, b := h.log.Segments()[0], f.log.Segments()[0]; b.First > a.First {
			t.Errorf("the log begins with entry %d, and the peer's with %d", b.First, a.First)
		}
		mustEqual(t, h.mem, f.mem, f.log)
	}
}

// TestFullOtherBegin has the begun log of an earlier attempt begin with a segment that is not there any more: its entries
// were not committed after all, and the new leader has them elsewhere.
func TestFullOtherBegin(t *testing.T) {
	h := newOrigin(t, 6, 1, 0)
	for n := len(h.log.Segments()); len(h.log.Segments()) == n; {
		h.append(1)
	}
	h.sync()
	list := h.log.Segments()
	last := list[len(list)-1]
	place, err := h.log.SegmentPlace(last.First)
	if err != nil {
		t.Fatal(err)
	}
	f := newFolder(t)
	if err := f.Reset(testID, place); err != nil {
		t.Fatal(err)
	}
	l := serve(t, h)
	extend(t, l, f.log, ExtendOptions{})
	if err := h.log.Truncate(last.First - 1); err != nil {
		t.Fatal(err)
	}
	h.lead(2, true)
	h.grow(1)
	h.grow(40)
	if _, err := Full(t.Context(), l.client(), f, FullOptions{}); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, h.mem, f.mem, f.log)
}

// TestFullLateBegin has the begun log of an earlier attempt begin where not everything before it is committed: it begins
// anew.
func TestFullLateBegin(t *testing.T) {
	h := newOrigin(t, 11, 1, 60)
	list := h.log.Segments()
	place, err := h.log.SegmentPlace(list[len(list)-1].First)
	if err != nil || list[len(list)-1].First <= h.standing.Commit+1 {
		t.Fatal(err)
	}
	f := newFolder(t)
	if err := f.Reset(testID, place); err != nil {
		t.Fatal(err)
	}
	if _, err := Full(t.Context(), serve(t, h).client(), f, FullOptions{}); err != nil || f.resets != 2 {
		t.Errorf("%d resets, %v", f.resets, err)
	}
	mustEqual(t, h.mem, f.mem, f.log)
}

// TestFullNothing refuses a peer that does not have everything.
func TestFullNothing(t *testing.T) {
	h := newOrigin(t, 7, 2, 0)
	clear(h.files)
	h.snapshot(h.log.Segments()[0].First-2, 1000)
	l := serve(t, h)
	f := newFolder(t)
	if _, err := Full(t.Context(), l.client(), f, FullOptions{}); !errors.Is(err, ErrUnavailable) || f.resets > 0 {
		t.Errorf("error %v, %d resets", err, f.resets)
	}
	h.lead(4, false)
	if _, err := Full(t.Context(), l.client(), f, FullOptions{Demand: Demand{Leader: true}}); !errors.As(err, new(*NotLeaderError)) || f.resets > 0 {
		t.Errorf("error %v, %d resets", err, f.resets)
	}
}

// TestFullSink returns the errors of the sink, and stays as it was.
func TestFullSink(t *testing.T) {
	h := newOrigin(t, 8, 1, 10)
	l := serve(t, h)
	count := faultfs.New(newMem(t))
	f := &folder{t: t, mem: count}
	if _, err := Full(t.Context(), l.client(), f, FullOptions{}); err != nil {
		t.Fatal(err)
	}
	f.log.Close()
	boom := errors.New("boom")
	for at := 1; at <= count.Count(faultfs.Changes()...); at += 7 {
		disk := faultfs.New(newMem(t))
		disk.Inject(faultfs.Fault{Kinds: faultfs.Changes(), At: at, Err: boom})
		f := &folder{t: t, mem: disk}
		_, err := Full(t.Context(), l.client(), f, FullOptions{})
		if err == nil {
			t.Errorf("operation %d failed, and there was no error", at)
		}
		if f.log != nil {
			f.log.Close()
		}
	}
}

// TestManifest refuses manifests that cannot be.
func TestManifest(t *testing.T) {
	h := newOrigin(t, 9, 2, 30)
	l := serve(t, h)
	good, err := l.client().Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(good.Snapshots) != 2 || len(good.Segments) < 4 || good.Start.Segment == good.Segments[len(good.Segments)-1].First || good.Leader != true {
		t.Errorf("manifest %+v", good)
	}
	for i, spoil := range []func(m *Manifest){
		func(m *Manifest) { m.Segments = nil },
		func(m *Manifest) { m.LogID = entry.LogID{} },
		func(m *Manifest) { m.Segments[0].First = 0 },
		func(m *Manifest) { m.Segments[0].Bytes = 511 },
		func(m *Manifest) { m.Segments[1].First++ },
		func(m *Manifest) { m.Segments[0].Last = m.Segments[0].First - 1 },
		func(m *Manifest) { m.Segments[0].Last++ },
		func(m *Manifest) { m.Start.Segment++ },
		func(m *Manifest) { m.Start.Offset++ },
		func(m *Manifest) { m.Start.Segment = m.Segments[len(m.Segments)-1].First },
		func(m *Manifest) { m.Snapshots[0].Index = m.Commit + 1 },
		func(m *Manifest) { m.Snapshots[0].Bytes = 0 },
		func(m *Manifest) { m.Snapshots[1].Index = 0 },
		func(m *Manifest) { m.Snapshots[1].Index = m.Snapshots[0].Index },
	} {
		m := good
		m.Segments, m.Snapshots = slices.Clone(good.Segments), slices.Clone(good.Snapshots)
		spoil(&m)
		if err := m.check(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestSegment fetches the bytes of segments from any offset on, of the active one what is durable.
func TestSegment(t *testing.T) {
	h := newOrigin(t, 10, 0, 5)
	h.append(1) // not durable
	l := serve(t, h)
	list := h.log.Segments()
	for _, g := range []wal.Segment{list[0], list[1], list[len(list)-1]} {
		f, err := h.mem.OpenRead(fmt.Sprintf("log/%020d.seg", g.First))
		if err != nil {
			t.Fatal(err)
		}
		file := make([]byte, g.Bytes)
		if _, err := f.ReadAt(file, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		for _, from := range []int64{0, 1, 5000, g.Bytes} {
			var got []byte
			n, err := Segment(t.Context(), l.client(), g.First, from, g.Bytes, func(p []byte) error {
				got = append(got, p...)
				return nil
			})
			if n != int64(len(got)) || !bytes.HasPrefix(file[from:], got) {
				t.Errorf("segment %d from %d on: %d bytes, other ones", g.First, from, n)
			}
			if g.Sealed && (err != nil || from+n != g.Bytes) {
				t.Errorf("segment %d from %d on: %d bytes of %d, %v", g.First, from, n, g.Bytes, err)
			}
			if !g.Sealed && from < 5000 && (err == nil || n < 512-from || bytes.Count(got[max(0, int(512-from)):], []byte{0}) == len(got)) {
				t.Errorf("active segment from %d on: %d bytes, %v", from, n, err)
			}
		}
	}
	if _, err := Segment(t.Context(), l.client(), list[1].First+1, 0, 100, nil); !errors.Is(err, ErrGone) {
		t.Errorf("a segment that never was: %v", err)
	}
	stop := errors.New("stop")
	if n, err := Segment(t.Context(), l.client(), list[0].First, 0, 1000, func([]byte) error { return stop }); err != stop || n != 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Segment(ctx, l.client(), list[0].First, 0, 1000, func([]byte) error { return nil }); err == nil {
		t.Error("canceled, and no error")
	}
}
