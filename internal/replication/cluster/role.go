package cluster

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

// baton is a mutex that is held across I/O. It is a channel, so that a test on virtual time sees who waits for it.
type baton chan struct{}

// Lock takes the baton.
func (b baton) Lock() { b <- struct{}{} }

// Unlock passes it on.
func (b baton) Unlock() { <-b }

// Role implements replication.Role. Locks are taken in this order: tail, applying, sending, mu.
type Role struct {
	cfg   Config
	pause time.Duration // a tick

	// tail is held by whoever writes to the log or saves Hard; across I/O.
	tail baton
	disk disk // owned by the holder of tail

	// applying orders the calls of the applier, and is held while it is called. Who is not the one that has to call it
	// leaves news, and does not wait.
	applying  sync.Mutex
	news      atomic.Bool
	suspended bool // Suspend was called, and Lead not since; guarded by applying
	closing   bool // Close has told the applier; guarded by applying

	// sending orders the packets.
	sending sync.Mutex

	io      ioWatch
	stalled atomic.Bool // the disk has not answered for DiskTimeout
	status  atomic.Pointer[replication.Status]
	heir    atomic.Pointer[heir] // for who cannot go on
	fatal   sync.Once

	mu     sync.Mutex // guards the fields below; held for moments
	node   *raft.RawNode
	window window

	term       entry.Term
	state      raft.StateType
	lead       int        // the leader's number; NoNode when none is known
	leading    entry.Term // the term in which this node leads; 0 for none
	marker     entry.Index
	transferee int  // who is to lead next, NoNode for none
	later      int  // the one that gets the lead once giving is over, NoNode for none
	giving     bool // what stands in the log is about to be given to raft
	electAt    time.Duration
	retryAt    time.Duration // when a full disk is tried again
	passed     int           // elections that were not tried because the disk is full
	chokedAt   time.Duration // since when most disks are full and nothing more is committed; 0 for not
	chokedFor  entry.Index   // what was committed then
	gaveUp     time.Duration // when the lead was last given away because of a full disk, or that failed; 0 for never
	nextPause  time.Duration // how long after gaveUp that may be again
	handing    bool          // this is being done
	kept       int           // how often in a row the other node did not take it; a long while without an attempt ends the row
	readSent   uint64        // the highest number of a read that went out with a heartbeat, in this term

	commit   entry.Index // committed, and durable here
	reported entry.Index // told to the applier; Invariant: reported <= commit, but while the lead is being lost
	led      entry.Term  // the term in which the applier leads; 0 for none
	resumed  entry.Term  // the last value of led for which Resume was called
	lostAt   entry.Index // what was committed when the term led was lost
	lostBy   entry.Term  // the term of which lostAt tells
	reason   string      // why this node does not lead
	suspend  string      // what the applier is to be told, as nothing can be committed for now; "" for nothing

	peers []peer
	queue []*pb.Message // for the disk, in order
	hard  Hard          // as it will be when the queue is written
	full  bool          // the disk took no more entries, and some wait
	out   []*pb.Message // for the other nodes, in order
	lazy  bool          // raft reacts to an acknowledgement: that more is committed need not be told at once
	mute  bool          // nobody is told to pull now
	held  []*pb.Message // those that need the bytes of this node's marker

	ticked   atomic.Int64 // when the clock was turned last
	quorumAt atomic.Int64 // a majority has been heard of since
	unsure   atomic.Bool  // this node was stopped for a while, and has not confirmed its lead since

	round   *round // that confirms the lead, nil for none
	next    *round // for those who came since it began
	reads   uint64 // number of the last read index
	changed chan struct{}

	closed bool
	err    error // sticky

	drain   chan struct{} // capacity 1: the queue is not empty
	apply   chan struct{} // capacity 1: there may be something to apply
	stop    chan struct{}
	stopped sync.WaitGroup
}

var _ replication.Role = (*Role)(nil)

// New returns a role that does nothing before Start. It reads the end of the log.
func New(cfg Config) (*Role, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Role{
		cfg: cfg, pause: cfg.ElectionTimeout / electionTicks, term: cfg.Hard.Term, lead: NoNode, transferee: NoNode, later: NoNode,
		reported: cfg.Applied, reason: "no node leads yet", peers: make([]peer, cfg.Nodes), hard: cfg.Hard,
		tail: make(baton, 1), changed: make(chan struct{}), drain: make(chan struct{}, 1), apply: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	for n := range cfg.Nodes {
		r.window.voters = append(r.window.voters, idOf(n))
	}
	r.io.clock, r.io.done = cfg.Clock, r.io.end
	if err := r.load(); err != nil {
		return nil, err
	}
	r.disk.saved = cfg.Hard
	if term, _ := r.window.Term(r.window.last()); entry.Term(term) > cfg.Hard.Term {
		// The log is of a later term than was saved: it comes from a standalone node, or what was saved is old. Whom this
		// node voted for in that term is not known, so it votes for nobody else in it.
		cfg.Hard = Hard{Term: entry.Term(term), Vote: cfg.Self}
		r.term, r.hard = cfg.Hard.Term, cfg.Hard
	}
	r.window.hard = pb.HardState{Term: new(uint64(cfg.Hard.Term)), Commit: new(uint64(r.commit)), Vote: new(idOf(cfg.Hard.Vote))}
	err = r.guard(func() error {
		r.node, err = raft.NewRawNode(&raft.Config{
			ID: idOf(cfg.Self), ElectionTick: electionTicks, HeartbeatTick: heartbeatTicks, Storage: &r.window,
			Applied: uint64(r.commit), AsyncStorageWrites: true, MaxSizePerMsg: messageBytes, MaxCommittedSizePerReady: noLimit,
			MaxInflightMsgs: inflightMax, MaxInflightBytes: inflightBytes, CheckQuorum: true, PreVote: true,
			ReadOnlyOption: raft.ReadOnlySafe, DisableProposalForwarding: true, StepDownOnRemoval: true,
			Logger: libraryLog{},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	r.publish()
	return r, nil
}

// load fills the window with the end of the log: what is not known to be committed, the entry before that, and some
// more, for nodes that lag a little.
func (r *Role) load() error {
	log, last := r.cfg.Log, r.cfg.Log.Last()
	r.commit = r.cfg.Commit
	if last == 0 {
		return nil
	}
	segments := log.Segments()
	n, size := len(segments), int64(0)
	for n > 0 && (size < min(loadBytes, r.cfg.Window) || segments[n].First > r.cfg.Commit) {
		n--
		size += segments[n].Bytes
	}
	for {
		err := r.read(segments[n].First)
		// What is damaged before what raft needs is for the scrubber to find, and to be repaired from others.
		if err == nil || n+1 == len(segments) || segments[n+1].First > r.cfg.Commit || !errors.As(err, new(*wal.CorruptionError)) {
			return err
		}
		n++
	}
}

// read fills the window with the log from an entry on that begins a segment.
func (r *Role) read(from entry.Index) error {
	log, last := r.cfg.Log, r.cfg.Log.Last()
	r.window.base, r.window.baseTerm, r.window.list, r.window.ends, r.window.start = 0, 0, nil, nil, 0
	if from > last { // the log has no entry
		return fmt.Errorf("cluster: the log begins behind entry %d, whose term is not known", last)
	}
	c := log.NewCursor(from)
	defer c.Close()
	f := new(wal.Frames)
	begun := from == 1 // then the entry before the first one is none, of term 0
	for {
		place, err := c.Next(f, last, messageBytes)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("cluster: read the end of the log: %w", err)
		}
		list := entriesOf(f, place)
		if !begun {
			begun = true
			r.window.base, r.window.baseTerm = list[0].GetIndex(), list[0].GetTerm()
			list = list[1:]
		}
		r.window.append(list)
		r.disk.note(f)
		// A frame says what its leader knew to be committed, and that is true of every log that has the frame.
		r.commit = max(r.commit, r.disk.proven)
		r.window.trim(uint64(r.commit), r.cfg.Window)
	}
	if got := r.window.last(); got != uint64(last) {
		return fmt.Errorf("cluster: the log was read up to entry %d of %d", got, last)
	}
	if r.window.base > uint64(r.commit) {
		return fmt.Errorf("cluster: the log begins with entry %d, and only entry %d is known to be committed", r.window.base, r.commit)
	}
	return nil
}

// entriesOf returns the entries of f, which stand at place, as raft keeps them, with bytes of their own.
func entriesOf(f *wal.Frames, place wal.Place) []*pb.Entry {
	raw := append(make([]byte, 0, f.Bytes()+segmentExtra), f.Raw()...)
	n, first := f.Len(), f.First()
	list := make([]*pb.Entry, n)
	entries := make([]pb.Entry, n)
	numbers := make([]uint64, 2*n)
	for i := range n {
		e := f.Entry(i)
		p := f.Position(i)
		from := p.Offset - place.Offset
		data := raw[from : from+p.Length : from+p.Length]
		if e.Index == place.Segment {
			data = appendExtra(data, place)
		}
		numbers[2*i], numbers[2*i+1] = uint64(first)+uint64(i), uint64(e.Term)
		entries[i].Index, entries[i].Term, entries[i].Data = &numbers[2*i], &numbers[2*i+1], data
		list[i] = &entries[i]
	}
	return list
}

// Start implements replication.Role. A node that is alone tries to lead at once, others when no leader is heard of.
func (r *Role) Start() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return replication.ErrStopped
	}
	r.suspend = r.reason
	r.electAt = r.cfg.Clock.Monotonic() + r.patience()
	if r.cfg.Nodes == 1 {
		r.electAt = r.cfg.Clock.Monotonic()
	}
	r.mu.Unlock()
	// All four end with stop, and Close waits for them.
	r.stopped.Go(r.keepTime)
	r.stopped.Go(r.drainLoop)
	r.stopped.Go(r.applyLoop)
	r.stopped.Go(r.watch)
	r.advance()
	return nil
}

// signal wakes who waits at a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// guard calls do, and turns a panic into an error.
func (r *Role) guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{what: p, stack: debug.Stack()}
		}
	}()
	return do()
}

// locked calls do with mu held, hands on what raft has to say then, and does what follows from it. It does nothing
// once the role was closed or has failed. A panic fails the role.
func (r *Role) locked(do func() error) error {
	r.mu.Lock()
	err := r.usable()
	if err == nil {
		var refused *RefusedError
		err = r.guard(func() error {
			if err := do(); err != nil {
				return err
			}
			r.ready()
			return nil
		})
		r.lazy = false
		if err != nil && !errors.As(err, &refused) && !errors.Is(err, replication.ErrUnavailable) && !errors.Is(err, wal.ErrFull) {
			r.mu.Unlock()
			r.stopHere(err)
			return err
		}
	}
	r.mu.Unlock()
	r.send()
	r.advance()
	return err
}

// usable returns why nothing goes on any more, or nil. Called with mu held.
func (r *Role) usable() error {
	switch {
	case r.closed:
		return replication.ErrStopped
	case r.err != nil:
		return fmt.Errorf("%w: %w", replication.ErrFailedBefore, r.err)
	}
	return nil
}

// fail makes err sticky: this node acknowledges nothing any more. The first one stays.
func (r *Role) fail(err error) {
	r.mu.Lock()
	first := r.err == nil && !r.closed
	if first {
		r.err = err
		r.endRounds("this node has failed")
		r.broadcast()
		r.publish()
	}
	leading := r.leading
	r.mu.Unlock()
	if !first {
		return
	}
	if leading != 0 {
		r.handOver(leading)
	}
	r.cfg.Logger.Error("this node takes no part in the cluster any more", "err", err)
	r.cfg.Applier.Failed(err)
}

// stopHere is fail for what this node must not go on with at all.
func (r *Role) stopHere(err error) {
	r.fail(err)
	r.fatal.Do(func() { go r.cfg.Fatal(err) }) // it closes this role, which waits for who called this
}

// MayAnswer implements replication.Role: what a majority has stays committed, whoever leads.
func (r *Role) MayAnswer() bool { return r.status.Load().Err == nil }

// Status implements replication.Role.
func (r *Role) Status() replication.Status { return *r.status.Load() }

// publish renews what Status tells. Called with mu held.
func (r *Role) publish() {
	old := r.status.Load()
	if old == nil || old.Term != r.term || old.Committed != r.commit || (old.Err == nil) != (r.err == nil) {
		r.status.Store(&replication.Status{Term: r.term, Committed: r.commit, Err: r.err})
	}
}

// broadcast wakes those who wait for the leader or a transfer to change. Called with mu held.
func (r *Role) broadcast() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Close implements replication.Role.
func (r *Role) Close() error {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	if !closed {
		r.endRounds("the node is stopping")
		r.broadcast()
	}
	r.mu.Unlock()
	if !closed {
		close(r.stop)
	}
	r.stopped.Wait()
	r.tail.Lock() // so that Propose has ended
	defer r.tail.Unlock()
	r.applying.Lock()
	defer r.applying.Unlock()
	r.mu.Lock()
	flight := r.led != 0 && uint64(r.reported) < r.window.last() && r.err == nil
	r.mu.Unlock()
	if flight && !r.closing {
		r.cfg.Applier.Suspend("the node is stopping")
	}
	r.closing = true
	return nil
}

// libraryLog discards what the library logs, but not its panics.
type libraryLog struct{}

var _ raft.Logger = libraryLog{}

func (libraryLog) Debug(...any)                     {}
func (libraryLog) Debugf(string, ...any)            {}
func (libraryLog) Error(...any)                     {}
func (libraryLog) Errorf(string, ...any)            {}
func (libraryLog) Info(...any)                      {}
func (libraryLog) Infof(string, ...any)             {}
func (libraryLog) Warning(...any)                   {}
func (libraryLog) Warningf(string, ...any)          {}
func (l libraryLog) Fatal(v ...any)                 { l.Panic(v...) }
func (l libraryLog) Fatalf(format string, v ...any) { l.Panicf(format, v...) }
func (libraryLog) Panic(v ...any)                   { panic("BUG: raft: " + fmt.Sprint(v...)) }
func (libraryLog) Panicf(format string, v ...any)   { panic("BUG: raft: " + fmt.Sprintf(format, v...)) }
