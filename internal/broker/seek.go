package broker

import (
	"errors"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/state"
)

// SeekGroup sets where a group reads next, and tells which records it will not read because of that, or will read again. With
// DryRun it only tells. An offset outside start to end, or at records that a restore has jumped over, is an
// *OffsetRangeError.
//
// What it tells was so when it looked. The group may be moved by others, and the topic retained, before it is moved here:
// then the group ends where it was sent, all the same.
func (b *Broker) SeekGroup(q *Seek) (Sought, error) {
	if err := b.mayTell(); err != nil {
		return Sought{}, err
	}
	for try := 1; ; try++ {
		s, err := b.sought(q)
		if err != nil || q.DryRun {
			return s, err
		}
		_, err = b.CommitGroup(q.Topic, q.Group, s.Next)
		var outside *OffsetRangeError
		switch {
		case err == nil:
			return s, nil
		case errors.As(err, &outside) && try < lookTries: // retained meanwhile: what it means now is another offset, or none
		default:
			return Sought{}, err
		}
	}
}

// sought tells what a seek would do now.
func (b *Broker) sought(q *Seek) (Sought, error) {
	byTime := fact.Offset(0)
	if q.By == SeekByTime {
		var err error
		if byTime, err = b.offsetAt(q.Topic, q.TimeMS); err != nil {
			return Sought{}, err
		}
	}
	t, g, err := b.groupNow(q.Topic, q.Group)
	switch {
	case errors.Is(err, ErrGroupNotFound):
		g = state.Group{Next: t.Start} // it would begin there
	case err != nil:
		return Sought{}, err
	}
	s := Sought{Previous: nextOf(&t, g.Next)}
	switch q.By {
	case SeekByOffset:
		next, _, ok := t.Normal(q.Offset)
		if !ok || q.Offset < t.Start || q.Offset > t.End {
			return Sought{}, &OffsetRangeError{Start: t.Start, End: t.End}
		}
		s.Next = next
	case SeekByTime:
		s.Next = nextOf(&t, byTime)
	case SeekToStart:
		s.Next = nextOf(&t, t.Start)
	case SeekToEnd:
		s.Next = t.End
	default:
		invariant.Check(false, "seek by %d", q.By)
	}
	s.Skipped, s.Repeated = t.Between(s.Previous, s.Next), t.Between(s.Next, s.Previous)
	return s, nil
}
