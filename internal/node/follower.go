package node

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/wal"
)

// applyBytes is how much of the log a follower reads and applies at a time.
const applyBytes = 1 << 20

// replica is the data folder of a follower: it implements pair.Replica.
type replica struct {
	n *Node

	mu      sync.Mutex  // guards the field below
	target  entry.Index // apply up to here
	kick    chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
}

var _ pair.Replica = (*replica)(nil)

func newReplica(n *Node) *replica {
	return &replica{n: n, kick: make(chan struct{}, 1), stop: make(chan struct{})}
}

// LogID implements pair.Replica.
func (r *replica) LogID() entry.LogID {
	r.n.identityMu.Lock()
	defer r.n.identityMu.Unlock()
	return r.n.identity.logID()
}

// Log implements pair.Replica.
func (r *replica) Log() *wal.Log { return r.n.log }

// Applied implements pair.Replica.
func (r *replica) Applied() entry.Index {
	if b := r.n.broker.Load(); b != nil {
		return b.Applied()
	}
	return 0
}

// Commit implements pair.Replica.
func (r *replica) Commit(last entry.Index) {
	r.mu.Lock()
	r.target = max(r.target, last)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *replica) due() entry.Index {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.target
}

// begin starts to apply what is committed, behind what is applied. close ends it.
func (r *replica) begin(b *broker.Broker) {
	r.Commit(b.Applied())
	r.stopped.Go(func() {
		if err := r.apply(b); err != nil {
			r.n.failFollower(fmt.Errorf("apply the log: %w", err))
		}
	})
}

func (r *replica) close() {
	close(r.stop)
	r.stopped.Wait()
}

func (r *replica) apply(b *broker.Broker) error {
	c := r.n.log.NewCursor(b.Applied() + 1)
	defer c.Close()
	f := new(wal.Frames)
	for {
		to := r.due()
		for b.Applied() < to {
			select {
			case <-r.stop:
				return nil
			default:
			}
			if _, err := c.Next(f, to, applyBytes); err != nil {
				return err
			}
			if err := b.Apply(f); err != nil {
				return err
			}
		}
		select {
		case <-r.stop:
			return nil
		case <-r.kick:
		}
	}
}

// Reset implements pair.Replica.
func (r *replica) Reset(id entry.LogID, begin wal.Place) error { return full(r.reset(id, begin)) }

func (r *replica) reset(id entry.LogID, begin wal.Place) error {
	n := r.n
	if n.broker.Load() != nil {
		return errors.New("a full sync is asked for of a log that is whole")
	}
	r.mu.Lock()
	r.target = begin.Segment - 1
	r.mu.Unlock()
	if n.log != nil {
		if err := n.log.Close(); err != nil {
			return err
		}
		n.log = nil
	}
	if err := n.removeFiles(logDir, func(string) bool { return true }); err != nil {
		return err
	}
	if err := n.removeFiles(snapshotDir, func(string) bool { return true }); err != nil {
		return err
	}
	if err := n.removeFiles(".", func(name string) bool { return name == cleanFile }); err != nil {
		return err
	}
	next := *n.identity
	next.LogID, next.Ready = fmt.Sprintf("%x", id[:]), true
	if err := writeIdentity(n.fs, &next); err != nil {
		return err
	}
	n.identityMu.Lock()
	n.identity = &next
	n.identityMu.Unlock()
	cfg := n.logConfig(id)
	cfg.Create, cfg.Begin, cfg.From = true, &begin, begin.Segment
	log, _, err := wal.Open(cfg, begin.Segment-1, nil)
	if err != nil {
		return err
	}
	n.log = log
	n.index = n.newIndex(id) // of the history, as its segments come
	return nil
}

// removeFiles removes the files of a folder that pick chooses, durably.
func (n *Node) removeFiles(dir string, pick func(name string) bool) error {
	names, err := n.fs.List(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	removed := false
	for _, name := range names {
		if !pick(name) {
			continue
		}
		if err := n.fs.Remove(path.Join(dir, name)); err != nil {
			return fmt.Errorf("remove a file of %s: %w", dir, err)
		}
		removed = true
	}
	if !removed {
		return nil
	}
	if err := n.fs.SyncDir(dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// Forget implements pair.Replica.
func (r *replica) Forget(before entry.Index) error {
	if r.n.broker.Load() != nil {
		return nil // the log is whole, and its head is the keeper's
	}
	return r.n.removeFiles(logDir, func(name string) bool {
		number, _, _ := strings.Cut(name, ".")
		first, err := strconv.ParseUint(number, 10, 64)
		return err == nil && first > 0 && entry.Index(first) < before
	})
}

// Snapshot implements pair.Replica.
func (r *replica) Snapshot(at entry.Index, bytes int64) (pair.Import, error) {
	im, err := snapshot.NewImport(r.n.fs, snapshotDir, r.LogID(), at, bytes)
	if err != nil {
		return nil, full(err)
	}
	return snapshotImport{im}, nil
}

type snapshotImport struct{ *snapshot.Import }

func (im snapshotImport) Write(p []byte) error { return full(im.Import.Write(p)) }

func (im snapshotImport) Finish() error {
	err := im.Import.Finish()
	if errors.Is(err, snapshot.ErrCorrupt) {
		return fmt.Errorf("%w: %w", pair.ErrDamaged, err)
	}
	return full(err)
}

// full marks an error that says that the disk is full as one that passes.
func full(err error) error {
	if err != nil && passing(err) {
		return fmt.Errorf("%w: %w", wal.ErrFull, err)
	}
	return err
}

// Segment implements pair.Replica.
func (r *replica) Segment(first, last entry.Index, bytes int64) (pair.Import, error) {
	im, err := r.n.log.Import(first, bytes)
	if err != nil {
		return nil, err
	}
	return &segmentImport{Import: im, r: r, first: first, last: last}, nil
}

const (
	// importSyncBytes is how much of a segment is written between syncs, so that those of the log do not queue behind
	// all of it.
	importSyncBytes = 8 << 20
	// importDirtyMax is how much may wait for a sync that runs.
	importDirtyMax = 32 << 20
)

// segmentImport syncs in the background, so that what comes is written meanwhile.
type segmentImport struct {
	*wal.Import
	r           *replica
	first, last entry.Index
	unsynced    int
	syncing     chan error // receives when a sync that runs has ended; nil when none runs
}

// Write implements pair.Import.
func (im *segmentImport) Write(p []byte) error {
	if err := im.Import.Write(p); err != nil {
		return err
	}
	if im.unsynced += len(p); im.unsynced < importSyncBytes {
		return nil
	}
	if im.syncing != nil {
		if im.unsynced < importDirtyMax && len(im.syncing) == 0 {
			return nil
		}
		if err := im.synced(); err != nil {
			return err
		}
	}
	im.unsynced = 0
	im.syncing = make(chan error, 1)
	go func(done chan<- error) { done <- im.Import.Sync() }(im.syncing) // awaited by synced
	return nil
}

// synced waits for the sync that runs, if one does.
func (im *segmentImport) synced() error {
	if im.syncing == nil {
		return nil
	}
	err := <-im.syncing
	im.syncing = nil
	return err
}

// Finish verifies the segment and makes its index on the way.
func (im *segmentImport) Finish() error {
	if err := im.synced(); err != nil {
		return err
	}
	var finish error
	visited := false
	x := im.r.n.index
	err := x.Rebuild(im.first, func(add func(string, fact.Offset, int, entry.Position)) error {
		_, finish = im.Import.Finish(im.last, func(e *entry.Entry, p entry.Position) error {
			visited = true
			return indexEntry(e, p, add)
		})
		if finish == nil && !visited { // it was complete before: its index is made when all is there
			finish = errAlready
		}
		return finish
	})
	switch {
	case finish == errAlready:
		return nil
	case finish != nil:
		return finish
	case err != nil:
		return err
	}
	if err := x.Flush(); err != nil && !passing(err) {
		return fmt.Errorf("write an index file: %w", err)
	}
	return nil
}

var errAlready = errors.New("the segment was complete before")

// Close implements pair.Import.
func (im *segmentImport) Close() {
	im.synced() // an error is sticky in the log
	im.Import.Close()
}

// Whole implements pair.Replica.
func (r *replica) Whole() error {
	if r.n.broker.Load() != nil { // it was whole, but there was no room to note that
		return nil
	}
	if err := r.n.log.Prepend(); err != nil {
		return err
	}
	return r.n.becomeWhole(r.due())
}

// SaveCut implements pair.Replica.
func (r *replica) SaveCut(after entry.Index) error { return full(r.n.saveCut(after)) }
