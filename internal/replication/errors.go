package replication

import "errors"

// ErrStopped is returned by Propose after Close. Nothing was done.
var ErrStopped = errors.New("the role was closed")

// ErrFailedBefore is returned by Propose, wrapped with the cause, when the role had failed before the call.
// Nothing was done.
var ErrFailedBefore = errors.New("the role has failed")

// ErrUnavailable is what an *UnavailableError wraps.
var ErrUnavailable = errors.New("the role takes no proposals now")

// UnavailableError is returned by Propose when the role cannot commit for now. Nothing was done.
type UnavailableError struct {
	Reason string // why, as part of a sentence: "the follower is away"
}

func (e *UnavailableError) Error() string { return ErrUnavailable.Error() + ": " + e.Reason }

func (e *UnavailableError) Unwrap() error { return ErrUnavailable }
