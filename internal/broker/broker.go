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
// one outcome. After the role has failed nothing is acknowledged any more, and reads go on. While it is suspended
// nobody waits: what is in flight is answered "unknown", which it is, and what is new "not done". Where the lead can be lost,
// no answer, not even "there is none", is older than the call, and who leads next takes up what is committed: lead.go has the
// order of things.
//
// A publish comes from package httpapi and goes on to package replication.
package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// Limits of one group commit. What is beyond waits for the next.
const (
	batchOpsMax   = 4096
	batchBytesMax = 4 << 20 // of keys and values; a single larger request still goes through, alone
)

// Config says what a broker works on. Log, State, Index, Clock and Window are required.
type Config struct {
	Log Log
	// State is recovered from what of the log is known to be committed; the role brings the rest. The broker owns
	// it from now on.
	State *state.State
	Index *index.Index // likewise; the broker adds to it and finds in it
	// Reindex, if not nil, makes the index of a sealed segment again, whose file was found damaged.
	Reindex func(segment entry.Index) error
	Clock   clock.Clock
	// Window is how long request ids are remembered, counted by the time in the log.
	Window time.Duration
	// Retention is how long records of a topic are kept that has no settings of its own. A field that is 0 is no limit.
	Retention fact.Retention
	// IdleMarker is how long after the last entry a marker is written that commits it on disk, so that
	// damage to it can be told from a torn tail. 0 for 100 ms.
	IdleMarker time.Duration
	// Follower says that this node never leads: all calls of clients answer a *NotLeaderError.
	Follower bool
	// Leader, if not nil, says that the lead of this node comes and goes. While it does not lead it serves nobody: all calls
	// answer a *NotLeaderError with the URL that Leader returns, or, when that is empty because the leader is not known or
	// is this node, an *UnavailableError. It is called often and must not wait.
	Leader func() string
	// CheckEvery is how often the leader logs a fact that all nodes check their fold at, if anything was committed since
	// the last one. 0 for never.
	CheckEvery time.Duration
	// Checked, if not nil, is told of each such fact, on every node, whether it leads or not: the fold exactly as its entry
	// leaves it, which has index at. It is called by who applies, so it must return at once; hashing takes longer.
	Checked  func(at entry.Index, fold *state.Frozen)
	Logger   *slog.Logger
	Observer Observer
}

// Log is what the broker needs of the log: reading back what is committed. *wal.Log is one.
type Log interface {
	ReadAt(p []byte, segment entry.Index, off int64) (int, error)
	Parse(buf []byte) (entry.Entry, int, error)
}

var _ Log = (*wal.Log)(nil)

// Observer is told what happens, for metrics and for upkeep. Calls must return at once.
type Observer interface {
	// Committed reports one group commit: entries, records that are new in them, log bytes, and whether a topic's start
	// was moved or a topic was deleted.
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
	retention    fact.Retention // defaults of topics
	lists        lists
	idle         time.Duration
	follower     bool
	leader       func() string
	checkEvery   time.Duration
	checked      func(entry.Index, *state.Frozen)
	role         replication.Role // set by Start, before anybody can have the baton

	mu         sync.Mutex // guards the fields below; held for moments only
	queue      []*op      // waiting to be decided, in order of arrival
	baton      bool       // somebody decides
	leading    bool       // from Lead to Follow
	notLeading string     // why leading is not set
	closed     bool
	failed     error // why nothing is acknowledged any more

	// Owned by whoever holds the baton.
	deciding decider

	// Not a part of the broker: the runtime holds on to a pool for a while, and would to all of the broker.
	ops *opPool

	flightMu  sync.Mutex        // guards the fields below
	flight    []*batch          // proposed, not yet applied, by rising last index
	dead      error             // set by Failed: nothing takes off any more
	suspended *UnavailableError // what those in flight are told while nothing can be committed; or nil
	leads     uint64            // how often a lead began: the number of the last one
	lost      *lostError        // why this node does not lead, before the first Lead and after Follow; or nil

	tenure atomic.Pointer[tenure] // from Lead to Follow, else nil

	view  sync.RWMutex // guards the field below
	state *state.State // Invariant: holds exactly the committed entries

	applied   []state.TopicID // scratch of Apply
	unsettled atomic.Pointer[Tail]

	waiters waiters
	dirty   chan struct{} // capacity 1: entries were committed since the last marker
	led     chan struct{} // capacity 1: Lead was called
	limits  chan struct{} // capacity 1: HoldToLimits was called
	stop    chan struct{} // closed by Close
	ending  chan struct{} // closed by EndWaits
	endOnce sync.Once
	marking sync.WaitGroup
	closing sync.Once
	marked  atomic.Uint64 // index of the last marker
	// unchecked says that something was committed since the last fact to check the fold at.
	unchecked atomic.Bool
}

var _ replication.Applier = (*Broker)(nil)

const starting = "the node is starting"

// New returns a broker that serves reads. Writes need Start.
func New(cfg Config) *Broker {
	b := &Broker{
		ops: new(opPool),
		log: cfg.Log, index: cfg.Index, reindex: cfg.Reindex, clock: cfg.Clock, logger: cfg.Logger, observer: cfg.Observer,
		window: cfg.Window, retention: cfg.Retention, idle: cfg.IdleMarker, follower: cfg.Follower, leader: cfg.Leader,
		checkEvery: cfg.CheckEvery, checked: cfg.Checked,
		state: cfg.State, notLeading: starting, lost: &lostError{starting},
		large: make(chan struct{}, readLargeMax), dirty: make(chan struct{}, 1), led: make(chan struct{}, 1),
		limits: make(chan struct{}, 1),
		stop:   make(chan struct{}), ending: make(chan struct{}),
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
	return b
}

// Start takes the role and starts it. Once the role leads, the settings are recorded in the log if they have
// changed, before Start returns if the role leads by then. If they cannot be recorded now (a full disk, a
// follower that is away) that is no error here: it is tried again while the node runs.
func (b *Broker) Start(role replication.Role) error {
	b.mu.Lock()
	b.role, b.notLeading = role, "the node is not leading yet"
	b.mu.Unlock()
	if err := role.Start(); err != nil {
		return fmt.Errorf("start the role: %w", err)
	}
	if b.follower {
		return nil
	}
	b.mu.Lock()
	leading := b.leading
	b.mu.Unlock()
	if leading {
		var unavailable *UnavailableError
		switch err := b.recordSettings(); {
		case errors.Is(err, ErrStorageFull):
			b.logger.Warn("the disk is full: the request id window stays as it was until there is room", "window", b.window.String())
		case (errors.As(err, &unavailable) || errors.As(err, new(*NotLeaderError))) && b.Err() == nil:
			b.logger.Warn("the request id window stays as it was until writes go on", "window", b.window.String(), "err", err)
		case err != nil:
			return fmt.Errorf("record the settings: %w", err)
		}
	}
	b.marking.Go(b.markIdle) // ended and awaited by Close, as are the next ones
	policyTimer := b.clock.NewTimer(policyLeast)
	b.marking.Go(func() { b.policyLoop(policyTimer) })
	if b.checkEvery > 0 {
		b.marking.Go(b.checkOften)
	}
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
	o := b.ops.get(opSettings)
	o.windowMS = b.window.Milliseconds()
	b.do(o)
	err := o.err
	b.ops.put(o)
	return err
}

// EndWaits makes waiting fetches return what there is, now and from now on.
func (b *Broker) EndWaits() { b.endOnce.Do(func() { close(b.ending) }) }

// Close ends waiting fetches, writes a last marker, so that a clean stop leaves nothing in doubt, and
// refuses all writes from then on. Reads still work. The role must still run, or answer at once, and nobody may
// be in a call that writes.
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
	if b.follower {
		return Published{}, &NotLeaderError{}
	}
	o := b.ops.get(opPublish)
	o.publish = p
	for i := range p.Records {
		o.bytes += len(p.Records[i].Key) + len(p.Records[i].Value)
	}
	if len(p.RequestID) > 0 {
		o.digest = fact.DigestOf(p.Records)
	}
	b.do(o)
	done, err := o.published, b.final(o)
	b.ops.put(o)
	if done.Duplicate && err == nil {
		b.observer.Duplicate()
	}
	return done, err
}

// CommitGroup sets the offset that the group reads next, and returns it: behind a gap, if one begins there.
func (b *Broker) CommitGroup(topic, group []byte, offset fact.Offset) (fact.Offset, error) {
	if b.follower {
		return 0, &NotLeaderError{}
	}
	o := b.ops.get(opGroup)
	o.topic, o.group, o.offset = topic, group, offset
	b.do(o)
	next, err := o.next, b.final(o)
	b.ops.put(o)
	return next, err
}

// final is the last look at the outcome of a write before it is answered. The answer "done" rests on what the role
// has called committed, that of a repeated request too, and is not given where the role may not lead any more. A refusal
// rests on the fold of a moment before: it is given if this node led then, and the fold was not old.
func (b *Broker) final(o *op) error {
	switch {
	case o.err == nil && !b.role.MayAnswer():
		return errNotSure
	case o.refusal:
		if err := b.confirm(); err != nil {
			return b.refused(o, err)
		}
		if lead, lost := b.leadNow(); lost != nil || lead != o.lead {
			// Another node may have led between the decision and what is confirmed now.
			return b.refused(o, errLostMeanwhile)
		}
	}
	return o.err
}

var errNotSure = &UnavailableError{Reason: "this node cannot be sure that it still leads", Unknown: true}

// NoObserver ignores everything.
type NoObserver struct{}

func (NoObserver) Committed(int, int, int64, bool) {}
func (NoObserver) Duplicate()                      {}
func (NoObserver) Read(int, int64)                 {}
func (NoObserver) Corrupt()                        {}
