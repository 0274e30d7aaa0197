// Package fact defines what an entry records, the outcome of a decision, and its encoding. It is pure: no
// I/O, no clock, no goroutines. Decoders accept any bytes without a panic and without large allocations.
//
// Format: docs/format/facts.md. The next stop of a publish: package replication orders the fact.
package fact

import "example.com/mq/internal/entry"

// Offset is the position of a record in its topic. The first record of a topic has offset 0.
type Offset uint64

// The kinds of entries. Numbers are part of the format and never change. 2 and 4 were an Appended and a TopicRetained
// without Cum: only versions that were never released wrote them, and Retired tells them from those that are unknown.
const (
	KindMarker          entry.Kind = 1  // no fact: its frame tells how far an idle log is committed
	KindGroupMoved      entry.Kind = 3  // a group's offset in a topic was set
	KindSettings        entry.Kind = 5  // the settings that the fold depends on were changed
	KindChecked         entry.Kind = 6  // no fact: every replica checks its fold as this entry leaves it
	KindAppended        entry.Kind = 7  // records were appended to a topic
	KindTopicRetained   entry.Kind = 8  // a topic's start offset was moved
	KindKept            entry.Kind = 9  // records of an older segment stand here once more
	KindTopicConfigured entry.Kind = 10 // a topic's own settings were set
	KindTopicDeleted    entry.Kind = 11 // a topic was deleted, with its groups
	KindGroupDeleted    entry.Kind = 12 // a group of a topic was deleted
	KindRestored        entry.Kind = 13 // the log was restored from a backup
)

// Retired says whether a kind was used by unreleased versions only, and is refused now.
func Retired(kind entry.Kind) bool { return kind == 2 || kind == 4 }

// Limits, in bytes unless said otherwise; constants of the contract.
const (
	NameMax    = 255       // of topic names, group names and request ids
	MessageMax = 256 << 10 // of key plus value of one record
	BatchMax   = 32        // records in one Appended
)

// Digest identifies the records of a publish that has a request id: the first 16 bytes of the SHA-256 of
// count, and of key length, value length, key, value of each record.
type Digest [16]byte
