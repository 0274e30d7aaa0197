package pair

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/wal"
)

// farLeader is the far end of a follower's link: it speaks for disk a.
type farLeader struct {
	far
	node  NodeID
	epoch entry.Term
}

// call connects to the follower.
func (w *world) call(leader NodeID, epoch entry.Term) *farLeader {
	return &farLeader{far: far{w: w, pipe: w.serve()}, node: leader, epoch: epoch}
}

func (p *farLeader) helloOf() *hello {
	h := &hello{Version: version, LogID: hexID(testID), Node: p.node, Epoch: uint64(p.epoch), LeaseMS: testTimeout.Milliseconds()}
	if p.w.a.log != nil {
		h.Tip = pointOf(p.w.a.log.Tip())
		h.Commit = h.Tip.Index
	}
	return h
}

// greet says hello and returns the welcome.
func (p *farLeader) greet() *welcome {
	p.w.t.Helper()
	p.send(kindHello, p.helloOf())
	return p.expect(kindWelcome).(*welcome)
}

// follow brings the session to where entries are sent.
func (p *farLeader) follow() *welcome {
	p.w.t.Helper()
	h := p.greet()
	p.send(kindBegin, &begin{From: h.Commit.Index + 1, End: uint64(p.w.a.log.Last()), Committed: uint64(p.w.a.log.Last())})
	p.expect(kindBegun)
	return h
}

// entries returns frames of the log from an entry on, at most up to another, all of one segment.
func (d *disk) entries(from, to entry.Index) *frames {
	d.t.Helper()
	c := d.log.NewCursor(from)
	defer c.Close()
	f := new(wal.Frames)
	place, err := c.Next(f, to, 1<<20)
	if err != nil {
		d.t.Fatal(err)
	}
	return &frames{stamp: 7, place: place, raw: f.Raw()}
}

// entriesOf returns frames of a log that a description gives.
func entriesOf(t testing.TB, spec string, from, to entry.Index) *frames {
	t.Helper()
	d := newDisk(t, node('x'))
	d.write(spec)
	defer d.log.Close()
	return d.entries(from, to)
}

// A follower that has acknowledged to one leader promises nothing to another before the lease of the first has ended; it
// may have acknowledged until right before it was started.
func TestLeaseIsWaitedFor(t *testing.T) {
	const lease = 3 * time.Second
	for _, c := range []struct {
		name    string
		promise Promise
		leader  byte
		wait    time.Duration
	}{
		{"another leader", Promise{Epoch: 1, Leader: node('c'), Lease: lease}, 'a', lease + lease/16},
		{"the same leader", Promise{Epoch: 1, Leader: node('a'), Lease: lease}, 'a', 0},
		{"the first leader", Promise{}, 'a', 0},
		{"after this node itself", Promise{Epoch: 1, Leader: node('b')}, 'a', 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.a.write("1a5")
				w.b.write("1a5")
				w.b.SetPromise(c.promise)
				began := time.Now()
				w.follow(5)
				w.pass(lease / 3)
				p := w.call(node(c.leader), 2)
				p.greet()
				p.send(kindBegin, &begin{From: 6, End: 5, Committed: 5})
				if c.wait > 0 {
					w.pass(c.wait - time.Since(began) - 1)
					if k, _ := p.next(); k != 0 || w.b.Promise() != c.promise {
						t.Fatalf("%v came before the lease has ended, promise %+v", k, w.b.Promise())
					}
					w.pass(1)
				}
				p.expect(kindBegun)
				if got := w.b.Promise(); got.Epoch != 2 || got.Leader != node('a') || got.Lease != testTimeout {
					t.Fatalf("promise %+v", got)
				}
			})
		})
	}
}

// While a leader with a higher epoch waits for the lease of the one before, that one is kept away: else its
// acknowledgements would prolong the lease for ever. It is not told that its epoch is over, which is not promised yet.
func TestTheOneThatTakesOverIsNotKeptOut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5")
		w.b.write("1a5")
		before := Promise{Epoch: 1, Leader: node('c'), Lease: testTimeout}
		w.b.SetPromise(before)
		w.follow(5)
		p := w.call(node('a'), 2)
		p.greet()
		p.send(kindBegin, &begin{From: 6, End: 5, Committed: 5})
		w.pass(testTimeout / 2)
		old := w.call(node('c'), 1)
		old.send(kindHello, old.helloOf())
		if r := old.expect(kindRefuse).(*refuse); r.Code != CodeNotNow || w.b.Promise() != before {
			t.Fatalf("refused with %+v, promise %+v", r, w.b.Promise())
		}
		w.pass(testTimeout)
		p.expect(kindBegun)
		if got := w.b.Promise(); got.Epoch != 2 || got.Leader != node('a') {
			t.Fatalf("promise %+v", got)
		}
	})
}

// The wait counts from the last acknowledgement to the leader before, whoever ends that session.
func TestLeaseCountsFromLastAck(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5")
		w.b.write("1a5")
		w.follow(5)
		old := w.call(node('c'), 1)
		old.follow()
		w.pass(700 * time.Millisecond)
		old.send(kindBeat, &beat{stamp: 1, commit: 5})
		old.expect(kindAck)
		acked := time.Now()
		w.pass(100 * time.Millisecond)
		p := w.call(node('a'), 2)
		p.greet()
		if !old.closed() {
			t.Fatal("two leaders at a time")
		}
		p.send(kindBegin, &begin{From: 6, End: 5, Committed: 5})
		w.pass(testTimeout + testTimeout/16 - time.Since(acked) - 1)
		if k, _ := p.next(); k != 0 {
			t.Fatalf("%v came before the lease has ended", k)
		}
		w.pass(1)
		p.expect(kindBegun)
	})
}

// A session that waits for a lease ends with its link, and when the follower is closed.
func TestLeaseWaitEnds(t *testing.T) {
	for _, closing := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			w.a.write("1a5")
			w.b.write("1a5")
			w.b.SetPromise(Promise{Epoch: 1, Leader: node('c'), Lease: time.Minute})
			w.follow(5)
			p := w.call(node('a'), 2)
			p.greet()
			p.send(kindBegin, &begin{From: 6, End: 5, Committed: 5})
			w.settled()
			before := time.Now()
			if closing {
				w.follower.Close()
			} else {
				w.pass(2 * testTimeout) // nothing comes
			}
			if w.settled(); !p.closed() || closing && time.Since(before) != 0 {
				t.Fatalf("closed: %v, after %v", p.closed(), time.Since(before))
			}
			if got := w.b.Promise(); got.Epoch != 1 {
				t.Fatalf("promise %+v", got)
			}
		})
	}
}

// A silent leader is given up after twice the timeout; before it says who it is, after at most 5 s.
func TestSilentLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5")
		w.b.write("1a5")
		w.follow(5)
		mute := w.call(node('a'), 1)
		w.pass(2*testTimeout - 1)
		if mute.closed() {
			t.Fatal("gone too early")
		}
		w.pass(1)
		if !mute.closed() {
			t.Fatal("still there")
		}
		p := w.call(node('a'), 1)
		p.follow()
		w.pass(testTimeout)
		p.send(kindBeat, &beat{commit: 5})
		w.pass(2*testTimeout - 1)
		if p.closed() {
			t.Fatal("gone too early")
		}
		w.pass(1)
		if s := w.follower.Pair(); !p.closed() || s.State != StateDisconnected || s.Reason != errSilent.Error() {
			t.Fatalf("closed %v, %+v", p.closed(), s)
		}
	})
}

// A new connection of the leader takes the place of the one before. A connection that is refused does not.
func TestNewSessionReplacesOld(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5")
		w.b.write("1a5")
		w.follow(5)
		first := w.call(node('a'), 2)
		first.follow()
		for _, refused := range []*farLeader{w.call(node('a'), 1), w.call(node('c'), 2), w.call(node('b'), 3)} {
			refused.send(kindHello, refused.helloOf())
			refused.expect(kindRefuse)
			if !refused.closed() || first.closed() {
				t.Fatal("the session in place suffers from one that is refused")
			}
		}
		second := w.call(node('a'), 2)
		second.follow()
		if !first.closed() {
			t.Fatal("two sessions at a time")
		}
		second.send(kindBeat, &beat{stamp: 3, commit: 5})
		if got := second.expect(kindAck).(*ack); *got != (ack{stamp: 3, durable: 5, applied: 0}) {
			t.Fatalf("acknowledged %+v", got)
		}
	})
}

// What the follower has acknowledged survives when its power fails.
func TestAcknowledgedIsDurable(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		for range 40 {
			w.mustCommit()
			after := newDisk(t, node('x'))
			after.mem = w.b.mem.Crash(1, 0).FS
			after.fs = faultfs.New(after.mem)
			after.open()
			if got, want := after.log.Last(), w.leader.Status().Committed; got < want {
				t.Fatalf("entries up to %d survive, and %d is committed", got, want)
			}
			after.log.Close()
		}
	})
}

// Wherever the logs part, behind the commit point, the follower ends up with the leader's, and has saved its own.
func TestCutAtEveryPosition(t *testing.T) {
	const all = 50
	for _, other := range []byte{'b', 'B'} { // with frames at the same places, and at others
		for known := range 2 {
			for same := known * 20; same <= all; same++ {
				inBubble(t, func(t *testing.T, w *world) {
					w.a.write(fmt.Sprintf("1a%d", all))
					own := fmt.Sprintf("1a%d 1%c%d", same, other, all+5-same)
					w.b.write(own)
					w.b.SetPromise(Promise{Epoch: 1, Leader: node('b')})
					w.follow(entry.Index(20 * known))
					w.lead(2, all)
					w.streaming()
					if want := fmt.Sprint([]string{fmt.Sprintf("%d-%d", same+1, all+5)}); fmt.Sprint(w.replica.cuts) != want {
						t.Fatalf("own log %s, known %d: cut %v, want %v", own, 20*known, w.replica.cuts, want)
					}
					w.mustCommit()
					w.sameLogs()
				})
			}
		}
	}
}

// The same frames at other places are not the same log.
func TestCutAtOtherPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.b.segmentBytes = 2 * testSegment
		w.a.write("1a50")
		w.b.write("1a50")
		w.follow(0)
		w.lead(1, 50)
		w.streaming()
		if got := fmt.Sprint(w.replica.cuts); got != "[1-50]" {
			t.Fatalf("cut %s", got)
		}
		w.mustCommit()
		w.sameLogs()
	})
}

// What must be cut is saved first: if that fails, nothing is cut, and the follower takes nothing more.
func TestCutNotSaved(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5 2c5")
		w.b.write("1a5 1b5")
		w.b.SetPromise(Promise{Epoch: 1, Leader: node('b')})
		w.follow(5)
		w.b.fs.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Create}, Name: "cut/*", Err: syscall.EIO})
		w.lead(2, 10)
		w.pass(10 * time.Second)
		if w.follower.Err() == nil || w.follower.Pair().State != StateFailed || w.leader.Pair().Writable {
			t.Fatalf("follower %+v, leader %+v", w.follower.Pair(), w.leader.Pair())
		}
		if got := w.b.describe(); got != "1a5 1b5" {
			t.Fatalf("log %s", got)
		}
	})
}

// A promise that may not be durable is none: nothing goes on.
func TestPromiseNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a5")
		w.b.write("1a3 1b5")
		w.b.SetPromise(Promise{Epoch: 1, Leader: node('b')})
		w.follow(3)
		w.b.memPromises.err = errors.New("no promise today")
		before := w.b.content()
		w.lead(2, 5)
		w.pass(10 * time.Second)
		if w.follower.Err() == nil || w.leader.Pair().Writable {
			t.Fatalf("follower %+v, leader %+v", w.follower.Pair(), w.leader.Pair())
		}
		sameContent(t, before, w.b.content())
	})
}

func sameContent(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, b := range before {
		if after[name] != b {
			t.Errorf("%s has changed", name)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is new", name)
		}
	}
}

// Errors of the follower's disk are final, and nothing is acknowledged after them; a full disk passes.
func TestFollowerDisk(t *testing.T) {
	for _, c := range []struct {
		kind  faultfs.Kind
		err   error
		final bool
	}{
		{faultfs.Write, syscall.EIO, true},
		{faultfs.Sync, syscall.EIO, true},
		{faultfs.Write, syscall.ENOSPC, false},
	} {
		t.Run(fmt.Sprint(c.kind, " ", c.err), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				pairUp(w)
				fault := w.b.fs.Inject(faultfs.Fault{Kinds: []faultfs.Kind{c.kind}, Name: "log/*", Err: c.err, Always: true})
				for n := 0; n < 40 && len(fault.Hits()) == 0; n++ { // a full disk shows when the log rolls
					if err := w.propose(); err != nil {
						t.Fatal(err)
					}
					w.settled()
				}
				last := w.a.log.Last()
				w.pass(10 * time.Second)
				if got := w.leader.Status().Committed; got >= last || w.leader.Pair().Writable {
					t.Fatalf("committed %d of %d, %+v", got, last, w.leader.Pair())
				}
				if final := w.follower.Err() != nil; final != c.final {
					t.Fatalf("follower: %v", w.follower.Err())
				}
				fault.Remove()
				w.pass(10 * time.Second)
				if got := w.leader.Status().Committed == last; got == c.final {
					t.Fatalf("committed %d of %d", w.leader.Status().Committed, last)
				}
			})
		})
	}
}

// The follower is whole when it has reached what was acknowledged before, and not sooner.
func TestWholeAt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a30")
		w.b.write("1a5")
		w.b.SetPromise(Promise{Epoch: 1, Leader: node('a')})
		w.follow(5)
		p := w.call(node('a'), 1)
		p.follow()
		m := w.a.entries(6, 30) // up to the end of a segment
		for {
			if got := w.b.Promise().WholeAt; got != 30 {
				t.Fatalf("whole at %d", got)
			}
			p.send(kindFrames, m)
			last := p.expect(kindAck).(*ack).durable
			if last == 30 {
				break
			}
			m = w.a.entries(last+1, 30)
		}
		if got := w.b.Promise().WholeAt; got != 0 {
			t.Fatalf("whole at %d", got)
		}
	})
}

// Close of the follower in every state returns at once and ends the session.
func TestCloseFollower(t *testing.T) {
	for name, reach := range map[string]func(w *world, p *farLeader){
		"greeted":   func(w *world, p *farLeader) { p.greet() },
		"following": func(w *world, p *farLeader) { p.follow() },
		"comparing": func(w *world, p *farLeader) { p.follow(); p.send(kindFrames, w.a.entries(4, 5)) },
		"full sync": func(w *world, p *farLeader) {
			w.b.log.Close()
			w.b.log = nil
			w.follow(0)
			p.pipe = w.serve()
			p.enc, p.dec = encoder{}, decoder{}
			p.greet()
			p.send(kindBegin, &begin{From: 48, End: 60, Committed: 60, Sync: &plan{Fresh: true, Segment: 48, Size: 4096,
				Snapshot: planSnapshot{Index: 40, Bytes: 100}, Segments: []planSegment{{17, 32, 4096}, {33, 47, 4096}}}})
			p.expect(kindBegun)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.a.write("1a60")
				w.b.write("1a3 1b9")
				w.follow(3)
				p := w.call(node('a'), 1)
				reach(w, p)
				before := time.Now()
				w.follower.Close()
				if time.Since(before) != 0 {
					t.Fatalf("Close took %v", time.Since(before))
				}
				if w.settled(); !p.closed() {
					t.Fatal("the session goes on")
				}
				late := w.call(node('a'), 1)
				late.send(kindHello, late.helloOf())
				if r := late.expect(kindRefuse).(*refuse); r.Code != CodeNotNow {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}
