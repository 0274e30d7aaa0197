package cluster

import (
	"fmt"

	"example.com/mq/internal/entry"
)

// Codes of a RefusedError.
const (
	CodeMalformed = "malformed" // it makes no sense
	CodeVersion   = "version"   // another version of the format
	CodeForeign   = "foreign"   // another log, or not from and to the nodes that it says
	CodeTerm      = "term"      // a term that cannot be
	CodeStray     = "stray"     // good in itself, but nothing that this node may be sent now
	CodeFull      = "full"      // the disk takes no entries for now
)

// RefusedError says why a packet was refused. Nothing came of it.
type RefusedError struct {
	Code    string // one of the codes, for a metric
	Message string
}

func (e *RefusedError) Error() string { return "packet refused: " + e.Message }

func refuse(code, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// LostError says that this node does not have what it acknowledged: the leader knows that it had it.
type LostError struct {
	Acknowledged entry.Index
	Last         entry.Index // where the log ends
	Leader       int
}

func (e *LostError) Error() string {
	return fmt.Sprintf("this node has lost entries that it acknowledged: its log ends with entry %d, and node %d knows that it had entry %d",
		e.Last, e.Leader, e.Acknowledged)
}

// DivergedError says that this node's log and a leader's differ where they must not.
type DivergedError struct {
	Index entry.Index
	What  string
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("this node's log and the leader's differ at entry %d: %s", e.Index, e.What)
}

// panicError says that the library, or this package, met what cannot be.
type panicError struct {
	what  any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("raft panicked: %v\n%s", e.what, e.stack) }
