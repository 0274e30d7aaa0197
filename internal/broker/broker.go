// Package broker decides: it turns requests into facts, hands them to the role, and answers once they are
// committed. It also serves reads, from the log, of what is committed and of nothing else.
//
// There is no committer goroutine. Whoever wants to write queues an operation; one of the waiters holds
// the baton, decides everything that is queued, and proposes it as one group commit, in its own
// goroutine. Then it passes the baton to a waiter of the next batch and answers. One producer is thus
// served without a single switch of goroutines, and many share one sync.
//
// What the broker guarantees: an answer that says "done" is given only for what the role has reported
// committed; records become visible, to anyone, only then; offsets of a topic are dense; a request id has
// one outcome. After the role has failed nothing is acknowledged any more, and reads go on.
//
// A publish comes from package httpapi and goes on to package replication.
package broker

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// Limits of one group commit. What is beyond waits for the next.
const (
	batchOpsMax   = 4096
	batchBytesMax = 4 << 20 // of keys and values; a single larger request still goes through, alone
)

// Config says what a broker works on. All fields but Logger and Observer are required.
type Config struct {
	Log   Log
	State *state.State // recovered up to the end of the log; the broker owns it from now on
	Index *index.Index // likewise; the broker adds to it and finds in it
	// Reindex, if not nil, makes the index of a sealed segment again, whose file was found damaged.
	Reindex func(segment entry.Index) error
	Clock   clock.Clock
	// Window is how long request ids are remembered, counted by the time in the log.
	Window time.Duration
	// IdleMarker is how long after the last entry a marker is written that commits it on disk, so that
	// damage to it can be told from a torn tail. 0 for 100 ms.
	IdleMarker time.Duration
	Logger     *slog.Logger
	Observer   Observer
}

// Log is what the broker needs of the log: reading back what is committed. *wal.Log is one.
type Log interface {
	ReadAt(p []byte, segment entry.Index, off int64) (int, error)
	Parse(buf []byte) (entry.Entry, int, error)
}

var _ Log = (*wal.Log)(nil)

// Observer is told what happens, for metrics and for upkeep. Calls must return at once.
type Observer interface {
	// Committed reports one group commit: entries, records in them, log bytes, and whether a topic's start
	// was moved.
	Committed(entries, records int, logBytes int64, retained bool)
	// Duplicate reports a publish that was answered from its request id.
	Duplicate()
	// Read reports records read from the log, and their bytes of keys and values.
	Read(records int, bytes int64)
	// Corrupt reports a read that met damage.
	Corrupt()
}

// Broker decides, proposes, applies and reads. Start it with a role before the first request.
type Broker struct {
	log     Log
	index   *index.Index
	reindex func(entry.Index) error
	// reindexing is held while an index file is made again, which reads a segment.
	reindexing   sync.Mutex
	large        chan struct{} // see reader
	damageLogged atomic.Int64  // second of the last line about damage
	clock        clock.Clock
	logger       *slog.Logger
	observer     Observer
	window       time.Duration
	idle         time.Duration
	role         replication.Role

	mu     sync.Mutex // guards the fields below; held for moments only
	queue  []*op      // waiting to be decided, in order of arrival
	baton  bool       // somebody decides
	closed bool
	failed error // why nothing is acknowledged any more

	// Owned by whoever holds the baton.
	deciding decider

	flightMu sync.Mutex // guards the fields below
	flight   []*batch   // proposed, not yet applied, by rising last index
	dead     error      // set by Failed: nothing takes off any more

	view  sync.RWMutex // guards the field below
	state *state.State // Invariant: holds exactly the committed entries

	waiters waiters
	dirty   chan struct{} // capacity 1: entries were committed since the last marker
	stop    chan struct{} // closed by Close
	ending  chan struct{} // closed by EndWaits
	endOnce sync.Once
	marking sync.WaitGroup
	closing sync.Once
	marked  atomic.Uint64 // index of the last marker
}

var _ replication.Applier = (*Broker)(nil)

// New returns a broker that serves reads. Writes need Start.
func New(cfg Config) *Broker {
	b := &Broker{
		log: cfg.Log, index: cfg.Index, reindex: cfg.Reindex, clock: cfg.Clock, logger: cfg.Logger, observer: cfg.Observer,
		window: cfg.Window, idle: cfg.IdleMarker, state: cfg.State,
		large: make(chan struct{}, readLargeMax), dirty: make(chan struct{}, 1), stop: make(chan struct{}), ending: make(chan struct{}),
	}
	if b.idle == 0 {
		b.idle = 100 * time.Millisecond
	}
	if b.logger == nil {
		b.logger = slog.New(slog.DiscardHandler)
	}
	if b.observer == nil {
		b.observer = NoObserver{}
	}
	b.deciding.init(cfg.State.Applied())
	return b
}

// Start takes the role, records the settings in the log if they have changed, and begins to accept writes.
// A full disk is no error here: the settings are then recorded once there is room and the log is idle.
func (b *Broker) Start(role replication.Role) error {
	b.mu.Lock()
	b.role = role
	b.mu.Unlock()
	if err := b.recordSettings(); errors.Is(err, ErrStorageFull) {
		b.logger.Warn("the disk is full: the request id window stays as it was until there is room", "window", b.window.String())
	} else if err != nil {
		return err
	}
	b.touch()
	b.marking.Go(b.markIdle) // ended and awaited by Close
	return nil
}

// recordSettings logs the settings if they differ from those in the fold.
func (b *Broker) recordSettings() error {
	b.view.RLock()
	changed := b.state.Applied() == 0 || b.state.WindowMS() != b.window.Milliseconds()
	b.view.RUnlock()
	if !changed {
		return nil
	}
	o := newOp(opSettings)
	o.windowMS = b.window.Milliseconds()
	b.do(o)
	err := o.err
	o.release()
	return err
}

// EndWaits makes waiting fetches return what there is, now and from now on.
func (b *Broker) EndWaits() { b.endOnce.Do(func() { close(b.ending) }) }

// Close ends waiting fetches, writes a last marker, so that a clean stop leaves nothing in doubt, and
// refuses all writes from then on. Reads still work. The role must still run, and nobody may be in Publish,
// CommitGroup or Retain.
func (b *Broker) Close() {
	b.closing.Do(func() {
		b.EndWaits()
		close(b.stop)
		b.marking.Wait()
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
	})
}

// Err returns why the broker acknowledges nothing any more, or nil.
func (b *Broker) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// Freeze returns the fold as it is now. It takes no longer than copying a few pointers.
func (b *Broker) Freeze() *state.Frozen {
	b.view.Lock()
	defer b.view.Unlock()
	return b.state.Freeze()
}

// Applied is the index of the last entry that is committed and applied.
func (b *Broker) Applied() entry.Index {
	b.view.RLock()
	defer b.view.RUnlock()
	return b.state.Applied()
}

// View calls read with the fold, which must not be changed or kept.
func (b *Broker) View(read func(*state.State)) {
	b.view.RLock()
	defer b.view.RUnlock()
	read(b.state)
}

// Publish appends records and returns their offsets once they are committed.
func (b *Broker) Publish(p *Publish) (Published, error) {
	o := newOp(opPublish)
	o.publish = p
	for i := range p.Records {
		o.bytes += len(p.Records[i].Key) + len(p.Records[i].Value)
	}
	if len(p.RequestID) > 0 {
		o.digest = fact.DigestOf(p.Records)
	}
	b.do(o)
	done, err := o.published, o.err
	o.release()
	if done.Duplicate && err == nil {
		b.observer.Duplicate()
	}
	return done, err
}

// CommitGroup sets the offset that the group reads next, and returns it.
func (b *Broker) CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error) {
	o := newOp(opGroup)
	o.topic, o.group, o.offset = topic, group, next
	b.do(o)
	err := o.err
	o.release()
	return next, err
}

// Retain moves the topic's start, and returns it.
func (b *Broker) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	o := newOp(opRetain)
	o.topic, o.offset = topic, start
	b.do(o)
	err := o.err
	o.release()
	return start, err
}

// Committed implements replication.Applier: it applies, makes visible, and answers.
func (b *Broker) Committed(last entry.Index) {
	for {
		b.flightMu.Lock()
		if len(b.flight) == 0 || b.flight[0].last > last {
			b.flightMu.Unlock()
			return
		}
		t := b.flight[0]
		b.flightMu.Unlock()
		b.apply(t)
		if b.land(t) {
			b.settle(t)
		}
	}
}

// land takes a batch out of flight. It reports false when Failed has taken it: who takes it settles it.
func (b *Broker) land(t *batch) bool {
	b.flightMu.Lock()
	defer b.flightMu.Unlock()
	n := len(b.flight)
	b.flight = slices.DeleteFunc(b.flight, func(f *batch) bool { return f == t })
	return len(b.flight) < n
}

// Failed implements replication.Applier: nothing is acknowledged any more.
func (b *Broker) Failed(err error) {
	b.mu.Lock()
	first := b.failed == nil
	if first {
		b.failed = err
	}
	b.mu.Unlock()
	if first {
		b.logger.Error("writes have stopped for good: restart the node", "err", err)
	}
	b.flightMu.Lock()
	flight := b.flight
	b.flight, b.dead = nil, err
	b.flightMu.Unlock()
	for _, t := range flight {
		t.refuse(&UnavailableError{Reason: err.Error(), Unknown: true})
		b.settle(t)
	}
}

// settle marks a batch whose outcome is known, and answers it unless its leader will.
func (b *Broker) settle(t *batch) {
	b.flightMu.Lock()
	t.settled = true
	answer := t.handedOn
	b.flightMu.Unlock()
	if answer {
		t.answer(nil)
	}
}

// apply folds a committed batch into the state and makes it visible to readers.
func (b *Broker) apply(t *batch) {
	var records int
	var marker bool
	b.view.Lock()
	for i := range t.frames.Len() {
		e := t.frames.Entry(i)
		effect, err := b.state.Apply(&e)
		invariant.Check(err == nil, "a decided fact does not apply: %v", err)
		if effect.Kind == fact.KindAppended {
			b.index.Add(effect.Name, effect.First, effect.Count, t.frames.Position(i))
			t.touch(effect.Topic)
			records += effect.Count
		} else {
			b.index.Begin(t.frames.Position(i).Segment)
		}
		marker = effect.Kind == fact.KindMarker
	}
	b.view.Unlock()
	b.waiters.wake(t.touched)
	if marker {
		b.marked.Store(uint64(t.last))
	} else {
		b.touch()
	}
	b.observer.Committed(t.frames.Len(), records, int64(t.frames.Bytes()), t.retained)
}

// NoObserver ignores everything.
type NoObserver struct{}

func (NoObserver) Committed(int, int, int64, bool) {}
func (NoObserver) Duplicate()                      {}
func (NoObserver) Read(int, int64)                 {}
func (NoObserver) Corrupt()                        {}
