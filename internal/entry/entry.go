// Package entry defines what the log holds: entries at indexes. It is a leaf that the log, the fold and
// the roles share; it does no I/O and knows no topics.
//
// The next stop of a publish: package wal stores entries as frames.
package entry

// Index is the position of an entry in the log. The first entry has index 1; 0 means "none".
type Index uint64

// Term numbers the leadership under which an entry was decided: Raft's term, primary-backup's epoch,
// and StandaloneTerm on a node that is alone.
type Term uint64

// StandaloneTerm is the term of every entry that a standalone node decides.
const StandaloneTerm Term = 1

// Kind says what an entry's payload records. The kinds are listed in package fact. Kind 0 is invalid.
type Kind uint8

// Entry is one decision, as it is logged and applied.
type Entry struct {
	Index Index
	Term  Term
	// Commit is the highest index that the leader knew to be committed when it wrote this entry. It lets
	// recovery tell a torn tail (never acknowledged) from damage (acknowledged).
	// Invariant: Commit < Index, and Commit never decreases along the log.
	Commit Index
	// TimeMS is the leader's stamp in milliseconds since the Unix epoch. It never decreases along the log.
	TimeMS int64
	Kind   Kind
	// Payload is the encoded fact. Who hands out an Entry says how long Payload stays valid.
	Payload []byte
}

// LogID is the identity of one log: the same on every replica of it, different from every other log.
type LogID [16]byte

// Position says where the frame of an entry lies.
type Position struct {
	Segment Index // the first index of the segment, which names its file
	Offset  int64 // of the frame's first byte in the segment file
	Length  int64 // of the whole frame in bytes, padding included
}

// End is the offset of the first byte after the frame.
func (p Position) End() int64 { return p.Offset + p.Length }
