package broker

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
)

// touch tells markIdle that entries were committed.
func (b *Broker) touch() { signal(b.dirty) }

// signal sends to a channel of capacity 1, unless it holds a value already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// markIdle writes a marker once nothing has been committed for a while, and one at the end. The marker says,
// on disk, that all before it was committed: without it, damage to the last entry of an idle log looks like
// a torn write that nobody was told of. It also records the settings each time that Lead was called, if Start
// has not; if that fails, what makes it fail has been reported.
func (b *Broker) markIdle() {
	timer := b.clock.NewTimer(b.idle)
	defer timer.Stop()
	for {
		select {
		case <-b.dirty:
		case <-b.led:
			b.recordSettings()
			continue
		case <-b.stop:
			b.mark()
			return
		}
		for quiet, seen := false, b.Applied(); !quiet; {
			timer.Reset(b.idle)
			select {
			case <-timer.C():
				now := b.Applied()
				quiet, seen = now == seen, now
			case <-b.led:
				b.recordSettings()
			case <-b.stop:
				quiet = true
			}
		}
		b.mark()
	}
}

// mark records the settings, if they still differ, and writes a marker, unless the last entry is one. That it
// fails costs nothing but certainty about the last entries, and what makes it fail has been reported, so the
// errors are dropped.
func (b *Broker) mark() {
	b.recordSettings()
	if b.Applied() == entry.Index(b.marked.Load()) {
		return
	}
	o := b.ops.get(opMarker)
	b.do(o)
	b.ops.put(o)
}

// Advance logs a marker, if this node leads, whatever the last entry is: so that a snapshot can be taken behind the last one.
// It may use what is kept back on a full disk, since a snapshot lets segments go. Errors are dropped, as those of the other
// markers are.
func (b *Broker) Advance() {
	if !b.Leads() {
		return
	}
	o := b.ops.get(opMarker)
	o.freeing = true
	b.do(o)
	b.ops.put(o)
}

// checkOften has the fold checked, every checkEvery, if anything but markers was committed since it was last. That it cannot
// be now is no matter: what is in the way has been reported, and the next time comes.
func (b *Broker) checkOften() {
	timer := b.clock.NewTimer(b.checkEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-b.stop:
			return
		}
		if b.unchecked.Load() && b.tenure.Load() != nil {
			o := b.ops.get(opChecked)
			b.do(o)
			b.ops.put(o)
		}
		timer.Reset(b.checkEvery)
	}
}

// check hands on the fold as facts of KindChecked left it.
func (b *Broker) check(folds []*state.Frozen) {
	for _, fold := range folds {
		b.checked(fold.Index(), fold)
	}
}
