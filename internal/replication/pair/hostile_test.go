package pair

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"slices"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// The tests in this file speak the protocol wrongly, in every state of a session. Whatever comes, nobody panics, no
// goroutine stays, nothing changes in the folder, and a proper session works afterwards.

// followerStates are the states in which a follower can be met. Each begins with node a's log at hand, of which the
// follower lacks the end, and leaves the packets that came unread, but for those of the handshake.
var followerStates = map[string]func(w *world) *farLeader{
	"connected": func(w *world) *farLeader {
		w.a.write("1a40")
		w.b.write("1a20")
		w.follow(18)
		return w.call(node('a'), 1)
	},
	"greeted": func(w *world) *farLeader {
		w.a.write("1a40")
		w.b.write("1a20")
		w.follow(18)
		p := w.call(node('a'), 1)
		p.greet()
		return p
	},
	"greeted, empty": func(w *world) *farLeader {
		w.a.write("1a40")
		w.follow(0)
		p := w.call(node('a'), 1)
		p.greet()
		return p
	},
	"following": func(w *world) *farLeader {
		w.a.write("1a40")
		w.b.write("1a20")
		w.follow(20)
		p := w.call(node('a'), 1)
		p.follow()
		return p
	},
	"comparing": func(w *world) *farLeader {
		w.a.write("1a40")
		w.b.write("1a20 1b7")
		w.follow(18)
		p := w.call(node('a'), 1)
		p.follow()
		return p
	},
	"full sync": func(w *world) *farLeader {
		w.a.write("1a40")
		w.follow(0)
		p := w.call(node('a'), 1)
		p.greet()
		p.send(kindBegin, w.fullSync())
		p.expect(kindBegun)
		return p
	},
}

// fullSync is a begin for an empty follower: its log begins with the last segment.
func (w *world) fullSync() *begin {
	w.t.Helper()
	segments := w.a.log.Segments()
	active := segments[len(segments)-1]
	place, err := w.a.log.SegmentPlace(active.First)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &plan{Fresh: true, Segment: uint64(active.First), Size: place.Size, Prev: place.Prev}
	for _, g := range segments[:len(segments)-1] {
		p.Segments = append(p.Segments, planSegment{First: uint64(g.First), Last: uint64(g.Last), Bytes: g.Bytes})
	}
	last := uint64(w.a.log.Last())
	return &begin{From: uint64(active.First), End: last, Committed: last, Sync: p}
}

// attack brings a follower into a state, does something to it, and checks that it ends the session, unless it is legal, and
// that nothing else comes of it.
func attack(t *testing.T, state string, legal bool, do func(w *world, p *farLeader)) {
	t.Helper()
	inBubble(t, func(t *testing.T, w *world) {
		p := followerStates[state](w)
		w.settled()
		before := w.b.content()
		do(w, p)
		w.settled()
		if p.closed() == legal {
			t.Errorf("the session has ended: %v, want %v", p.closed(), !legal)
		}
		sameContent(t, before, w.b.content())
		if err := w.follower.Err(); err != nil {
			t.Fatalf("the follower has ended for good: %v", err)
		}
		p.Close()
		w.lead(1, w.a.log.Last())
		w.streaming()
		w.mustCommit()
		w.await("the full sync is complete", func() bool { return w.b.Promise().First == 0 })
		w.sameLogs()
	})
}

// Every kind of packet in every state, whole and well formed.
func TestFollowerEveryKindInEveryState(t *testing.T) {
	for state := range followerStates {
		for _, s := range samples {
			legal := state == "connected" && s.kind == kindHello || s.kind == kindBeat && slices.Contains([]string{"following", "comparing", "full sync"}, state)
			if b, ok := s.fields.(*begin); ok && b.Sync != nil && state == "greeted, empty" {
				continue // that is how a full sync begins
			}
			t.Run(state+"/"+s.kind.String(), func(t *testing.T) {
				attack(t, state, legal, func(_ *world, p *farLeader) { p.send(s.kind, s.fields) })
			})
		}
		t.Run(state+"/no kind", func(t *testing.T) {
			attack(t, state, false, func(_ *world, p *farLeader) {
				for _, k := range []kind{0, 13, 255} {
					p.raw(bytes.Clone(p.enc.finish(p.enc.start(k), nil)))
				}
			})
		})
	}
}

// What a network can do to packets, in every state: a proper packet is altered, repeated, lost.
func TestFollowerBadNetwork(t *testing.T) {
	for state := range followerStates {
		next := func(w *world, p *farLeader) (kind, any) {
			switch state {
			case "connected":
				return kindHello, p.helloOf()
			case "greeted":
				return kindBegin, &begin{From: 19, End: 40, Committed: 40}
			case "greeted, empty":
				return kindBegin, w.fullSync()
			case "following":
				return kindFrames, w.a.entries(21, 40)
			case "comparing":
				return kindFrames, w.a.entries(19, 40)
			}
			return kindFrames, w.a.entries(33, 40)
		}
		t.Run(state+"/altered", func(t *testing.T) {
			for _, at := range []int{0, 5, 12, 20, 30} {
				attack(t, state, false, func(w *world, p *farLeader) {
					packet := p.enc.encode(next(w, p))
					packet[at] ^= 4
					p.raw(packet)
				})
			}
		})
		t.Run(state+"/lost", func(t *testing.T) {
			attack(t, state, false, func(w *world, p *farLeader) {
				p.enc.encode(next(w, p))
				p.send(next(w, p))
			})
		})
		t.Run(state+"/short", func(t *testing.T) {
			for _, n := range []int{0, 3, 15, 16} {
				attack(t, state, false, func(w *world, p *farLeader) { p.raw(p.enc.encode(next(w, p))[:n]) })
			}
		})
		if state == "connected" { // then the first one is a hello that is in order
			t.Run(state+"/repeated", func(t *testing.T) {
				attack(t, state, false, func(w *world, p *farLeader) {
					packet := p.enc.encode(next(w, p))
					p.raw(packet)
					p.raw(packet)
				})
			})
		}
		t.Run(state+"/silence", func(t *testing.T) {
			attack(t, state, false, func(w *world, p *farLeader) { w.pass(2*testTimeout + time.Millisecond) })
		})
		t.Run(state+"/the end", func(t *testing.T) {
			attack(t, state, false, func(w *world, p *farLeader) { p.Close(); p.in.set(func() { p.in.closed = true }) })
		})
	}
}

func TestFollowerOddHello(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *hello)
		code   Code
	}{
		"version 0":           {func(h *hello) { h.Version = 0 }, CodeVersion},
		"version 2":           {func(h *hello) { h.Version = 2 }, CodeVersion},
		"no node":             {func(h *hello) { h.Node = NodeID{} }, CodeMalformed},
		"own node":            {func(h *hello) { h.Node = node('b') }, CodeSameNode},
		"no log":              {func(h *hello) { h.LogID = hexID{} }, CodeMalformed},
		"another log":         {func(h *hello) { h.LogID[15] = 1 }, CodeOtherLog},
		"epoch 0":             {func(h *hello) { h.Epoch = 0 }, CodeMalformed},
		"the highest epoch":   {func(h *hello) { h.Epoch = math.MaxUint64 }, CodeMalformed},
		"no lease":            {func(h *hello) { h.LeaseMS = 0 }, CodeMalformed},
		"a lease in the past": {func(h *hello) { h.LeaseMS = -1 }, CodeMalformed},
		"a lease of ages":     {func(h *hello) { h.LeaseMS = math.MaxInt64 }, CodeMalformed},
		"tip out of range":    {func(h *hello) { h.Tip.Index = math.MaxUint64 }, CodeMalformed},
		"commit behind tip":   {func(h *hello) { h.Commit = h.Tip.Index + 1 }, CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, "connected", false, func(w *world, p *farLeader) {
				h := p.helloOf()
				c.change(h)
				p.send(kindHello, h)
				if r := p.expect(kindRefuse).(*refuse); r.Code != c.code || r.Message == "" {
					t.Errorf("refused with %+v, want %s", r, c.code)
				}
				if got := w.b.Promise(); got != (Promise{}) {
					t.Errorf("promise %+v", got)
				}
			})
		})
	}
	t.Run("not JSON", func(t *testing.T) {
		attack(t, "connected", false, func(w *world, p *farLeader) {
			p.raw(bytes.Clone(p.enc.finish(append(p.enc.start(kindHello), "{"...), nil)))
		})
	})
}

func TestFollowerOddBegin(t *testing.T) {
	for name, b := range map[string]*begin{
		"zero":                   {},
		"from 0":                 {End: 40},
		"from above end":         {From: 42, End: 40},
		"behind the known":       {From: 18, End: 40},
		"beyond the known":       {From: 20, End: 40},
		"end out of range":       {From: 19, End: math.MaxUint64},
		"committed above end":    {From: 19, End: 40, Committed: 41},
		"from wraps":             {From: math.MaxUint64, End: math.MaxUint64 - 1},
		"a full sync":            {From: 33, End: 40, Sync: &plan{Fresh: true, Segment: 33, Size: 4096}},
		"one that goes on":       {From: 19, End: 40, Sync: &plan{Segment: 19, Size: 4096}},
		"one that goes on, at 0": {From: 19, End: 40, Sync: &plan{}},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, "greeted", false, func(w *world, p *farLeader) {
				p.send(kindBegin, b)
				if w.settled(); w.b.Promise() != (Promise{}) {
					t.Errorf("promise %+v", w.b.Promise())
				}
			})
		})
	}
}

func TestFollowerOddPlan(t *testing.T) {
	for name, change := range map[string]func(b *begin){
		"none":                    func(b *begin) { b.Sync = nil },
		"goes on":                 func(b *begin) { b.Sync.Fresh = false },
		"begins elsewhere":        func(b *begin) { b.Sync.Segment-- },
		"from elsewhere":          func(b *begin) { b.From++ },
		"size 0":                  func(b *begin) { b.Sync.Size = 0 },
		"size below 0":            func(b *begin) { b.Sync.Size = math.MinInt64 },
		"size of a disk":          func(b *begin) { b.Sync.Size = 1 << 50 },
		"segment of no bytes":     func(b *begin) { b.Sync.Segments[0].Bytes = 0 },
		"segment below 0":         func(b *begin) { b.Sync.Segments[0].Bytes = -1 },
		"segment of a disk":       func(b *begin) { b.Sync.Segments[0].Bytes = 1 << 50 },
		"segment from 0":          func(b *begin) { b.Sync.Segments[0].First = 0 },
		"segment back to front":   func(b *begin) { b.Sync.Segments[0].Last = 0 },
		"gap":                     func(b *begin) { b.Sync.Segments[1].First++ },
		"overlap":                 func(b *begin) { b.Sync.Segments[1].First-- },
		"twice":                   func(b *begin) { b.Sync.Segments[1] = b.Sync.Segments[0] },
		"ends too early":          func(b *begin) { b.Sync.Segments = b.Sync.Segments[:1] },
		"reaches into the log":    func(b *begin) { b.Sync.Segments[1].Last++ },
		"last wraps":              func(b *begin) { b.Sync.Segments[1].Last = math.MaxUint64 },
		"no history":              func(b *begin) { b.Sync.Segments = nil },
		"no head":                 func(b *begin) { b.Sync.Segments = b.Sync.Segments[1:] },
		"snapshot below 0":        func(b *begin) { b.Sync.Snapshot = planSnapshot{5, -1} },
		"snapshot of no bytes":    func(b *begin) { b.Sync.Snapshot = planSnapshot{5, 0} },
		"snapshot beyond the end": func(b *begin) { b.Sync.Snapshot = planSnapshot{41, 10} },
		"snapshot wraps":          func(b *begin) { b.Sync.Snapshot = planSnapshot{math.MaxUint64, 10} },
		"snapshot too old":        func(b *begin) { b.Sync.Segments = b.Sync.Segments[1:]; b.Sync.Snapshot = planSnapshot{5, 10} },
		"end out of range":        func(b *begin) { b.End = math.MaxUint64 },
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, "greeted, empty", false, func(w *world, p *farLeader) {
				b := w.fullSync()
				change(b)
				p.send(kindBegin, b)
				if w.settled(); w.b.Promise() != (Promise{}) {
					t.Errorf("promise %+v", w.b.Promise())
				}
			})
		})
	}
}

// Frames that are not the next ones, not of this log, not of this epoch, or not at their place.
func TestFollowerOddFrames(t *testing.T) {
	otherLog := func(w *world) *frames {
		d := newDisk(w.t, node('x'))
		cfg := d.logConfig()
		cfg.LogID, cfg.Create = entry.LogID{9}, true
		log, _, err := wal.Open(cfg, 0, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		defer log.Close()
		d.log = log
		d.append(1, 'a', 40)
		return d.entries(21, 40)
	}
	for name, odd := range map[string]func(w *world) *frames{
		"a gap":            func(w *world) *frames { return w.a.entries(22, 40) },
		"a later segment":  func(w *world) *frames { return w.a.entries(33, 40) },
		"again":            func(w *world) *frames { return w.a.entries(20, 20) },
		"much before":      func(w *world) *frames { return w.a.entries(1, 5) },
		"another log":      otherLog,
		"another segment":  func(w *world) *frames { m := w.a.entries(21, 32); m.place.Segment++; return m },
		"segment 0":        func(w *world) *frames { m := w.a.entries(21, 32); m.place.Segment = 0; return m },
		"a new segment":    func(w *world) *frames { m := w.a.entries(21, 32); m.place.Segment, m.place.Offset = 21, 512; return m },
		"offset 0":         func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset = 0; return m },
		"offset odd":       func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset++; return m },
		"offset after":     func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset += 8; return m },
		"offset before":    func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset -= 8; return m },
		"offset at end":    func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset = m.place.Size; return m },
		"offset huge":      func(w *world) *frames { m := w.a.entries(21, 32); m.place.Offset = 1 << 62; return m },
		"size 0":           func(w *world) *frames { m := w.a.entries(21, 32); m.place.Size = 0; return m },
		"size larger":      func(w *world) *frames { m := w.a.entries(21, 32); m.place.Size += 8; return m },
		"size huge":        func(w *world) *frames { m := w.a.entries(21, 32); m.place.Size = 1 << 62; return m },
		"prev":             func(w *world) *frames { m := w.a.entries(21, 32); m.place.Prev++; return m },
		"cut short":        func(w *world) *frames { m := w.a.entries(21, 32); m.raw = m.raw[:len(m.raw)-8]; return m },
		"cut at the front": func(w *world) *frames { m := w.a.entries(21, 32); m.raw = m.raw[8:]; return m },
		"zeros behind": func(w *world) *frames {
			m := w.a.entries(21, 25)
			m.raw = append(slices.Clone(m.raw), 0, 0, 0, 0, 0, 0, 0, 0)
			return m
		},
		"one bit": func(w *world) *frames { m := w.a.entries(21, 32); m.raw[100] ^= 1; return m },
		"out of order": func(w *world) *frames {
			m, one := w.a.entries(21, 23), len(w.a.entries(21, 21).raw)
			m.raw = slices.Concat(m.raw[one:], m.raw[:one])
			return m
		},
		"commit out of range":    func(w *world) *frames { m := w.a.entries(21, 32); m.commit = indexMax + 1; return m },
		"nothing":                func(w *world) *frames { m := w.a.entries(21, 32); m.raw = nil; return m },
		"a term above the epoch": func(w *world) *frames { return entriesOf(w.t, "1a20 2a1", 21, 21) },
		"another chain":          func(w *world) *frames { return entriesOf(w.t, "1b20 1a1", 21, 21) },
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, "following", false, func(w *world, p *farLeader) { p.send(kindFrames, odd(w)) })
		})
	}
}

// A lower commit index, or one of what has not come, changes nothing.
func TestFollowerOddCommit(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := followerStates["following"](w)
		for _, commit := range []entry.Index{20, 19, 0, indexMax} {
			p.send(kindBeat, &beat{stamp: -5, commit: commit})
			if got := p.expect(kindAck).(*ack); got.durable != 20 || got.stamp != -5 || got.applied > 20 {
				t.Fatalf("commit %d: acknowledged %+v", commit, got)
			}
			if got := w.follower.Pair().Committed; got != 20 {
				t.Fatalf("commit %d: committed %d", commit, got)
			}
		}
	})
}

// Pieces of the history that do not come next, or not at all.
func TestFollowerOddChunks(t *testing.T) {
	piece := func(w *world, file entry.Index, from, n int64) *chunk {
		b := make([]byte, n)
		if _, err := w.a.log.ReadAt(b, file, from); err != nil {
			w.t.Fatal(err)
		}
		return &chunk{file: file, offset: from, data: b}
	}
	for name, chunks := range map[string]func(w *world) []*chunk{
		"not the first":     func(w *world) []*chunk { return []*chunk{piece(w, 1, 100, 100)} },
		"again":             func(w *world) []*chunk { return []*chunk{piece(w, 1, 0, 100), piece(w, 1, 0, 100)} },
		"overlap":           func(w *world) []*chunk { return []*chunk{piece(w, 1, 0, 100), piece(w, 1, 50, 100)} },
		"gap":               func(w *world) []*chunk { return []*chunk{piece(w, 1, 0, 100), piece(w, 1, 101, 100)} },
		"beyond the end":    func(w *world) []*chunk { return []*chunk{{file: 1, data: body(4097)}} },
		"of no file":        func(w *world) []*chunk { return []*chunk{{file: 2, data: body(10)}} },
		"of the snapshot":   func(w *world) []*chunk { return []*chunk{{file: 0, data: body(10)}} },
		"of the log itself": func(w *world) []*chunk { return []*chunk{piece(w, 33, 0, 100)} },
		"offset huge":       func(w *world) []*chunk { return []*chunk{{file: 1, offset: 1 << 62, data: body(10)}} },
		"damaged, and then too much": func(w *world) []*chunk {
			return []*chunk{{file: 1, data: body(4096)}, {file: 1, offset: 4096, data: body(1)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				p := followerStates["full sync"](w)
				for _, c := range chunks(w) {
					p.send(kindChunk, c)
				}
				if w.settled(); !p.closed() {
					t.Error("the session goes on")
				}
				if got := w.follower.Err(); got != nil {
					t.Fatal(got)
				}
				p.Close()
				w.lead(1, 40)
				w.whole()
				w.sameLogs()
			})
		})
	}
}

// More pieces than the window allows end the session, and take no more memory than it.
func TestFollowerBeyondTheWindow(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a40")
		w.follow(0)
		w.replica.holdOn = make(chan struct{})
		w.history.index, w.history.snapshot = 40, sealed(body(100))
		p := w.call(node('a'), 1)
		p.greet()
		b := w.fullSync()
		b.Sync.Segments = nil
		b.Sync.Snapshot = planSnapshot{Index: 40, Bytes: int64(len(w.history.snapshot))}
		p.send(kindBegin, b)
		p.expect(kindBegun)
		p.send(kindChunk, &chunk{data: w.history.snapshot})
		w.settled() // the receiver is busy now
		for range piecesMax {
			p.send(kindChunk, &chunk{data: body(chunkBytes)})
		}
		if w.settled(); p.closed() {
			t.Fatal("the window is smaller than said")
		}
		p.send(kindChunk, &chunk{data: body(1)})
		if w.settled(); !p.closed() {
			t.Fatal("there is no end to the window")
		}
		close(w.replica.holdOn)
	})
}

// Whoever sends byte by byte is given up like one that sends nothing: only whole packets count.
func TestFollowerByteByByte(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a40")
		w.b.write("1a20")
		w.follow(18)
		a, b := net.Pipe()
		began := time.Now()
		w.serving.Go(func() { w.follower.Serve(NewWire(b)) })
		p := w.call(node('a'), 1)
		for _, c := range framed(p.enc.encode(kindHello, p.helloOf())) {
			if _, err := a.Write([]byte{c}); err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if took := time.Since(began); took < 2*testTimeout || took > 2*testTimeout+100*time.Millisecond {
			t.Fatalf("given up after %v", took)
		}
		a.Close()
		p.Close()
		w.lead(1, 40)
		w.streaming()
		w.mustCommit()
		w.sameLogs()
	})
}

// A piece that is longer than pieces are is refused, though the file has room for it.
func TestFollowerLongChunk(t *testing.T) {
	for _, n := range []int{chunkBytes, chunkBytes + 1} {
		inBubble(t, func(t *testing.T, w *world) {
			w.a.write("1a40")
			w.follow(0)
			p := w.call(node('a'), 1)
			p.greet()
			b := w.fullSync()
			b.Sync.Snapshot = planSnapshot{Index: 40, Bytes: 2 * chunkBytes}
			p.send(kindBegin, b)
			p.expect(kindBegun)
			p.send(kindChunk, &chunk{data: body(n)})
			if w.settled(); p.closed() != (n > chunkBytes) {
				t.Fatalf("%d bytes: closed is %v", n, p.closed())
			}
		})
	}
}

// leaderStates are the states in which a leader can be met by what it takes for its follower.
var leaderStates = map[string]func(w *world) *farFollower{
	"greeted": func(w *world) *farFollower { return w.lonely(2, 38, "1a40") },
	"begun": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		p.send(kindWelcome, w.welcomeOf("1a20", 18))
		p.expect(kindBegin)
		return p
	},
	"begun, empty": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		p.send(kindWelcome, &welcome{Node: node('b')})
		p.expect(kindBegin)
		return p
	},
	"pulling": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		m := w.welcomeOf("1a45", 38)
		m.Leader = node('a')
		p.send(kindWelcome, m)
		p.expect(kindPull)
		return p
	},
	"catching up": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		p.send(kindWelcome, w.welcomeOf("1a20", 18))
		p.expect(kindBegin)
		p.send(kindBegun, &begun{Segments: []int64{}})
		p.drain()
		return p
	},
	"full sync": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		p.send(kindWelcome, &welcome{Node: node('b')})
		p.expect(kindBegin)
		p.send(kindBegun, &begun{Segments: []int64{0, 0}})
		p.drain()
		return p
	},
	"streaming": func(w *world) *farFollower {
		p := w.lonely(2, 38, "1a40")
		p.send(kindWelcome, w.welcomeOf("1a40", 40))
		p.expect(kindBegin)
		p.send(kindBegun, &begun{Segments: []int64{}})
		p.expect(kindBeat)
		return p
	},
}

// welcomeOf is the welcome of a follower with a log, of which it knows so much to be committed.
func (w *world) welcomeOf(spec string, known entry.Index) *welcome {
	d := newDisk(w.t, node('x'))
	d.write(spec)
	defer d.log.Close()
	m := &welcome{LogID: hexID(testID), Node: node('b'), Commit: w.point(spec, known), Tip: pointOf(d.log.Tip())}
	return m
}

// attackLeader is attack, the other way round. What is committed by then may be so because of the attack only if it is legal.
func attackLeader(t *testing.T, state string, legal bool, do func(w *world, p *farFollower)) {
	t.Helper()
	inBubble(t, func(t *testing.T, w *world) {
		p := leaderStates[state](w)
		w.settled()
		before, committed := w.a.content(), w.leader.Status().Committed
		do(w, p)
		w.settled()
		if p.closed() == legal {
			t.Errorf("the session has ended: %v, want %v; %q", p.closed(), !legal, w.applier.told)
		}
		sameContent(t, before, w.a.content())
		if err := w.leader.Err(); err != nil {
			t.Fatalf("the leader has ended for good: %v", err)
		}
		if got := w.leader.Status().Committed; got != committed {
			t.Errorf("committed %d, and before %d", got, committed)
		}
		p.Close()
		w.b.write("1a20")
		w.follow(18)
		w.setDial(nil)
		w.await("the session ends", func() bool { return w.sessions() > 1 })
		w.streaming()
		w.mustCommit()
		w.sameLogs()
		if got := fmt.Sprint(w.applier.applied); got != "[39 40]" {
			t.Errorf("applied %s", got)
		}
	})
}

func TestLeaderEveryKindInEveryState(t *testing.T) {
	for state := range leaderStates {
		for _, s := range samples {
			t.Run(state+"/"+s.kind.String(), func(t *testing.T) {
				legal := s.kind == kindBegun && state == "begun" || s.kind == kindBegun && state == "begun, empty" || s.kind == kindWelcome && state == "greeted"
				fields := s.fields
				if s.kind == kindRefuse { // of another kind than the sample, which ends a leader for good
					fields = &refuse{Code: CodeFailed, Message: "a disk", Epoch: 9, Leader: node('c')}
				}
				attackLeader(t, state, legal, func(_ *world, p *farFollower) { p.send(s.kind, fields) })
			})
		}
		t.Run(state+"/no kind", func(t *testing.T) {
			attackLeader(t, state, false, func(_ *world, p *farFollower) { p.raw(bytes.Clone(p.enc.finish(p.enc.start(0), nil))) })
		})
		t.Run(state+"/garbage", func(t *testing.T) {
			attackLeader(t, state, false, func(_ *world, p *farFollower) { p.raw(body(200)) })
		})
		t.Run(state+"/altered", func(t *testing.T) {
			attackLeader(t, state, false, func(_ *world, p *farFollower) {
				packet := p.enc.encode(kindAck, &ack{stamp: 0, durable: 20})
				packet[20] ^= 1
				p.raw(packet)
			})
		})
		t.Run(state+"/silence", func(t *testing.T) {
			attackLeader(t, state, false, func(w *world, p *farFollower) { w.pass(testTimeout + testTimeout/4 + time.Millisecond) })
		})
		t.Run(state+"/the end", func(t *testing.T) {
			attackLeader(t, state, false, func(_ *world, p *farFollower) { p.Close(); p.in.set(func() { p.in.closed = true }) })
		})
	}
}

func TestLeaderOddAck(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		ack   ack
	}{
		"of what was never sent":          {"streaming", ack{durable: 41}},
		"out of range":                    {"streaming", ack{durable: math.MaxUint64}},
		"going back":                      {"streaming", ack{durable: 39}},
		"a stamp from the future":         {"streaming", ack{stamp: 1, durable: 40}},
		"a stamp from before all":         {"streaming", ack{stamp: -1, durable: 40}},
		"the last stamp of all":           {"streaming", ack{stamp: math.MaxInt64, durable: 40}},
		"catching up: never sent":         {"catching up", ack{durable: 41}},
		"catching up: before the start":   {"catching up", ack{durable: 17}},
		"catching up: stamp ahead":        {"catching up", ack{stamp: 1, durable: 18}},
		"full sync: before the log":       {"full sync", ack{durable: 31}},
		"full sync: beyond what was sent": {"full sync", ack{durable: 41}},
	} {
		t.Run(name, func(t *testing.T) {
			attackLeader(t, c.state, false, func(w *world, p *farFollower) {
				lease := w.leader.lease.Load()
				p.send(kindAck, &c.ack)
				if w.settled(); w.leader.lease.Load() != lease {
					t.Error("the lease has changed")
				}
			})
		})
	}
}

func TestLeaderOddWelcome(t *testing.T) {
	for name, change := range map[string]func(m *welcome){
		"own node":          func(m *welcome) { m.Node = node('a') },
		"another log":       func(m *welcome) { m.LogID[0]++ },
		"commit beyond tip": func(m *welcome) { m.Commit.Index = m.Tip.Index + 1 },
		"commit huge":       func(m *welcome) { m.Commit.Index = math.MaxUint64 },
		"tip huge":          func(m *welcome) { m.Tip.Index = math.MaxUint64 },
		"both huge":         func(m *welcome) { m.Tip.Index, m.Commit.Index = math.MaxUint64, math.MaxUint64 },
		"first beyond":      func(m *welcome) { m.First = m.Commit.Index + 2 },
		"another chain":     func(m *welcome) { m.Commit.CRC++ },
		"a CRC at 0":        func(m *welcome) { m.Commit.Index, m.Commit.CRC = 0, 1 },
		"committed beyond":  func(m *welcome) { m.Tip.Index, m.Commit.Index = 50, 45 },
	} {
		t.Run(name, func(t *testing.T) {
			attackLeader(t, "greeted", false, func(w *world, p *farFollower) {
				m := w.welcomeOf("1a20", 18)
				change(m)
				p.send(kindWelcome, m)
			})
		})
	}
	// What does not fit begins a full sync, or goes on with one: both are harmless.
	for name, change := range map[string]func(m *welcome){
		"unfinished, elsewhere":     func(m *welcome) { m.First = 5 },
		"unfinished, another chain": func(m *welcome) { m.First, m.Commit.CRC = 17, 7 },
		"no log, and all the rest":  func(m *welcome) { m.LogID = hexID{}; m.First, m.Commit.Index = 17, math.MaxUint64 },
		"tip beyond, not ours":      func(m *welcome) { m.Tip.Index = 1 << 62 },
	} {
		t.Run(name, func(t *testing.T) {
			attackLeader(t, "greeted", true, func(w *world, p *farFollower) {
				m := w.welcomeOf("1a20", 18)
				change(m)
				p.send(kindWelcome, m)
				if b := p.expect(kindBegin).(*begin); b.From == 0 || b.From > 41 || b.End != 40 {
					t.Errorf("begin %+v", b)
				}
			})
		})
	}
}

// What comes in answer to a pull is taken only if it is what was asked for.
func TestLeaderOddPull(t *testing.T) {
	for name, odd := range map[string]func(w *world) *frames{
		"a gap":         func(w *world) *frames { return entriesOf(w.t, "1a45", 42, 45) },
		"again":         func(w *world) *frames { return entriesOf(w.t, "1a45", 40, 40) },
		"too much":      func(w *world) *frames { return entriesOf(w.t, "1a47", 41, 47) },
		"another chain": func(w *world) *frames { return entriesOf(w.t, "1b40 1a5", 41, 45) },
		"a later epoch": func(w *world) *frames { return entriesOf(w.t, "1a40 3a5", 41, 45) },
		"another place": func(w *world) *frames { m := entriesOf(w.t, "1a45", 41, 45); m.place.Offset += 8; return m },
		"one bit":       func(w *world) *frames { m := entriesOf(w.t, "1a45", 41, 45); m.raw[60] ^= 1; return m },
	} {
		t.Run(name, func(t *testing.T) {
			attackLeader(t, "pulling", false, func(w *world, p *farFollower) { p.send(kindFrames, odd(w)) })
		})
	}
}

func TestLeaderOddHistory(t *testing.T) {
	for name, c := range map[string]struct {
		state  string
		kind   kind
		fields any
	}{
		"begun: too few":          {"begun, empty", kindBegun, &begun{Segments: []int64{0}}},
		"begun: too many":         {"begun, empty", kindBegun, &begun{Segments: []int64{0, 0, 0}}},
		"begun: more than it has": {"begun, empty", kindBegun, &begun{Segments: []int64{0, 4097}}},
		"begun: below 0":          {"begun, empty", kindBegun, &begun{Segments: []int64{0, -1}}},
		"got: no such file":       {"full sync", kindGot, &got{file: 2}},
		"got: snapshot":           {"full sync", kindGot, &got{file: 0}},
		"got: more than sent":     {"full sync", kindGot, &got{file: 1, bytes: 4097}},
		"got: all of a part":      {"full sync", kindGot, &got{file: 1, bytes: 100, state: gotAll}},
		"got: none asked":         {"catching up", kindGot, &got{file: 1}},
		"whole too early":         {"full sync", kindWhole, &whole{}},
		"whole, and none asked":   {"streaming", kindWhole, &whole{}},
	} {
		t.Run(name, func(t *testing.T) {
			attackLeader(t, c.state, false, func(_ *world, p *farFollower) { p.send(c.kind, c.fields) })
		})
	}
	t.Run("got: going back", func(t *testing.T) {
		attackLeader(t, "full sync", false, func(_ *world, p *farFollower) {
			p.send(kindGot, &got{file: 1, bytes: 100})
			p.send(kindGot, &got{file: 1, bytes: 99})
		})
	})
	t.Run("got: after all", func(t *testing.T) {
		attackLeader(t, "full sync", false, func(_ *world, p *farFollower) {
			p.send(kindGot, &got{file: 1, bytes: 4096, state: gotAll})
			p.send(kindGot, &got{file: 1, state: gotBad})
		})
	})
	t.Run("got: bad for ever", func(t *testing.T) {
		attackLeader(t, "full sync", false, func(w *world, p *farFollower) {
			for range fileTries {
				p.send(kindGot, &got{file: 1, state: gotBad})
				w.settled()
			}
		})
	})
}

// FuzzFollowerSession plays a script to a follower: each byte chooses a packet of a leader, and what is wrong with it.
// Nothing panics, the follower does not end for good, and what it takes for committed is in the leader's log.
func FuzzFollowerSession(f *testing.F) {
	f.Add([]byte{0, 2, 4, 8, 12, 8, 5, 9}, false)
	f.Add([]byte{0, 2, 6, 6, 6, 6, 8}, false)
	f.Add([]byte{0, 3, 10, 14, 10, 18, 8, 22}, true)
	f.Add([]byte{0, 3, 10, 0x90, 0xa2, 0x51}, true)
	f.Fuzz(func(t *testing.T, script []byte, empty bool) {
		if len(script) > 40 {
			return
		}
		w := newFuzzWorld(t, empty)
		before := w.b.content()
		link := &scripted{packets: w.play(script)}
		w.follower.Serve(link)
		if err := w.follower.Err(); err != nil {
			t.Fatalf("the follower has ended for good: %v", err)
		}
		if w.b.log == nil {
			sameContent(t, before, w.b.content())
			w.b.open()
		}
		// All that the follower acknowledged, or knew before, is the leader's.
		committed := w.follower.Pair().Committed
		if p := w.b.Promise(); p.First == 0 {
			mine, err := w.b.log.PointAt(committed)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := w.a.log.PointAt(committed)
			if err != nil || mine.CRC != theirs.CRC {
				t.Fatalf("entry %d: %+v and %+v, %v", committed, mine, theirs, err)
			}
		}
		w.follower.Close()
		w.b.log.Close()
		w.a.log.Close()
		if open := w.b.mem.OpenFiles(); len(open) > 0 {
			t.Fatalf("files left open: %v", open)
		}
	})
}

// scripted is a link on which packets come that were made before, and what is written is lost.
type scripted struct {
	packets [][]byte
}

func (l *scripted) Write(_, _ []byte) error { return nil }
func (l *scripted) Ready() bool             { return len(l.packets) > 0 }
func (l *scripted) Close() error            { return nil }

func (l *scripted) Read() ([]byte, error) {
	if len(l.packets) == 0 {
		return nil, errUnplugged
	}
	b := l.packets[0]
	l.packets = l.packets[1:]
	return b, nil
}

// newFuzzWorld is a world whose clock stands still.
func newFuzzWorld(t *testing.T, empty bool) *world {
	w := newWorld(t)
	w.clock = stillClock()
	w.a.write("1a40")
	if empty {
		w.follow(0)
		return w
	}
	w.b.write("1a20 1b7")
	w.follow(18)
	return w
}

// play makes packets of a script. The low bits of a byte choose the packet, the high ones what is done to it.
func (w *world) play(script []byte) [][]byte {
	p := &farLeader{far: far{w: w}, node: node('a'), epoch: 1}
	next := entry.Index(19)
	at := map[entry.Index]int64{}
	var packets [][]byte
	for _, b := range script {
		var packet []byte
		switch b % 12 {
		case 0, 1:
			h := p.helloOf()
			if b%12 == 1 {
				h.Epoch, h.LeaseMS = 2, 60_000
			}
			packet = p.enc.encode(kindHello, h)
		case 2:
			packet = p.enc.encode(kindBegin, &begin{From: uint64(next), End: 40, Committed: 40})
		case 3:
			m := w.fullSync()
			next = entry.Index(m.From)
			packet = p.enc.encode(kindBegin, m)
		case 4, 5, 6:
			from := min(next, 40)
			m := w.a.entries(from, min(40, from+entry.Index(b>>4)))
			m.commit = from
			packet = p.enc.encode(kindFrames, m)
			if b%12 != 6 {
				var f wal.Frames
				if err := w.a.log.Load(&f, m.place, m.raw); err != nil {
					w.t.Fatal(err)
				}
				next = f.Last() + 1
			}
		case 8:
			packet = p.enc.encode(kindBeat, &beat{stamp: int64(b), commit: entry.Index(b)})
		case 10, 11:
			file := []entry.Index{1, 17, 33}[int(b>>4)%3]
			m := &chunk{file: file, offset: at[file], data: make([]byte, 1366)}
			n, _ := w.a.log.ReadAt(m.data, file, m.offset)
			if m.data = m.data[:n]; n == 0 {
				continue
			}
			at[file] += int64(n)
			packet = p.enc.encode(kindChunk, m)
		default:
			s := samples[int(b>>4)%len(samples)]
			packet = p.enc.encode(s.kind, s.fields)
		}
		if b >= 0x80 && b%12 != 10 { // one bit of the fields
			i := packetHeader + int(b)*7%(len(packet)-packetHeader)
			packet[i] ^= 1 << (b % 8)
			reseal(packet)
		}
		packets = append(packets, packet)
	}
	return packets
}

// A script that is known to reach the end of a full sync shows that the fuzzer's language can say something.
func TestScriptReachesTheEnd(t *testing.T) {
	w := newFuzzWorld(t, true)
	script := []byte{0, 3}
	for _, file := range []byte{10, 22} { // the segments that begin with 1 and 17, in three pieces each
		script = append(script, file, file, file)
	}
	script = append(script, 112, 8) // frames up to the end, a beat
	w.follower.Serve(&scripted{packets: w.play(script)})
	w.follower.Close()
	if w.b.log == nil {
		t.Fatal("no log")
	}
	w.b.log.Close()
	w.a.log.Close()
	if p := w.b.Promise(); w.replica.wholes != 1 || p.First != 0 || p.WholeAt != 0 {
		t.Fatalf("whole %d times, promise %+v", w.replica.wholes, p)
	}
}
