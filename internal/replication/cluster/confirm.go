package cluster

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"go.etcd.io/raft/v3"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
)

// round asks the others once whether this node still leads, for all who wait for it.
type round struct {
	first, last uint64        // the numbers of its reads; 0 before the first
	began       time.Duration // when it was asked first, and last
	asked       time.Duration
	index       entry.Index // what must be applied; known once confirmed
	confirmed   bool
	waiters     int
	done        chan struct{}
	err         error // set before done is closed
}

// Confirm implements replication.Role. Those who come while a round is on its way wait for the next one: it may have
// been begun before what they must not miss.
func (r *Role) Confirm(ctx context.Context) error {
	var mine *round
	err := r.locked(func() error {
		if r.led == 0 || r.led != r.leading {
			return &replication.UnavailableError{Reason: r.whyNot()}
		}
		if r.stalled.Load() {
			return &replication.UnavailableError{Reason: "the disk does not answer"}
		}
		if r.round == nil {
			r.round = newRound()
			mine = r.round
			mine.waiters++
			r.ask(mine)
			return nil
		}
		if r.next == nil {
			r.next = newRound()
		}
		mine = r.next
		mine.waiters++
		return nil
	})
	if mine == nil {
		return unavailable(err)
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// freshFor is for how long what a node has heard, or its clock, is new: no other node is elected so soon.
func (r *Role) freshFor() time.Duration { return r.cfg.ElectionTimeout / 2 }

// Fresh reports whether, as far as this node's clock tells, no other node can have been elected: a majority was heard of a
// moment ago, and this node was not stopped since. It is cheap, and proves nothing: Confirm does.
func (r *Role) Fresh() bool {
	now := r.cfg.Clock.Monotonic()
	recent := func(at int64) bool { return at != 0 && now-time.Duration(at) <= r.freshFor() }
	return !r.unsure.Load() && recent(r.ticked.Load()) && (r.cfg.Nodes == 1 || recent(r.quorumAt.Load()))
}

// heard notes since when a majority has been heard of. Called with mu held.
func (r *Role) heard() {
	var when [NodesMax]time.Duration
	list := when[:0]
	for n := range r.peers {
		if n != r.cfg.Self && r.peers[n].contacted {
			list = append(list, r.peers[n].contact)
		}
	}
	need := r.cfg.Nodes / 2 // with this node a majority
	if need == 0 || len(list) < need {
		return
	}
	slices.Sort(list)
	r.quorumAt.Store(int64(list[len(list)-need]))
}

// unavailable makes any error of a role that was closed or has failed one that Confirm may return.
func unavailable(err error) error {
	if _, ok := err.(*replication.UnavailableError); ok {
		return err
	}
	return &replication.UnavailableError{Reason: err.Error()}
}

// whyNot says why this node does not decide. Called with mu held.
func (r *Role) whyNot() string {
	if r.leading != 0 {
		return "this node is about to lead"
	}
	return r.reason
}

func newRound() *round { return &round{done: make(chan struct{})} }

// ask begins a read, with a number that was never used. Called with mu held.
func (r *Role) ask(o *round) {
	r.reads++
	o.asked = r.cfg.Clock.Monotonic()
	if o.first == 0 {
		o.first, o.began = r.reads, o.asked
	}
	o.last = r.reads
	r.node.ReadIndex(binary.LittleEndian.AppendUint64(nil, r.reads))
}

// readNumber returns the number that comes with a heartbeat, 0 for none.
func readNumber(context []byte) uint64 {
	if len(context) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(context)
}

// confirmed notes that a majority has followed this node after a read was begun. Called with mu held.
func (r *Role) confirmed(s raft.ReadState) {
	o, n := r.round, readNumber(s.RequestCtx)
	if o == nil || n < o.first || n > o.last || o.confirmed {
		return // of a round that is over
	}
	r.unsure.Store(false)
	o.confirmed, o.index = true, entry.Index(s.Index)
	r.settle(o)
}

// settle ends a round that is confirmed once all is applied that it must not miss, and begins the next. Called with mu
// held.
func (r *Role) settle(o *round) {
	if !o.confirmed || r.reported < o.index {
		return
	}
	if r.cfg.Observer.Confirmed != nil {
		r.cfg.Observer.Confirmed(r.cfg.Clock.Monotonic()-o.began, o.waiters)
	}
	close(o.done)
	r.round, r.next = r.next, nil
	if r.round != nil {
		r.ask(r.round)
	}
}

// endRounds tells all who wait that it is not known who leads. Called with mu held.
func (r *Role) endRounds(reason string) {
	for _, o := range []*round{r.round, r.next} {
		if o != nil {
			o.err = &replication.UnavailableError{Reason: reason}
			close(o.done)
		}
	}
	r.round, r.next = nil, nil
}
