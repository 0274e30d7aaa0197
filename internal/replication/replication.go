// Package replication defines what a role is: the part that orders what the broker decided and says when
// it is committed. How mq runs (alone, as a pair, as a cluster) differs in nothing else, so the roles are
// interchangeable behind Role, and all pass replicationtest.Run.
//
// A publish comes here from package broker as encoded facts, and goes on to package wal; on the way back
// the role calls Applier.Committed, and the broker applies and answers.
package replication

import (
	"context"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// Role orders entries and says when they are committed. It may be called from any goroutine.
type Role interface {
	// Start begins. It is called once, before the first Propose, and returns an error when the role cannot run.
	// The role calls Applier.Lead when, and if, the applier may decide: before Start returns (standalone) or
	// later from another goroutine.
	Start() error
	// Propose appends the facts gathered in f to the log, behind everything proposed before, and arranges
	// that Applier.Committed is called once they are durable where the role promises. That call may come
	// before Propose returns, from the same goroutine (standalone), or later from another one.
	//
	// One call at a time. f belongs to the role until its last entry is committed or Propose has failed;
	// after Applier.Failed, for good.
	//
	// Errors: wal.ErrFull, ErrUnavailable, ErrStopped and ErrFailedBefore mean that nothing was done, and that
	// Propose may be called again after the first two. ErrUnavailable comes in an *UnavailableError that says
	// why; it is also the answer before Applier.Lead. After any other error the outcome of f is unknown, and
	// this role commits nothing more, ever.
	Propose(f *wal.Frames) error
	// MayAnswer reports whether what was reported committed may still be acknowledged to clients. It is asked
	// right before an answer "done" is given: a leader that another may have replaced meanwhile must not give it.
	// It is cheap.
	MayAnswer() bool
	// Confirm returns nil once it is certain that, at some moment after the call, no other node led, and that all that
	// was committed by then has been applied: what the applier reads then is not old. Where the lead can be lost without
	// knowing, it asks the others, once for all who wait. An *UnavailableError says that it is not known, and why: before
	// Applier.Lead, after Applier.Follow, without a majority. When ctx ends it returns its error.
	Confirm(ctx context.Context) error
	// Status tells how things stand. It may be called at any time.
	Status() Status
	// Close stops the role and returns once no Propose runs, the applier is not called any more, and the log is
	// no longer used. Of what is in flight then, the applier has been told by Committed, Suspend or Failed. It
	// does not close the log. It may be called again, and when Start was not.
	Close() error
}

// Applier is told what is committed, and when to decide. The broker is one.
//
// Calls come one at a time, from whatever goroutine, but Failed, which may come at any time and more than once.
// They take no longer than applying does, and never call the role. Committed, Suspend and Failed may come while
// a Propose runs.
type Applier interface {
	// Committed says that all that was proposed, up to and including index last, is committed. Indexes rise.
	Committed(last entry.Index)
	// Apply hands over committed entries that the applier did not propose: those that a follower gets, and those
	// found in the log at the start. They come in order, each once, and none between Lead and Follow. f is valid only during
	// the call; its entries have their positions.
	Apply(f *wal.Frames) error
	// Lead says that everything in the log is committed and applied, and that from now on the applier decides and
	// proposes. After a Suspend it says that proposals are taken again, whatever is still in flight.
	Lead()
	// Suspend says that nothing can be committed for now, and why, as part of a sentence ("the follower is
	// away"). What is in flight stays so: Committed may still report it. Whoever waits for it should be told
	// that the outcome is unknown. Before the first Lead it says why there was none yet.
	Suspend(reason string)
	// Follow says that this node does not decide any more, and why, as part of a sentence ("another node leads"). What was
	// proposed and not reported by Committed is the applier's no longer: it may be committed all the same, and comes by
	// Apply then, like all else from now on. Whoever waits for it is told that the outcome is unknown. Lead may come again.
	// It may come while a Propose runs, which then fails or has its outcome here.
	Follow(reason string)
	// Failed says that nothing more will ever be committed here, for a reason that came up after Propose had
	// returned. What is proposed and not committed has an unknown outcome.
	Failed(err error)
}

// Status says how a role stands.
type Status struct {
	Term entry.Term
	// Committed is the last entry known to be committed: no less than the applier has been told.
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
