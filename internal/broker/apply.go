package broker

import (
	"fmt"
	"slices"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// Committed implements replication.Applier: it applies, makes visible, and answers.
func (b *Broker) Committed(last entry.Index) {
	for {
		b.flightMu.Lock()
		if len(b.flight) == 0 || b.flight[0].last > last {
			b.flightMu.Unlock()
			return
		}
		t := b.flight[0]
		b.flightMu.Unlock()
		b.apply(t)
		if b.land(t) {
			b.settle(t, nil)
		}
	}
}

// land takes a batch out of flight. It reports false when Failed or Follow has taken it: who takes it settles it.
func (b *Broker) land(t *batch) bool {
	b.flightMu.Lock()
	defer b.flightMu.Unlock()
	n := len(b.flight)
	b.flight = slices.DeleteFunc(b.flight, func(f *batch) bool { return f == t })
	return len(b.flight) < n
}

// Failed implements replication.Applier: nothing is acknowledged any more.
func (b *Broker) Failed(err error) {
	b.mu.Lock()
	first := b.failed == nil
	if first {
		b.failed = err
	}
	b.mu.Unlock()
	if first {
		b.logger.Error("writes have stopped for good: restart the node", "err", err)
	}
	b.flightMu.Lock()
	flight := b.flight
	b.flight, b.dead = nil, err
	b.flightMu.Unlock()
	for _, t := range flight {
		b.settle(t, &UnavailableError{Reason: err.Error(), Unknown: true})
	}
}

// settle marks a batch whose outcome is known, and answers it unless its leader will. With an error the batch
// has failed.
func (b *Broker) settle(t *batch, err error) {
	b.flightMu.Lock()
	if err != nil {
		t.kept = true
		if t.never != "" {
			t.refuseAsFailed(t.never)
		} else {
			t.refuse(err)
		}
	}
	t.settled = true
	answer := t.handedOn
	b.flightMu.Unlock()
	if answer {
		t.answer(nil)
	}
}

// apply folds a committed batch into the state and makes it visible to readers.
func (b *Broker) apply(t *batch) {
	touched, err := b.fold(&t.frames, t.touched)
	invariant.Check(err == nil, "a decided fact does not apply: %v", err)
	t.touched = touched
}

// Apply implements replication.Applier: it applies what others decided and makes it visible. Facts that contradict the
// fold are an error; then what comes before them is applied, and nothing may be applied after.
func (b *Broker) Apply(f *wal.Frames) (err error) {
	b.mu.Lock()
	leading := b.leading
	b.mu.Unlock()
	invariant.Check(!leading, "entries that were not decided here are applied while leading: the overlay does not know of them")
	b.applied, err = b.fold(f, b.applied[:0])
	return err
}

// fold applies committed entries and makes them visible to readers. It returns the topics that got records or were deleted,
// appended to touched.
func (b *Broker) fold(f *wal.Frames, touched []state.TopicID) ([]state.TopicID, error) {
	if f.Len() == 0 {
		return touched, nil
	}
	var records int
	var marker, retained, changed, unchecked bool
	var last entry.Index
	var checks []*state.Frozen
	b.view.Lock()
	for i := range f.Len() {
		e := f.Entry(i)
		effect, err := b.state.Apply(&e)
		if err != nil {
			b.view.Unlock()
			b.check(checks)
			return touched, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		switch effect.Kind {
		case fact.KindAppended:
			b.index.Add(effect.Name, effect.First, effect.Count, f.Position(i))
			touched = appendOnce(touched, effect.Topic)
			records += effect.Count
		case fact.KindKept:
			b.index.Add(effect.Name, effect.First, effect.Count, f.Position(i))
		default:
			b.index.Begin(f.Position(i).Segment)
		}
		marker = effect.Kind == fact.KindMarker || effect.Kind == fact.KindChecked
		if effect.Kind == fact.KindChecked && b.checked != nil {
			checks = append(checks, b.state.Freeze())
		}
		if effect.Kind != fact.KindMarker {
			changed, unchecked = true, effect.Kind != fact.KindChecked
		}
		if effect.Kind == fact.KindTopicDeleted {
			touched = appendOnce(touched, effect.Topic) // who waits for a record is told
			retained = true
		}
		retained = retained || effect.Kind == fact.KindTopicRetained
		last = e.Index
	}
	b.view.Unlock()
	b.check(checks)
	if changed {
		b.unchecked.Store(unchecked)
	}
	b.waiters.wake(touched)
	if marker {
		b.marked.Store(uint64(last))
	} else {
		b.touch()
	}
	b.observer.Committed(f.Len(), records, int64(f.Bytes()), retained)
	return touched, nil
}

// appendOnce adds a topic to a list, unless it is the last one there: one topic comes in rows.
func appendOnce(list []state.TopicID, id state.TopicID) []state.TopicID {
	if n := len(list); n > 0 && list[n-1] == id {
		return list
	}
	return append(list, id)
}
