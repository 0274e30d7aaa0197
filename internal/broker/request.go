package broker

import (
	"time"

	"example.com/mq/internal/fact"
)

// Publish asks to append one record or a batch. All slices belong to the caller, who leaves them alone
// until the call returns.
type Publish struct {
	Topic     []byte
	RequestID []byte // empty for none
	Records   []fact.Record
}

// Published is the outcome of a Publish: the records have the offsets Base to Base+Count-1.
type Published struct {
	Base      fact.Offset
	Count     int
	Duplicate bool // the request id matched an earlier publish of the same records
}

// Fetch asks for records of a topic from Offset on, or, with a Group, from the group's offset on, or, with ByTime, from
// the first record on that is not older than FromMS.
type Fetch struct {
	Topic  []byte
	Group  []byte // empty for a fetch by offset
	Offset fact.Offset
	// ByTime says that FromMS counts, in ms since the Unix epoch, and not Offset. If there is no such record yet, the next
	// one is, whatever its time. Group is empty then.
	ByTime bool
	FromMS int64
	Limit  int // most records to return
	// MaxBytes bounds the keys and values returned, but at least one record is, if there is one. 0 for 4 MiB.
	MaxBytes int64
	Wait     time.Duration // how long to wait for a record when there is none; 0 for not at all
	// Alive, if not nil, is called about once a second while waiting; the wait ends when it returns false.
	Alive func() bool
}

// Page says where a fetch ended.
type Page struct {
	Next  fact.Offset // where to read, or what to commit, next
	Start fact.Offset // of the topic
	End   fact.Offset // one past the last committed record
	// Records is how many were handed out.
	Records int
}

// Sink receives the records of a fetch in order. Key and value are valid only during the call.
type Sink interface {
	Record(offset fact.Offset, key, value []byte, timeMS int64)
}
