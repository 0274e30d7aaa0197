// Package catchup is how a node of a cluster gets from another one what it lacks, below raft: it asks, the other one
// answers. Requests and answers are single packets; who carries them is given (Peer). Server answers, from what Source
// shows of a node. Client asks; Extend brings the end of a log up to date, Full fetches everything, Segment one file.
//
// What the package guarantees:
//   - What a log gets is checked before it is written: packets by their CRC, frames by theirs, their place and chain,
//     files of the history as a whole. What is damaged, at the peer or on the way, costs time and nothing else.
//   - Extend cuts nothing that is known to be committed: it ends with a *DivergedError instead.
//   - What lies before the begin of a log that Full makes was committed at the peer.
//   - No request makes the server panic, wait for the log's tail, or allocate more than a few answers.
//
// Everything can be repeated: what has come stays, and the next call goes on from there. The package starts goroutines
// only within Extend, Full and Segment, and they have ended when those return.
//
// The protocol is described in docs/format/catchup.md. It is not on the way of a publish.
package catchup

import (
	"context"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// Peer is one other node.
type Peer interface {
	// Call sends a request and returns the answer, which belongs to the caller, as the request does again when it
	// returns. An error says that there is none: it is unknown then whether the request arrived.
	Call(ctx context.Context, request []byte) (answer []byte, err error)
}

// PeerFunc is a Peer.
type PeerFunc func(ctx context.Context, request []byte) ([]byte, error)

// Call implements Peer.
func (f PeerFunc) Call(ctx context.Context, request []byte) ([]byte, error) { return f(ctx, request) }

// Standing is how a node stood when it gave an answer. Every answer has it.
type Standing struct {
	LogID  entry.LogID // zero when it has no log
	Term   entry.Term  // the highest it has seen
	Leader bool        // it leads, in that term
	Commit entry.Index // what it knows to be committed
	// Last is the end of its log, synced or not; zero when no log can be read.
	Last wal.Point
}

// Verdict is what a node says about another one that introduces itself.
type Verdict string

// The verdicts.
const (
	VerdictOK       Verdict = "ok"
	VerdictStale    Verdict = "stale"    // it has lost what it had: it must heal
	VerdictStranger Verdict = "stranger" // its node id is not that of the member: it must heal as a new one
	VerdictForeign  Verdict = "foreign"  // it belongs to another cluster, or holds another log: refused
	VerdictWait     Verdict = "wait"     // not decided yet: ask again
)

// Introduction says who a node is and what it holds.
type Introduction struct {
	Fingerprint [32]byte    `json:"fingerprint"` // of the members' addresses
	Self        int         `json:"self"`        // number of the node
	Nodes       int         `json:"nodes"`       // of the cluster
	NodeID      [16]byte    `json:"node_id"`     // of the data folder
	Incarnation uint64      `json:"incarnation"` // rises when another folder takes a member's place
	LogID       entry.LogID `json:"log_id"`      // zero: none yet
	Boot        uint64      `json:"boot"`        // how often the data folder was started
	Nonce       uint64      `json:"nonce"`       // of this start
	Phase       string      `json:"phase"`
	Term        entry.Term  `json:"term"`
	Last        entry.Index `json:"last"` // the last entry of the log, and its term
	LastTerm    entry.Term  `json:"last_term"`
}

// Introduced is the answer to an Introduction: who the other node is, and what it thinks of the one that asks.
type Introduced struct {
	Introduction
	Role    string      `json:"role"`
	Leader  int         `json:"leader"` // number of the leader that it knows, -1 for none
	Commit  entry.Index `json:"commit"`
	Members [][16]byte  `json:"members"` // node ids by number, as far as they are known; empty before the cluster is formed
	// Seen is the incarnation that the answerer knows of the one that asks.
	Seen  uint64      `json:"seen"`
	Acked entry.Index `json:"acked"` // the highest index that the one that asks has acknowledged to it
	// Objection says in words why the verdict is not VerdictOK.
	Objection string  `json:"objection"`
	Verdict   Verdict `json:"verdict"`
}

// Formation is what the founder tells the others when all nodes have met.
type Formation struct {
	Fingerprint [32]byte    `json:"fingerprint"`
	LogID       entry.LogID `json:"log_id"`
	Incarnation uint64      `json:"incarnation"` // of all members, to begin with
	Members     [][16]byte  `json:"members"`     // node ids by number
}

// Manifest lists what a node has.
type Manifest struct {
	Standing
	// Start is the place of the first entry of the segment that holds the first entry which may not be committed,
	// or, when all are, of the active one. A new log may begin there.
	Start     wal.Place
	Snapshots []SnapshotInfo // newest first; none beyond Commit
	Segments  []SegmentInfo  // oldest first, dense; the last one is active
}

// SnapshotInfo is a file that holds the fold.
type SnapshotInfo struct {
	Index entry.Index `json:"index"`
	Bytes int64       `json:"bytes"`
}

// SegmentInfo is a segment file. An active one that has no entries has Last = First-1.
type SegmentInfo struct {
	First entry.Index `json:"first"`
	Last  entry.Index `json:"last"`
	Bytes int64       `json:"bytes"`
}

// Demand is what an answer must say of the peer, so that what it says counts.
type Demand struct {
	// Leader demands that the peer leads, in MinTerm or a later term.
	Leader  bool
	MinTerm entry.Term
}

// check returns a *NotLeaderError if s does not meet d.
func (d Demand) check(s *Standing) error {
	if d.Leader && (!s.Leader || s.Term < d.MinTerm) {
		return &NotLeaderError{Standing: *s, MinTerm: d.MinTerm}
	}
	return nil
}
