package pair

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/replicationtest"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// The leader passes the suite of all roles, with a follower that begins empty.
func TestRole(t *testing.T) {
	replicationtest.Run(t, func(t *testing.T, log *wal.Log, applier replication.Applier) replication.Role {
		d := newDisk(t, node('b'))
		r := newReplica(d)
		leaderPromises := &memPromises{kept: Promise{Epoch: 1, Leader: node('a')}}
		config := func(self NodeID, p Promises) Config {
			return Config{Self: self, Promises: p, Clock: clock.System{}, Fatal: func(err error) { t.Error(err) }}
		}
		follower := NewFollower(FollowerConfig{Config: config(d.self, d), Replica: r})
		var serving sync.WaitGroup
		t.Cleanup(func() {
			follower.Close()
			serving.Wait()
			if r.log != nil {
				r.log.Close()
			}
		})
		return NewLeader(LeaderConfig{
			Config: config(node('a'), leaderPromises), LogID: replicationtest.LogID, Epoch: 1, Log: log, Applier: applier,
			History: new(testHistory),
			Dial: func(context.Context) (Link, error) {
				mine, theirs := newPipe()
				serving.Go(func() { follower.Serve(theirs) })
				return mine, nil
			},
		})
	})
}

// pairUp starts both on logs of a few entries, and waits until writes go on.
func pairUp(w *world) {
	w.t.Helper()
	w.a.write("1a5")
	w.b.write("1a5")
	w.b.SetPromise(Promise{Epoch: 1, Leader: node('a')})
	w.follow(5)
	w.lead(1, 5)
	w.streaming()
}

// What was committed may be acknowledged for exactly the timeout after the packet was sent that the follower echoed last.
func TestLeaseEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		w.mustCommit() // sent, and echoed, now
		w.setDial(unplugged)
		w.link.in.set(func() { w.link.in.deaf = true }) // the leader hears nothing; the follower hears the beats
		w.pass(testTimeout - 1)
		if !w.leader.MayAnswer() {
			t.Fatal("no answer within the lease")
		}
		w.pass(1)
		if w.leader.MayAnswer() {
			t.Fatal("an answer at the end of the lease")
		}
		// The next beat was the first that was not echoed.
		w.pass(testTimeout/4 - 1)
		if !w.leader.Pair().Writable {
			t.Fatal("the session has ended before the timeout")
		}
		w.pass(1)
		if w.leader.Pair().Writable {
			t.Fatal("the session goes on without a sign of the follower")
		}
	})
}

// A late answer to an old packet prolongs the lease from when that was sent, not from now.
func TestLeaseCountsFromWhatIsEchoed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.lonely(1, 5, "1a5")
		p.welcome(5, "1a5")
		sent := p.expect(kindBeat).(*beat).stamp
		w.pass(testTimeout - time.Millisecond)
		p.drain()
		p.send(kindAck, &ack{stamp: sent, durable: 5})
		w.settled()
		if !w.leader.MayAnswer() {
			t.Fatal("no answer within the lease")
		}
		w.pass(time.Millisecond)
		if w.leader.MayAnswer() {
			t.Fatal("an old echo counts as new")
		}
		w.pass(testTimeout / 4)
		if !p.closed() {
			t.Fatal("the echo of the first beat is one of the second")
		}
	})
}

// An idle pair stays together, and may answer at any time.
func TestBeats(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		for range 200 {
			w.pass(50 * time.Millisecond)
			if !w.leader.MayAnswer() || !w.leader.Pair().Writable {
				t.Fatalf("leader %+v", w.leader.Pair())
			}
		}
		if w.sessions() != 1 || w.follower.Pair().State != StateStreaming {
			t.Fatalf("%d sessions, follower %+v", w.sessions(), w.follower.Pair())
		}
	})
}

// The lease begins with the session, also when there is nothing to send.
func TestLeaseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		w.settled()
		if !w.leader.MayAnswer() {
			t.Fatal("writes go on, and no answer may be given")
		}
	})
}

// slowSync makes each sync of a disk take a while.
func slowSync(d *disk, takes time.Duration) {
	d.mem.OnOp(func(op memfs.Op) {
		if op.Kind == "sync" && !op.Done {
			time.Sleep(takes)
		}
	})
}

// A follower that takes just less than the timeout for each write is slow, and no more: whether the next one comes at
// once or later.
func TestSlowFollower(t *testing.T) {
	for pause := time.Duration(0); pause < time.Second; pause += 130 * time.Millisecond {
		inBubble(t, func(t *testing.T, w *world) {
			pairUp(w)
			slowSync(w.b, 1900*time.Millisecond)
			for range 5 {
				before := time.Now()
				w.mustCommit()
				if took := time.Since(before); took < 1900*time.Millisecond || took > 1920*time.Millisecond {
					t.Fatalf("committed after %v", took)
				}
				w.pass(pause)
			}
			slowSync(w.b, 0)
			if w.sessions() != 1 {
				t.Fatalf("%d sessions with a pause of %v", w.sessions(), pause)
			}
		})
	}
}

// With many batches on their way one has to wait for the sync before its own.
func TestSlowFollowerUnderLoad(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.segmentBytes, w.b.segmentBytes = 1<<20, 1<<20 // to roll takes more syncs than one
		pairUp(w)
		slowSync(w.b, 980*time.Millisecond)
		end := time.Now().Add(20 * time.Second)
		n := 0
		for ; time.Now().Before(end); n++ {
			if err := w.propose(); err != nil {
				t.Fatalf("after %d: %v", n, err)
			}
			w.pass(10 * time.Millisecond)
		}
		if slowSync(w.b, 0); w.sessions() != 1 || n < 40 {
			t.Fatalf("%d entries in %d sessions", n, w.sessions())
		}
	})
}

// What the follower has sooner than the leader itself is not committed before the leader has it, too.
func TestSlowLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		slowSync(w.a, time.Second)
		ended := make(chan error, 1)
		go func() { ended <- w.propose() }()
		w.pass(time.Second - 1)
		if got := w.leader.Pair(); got.PeerDurable != 6 || got.Committed != 5 || w.applier.known() != 0 {
			t.Fatalf("%+v, the applier knows %d", got, w.applier.known())
		}
		w.pass(1)
		if err := <-ended; err != nil || w.leader.Status().Committed != 6 || w.applier.known() != 6 {
			t.Fatalf("%v, %+v, the applier knows %d", err, w.leader.Pair(), w.applier.known())
		}
		slowSync(w.a, 0)
	})
}

// A follower that hangs holds writes up for the timeout. What was in flight stays, and is committed when it is back.
func TestHungFollower(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		w.mustCommit()
		sent := time.Now()
		w.link.in.set(func() { w.link.in.deaf = true })
		w.setDial(unplugged)
		for range flightMax {
			if err := w.propose(); err != nil {
				t.Fatal(err)
			}
		}
		last := w.a.log.Last()
		var waiting error
		ended := make(chan struct{})
		go func() { waiting = w.propose(); close(ended) }()
		w.pass(testTimeout - 1)
		select {
		case <-ended:
			t.Fatalf("one batch more than may be on its way was let through: %v", waiting)
		default:
		}
		<-ended
		if took := time.Since(sent); took != testTimeout {
			t.Fatalf("it was held up for %v", took)
		}
		if !errors.Is(waiting, replication.ErrUnavailable) || w.a.log.Last() != last {
			t.Fatalf("the batch that waited: %v, last entry %d", waiting, w.a.log.Last())
		}
		w.settled()
		if told := w.applier.lastTold(); !strings.Contains(told, errUnplugged.Error()) && !strings.Contains(told, errSilent.Error()) {
			t.Fatalf("the applier was told %q", told)
		}
		before := time.Now()
		if err := w.propose(); !errors.Is(err, replication.ErrUnavailable) || time.Since(before) != 0 {
			t.Fatalf("a new write: %v after %v", err, time.Since(before))
		}
		if got := w.leader.Status().Committed; got != last-flightMax {
			t.Fatalf("committed %d of %d", got, last)
		}
		w.setDial(nil)
		w.await("what was in flight is committed", func() bool { return w.leader.Status().Committed == last })
		w.streaming()
		if w.applier.known() != last || len(w.applier.applied) != 0 {
			t.Fatalf("the applier knows %d, and was handed %v", w.applier.known(), w.applier.applied)
		}
		w.mustCommit()
		w.sameLogs()
	})
}

// A peer that takes nothing off the wire blocks the one that writes for the timeout, and not Close. This test has a clock
// that it moves by hand: in a bubble time stands still while a goroutine waits for a mutex.
func TestStuckLink(t *testing.T) {
	for _, closing := range []bool{false, true} {
		manual := clock.NewManual(time.UnixMilli(1))
		w := newWorld(t)
		w.clock = manual
		w.a.write("1a5")
		w.b.write("1a5")
		w.follow(5)
		w.lead(1, 5)
		deadline := time.Now().Add(10 * time.Second)
		until := func(what string, cond func() bool) {
			for !cond() {
				if time.Now().After(deadline) {
					t.Fatalf("waited in vain until %s: %+v", what, w.leader.Pair())
				}
				runtime.Gosched()
			}
		}
		until("there is a session", func() bool { return w.leader.Pair().Writable && w.leader.MayAnswer() })
		w.setDial(unplugged)
		w.link.out.set(func() { w.link.out.stuck = true })
		ended := make(chan error, 1)
		go func() { ended <- w.propose() }()
		until("Propose is stuck", func() (stuck bool) {
			w.link.out.set(func() { stuck = w.link.out.waits > 0 })
			return stuck
		})
		if closing {
			go w.leader.Close()
		}
		moved := time.Duration(0) // by the clock, which stands still for Close
		for waits := true; waits; {
			select {
			case err := <-ended:
				if err != nil && !(closing && errors.Is(err, replication.ErrStopped)) {
					t.Fatal(err)
				}
				waits = false
			case <-time.After(20 * time.Millisecond):
				if !closing && moved < testTimeout+testTimeout/4 {
					manual.Advance(testTimeout / 8)
					moved += testTimeout / 8
				} else if time.Now().After(deadline) {
					t.Fatalf("Propose still waits after %v", moved)
				}
			}
		}
		if !closing && moved < testTimeout {
			t.Fatalf("Propose was held up for %v", moved)
		}
		w.close()
	}
}

// lonely starts a leader whose link the test holds.
func (w *world) lonely(epoch entry.Term, committed entry.Index, log string) *farFollower {
	w.t.Helper()
	w.a.write(log)
	var p *farFollower
	w.setDial(func() (Link, error) {
		mine, theirs := newPipe()
		p = &farFollower{far: far{w: w, pipe: theirs}}
		w.dial = unplugged
		return mine, nil
	})
	w.lead(epoch, committed)
	w.settled()
	p.hello = *p.expect(kindHello).(*hello)
	return p
}

// farFollower is the far end of a leader's link.
type farFollower struct {
	far
	hello hello
}

// point returns the point of an entry of the log that a description gives.
func (w *world) point(spec string, index entry.Index) point {
	w.t.Helper()
	d := newDisk(w.t, node('x'))
	d.write(spec)
	defer d.log.Close()
	p, err := d.log.PointAt(index)
	if err != nil {
		w.t.Fatal(err)
	}
	return pointOf(p)
}

// welcome brings the session to where entries are sent, as a follower with a log would.
func (p *farFollower) welcome(known entry.Index, spec string) *begin {
	p.w.t.Helper()
	d := newDisk(p.w.t, node('x'))
	d.write(spec)
	tip := pointOf(d.log.Tip())
	d.log.Close()
	p.send(kindWelcome, &welcome{LogID: hexID(testID), Node: node('b'), Commit: p.w.point(spec, known), Tip: tip})
	b := p.expect(kindBegin).(*begin)
	p.send(kindBegun, &begun{Segments: []int64{}})
	return b
}

// Close returns at once, whatever the leader does, and leaves nothing behind. The bubble sees to the latter.
func TestCloseInEveryState(t *testing.T) {
	silent := func(w *world) func() (Link, error) {
		return func() (Link, error) {
			mine, _ := newPipe()
			return mine, nil
		}
	}
	for name, reach := range map[string]func(w *world){
		"pause": func(w *world) {
			w.a.write("1a5")
			w.setDial(unplugged)
			w.lead(1, 5)
			w.pass(time.Minute)
		},
		"handshake": func(w *world) {
			w.a.write("1a5")
			w.setDial(silent(w))
			w.lead(1, 5)
			w.pass(time.Second)
		},
		"pull": func(w *world) {
			p := w.lonely(1, 5, "1a5")
			p.send(kindWelcome, &welcome{LogID: hexID(testID), Node: node('b'), Leader: node('a'), Commit: w.point("1a9", 5), Tip: w.point("1a9", 9)})
			p.expect(kindPull)
		},
		"begin": func(w *world) {
			p := w.lonely(1, 5, "1a5")
			p.send(kindWelcome, &welcome{Node: node('b')})
			p.expect(kindBegin)
		},
		"catching up": func(w *world) {
			p := w.lonely(1, 5, "1a60")
			p.welcome(5, "1a5")
			p.expect(kindFrames)
		},
		"history": func(w *world) {
			p := w.lonely(1, 60, "1a60")
			p.send(kindWelcome, &welcome{Node: node('b')})
			p.send(kindBegun, &begun{Segments: make([]int64, len(p.expect(kindBegin).(*begin).Sync.Segments))})
			w.settled()
		},
		"streaming": pairUp,
		"fenced": func(w *world) {
			pairUp(w)
			w.leader.fence(2, node('c'))
		},
		"failed": func(w *world) {
			pairUp(w)
			w.a.fs.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, Err: syscall.EIO})
			if err := w.propose(); err == nil {
				w.t.Fatal("no error")
			}
		},
		"closed": func(w *world) {
			pairUp(w)
			w.leader.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				reach(w)
				before := time.Now()
				if err := w.leader.Close(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(before); took != 0 {
					t.Fatalf("Close took %v", took)
				}
				if err := w.propose(); !errors.Is(err, replication.ErrStopped) {
					t.Fatalf("Propose: %v", err)
				}
			})
		})
	}
}

// Dial gets a context that ends with the leader.
func TestCloseWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.a.write("1a1")
		l := NewLeader(LeaderConfig{Config: w.config(w.a), LogID: testID, Epoch: 1, Log: w.a.log, Applier: w.applier, History: w.history,
			Dial: func(ctx context.Context) (Link, error) { <-ctx.Done(); return nil, ctx.Err() }})
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.Close()
		w.close()
	})
}

// Whoever waits for what is in flight is told when the leader closes, before any Close returns, and not after.
func TestCloseTells(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		w.link.in.set(func() { w.link.in.deaf = true })
		if err := w.propose(); err != nil {
			t.Fatal(err)
		}
		told := make(chan int, 3)
		for range 3 {
			go func() {
				w.leader.Close()
				if told := w.applier.lastTold(); !strings.Contains(told, "stopping") {
					t.Errorf("the applier was told %q", told)
				}
				w.applier.mu.Lock()
				defer w.applier.mu.Unlock()
				told <- len(w.applier.told)
			}()
		}
		first := <-told
		if second, third := <-told, <-told; second != first || third != first {
			t.Fatalf("the applier was called after Close: %v", w.applier.told)
		}
	})
}

// Entries that were not known to be committed are handed over once each, wherever reading them fails.
func TestApplyGoesOn(t *testing.T) {
	failed := 0
	for at := 1; at < 12; at++ {
		inBubble(t, func(t *testing.T, w *world) {
			w.a.write("1a60")
			w.b.write("1a60")
			w.follow(60)
			fault := w.a.fs.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Read}, Name: "log/*", Err: syscall.EIO, At: at})
			w.lead(1, 10)
			w.streaming()
			failed += len(fault.Hits())
			if got := runs(w.applier.applied); got != "11 to 60" || w.sessions() != 1+len(fault.Hits()) {
				t.Fatalf("read %d failed: applied %s in %d sessions", at, got, w.sessions())
			}
		})
	}
	if failed < 4 {
		t.Fatalf("%d reads failed, and the log has 4 segments", failed)
	}
}

// An entry that contradicts the state ends the leader for good.
func TestApplyRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.write("1a9")
		w.b.write("1a9")
		w.follow(9)
		w.applier.refuse = errors.New("a contradiction")
		w.lead(1, 5)
		w.pass(5 * time.Second)
		if w.applier.failed == nil || w.leader.Err() == nil || w.sessions() != 1 || w.leader.Pair().State != StateFailed {
			t.Fatalf("failed: %v, %d sessions, %+v", w.applier.failed, w.sessions(), w.leader.Pair())
		}
		if err := w.propose(); !errors.Is(err, replication.ErrFailedBefore) {
			t.Fatal(err)
		}
	})
}

// greet lets a node dial the leader with a hello, and returns the refusal, nil when there is none.
func (w *world) greet(h *hello) *refuse {
	w.t.Helper()
	mine, theirs := newPipe()
	p := &far{w: w, pipe: mine}
	w.serving.Go(func() { w.leader.Serve(theirs) })
	p.send(kindHello, h)
	_, fields := p.next()
	r, _ := fields.(*refuse)
	if !p.closed() {
		w.t.Error("the leader keeps the link of another one")
	}
	return r
}

// Whoever dials a leader leads, too. The higher epoch wins; the loser notes it and stops, once.
func TestServedByLeader(t *testing.T) {
	good := hello{Version: version, LogID: hexID(testID), Node: node('c'), Epoch: 5, LeaseMS: 2000}
	with := func(change func(*hello)) *hello {
		h := good
		change(&h)
		return &h
	}
	for _, c := range []struct {
		name  string
		hello *hello
		code  Code
		fence bool
	}{
		{"lower epoch", with(func(h *hello) { h.Epoch = 4 }), CodeStaleEpoch, false},
		{"same epoch", &good, CodeEpochTaken, false},
		{"higher epoch", with(func(h *hello) { h.Epoch = 6 }), CodeNotNow, true},
		{"no epoch", with(func(h *hello) { h.Epoch = 0 }), CodeMalformed, false},
		{"an epoch after which there is none", with(func(h *hello) { h.Epoch = 1<<64 - 1 }), CodeMalformed, false},
		{"no node", with(func(h *hello) { h.Node, h.Epoch = NodeID{}, 6 }), CodeMalformed, false},
		{"this node", with(func(h *hello) { h.Node, h.Epoch = node('a'), 6 }), CodeSameNode, false},
		{"other log", with(func(h *hello) { h.LogID[0]++; h.Epoch = 6 }), CodeOtherLog, false},
		{"no log", with(func(h *hello) { h.LogID = hexID{}; h.Epoch = 6 }), CodeOtherLog, false},
		{"other version", with(func(h *hello) { h.Version, h.Epoch = 2, 6 }), CodeVersion, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.a.write("5a5")
				w.b.write("5a5")
				w.follow(5)
				w.lead(5, 5)
				w.streaming()
				promise := w.a.Promise()
				for range 2 {
					if r := w.greet(c.hello); r == nil || r.Code != c.code || r.Epoch != 5 || r.Leader != node('a') {
						t.Fatalf("answer %+v", r)
					}
				}
				w.settled()
				if !c.fence {
					if w.a.Promise() != promise || len(w.fatal) > 0 || !w.leader.MayAnswer() {
						t.Fatalf("promise %+v, fatal %v", w.a.Promise(), w.fatal)
					}
					w.mustCommit()
					return
				}
				if p := w.a.Promise(); p.Epoch != 6 || p.Leader != node('c') {
					t.Fatalf("promise %+v", p)
				}
				var fenced *FencedError
				if len(w.fatal) != 1 || !errors.As(w.fatal[0], &fenced) || fenced.Seen != 6 {
					t.Fatalf("fatal %v", w.fatal)
				}
				if err := w.propose(); !errors.Is(err, replication.ErrFailedBefore) || !errors.As(err, &fenced) {
					t.Fatalf("Propose: %v", err)
				}
				if w.leader.MayAnswer() || w.leader.Pair().State != StateFenced {
					t.Fatalf("may answer: %v, %+v", w.leader.MayAnswer(), w.leader.Pair())
				}
			})
		})
	}
}

// Nodes that dial a leader and say nothing, or nothing that makes sense, are gone after the timeout.
func TestServedByLeaderNonsense(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		open := func() *far {
			mine, theirs := newPipe()
			w.serving.Go(func() { w.leader.Serve(theirs) })
			return &far{w: w, pipe: mine}
		}
		silent := open()
		w.pass(testTimeout - 1)
		if silent.closed() {
			t.Fatal("gone before the timeout")
		}
		w.pass(1)
		if !silent.closed() {
			t.Fatal("still there after the timeout")
		}
		for _, s := range samples[1:] {
			p := open()
			p.send(s.kind, s.fields)
			if k, _ := p.next(); k != 0 || !p.closed() {
				t.Errorf("%v: %v came, closed %v", s.kind, k, p.closed())
			}
		}
		p := open()
		p.raw(body(100))
		if w.settled(); !p.closed() {
			t.Error("bytes without sense are kept")
		}
		w.mustCommit()
	})
}

// How a refusal of the follower ends a leader: only if another one leads.
func TestRefusedByFollower(t *testing.T) {
	for _, c := range []struct {
		refuse refuse
		fenced entry.Term // by which epoch; 0: not
	}{
		{refuse{Code: CodeStaleEpoch, Epoch: 6, Leader: node('c')}, 6},
		{refuse{Code: CodeStaleEpoch, Epoch: 5, Leader: node('c')}, 0},
		{refuse{Code: CodeStaleEpoch, Epoch: 1<<64 - 1, Leader: node('c')}, 0},
		{refuse{Code: CodeStaleEpoch, Epoch: 6}, 0},
		{refuse{Code: CodeEpochTaken, Epoch: 5, Leader: node('c')}, 5},
		{refuse{Code: CodeEpochTaken, Epoch: 5, Leader: node('a')}, 0},
		{refuse{Code: CodeEpochTaken, Epoch: 5}, 0},
		{refuse{Code: CodeEpochTaken, Epoch: 6, Leader: node('c')}, 0},
		{refuse{Code: CodeNotNow, Epoch: 9, Leader: node('c')}, 0},
		{refuse{Code: "something else", Epoch: 9, Leader: node('c')}, 0},
	} {
		t.Run(fmt.Sprint(c.refuse.Code, " ", c.refuse.Epoch), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				p := w.lonely(5, 5, "5a5")
				p.send(kindRefuse, &c.refuse)
				w.settled()
				if !p.closed() {
					t.Error("the session goes on")
				}
				if c.fenced == 0 {
					if w.leader.Err() != nil || len(w.fatal) > 0 || w.a.Promise().Epoch != 5 {
						t.Fatalf("%v, fatal %v", w.leader.Err(), w.fatal)
					}
					w.b.write("5a5")
					w.follow(5)
					w.setDial(nil)
					w.streaming()
					return
				}
				if len(w.fatal) != 1 || w.leader.Pair().State != StateFenced {
					t.Fatalf("%v, fatal %v", w.leader.Err(), w.fatal)
				}
				if p := w.a.Promise(); c.fenced > 5 && (p.Epoch != c.fenced || p.Leader != node('c')) {
					t.Fatalf("promise %+v", p)
				}
				if w.sessions() != 1 {
					t.Fatalf("it dialed %d times", w.sessions())
				}
			})
		})
	}
}

// Every error of the leader's disk is final, and told.
func TestLeaderDisk(t *testing.T) {
	for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Sync} {
		inBubble(t, func(t *testing.T, w *world) {
			pairUp(w)
			w.a.fs.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Err: syscall.EIO})
			if err := w.propose(); err == nil {
				t.Fatal("no error")
			}
			w.pass(10 * time.Second)
			if w.applier.failed == nil || w.leader.Status().Committed != 5 || w.leader.Pair().State != StateFailed || w.sessions() != 1 {
				t.Fatalf("failed %v, %+v, %d sessions", w.applier.failed, w.leader.Pair(), w.sessions())
			}
		})
	}
}

// The applier hears of each change in turn: no writes, writes, no writes.
func TestToldInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pairUp(w)
		w.link.Close()
		w.streaming()
		var short []string
		for _, told := range w.applier.told {
			if told != "lead" {
				told = "suspend"
			}
			if n := len(short); n == 0 || short[n-1] != told {
				short = append(short, told)
			}
		}
		if want := []string{"suspend", "lead", "suspend", "lead"}; !slices.Equal(short, want) {
			t.Fatalf("told %v", w.applier.told)
		}
	})
}
