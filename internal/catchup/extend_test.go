package catchup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// replica is a log that is to be extended.
type replica struct {
	mem *memfs.FS
	log *wal.Log
}

func newReplica(t testing.TB) *replica {
	mem := newMem(t)
	return &replica{mem: mem, log: openLog(t, logConfig(mem))}
}

// TestExtend follows a leader in steps, from nothing on, over many segments, and is durable and byte-equal after each.
func TestExtend(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t, seed)
			l := serve(t, h)
			r := newReplica(t)
			for step := range 6 {
				h.grow(5 + h.rng.IntN(30))
				if h.rng.IntN(2) == 0 {
					h.append(3) // a leader's tail that is not even durable there
				}
				if h.rng.IntN(3) == 0 {
					h.lead(h.standing.Term+1, true)
				}
				var last entry.Index
				res := extend(t, l, r.log, ExtendOptions{Demand: Demand{Leader: true}, Inline: step%2 == 0,
					Progress: func(i entry.Index, s Standing) { last = s.Last.Index }})
				if res.Last != h.log.Tip() || res.Peer.Last != h.log.Tip() || last != h.log.Last() || res.Cut != 0 {
					t.Fatalf("result %+v, tip %+v", res, h.log.Tip())
				}
				h.sync()
				mustEqual(t, h.mem, r.mem, r.log)
			}
			again := openLog(t, logConfig(r.mem.Clone()))
			if again.Last() != h.log.Last() {
				t.Errorf("after a restart the log ends with %d, want %d", again.Last(), h.log.Last())
			}
		})
	}
}

// TestExtendDiverged has a tail that the leader replaced, across segments that only one of them has begun.
func TestExtendDiverged(t *testing.T) {
	cuts := 0
	for seed := range uint64(20) {
		h := newHost(t, seed)
		l := serve(t, h)
		r := newReplica(t)
		h.grow(1 + h.rng.IntN(40))
		committed := h.log.Last()
		h.append(1 + h.rng.IntN(40))
		extend(t, l, r.log, ExtendOptions{Commit: committed})
		// Another one leads, whose log ends somewhere behind what is committed, and goes on.
		h.lead(h.standing.Term+1, true)
		kept := committed + entry.Index(h.rng.Int64N(int64(h.log.Last()-committed)+1))
		if err := h.log.Truncate(kept); err != nil {
			t.Fatal(err)
		}
		had := r.log.Last()
		if seed%5 > 0 {
			h.append(1 + h.rng.IntN(40))
		}
		res := extend(t, l, r.log, ExtendOptions{Demand: Demand{Leader: true, MinTerm: h.standing.Term}, Commit: committed})
		h.sync()
		if seed%5 == 0 { // nothing contradicts our tail
			if r.log.Last() != had || res.Cut != 0 {
				t.Fatalf("seed %d: %+v, and the log ended with %d", seed, res, had)
			}
			mustBePrefix(t, h, r.mem)
			continue
		}
		if res.Cut != had-kept {
			t.Errorf("seed %d: cut %d, want %d", seed, res.Cut, had-kept)
		}
		cuts += int(res.Cut)
		mustEqual(t, h.mem, r.mem, r.log)
	}
	if cuts < 300 {
		t.Errorf("cut only %d entries", cuts)
	}
}

// TestExtendLongTail finds the common point in few calls, however long the tail is.
func TestExtendLongTail(t *testing.T) {
	h := newHost(t, 1)
	l := serve(t, h)
	r := newReplica(t)
	h.grow(3)
	common := h.log.Last()
	h.append(350)
	extend(t, l, r.log, ExtendOptions{Commit: common})
	if err := h.log.Truncate(common); err != nil {
		t.Fatal(err)
	}
	h.lead(2, true)
	h.append(370)
	h.sync()
	had := l.calls
	tail := r.log.Last() - common
	res := extend(t, l, r.log, ExtendOptions{Commit: common})
	if res.Cut != tail {
		t.Errorf("cut %d of %d", res.Cut, tail)
	}
	// Each request for points reads a few segments of the peer only.
	if calls := l.calls - had; calls > len(h.log.Segments())/lookSegments+10 {
		t.Errorf("%d calls", calls)
	}
	mustEqual(t, h.mem, r.mem, r.log)
}

// TestExtendCut cuts the connection at every call, before and after it is answered, and goes on from there.
func TestExtendCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for cut := 1; ; cut++ {
			reached := false
			for _, inline := range []bool{false, true} {
				for _, answered := range []bool{false, true} {
					h := newHost(t, uint64(cut))
					l := serve(t, h)
					r := newReplica(t)
					h.grow(20)
					committed := h.log.Last()
					h.append(20)
					extend(t, l, r.log, ExtendOptions{Commit: committed})
					if err := h.log.Truncate(committed + 3); err != nil {
						t.Fatal(err)
					}
					h.lead(2, true)
					h.append(60)
					h.sync()
					began := l.calls
					l.limit = 6_000
					l.before = func(n int, _ []byte) error {
						if n == began+cut && !answered {
							reached = true
							return errCut
						}
						return nil
					}
					l.after = func(n int, _, b []byte) ([]byte, error) {
						if n == began+cut && answered {
							reached = true
							return nil, errCut
						}
						return b, nil
					}
					opt := ExtendOptions{Commit: committed, Inline: inline}
					if res, err := Extend(t.Context(), l.client(), r.log, opt); reached && !errors.Is(err, errCut) || res.Last != r.log.Tip() {
						t.Fatalf("cut at call %d: %+v, %v", cut, res, err)
					}
					if r.log.Durable() != r.log.Last() {
						t.Errorf("durable up to %d of %d", r.log.Durable(), r.log.Last())
					}
					mid := openLog(t, logConfig(r.mem.Clone())) // a power cut follows
					if mid.Tip() != r.log.Tip() {
						t.Errorf("after a restart the log ends with %+v, want %+v", mid.Tip(), r.log.Tip())
					}
					l.before, l.after = nil, nil
					extend(t, l, r.log, opt)
					mustEqual(t, h.mem, r.mem, r.log)
				}
			}
			if !reached {
				if cut < 8 {
					t.Errorf("only %d calls", cut)
				}
				return
			}
		}
	})
}

// TestExtendCanceled ends with its context, without a goroutine left.
func TestExtendCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 3)
		h.grow(100)
		l := serve(t, h)
		r := newReplica(t)
		ctx, cancel := context.WithCancel(t.Context())
		c := Client{LogID: testID, Peer: PeerFunc(func(ctx context.Context, b []byte) ([]byte, error) {
			cancel()
			<-ctx.Done()
			return nil, ctx.Err()
		})}
		if _, err := Extend(ctx, c, r.log, ExtendOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		extend(t, l, r.log, ExtendOptions{})
		mustEqual(t, h.mem, r.mem, r.log)
	})
}

func TestExtendGone(t *testing.T) {
	h := newHost(t, 4)
	l := serve(t, h)
	r := newReplica(t)
	h.grow(10)
	committed := h.log.Last()
	extend(t, l, r.log, ExtendOptions{})
	h.grow(60)
	if _, err := h.log.DropBefore(h.log.Segments()[4].First); err != nil {
		t.Fatal(err)
	}
	before := r.log.Tip()
	if _, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Commit: committed}); !errors.Is(err, ErrGone) {
		t.Errorf("error %v, want ErrGone", err)
	}
	if r.log.Tip() != before {
		t.Errorf("the log ends with %+v now, before with %+v", r.log.Tip(), before)
	}
}

// TestExtendGoneTail has a tail that reaches beyond where the peer's log begins, and differs from it: what would have to
// follow the common entries is not there any more.
func TestExtendGoneTail(t *testing.T) {
	h := newHost(t, 5)
	l := serve(t, h)
	r := newReplica(t)
	h.grow(5)
	committed := h.log.Last()
	h.append(60)
	extend(t, l, r.log, ExtendOptions{Commit: committed})
	if err := h.log.Truncate(committed); err != nil {
		t.Fatal(err)
	}
	h.lead(2, true)
	h.grow(60)
	if _, err := h.log.DropBefore(h.log.Segments()[3].First); err != nil {
		t.Fatal(err)
	}
	before := r.log.Tip()
	if _, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Commit: committed}); !errors.Is(err, ErrGone) {
		t.Errorf("error %v, want ErrGone", err)
	}
	if r.log.Tip() != before {
		t.Errorf("the log was cut")
	}
}

// TestExtendNeverCutsCommitted has a peer that contradicts what is committed here.
func TestExtendNeverCutsCommitted(t *testing.T) {
	for seed := range uint64(10) {
		h := newHost(t, seed)
		l := serve(t, h)
		r := newReplica(t)
		h.grow(40)
		extend(t, l, r.log, ExtendOptions{})
		committed := r.log.Last() - entry.Index(h.rng.Int64N(20))
		if err := h.log.Truncate(committed - 1 - entry.Index(h.rng.Int64N(10))); err != nil {
			t.Fatal(err)
		}
		if seed%2 == 0 {
			h.lead(2, true)
		}
		h.commit(h.log.Last())
		h.append(30)
		before := r.log.Tip()
		_, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Demand: Demand{Leader: true}, Commit: committed})
		if d := (*DivergedError)(nil); !errors.As(err, &d) || d.Commit != committed || d.Ours.Index != committed {
			t.Errorf("seed %d: error %v, want a *DivergedError at %d", seed, err, committed)
		}
		if r.log.Tip() != before {
			t.Errorf("seed %d: the log ends with %+v now, before with %+v", seed, r.log.Tip(), before)
		}
	}
}

// TestExtendBehind has a leader whose log ends before what is committed.
func TestExtendBehind(t *testing.T) {
	h := newHost(t, 6)
	l := serve(t, h)
	r := newReplica(t)
	h.grow(40)
	extend(t, l, r.log, ExtendOptions{})
	before := r.log.Tip()
	if err := h.log.Truncate(before.Index / 2); err != nil {
		t.Fatal(err)
	}
	if _, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Commit: before.Index - 3}); !errors.Is(err, ErrBehind) {
		t.Errorf("error %v, want ErrBehind", err)
	}
	if r.log.Tip() != before {
		t.Errorf("the log was cut")
	}
}

// TestExtendStray gets frames that do not follow its log, as from a peer whose tail was cut while it read them.
func TestExtendStray(t *testing.T) {
	h, other := newHost(t, 7), newHost(t, 8)
	h.grow(20)
	l, stray := serve(t, h), serve(t, other)
	r := newReplica(t)
	extend(t, l, r.log, ExtendOptions{})
	for other.log.Last() < r.log.Last() {
		other.put(100)
	}
	tip := other.log.Tip()
	other.put(100)
	h.grow(20)
	l.after = func(n int, _, b []byte) ([]byte, error) {
		l.after = nil
		return stray.s.Answer(t.Context(), 1, (&request{kind: kindFrames, logID: testID, after: tip, limit: 1000}).encode()), nil
	}
	extend(t, l, r.log, ExtendOptions{Commit: r.log.Last() - 1})
	mustEqual(t, h.mem, r.mem, r.log)
}

// TestExtendDemand stops as soon as the peer does not lead any more, at any call, and takes nothing of that answer.
func TestExtendDemand(t *testing.T) {
	for change := 1; change < 6; change++ {
		for _, what := range []string{"lost", "term"} {
			h := newHost(t, 8)
			h.lead(5, true)
			h.grow(80)
			l := serve(t, h)
			r := newReplica(t)
			l.limit = 3000
			var at wal.Point
			minTerm := entry.Term(5)
			l.before = func(n int, _ []byte) error {
				if n == change {
					at = r.log.Tip()
					if what == "lost" {
						h.lead(6, false)
					} else {
						h.lead(4, true) // as if it had never voted in term 5
					}
				}
				return nil
			}
			_, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Demand: Demand{Leader: true, MinTerm: minTerm}, Inline: true})
			if n := (*NotLeaderError)(nil); what == "lost" && !errors.As(err, &n) {
				t.Errorf("error %v, want a *NotLeaderError", err)
			} else if err == nil {
				t.Errorf("no error, and the peer leads an older term")
			}
			if r.log.Tip() != at {
				t.Errorf("call %d: took entries up to %d of a peer that does not lead", change, r.log.Last())
			}
			mustBePrefix(t, h, r.mem)
		}
	}
}

// TestAnswerSpansTerms does not claim to be a leader's if the lead was lost while it was made, and of what is committed only
// what was so before.
func TestAnswerSpansTerms(t *testing.T) {
	h := newHost(t, 9)
	h.grow(5)
	h.snapshot(3, 100)
	l := serve(t, h)
	for _, c := range []struct {
		term   entry.Term
		leader bool
		want   bool
	}{{1, true, true}, {2, true, false}, {1, false, false}} {
		h.lead(1, true)
		h.opened = func() { h.lead(c.term, c.leader) }
		_, _, s, err := l.client().SnapshotBytes(t.Context(), 3, 0, 100)
		if err != nil || s.Leader != c.want || s.Term != c.term {
			t.Errorf("term %d, leader %v: %+v, %v", c.term, c.leader, s, err)
		}
	}
	h.commit(3)
	h.opened = func() { h.commit(4) }
	if _, _, s, err := l.client().SnapshotBytes(t.Context(), 3, 0, 100); err != nil || s.Commit != 3 {
		t.Errorf("%+v, %v: want what was committed before anything was read, 3", s, err)
	}
}

// TestExtendUpto stops where it is told to, though the peer has more.
func TestExtendUpto(t *testing.T) {
	h := newHost(t, 10)
	h.grow(50)
	l := serve(t, h)
	l.limit = 3000
	r := newReplica(t)
	half := h.log.Last() / 2
	res := extend(t, l, r.log, ExtendOptions{Upto: func(s Standing) entry.Index { return half }})
	if res.Last.Index < half || res.Last.Index == h.log.Last() {
		t.Errorf("the log ends with %d of %d, want a little more than %d", res.Last.Index, h.log.Last(), half)
	}
}

// TestExtendFlipped flips every byte of an answer, and gives it the right checksum every other time. Nothing but the peer's
// frames may come into the log.
func TestExtendFlipped(t *testing.T) {
	h := newHost(t, 11)
	h.grow(2)
	l := serve(t, h)
	want := l.s.Answer(t.Context(), 1, (&request{kind: kindFrames, logID: testID, limit: PieceMax}).encode())
	r := newReplica(t)
	for at := range want {
		for _, sealed := range []bool{false, true} {
			out := bytes.Clone(want)
			out[at] ^= 1 << (at % 8)
			if sealed && at >= 4 {
				seal(out)
			}
			c := Client{LogID: testID, Peer: PeerFunc(func(ctx context.Context, b []byte) ([]byte, error) {
				if b[5] == byte(kindFrames) && bytes.Equal(b[24:44], make([]byte, 20)) {
					return bytes.Clone(out), nil
				}
				return nil, errCut
			})}
			_, err := Extend(t.Context(), c, r.log, ExtendOptions{Demand: Demand{Leader: true}, Inline: true})
			if err == nil && (!sealed || at < 4 || at >= answerHeader+4+pieceFields) {
				t.Errorf("byte %d was flipped, and nobody noticed", at)
			}
			if r.log.Last() == 0 {
				continue
			}
			if !sealed || r.log.Tip() != h.log.Tip() {
				t.Errorf("byte %d was flipped, and the log ends with %+v", at, r.log.Tip())
			}
			r.log.Close()
			r = newReplica(t)
		}
	}
}

// TestExtendLies are answers that are well formed and not true. Each ends in an error, after few calls, and nothing that
// is not the peer's gets into the log.
func TestExtendLies(t *testing.T) {
	for name, lie := range map[string]func(a *answer, n int){
		"nothing, and yet more":   func(a *answer, n int) { a.pieces = nil },
		"always more":             func(a *answer, n int) { a.standing.Last.Index += entry.Index(n) * 1000; a.pieces = nil },
		"older term":              func(a *answer, n int) { a.standing.Term, a.standing.Last.Term = 1, 1 },
		"entries of a later term": func(a *answer, n int) { a.standing.Term, a.standing.Last.Term = 2, 2 },
		"other log":               func(a *answer, n int) { a.standing.LogID[3]++ },
		"other place":             func(a *answer, n int) { a.pieces[0].place.Offset += 8 },
		"other segment":           func(a *answer, n int) { a.pieces[0].place.Segment++ },
		"other chain":             func(a *answer, n int) { a.pieces[0].place.Prev++ },
		"half a frame":            func(a *answer, n int) { a.pieces[0].raw = a.pieces[0].raw[:48] },
		"part of nothing":         func(a *answer, n int) { a.pieces, a.length = a.pieces[:1], len(a.pieces[0].raw)+1000 },
		"twice":                   func(a *answer, n int) { a.pieces = append(a.pieces, a.pieces[0]) },
		"second first":            func(a *answer, n int) { a.pieces[0], a.pieces[1] = a.pieces[1], a.pieces[0] },
		"differs": func(a *answer, n int) {
			a.code, a.pieces = codeDiffers, nil
		},
		"behind": func(a *answer, n int) { a.code, a.pieces = codeBehind, nil },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 12)
			h.lead(3, true)
			h.grow(30)
			l := serve(t, h)
			r := newReplica(t)
			l.limit = 20_000
			started := 0
			l.after = func(n int, q, b []byte) ([]byte, error) {
				if n > 100 {
					t.Error("100 calls")
					return nil, errCut
				}
				var a answer
				if started++; started == 1 || q[5] != byte(kindFrames) {
					return b, nil
				}
				if err := a.decode(b, kindFrames); err != nil {
					return nil, err
				}
				if len(a.pieces) < 2 {
					return b, nil
				}
				lie(&a, n)
				return encodeFrames(&a), nil
			}
			opt := ExtendOptions{Demand: Demand{Leader: true, MinTerm: 2}}
			if _, err := Extend(t.Context(), l.client(), r.log, opt); err == nil {
				t.Error("no error")
			}
			mustBePrefix(t, h, r.mem)
			l.after = nil
			extend(t, l, r.log, opt)
			mustEqual(t, h.mem, r.mem, r.log)
		})
	}
}

// encodeFrames encodes an answer with its pieces.
func encodeFrames(a *answer) []byte {
	b := a.encode(nil)
	for _, p := range a.pieces {
		b = append(putPiece(b, p.place, len(p.raw)), p.raw...)
	}
	return seal(b)
}

// TestExtendDamagedSource takes what comes before the damage, and says that the peer is damaged.
func TestExtendDamagedSource(t *testing.T) {
	h := newHost(t, 13)
	h.grow(60)
	l := serve(t, h)
	r := newReplica(t)
	g := h.log.Segments()[2]
	f, err := h.mem.Open(fmt.Sprintf("log/%020d.seg", g.First))
	if err != nil {
		names, _ := h.mem.List("log")
		t.Fatal(err, names)
	}
	defer f.Close()
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, 700); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	one[0] ^= 4
	if _, err := f.WriteAt(one, 700); err != nil {
		t.Fatal(err)
	}
	_, err = Extend(t.Context(), l.client(), r.log, ExtendOptions{})
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v, want ErrDamaged", err)
	}
	if len(l.damage) == 0 || l.damage[0].Segment != g.First {
		t.Errorf("the host was told of damage %v, want of segment %d", l.damage, g.First)
	}
	// A follower may be cutting its tail just now.
	h.lead(1, false)
	h.commit(g.First)
	told := len(l.damage)
	if _, err = Extend(t.Context(), l.client(), r.log, ExtendOptions{}); !errors.Is(err, ErrUnavailable) || len(l.damage) > told {
		t.Errorf("error %v, want ErrUnavailable; told of %v", err, l.damage)
	}
	h.commit(h.log.Last())
	if r.log.Last() < g.First-1 || r.log.Last() >= g.Last {
		t.Errorf("the log ends with %d, and the damaged segment has %d to %d", r.log.Last(), g.First, g.Last)
	}
	one[0] ^= 4
	if _, err := f.WriteAt(one, 700); err != nil {
		t.Fatal(err)
	}
	extend(t, l, r.log, ExtendOptions{})
	mustEqual(t, h.mem, r.mem, r.log)
}

// TestExtendLargeFrame has entries that do not fit into one answer.
func TestExtendLargeFrame(t *testing.T) {
	h := newHost(t, 14)
	h.log.Close()
	cfg := logConfig(h.mem)
	cfg.Create = false
	h.log = openLog(t, cfg)
	h.grow(3)
	var f wal.Frames
	for _, n := range []int{wal.PayloadMax, 100, frameMax - 40, frameMax + 1, PieceMax} {
		f.Reset()
		f.End(append(f.Begin(2, testTime+1000), bytes.Repeat([]byte{byte(n) | 1}, n)...))
		f.End(append(f.Begin(2, testTime+1000), "small"...))
		if _, err := h.log.Append(&f, 1, h.standing.Commit); err != nil {
			t.Fatal(err)
		}
	}
	h.grow(2)
	l := serve(t, h)
	r := newReplica(t)
	extend(t, l, r.log, ExtendOptions{})
	mustEqual(t, h.mem, r.mem, r.log)
	if l.calls > 20 {
		t.Errorf("%d calls", l.calls)
	}
}

// TestExtendFull comes to a full disk, and goes on when there is room.
func TestExtendFull(t *testing.T) {
	h := newHost(t, 15)
	h.grow(60)
	l := serve(t, h)
	r := newReplica(t)
	r.mem.SetCapacity(40 << 10)
	if _, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{}); !errors.Is(err, wal.ErrFull) {
		t.Fatalf("error %v, want wal.ErrFull", err)
	}
	if r.log.Last() == 0 || r.log.Durable() != r.log.Last() {
		t.Errorf("the log ends with %d and is durable up to %d", r.log.Last(), r.log.Durable())
	}
	r.mem.SetCapacity(1 << 30)
	extend(t, l, r.log, ExtendOptions{})
	mustEqual(t, h.mem, r.mem, r.log)
}

// TestExtendWhilePublishing follows a leader that goes on appending, syncing and rolling, and drops its head.
func TestExtendWhilePublishing(t *testing.T) {
	h := newHost(t, 16)
	h.grow(5)
	l := serve(t, h)
	r := newReplica(t)
	published := make(chan struct{})
	go func() { // awaited below
		defer close(published)
		for n := range 150 {
			h.append(1)
			if n%3 == 0 {
				h.sync()
				h.commit(h.log.Durable())
			}
		}
	}()
	for done := false; !done; {
		select {
		case <-published:
			done = true
		default:
		}
		res := extend(t, l, r.log, ExtendOptions{Demand: Demand{Leader: true}})
		if _, err := h.log.DropBefore(min(res.Last.Index, h.Standing().Commit)); err != nil {
			t.Error(err)
		}
	}
	h.sync()
	if r.log.Tip() != h.log.Tip() {
		t.Errorf("the log ends with %+v, want %+v", r.log.Tip(), h.log.Tip())
	}
	mustEqual(t, h.mem, r.mem, r.log)
}

// TestExtendFromFollower follows a node whose tail is cut and replaced all the time, as far as that is committed.
func TestExtendFromFollower(t *testing.T) {
	h := newHost(t, 17)
	h.lead(1, false)
	h.grow(5)
	l := serve(t, h)
	l.limit = 2000
	r := newReplica(t)
	changed := make(chan struct{})
	go func() { // awaited below
		defer close(changed)
		for range 40 {
			h.append(6)
			committed := h.standing.Commit + 1
			if err := h.log.Truncate(committed); err != nil {
				t.Error(err)
			}
			h.lead(h.standing.Term+1, false)
			h.commit(committed)
			h.append(3)
			h.sync()
		}
		h.commit(h.log.Last())
	}()
	known := entry.Index(0)
	for done := false; !done; {
		select {
		case <-changed:
			done = true
		default:
		}
		res, err := Extend(t.Context(), l.client(), r.log, ExtendOptions{Commit: known})
		switch {
		case err == nil:
			known = min(res.Peer.Commit, res.Last.Index)
		case done || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrDiffers) && !errors.Is(err, ErrBehind):
			<-changed
			t.Fatalf("known to be committed up to %d: %v", known, err)
		}
	}
	mustEqual(t, h.mem, r.mem, r.log)
}
