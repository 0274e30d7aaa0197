// Package pair is primary-backup replication of one log on two nodes: an entry is committed when it is durable on
// both. The leader decides and is told by the operator that it leads, by a higher epoch than any before; there is no
// election. Leader and Follower are the two ends; the leader dials.
//
// Replication is physical: the leader says in which segment file and at which byte frames stand, and the follower
// writes the same bytes at the same place. What both have is the same, because frames are chained: two logs with the
// same checksum at an index are the same up to there.
//
// What the package guarantees:
//   - Nothing is reported committed before it is durable on both nodes.
//   - Once a follower has promised an epoch it acknowledges nothing of a lower one, ever; and a leader answers for
//     what is committed only within a lease that the follower's last acknowledgement gave. So when a new leader has
//     waited for that lease, the old one acknowledges nothing more, whatever happens to it.
//   - A follower cuts off its log only what it does not know to be committed, and saves it first. A log that
//     differs from the leader's in anything that may have been acknowledged is refused.
//   - No byte from the other side is used before it is checked; a session that makes no sense ends, and nothing else.
//
// The protocol is described in docs/format/replication.md, the reasons in docs/adr/0005-pair.md. The model is
// primary-backup as in Viewstamped Replication (Oki and Liskov, 1988), with the view change done by an operator;
// the lease is that of Gray and Cheriton, 1989.
//
// A publish comes here from package broker by Leader.Propose; it goes to package wal and, beside that, to the follower.
package pair

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
)

// DefaultTimeout is for how long the other side may be silent.
const DefaultTimeout = 2 * time.Second

// LeaseMax is the longest lease that a leader may ask for.
const LeaseMax = time.Minute

// Promise is what a data folder has promised, and must keep through every restart.
type Promise struct {
	// Epoch is the highest that was seen, and Leader the node that leads in it. Zero: none yet.
	Epoch  entry.Term
	Leader NodeID
	// Lease is for how long Leader may go on to acknowledge after it has last heard of this node.
	Lease time.Duration
	// First, if not 0, is where the log begins while its history is still on its way: it must not be read, nor lead.
	First entry.Index
	// WholeAt is the entry that the log must reach before it may lead: what lies up to there was acknowledged. 0: none.
	WholeAt entry.Index
	// Alone says that this node has led alone since a follower was last in step: all that is in its log may have been
	// acknowledged, whatever the log shows.
	Alone bool
}

// Wait is how long a node must wait, after it has last acknowledged anything to Leader, until that one acknowledges
// nothing more: its lease, and a little for clocks that do not run at quite the same rate.
func (p Promise) Wait() time.Duration { return p.Lease + p.Lease/16 }

// Promises keeps the promise of a data folder.
type Promises interface {
	Promise() Promise
	// SetPromise returns once the promise is durable. An error means that it may be either.
	SetPromise(Promise) error
}

// FencedError says that this node must not lead: another one does. It is final.
type FencedError struct {
	Epoch  entry.Term // of this node
	Seen   entry.Term // what ended it
	Leader NodeID     // of that epoch
}

func (e *FencedError) Error() string {
	if e.Seen == e.Epoch {
		return fmt.Sprintf("node %v leads with the same epoch %d: nothing was changed; decide which node leads and give it a higher -epoch", e.Leader, e.Epoch)
	}
	return fmt.Sprintf("fenced: epoch %d of this leader is over, node %v leads with epoch %d: start this node with -role follower", e.Epoch, e.Leader, e.Seen)
}

// RefusedError says why the other side refused a session.
type RefusedError struct {
	Code    Code
	Message string
}

func (e *RefusedError) Error() string { return "refused by the other node: " + e.Message }

// State says how a session stands.
type State string

// The states that a role can be in.
const (
	StateDisconnected State = "disconnected"
	StateHandshake    State = "handshake"
	StateCatchingUp   State = "catching_up" // what the follower lacks is on its way; no writes
	StateFullSync     State = "full_sync"   // the same, or, when writable, the history is on its way beside the writes
	StateStreaming    State = "streaming"
	StateFenced       State = "fenced"
	StateFailed       State = "failed"
)

// Status says how a role and the other side stand.
type Status struct {
	Epoch     entry.Term
	State     State
	Reason    string      // why not streaming
	Writable  bool        // leader: writes are acknowledged
	Durable   entry.Index // here
	Committed entry.Index
	// The other side, as far as it is known; Contact is zero when it was never heard of.
	Peer        NodeID
	PeerDurable entry.Index
	PeerApplied entry.Index
	Contact     time.Time
	// SyncDone and SyncTotal are bytes of the history of a full sync; total is 0 when none runs.
	SyncDone, SyncTotal int64
}

// Snapshot is the newest snapshot of the leader, as a file. Bytes is 0 when there is none.
type Snapshot struct {
	Index entry.Index
	Bytes int64
	File  io.ReaderAt
}

// History is where a leader has what a new follower needs beside the log.
type History interface {
	// Hold keeps the newest snapshot, and the segments that it does not cover or that hold records, from being
	// removed, until release is called.
	Hold() (s Snapshot, release func(), err error)
}

// Config is what both roles need. All fields but Logger and Observer are required.
type Config struct {
	Self     NodeID
	Promises Promises
	Clock    clock.Clock
	// Timeout is for how long the other side may be silent before the session ends; for the leader also its lease.
	Timeout  time.Duration
	Logger   *slog.Logger
	Observer Observer
	// Fatal is called, at most once and from its own goroutine, when the node must stop.
	Fatal func(error)
}

// Observer receives figures; nil functions are skipped.
type Observer struct {
	Session func()            // a session has begun
	Refused func(Code)        // a session was refused, by either side
	Sent    func(bytes int)   // frames of the log were sent
	Cut     func(entries int) // entries were cut off and saved
	Synced  func(bytes int64) // bytes of the history of a full sync went over
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observer.Session == nil {
		c.Observer.Session = func() {}
	}
	if c.Observer.Refused == nil {
		c.Observer.Refused = func(Code) {}
	}
	if c.Observer.Sent == nil {
		c.Observer.Sent = func(int) {}
	}
	if c.Observer.Cut == nil {
		c.Observer.Cut = func(int) {}
	}
	if c.Observer.Synced == nil {
		c.Observer.Synced = func(int64) {}
	}
	return c
}

// Dial connects to the follower.
type Dial func(ctx context.Context) (Link, error)

// sleep waits for d, or until stop is closed, and reports whether the time has passed.
func sleep(c clock.Clock, d time.Duration, stop <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-stop:
		return false
	}
}
