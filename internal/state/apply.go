package state

import (
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// Apply adds the next entry to the fold. It keeps no reference to the entry or its payload.
//
// It does not fail for what was decided by the rules. It returns an error, and changes nothing, for an entry
// that is not the next one, is of an unknown kind, does not decode, or contradicts what is known
// (ErrUnknownKind, ErrRetiredKind, fact.ErrMalformed, ErrContradiction).
func (s *State) Apply(e *entry.Entry) (Effect, error) {
	effect, err := s.apply(e)
	if err != nil {
		return Effect{}, fmt.Errorf("apply entry %d: %w", e.Index, err)
	}
	s.applied, s.term, s.timeMS = e.Index, e.Term, e.TimeMS
	s.horizonMS = s.horizonAt(s.timeMS)
	s.ids.evict(s.horizonMS, evictMost)
	return effect, nil
}

// apply does what the kind of entry asks for. When it returns an error, it has changed nothing.
func (s *State) apply(e *entry.Entry) (effect Effect, err error) {
	if err := s.follows(e); err != nil {
		return Effect{}, err
	}
	switch e.Kind {
	case fact.KindMarker:
		err = fact.DecodeMarker(e.Payload)
	case fact.KindChecked:
		err = fact.DecodeChecked(e.Payload)
	case fact.KindAppended:
		effect, err = s.applyAppended(e)
	case fact.KindGroupMoved:
		effect, err = s.applyGroupMoved(e)
	case fact.KindTopicRetained:
		effect, err = s.applyTopicRetained(e)
	case fact.KindKept:
		effect, err = s.applyKept(e)
	case fact.KindTopicConfigured:
		effect, err = s.applyTopicConfigured(e)
	case fact.KindTopicDeleted:
		effect, err = s.applyTopicDeleted(e)
	case fact.KindGroupDeleted:
		effect, err = s.applyGroupDeleted(e)
	case fact.KindRestored:
		err = s.applyRestored(e)
	case fact.KindSettings:
		err = s.applySettings(e)
	default:
		if err = fmt.Errorf("%w: kind %d", ErrUnknownKind, e.Kind); fact.Retired(e.Kind) {
			err = fmt.Errorf("%w: kind %d", ErrRetiredKind, e.Kind)
		}
	}
	effect.Kind = e.Kind
	return effect, err
}

// follows checks that an entry can come after the last one.
func (s *State) follows(e *entry.Entry) error {
	switch {
	case e.Index != s.applied+1:
		return contradicts("it comes after entry %d", s.applied)
	case e.Term < s.term || e.Term == 0:
		return contradicts("term %d after term %d", e.Term, s.term)
	case e.TimeMS < s.timeMS || e.TimeMS > TimeMaxMS:
		return contradicts("time %d ms after time %d ms", e.TimeMS, s.timeMS)
	}
	return nil
}

func (s *State) applySettings(e *entry.Entry) error {
	windowMS, err := fact.DecodeSettings(e.Payload)
	if err != nil {
		return err
	}
	s.windowMS = windowMS
	return nil
}

// contradicts makes the error for an entry that does not fit.
func contradicts(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrContradiction, fmt.Sprintf(format, args...))
}
