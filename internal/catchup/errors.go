package catchup

import (
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

var (
	// ErrGone: the peer has dropped this. Of Extend it says that its log begins behind the end of ours.
	ErrGone = errors.New("the peer has dropped it")
	// ErrDiffers: the peer has another entry at this index, or its segments begin elsewhere.
	ErrDiffers = errors.New("the peer's log differs")
	// ErrBehind: the peer's log ends before this index.
	ErrBehind = errors.New("the peer's log ends before it")
	// ErrDamaged: what came is not what was written once. The peer is damaged there, or the way.
	ErrDamaged = errors.New("it is damaged")
	// ErrForeign: the peer belongs to another log or cluster.
	ErrForeign = errors.New("the peer holds another log")
	// ErrUnavailable: the peer cannot answer this now: it has no log to read, it starts or stops.
	ErrUnavailable = errors.New("the peer cannot answer this now")
	// ErrRefused: the peer says no. Asking again does not help.
	ErrRefused = errors.New("the peer refuses")
	// ErrVersion: the nodes speak different versions of the protocol.
	ErrVersion = errors.New("unknown version of the catch-up protocol")
	// ErrMalformed: a packet made no sense.
	ErrMalformed = errors.New("malformed packet")
)

// code is how an error goes over the wire. 0 is success.
type code uint8

const (
	codeOK code = iota
	codeGone
	codeDiffers
	codeBehind
	codeDamaged
	codeForeign
	codeUnavailable
	codeRefused
	codeVersion
	codeMalformed
	codes // how many there are
)

// sentinels by code.
var sentinels = [codes]error{
	codeGone:        ErrGone,
	codeDiffers:     ErrDiffers,
	codeBehind:      ErrBehind,
	codeDamaged:     ErrDamaged,
	codeForeign:     ErrForeign,
	codeUnavailable: ErrUnavailable,
	codeRefused:     ErrRefused,
	codeVersion:     ErrVersion,
	codeMalformed:   ErrMalformed,
}

// codeOf returns the code of an error, and codeUnavailable for one that has none.
func codeOf(err error) code {
	if err == nil {
		return codeOK
	}
	for c, sentinel := range sentinels {
		if sentinel != nil && errors.Is(err, sentinel) {
			return code(c)
		}
	}
	return codeUnavailable
}

// RefusedError is an answer that says no: Err is one of the sentinels, Message what the peer says.
type RefusedError struct {
	Err     error
	Message string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("the peer answers: %s", e.Message) }

func (e *RefusedError) Unwrap() error { return e.Err }

// NotLeaderError says that the peer does not lead, or not in a term that counts.
type NotLeaderError struct {
	Standing Standing
	MinTerm  entry.Term
}

func (e *NotLeaderError) Error() string {
	if !e.Standing.Leader {
		return fmt.Sprintf("the peer does not lead in term %d", e.Standing.Term)
	}
	return fmt.Sprintf("the peer leads in term %d, and only from %d on it counts", e.Standing.Term, e.MinTerm)
}

// DivergedError says that two logs differ where ours is known to be committed: one of them is damaged, or has another
// history. Nothing was cut.
type DivergedError struct {
	Commit       entry.Index // known to be committed here
	Ours, Theirs wal.Point
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("entry %d is committed here up to %d, with term %d and CRC %08x, and the peer has term %d and CRC %08x there",
		e.Ours.Index, e.Commit, e.Ours.Term, e.Ours.CRC, e.Theirs.Term, e.Theirs.CRC)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
