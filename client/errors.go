package client

import (
	"fmt"
	"strings"
	"time"

	"example.com/mq/api"
)

// Code is an error code of the broker's contract. Each code is an error to compare with:
//
//	if errors.Is(err, client.ErrTopicNotFound) { ... }
type Code string

// The codes that a broker answers.
const (
	ErrInvalidArgument   = Code(api.CodeInvalidArgument)
	ErrOffsetOutOfRange  = Code(api.CodeOffsetOutOfRange) // see Error.StartOffset and EndOffset
	ErrUnauthenticated   = Code(api.CodeUnauthenticated)  // the token is missing or wrong
	ErrPermissionDenied  = Code(api.CodePermissionDenied) // not with this token
	ErrTopicNotFound     = Code(api.CodeTopicNotFound)    // nothing was ever published to the topic, or it was deleted
	ErrGroupNotFound     = Code(api.CodeGroupNotFound)    // the group has no offset in the topic
	ErrNotFound          = Code(api.CodeNotFound)         // no such endpoint: not a broker, or an older one
	ErrMethodNotAllowed  = Code(api.CodeMethodNotAllowed)
	ErrTimeout           = Code(api.CodeTimeout)           // the request did not reach the node in time
	ErrRequestIDConflict = Code(api.CodeRequestIDConflict) // the request id was used for other records
	ErrOffsetGone        = Code(api.CodeOffsetGone)        // below the topic's start, or lost: see Error.StartOffset and RestoredEnd
	ErrTooLarge          = Code(api.CodeTooLarge)          // record, batch or request
	ErrUnavailable       = Code(api.CodeUnavailable)
	ErrStorageFull       = Code(api.CodeStorageFull) // reads go on; writes once there is room
	ErrInternal          = Code(api.CodeInternal)
	ErrDataCorrupt       = Code(api.CodeDataCorrupt) // damaged on disk: see Error.FirstOffset and LastOffset
	ErrNotLeader         = Code(api.CodeNotLeader)   // see Error.Leader
)

// The codes that arise on this side.
const (
	// ErrTransport: no answer came from the node. See Error.Unwrap for the cause.
	ErrTransport Code = "transport"
	// ErrBadAnswer: an answer came that a broker does not give, as from a gateway in between. The message
	// shows it. It proves nothing: after a write, Error.Unknown is set whatever the status.
	ErrBadAnswer Code = "bad_answer"
	// ErrForeignRedirect: the node points to one that is not configured. It was not contacted.
	ErrForeignRedirect Code = "foreign_redirect"
	// ErrCanceled: the context ended. Unwrap gives its cause, so errors.Is(err, context.Canceled) works too.
	ErrCanceled Code = "canceled"
)

func (c Code) Error() string { return strings.ReplaceAll(string(c), "_", " ") }

// Error is what all methods return when a call failed.
type Error struct {
	Code    Code
	Status  int    // of the answer; 0 when there was none
	Message string // what the node said, or what went wrong; may be empty

	// Unknown: the call would have changed something, and it may have done so, or may still do it. Ask again
	// with the same RequestID to find out and have it done exactly once.
	// Where Unknown is false, the call has changed nothing.
	Unknown bool
	// RequestID is the one that the call carried, whether yours or a generated one.
	RequestID string

	Operation   string        // "publish", "fetch", ...
	Node        string        // base URL of the node that the last attempt went to
	Attempts    int           // how often the call was sent
	Field       string        // with ErrInvalidArgument: which field of the request, as "messages[3].value"
	StartOffset *uint64       // of the topic, with ErrOffsetGone and ErrOffsetOutOfRange; reading can go on there
	RestoredEnd *uint64       // with ErrOffsetGone: the broker was restored from a backup, and lost the records from here to StartOffset
	EndOffset   *uint64       // of the topic, with ErrOffsetOutOfRange
	FirstOffset *uint64       // of the damaged records, with ErrDataCorrupt
	LastOffset  *uint64       // of the damaged records, with ErrDataCorrupt; reading can go on after it
	Leader      string        // with ErrNotLeader and ErrForeignRedirect: where the leader is, if the node knows
	RetryAfter  time.Duration // what the node asked for

	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Operation)
	b.WriteString(": ")
	b.WriteString(e.Code.Error())
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.cause != nil {
		b.WriteString(": " + e.cause.Error())
	}
	if e.Node != "" {
		fmt.Fprintf(&b, " (%s", e.Node)
		if e.Attempts > 1 {
			fmt.Fprintf(&b, ", after %d attempts", e.Attempts)
		}
		b.WriteString(")")
	}
	if e.Unknown {
		b.WriteString("; the outcome is unknown")
		if e.RequestID != "" {
			fmt.Fprintf(&b, ": retry with request id %s", e.RequestID)
		}
	}
	return b.String()
}

// Unwrap is the cause, when it is on this side: a network error, or that of the context.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether target is the code of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}
