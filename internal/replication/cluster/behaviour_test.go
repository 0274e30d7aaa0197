package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/wal"
)

// others returns the nodes other than n.
func (c *cluster) others(n *node) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(m *node) bool { return m == n })
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestTransfers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		for round := range 6 {
			l := c.leader()
			last := l.propose(fmt.Sprint("entry-", round), 3)
			to := NoNode
			if round%2 == 0 {
				to = (l.n + 1) % 3
			}
			began := c.clock.Monotonic()
			if err := l.role.Transfer(within(t, time.Second), to); err != nil {
				t.Fatal(err)
			}
			m := c.leader()
			if gap := c.clock.Monotonic() - began; gap > 100*time.Millisecond {
				t.Errorf("the next leader decides %v after the transfer began", gap)
			}
			if m == l || to != NoNode && m.n != to {
				t.Errorf("node %d leads after node %d was to hand over to %d", m.n, l.n, to)
			}
			last = max(last, m.log.Last())
			c.awaitApplied(last)
		}
		// To a node that does not answer: it fails, and the leader leads on.
		l := c.leader()
		away := c.others(l)[0]
		c.isolate(away.n, true)
		l.propose("more", 1)
		if err := l.role.Transfer(within(t, 5*time.Second), away.n); err == nil {
			t.Error("the lead was handed over to a node that is away")
		}
		if err := away.role.Transfer(within(t, time.Second), NoNode); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("transfer by a follower: %v", err)
		}
		if c.leader() != l {
			t.Error("the leader has changed")
		}
		l.propose("on", 1)
		c.isolate(away.n, false)
		c.settle()
	})
}

// A leader whose sync hangs tells the applier, asks another node to lead, and is a follower when the disk answers again.
func TestTrapDiskStall(t *testing.T) { diskStall(t, true, 800*time.Millisecond) }

// Should what it asks get lost, the others elect a leader because it is silent.
func TestTrapDiskStallInSilence(t *testing.T) { diskStall(t, false, 4*defaultElectionTimeout) }

func diskStall(t *testing.T, asks bool, limit time.Duration) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.tap = func(_, _ int, packet []byte) []byte {
			if !asks && messageNames[packet[5]] == "timeout_now" {
				return nil
			}
			return packet
		}
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		time.Sleep(200 * time.Millisecond)
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate = gate
		l.mu.Unlock()
		began := c.clock.Monotonic()
		done := make(chan error, 1)
		go func() { done <- propose(l.role, payloads("stuck", 1)) }()
		var m *node
		c.await("another leader", func() bool {
			for _, n := range c.others(l) {
				if n.role.Info().Deciding {
					m = n
				}
			}
			return m != nil
		})
		if took := c.clock.Monotonic() - began; took > limit {
			t.Errorf("another node leads after %v", took)
		}
		l.applier.look(func() {
			if l.applier.suspended == "" {
				t.Error("the applier was told nothing")
			}
		})
		if !l.role.Info().Stuck {
			t.Error("the node does not say that it is stuck")
		}
		if err := l.role.Confirm(within(t, 10*time.Second)); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("confirmed while the disk hangs: %v", err)
		}
		last := m.propose("goes on", 2)
		c.awaitApplied(last, c.others(l)...)
		time.Sleep(5 * time.Second) // it stays so: who is stuck does not disturb
		if info := m.role.Info(); info.Role != RoleLeader {
			t.Errorf("the new leader has lost its lead: %+v", info)
		}
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
		if err := <-done; err != nil && !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("the proposal that was stuck: %v", err)
		}
		c.awaitApplied(last)
		if l.role.Info().Role != RoleFollower {
			t.Errorf("it is %+v", l.role.Info())
		}
		c.settle()
	})
}

// A stuck follower does not try to lead; a leader that is stuck and alone leads on when its disk answers.
func TestStuckAndAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.start()
		l := c.leader()
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate = gate
		l.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- propose(l.role, payloads("stuck", 1)) }()
		c.await("suspended", func() (s bool) {
			l.applier.look(func() { s = l.applier.suspended != "" })
			return s
		})
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		c.await("leading again", func() (s bool) {
			l.applier.look(func() { s = l.applier.suspended == "" && l.applier.leads && l.applier.at == l.log.Last() })
			return s
		})
		c.awaitApplied(l.propose("on", 1))
	})
}

// A follower whose disk is full keeps what comes, votes, and writes when there is room.
func TestFullFollower(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		f, other := c.others(l)[0], c.others(l)[1]
		fault := f.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/*", Err: syscall.ENOSPC, Always: true})
		f.mu.Lock()
		f.full = true
		f.mu.Unlock()
		var last entry.Index
		for i := range 20 {
			last = l.propose(fmt.Sprint("more-", i), 3)
		}
		c.awaitApplied(last, l, other)
		c.await("the leader knows", func() bool {
			return slices.ContainsFunc(l.role.Info().Peers, func(p PeerInfo) bool { return p.Node == f.n && p.Full && p.Match < last })
		})
		// Its vote is needed, and given.
		c.isolate(l.n, true)
		c.await("the other one leads", func() bool { return other.role.Info().Role == RoleLeader })
		if f.role.Status().Err != nil {
			t.Fatal(f.role.Status().Err)
		}
		fault.Remove()
		f.mu.Lock()
		f.full = false
		f.mu.Unlock()
		c.awaitApplied(last, f, other)
		c.isolate(l.n, false)
		c.settle()
	})
}

// A leader whose disk is full hands over to a node that has room.
func TestFullLeader(t *testing.T) { fullLeader(t, 0, 2*defaultElectionTimeout) }

// The other node does not hear of it twice: it is told again after two election timeouts, and after four.
func TestFullLeaderIsKept(t *testing.T) { fullLeader(t, 2, 9*defaultElectionTimeout) }

// A full leader that was asked in vain, loses the lead and comes back is not more eager for it: each pause is twice as long.
func TestFullLeaderComesBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		time.Sleep(time.Second)
		var mu sync.Mutex
		var told []time.Duration
		c.mu.Lock()
		c.tap = func(from, _ int, packet []byte) []byte {
			if from != l.n || messageNames[packet[5]] != "timeout_now" {
				return packet
			}
			mu.Lock()
			defer mu.Unlock()
			told = append(told, c.clock.Monotonic())
			return nil
		}
		c.mu.Unlock()
		times := func(n int) (at []time.Duration) {
			c.await(fmt.Sprint("told ", n, " times"), func() bool {
				mu.Lock()
				defer mu.Unlock()
				at = slices.Clone(told)
				return len(at) == n
			})
			return at
		}
		full := func(is bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.full = is
		}
		full(true)
		times(2)
		c.isolate(l.n, true)
		c.await("another leader", func() bool {
			return slices.ContainsFunc(c.others(l), func(n *node) bool { return n.role.Info().Role == RoleLeader })
		})
		full(false)
		c.isolate(l.n, false)
		m := c.leader()
		c.awaitApplied(m.propose("another", 1))
		if err := m.role.Transfer(within(t, 5*time.Second), l.n); err != nil {
			t.Fatal(err)
		}
		c.await("the lead is back", func() bool { return c.leader() == l })
		full(true)
		// It was given up after one election timeout; the third pause is of eight.
		if at := times(4); at[3]-at[2] < 9*defaultElectionTimeout {
			t.Errorf("told at %v", at)
		}
		full(false)
		c.settle()
	})
}

func fullLeader(t *testing.T, unheard int32, limit time.Duration) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		var told atomic.Int32
		c.tap = func(_, _ int, packet []byte) []byte {
			if messageNames[packet[5]] == "timeout_now" && told.Add(1) <= unheard {
				return nil
			}
			return packet
		}
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		time.Sleep(time.Second)
		fault := l.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/*", Err: syscall.ENOSPC, Always: true})
		l.mu.Lock()
		l.full = true
		l.mu.Unlock()
		if err := propose(l.role, payloads("no room", 1)); !errors.Is(err, wal.ErrFull) {
			t.Fatalf("got %v", err)
		}
		began := c.clock.Monotonic()
		c.await("another leader", func() bool { return l.role.Info().Role != RoleLeader && l.role.Info().Leader != NoNode })
		if took := c.clock.Monotonic() - began; took > limit || told.Load() != unheard+1 {
			t.Errorf("handed over after %v, told %d times", took, told.Load())
		}
		m := c.leader()
		c.awaitApplied(m.propose("room", 1), m)
		fault.Remove()
		l.mu.Lock()
		l.full = false
		l.mu.Unlock()
		c.settle()
	})
}

// A node that lags more than the window is told to pull, again and again, and goes on by itself once it has.
func TestTrapPausedForEver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.window = 4 << 10
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		f := c.others(l)[0]
		c.isolate(f.n, true)
		var last entry.Index
		for i := range 100 {
			last = l.propose(fmt.Sprint("more-", i), 10)
		}
		c.awaitApplied(last, l, c.others(l)[1])
		c.isolate(f.n, false)
		c.await("told to pull twice", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.behind) >= 2 && f.behind[0] == l.n
		})
		if !slices.ContainsFunc(l.role.Info().Peers, func(p PeerInfo) bool { return p.Node == f.n && p.NeedsPull && p.State == "pull" }) {
			t.Errorf("the leader does not say so: %+v", l.role.Info())
		}
		if info := f.role.Info(); info.Leader != l.n {
			t.Errorf("the node that lags does not know who leads: %+v", info)
		}
		// What the node does then, in short.
		f.halt()
		log, _, err := wal.Open(wal.Config{FS: f.disk, LogID: testLog, SegmentBytes: c.segment, Inline: true}, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		cur := l.log.NewCursor(log.Last() + 1)
		frames := new(wal.Frames)
		for log.Last() < last {
			place, err := cur.Next(frames, last, 4096)
			if err != nil {
				t.Fatal(err)
			}
			into := new(wal.Frames)
			if err := errors.Join(log.Load(into, place, slices.Clone(frames.Raw())), log.AppendReplica(into, place), log.Sync()); err != nil {
				t.Fatal(err)
			}
		}
		cur.Close()
		log.Close()
		f.start()
		last = l.propose("after", 2)
		c.awaitApplied(last)
		c.settle()
	})
}

// All who wait share rounds; a leader without a majority confirms nothing; a lost round fails.
func TestTrapConfirmTriesFreshNumbers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		sent := func() uint64 {
			l.role.mu.Lock()
			defer l.role.mu.Unlock()
			return l.role.reads
		}
		before := sent()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := l.role.Confirm(within(t, time.Second)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := sent() - before; n < 1 || n > 3 {
			t.Errorf("%d rounds for 50 at once", n)
		}
		if err := c.others(l)[0].role.Confirm(within(t, time.Second)); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("a follower: %v", err)
		}
		// One packet is lost: a fresh number is tried.
		var lost atomic.Int32
		c.mu.Lock()
		c.tap = func(from, _ int, packet []byte) []byte {
			if from == l.n && messageNames[packet[5]] == "heartbeat" && packet[65] > 0 && lost.Add(1) <= 2 {
				return nil
			}
			return packet
		}
		c.mu.Unlock()
		if err := l.role.Confirm(within(t, time.Second)); err != nil || lost.Load() < 2 {
			t.Errorf("with %d packets lost: %v", lost.Load(), err)
		}
		// Cut off: until it knows, it waits; then it says so.
		c.isolate(l.n, true)
		if err := l.role.Confirm(within(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cut off: %v", err)
		}
		if err := l.role.Confirm(within(t, 10*time.Second)); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("cut off for long: %v", err)
		}
	})
}

// All nodes lose their power at once, again and again: what was acknowledged is there.
func TestPowerCuts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.segment = 8 << 10
		acknowledged := map[entry.Index]string{}
		for round := range 8 {
			c.start()
			l := c.leader()
			for i := range 30 {
				f := payloads(fmt.Sprint("round-", round, "-", i), 2)
				if err := propose(l.role, f); err != nil {
					t.Fatal(err)
				}
				if i%3 == 0 {
					time.Sleep(5 * time.Millisecond)
				}
				l.applier.look(func() {
					if l.applier.at == f.Last() {
						acknowledged[f.Last()] = fmt.Sprint("round-", round, "-", i, "-1")
					}
				})
			}
			if round == 3 { // one after the other
				for _, n := range c.nodes {
					n.crash()
					n.start()
					time.Sleep(time.Second)
				}
			}
			for _, n := range c.nodes {
				n.crash()
			}
		}
		c.start()
		l := c.leader()
		c.awaitApplied(l.log.Last())
		for _, n := range c.nodes {
			for i, want := range acknowledged {
				if got := n.applier.payloads[i]; got != want {
					t.Errorf("node %d: entry %d is %q, want %q", n.n, i, got, want)
				}
			}
		}
		if len(acknowledged) < 50 {
			t.Errorf("only %d were acknowledged", len(acknowledged))
		}
		c.settle()
	})
}

// A leader whose disk fails never acknowledges again, and another one leads.
func TestFailedDisk(t *testing.T) {
	for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Sync} {
		virtual(t, func(t *testing.T) {
			c := newCluster(t, 3)
			c.start()
			l := c.leader()
			c.awaitApplied(l.propose("before", 3))
			time.Sleep(200 * time.Millisecond)
			l.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Name: "log/*", Err: syscall.EIO, Always: true})
			if err := propose(l.role, payloads("lost", 1)); err == nil {
				t.Fatal("taken")
			}
			synctest.Wait()
			if l.role.Status().Err == nil || l.role.MayAnswer() {
				t.Error("it goes on")
			}
			l.applier.look(func() {
				if l.applier.failed == nil {
					t.Error("the applier was not told")
				}
			})
			began := c.clock.Monotonic()
			c.await("another leader", func() bool {
				return slices.ContainsFunc(c.others(l), func(n *node) bool { return n.role.Info().Deciding })
			})
			if took := c.clock.Monotonic() - began; took > defaultElectionTimeout {
				t.Errorf("after %v: it was not handed over", took)
			}
			l.crash()
			l.start()
			c.settle()
		})
	}
}

// The lead is lost while a proposal is being written: raft does not take it, and it is cut from the log again.
func TestLeadLostWhileWriting(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		before := l.propose("before", 3)
		c.awaitApplied(before)
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate, l.gated = gate, "write"
		l.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- propose(l.role, payloads("nobody's", 4)) }()
		synctest.Wait()
		if err := l.role.Transfer(within(t, time.Second), NoNode); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
		if err := <-done; err != nil { // Follow says that the outcome is unknown: who catches up may have read the entries
			t.Fatal(err)
		}
		m := c.leader()
		last := m.propose("after", 2)
		c.awaitApplied(last)
		if last != before+3 { // with the one that begins the term
			t.Errorf("entry %d is last", last)
		}
		c.settle()
	})
}

// Who asks while a round is on its way may want to see what was committed after it began: it waits for the next one.
func TestConfirmWaitsForALaterRound(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.delay = 10 * time.Millisecond
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		first := make(chan error, 1)
		go func() { first <- l.role.Confirm(within(t, time.Second)) }()
		time.Sleep(5 * time.Millisecond)
		began := c.clock.Monotonic()
		if err := errors.Join(l.role.Confirm(within(t, time.Second)), <-first); err != nil {
			t.Fatal(err)
		}
		if took := c.clock.Monotonic() - began; took < 30*time.Millisecond {
			t.Errorf("confirmed after %v, before its own round came back", took)
		}
	})
}

// The lead is to be handed over while entries are written, and stays: they are not cut, and the leader goes on.
func TestTransferFailsWhileWriting(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		before := l.propose("before", 3)
		c.awaitApplied(before)
		time.Sleep(100 * time.Millisecond)
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate, l.gated = gate, "write"
		l.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- propose(l.role, payloads("nobody's", 4)) }()
		synctest.Wait()
		away := c.others(l)[0]
		c.isolate(away.n, true)
		failed := make(chan error, 1)
		go func() { failed <- l.role.Transfer(within(t, 5*time.Second), away.n) }()
		synctest.Wait()
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
		if err := <-done; err != nil { // no other entries may stand where these stand, in this term: somebody may have read them
			t.Fatal(err)
		}
		if err := <-failed; err == nil {
			t.Fatal("the lead was handed over to a node that is away")
		}
		if last := l.propose("after", 2); last != before+6 {
			t.Errorf("entry %d is last", last)
		}
		c.isolate(away.n, false)
		c.settle()
	})
}

// A follower whose disk hangs does not try to lead.
func TestStuckFollowerDoesNotCampaign(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		f := c.others(l)[0]
		gate := make(chan struct{})
		f.mu.Lock()
		f.gate = gate
		f.mu.Unlock()
		c.awaitApplied(l.propose("more", 1), l)
		time.Sleep(time.Second)
		c.isolate(f.n, true)
		time.Sleep(5 * time.Second)
		if info := f.role.Info(); info.Role != RoleFollower || !info.Stuck {
			t.Errorf("it is %+v", info)
		}
		close(gate)
		c.await("it tries", func() bool { return f.role.Info().Role == RoleCandidate })
		c.isolate(f.n, false)
		c.settle()
		if got := l.role.Info(); got.Term != 1 || got.Role != RoleLeader {
			t.Errorf("its return has changed the leader: %+v", got)
		}
	})
}

// Entries that are being written when another leader replaces them: what is known when the disk answers is of the old
// ones, and must not count for the new ones.
func TestTrapWritesThatWereReplaced(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 5)
		c.start()
		l := c.leader()
		before := l.propose("before", 3)
		c.awaitApplied(before)
		time.Sleep(100 * time.Millisecond)
		f, rest := c.others(l)[0], c.others(l)[1:]
		gate := make(chan struct{})
		f.mu.Lock()
		f.gate = gate
		f.mu.Unlock()
		c.mu.Lock()
		for _, n := range rest {
			c.cut[[2]int{l.n, n.n}], c.cut[[2]int{n.n, l.n}] = true, true
		}
		c.mu.Unlock()
		old := l.propose("old", 4)
		c.await("the old entries written", func() bool { return f.log.Last() == old })
		var m *node
		c.await("another leader", func() bool {
			for _, n := range rest {
				if n.role.Info().Deciding {
					m = n
				}
			}
			return m != nil
		})
		last := m.propose("new", 1) // with the entry that begins the term, two in place of four
		c.await("the new leader is followed", func() bool { return f.role.Info().Leader == m.n })
		c.awaitApplied(last, rest...)
		if acked := m.role.Acked(f.n); acked > before {
			t.Errorf("the new leader believes that entry %d is durable", acked)
		}
		if f.log.Durable() > before || f.role.Info().Commit > before {
			t.Errorf("entry %d is durable, %d committed", f.log.Durable(), f.role.Info().Commit)
		}
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
		c.await("acknowledged", func() bool { return m.role.Acked(f.n) >= last })
		if f.log.Last() < last || f.log.Durable() < last {
			t.Errorf("acknowledged entry %d, and entry %d is durable", last, f.log.Durable())
		}
		c.mu.Lock()
		clear(c.cut)
		c.mu.Unlock()
		c.settle()
	})
}

// What was decided under a lead that is over is refused, although this node leads again: the entries that it was decided on
// may have been cut.
func TestResume(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		before := l.propose("before", 1)
		c.awaitApplied(before)
		other := c.others(l)[0]
		if err := l.role.Transfer(within(t, time.Second), other.n); err != nil {
			t.Fatal(err)
		}
		if err := l.role.Resume(); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("resumed while another node leads: %v", err)
		}
		c.leader()
		if err := other.role.Transfer(within(t, time.Second), l.n); err != nil {
			t.Fatal(err)
		}
		if again := c.leader(); again != l {
			t.Fatalf("node %d leads", again.n)
		}
		if err := l.role.Propose(payloads("old", 1)); !errors.Is(err, replication.ErrUnavailable) {
			t.Errorf("it takes what was decided under its lead before: %v", err)
		}
		if err := l.role.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := l.role.Propose(payloads("new", 1)); err != nil {
			t.Error(err)
		}
		c.settle()
	})
}

// Closed after the lead was lost, and before the applier heard of it: it hears of what is in flight all the same.
func TestClosedBeforeFollow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		c.isolate(l.n, true)
		l.propose("in flight", 1)
		l.role.applying.Lock() // the applier is busy
		c.await("it steps down", func() bool { return l.role.Info().Role != RoleLeader })
		l.role.mu.Lock()
		l.role.closed = true // as Close does first
		l.role.mu.Unlock()
		l.role.applying.Unlock()
		l.role.advance() // as who called the applier does
		l.role.mu.Lock()
		l.role.closed = false
		l.role.mu.Unlock()
		l.applier.look(func() { l.applier.suspended = "" })
		if err := l.role.Close(); err != nil {
			t.Fatal(err)
		}
		l.applier.look(func() {
			if l.applier.leads && l.applier.suspended == "" && l.applier.failed == nil {
				t.Error("the applier was told nothing of what is in flight")
			}
		})
	})
}

// What was given to raft is not said to be undone because what another leader sends finds no room.
func TestFullAfterProposal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate = gate
		l.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- propose(l.role, payloads("sent", 1)) }()
		synctest.Wait()
		time.Sleep(10 * time.Millisecond) // the others have it
		if err := l.role.Transfer(within(t, time.Second), NoNode); err != nil {
			t.Log(err)
		}
		var m *node
		c.await("another leader", func() bool {
			for _, n := range c.others(l) {
				if n.role.Info().Deciding {
					m = n
				}
			}
			return m != nil
		})
		time.Sleep(50 * time.Millisecond)
		fault := l.disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Write}, Name: "log/*", Err: syscall.ENOSPC, Always: true})
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
		if err := <-done; errors.Is(err, wal.ErrFull) {
			committed := false
			m.applier.look(func() {
				for _, p := range m.applier.payloads {
					committed = committed || p == "sent-0"
				}
			})
			t.Errorf("%v, which says that nothing was done; committed by the next leader: %v", err, committed)
		}
		fault.Remove()
		c.settle()
	})
}

// A leader that has not heard of a majority for a while doubts its lead long before it loses it.
func TestFresh(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 1))
		if !l.role.Fresh() {
			t.Error("a leader that is heard doubts its lead")
		}
		c.isolate(l.n, true)
		time.Sleep(defaultElectionTimeout/2 + 50*time.Millisecond)
		if l.role.Fresh() {
			t.Error("a leader that is cut off does not doubt its lead")
		}
		c.isolate(l.n, false)
		c.settle()
	})
}

// With no room on a majority the leader refuses what fills the disk, takes what gives room back, and its successor is one of
// those without room.
func TestMostDisksFull(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.start()
		l := c.leader()
		c.awaitApplied(l.propose("before", 3))
		for _, n := range c.others(l) {
			n.mu.Lock()
			n.full = true
			n.mu.Unlock()
		}
		c.await("the leader knows", func() bool {
			full := 0
			for _, p := range l.role.Info().Peers {
				if p.Full {
					full++
				}
			}
			return full == 2
		})
		if err := propose(l.role, payloads("large", 1)); !errors.Is(err, wal.ErrFull) {
			t.Fatalf("got %v", err)
		}
		small := payloads("small", 1)
		small.Reserve = true
		if err := propose(l.role, small); err != nil {
			t.Fatal(err)
		}
		c.isolate(l.n, true)
		c.await("one of the others leads", func() bool {
			return slices.ContainsFunc(c.others(l), func(n *node) bool { return n.role.Info().Deciding })
		})
		for _, n := range c.others(l) {
			n.mu.Lock()
			n.full = false
			n.mu.Unlock()
		}
		c.isolate(l.n, false)
		c.settle()
	})
}
