package broker

import (
	"errors"
	"slices"
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
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
)

// op is one write that waits to be decided, committed and answered.
type op struct {
	kind opKind
	// The request. Slices belong to the caller, who waits.
	publish  *Publish
	bytes    int // of keys and values
	digest   fact.Digest
	topic    []byte
	group    []byte
	offset   fact.Offset
	windowMS int64

	// The answer, valid once do has returned.
	published Published
	err       error
	// hangs says that the outcome is the batch's: an entry of the op is in it, or the op repeats one that is
	// in flight.
	hangs bool

	// wake receives a value when the op has been answered, or, with leads set, when it gets the baton.
	wake  chan struct{}
	leads bool
}

var ops = sync.Pool{New: func() any { return &op{wake: make(chan struct{}, 1)} }}

func newOp(kind opKind) *op {
	o := ops.Get().(*op)
	o.kind = kind
	return o
}

func (o *op) release() {
	*o = op{wake: o.wake}
	ops.Put(o)
}

// batch is what one group commit carries.
type batch struct {
	frames   wal.Frames
	ops      []*op
	last     entry.Index // the batch is answered once this index is committed
	touched  []state.TopicID
	retained bool

	// Guarded by Broker.flightMu.
	settled  bool // committed and applied, or known to have failed
	handedOn bool // the baton has been passed on, so whoever settles answers
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (t *batch) release() {
	clear(t.ops)
	frames := t.frames
	frames.Reset()
	*t = batch{frames: frames, ops: t.ops[:0], touched: t.touched[:0]}
	batches.Put(t)
}

func (t *batch) touch(id state.TopicID) {
	if n := len(t.touched); n == 0 || t.touched[n-1] != id {
		t.touched = append(t.touched, id)
	}
}

// answer wakes all who wait for the batch, but not own, which runs already; own may be nil. Neither the
// batch nor the ops may be used after.
func (t *batch) answer(own *op) {
	for _, o := range t.ops {
		if o != own {
			o.wake <- struct{}{}
		}
	}
	t.release()
}

// refuse gives err to the ops that hang on the batch.
func (t *batch) refuse(err error) {
	for _, o := range t.ops {
		if o.hangs {
			o.err = err
		}
	}
}

// do queues an op and returns once it has been answered. If nobody decides, it takes the baton.
func (b *Broker) do(o *op) {
	b.mu.Lock()
	if err := b.refusal(); err != nil {
		b.mu.Unlock()
		o.err = err
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

// refusal says why no write is taken now, or nil. Callers hold mu.
func (b *Broker) refusal() error {
	switch {
	case b.failed != nil:
		return &UnavailableError{Reason: "the disk failed and the node must be restarted: " + b.failed.Error()}
	case b.closed:
		return &UnavailableError{Reason: "the node is shutting down"}
	case b.role == nil:
		return &UnavailableError{Reason: "the node is starting"}
	}
	return nil
}

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
	settled := t.settled
	b.flightMu.Unlock()
	if settled {
		t.answer(own)
		return
	}
	<-own.wake
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
	switch {
	case err == nil:
		return
	case errors.Is(err, wal.ErrFull):
		t.refuse(ErrStorageFull)
	case errors.Is(err, replication.ErrStopped):
		t.refuse(&UnavailableError{Reason: "the node is shutting down"})
	case errors.Is(err, replication.ErrFailedBefore):
		b.Failed(err)
		t.refuse(&UnavailableError{Reason: "the disk failed before: " + err.Error()})
	default:
		b.Failed(err)
		t.refuse(&UnavailableError{Reason: "the disk failed: " + err.Error(), Unknown: true})
	}
	b.flightMu.Lock()
	t.settled = true
	b.flightMu.Unlock()
}

// propose decides the batch and hands its facts to the role. On an error the batch is not in flight.
func (b *Broker) propose(t *batch, take take) error {
	b.decide(t, take)
	t.last = b.deciding.last + entry.Index(t.frames.Len())
	b.flightMu.Lock()
	if err := b.dead; err != nil {
		b.flightMu.Unlock()
		return err
	}
	if t.frames.Len() == 0 && len(b.flight) == 0 {
		// Refusals, and retries of what is committed: nothing to wait for.
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
		if !b.land(t) {
			return nil // Failed has refused it meanwhile
		}
		return err
	}
	b.flightMu.Lock()
	inFlight := len(b.flight) > 0
	b.flightMu.Unlock()
	b.deciding.proposed(t.last, inFlight)
	return nil
}

// passBaton hands the baton to the head of the queue, or lays it down. After a failure it refuses all.
func (b *Broker) passBaton() {
	b.mu.Lock()
	var refused []*op
	refusal := b.refusal()
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
		o.err = refusal
		o.wake <- struct{}{}
	}
}
