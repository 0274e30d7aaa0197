// Package replication defines what a role is: the part that orders what the broker decided and says when
// it is committed. How mq runs (alone, as a pair, as a cluster) differs in nothing else, so the roles are
// interchangeable behind Role, and all pass replicationtest.Run.
//
// A publish comes here from package broker as encoded facts, and goes on to package wal; on the way back
// the role calls Applier.Committed, and the broker applies and answers.
package replication

import (
	"errors"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// ErrStopped is returned by Propose after Close. Nothing was done.
var ErrStopped = errors.New("the role was closed")

// ErrFailedBefore is returned by Propose, wrapped with the cause, when the role had failed before the call.
// Nothing was done.
var ErrFailedBefore = errors.New("the role has failed")

// Role orders entries and says when they are committed.
type Role interface {
	// Propose appends the facts gathered in f to the log, behind everything proposed before, and arranges
	// that Applier.Committed is called once they are durable where the role promises. That call may come
	// before Propose returns, from the same goroutine (standalone), or later from another one.
	//
	// One call at a time. f belongs to the role until its last entry is committed or Propose has failed.
	//
	// Errors: wal.ErrFull, ErrStopped and ErrFailedBefore mean that nothing was done, and that Propose may be
	// called again after the first. After any other error the outcome of f is unknown, and this role commits nothing
	// more, ever.
	Propose(f *wal.Frames) error
	// Status tells how things stand. It may be called at any time.
	Status() Status
	// Close stops the role and returns once no Propose runs and the log is no longer used. It does not close
	// the log.
	Close() error
}

// Applier is told what is committed. The broker is one.
type Applier interface {
	// Committed says that all entries up to and including index last are committed. Calls come one at a
	// time, with rising indexes.
	Committed(last entry.Index)
	// Failed says that nothing more will ever be committed here, for a reason that came up after Propose had
	// returned. What is proposed and not committed has an unknown outcome.
	Failed(err error)
}

// Status says how a role stands.
type Status struct {
	Term      entry.Term
	Committed entry.Index
	// Err is why the role commits nothing more, or nil.
	Err error
}

// Log is what a role needs of the log. *wal.Log is one.
type Log interface {
	Append(f *wal.Frames, term entry.Term, commit entry.Index) (entry.Index, error)
	Sync() error
	Last() entry.Index
	Err() error
}

var _ Log = (*wal.Log)(nil)
