// Package standalone is the role of a node that is alone: an entry is committed when it is durable here.
// It starts no goroutine: the caller of Propose writes and syncs, then tells the applier.
package standalone

import (
	"context"
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
	term    entry.Term

	// proposing is held by Start and Propose, so that Close can wait for them: the one mutex held across I/O.
	proposing sync.Mutex

	mu        sync.Mutex // guards the fields below; never held across a write or sync
	committed entry.Index
	started   bool
	closed    bool
	err       error // sticky
}

var _ replication.Role = (*Role)(nil)

// New returns a role over a log all of whose entries are durable and applied. Its entries get a term, which must not be
// below that of the last one.
func New(log replication.Log, term entry.Term, applier replication.Applier) *Role {
	return &Role{log: log, term: term, applier: applier, committed: log.Last()}
}

// Start makes the applier lead before it returns: alone, all that is in the log is committed.
func (r *Role) Start() error {
	r.proposing.Lock() // so that Close waits
	defer r.proposing.Unlock()
	r.mu.Lock()
	closed := r.closed
	r.started = true
	r.mu.Unlock()
	if closed {
		return replication.ErrStopped
	}
	r.applier.Lead()
	return nil
}

// Propose appends and syncs the entries, then reports them committed, all before it returns.
func (r *Role) Propose(f *wal.Frames) error {
	r.proposing.Lock()
	defer r.proposing.Unlock()
	r.mu.Lock()
	commit, started, closed, err := r.committed, r.started, r.closed, r.err
	r.mu.Unlock()
	if err == nil {
		err = r.log.Err() // the log may have failed by itself, while it prepared a segment
	}
	switch {
	case closed:
		return replication.ErrStopped
	case err != nil:
		return fmt.Errorf("%w: %w", replication.ErrFailedBefore, err)
	case !started:
		return &replication.UnavailableError{Reason: "the node is starting"}
	}
	first, err := r.log.Append(f, r.term, commit)
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

// MayAnswer implements replication.Role: nobody can have replaced a node that is alone.
func (r *Role) MayAnswer() bool { return true }

// Confirm implements replication.Role, likewise.
func (r *Role) Confirm(context.Context) error { return nil }

// Status implements replication.Role.
func (r *Role) Status() replication.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return replication.Status{Term: r.term, Committed: r.committed, Err: r.err}
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
