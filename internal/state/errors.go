package state

import "errors"

// Errors of Apply and Restore. After any of them from Apply the state is as before, and the node must stop
// applying: it would differ from the other replicas if it went on.
var (
	// ErrUnknownKind: the entry is of a kind that this version does not know. A newer version wrote it.
	ErrUnknownKind = errors.New("unknown kind of entry (written by a newer version)")
	// ErrRetiredKind: the entry is of a kind that only versions wrote that were never released.
	ErrRetiredKind = errors.New("retired kind of entry (written by an unreleased version)")
	// ErrContradiction: the entry does not fit to the entries before it. A program erred when it was decided,
	// or entries are missing.
	ErrContradiction = errors.New("entry contradicts the state")
	// ErrVersion: the encoded state is of a version that this program does not know.
	ErrVersion = errors.New("unknown version of the encoded state")
	// ErrCorrupt: the encoded state is cut off, has bytes that mean nothing, or says what cannot be.
	ErrCorrupt = errors.New("corrupt encoded state")
)
