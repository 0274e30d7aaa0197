package mesh

import (
	"errors"
	"fmt"
)

// UnreachableError is returned by Call when there is no stream to the node, or the stream broke. Whether the node got the
// request is not known.
type UnreachableError struct {
	Node int
	Err  error // why
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("node %d cannot be reached: %v", e.Node, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// RefusedError says that one side does not want a stream with the other.
type RefusedError struct {
	Here   bool   // this node refused the other one, and not the other way round
	Reason string // as the side that refused put it: one line, at most 500 bytes
}

func (e *RefusedError) Error() string {
	if e.Here {
		return "refused by this node: " + e.Reason
	}
	return "refused by the other node: " + e.Reason
}

// ProtocolError says what a peer sent that it should not have, or what became of it on the way. The stream ends with it.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "not the protocol of the mesh: " + e.What }

func malformed(format string, args ...any) error {
	return &ProtocolError{What: fmt.Sprintf(format, args...)}
}

// Errors that say why a stream ended.
var (
	errClosed      = errors.New("the mesh was closed")
	errReplaced    = errors.New("a newer stream replaced it")
	errSilent      = fmt.Errorf("nothing came for %v", silenceMax)
	errStuck       = fmt.Errorf("the other side took nothing for %v", silenceMax)
	errGreeting    = fmt.Errorf("the greeting took longer than %v", greetingTimeout)
	errNoStream    = errors.New("there is no stream yet")
	errAnswerLarge = errors.New("an answer is larger than its limit")
)
