// Package node puts the parts together: one node owns one data folder with one log. It opens them in order
// (lock, identity, snapshot, log, index, broker, role), serves requests in between with "not ready", looks
// after snapshots, index files and disk space while it runs, and closes everything in reverse.
//
// It is the only package that knows which role runs.
package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/replication/standalone"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	lockFile    = "LOCK"
	logDir      = "log"
	snapshotDir = "snapshots"
)

// Defaults of Config.
const (
	DefaultRequestIDWindow = time.Hour
	DefaultSegmentBytes    = 64 << 20
	DefaultSnapshotBytes   = 64 << 20
)

// Role is how a node runs.
type Role string

// The roles.
const (
	Standalone Role = "standalone"
	Leader     Role = "leader"   // of a pair
	Follower   Role = "follower" // of a pair
)

// Config says what a node runs on. FS is required.
type Config struct {
	Role Role // default Standalone
	// Epoch is the leader's; at least 1.
	Epoch entry.Term
	// ReplicaTimeout is for how long the other node of a pair may be silent. Default pair.DefaultTimeout.
	ReplicaTimeout time.Duration
	// Dial connects a leader to its follower, whose address Replica tells.
	Dial    pair.Dial
	Replica string
	// Fatal is called once when the node must stop because another one leads. It must not wait for the node.
	Fatal func(error)
	// Pair is told of what happens between the nodes of a pair.
	Pair pair.Observer
	// Inline makes the log start no goroutine, for simulations.
	Inline bool

	FS     vfs.FS // of the data folder
	Clock  clock.Clock
	Random io.Reader // of identities; nil for the system's
	Logger *slog.Logger
	// RequestIDWindow is how long request ids are remembered.
	RequestIDWindow time.Duration
	// SegmentBytes is the size of the log's files. Larger ones are dropped later, smaller ones cost more
	// files and more syncs.
	SegmentBytes int64
	// SnapshotBytes is after how much log a snapshot is taken. It bounds what a start has to read.
	SnapshotBytes int64
	// ScrubWithin is how long it may take to read the whole log again, to find damage. Default 24 h, with Inline -1. Less
	// than 0: no limit, and a node that is in no cluster does not read it again at all.
	ScrubWithin time.Duration
	// Retention is for how long records are kept of topics that have no settings of their own; zero fields set no limit.
	Retention fact.Retention
	// Observer is told of group commits and reads; nil for nobody. Disk is told of the log's disk work.
	Observer broker.Observer
	Disk     wal.Observer
}

func (c Config) withDefaults() Config {
	if c.Role == "" {
		c.Role = Standalone
	}
	if c.Fatal == nil {
		c.Fatal = func(error) {}
	}
	if c.Clock == nil {
		c.Clock = clock.System{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.RequestIDWindow == 0 {
		c.RequestIDWindow = DefaultRequestIDWindow
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = DefaultSegmentBytes
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = DefaultSnapshotBytes
	}
	if c.ScrubWithin == 0 {
		if c.ScrubWithin = DefaultScrubWithin; c.Inline {
			c.ScrubWithin = -1
		}
	}
	if c.Observer == nil {
		c.Observer = broker.NoObserver{}
	}
	return c
}

// Node is one broker on one data folder. Its methods may be called from any goroutine; before Recover has
// returned, requests are answered with a broker.UnavailableError.
type Node struct {
	cfg      Config
	fs       vfs.FS
	logger   *slog.Logger
	lock     io.Closer
	promises *promises
	opened   time.Duration // when, by the clock's monotonic time

	identityMu sync.Mutex // guards the field below; Recover and a full sync change it
	identity   *identity

	// Set by Recover, or on a follower by a full sync, in this order; broker last, and only then are requests served.
	log    *wal.Log
	index  *index.Index
	role   replication.Role
	keeper *keeper
	room   room
	// Set with the broker.
	cleaner *cleaner
	broker  atomic.Pointer[broker.Broker]
	// sinceLimits is how many bytes of log were committed since topics were last held against their limits for it.
	sinceLimits atomic.Int64

	waiting atomic.Bool // Recover waits for the lease of the leader before
	// Of a pair: set by Recover before connections are served.
	leader   atomic.Pointer[pair.Leader]
	follower atomic.Pointer[pair.Follower]
	replica  *replica
	// unfinishedCommit is what the log of an interrupted full sync shows to be committed.
	unfinishedCommit entry.Index
	stop             chan struct{} // closed by Close
	// Of a life in a cluster.
	failed     func(error) // told when the disk cannot be trusted any more
	committed  entry.Index // what the log showed to be committed
	ended      entry.Index // where the log ended when it was opened
	checkEvery time.Duration
	checked    func(at entry.Index, fold *state.Frozen)
	corrupt    func()        // a read has met damage
	leaderURL  func() string // of another node; empty when there is none
	holding    func() bool   // others fetch files: nothing of the log's head and no snapshot may go

	backups backups // that are being taken

	scrubbing scrubbing
	scrubs    *scrubReport

	progress progress
	stopping sync.Once
	closing  sync.Once
	closeErr error
}

// Open locks the data folder and checks or makes its identity. It reads no data: Recover does. It returns
// an error that wraps vfs.ErrLocked when another process has the folder.
func Open(cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	lock, err := cfg.FS.Lock(lockFile)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := settleNames(cfg.FS); err != nil {
		lock.Close()
		return nil, err
	}
	n := &Node{cfg: cfg, fs: cfg.FS, logger: cfg.Logger, lock: lock, stop: make(chan struct{}), opened: cfg.Clock.Monotonic(), scrubs: new(scrubReport)}
	n.room.node = n
	n.scrubbing.met = make(chan struct{}, 1)
	n.corrupt = n.scrubbing.corruptMet
	if err := n.identify(); err != nil {
		lock.Close()
		return nil, err
	}
	return n, nil
}

// identify reads, or makes, what says whose data this is, and checks that it may be used as it shall.
func (n *Node) identify() (err error) {
	if err := checkUnfinished(n.fs, n.cfg.Role); err != nil {
		return err
	}
	if n.promises, err = loadPromises(n.fs); err != nil {
		return err
	}
	if _, err := n.fs.Size(stateFile); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("this data folder is that of a node of a cluster (it has a %s): start it with -role cluster; nothing was changed", stateFile))
	}
	if n.identity, err = loadIdentity(n.fs, n.cfg.Random, n.cfg.Role == Follower); err != nil {
		return err
	}
	if err := checkRole(&n.cfg, n.identity, n.promises.Promise()); err != nil {
		return err
	}
	if n.identity.LogID == "" && n.cfg.Role != Follower { // it was a follower's that never met its leader
		fresh, err := makeIdentity(n.cfg.Random)
		if err != nil {
			return err
		}
		n.identity.LogID = fresh.LogID
		return writeIdentity(n.fs, n.identity)
	}
	return nil
}

// makeFolders makes the folders that a data folder has, if they are not there; ready says that they were once. What the process
// before has named in them, and perhaps not synced, is durable then: a snapshot that is read must not be gone after the next
// power cut, when segments may have gone since. (For the log, wal.Open does that.)
func makeFolders(fsys vfs.FS, ready bool) error {
	for _, dir := range []string{logDir, snapshotDir} {
		if err := fsys.Mkdir(dir); err != nil {
			return fmt.Errorf("make folder %s: %w", dir, err)
		}
	}
	if !ready {
		if err := fsys.SyncDir("."); err != nil {
			return fmt.Errorf("sync the data folder: %w", err)
		}
	}
	if err := fsys.SyncDir(snapshotDir); err != nil {
		return fmt.Errorf("sync folder %s: %w", snapshotDir, err)
	}
	return nil
}

// Recover brings the fold up to what is committed and begins to serve. It is called once. When it fails, no
// entry was changed, and the node can only be closed.
func (n *Node) Recover() error {
	if err := makeFolders(n.fs, n.identity.Ready); err != nil {
		return err
	}
	switch n.cfg.Role {
	case Follower:
		return n.recoverFollower()
	case Leader:
		return n.recoverLeader()
	}
	if p := n.promises.Promise(); p.Epoch != 0 && !p.Alone {
		p.Alone = true
		if err := n.promises.SetPromise(p); err != nil {
			return err
		}
	}
	fold, _, err := n.load(true)
	if err != nil {
		return err
	}
	if err := n.settleRestored(fold); err != nil {
		return err
	}
	term := max(entry.StandaloneTerm, n.promises.Promise().Epoch, n.log.Tip().Term)
	return n.serve(fold, func(b *broker.Broker) (replication.Role, error) {
		return standalone.New(n.log, term, b), nil
	})
}

// load reads the newest snapshot, opens the log, and brings the fold and the index up to the end of the log or,
// unless all is committed, up to what the log itself shows to be committed, which it returns.
func (n *Node) load(all bool) (fold *state.State, committed entry.Index, err error) {
	id := n.identity.logID()
	fold, info, bad, err := snapshot.Load(n.fs, snapshotDir, id)
	if err != nil {
		return nil, 0, fmt.Errorf("load a snapshot: %w", err)
	}
	for _, b := range bad {
		n.logger.Error("a snapshot is damaged and was passed over", "file", b.Name, "err", b.Err)
	}
	n.index = n.newIndex(id)
	n.keeper = newKeeper(n, info.Index)
	if committed, err = n.openLog(id, fold, all); err != nil {
		return nil, 0, err
	}
	if !n.identity.Ready {
		n.identity.Ready = true
		if err := writeIdentity(n.fs, n.identity); err != nil {
			return nil, 0, err
		}
	}
	return fold, committed, nil
}

// serve makes the broker and the role, and lets requests in. makeRole may return nil: then the node only follows.
func (n *Node) serve(fold *state.State, makeRole func(*broker.Broker) (replication.Role, error)) error {
	from, topics := fold.Applied(), fold.LiveTopics()
	b := broker.New(broker.Config{
		Log: n.log, State: fold, Index: n.index, Clock: n.cfg.Clock, Window: n.cfg.RequestIDWindow, Reindex: n.reindex,
		Logger: n.logger, Observer: observer{n.cfg.Observer, n, n.corrupt}, Follower: n.cfg.Role == Follower,
		CheckEvery: n.checkEvery, Checked: n.checked, Leader: n.leaderURL, Retention: n.cfg.Retention,
	})
	n.keeper.broker = b
	n.cleaner = newCleaner(n, b)
	role, err := makeRole(b)
	if err != nil {
		return err
	}
	if role != nil {
		n.role = role
		if err := b.Start(role); err != nil {
			return err
		}
	}
	n.broker.Store(b)
	n.keeper.start()
	n.cleaner.start()
	n.startScrub()
	n.logger.Info("serving", "role", string(n.cfg.Role), "log_id", n.identity.LogID, "applied_index", uint64(from), "last_index", uint64(n.log.Last()),
		"topics", topics, "took", (n.cfg.Clock.Monotonic() - n.opened).Round(time.Microsecond).String())
	return nil
}

func (n *Node) newIndex(id entry.LogID) *index.Index {
	return index.New(index.Config{FS: n.fs, Dir: logDir, LogID: id})
}

// logConfig is how the log is opened.
func (n *Node) logConfig(id entry.LogID) wal.Config {
	return wal.Config{
		FS: n.fs, Dir: logDir, LogID: id, SegmentBytes: n.cfg.SegmentBytes,
		Logger: n.logger, Clock: n.cfg.Clock, Observer: n.cfg.Disk, Progress: n.progress.set, Inline: n.cfg.Inline,
	}
}

// openLog opens the log, replays what the snapshot does not hold, and fills the index. If all is false, it stops at
// what the log shows to be committed. It returns where it stopped.
func (n *Node) openLog(id entry.LogID, fold *state.State, all bool) (entry.Index, error) {
	base := fold.Applied()
	var visit func(e *entry.Entry, p entry.Position) error
	if all {
		visit = n.replaying(fold)
	}
	proven, err := ReadClean(n.fs)
	if err != nil {
		n.logger.Warn("the note of the last clean stop cannot be read; a torn tail is judged without it", "err", err)
	}
	cfg := n.logConfig(id)
	cfg.Proven, cfg.Create = proven, !n.identity.Ready && base == 0
	log, recovered, err := wal.Open(cfg, base, visit)
	if errors.Is(err, wal.ErrEmpty) {
		return 0, fmt.Errorf("the log is lost: folder %s holds no segment, though this data folder had one; restore it from a backup; nothing was changed: %w", logDir, err)
	}
	if err != nil {
		return 0, err
	}
	n.log = log
	for _, d := range recovered.Damage {
		n.logger.Error("the log is damaged where a snapshot holds what it did; its records cannot be read",
			"segment", uint64(d.Segment), "position", d.Offset, "first", uint64(d.First), "last", uint64(d.Last), "err", d.Reason)
	}
	segments := log.Segments()
	invariant.Check(segments[0].First <= base+1, "the log begins with entry %d, after the snapshot at %d", segments[0].First, base)
	if log.Last() < base {
		return 0, &lostTailError{text: fmt.Sprintf("the log ends with entry %d, before the snapshot at %d: its end is lost; restore it from a backup; nothing acknowledged was changed", log.Last(), base)}
	}
	active := segments[len(segments)-1].First
	if _, err := n.fs.Size(path.Join(logDir, index.FileName(active))); err == nil {
		// Only sealed segments get one, after the name of their successor is durable.
		return 0, &lostTailError{segment: active, text: fmt.Sprintf(
			"the last segment, %d, has an index file, so there was one after it, which is missing: restore it from a backup; nothing acknowledged was changed", active)}
	}
	committed := log.Last()
	if !all {
		committed = max(base, recovered.Commit)
		if err := n.replay(fold, committed); err != nil {
			return 0, err
		}
	}
	return committed, n.fillIndex(committed, !all)
}

// replaying returns what applies and indexes entries as they are read, in order. Of those that the fold holds
// already, it only indexes the records.
func (n *Node) replaying(fold *state.State) func(*entry.Entry, entry.Position) error {
	base := fold.Applied()
	var segment entry.Index // that the scan is in; 0 before the first
	return func(e *entry.Entry, p entry.Position) error {
		if p.Segment != segment {
			segment = p.Segment
			n.index.Begin(segment)
		}
		if e.Index > base {
			if _, err := fold.Apply(e); err != nil {
				return fmt.Errorf("apply entry %d: %w", e.Index, err)
			}
			n.keeper.due.logBytes += p.Length // no other goroutine yet; a start counts towards the next snapshot
		}
		return indexEntry(e, p, n.index.Add)
	}
}

// replay applies the entries up to one, and fills the index with all that stands in the segments they are in, and in
// the one that holds the last entry applied.
func (n *Node) replay(fold *state.State, to entry.Index) error {
	segments := n.log.Segments()
	from := segments[0].First
	for _, s := range segments {
		if s.First <= fold.Applied() {
			from = s.First
		}
	}
	visit := n.replaying(fold)
	c := n.log.NewCursor(from)
	defer c.Close()
	f := new(wal.Frames)
	for from <= to {
		if _, err := c.Next(f, to, applyBytes); err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		for i := range f.Len() {
			e := f.Entry(i)
			if err := visit(&e, f.Position(i)); err != nil {
				return err
			}
		}
		from = f.Last() + 1
	}
	return nil
}

// fillIndex gets the index of what was not read from the index files, or makes it again. Beyond an entry there is
// nothing to index yet; and if that may be cut off, the segment that holds the entry may go on behind it.
func (n *Node) fillIndex(to entry.Index, mayCut bool) error {
	segments := n.log.Segments()
	for _, s := range segments {
		if s.First > to && s.First != segments[0].First {
			break
		}
		if !s.Sealed || s.Last > to || s.Last == to && mayCut {
			n.index.Begin(s.First)
			continue
		}
		if err := n.index.Load(s.First); err != nil {
			n.logger.Info("making an index file again", "segment", uint64(s.First), "err", err)
			if err := n.reindex(s.First); err != nil {
				return err
			}
		}
	}
	return nil
}

// reindex makes the index of a sealed segment again from the segment.
func (n *Node) reindex(segment entry.Index) error {
	err := n.index.Rebuild(segment, func(add func(string, fact.Offset, int, entry.Position)) error {
		damage, err := n.log.ScanSegment(segment, func(e *entry.Entry, p entry.Position) error {
			return indexEntry(e, p, add)
		})
		for _, d := range damage {
			n.logger.Error("the log is damaged; its records cannot be read", "segment", uint64(d.Segment), "position", d.Offset,
				"first", uint64(d.First), "last", uint64(d.Last), "err", d.Reason)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("index segment %d: %w", segment, err)
	}
	n.keeper.wake() // to write the file
	return nil
}

// indexEntry adds the records of an entry to an index.
func indexEntry(e *entry.Entry, p entry.Position, add func(string, fact.Offset, int, entry.Position)) error {
	s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	if ok {
		add(string(s.Topic), s.Base, s.Count, p)
	}
	return nil
}

// observer passes on what the broker reports, and tells the keeper and the cleaner.
type observer struct {
	broker.Observer
	node    *Node
	corrupt func() // may be nil
}

// Corrupt implements broker.Observer.
func (o observer) Corrupt() {
	if o.corrupt != nil {
		o.corrupt()
	}
	o.Observer.Corrupt()
}

func (o observer) Committed(entries, records int, logBytes int64, retained bool) {
	o.node.keeper.committed(logBytes, retained)
	o.node.cleaner.committed(logBytes, retained)
	// A segment more: topics with limits may be far beyond them before the next second.
	if o.node.sinceLimits.Add(logBytes) >= o.node.cfg.SegmentBytes {
		o.node.sinceLimits.Store(0)
		if b := o.node.broker.Load(); b != nil {
			b.HoldToLimits()
		}
	}
	o.Observer.Committed(entries, records, logBytes, retained)
}

// ErrInterrupted is returned by Recover after Interrupt.
var ErrInterrupted = errors.New("the node was stopped while it waited to take over")

// Interrupt ends a wait in Recover: a takeover waits for the lease of the leader before. Recover fails then.
func (n *Node) Interrupt() { n.stopping.Do(func() { close(n.stop) }) }

// Close stops the node: waiting fetches end, writes are refused, and what is on disk is complete. Requests
// must have ended before, except fetches.
func (n *Node) Close() error {
	n.closing.Do(func() {
		var errs []error
		n.Interrupt()
		if f := n.follower.Load(); f != nil {
			errs = append(errs, f.Close())
		}
		if n.replica != nil {
			n.replica.close()
		}
		b := n.broker.Load()
		if b != nil {
			n.endScrub()
			n.cleaner.end()
			b.Close()
			n.keeper.close()
		}
		if n.role != nil {
			errs = append(errs, n.role.Close())
		}
		if b != nil {
			n.cleaner.wait() // now that the role has answered what it waits for
		}
		if b != nil && b.Err() == nil && n.log.Err() == nil {
			errs = append(errs, n.writeClean())
		}
		if n.log != nil {
			errs = append(errs, n.log.Close())
		}
		errs = append(errs, n.lock.Close())
		n.closeErr = errors.Join(errs...)
	})
	return n.closeErr
}
