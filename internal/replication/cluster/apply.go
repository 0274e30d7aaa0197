package cluster

import (
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/wal"
)

// applyBytes is how much of the log is read and applied at a time.
const applyBytes = 1 << 20

// advance sees to it that the applier is told what has changed. It waits for nobody: should another goroutine be calling
// the applier, that one tells it.
func (r *Role) advance() {
	r.news.Store(true)
	for r.news.Load() && r.applying.TryLock() {
		r.news.Store(false)
		r.tell()
		r.applying.Unlock()
	}
}

// tell tells the applier, while it leads, what has changed: what is committed, that it does not lead any more, that the
// disk does not answer, or does again. What it is to apply while it does not lead is for applyLoop. Called with applying
// held.
func (r *Role) tell() {
	for !r.closing {
		r.mu.Lock()
		led, leading, commit, reported, suspend := r.led, r.leading, r.commit, r.reported, r.suspend
		usable, reason := r.usable() == nil, r.reason
		lost := led != 0 && led != leading
		if lost && usable { // else Close tells of what is in flight, or fail has
			// Only what was committed while this node led is what the applier has proposed.
			invariant.Check(r.lostBy == led, "the lead of term %d was lost, and what is known is of term %d", led, r.lostBy)
			commit = r.lostAt
			r.led = 0
		}
		r.suspend = ""
		r.mu.Unlock()
		if !usable {
			return
		}
		if suspend != "" {
			r.suspended = true
			r.cfg.Applier.Suspend(suspend)
		}
		if led == 0 {
			signal(r.apply)
			return
		}
		if commit > reported {
			r.cfg.Applier.Committed(commit)
			r.report(commit)
		}
		switch {
		case lost:
			r.suspended = true
			r.cfg.Applier.Follow(reason)
			signal(r.apply)
			return
		case r.suspended && !r.stalled.Load():
			r.suspended = false
			r.cfg.Applier.Lead()
		case commit <= reported:
			return
		}
	}
}

// report notes what the applier has been told, and wakes those who wait for it.
func (r *Role) report(index entry.Index) {
	r.mu.Lock()
	r.reported = index
	waited := r.round != nil && r.usable() == nil
	var err error
	if waited {
		err = r.guard(func() error {
			r.settle(r.round)
			r.ready()
			return nil
		})
	}
	r.mu.Unlock()
	if err != nil {
		r.stopHere(err)
	}
	if waited {
		r.send()
	}
}

// applyLoop applies what others have decided, and makes the applier lead when all is applied.
func (r *Role) applyLoop() {
	a := applying{role: r}
	defer a.close()
	for {
		select {
		case <-r.stop:
			return
		case <-r.apply:
		}
		for more := true; more; {
			var err error
			if more, err = a.step(); err != nil {
				r.stopHere(err)
				return
			}
			if r.news.Load() { // somebody came while the applier was busy
				r.advance()
			}
		}
	}
}

// applying is where applyLoop is in the log.
type applying struct {
	role   *Role
	cursor *wal.Cursor
	next   entry.Index // that cursor reads
	frames wal.Frames
}

func (a *applying) close() {
	if a.cursor != nil {
		a.cursor.Close()
	}
}

// step applies a stretch of the log, or makes the applier lead. It reports whether there may be more to do.
func (a *applying) step() (more bool, err error) {
	r := a.role
	r.mu.Lock()
	usable, led, leading := r.usable() == nil, r.led, r.leading
	commit, reported := r.commit, r.reported
	ready := leading != 0 && reported == commit && commit >= r.marker
	r.mu.Unlock()
	switch {
	case !usable || led != 0:
		return false, nil
	case reported < commit:
		return true, a.apply(reported+1, commit)
	case ready && !r.stalled.Load():
		r.begin(leading)
		r.advance() // the lead may have been lost meanwhile
	}
	return false, nil
}

// apply hands entries from the log to the applier.
func (a *applying) apply(from, to entry.Index) error {
	r := a.role
	if a.cursor == nil || a.next != from {
		a.close()
		a.cursor, a.next = r.cfg.Log.NewCursor(from), from
	}
	if _, err := a.cursor.Next(&a.frames, to, applyBytes); err != nil {
		return fmt.Errorf("read what is to be applied: %w", err)
	}
	r.applying.Lock()
	defer r.applying.Unlock()
	r.mu.Lock()
	mine := r.usable() == nil && r.led == 0 && r.reported+1 == from // else it was reported meanwhile, as this node led
	r.mu.Unlock()
	if r.closing || !mine {
		a.close()
		a.cursor = nil
		return nil
	}
	last := a.frames.Last()
	if err := r.cfg.Applier.Apply(&a.frames); err != nil {
		return fmt.Errorf("apply entries %d to %d: %w", from, last, err)
	}
	a.next = last + 1
	r.report(last)
	return nil
}

// begin makes the applier lead in a term.
func (r *Role) begin(term entry.Term) {
	r.applying.Lock()
	defer r.applying.Unlock()
	r.mu.Lock()
	ok := r.usable() == nil && r.leading == term && r.led == 0
	if ok {
		r.led = term
	}
	r.mu.Unlock()
	if !ok || r.closing {
		return
	}
	r.suspended = false
	r.cfg.Applier.Lead()
}
