package broker

import (
	"errors"

	"example.com/mq/internal/invariant"
	"example.com/mq/internal/replication"
)

// Where the lead can be lost and got again, whoever holds the baton may have decided under a lead that is over, and Follow
// and Lead do not wait for it: they may come from the goroutine that it waits for. So leads are numbered, and this is the
// order that keeps what was decided under one from being proposed, or answered, under another.
//
//  1. Lead gives the lead a new number. It touches nothing that the holder owns.
//  2. The holder begins each batch with takeLead: when its decider is of another lead, it has the role resume, and begins
//     anew on the fold as it is. That is all of the log: nothing is applied between Lead and Follow, and under this lead
//     nothing has been proposed yet. (If the lead has been lost by now, 4 finds out, also when what was resumed is the next.)
//  3. It decides. Whatever Follow, Apply and Lead do meanwhile, nothing of it has left the broker.
//  4. It puts the batch in flight if the number is still the same, under the lock under which Follow empties the flight.
//     Else nothing was done, whatever was decided.
//  5. It proposes. Follow before that has settled the batch as unknown, and the role refuses it: Follow has ended what
//     resume began. Without resume a Lead that comes before the call would make the role take what was decided on top of
//     entries that may be cut: offsets twice, or a gap.
//  6. Follow takes what is in flight and settles it, once: who takes a batch out of flight settles it. The holder finds out
//     when it hands on. Then come entries by Apply, those of the batch too, perhaps.

// resumer is a role whose lead can be lost and got again while a proposal is on its way. Others need none of it.
type resumer interface {
	// Resume says that all that is proposed from now on is decided on top of the entries that were applied before the last
	// Lead. Between Start or Follow and a Resume that comes after Lead, Propose answers an *UnavailableError, and so does
	// Resume until the role is about to call Lead. It never waits. Never while a Propose runs; again and again is fine.
	Resume() error
}

// lostError says why nothing is decided here: another node leads, or none.
type lostError struct{ reason string }

func (e *lostError) Error() string { return e.reason }

// tenure is a time in which this node leads.
type tenure struct {
	over chan struct{} // closed by Follow
}

// Lead implements replication.Applier: from now on requests are decided here.
func (b *Broker) Lead() {
	b.flightMu.Lock()
	b.suspended = nil
	begins := b.lost != nil
	if begins {
		b.lost = nil
		b.leads++
	}
	b.flightMu.Unlock()
	if begins {
		b.unsettled.Store(nil)
		b.tenure.Store(&tenure{over: make(chan struct{})})
		b.mu.Lock()
		b.leading = true
		b.mu.Unlock()
	}
	signal(b.led)
	b.touch() // a marker may be due
}

// Suspend implements replication.Applier: nobody waits for what is in flight, which stays there.
func (b *Broker) Suspend(reason string) {
	b.mu.Lock()
	b.notLeading = reason
	b.mu.Unlock()
	err := &UnavailableError{Reason: reason, Unknown: true}
	var ops []*op
	b.flightMu.Lock()
	b.suspended = err
	for _, t := range b.flight {
		if t.handedOn { // else its leader finds out when it hands on
			ops = append(ops, t.detach(err)...)
		}
	}
	b.flightMu.Unlock()
	wake(ops, nil)
}

// Follow implements replication.Applier: nothing is decided here any more, and the outcome of what is in flight is unknown.
func (b *Broker) Follow(reason string) {
	b.mu.Lock()
	b.leading, b.notLeading = false, reason
	b.mu.Unlock()
	if t := b.tenure.Swap(nil); t != nil {
		close(t.over)
	}
	b.flightMu.Lock()
	flight := b.flight
	b.flight, b.suspended, b.lost = nil, nil, &lostError{reason}
	b.flightMu.Unlock()
	for _, t := range flight {
		b.settle(t, &UnavailableError{Reason: reason, Unknown: true})
	}
}

// takeLead makes sure that the decider, which the caller owns, is of the lead that this node has. It returns a *lostError
// when there is none.
func (b *Broker) takeLead() error {
	lead, lost := b.leadNow()
	switch {
	case lost != nil:
		return lost
	case b.deciding.lead == lead:
		return nil
	}
	if role, ok := b.role.(resumer); ok {
		if err := role.Resume(); err != nil {
			return &lostError{reasonOf(err)}
		}
	}
	b.deciding.init(lead, b.Applied())
	return nil
}

// leadNow returns the number of the lead that this node has, or why it has none.
func (b *Broker) leadNow() (uint64, *lostError) {
	b.flightMu.Lock()
	defer b.flightMu.Unlock()
	return b.leads, b.lost
}

// reasonOf returns why a role is unavailable, as part of a sentence.
func reasonOf(err error) string {
	var unavailable *replication.UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Reason
	}
	return err.Error()
}

// elsewhere is the answer to what this node does not do because it does not lead: where the leader is, or, where that is
// not known, otherwise.
func (b *Broker) elsewhere(otherwise *UnavailableError) error {
	if b.leader != nil {
		if url := b.leader(); url != "" {
			return &NotLeaderError{Leader: url}
		}
	}
	return otherwise
}

// refused is the answer to an op that is not decided, because of err. What it asks for is not done by it. But a
// request id may have been used before, by an attempt whose outcome is open: then "not done" could be a lie.
func (b *Broker) refused(o *op, err error) error {
	invariant.Check(err != nil, "an op is refused without a reason")
	unavailable := &UnavailableError{Reason: err.Error(), Unknown: o.hasID()}
	var lost *lostError
	if errors.As(err, &lost) {
		return b.elsewhere(unavailable)
	}
	return unavailable
}
