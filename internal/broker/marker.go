package broker

import "example.com/mq/internal/entry"

// touch tells markIdle that entries were committed.
func (b *Broker) touch() {
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// markIdle writes a marker once nothing has been committed for a while, and one at the end. The marker says,
// on disk, that all before it was committed: without it, damage to the last entry of an idle log looks like
// a torn write that nobody was told of.
func (b *Broker) markIdle() {
	timer := b.clock.NewTimer(b.idle)
	defer timer.Stop()
	for {
		select {
		case <-b.dirty:
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
			case <-b.stop:
				quiet = true
			}
		}
		b.mark()
	}
}

// mark writes a marker, unless the last entry is one. That it fails costs nothing but certainty about the
// last entries, and what makes it fail has been reported, so the error is dropped.
func (b *Broker) mark() {
	if b.Applied() == entry.Index(b.marked.Load()) {
		return
	}
	b.recordSettings() // if the disk was full when they changed; the error is one that the marker meets, too
	o := newOp(opMarker)
	b.do(o)
	o.release()
}
