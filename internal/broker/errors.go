package broker

import (
	"errors"
	"fmt"

	"example.com/mq/internal/fact"
)

// Errors that carry no data. Package httpapi maps them, and the types below, to the contract's codes.
var (
	// ErrTopicNotFound: the topic never had a record, or was deleted and had none since.
	ErrTopicNotFound = errors.New("topic not found")
	// ErrGroupNotFound: the group's offset in the topic was never set, or the group was deleted.
	ErrGroupNotFound = errors.New("group not found")
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

// NotLeaderError: this node is the follower of a pair, or does not lead its cluster. It serves no clients: nothing was done.
type NotLeaderError struct {
	Leader string // where the leader is, as a URL; empty when that is not known here
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "this node does not lead"
	}
	return "this node does not lead; the leader is " + e.Leader
}

// OffsetGoneError: a fetch below the topic's start, or at offsets that were lost when the broker was restored from a backup,
// or its log cut.
type OffsetGoneError struct {
	Start fact.Offset // where reading can go on
	// RestoredEnd, if not nil, says that the broker was restored from a backup, or its log cut: the records from here to Start
	// are lost, also to a client that has seen some of them.
	RestoredEnd *fact.Offset
}

func (e *OffsetGoneError) Error() string {
	if e.RestoredEnd != nil {
		return fmt.Sprintf("records from %d on were lost when the broker was restored from a backup, or its log was cut: it goes on at %d", *e.RestoredEnd, e.Start)
	}
	return fmt.Sprintf("offset is below the start %d", e.Start)
}

// OffsetRangeError: a group commit, seek or retain outside Start to End, or at offsets that a restore has jumped over.
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
