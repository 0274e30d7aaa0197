// Package standalone is the role of a node that is alone: an entry is committed when it is durable here.
// It starts no goroutine: the caller of Propose writes and syncs, then tells the applier.
package standalone

import (
	"errors"
	"fmt"
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

// Role implements replication.Role.
type Role struct {
	log     replication.Log
	applier replication.Applier

	// proposing is held by Propose, so that Close can wait for it: the one mutex held across I/O.
	proposing sync.Mutex

	mu        sync.Mutex // guards the fields below; never held across a write or sync
	committed entry.Index
	closed    bool
	err       error // sticky
}

var _ replication.Role = (*Role)(nil)

// New returns a role over a log all of whose entries are durable and applied.
func New(log replication.Log, applier replication.Applier) *Role {
	return &Role{log: log, applier: applier, committed: log.Last()}
}

// Propose appends and syncs the entries, then reports them committed, all before it returns.
func (r *Role) Propose(f *wal.Frames) error {
	r.proposing.Lock()
	defer r.proposing.Unlock()
	r.mu.Lock()
	commit, closed, err := r.committed, r.closed, r.err
	r.mu.Unlock()
	if err == nil {
		err = r.log.Err() // the log may have failed by itself, while it prepared a segment
	}
	switch {
	case closed:
		return replication.ErrStopped
	case err != nil:
		return fmt.Errorf("%w: %w", replication.ErrFailedBefore, err)
	}
	first, err := r.log.Append(f, entry.StandaloneTerm, commit)
	if errors.Is(err, wal.ErrFull) {
		return err
	}
	if err == nil {
		err = r.log.Sync()
	}
	if err != nil {
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		return err
	}
	last := first + entry.Index(f.Len()) - 1
	r.mu.Lock()
	r.committed = last
	r.mu.Unlock()
	r.applier.Committed(last)
	return nil
}

// Status implements replication.Role.
func (r *Role) Status() replication.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return replication.Status{Term: entry.StandaloneTerm, Committed: r.committed, Err: r.err}
}

// Close implements replication.Role.
func (r *Role) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.proposing.Lock()
	defer r.proposing.Unlock()
	return nil
}
