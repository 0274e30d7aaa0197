package catchup

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

func TestIntroduce(t *testing.T) {
	h := newHost(t, 1)
	h.grow(3)
	l := serve(t, h)
	in := Introduction{Fingerprint: [32]byte{1}, Self: 1, Nodes: 3, NodeID: [16]byte{2}, LogID: testID, Boot: 3, Nonce: 1 << 63, Phase: "new", Term: 4, Last: 5, LastTerm: 6}
	c := Client{Peer: l}
	got, standing, err := c.Introduce(t.Context(), in)
	if err != nil || got.Verdict != VerdictOK || got.Nodes != 3 || standing.Last != h.log.Tip() || standing.LogID != testID {
		t.Errorf("%+v, %+v, %v", got, standing, err)
	}
	in.Self = 2 // the line is that of node 1
	if _, _, err := c.Introduce(t.Context(), in); !errors.Is(err, ErrMalformed) {
		t.Errorf("as another node: %v", err)
	}
	in.Self, in.Nodes = 0, 1
	if _, _, err := c.Introduce(t.Context(), in); !errors.Is(err, ErrMalformed) {
		t.Errorf("to itself: %v", err)
	}
}

func TestForm(t *testing.T) {
	h := newHost(t, 2)
	var got *Formation
	h.formed = func(from int, f *Formation) error {
		if got = f; from != 1 {
			t.Errorf("from node %d", from)
		}
		return nil
	}
	c := Client{Peer: serve(t, h)}
	f := Formation{Fingerprint: [32]byte{9}, LogID: testID, Members: [][16]byte{{1}, {2}, {3}}}
	if err := c.Form(t.Context(), f); err != nil || got == nil || got.Members[2] != f.Members[2] || got.LogID != testID {
		t.Errorf("%+v, %v", got, err)
	}
	h.formed = func(int, *Formation) error { return errors.New(strings.Repeat("it is formed already \xff", 200)) }
	if err := c.Form(t.Context(), f); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it is formed already") {
		t.Errorf("error %v", err)
	}
}

func TestHash(t *testing.T) {
	h := newHost(t, 3)
	h.grow(3)
	c := serve(t, h).client()
	if hash, known, err := c.Hash(t.Context(), 2); err != nil || !known || hash != [32]byte{2} {
		t.Errorf("%x, %v, %v", hash, known, err)
	}
	if _, known, err := c.Hash(t.Context(), 1000); err != nil || known {
		t.Errorf("known %v, %v", known, err)
	}
}

// TestPoints compares with what the log says itself.
func TestPoints(t *testing.T) {
	h := newHost(t, 4)
	h.grow(80)
	list := h.log.Segments()
	if _, err := h.log.DropBefore(list[2].First); err != nil {
		t.Fatal(err)
	}
	head := h.log.Segments()[0].First
	tip := h.log.Tip()
	c := serve(t, h).client()
	for range 50 {
		var ask []entry.Index
		for i := tip.Index + entry.Index(h.rng.IntN(3)); len(ask) < 1+h.rng.IntN(pointsMax); i -= min(i, 1+entry.Index(h.rng.IntN(30))) {
			ask = append(ask, i)
			if i == 0 {
				break
			}
		}
		got, standing, err := c.Points(t.Context(), ask)
		if err != nil || standing.Last != tip {
			t.Fatalf("%v, %+v", err, standing)
		}
		segments := make(map[entry.Index]bool)
		for i, p := range got {
			own, ownErr := h.log.PointAt(ask[i])
			switch {
			case p.Index != ask[i]:
				t.Errorf("point %d instead of %d", p.Index, ask[i])
			case p.Beyond != (ask[i] > tip.Index), p.Gone != (ask[i]+1 < head && ask[i] > 0):
				t.Errorf("point %d: %+v", ask[i], p)
			case p.Known && ask[i] > 0 && (ownErr != nil || p.Point != own):
				t.Errorf("point %d: %+v, want %+v, %v", ask[i], p.Point, own, ownErr)
			case p.Known && ask[i] >= head && ask[i] < tip.Index:
				for _, g := range h.log.Segments() {
					if g.First <= ask[i] && ask[i] <= g.Last {
						segments[g.First] = true
					}
				}
			case !p.Known && !p.Beyond && !p.Gone && len(segments) < lookSegments-1:
				t.Errorf("point %d was not looked at, after %d segments", ask[i], len(segments))
			}
		}
		if len(segments) > lookSegments {
			t.Errorf("%d segments were read", len(segments))
		}
	}
}

// TestRefusals are requests that get no answer.
func TestRefusals(t *testing.T) {
	h := newHost(t, 5)
	h.grow(3)
	l := serve(t, h)
	frames := (&request{kind: kindFrames, logID: testID, limit: 100}).encode()
	change := func(at int, v byte) []byte {
		b := append([]byte(nil), frames...)
		b[at] = v
		return seal(b)
	}
	mid, err := h.log.PointAt(2)
	if err != nil {
		t.Fatal(err)
	}
	bad := append([]byte(nil), frames...)
	bad[30]++
	for name, c := range map[string]struct {
		from int
		b    []byte
		want error
	}{
		"empty":     {1, nil, ErrMalformed},
		"short":     {1, frames[:10], ErrMalformed},
		"long":      {1, seal(append(frames[:len(frames):len(frames)], 0)), ErrMalformed},
		"too long":  {1, seal(append(frames[:len(frames):len(frames)], make([]byte, RequestMax)...)), ErrMalformed},
		"version":   {1, change(4, 2), ErrVersion},
		"kind":      {1, change(5, 99), ErrMalformed},
		"kind 0":    {1, change(5, 0), ErrMalformed},
		"reserved":  {1, change(6, 1), ErrMalformed},
		"log":       {1, change(8, 99), ErrForeign},
		"checksum":  {1, bad, ErrMalformed},
		"stranger":  {3, frames, ErrMalformed},
		"nobody":    {-1, frames, ErrMalformed},
		"no such":   {1, (&request{kind: kindSnapshot, logID: testID, file: 2, limit: 10}).encode(), ErrGone},
		"no bytes":  {1, (&request{kind: kindSegment, logID: testID, file: 1}).encode(), ErrMalformed},
		"past":      {1, (&request{kind: kindSegment, logID: testID, file: 1, offset: 1 << 40, limit: 10}).encode(), ErrMalformed},
		"rising":    {1, (&request{kind: kindPoints, logID: testID, indexes: []entry.Index{1, 2}}).encode(), ErrMalformed},
		"too many":  {1, (&request{kind: kindPoints, logID: testID, indexes: make([]entry.Index, pointsMax+1)}).encode(), ErrMalformed},
		"no points": {1, (&request{kind: kindPoints, logID: testID}).encode(), ErrMalformed},
		"beyond":    {1, (&request{kind: kindFrames, logID: testID, after: wal.Point{Index: 1000, Term: 1}}).encode(), ErrBehind},
		"differs":   {1, (&request{kind: kindFrames, logID: testID, after: wal.Point{Index: 2, Term: 1, CRC: 1}}).encode(), ErrDiffers},
		"no begin":  {1, (&request{kind: kindFrames, logID: testID, after: wal.Point{Index: 2, CRC: mid.CRC}}).encode(), ErrDiffers},
	} {
		var a answer
		k := kind(0)
		if len(c.b) > 5 {
			k = kind(c.b[5])
		}
		out := l.s.Answer(t.Context(), c.from, c.b)
		if err := a.decode(out, k); !errors.Is(err, c.want) || errors.As(err, new(*RefusedError)) != (err != nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	h.mu.Lock()
	h.log = nil
	h.mu.Unlock()
	if _, err := l.client().Manifest(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a log: %v", err)
	}
	l.s.Close()
	if _, _, err := l.client().Hash(t.Context(), 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

// TestBounded makes a few answers at once, and not more for one peer than its share.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 6)
		h.grow(3)
		h.snapshot(3, 100)
		var mu sync.Mutex
		now, most := 0, 0
		release := make(chan struct{})
		h.opened = func() {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-release
			mu.Lock()
			now--
			mu.Unlock()
		}
		s := NewServer(ServerConfig{Source: h, Clock: clock.NewManual(time.UnixMilli(testTime)), Nodes: 3})
		ask := (&request{kind: kindSnapshot, logID: testID, file: 3, limit: 100}).encode()
		answer1 := func(ctx context.Context, from int) error {
			var a answer
			return a.decode(s.Answer(ctx, from, ask), kindSnapshot)
		}
		var wg sync.WaitGroup
		wait := func(from, n int) {
			for range n {
				wg.Go(func() {
					if err := answer1(t.Context(), from); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		wait(1, 5)
		if most != peerAnswersMax {
			t.Errorf("%d answers for one peer at once", most)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { gaveUp <- answer1(ctx, 1) }() // received below
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, ErrUnavailable) {
			t.Errorf("canceled while it waits: %v", err)
		}
		wait(0, 3)
		wait(2, 3)
		if most != answersMax {
			t.Errorf("%d answers at once", most)
		}
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }() // awaited below
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while answers are made")
		default:
		}
		close(release)
		wg.Wait()
		<-closed
	})
}

// TestHeld says for how long a peer is waited for, and lets go of files then.
func TestHeld(t *testing.T) {
	h := newHost(t, 7)
	h.grow(40)
	clk := clock.NewManual(time.UnixMilli(testTime))
	s := NewServer(ServerConfig{Source: h, Clock: clk, Nodes: 3})
	defer s.Close()
	l := &line{s: s, limit: 3000}
	if s.Held() {
		t.Error("held before anybody asked")
	}
	stop := errors.New("stop")
	l.before = func(n int, _ []byte) error {
		if n == 4 {
			return stop
		}
		return nil
	}
	if _, err := Extend(t.Context(), l.client(), newReplica(t).log, ExtendOptions{}); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	if s.readings[1] == nil {
		t.Error("the place was not kept")
	}
	clk.Advance(HoldTime - 1)
	if !s.Held() {
		t.Error("not held while a peer catches up")
	}
	clk.Advance(1)
	if s.Held() || s.readings[1] != nil {
		t.Error("held for ever")
	}
	if _, _, err := l.client().Hash(t.Context(), 1); err != stop && err != nil {
		t.Fatal(err)
	}
	if s.Held() {
		t.Error("held by somebody who fetches nothing")
	}
}

// TestServerKeepsPlace reads each frame once for a peer that fetches on and on.
func TestServerKeepsPlace(t *testing.T) {
	h := newHost(t, 8)
	h.grow(50)
	l := serve(t, h)
	l.limit = 5000
	var first *reading
	l.after = func(n int, _, b []byte) ([]byte, error) {
		r := l.s.readings[1]
		if n > 1 && r != first {
			t.Errorf("call %d: another reading", n)
		}
		first = r
		return b, nil
	}
	extend(t, l, newReplica(t).log, ExtendOptions{Inline: true})
	if l.calls < 5 {
		t.Errorf("%d calls", l.calls)
	}
	l.s.Close()
	if open := h.mem.(*memfs.FS).OpenFiles(); len(open) > len(h.log.Segments()) {
		t.Errorf("open files %v", open)
	}
}

// put appends one entry of a size.
func (h *host) put(size int) {
	h.t.Helper()
	var f wal.Frames
	f.End(append(f.Begin(2, testTime), bytes.Repeat([]byte{byte(h.standing.Term)}, size)...))
	if _, err := h.log.Append(&f, h.standing.Term, h.standing.Commit); err != nil {
		h.t.Fatal(err)
	}
}

// TestHeldFramesOfLostLead does not send frames that were cut off since they were read.
func TestHeldFramesOfLostLead(t *testing.T) {
	h := newHost(t, 9)
	h.put(10)
	h.commit(1)
	h.put(5000)
	l := serve(t, h)
	r := newReplica(t)
	l.limit = 4096
	l.before = func(n int, _ []byte) error {
		if n == 2 {
			if r := l.s.readings[1]; r == nil || !r.held {
				t.Error("no frames are held")
			}
			h.lead(2, false)
			if err := h.log.Truncate(1); err != nil {
				t.Fatal(err)
			}
			h.lead(3, true)
			h.put(20)
		}
		return nil
	}
	extend(t, l, r.log, ExtendOptions{Demand: Demand{Leader: true}, Inline: true})
	h.sync()
	mustEqual(t, h.mem, r.mem, r.log)
}
