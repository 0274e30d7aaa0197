package node

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	// snapshotsKept is how many snapshots stay: if the newest is damaged, the one before still starts the node.
	snapshotsKept = 2
	// ballastMin is the least disk space kept in a file that is given up when the disk is full, so that a
	// snapshot can be written, which lets the log's head be dropped. It grows with the snapshots: twice the
	// newest, because the state may have grown since.
	ballastMin  = 8 << 20
	ballastFile = "ballast"
	ballastTmp  = "ballast.tmp"
	// snapshotRetry is how long after a snapshot that found no room the next is tried.
	snapshotRetry = 500 * time.Millisecond
	// ballastEvery is how often a missing ballast is tried again, and looked what can be dropped.
	ballastEvery = 5 * time.Second
	// snapshotShare says when a snapshot is taken only to drop segments: when they are at least one part in so many of it.
	// A large fold is not written again for each segment, then, while the disk has room.
	snapshotShare = 8
)

// keeper looks after what is derived from the log: snapshots, index files, dropped segments, spare room.
// One goroutine does it in the background; Snapshot may be called from others.
type keeper struct {
	node   *Node
	broker *broker.Broker // set before start

	kick    chan struct{} // capacity 1: something may be due
	stop    chan struct{}
	stopped sync.WaitGroup

	mu      sync.Mutex // one at a time: snapshot and what follows from it; guards the fields below
	ballast int64      // bytes of the spare file; 0 without one
	gaveUp  bool       // it was given up, and not made again
	bytes   int64      // of the newest snapshot
	// covered is the index up to which every kept snapshot holds the fold, so that the log up to it is needed
	// for its records only. With fewer snapshots than are kept it is 0: nothing may go.
	covered entry.Index
	held    int  // full syncs that read the history: nothing of it may go
	closed  bool // no more snapshots

	due    dueAt
	newest atomic.Uint64 // index of the newest snapshot; 0 for none. Written under mu.
}

// dueAt is what committed notes and the keeper's goroutine acts on.
type dueAt struct {
	mu       sync.Mutex
	logBytes int64
	retained bool
	dropping bool      // a segment could be dropped if a kept snapshot were newer
	idle     bool      // the same, and nothing was logged since the newest
	notYet   time.Time // a snapshot has failed for want of room: the next is not due before
}

func newKeeper(n *Node, newest entry.Index) *keeper {
	k := &keeper{node: n, kick: make(chan struct{}, 1), stop: make(chan struct{})}
	k.newest.Store(uint64(newest))
	return k
}

func (k *keeper) start() {
	k.stopped.Go(k.run) // ended and awaited by close
	k.wake()
}

func (k *keeper) close() {
	close(k.stop)
	k.stopped.Wait()
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
}

func (k *keeper) wake() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// lookAgain makes the keeper look what can be dropped.
func (k *keeper) lookAgain() {
	k.due.mu.Lock()
	k.due.retained = true
	k.due.mu.Unlock()
	k.wake()
}

// committed is called for each group commit. It must be quick.
func (k *keeper) committed(logBytes int64, retained bool) {
	k.due.mu.Lock()
	k.due.logBytes += logBytes
	k.due.retained = k.due.retained || retained
	if k.due.idle {
		k.due.dropping, k.due.idle = true, false
	}
	due := k.due.retained || k.due.snapshot(k.node)
	k.due.mu.Unlock()
	if due {
		k.wake()
	}
}

// awaitsEntry reports whether segments could be dropped if there was one more snapshot, which needs one more entry: the log is
// idle.
func (k *keeper) awaitsEntry() bool {
	k.due.mu.Lock()
	defer k.due.mu.Unlock()
	return k.due.idle && k.newest.Load() == uint64(k.broker.Applied())
}

// snapshot reports whether one is due. Called with mu held.
func (d *dueAt) snapshot(n *Node) bool {
	due := d.dropping || d.logBytes >= n.cfg.SnapshotBytes
	return due && (d.notYet.IsZero() || !n.cfg.Clock.Now().Before(d.notYet))
}

func (k *keeper) run() {
	timer := k.node.cfg.Clock.NewTimer(ballastEvery)
	defer timer.Stop()
	k.mu.Lock()
	err := k.prune()
	k.mu.Unlock()
	for {
		if err == nil || passing(err) {
			err = k.tend()
		}
		if err != nil && !passing(err) {
			k.node.fail(err)
			return
		}
		select {
		case <-k.stop:
			return
		case <-k.kick:
		case <-timer.C():
			timer.Reset(ballastEvery)
			k.lookAgain() // who held the history may be gone without a word
		}
	}
}

// tend does what is due. A full disk is no error: it is tried again.
func (k *keeper) tend() error {
	if err := k.node.index.Flush(); err != nil && !passing(err) {
		return fmt.Errorf("write an index file: %w", err)
	}
	k.due.mu.Lock()
	snapshotDue, retained := k.due.snapshot(k.node), k.due.retained
	k.due.retained = false
	k.due.mu.Unlock()
	if snapshotDue {
		if err := k.snapshot(); err != nil {
			return err
		}
	}
	if err := k.afterRetain(retained); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keepBallast()
}

// afterRetain drops what a retain has freed. Where only old snapshots stand in the way, it takes a new one.
func (k *keeper) afterRetain(retained bool) error {
	if !retained {
		return nil
	}
	k.mu.Lock()
	err := k.drop()
	k.mu.Unlock()
	k.due.mu.Lock()
	blocked := k.due.dropping
	k.due.mu.Unlock()
	if err != nil || !blocked {
		return err
	}
	return k.snapshot()
}

// snapshot takes one, and leaves what passes to a later try.
func (k *keeper) snapshot() error {
	_, err := k.Snapshot()
	if unavailable := (*broker.UnavailableError)(nil); errors.Is(err, broker.ErrStorageFull) || errors.As(err, &unavailable) {
		return nil
	}
	return err
}

// Snapshot writes the fold as it is now and returns the index it covers. Publishers do not wait for it.
func (k *keeper) Snapshot() (entry.Index, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return 0, &broker.UnavailableError{Reason: "the node is shutting down"}
	}
	frozen := k.broker.Freeze()
	k.due.mu.Lock()
	counted := k.due.logBytes
	k.due.mu.Unlock()
	err := k.write(frozen)
	if noSpace(err) && k.mayUseBallast() {
		if err = k.releaseBallast(); err == nil {
			err = k.write(frozen)
		}
	}
	if passing(err) {
		k.due.mu.Lock()
		first := k.due.notYet.IsZero()
		k.due.notYet = k.node.cfg.Clock.Now().Add(snapshotRetry)
		k.due.mu.Unlock()
		if first {
			k.node.logger.Warn("a snapshot cannot be written now and is tried again", "index", uint64(frozen.Index()), "err", err)
		}
		if noSpace(err) {
			return 0, broker.ErrStorageFull
		}
		return 0, &broker.UnavailableError{Reason: "a snapshot cannot be written now: " + err.Error()}
	}
	if err != nil {
		return 0, fmt.Errorf("write a snapshot: %w", err)
	}
	k.due.mu.Lock()
	k.due.logBytes -= counted
	k.due.notYet = time.Time{}
	k.due.mu.Unlock()
	return frozen.Index(), k.drop()
}

// write writes a snapshot, unless there is one at that index, and removes those that are not kept.
func (k *keeper) write(frozen *state.Frozen) error {
	if uint64(frozen.Index()) != k.newest.Load() {
		info, err := snapshot.Write(k.node.fs, snapshotDir, k.node.identity.logID(), frozen)
		if err != nil {
			return err
		}
		k.bytes = info.Bytes
		k.newest.Store(uint64(frozen.Index()))
	}
	return k.prune()
}

// prune removes the snapshots that are not kept, and what crashes left of others.
func (k *keeper) prune() error {
	if k.holding() {
		return nil
	}
	kept, err := snapshot.Prune(k.node.fs, snapshotDir, k.node.identity.logID(), snapshotsKept)
	if err != nil {
		return err
	}
	k.covered = 0
	if len(kept) > 0 {
		k.bytes = kept[0].Bytes
	}
	if len(kept) == snapshotsKept {
		k.covered = kept[len(kept)-1].Index
	}
	return nil
}

// drop removes segments from the head of the log in which nothing lives and which no kept snapshot needs.
func (k *keeper) drop() error {
	if k.holding() {
		return nil
	}
	before, blocked := entry.Index(0), int64(0)
	for _, s := range k.node.log.Segments() {
		if !s.Sealed || k.alive(s.First) {
			break
		}
		if s.Last > k.covered {
			blocked += s.Bytes
		} else {
			before = s.Last + 1
		}
	}
	blocking := blocked > 0 && (blocked >= k.bytes/snapshotShare || k.node.room.low.Load() || k.node.log.Full())
	idle := k.newest.Load() == uint64(k.broker.Applied()) // another snapshot would be the same as the newest
	k.due.mu.Lock()
	k.due.dropping, k.due.idle = blocking && !idle, blocking && idle
	k.due.mu.Unlock()
	if before == 0 {
		return nil
	}
	n, err := k.node.log.DropBefore(before)
	if err != nil {
		return fmt.Errorf("drop segments: %w", err)
	}
	k.node.logger.Info("dropped segments", "count", n, "before", uint64(before))
	if err := k.node.index.Drop(before); err != nil {
		return fmt.Errorf("drop index files: %w", err)
	}
	k.node.cleaner.wake()
	return nil
}

// holding reports whether other nodes, or backups, read the history, so that nothing of it may go. On a full disk they come
// second: files vanish then, and they begin anew. Called with mu held.
func (k *keeper) holding() bool {
	n := k.node
	others := n.holding != nil && n.holding() || n.backups.held(n.cfg.Clock.Monotonic())
	return k.held > 0 || others && !n.log.Full()
}

// mayUseBallast reports whether the ballast may be given up for a snapshot: if that will give back more than it takes, or if
// the log could not take the room, so that it is there for the next snapshot, too.
func (k *keeper) mayUseBallast() bool {
	usage, err := k.node.fs.Usage()
	return err == nil && k.ballast > 0 && usage.FreeBytes+k.ballast >= k.bytes+k.bytes/4+1<<20 &&
		(usage.FreeBytes+k.ballast < k.node.cfg.SegmentBytes || k.headIsDead())
}

// headIsDead reports whether the oldest segment could be dropped if only it were covered.
func (k *keeper) headIsDead() bool {
	head := k.node.log.Segments()[0]
	return head.Sealed && !k.alive(head.First)
}

func (k *keeper) alive(segment entry.Index) bool {
	return k.node.index.Alive(segment, func(topic string) (start fact.Offset) {
		k.broker.View(func(s *state.State) { start = startOf(s, topic) })
		return start
	})
}

// keepBallast makes the spare file when there is ample room and it is missing or too small.
func (k *keeper) keepBallast() error {
	fsys := k.node.fs
	size, err := fsys.Size(ballastFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for the ballast: %w", err)
	}
	k.ballast = size // 0 when there is none
	want := k.ballastWanted()
	defer func() { // one that was given up comes before publishes
		if k.ballast > 0 {
			k.gaveUp = false
		}
		missing := int64(0)
		if k.gaveUp {
			missing = want
		}
		k.node.log.KeepFree(missing)
	}()
	if size >= want {
		return nil
	}
	usage, err := fsys.Usage()
	if err != nil {
		return fmt.Errorf("ask for the room on the disk: %w", err)
	}
	ample := 2*want + k.node.cfg.SegmentBytes
	if k.gaveUp {
		ample = want + k.node.cfg.SegmentBytes
	}
	if usage.FreeBytes < ample || k.node.log.NextFull() {
		return nil
	}
	err = replaceFile(fsys, ballastTmp, ballastFile, func(f vfs.File) error { return fillZeros(f, want) })
	if noSpace(err) {
		if err := fsys.Remove(ballastTmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a partial ballast: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the ballast: %w", err)
	}
	k.ballast = want
	return nil
}

// spareSegment gives up the ballast where that, and only that, makes room for a segment: index files and snapshots have taken
// what a segment that was dropped has given.
func (k *keeper) spareSegment() {
	k.mu.Lock()
	defer k.mu.Unlock()
	usage, err := k.node.fs.Usage()
	need := k.node.cfg.SegmentBytes + k.node.cfg.SegmentBytes/16
	if err != nil || k.ballast == 0 || usage.FreeBytes >= need || usage.FreeBytes+k.ballast < need {
		return
	}
	if err := k.releaseBallast(); err != nil {
		k.node.fail(err)
	}
}

// ballastWanted is how large the ballast should be: room for two snapshots.
func (k *keeper) ballastWanted() int64 { return max(ballastMin, 2*k.bytes) }

func (k *keeper) releaseBallast() error {
	k.ballast, k.gaveUp = 0, true
	// What it gives is not for publishes, from the first moment on.
	k.node.log.KeepFree(k.ballastWanted())
	if err := k.node.fs.Remove(ballastFile); err != nil {
		return fmt.Errorf("give up the ballast: %w", err)
	}
	k.node.logger.Warn("the disk is full: gave up the ballast, to get room back")
	return nil
}

// passing reports whether err says nothing about the disk but that now is not the time.
func passing(err error) bool {
	if errors.Is(err, wal.ErrFailed) {
		return false // for good, whatever caused it
	}
	return noSpace(err) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// fillZeros writes zeros, a piece at a time, so that other syncs do not queue behind them.
func fillZeros(f vfs.File, size int64) error {
	const piece = 1 << 20
	zeros := make([]byte, piece)
	for at := int64(0); at < size; at += piece {
		if _, err := f.WriteAt(zeros[:min(piece, size-at)], at); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
