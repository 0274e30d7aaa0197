// Package fact defines what an entry records, the outcome of a decision, and its encoding. It is pure: no
// I/O, no clock, no goroutines. Decoders accept any bytes without a panic and without large allocations.
//
// Format: docs/format/facts.md. The next stop of a publish: package replication orders the fact.
package fact

import "example.com/mq/internal/entry"

// Offset is the position of a record in its topic. The first record of a topic has offset 0.
type Offset uint64

// The kinds of entries. Numbers are part of the format and never change.
const (
	KindMarker        entry.Kind = 1 // no fact: an idle log says that everything before is committed
	KindAppended      entry.Kind = 2 // records were appended to a topic
	KindGroupMoved    entry.Kind = 3 // a group's offset in a topic was set
	KindTopicRetained entry.Kind = 4 // a topic's start offset was moved
	KindSettings      entry.Kind = 5 // the settings that the fold depends on were changed
)

// Limits, in bytes unless said otherwise; constants of the contract.
const (
	NameMax    = 255       // of topic names, group names and request ids
	MessageMax = 256 << 10 // of key plus value of one record
	BatchMax   = 32        // records in one Appended
)

// Record is what a client publishes.
type Record struct {
	Key, Value []byte
}

// Digest identifies the records of a publish that has a request id: the first 16 bytes of the SHA-256 of
// count, and of key length, value length, key, value of each record.
type Digest [16]byte
