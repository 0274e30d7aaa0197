package pair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

const (
	// flightMax is how many batches may be on their way before Propose waits. With more, batches get smaller, and
	// each costs a sync on both sides.
	flightMax = 4
	// The leader dials again after a pause from redialMin to redialMax.
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
)

// LeaderConfig says what a leader works on. All fields but Committed are required.
type LeaderConfig struct {
	Config
	LogID   entry.LogID
	Epoch   entry.Term // promised, durably, before
	Log     *wal.Log
	Applier replication.Applier
	// Committed is up to where entries are known to be committed, and applied.
	Committed entry.Index
	History   History
	Dial      Dial
}

// Leader implements replication.Role.
type Leader struct {
	cfg LeaderConfig

	// proposing is held by whoever appends to the log: Propose, or a session that prepares. It is held across I/O.
	proposing sync.Mutex
	// committing orders the calls of the applier.
	committing sync.Mutex

	// fencing is held while the promise is changed; across I/O.
	fencing sync.Mutex
	fatal   sync.Once

	lease  atomic.Int64 // the stamp until which committed entries may be acknowledged
	fenced atomic.Bool  // nothing may be acknowledged any more

	mu        sync.Mutex // guards the fields below; held for moments only
	moved     *sync.Cond // flight, session, closed or err has changed
	session   *session   // the one that takes entries; nil while writes are refused
	current   *session   // the one that exists, for Status and Close
	state     State
	reason    string        // why writes are refused
	logged    string        // the last of these that was logged; empty once writes went on
	led       bool          // Lead was called: everything in the log is applied or in flight
	local     entry.Index   // durable here
	remote    entry.Index   // durable at the follower
	committed entry.Index   // reported
	flight    []entry.Index // last entry of each batch that is not committed
	closed    bool
	err       error // sticky
	peer      peerStatus

	stop    chan struct{}
	stopped sync.WaitGroup
	told    bool // Close has told the applier of what is in flight; guarded by proposing
}

// peerStatus is what was last heard of the follower.
type peerStatus struct {
	node                NodeID
	durable, applied    entry.Index
	contact             time.Time
	syncDone, syncTotal int64
}

var _ replication.Role = (*Leader)(nil)

// NewLeader returns a leader that does nothing before Start.
func NewLeader(cfg LeaderConfig) *Leader {
	cfg.Config = cfg.Config.withDefaults()
	r := &Leader{
		cfg: cfg, state: StateDisconnected, reason: "the follower has not been reached yet",
		committed: cfg.Committed, local: cfg.Log.Tip().Index, stop: make(chan struct{}),
	}
	r.moved = sync.NewCond(&r.mu)
	r.lease.Store(math.MinInt64)
	return r
}

// Start begins to look for the follower. Lead is called once it has what this node has.
func (r *Leader) Start() error {
	r.suspend()
	r.stopped.Go(r.run) // ended and awaited by Close
	return nil
}

// stamp is the time of this node's clock, in nanoseconds.
func (r *Leader) stamp() int64 { return int64(r.cfg.Clock.Monotonic()) }

// Propose implements replication.Role: it appends, sends, and syncs while the follower does the same.
func (r *Leader) Propose(f *wal.Frames) error {
	r.proposing.Lock()
	defer r.proposing.Unlock()
	s, commit, err := r.admit()
	if err != nil {
		return err
	}
	first, err := r.cfg.Log.Append(f, r.cfg.Epoch, commit)
	if errors.Is(err, wal.ErrFull) {
		return err
	}
	if err != nil {
		r.fail(err)
		return err
	}
	last := first + entry.Index(f.Len()) - 1
	r.mu.Lock()
	r.flight = append(r.flight, last)
	r.mu.Unlock()
	// That it cannot be sent ends the session, and that is where it is dealt with: the entries are in the log
	// and reach the follower when it is back.
	s.sendFrames(f, r.cfg.Log.Place(f), commit)
	if err := r.cfg.Log.Sync(); err != nil {
		r.fail(err)
		return err
	}
	r.mu.Lock()
	r.local = last
	r.mu.Unlock()
	r.advance()
	return nil
}

// admit waits until another batch may take off, and returns the session that takes it and the commit index.
func (r *Leader) admit() (*session, entry.Index, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.err == nil {
			r.err = r.cfg.Log.Err() // it may have failed by itself, while it prepared a segment
		}
		switch {
		case r.closed:
			return nil, 0, replication.ErrStopped
		case r.err != nil:
			return nil, 0, fmt.Errorf("%w: %w", replication.ErrFailedBefore, r.err)
		case r.session == nil:
			return nil, 0, &replication.UnavailableError{Reason: r.unavailable()}
		case len(r.flight) < flightMax:
			return r.session, r.committed, nil
		}
		r.moved.Wait()
	}
}

// advance reports what has become durable on both sides.
func (r *Leader) advance() {
	r.committing.Lock()
	defer r.committing.Unlock()
	r.mu.Lock()
	last := min(r.local, r.remote)
	news := last > r.committed && r.led && r.err == nil
	if news {
		r.committed = last
		n := 0
		for n < len(r.flight) && r.flight[n] <= last {
			n++
		}
		r.flight = append(r.flight[:0], r.flight[n:]...)
		r.moved.Broadcast()
	}
	r.mu.Unlock()
	if news {
		r.cfg.Applier.Committed(last)
	}
}

// MayAnswer implements replication.Role: the follower was heard of within the lease, so no other node can
// have begun to lead.
func (r *Leader) MayAnswer() bool { return r.stamp() < r.lease.Load() && !r.fenced.Load() }

// Confirm implements replication.Role. A pair serves reads also where its lease is over: guarantee G16 says what they may
// miss then.
func (r *Leader) Confirm(context.Context) error { return nil }

// suspend tells the applier why writes are refused.
func (r *Leader) suspend() {
	r.committing.Lock()
	defer r.committing.Unlock()
	r.mu.Lock()
	reason := r.unavailable()
	r.mu.Unlock()
	r.cfg.Applier.Suspend(reason)
}

// unavailable says why writes are refused. Called with mu held.
func (r *Leader) unavailable() string {
	return "writes wait for the follower: " + r.reason
}

// fail makes err sticky: nothing is committed any more. The first one stays.
func (r *Leader) fail(err error) {
	r.committing.Lock() // so that nothing is reported once this returns
	r.mu.Lock()
	first := r.err == nil
	if first {
		r.err = err
		r.state, r.reason = StateFailed, err.Error()
		if errors.As(err, new(*FencedError)) {
			r.state = StateFenced
		}
	}
	r.session = nil
	current := r.current
	r.moved.Broadcast()
	r.mu.Unlock()
	r.committing.Unlock()
	if current != nil {
		current.finish(err)
	}
	if first {
		r.cfg.Applier.Failed(err)
	}
}

// fence ends this leader because another node leads. Nothing is acknowledged once it returns.
func (r *Leader) fence(epoch entry.Term, leader NodeID) error {
	fenced := &FencedError{Epoch: r.cfg.Epoch, Seen: epoch, Leader: leader}
	r.fenced.Store(true)
	r.fail(fenced)
	r.fencing.Lock()
	defer r.fencing.Unlock()
	if p := r.cfg.Promises.Promise(); epoch > p.Epoch {
		p.Epoch, p.Leader = epoch, leader
		if err := r.cfg.Promises.SetPromise(p); err != nil {
			r.cfg.Logger.Error("the higher epoch could not be noted", "epoch", uint64(epoch), "err", err)
		}
	}
	r.cfg.Logger.Error("this node does not lead any more", "err", fenced)
	r.fatal.Do(func() { go r.cfg.Fatal(fenced) }) // it ends the process, which waits for us
	return fenced
}

// notAlone notes that the follower has what was acknowledged without it.
func (r *Leader) notAlone() error {
	r.fencing.Lock() // a higher epoch must not be overwritten
	defer r.fencing.Unlock()
	p := r.cfg.Promises.Promise()
	if !p.Alone || r.fenced.Load() {
		return nil
	}
	p.Alone = false
	return r.cfg.Promises.SetPromise(p)
}

// Err returns why nothing is committed any more, or nil.
func (r *Leader) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Status implements replication.Role.
func (r *Leader) Status() replication.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return replication.Status{Term: r.cfg.Epoch, Committed: r.committed, Err: r.err}
}

// Pair says how both sides stand.
func (r *Leader) Pair() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Epoch: r.cfg.Epoch, State: r.state, Writable: r.session != nil, Durable: r.local, Committed: r.committed,
		Peer: r.peer.node, PeerDurable: r.peer.durable, PeerApplied: r.peer.applied, Contact: r.peer.contact,
		SyncDone: r.peer.syncDone, SyncTotal: r.peer.syncTotal,
	}
	if s.State != StateStreaming && !s.Writable {
		s.Reason = r.reason
	}
	return s
}

// Close implements replication.Role.
func (r *Leader) Close() error {
	r.mu.Lock()
	closed, current := r.closed, r.current
	r.closed = true
	r.moved.Broadcast()
	r.mu.Unlock()
	if !closed {
		close(r.stop)
	}
	if current != nil {
		current.finish(replication.ErrStopped)
	}
	r.stopped.Wait()
	r.proposing.Lock()
	defer r.proposing.Unlock()
	r.mu.Lock()
	tell := len(r.flight) > 0 && r.err == nil && !r.told
	if tell {
		r.reason = "the node is stopping"
	}
	r.told = true
	r.mu.Unlock()
	if tell {
		r.suspend()
	}
	return nil
}

// run holds one session after the other.
func (r *Leader) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with run
		select {
		case <-r.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause := redialMin
	for {
		link, err := r.cfg.Dial(ctx)
		if err != nil {
			err = fmt.Errorf("the follower cannot be reached: %w", err)
		} else {
			var streamed bool
			streamed, err = r.hold(link)
			if streamed {
				pause = redialMin
			}
		}
		if r.Err() != nil || ctx.Err() != nil {
			return
		}
		r.lost(err)
		if !sleep(r.cfg.Clock, pause, r.stop) {
			return
		}
		pause = min(2*pause, redialMax)
	}
}

// lost notes why there is no session, and tells those who wait for one.
func (r *Leader) lost(err error) {
	reason := err.Error()
	r.mu.Lock()
	news := r.logged != reason && r.err == nil // said once, not every second
	if r.err == nil {
		r.state, r.reason, r.logged = StateDisconnected, reason, reason
	}
	r.mu.Unlock()
	if news {
		r.cfg.Logger.Warn("no writes: the follower is not reached", "err", err)
	}
	r.suspend()
}

// hold runs one session to its end. It reports whether entries were taken, and why it ended.
func (r *Leader) hold(link Link) (streamed bool, err error) {
	s := newSession(r, link)
	r.mu.Lock()
	if r.closed || r.err != nil {
		r.mu.Unlock()
		link.Close()
		return false, replication.ErrStopped
	}
	r.current = s
	r.state, r.reason = StateHandshake, "the handshake with the follower has not ended"
	r.mu.Unlock()

	s.run()

	r.mu.Lock()
	streamed = r.session == s
	if streamed {
		r.session = nil
	}
	r.current = nil
	r.peer.syncTotal, r.peer.syncDone = 0, 0
	r.moved.Broadcast()
	r.mu.Unlock()
	return streamed, s.cause()
}

// settle is called by a session when the follower has everything up to end, the tip of the log. It applies what was
// not known to be committed, and lets writes through.
func (r *Leader) settle(s *session, end entry.Index) error {
	r.proposing.Lock()
	defer r.proposing.Unlock()
	r.committing.Lock()
	defer r.committing.Unlock()
	r.mu.Lock()
	from, led, err := r.committed+1, r.led, r.err
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if !led {
		if err := r.apply(from, end); err != nil {
			return fmt.Errorf("apply the end of the log: %w", err)
		}
	}
	r.mu.Lock()
	r.local, r.remote, r.committed = end, end, end
	r.flight = r.flight[:0]
	r.led = true
	open := r.err == nil && !r.closed
	if open {
		r.session = s
		r.state, r.reason, r.logged = StateStreaming, "", ""
		if s.history != nil && !s.whole {
			r.state = StateFullSync
		}
	}
	r.mu.Unlock()
	if led && from <= end {
		r.cfg.Applier.Committed(end)
	}
	if open {
		r.cfg.Applier.Lead()
		r.cfg.Logger.Info("the follower is in step: writes go on", "epoch", uint64(r.cfg.Epoch), "last_index", uint64(end))
	}
	return nil
}

// applyError says that a committed entry cannot be applied. It is final.
type applyError struct{ error }

// applyBytes is how much of the log is read and applied at a time.
const applyBytes = 1 << 20

// apply hands entries from the log to the applier: they are committed. Should the reading fail, those that it has are
// not handed over again. Called with committing held.
func (r *Leader) apply(from, to entry.Index) error {
	if from > to {
		return nil
	}
	c := r.cfg.Log.NewCursor(from)
	defer c.Close()
	f := new(wal.Frames)
	for from <= to {
		if _, err := c.Next(f, to, applyBytes); err != nil {
			return err
		}
		r.mu.Lock()
		r.committed = f.Last()
		r.mu.Unlock()
		if err := r.cfg.Applier.Apply(f); err != nil {
			return &applyError{err}
		}
		from = f.Last() + 1
	}
	return nil
}

// Serve answers a node that dials this leader: it can only be another leader, and the higher epoch wins. It
// returns when the link has ended.
func (r *Leader) Serve(link Link) {
	defer link.Close()
	watch := r.cfg.Clock.NewTimer(r.cfg.Timeout)
	done := make(chan struct{})
	var timing sync.WaitGroup
	timing.Go(func() { // ends with the channel
		select {
		case <-watch.C():
			link.Close()
		case <-done:
		}
	})
	defer func() {
		close(done)
		watch.Stop()
		timing.Wait()
	}()
	var dec decoder
	var enc encoder
	h, err := readHello(link, &dec)
	if err != nil {
		return
	}
	answer := refuse{Epoch: uint64(r.cfg.Epoch), Leader: r.cfg.Self}
	switch epoch := entry.Term(h.Epoch); {
	case h.Version != version:
		answer.Code, answer.Message = CodeVersion, fmt.Sprintf("this node speaks version %d of the protocol, not %d", version, h.Version)
	case entry.LogID(h.LogID) != r.cfg.LogID:
		answer.Code, answer.Message = CodeOtherLog, "this node has another log"
	case h.Node == r.cfg.Self:
		answer.Code, answer.Message = CodeSameNode, "this node has the same identity: does -replica name the leader itself, or is one data folder a copy of the other?"
	case h.Node.IsZero() || epoch == 0 || epoch > indexMax:
		answer.Code, answer.Message = CodeMalformed, "a hello with impossible values"
	case epoch > r.cfg.Epoch:
		r.fence(epoch, h.Node)
		answer.Code, answer.Message = CodeNotNow, "this node was the leader, and stops now; start it with -role follower"
	case epoch == r.cfg.Epoch:
		answer.Code, answer.Message = CodeEpochTaken, fmt.Sprintf("node %v leads with epoch %d", r.cfg.Self, epoch)
	default:
		answer.Code, answer.Message = CodeStaleEpoch, fmt.Sprintf("node %v leads with epoch %d", r.cfg.Self, r.cfg.Epoch)
	}
	r.cfg.Observer.Refused(answer.Code)
	link.Write(enc.json(kindRefuse, &answer), nil)
}

// readHello reads the packet that opens a session.
func readHello(link Link, dec *decoder) (hello, error) {
	var h hello
	b, err := link.Read()
	if err != nil {
		return h, err
	}
	k, b, err := dec.packet(b)
	if err != nil {
		return h, err
	}
	if k != kindHello {
		return h, malformed("a session begins with %v", k)
	}
	return h, decodeJSON(b, &h)
}
