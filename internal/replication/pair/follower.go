package pair

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

const (
	// followerBytes is how much the follower appends before it syncs, when more is waiting.
	followerBytes = 8 << 20
	// helloMax is how long a new connection may take to say who it is.
	helloMax = 5 * time.Second
)

// Replica is the data folder of a follower. Its methods are called by one goroutine at a time, unless they say
// otherwise.
type Replica interface {
	// LogID is that of the log, zero when the folder holds none. It may be called at any time.
	LogID() entry.LogID
	// Log is the log, nil when the folder holds none.
	Log() *wal.Log
	// Reset begins the log anew, at a place, in a folder whose log is not whole: a full sync starts. The
	// promise says so already.
	Reset(id entry.LogID, begin wal.Place) error
	// SaveCut copies the entries after an index to a side file, durably, before they are cut off.
	SaveCut(after entry.Index) error
	// Commit says that the entries up to an index are committed: they are applied in the background.
	Commit(last entry.Index)
	// Applied is up to where entries are applied. It may be called at any time.
	Applied() entry.Index

	// Forget removes what an earlier full sync has brought of entries before one that are not part of the history any
	// more.
	Forget(before entry.Index) error
	// Snapshot and Segment receive the files of a full sync. They, and Whole, are called by another goroutine
	// than the rest, but one at a time.
	Snapshot(index entry.Index, bytes int64) (Import, error)
	Segment(first, last entry.Index, bytes int64) (Import, error)
	// Whole says that the history is there. It returns once the log is whole, and the fold has been read.
	Whole() error
}

// Import receives one file, from front to back. What was received before a restart is still there.
type Import interface {
	// Have is how many bytes are there.
	Have() int64
	// Write adds what comes next.
	Write(p []byte) error
	// Finish checks the whole file and puts it in its place. An error that is a *wal.CorruptionError, or
	// wraps ErrDamaged, says that the file was thrown away and must be received again.
	Finish() error
	// Close keeps what is there for the next time. It may be called after Finish.
	Close()
}

// ErrDamaged says that what was received is not what was sent.
var ErrDamaged = errors.New("the file arrived damaged")

// FollowerConfig says what a follower works on. All fields but Committed are required.
type FollowerConfig struct {
	Config
	Replica Replica
	// Committed is up to where the log shows entries to be committed.
	Committed entry.Index
}

// Follower keeps a replica of a leader's log. Serve it the connections of leaders.
type Follower struct {
	cfg FollowerConfig

	opening sync.Mutex // one session begins at a time; held while the one before ends

	mu        sync.Mutex // guards the fields below
	current   *following // nil when there is none
	coming    coming     // who takes over
	state     State
	reason    string
	closed    bool
	err       error // sticky
	committed entry.Index
	leader    peerStatus

	promising sync.Mutex // one change of the promise at a time, within a session; held across I/O

	durable atomic.Uint64 // of the leader's log
	placed  atomic.Bool   // the history of a full sync is in its place, whether that could be noted or not
	// acked is when this node last acknowledged anything, by the clock's monotonic time: the lease that it gave
	// runs from then at the latest.
	acked atomic.Int64
}

// coming is a leader with a higher epoch that waits until the lease of the one before has ended. Until then, and no longer,
// the one before is kept away: its acknowledgements would prolong the lease for ever.
type coming struct {
	epoch entry.Term
	node  NodeID
	until time.Duration // by the clock's monotonic time
}

// comingMax is for how long a leader that takes over is waited for, beyond the lease: it connects again if need be.
const comingMax = 10 * time.Second

// NewFollower returns a follower that serves no one yet.
func NewFollower(cfg FollowerConfig) *Follower {
	cfg.Config = cfg.Config.withDefaults()
	f := &Follower{cfg: cfg, state: StateDisconnected, reason: "no leader has called yet", committed: cfg.Committed}
	f.acked.Store(int64(cfg.Clock.Monotonic())) // a process before this one may have done so until just now
	if log := cfg.Replica.Log(); log != nil {
		f.durable.Store(uint64(log.Durable()))
	}
	return f
}

// Pair says how both sides stand.
func (f *Follower) Pair() Status {
	p := f.cfg.Promises.Promise()
	f.mu.Lock()
	defer f.mu.Unlock()
	return Status{
		Epoch: p.Epoch, State: f.state, Reason: f.reason, Committed: f.committed, Durable: entry.Index(f.durable.Load()),
		Peer: f.leader.node, PeerDurable: f.leader.durable, PeerApplied: f.leader.applied, Contact: f.leader.contact,
		SyncDone: f.leader.syncDone, SyncTotal: f.leader.syncTotal,
	}
}

// Err returns why this follower takes nothing any more, or nil.
func (f *Follower) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Fail ends the follower for good: what it holds can no longer be trusted, or not be written.
func (f *Follower) Fail(err error) {
	f.mu.Lock()
	first := f.err == nil
	if first {
		f.err = err
		f.state, f.reason = StateFailed, err.Error()
	}
	current := f.current
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Error("this follower takes nothing more: restart the node", "err", err)
	}
	if current != nil {
		current.finish(err)
	}
}

// Close ends the session and returns when nothing uses the log any more.
func (f *Follower) Close() error {
	f.mu.Lock()
	f.closed = true
	current := f.current
	f.mu.Unlock()
	if current != nil {
		current.finish(replication.ErrStopped)
		<-current.done
	}
	f.opening.Lock() // a session that was about to begin finds it closed
	defer f.opening.Unlock()
	return nil
}

// Serve holds a session with a leader that has connected. It returns when the link has ended.
func (f *Follower) Serve(link Link) {
	s := &following{f: f, link: link, over: make(chan struct{}), done: make(chan struct{}), synced: make(chan struct{}, 1)}
	defer close(s.done)
	s.heardAt.Store(int64(f.cfg.Clock.Monotonic()))
	s.limit.Store(int64(min(helloMax, 2*f.cfg.Timeout)))
	var watching sync.WaitGroup
	watching.Go(s.watch)
	defer watching.Wait()
	defer s.finish(errors.New("the session is over"))

	b, err := s.read()
	if err != nil {
		return
	}
	k, b, err := s.dec.packet(b)
	if err != nil || k != kindHello {
		f.cfg.Logger.Warn("a connection that does not speak the protocol", "kind", k.String(), "err", err)
		return
	}
	if err := decodeJSON(b, &s.hello); err != nil {
		f.cfg.Logger.Warn("a connection that does not speak the protocol", "err", err)
		return
	}
	if !f.open(s) {
		return
	}
	err = s.talk()
	s.explain(err)
	s.finish(err)
	if s.history != nil {
		s.history.close()
	}
	f.ended(s, s.why)
}

// open makes s the current session, in place of the one before, if its hello is in order.
func (f *Follower) open(s *following) bool {
	if !f.opening.TryLock() { // the session before does not end: its disk hangs, say
		s.refuse(&refuse{Code: CodeNotNow, Message: "the follower is busy with the session before"})
		return false
	}
	defer f.opening.Unlock()
	if r := f.refusal(&s.hello); r != nil {
		s.refuse(r)
		return false
	}
	f.mu.Lock()
	before := f.current
	f.mu.Unlock()
	if before != nil {
		before.finish(errors.New("the leader has connected anew"))
		<-before.done
		if r := f.refusal(&s.hello); r != nil {
			s.refuse(r)
			return false
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.current = s
	f.state, f.reason = StateHandshake, ""
	f.leader.node, f.leader.durable = s.hello.Node, entry.Index(s.hello.Tip.Index)
	s.limit.Store(int64(2 * max(f.cfg.Timeout, time.Duration(s.hello.LeaseMS)*time.Millisecond)))
	return true
}

// leaseMax is LeaseMax in milliseconds.
const leaseMax = int64(LeaseMax / time.Millisecond)

// refusal says why a hello is not in order, or nil. Nothing is changed.
func (f *Follower) refusal(h *hello) *refuse {
	p := f.cfg.Promises.Promise()
	r := &refuse{Epoch: uint64(p.Epoch), Leader: p.Leader}
	id := f.cfg.Replica.LogID()
	f.mu.Lock()
	closed, err, next := f.closed, f.err, f.coming
	f.mu.Unlock()
	if f.cfg.Clock.Monotonic() >= next.until {
		next = coming{}
	}
	switch {
	case h.Version != version:
		r.Code, r.Message = CodeVersion, fmt.Sprintf("this node speaks version %d of the protocol, the leader version %d", version, h.Version)
	case h.Node.IsZero() || h.LogID == hexID{} || h.Epoch == 0 || h.Epoch > indexMax || h.LeaseMS < 1 || h.LeaseMS > leaseMax ||
		h.Tip.Index > indexMax || h.Commit > h.Tip.Index:
		r.Code, r.Message = CodeMalformed, "a hello with impossible values"
	case h.Node == f.cfg.Self:
		r.Code, r.Message = CodeSameNode, "this follower has the leader's own node id: one data folder is a copy of the other; give the follower an empty one"
	case id != (entry.LogID{}) && id != entry.LogID(h.LogID):
		r.Code, r.Message = CodeOtherLog, fmt.Sprintf("this follower has log %x, not %x: nothing was changed; give it an empty data folder", id, h.LogID)
	case entry.Term(h.Epoch) < p.Epoch:
		r.Code, r.Message = CodeStaleEpoch, fmt.Sprintf("epoch %d is over: node %v leads with epoch %d", h.Epoch, p.Leader, p.Epoch)
	case entry.Term(h.Epoch) == p.Epoch && h.Node != p.Leader:
		r.Code, r.Message = CodeEpochTaken, fmt.Sprintf("node %v leads with epoch %d already: nothing was changed", p.Leader, p.Epoch)
	case entry.Term(h.Epoch) < next.epoch || entry.Term(h.Epoch) == next.epoch && h.Node != next.node:
		r.Code, r.Message = CodeNotNow, fmt.Sprintf("node %v takes over with epoch %d", next.node, next.epoch)
	case closed:
		r.Code, r.Message = CodeNotNow, "this node is stopping"
	case err != nil:
		r.Code, r.Message = CodeFailed, "this follower takes nothing more: "+err.Error()
	default:
		return nil
	}
	f.cfg.Observer.Refused(r.Code)
	f.cfg.Logger.Warn("refused a leader", "leader", h.Node.String(), "epoch", h.Epoch, "why", r.Message)
	return r
}

// explain tells the leader why this end of a session ends it, as far as that is of use there.
func (s *following) explain(err error) {
	r := refuse{Message: "the follower: " + err.Error()}
	switch {
	case errors.Is(err, wal.ErrFull):
		r.Code, r.Message = CodeNotNow, "the follower's disk is full"
	case s.f.Err() != nil:
		r.Code = CodeFailed
	case errors.Is(err, errMalformed), errors.Is(err, wal.ErrMismatch), errors.As(err, new(*wal.CorruptionError)):
		r.Code = CodeMalformed
	default:
		return
	}
	s.refuse(&r)
}

// ended notes that a session has ended.
func (f *Follower) ended(s *following, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != s {
		return
	}
	f.current = nil
	f.leader.syncDone, f.leader.syncTotal = 0, 0
	if f.err == nil {
		f.state, f.reason = StateDisconnected, why.Error()
	}
	f.cfg.Logger.Info("the session with the leader has ended", "why", why)
}

// following is the follower's end of a session. Its main goroutine reads, writes the log and acknowledges; one watches
// the time; in a full sync, one takes the history.
type following struct {
	f     *Follower
	link  Link
	hello hello
	over  chan struct{} // closed by finish
	done  chan struct{} // closed when nothing uses the log any more
	once  sync.Once
	why   error

	heardAt atomic.Int64 // when the last packet came
	limit   atomic.Int64 // for how long there may be none, in nanoseconds

	writing sync.Mutex // one packet at a time; held across I/O; guards the field below
	enc     encoder

	// Owned by the main goroutine.
	dec    decoder
	log    *wal.Log
	next   entry.Index // what the leader sends next; what comes before is its log, byte for byte
	end    entry.Index // of the leader's log when the session began
	own    *wal.Cursor // at next, while this log may have more than the leader's; else nil
	mine   wal.Frames
	theirs wal.Frames
	stamp  int64 // to echo
	commit entry.Index
	dirty  int         // bytes appended and not synced
	known  entry.Index // the leader says that it is committed
	// wholeAt is the entry at which the log has all that was acknowledged before this node was a follower; 0 when it has.
	wholeAt entry.Index

	history *receiver     // of a full sync; nil when none runs
	synced  chan struct{} // capacity 1: durable has risen
}

// finish ends the session for a reason. It does not wait.
func (s *following) finish(why error) {
	s.once.Do(func() {
		s.why = why
		close(s.over)
		s.link.Close()
	})
}

// watch ends the session when nothing comes for too long.
func (s *following) watch() {
	clock := s.f.cfg.Clock
	timer := clock.NewTimer(time.Duration(s.limit.Load()))
	defer timer.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-timer.C():
		}
		left := time.Duration(s.limit.Load() - int64(clock.Monotonic()) + s.heardAt.Load())
		if left <= 0 {
			s.finish(errSilent)
			return
		}
		timer.Reset(left)
	}
}

func (s *following) read() ([]byte, error) {
	b, err := s.link.Read()
	if err != nil {
		return nil, fmt.Errorf("the connection to the leader has ended: %w", err)
	}
	s.heardAt.Store(int64(s.f.cfg.Clock.Monotonic()))
	return b, nil
}

// write sends a packet that build makes.
func (s *following) write(body []byte, build func(*encoder) []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.link.Write(build(&s.enc), body)
}

func (s *following) writeJSON(k kind, fields any) error {
	return s.write(nil, func(e *encoder) []byte { return e.json(k, fields) })
}

func (s *following) refuse(r *refuse) { s.writeJSON(kindRefuse, r) }

// talk is the session from the answer to the hello on.
func (s *following) talk() error {
	if err := s.welcome(); err != nil {
		return err
	}
	for {
		b, err := s.read()
		if err != nil {
			return err
		}
		k, b, err := s.dec.packet(b)
		if err != nil {
			return err
		}
		switch k {
		case kindPull:
			if err := s.pulled(b); err != nil {
				return err
			}
		case kindBegin:
			if err := s.begin(b); err != nil {
				return err
			}
			return s.follow()
		case kindRefuse:
			return s.refused(b)
		default:
			return malformed("%v within the handshake", k)
		}
	}
}

func (s *following) refused(b []byte) error {
	var m refuse
	if err := decodeJSON(b, &m); err != nil {
		return err
	}
	s.f.cfg.Observer.Refused(m.Code)
	s.f.cfg.Logger.Warn("the leader refuses this follower", "why", m.Message)
	return &RefusedError{Code: m.Code, Message: m.Message}
}

// welcome tells the leader what this node has.
func (s *following) welcome() error {
	f := s.f
	p := f.cfg.Promises.Promise()
	if p.First != 0 && f.placed.Load() {
		// There was no room to note that the log is whole. A leader that does not know it may ask for a new full sync, and the
		// replica is in use.
		if err := f.complete(true); err != nil {
			return err
		}
		p = f.cfg.Promises.Promise()
	}
	w := welcome{Node: f.cfg.Self, Leader: p.Leader, LogID: hexID(f.cfg.Replica.LogID()), First: uint64(p.First)}
	s.log = f.cfg.Replica.Log()
	if s.log == nil {
		w.LogID, w.First = hexID{}, 0
		return s.writeJSON(kindWelcome, &w)
	}
	f.mu.Lock()
	s.commit = f.committed
	f.mu.Unlock()
	commit, err := s.log.PointAt(s.commit)
	if err == nil {
		err = s.log.Err()
	}
	if err != nil {
		s.refuse(&refuse{Code: CodeFailed, Message: "the follower's log cannot be used: " + err.Error()})
		return err
	}
	w.Commit, w.Tip = pointOf(commit), pointOf(s.log.Tip())
	if w.Tip.Term != uint64(p.Epoch) {
		// The tail may be of another leader, and was promised to this one without having been compared.
		w.Leader = NodeID{}
	}
	return s.writeJSON(kindWelcome, &w)
}

// pulled sends back what the leader has lost of what it wrote.
func (s *following) pulled(b []byte) error {
	var m pull
	if err := decodeJSON(b, &m); err != nil {
		return err
	}
	if s.log == nil || m.After >= m.To || m.To > uint64(s.log.Tip().Index) {
		return malformed("the leader asks for entries %d to %d", m.After+1, m.To)
	}
	c := s.log.NewCursor(entry.Index(m.After) + 1)
	defer c.Close()
	for at := entry.Index(m.After); at < entry.Index(m.To); at = s.mine.Last() {
		place, err := c.Next(&s.mine, entry.Index(m.To), catchUpBytes)
		if err != nil {
			s.refuse(&refuse{Code: CodeBehind, Message: "the follower cannot give back what the leader lacks: " + err.Error()})
			return fmt.Errorf("read the log for the leader: %w", err)
		}
		raw := s.mine.Raw()
		if err := s.write(raw, func(e *encoder) []byte { return e.frames(&frames{place: place, raw: raw}) }); err != nil {
			return err
		}
	}
	return nil
}

// begin promises the leader's epoch, and gets the log ready for what comes.
func (s *following) begin(packet []byte) error {
	f := s.f
	var b begin
	if err := decodeJSON(packet, &b); err != nil {
		return err
	}
	p := f.cfg.Promises.Promise()
	if err := s.checkBegin(&b, p); err != nil {
		return err
	}
	if p.Leader != s.hello.Node && !p.Leader.IsZero() {
		// The leader before may still acknowledge what we have acknowledged to it, for as long as its lease lasts.
		f.mu.Lock()
		f.coming = coming{entry.Term(s.hello.Epoch), s.hello.Node, f.cfg.Clock.Monotonic() + p.Wait() + comingMax}
		f.mu.Unlock()
		left := p.Wait() - (f.cfg.Clock.Monotonic() - time.Duration(f.acked.Load()))
		if !sleep(f.cfg.Clock, left, s.over) {
			return errSilent
		}
	}
	next := p
	next.Epoch, next.Leader = entry.Term(s.hello.Epoch), s.hello.Node
	next.Lease = time.Duration(s.hello.LeaseMS) * time.Millisecond
	next.Alone = false
	fresh := b.Sync != nil && b.Sync.Fresh
	committed := entry.Index(b.Committed)
	if fresh || b.Alone && s.commit < committed || s.log.Tip().Index < committed || p.Leader != s.hello.Node && s.commit < committed {
		// What this log has behind the commit point may be of another leader, as long as it was not compared.
		next.WholeAt = max(next.WholeAt, committed)
	}
	if fresh {
		next.First = entry.Index(b.Sync.Segment)
	}
	s.wholeAt = next.WholeAt
	if next != p {
		if err := f.cfg.Promises.SetPromise(next); err != nil {
			return f.broken(fmt.Errorf("note the promise to the leader: %w", err))
		}
	}
	if fresh {
		if err := s.reset(&b); err != nil {
			return err
		}
	}
	if err := s.log.Sync(); err != nil { // the session before may have ended in between
		return f.broken(err)
	}
	s.next, s.end = entry.Index(b.From), entry.Index(b.End)
	if durable := uint64(s.next - 1); f.durable.Load() > durable { // beyond that nothing has been compared
		f.durable.Store(durable)
	}
	if s.next <= s.log.Tip().Index {
		s.own = s.log.NewCursor(s.next)
	}
	var ready begun
	if b.Sync != nil {
		var err error
		if s.history, ready, err = newReceiver(s, b.Sync); err != nil {
			return err
		}
	}
	if err := s.trim(); err != nil {
		return err
	}
	if err := s.writeJSON(kindBegun, &ready); err != nil {
		return err
	}
	f.mu.Lock()
	f.state, f.reason = StateStreaming, ""
	if s.next <= s.end {
		f.state = StateCatchingUp
	}
	if s.history != nil {
		f.state = StateFullSync
	}
	f.mu.Unlock()
	if s.history != nil {
		s.history.start() // which may be complete at once
	}
	f.cfg.Observer.Session()
	f.cfg.Logger.Info("following", "leader", s.hello.Node.String(), "epoch", s.hello.Epoch, "from", b.From, "to", b.End, "full_sync", b.Sync != nil)
	return nil
}

// checkBegin says what is wrong with a begin, given what this node has told.
func (s *following) checkBegin(b *begin, p Promise) error {
	switch {
	case b.From == 0 || b.From > b.End+1 || b.End > indexMax || b.Committed > b.End:
		return malformed("a begin from %d to %d, committed %d", b.From, b.End, b.Committed)
	case b.Sync != nil && b.Sync.Fresh:
		if s.log != nil && p.First == 0 {
			return malformed("a full sync over a log that is whole")
		}
		if b.From != b.Sync.Segment {
			return malformed("a full sync from %d with a log from %d", b.Sync.Segment, b.From)
		}
		return b.Sync.check(b.End)
	case s.log == nil || b.From != uint64(s.commit)+1:
		return malformed("a begin at %d where the log is known to be committed up to %d", b.From, s.commit)
	case (b.Sync != nil) != (p.First != 0):
		return malformed("a full sync of a log that is whole, or none of one that is not")
	case b.Sync == nil:
		return nil
	case b.Sync.Segment != uint64(p.First):
		return malformed("a full sync with a log from %d, which begins at %d", b.Sync.Segment, p.First)
	}
	return b.Sync.check(b.End)
}

// Limits of a plan.
const (
	segmentBytesMin = 4 << 10 // of a file of the log, with its header
	segmentBytesMax = 8 << 30
	planSegmentsMax = 1 << 20
)

// check says what is wrong with a plan of a leader whose log ends with entry end.
func (p *plan) check(end uint64) error {
	if p.Size < segmentBytesMin || p.Size > segmentBytesMax || len(p.Segments) > planSegmentsMax {
		return malformed("a full sync of %d segments, with a log whose first one has %d bytes", len(p.Segments), p.Size)
	}
	first, next := p.Segment, uint64(0)
	for i, g := range p.Segments {
		if i == 0 {
			first, next = g.First, g.First
		}
		if g.First == 0 || g.First != next || g.Last < g.First || g.Last >= p.Segment || g.Bytes < segmentBytesMin || g.Bytes > segmentBytesMax {
			return malformed("segment %d to %d of %d bytes", g.First, g.Last, g.Bytes)
		}
		next = g.Last + 1
	}
	switch s := p.Snapshot; {
	case len(p.Segments) > 0 && next != p.Segment:
		return malformed("a history up to entry %d and a log from entry %d", next-1, p.Segment)
	case s.Bytes < 0 || s.Index > end || s.Bytes == 0 && s.Index != 0 || first > s.Index+1:
		return malformed("a history from entry %d with a snapshot of %d bytes up to entry %d", first, s.Bytes, s.Index)
	}
	return nil
}

// reset begins the log anew for a full sync.
func (s *following) reset(b *begin) error {
	f := s.f
	if err := f.cfg.Replica.Reset(entry.LogID(s.hello.LogID), b.Sync.place()); err != nil {
		return f.broken(fmt.Errorf("begin the log of the follower: %w", err))
	}
	s.log = f.cfg.Replica.Log()
	s.commit = entry.Index(b.From) - 1
	f.durable.Store(uint64(s.commit))
	f.mu.Lock()
	f.committed = s.commit
	f.mu.Unlock()
	return nil
}

// broken makes an error of the disk final, unless it passes, and returns it.
func (f *Follower) broken(err error) error {
	if err != nil && !errors.Is(err, wal.ErrFull) && !errors.Is(err, wal.ErrClosed) {
		f.Fail(err)
	}
	return err
}

// follow takes what the leader sends until the session ends.
func (s *following) follow() error {
	if s.own != nil {
		defer func() {
			if s.own != nil {
				s.own.Close()
			}
		}()
	}
	var (
		fr    frames
		be    beat
		ch    chunk
		owing bool // an acknowledgement
	)
	for {
		b, err := s.read()
		if err != nil {
			return err
		}
		k, b, err := s.dec.packet(b)
		if err != nil {
			return err
		}
		switch k {
		case kindFrames:
			if err = fr.decode(b); err == nil {
				owing = true
				s.heard(fr.stamp, fr.commit)
				err = s.take(&fr)
			}
		case kindBeat:
			if err = be.decode(b); err == nil {
				owing = true
				s.heard(be.stamp, be.commit)
			}
		case kindChunk:
			if err = ch.decode(b); err == nil {
				err = s.history.take(&ch)
			}
		case kindRefuse:
			err = s.refused(b)
		default:
			err = malformed("%v within a session", k)
		}
		if err != nil {
			return err
		}
		// What waits already shares the sync, and the acknowledgement.
		if owing && (s.dirty >= followerBytes || !s.link.Ready()) {
			owing = false
			if err := s.acknowledge(); err != nil {
				return err
			}
		}
	}
}

// heard notes what every packet of a leader tells.
func (s *following) heard(stamp int64, commit entry.Index) {
	s.stamp = stamp
	s.known = max(s.known, commit)
	f := s.f
	f.mu.Lock()
	f.leader.contact = f.cfg.Clock.Now()
	f.leader.applied = s.known
	f.leader.durable = max(f.leader.durable, s.known)
	f.mu.Unlock()
}

// take writes frames to the log, or finds that it has them.
func (s *following) take(m *frames) error {
	if err := s.log.Load(&s.theirs, m.place, m.raw); err != nil {
		return fmt.Errorf("entries from the leader: %w", err)
	}
	last := s.theirs.Last()
	if s.theirs.First() != s.next || s.theirs.Term() > entry.Term(s.hello.Epoch) {
		return malformed("entries %d to %d of term %d, where entry %d comes next", s.theirs.First(), last, s.theirs.Term(), s.next)
	}
	place := m.place
	if s.own != nil {
		n, err := s.compare(m, last)
		if err != nil {
			return err
		}
		if n == len(m.raw) {
			return s.trim()
		}
		if n > 0 {
			place.Offset += int64(n)
			if err := s.log.Load(&s.theirs, place, m.raw[n:]); err != nil {
				return fmt.Errorf("entries from the leader: %w", err)
			}
		}
	}
	err := s.log.AppendReplica(&s.theirs, place)
	switch {
	case errors.Is(err, wal.ErrFull), errors.Is(err, wal.ErrMismatch):
		return err
	case err != nil:
		return s.f.broken(err)
	}
	s.dirty += s.theirs.Bytes()
	s.next = last + 1
	return s.trim()
}

// compare goes along the leader's frames and this log's while they are the same, and cuts this log where they part. It
// returns how many bytes of the leader's are here.
func (s *following) compare(m *frames, last entry.Index) (int, error) {
	n := 0
	for n < len(m.raw) {
		tip := s.log.Tip().Index
		if s.next > tip {
			s.own.Close()
			s.own = nil
			break
		}
		at, err := s.own.Next(&s.mine, min(tip, last), len(m.raw)-n)
		if err != nil {
			return 0, s.f.broken(fmt.Errorf("compare with the leader: %w", err))
		}
		place := m.place
		place.Offset += int64(n)
		same, bytes := 0, 0
		if at == place {
			same, bytes = sameFrames(&s.mine, m.raw[n:])
		}
		n += bytes
		s.next += entry.Index(same)
		if same < s.mine.Len() {
			if err := s.cut(); err != nil {
				return 0, err
			}
			break
		}
	}
	return n, nil
}

// sameFrames returns how many frames at the head of f stand at the head of raw, and their length in bytes.
func sameFrames(f *wal.Frames, raw []byte) (n, bytes int) {
	mine := f.Raw()
	for ; n < f.Len(); n++ {
		end := bytes + int(f.Position(n).Length)
		if end > len(raw) || string(mine[bytes:end]) != string(raw[bytes:end]) {
			break
		}
		bytes = end
	}
	return n, bytes
}

// trim cuts what lies behind the end that the leader's log had when the session began, once all before was compared.
func (s *following) trim() error {
	if s.next <= s.end {
		return nil
	}
	if s.own != nil && s.next <= s.log.Tip().Index {
		if err := s.cut(); err != nil {
			return err
		}
	}
	if s.own != nil {
		s.own.Close()
		s.own = nil
	}
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == StateCatchingUp {
		f.state = StateStreaming
	}
	return nil
}

// cut removes what this log has from next on: the leader has something else there, or nothing, so it was never
// acknowledged. It is saved first.
func (s *following) cut() error {
	s.own.Close()
	s.own = nil
	f, after, tip := s.f, s.next-1, s.log.Tip().Index
	f.mu.Lock()
	committed := f.committed
	f.mu.Unlock()
	if after < committed {
		return malformed("the leader has no entry %d, which was acknowledged", after+1)
	}
	if err := f.cfg.Replica.SaveCut(after); err != nil {
		return f.broken(fmt.Errorf("save what must be cut: %w", err))
	}
	if err := s.log.Truncate(after); err != nil {
		return f.broken(err)
	}
	s.dirty = 0
	f.cfg.Observer.Cut(int(tip - after))
	f.cfg.Logger.Warn("cut entries that the leader does not have; they were never acknowledged, and are saved", "first", uint64(after+1), "last", uint64(tip))
	return nil
}

// acknowledge makes durable what was written, and says so.
func (s *following) acknowledge() error {
	f := s.f
	if s.dirty > 0 {
		if err := s.log.Sync(); err != nil {
			return f.broken(err)
		}
		s.dirty = 0
	}
	durable := s.next - 1
	f.durable.Store(uint64(durable))
	select {
	case s.synced <- struct{}{}:
	default:
	}
	commit := min(s.known, durable)
	f.mu.Lock()
	news := commit > f.committed
	if news {
		f.committed = commit
	}
	f.mu.Unlock()
	if news {
		f.cfg.Replica.Commit(commit)
	}
	if s.wholeAt != 0 && durable >= s.wholeAt {
		s.wholeAt = 0
		if err := f.complete(false); err != nil {
			return err
		}
	}
	m := ack{stamp: s.stamp, durable: durable, applied: f.cfg.Replica.Applied()}
	f.acked.Store(int64(f.cfg.Clock.Monotonic()))
	return s.write(nil, func(e *encoder) []byte { return e.ack(&m) })
}

// complete notes, durably, that the log has reached what was acknowledged before it was a replica, or that its
// history has come.
func (f *Follower) complete(history bool) error {
	f.promising.Lock()
	defer f.promising.Unlock()
	p := f.cfg.Promises.Promise()
	next := p
	if history {
		next.First = 0
	}
	if f.durable.Load() >= uint64(next.WholeAt) {
		next.WholeAt = 0
	}
	if next == p {
		return nil
	}
	if err := f.cfg.Promises.SetPromise(next); err != nil {
		return f.broken(fmt.Errorf("note that the log is whole: %w", err))
	}
	return nil
}
