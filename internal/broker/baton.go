package broker

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

type opKind uint8

const (
	opPublish opKind = iota
	opGroup
	opRetain
	opSettings
	opMarker
	opChecked
	opConfigure
	opDeleteTopic
	opDeleteGroup
	opKeep
)

// op is one write that waits to be decided, committed and answered.
type op struct {
	kind opKind
	// The request. Slices belong to the caller, who waits.
	publish   *Publish
	bytes     int // of keys and values
	digest    fact.Digest
	topic     []byte
	group     []byte
	offset    fact.Offset
	cum       uint64 // of opRetain: bytes of the topic before offset, if
	cumKnown  bool   // the record there could be looked at
	freeing   bool   // of a marker: it gives room back
	byPolicy  bool   // of a retain: by the limits that follow from retention
	windowMS  int64
	configure *Configure
	keep      *Keep

	// The answer, valid once do has returned.
	published Published
	next      fact.Offset    // where the group or the topic stands now, or, of a deleted one, stood
	retention fact.Retention // that the topic has now
	err       error
	// hangs says that the outcome is the batch's: an entry of the op is in it, or the op repeats one that is
	// in flight.
	hangs bool
	// repeats says that the op hangs, and not on an entry of its own batch: it repeats one that was proposed
	// earlier, so that when its batch is not done, its outcome is still open.
	repeats bool
	// refusal says that err is the answer of the fold: there is no such topic, ... It is true only if this node still led,
	// by the lead of this number, at a moment after.
	refusal bool
	lead    uint64

	// wake receives a value when the op has been answered, or, with leads set, when it gets the baton.
	wake  chan struct{}
	leads bool
}

// opPool keeps ops for later ones of the same broker. It is not one for all brokers, as that of the batches is: an op has a
// channel, and a channel of a simulation must not be met outside of it.
type opPool struct{ pool sync.Pool }

func (p *opPool) get(kind opKind) *op {
	o, ok := p.pool.Get().(*op)
	if !ok {
		o = &op{wake: make(chan struct{}, 1)}
	}
	o.kind = kind
	return o
}

// put gives an op back that has been answered.
func (p *opPool) put(o *op) {
	invariant.Check(len(o.wake) == 0, "an op was answered twice")
	*o = op{wake: o.wake}
	p.pool.Put(o)
}

// hasID reports whether the op is a publish with a request id, so that another attempt may have been made elsewhere.
func (o *op) hasID() bool { return o.kind == opPublish && len(o.publish.RequestID) > 0 }

// batch is what one group commit carries.
type batch struct {
	frames  wal.Frames
	last    entry.Index // the batch is answered once this index is committed
	touched []state.TopicID

	// ops wait for the batch. They are its leader's until handedOn is set, and then guarded by Broker.flightMu, as
	// are the fields below: whoever takes them out answers them. A batch without any may still be in flight.
	ops      []*op
	settled  bool // committed and applied, or known to have failed
	handedOn bool // the baton has been passed on, so whoever settles or suspends answers
	kept     bool // the role may still use the frames, for good: they are not used again
	// never says why the role has not taken it, and never will. Whoever has settled it meanwhile, or is about to, took its outcome
	// for unknown.
	never string
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (t *batch) release() {
	clear(t.ops)
	frames := t.frames
	frames.Reset()
	*t = batch{frames: frames, ops: t.ops[:0], touched: t.touched[:0]}
	batches.Put(t)
}

// answer wakes all who wait for a settled batch, but not own, which runs already; own may be nil. Neither
// the batch nor the ops may be used after.
func (t *batch) answer(own *op) {
	wake(t.ops, own)
	if !t.kept {
		t.release()
	}
}

// wake wakes ops that have their answer, but not own, which runs already; own may be nil. The ops may not be
// used after.
func wake(ops []*op, own *op) {
	for _, o := range ops {
		if o != own {
			o.wake <- struct{}{}
		}
	}
}

// detach takes the ops out of the batch, which stays in flight without them, and returns them. Those that
// hang on it are given err. Callers hold Broker.flightMu.
func (t *batch) detach(err error) []*op {
	t.refuse(err)
	ops := slices.Clone(t.ops)
	clear(t.ops)
	t.ops = t.ops[:0]
	return ops
}

// refuse gives err to the ops that hang on the batch. Of an op that was refused on top of what is undone or unknown now,
// and so needs another answer, it is certain that nothing was done.
func (t *batch) refuse(err error) {
	var unavailable *UnavailableError
	errors.As(err, &unavailable)
	for _, o := range t.ops {
		switch {
		case !o.hangs:
		case o.refusal && unavailable != nil:
			o.refusal, o.err = false, &UnavailableError{Reason: unavailable.Reason, Unknown: o.repeats && unavailable.Unknown}
		default:
			o.refusal, o.err = false, err
		}
	}
}

// refuseUndone gives err, which says that nothing was done, to the ops that hang on a batch that did not take
// off. It is not true of those that repeat what is in flight.
func (t *batch) refuseUndone(err error) {
	t.refuse(err)
	for _, o := range t.ops {
		if o.repeats {
			o.err = &UnavailableError{Reason: err.Error(), Unknown: true}
		}
	}
}

// refuseHere refuses a batch that the role does not take. Where the lead can be lost, and may have been, another node may
// have done what a request id stands for: of that nobody here can say that it is not done.
func (b *Broker) refuseHere(t *batch, reason string) {
	t.refuseUndone(&UnavailableError{Reason: reason})
	if _, ok := b.role.(resumer); ok {
		t.leaveIDsOpen(reason)
	}
}

// refuseAsFailed refuses a batch of a node that has failed. The answer is the one that later ops get, see refused.
func (t *batch) refuseAsFailed(reason string) {
	t.refuseUndone(&UnavailableError{Reason: reason})
	t.leaveIDsOpen(reason)
}

// leaveIDsOpen says of publishes with a request id that their outcome is unknown: an attempt before may have been done.
func (t *batch) leaveIDsOpen(reason string) {
	for _, o := range t.ops {
		if o.hangs && o.hasID() {
			o.err = &UnavailableError{Reason: reason, Unknown: true}
		}
	}
}

// do queues an op and returns once it has been answered. If nobody decides, it takes the baton.
func (b *Broker) do(o *op) {
	b.mu.Lock()
	if err := b.refusal(); err != nil {
		b.mu.Unlock()
		o.err = b.refused(o, err)
		return
	}
	b.queue = append(b.queue, o)
	leads := !b.baton
	b.baton = true
	b.mu.Unlock()
	if !leads {
		<-o.wake
		if !o.leads {
			return
		}
		o.leads = false
	}
	b.lead(o)
}

// refusal says why no write is taken now, or is nil. Callers hold mu.
func (b *Broker) refusal() error {
	switch {
	case b.failed != nil:
		return fmt.Errorf("the node has failed and must be restarted: %w", b.failed)
	case b.closed:
		return errClosed
	case !b.leading:
		return &lostError{b.notLeading}
	}
	return nil
}

var errClosed = errors.New("the node is shutting down")

// lead runs one group commit with the baton, for own and all others that are queued, then passes the baton
// on, and returns once own has been answered.
//
// The order matters for speed: the successor is woken before those who were served, so that the next sync
// starts while their answers are written.
func (b *Broker) lead(own *op) {
	t := batches.Get().(*batch)
	b.mu.Lock()
	b.queue = t.take(b.queue)
	b.mu.Unlock()

	b.commit(t)
	b.passBaton()

	b.flightMu.Lock()
	t.handedOn = true
	settled, suspended := t.settled, b.suspended != nil
	var ops []*op
	if suspended && !settled {
		ops = t.detach(b.suspended)
	}
	b.flightMu.Unlock()
	switch {
	case settled:
		t.answer(own)
	case suspended:
		wake(ops, own)
	default:
		<-own.wake
	}
}

// take moves ops from the head of the queue into the batch, up to its limits, and returns the rest.
func (t *batch) take(queue []*op) []*op {
	n, bytes := 0, 0
	for n < len(queue) && n < batchOpsMax && (n == 0 || bytes+queue[n].bytes <= batchBytesMax) {
		bytes += queue[n].bytes
		n++
	}
	t.ops = append(t.ops, queue[:n]...)
	rest := copy(queue, queue[n:])
	clear(queue[rest:])
	return queue[:rest]
}

// commit decides the batch and proposes it. Then the batch is in flight or settled.
func (b *Broker) commit(t *batch) {
	err := b.propose(t, takeAll)
	// On a full disk nothing was done. Refuse what fills it, and let the small facts through; in the end only
	// those that can free room.
	for level := takeSmall; level <= takeFreeing && errors.Is(err, wal.ErrFull); level++ {
		err = b.propose(t, level)
	}
	if err != nil {
		b.grounded(t, err)
	}
}

// grounded settles a batch that did not take off because of err.
func (b *Broker) grounded(t *batch, err error) {
	var unavailable *replication.UnavailableError
	var lost *lostError
	switch {
	case errors.As(err, &lost): // whatever was decided, and whether or not it was: it is not done
		for _, o := range t.ops {
			o.refusal, o.err = false, b.refused(o, lost)
		}
	case errors.Is(err, wal.ErrFull):
		t.refuseUndone(ErrStorageFull)
	case errors.As(err, &unavailable):
		b.refuseHere(t, unavailable.Reason)
	case errors.Is(err, replication.ErrStopped):
		b.refuseHere(t, errClosed.Error())
	case errors.Is(err, replication.ErrFailedBefore):
		b.Failed(err)
		t.refuseAsFailed("the node failed before: " + err.Error())
	default:
		b.Failed(err)
		t.refuse(&UnavailableError{Reason: "the node failed: " + err.Error(), Unknown: true})
	}
	b.flightMu.Lock()
	t.settled = true
	b.flightMu.Unlock()
}

// propose decides the batch and hands its facts to the role. On an error the batch is not in flight.
func (b *Broker) propose(t *batch, take take) error {
	if err := b.takeLead(); err != nil {
		return err
	}
	b.decide(t, take)
	t.last = b.deciding.last + entry.Index(t.frames.Len())
	b.flightMu.Lock()
	if err := b.dead; err != nil { // since the op was queued, or right now
		b.flightMu.Unlock()
		return fmt.Errorf("%w: %w", replication.ErrFailedBefore, err)
	}
	if b.lost != nil || b.leads != b.deciding.lead {
		b.flightMu.Unlock()
		return &lostError{"this node has lost the lead"}
	}
	if t.frames.Len() == 0 && (len(b.flight) == 0 || b.suspended != nil) {
		// Refusals, and retries of what is committed: nothing to wait for. While nothing can be committed, retries
		// of what is in flight do not wait either.
		if len(b.flight) > 0 {
			t.refuse(b.suspended)
		}
		t.settled = true
		b.flightMu.Unlock()
		return nil
	}
	b.flight = append(b.flight, t)
	b.flightMu.Unlock()
	if t.frames.Len() == 0 {
		return nil // retries of what is in flight: settled with the batches before
	}
	if err := b.role.Propose(&t.frames); err != nil {
		if b.land(t) {
			return err
		}
		// Failed or Follow has taken it out meanwhile.
		if !undone(err) {
			b.Failed(err)
		} else if errors.Is(err, replication.ErrFailedBefore) {
			b.neverProposed(t, "the node failed before: "+err.Error())
		}
		return nil
	}
	b.flightMu.Lock()
	inFlight := len(b.flight) > 0
	stays := b.lost == nil && b.leads == b.deciding.lead
	b.flightMu.Unlock()
	first := b.deciding.last + 1
	invariant.Check(!stays || t.frames.First() == first, "decided as entry %d, logged as entry %d", first, t.frames.First())
	b.deciding.proposed(t.last, inFlight)
	return nil
}

// neverProposed makes the answers to a batch that the role has not taken say so, whoever settles it. They are not given before
// its leader hands the baton on.
func (b *Broker) neverProposed(t *batch, reason string) {
	b.flightMu.Lock()
	defer b.flightMu.Unlock()
	t.never = reason
	if t.settled {
		t.refuseAsFailed(reason)
	}
}

// undone reports whether an error of Propose says that nothing was done.
func undone(err error) bool {
	return errors.Is(err, wal.ErrFull) || errors.Is(err, replication.ErrUnavailable) || errors.Is(err, replication.ErrStopped) ||
		errors.Is(err, replication.ErrFailedBefore)
}

// passBaton hands the baton to the head of the queue, or lays it down. After a failure it refuses all.
func (b *Broker) passBaton() {
	b.mu.Lock()
	var refused []*op
	err := b.refusal()
	if b.failed != nil {
		refused = slices.Clone(b.queue)
		clear(b.queue)
		b.queue = b.queue[:0]
	}
	var next *op
	if len(b.queue) > 0 {
		next = b.queue[0]
	} else {
		b.baton = false
	}
	b.mu.Unlock()
	if next != nil {
		next.leads = true
		next.wake <- struct{}{}
	}
	for _, o := range refused {
		o.err = b.refused(o, err)
		o.wake <- struct{}{}
	}
}
