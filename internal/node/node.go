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

// Config says what a node runs on. FS is required.
type Config struct {
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
	// Observer is told of group commits and reads; nil for nobody. Disk is told of the log's disk work.
	Observer broker.Observer
	Disk     wal.Observer
}

func (c Config) withDefaults() Config {
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
	identity *identity

	// Set by Recover, in this order; broker last, and only then are requests served.
	log    *wal.Log
	index  *index.Index
	role   replication.Role
	keeper *keeper
	broker atomic.Pointer[broker.Broker]

	progress progress
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
	n := &Node{cfg: cfg, fs: cfg.FS, logger: cfg.Logger, lock: lock}
	if n.identity, err = loadIdentity(cfg.FS, cfg.Random); err != nil {
		lock.Close()
		return nil, err
	}
	return n, nil
}

// Recover brings the fold up to the end of the log and begins to serve. It is called once. When it fails, no
// entry was changed, and the node can only be closed.
func (n *Node) Recover() error {
	started := n.cfg.Clock.Now()
	for _, dir := range []string{logDir, snapshotDir} {
		if err := n.fs.Mkdir(dir); err != nil {
			return fmt.Errorf("make folder %s: %w", dir, err)
		}
	}
	if !n.identity.Ready {
		if err := n.fs.SyncDir("."); err != nil {
			return fmt.Errorf("sync the data folder: %w", err)
		}
	}
	id := n.identity.logID()
	fold, info, bad, err := snapshot.Load(n.fs, snapshotDir, id)
	if err != nil {
		return fmt.Errorf("load a snapshot: %w", err)
	}
	for _, b := range bad {
		n.logger.Error("a snapshot is damaged and was passed over", "file", b.Name, "err", b.Err)
	}
	from := fold.Applied()
	n.index = index.New(index.Config{FS: n.fs, Dir: logDir, LogID: id})
	n.keeper = newKeeper(n, info.Index)
	if err := n.openLog(id, fold); err != nil {
		return err
	}
	if !n.identity.Ready {
		n.identity.Ready = true
		if err := writeIdentity(n.fs, n.identity); err != nil {
			return err
		}
	}
	b := broker.New(broker.Config{
		Log: n.log, State: fold, Index: n.index, Clock: n.cfg.Clock, Window: n.cfg.RequestIDWindow, Reindex: n.reindex,
		Logger: n.logger, Observer: observer{n.cfg.Observer, n.keeper},
	})
	n.keeper.broker = b
	n.role = standalone.New(n.log, b)
	if err := b.Start(n.role); err != nil {
		return fmt.Errorf("record the settings: %w", err)
	}
	n.broker.Store(b)
	n.keeper.start()
	n.logger.Info("serving", "log_id", n.identity.LogID, "snapshot_index", uint64(from), "last_index", uint64(n.log.Last()),
		"topics", fold.Topics(), "took", n.cfg.Clock.Now().Sub(started).Round(time.Microsecond).String())
	return nil
}

// openLog opens the log, replays what the snapshot does not hold, and fills the index.
func (n *Node) openLog(id entry.LogID, fold *state.State) error {
	base := fold.Applied()
	var segment entry.Index // that the scan is in; 0 before the first
	visit := func(e *entry.Entry, p entry.Position) error {
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
	proven, err := ReadClean(n.fs)
	if err != nil {
		n.logger.Warn("the note of the last clean stop cannot be read; a torn tail is judged without it", "err", err)
	}
	log, recovered, err := wal.Open(wal.Config{
		Proven: proven,
		FS:     n.fs, Dir: logDir, LogID: id, SegmentBytes: n.cfg.SegmentBytes, Create: !n.identity.Ready && base == 0,
		Logger: n.logger, Clock: n.cfg.Clock, Observer: n.cfg.Disk, Progress: n.progress.set,
	}, base, visit)
	if errors.Is(err, wal.ErrEmpty) {
		return fmt.Errorf("the log is lost: folder %s holds no segment, though this data folder had one; restore it from a backup; nothing was changed", logDir)
	}
	if err != nil {
		return err
	}
	n.log = log
	for _, d := range recovered.Damage {
		n.logger.Error("the log is damaged where a snapshot holds what it did; its records cannot be read",
			"segment", uint64(d.Segment), "position", d.Offset, "first", uint64(d.First), "last", uint64(d.Last), "err", d.Reason)
	}
	segments := log.Segments()
	invariant.Check(segments[0].First <= base+1, "the log begins with entry %d, after the snapshot at %d", segments[0].First, base)
	invariant.Check(log.Last() >= base, "the log ends with entry %d, before the snapshot at %d", log.Last(), base)
	active := segments[len(segments)-1].First
	if _, err := n.fs.Size(path.Join(logDir, index.FileName(active))); err == nil {
		// Only sealed segments get one, after the name of their successor is durable.
		return fmt.Errorf("the last segment, %d, has an index file, so there was one after it, which is missing: restore it from a backup; nothing acknowledged was changed",
			active)
	}
	// The scan has filled the index with what it read. The rest comes from index files.
	for _, s := range segments {
		if !s.Sealed {
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
	if e.Kind != fact.KindAppended {
		return nil
	}
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	add(string(a.Topic), a.Base, a.Count, p)
	return nil
}

// observer passes on what the broker reports, and tells the keeper.
type observer struct {
	broker.Observer
	keeper *keeper
}

func (o observer) Committed(entries, records int, logBytes int64, retained bool) {
	o.keeper.committed(logBytes, retained)
	o.Observer.Committed(entries, records, logBytes, retained)
}

// Close stops the node: waiting fetches end, writes are refused, and what is on disk is complete. Requests
// must have ended before, except fetches.
func (n *Node) Close() error {
	n.closing.Do(func() {
		var errs []error
		if b := n.broker.Load(); b != nil {
			b.Close()
		}
		if n.keeper != nil {
			n.keeper.close()
		}
		if n.role != nil {
			errs = append(errs, n.role.Close())
		}
		if b := n.broker.Load(); b != nil && b.Err() == nil && n.log.Err() == nil {
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
