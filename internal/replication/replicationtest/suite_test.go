package replicationtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

// The suite fits a role that leads some time after Start and commits from a goroutine of its own.
func TestRunWithALateRole(t *testing.T) {
	Run(t, func(_ *testing.T, log *wal.Log, applier replication.Applier) replication.Role {
		return &lateRole{log: log, applier: applier, committed: log.Last(), wake: make(chan struct{}, 1)}
	})
}

// lateRole is a role whose Propose returns before anything is durable.
type lateRole struct {
	log     *wal.Log
	applier replication.Applier
	wake    chan struct{} // capacity 1: there is something to commit, or to close
	running sync.WaitGroup

	mu        sync.Mutex // guards the fields below; held by who appends or syncs, which the log does not take at once
	leads     bool
	closed    bool
	committed entry.Index
	err       error
}

func (r *lateRole) Start() error {
	r.running.Go(r.run) // ended and awaited by Close
	r.signal()
	return nil
}

func (r *lateRole) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run leads, and then commits what is appended.
func (r *lateRole) run() {
	for range r.wake {
		r.mu.Lock()
		first, closed := !r.leads, r.closed
		r.leads = true
		committed, last := r.committed, r.log.Last()
		r.mu.Unlock()
		if closed {
			if committed < last {
				r.applier.Suspend("the role was closed")
			}
			return
		}
		if first {
			r.applier.Lead()
		}
		if last == committed {
			continue
		}
		r.mu.Lock()
		last = r.log.Last()
		err := r.log.Sync()
		if err != nil {
			r.err = err
		} else {
			r.committed = last
		}
		r.mu.Unlock()
		if err != nil {
			r.applier.Failed(err)
			continue
		}
		r.applier.Committed(last)
	}
}

func (r *lateRole) Propose(f *wal.Frames) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	if err == nil {
		err = r.log.Err()
	}
	switch {
	case r.closed:
		return replication.ErrStopped
	case err != nil:
		return fmt.Errorf("%w: %w", replication.ErrFailedBefore, err)
	case !r.leads:
		return &replication.UnavailableError{Reason: "not leading"}
	}
	if _, err := r.log.Append(f, 1, r.committed); err != nil {
		if !errors.Is(err, wal.ErrFull) {
			r.err = err
		}
		return err
	}
	r.signal()
	return nil
}

func (r *lateRole) MayAnswer() bool { return true }

func (r *lateRole) Confirm(context.Context) error { return nil }

func (r *lateRole) Status() replication.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return replication.Status{Term: 1, Committed: r.committed, Err: r.err}
}

func (r *lateRole) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.signal()
	r.running.Wait()
	return nil
}
