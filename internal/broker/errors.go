package broker

import (
	"errors"
	"fmt"

	"example.com/mq/internal/fact"
)

// Errors that carry no data. Package httpapi maps them, and the types below, to the contract's codes.
var (
	// ErrTopicNotFound: the topic has no record yet, and never had one.
	ErrTopicNotFound = errors.New("topic not found")
	// ErrStorageFull: the disk is full. Nothing of the request was done.
	ErrStorageFull = errors.New("storage full")
	// ErrRequestIDConflict: the request id was used in this topic for other records. Nothing was done.
	ErrRequestIDConflict = errors.New("request id was used for other records")
)

// UnavailableError: the node cannot do this now. Unknown says whether a write may have happened all the same.
type UnavailableError struct {
	Reason  string // what is wrong, as part of a sentence: "the node is shutting down"
	Unknown bool
}

func (e *UnavailableError) Error() string {
	if e.Unknown {
		return e.Reason + ": the outcome is unknown"
	}
	return e.Reason
}

// OffsetGoneError: a fetch below the topic's start.
type OffsetGoneError struct{ Start fact.Offset }

func (e *OffsetGoneError) Error() string { return fmt.Sprintf("offset is below the start %d", e.Start) }

// OffsetRangeError: a group commit or retain outside Start to End.
type OffsetRangeError struct{ Start, End fact.Offset }

func (e *OffsetRangeError) Error() string {
	return fmt.Sprintf("offset is outside %d to %d", e.Start, e.End)
}

// CorruptError: the records First to Last (inclusive) cannot be read because their bytes on disk are
// damaged. Reading can go on at Last+1.
type CorruptError struct {
	First, Last fact.Offset
	Detail      string // file and position, for the operator
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("records %d to %d are damaged on disk (%s)", e.First, e.Last, e.Detail)
}
