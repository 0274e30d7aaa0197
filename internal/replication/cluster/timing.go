package cluster

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"example.com/mq/internal/entry"
)

// patience returns how long to wait for a leader: one to two election timeouts, and never so short that the others, who
// have heard of the same leader, still hold on to it. Called with mu held.
func (r *Role) patience() time.Duration {
	t := r.cfg.ElectionTimeout
	return t + 2*r.pause + time.Duration(r.cfg.Random.Int64N(int64(t-2*r.pause)))
}

// impatience returns how long to wait before another attempt to be elected. An attempt that has no chance disturbs
// nobody, as it asks first.
func (r *Role) impatience() time.Duration {
	t := r.cfg.ElectionTimeout / 2
	return t + time.Duration(r.cfg.Random.Int64N(int64(t)))
}

// keepTime ticks, and begins elections.
func (r *Role) keepTime() {
	timer := r.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	next := r.cfg.Clock.Monotonic()
	for {
		select {
		case <-r.stop:
			return
		case <-timer.C():
		}
		if !r.stalled.Load() { // who cannot write does not keep the lead, nor try for it
			// What goes wrong here has been dealt with, and the next turn finds it.
			_ = r.locked(func() error { return r.turnClock(&next) })
		}
		r.mu.Lock()
		now, due := r.cfg.Clock.Monotonic(), next
		if r.state != raft.StateLeader {
			due = min(due, r.electAt)
		}
		r.mu.Unlock()
		if next <= now { // the time that this node did not run is not made up for
			next = now + r.pause
			due = min(max(due, now+r.pause/8), next)
		}
		timer.Reset(max(due-now, r.pause/64))
	}
}

// turnClock does what is due. Called with mu held.
func (r *Role) turnClock(next *time.Duration) error {
	now := r.cfg.Clock.Monotonic()
	if last := time.Duration(r.ticked.Load()); last != 0 && now-last > r.freshFor() {
		r.unsure.Store(true) // this node was stopped for a while
	}
	r.ticked.Store(int64(now))
	if r.state != raft.StateLeader && now >= r.electAt {
		r.electAt = now + r.impatience()
		// A node whose disk is full leaves it to the others for a while: perhaps all are.
		if r.passed++; !r.full && !r.cfg.Full() || r.passed >= fullPatience {
			r.passed = 0
			if err := r.node.Campaign(); err != nil {
				return err
			}
		}
	}
	if now < *next {
		return nil
	}
	*next = now + r.pause
	if r.full && now >= r.retryAt {
		signal(r.drain)
	}
	if r.state != raft.StateLeader {
		// The library's own timeout, which is random, must not count; but it keeps the time since the leader was heard of.
		r.node.TickQuiesced()
	} else {
		r.node.Tick()
		r.tickLeader(now)
	}
	return nil
}

// fullPatience is how many times a node whose disk is full does not try to be elected before it does.
const fullPatience = 4

// choked lets the others elect a leader when entries that they have no room for stand in the way of everything else: the best
// of them is asked to. What it does not have is cut, and what gives room back can be committed. Called with mu held.
func (r *Role) choked(now time.Duration) {
	if r.window.last() == uint64(r.commit) || r.cfg.Nodes == 1 || !r.mostAreFull() {
		r.chokedAt = 0
		return
	}
	if r.chokedAt == 0 || r.chokedFor != r.commit {
		r.chokedAt, r.chokedFor = now, r.commit
		return
	}
	if now-r.chokedAt < 2*r.cfg.ElectionTimeout {
		return
	}
	r.chokedAt = now
	best, match := NoNode, uint64(0)
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if n := nodeOf(id); n != r.cfg.Self && pr.RecentActive && (best == NoNode || pr.Match > match) {
			best, match = n, pr.Match
		}
	})
	if best == NoNode {
		return
	}
	r.cfg.Logger.Warn("the disks of most nodes are full, and cannot take what was sent: another node is to lead", "peer", best)
	r.out = append(r.out, &pb.Message{
		Type: pb.MsgTimeoutNow.Enum(), From: new(idOf(r.cfg.Self)), To: new(idOf(best)), Term: new(uint64(r.leading)),
	})
}

// tickLeader does what a leader does from time to time.
func (r *Role) tickLeader(now time.Duration) {
	if r.transferee != NoNode && r.later == NoNode && r.node.BasicStatus().LeadTransferee == raft.None { // the library gave it up
		r.transferee = NoNode
		r.broadcast()
	}
	if r.leading == 0 { // the library has just stepped down, which ready will note
		return
	}
	if r.handing && r.transferee == NoNode { // it has not begun, or was given up
		r.handing = false
		r.gaveUp, r.nextPause = now, min(fullPause, 2*r.cfg.ElectionTimeout<<min(r.kept, 10))
		r.kept++
		r.cfg.Logger.Warn("the other node has not taken the lead: if the disk is still full then, another attempt follows", "after", r.nextPause)
	}
	if best := r.best(); best != NoNode {
		if h := r.heir.Load(); h == nil || *h != (heir{r.leading, best}) {
			r.heir.Store(&heir{r.leading, best})
		}
		if r.cfg.Full() && r.transferee == NoNode && (r.gaveUp == 0 || now-r.gaveUp >= r.nextPause) && r.has(best, r.commit) {
			if now-r.gaveUp > 2*fullPause {
				r.kept = 0
			}
			r.gaveUp, r.nextPause, r.handing = now, fullPause, true
			r.cfg.Logger.Warn("the disk is full: the lead is handed over", "peer", best)
			r.handTo(best)
		}
	}
	r.choked(now)
	if r.round != nil && now-r.round.asked >= 2*r.pause {
		r.ask(r.round) // a packet may have been lost
	}
}

// has reports whether a node has everything up to index.
func (r *Role) has(node int, index entry.Index) (has bool) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if nodeOf(id) == node {
			has = pr.Match >= uint64(index)
		}
	})
	return has
}

// watch looks whether the disk answers. It takes no lock that is held by anybody who waits for the disk.
func (r *Role) watch() {
	pause := r.cfg.DiskTimeout / 4
	timer := r.cfg.Clock.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-timer.C():
		}
		switch waits := r.io.waits(); {
		case waits <= r.cfg.DiskTimeout:
			if r.stalled.CompareAndSwap(true, false) {
				r.cfg.Logger.Warn("the disk answers again")
				r.advance()
			}
		case r.stalled.CompareAndSwap(false, true):
			r.stall(waits)
		}
		timer.Reset(pause)
	}
}

// stall gives up the lead because the disk does not answer: the best of the others is asked to lead, and as this node
// sends nothing more that keeps them from it, they will elect one in any case.
func (r *Role) stall(waits time.Duration) {
	r.cfg.Logger.Warn("the disk does not answer", "for", waits)
	if r.cfg.Observer.Stalled != nil {
		r.cfg.Observer.Stalled(waits)
	}
	if h := r.heir.Load(); h != nil {
		r.handOver(h.term)
	}
	r.mu.Lock()
	r.endRounds("the disk does not answer")
	r.suspend = fmt.Sprintf("the disk has not answered for %v", waits.Round(time.Millisecond))
	r.mu.Unlock()
	r.advance()
}
