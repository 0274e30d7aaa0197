// Package cluster is the role of a node of a Raft cluster: an entry is committed when a majority has it on disk.
// go.etcd.io/raft is the engine; it does no I/O. This package drives it: it writes to the log of package wal, which is
// raft's log (one raft entry is one frame), sends and checks messages, keeps time, and tells the applier what is
// committed and whether it decides.
//
// It guarantees that nothing is acknowledged, to a client or to another node, before it is durable here; that term and
// vote are durable before they are spoken of; that all nodes write the same bytes; that no packet makes the library
// panic; and that a node whose disk hangs does not keep the lead. It never cuts what is committed, never reads the disk
// for raft, and uses no randomness but Config.Random.
//
// Goroutines: one ticks, one writes what comes from other nodes, one applies what others decided, one watches the disk.
// Propose, Receive and Confirm run in the goroutines of their callers. Close ends all.
//
// A publish comes from package broker by Propose and goes to package wal and, as packets, to the other nodes.
// docs/format/raft.md has the format of these.
package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

const (
	// NodesMax is how many nodes a cluster may have.
	NodesMax = 9

	defaultElectionTimeout = 500 * time.Millisecond
	defaultWindow          = 32 << 20
	// loadBytes is how much of the log is read at the start, in whole segments, though it is known to be committed.
	loadBytes = 4 << 20

	electionTicks  = 10 // of an election timeout
	heartbeatTicks = 1

	// messageBytes is how much a message to another node carries, unless one entry alone is larger.
	messageBytes  = 2 << 20
	inflightMax   = 256      // messages on their way to one node
	inflightBytes = 16 << 20 // in them

	// What waits for a majority; beyond it Propose refuses.
	uncommittedBytesMax   = 64 << 20
	uncommittedEntriesMax = 100_000

	// waitingBytesMax bounds the entries that wait for the disk of a follower; beyond it they are refused, and the
	// leader sends them again.
	waitingBytesMax = 64 << 20

	// pullPause is how long a node that has to pull what it lacks is left alone before raft probes it again.
	pullPause = time.Second
	// fullPause is how long a leader that gave its lead away because of a full disk waits before it does so again. When the
	// other node did not take it, it waits two election timeouts at first, and twice as long each time, up to that.
	fullPause = time.Minute
	// fullRetry is how often a follower whose disk is full tries to write again.
	fullRetry = 250 * time.Millisecond
)

// NoNode stands for no node, where a node's number is asked for.
const NoNode = -1

// Hard is what a node must not forget.
type Hard struct {
	Term entry.Term
	Vote int // the number of the node voted for in Term, NoNode for none
}

// Config says what a role works on. All fields are required but those with a default, Commit, Hard and the functions
// that are said to be optional.
type Config struct {
	Self, Nodes int // the number of this node, from 0 on, and how many there are
	LogID       entry.LogID
	Log         *wal.Log    // open; everything up to Last is durable
	Applied     entry.Index // applied by the applier already; committed
	Commit      entry.Index // known to be committed, >= Applied (else Applied counts), <= Last
	// Hard is what Save was given last; the zero Hard for a node that never voted.
	Hard Hard
	// Save makes it durable before it returns. An error is final: the role fails.
	Save    func(Hard) error
	Applier replication.Applier
	// Marker adds, by Begin and End, the one entry with which a leader begins its term. timeMS is the stamp of the last
	// entry in the log: time never goes back.
	Marker func(f *wal.Frames, timeMS int64)
	// Send sends a packet to another node. It never blocks, and may drop. The role does not touch packet afterwards.
	Send  func(to int, packet []byte)
	Clock clock.Clock
	// Random decides when elections begin: the only randomness that influences what the role does. It is used by one
	// goroutine at a time.
	Random *rand.Rand
	// ElectionTimeout is how long a node waits for a leader, at least, before it tries to lead. Default 500 ms. A
	// tenth of it is a tick, the time between two heartbeats.
	ElectionTimeout time.Duration
	// DiskTimeout is how long a write or sync may take before a leader gives up its lead. Default ElectionTimeout.
	DiskTimeout time.Duration
	// Window is how many bytes of entries that are committed and applied are kept in memory, for nodes that lag. A node
	// that lags more is told to pull them. Default 32 MiB.
	Window int64
	// Full reports whether the disk is full for ordinary entries. Optional.
	Full func() bool
	// Behind is called, from a goroutine of its own, when the leader says that this node has to pull what it lacks:
	// it must close this role, do so, and make a new one. It may be called again and again. Optional.
	Behind func(leader int)
	// Fatal is called, from a goroutine of its own and once, when this node must not go on: its log contradicts the
	// leader's, it has lost what it acknowledged, its log cannot be read, or the library panicked. Optional.
	Fatal func(error)
	// Logger gets what an operator should know. Default: discarded.
	Logger *slog.Logger
	// Observer is called for figures; nil functions are skipped.
	Observer Observer
}

// Observer receives figures. The functions must be quick.
type Observer struct {
	Elected   func(term entry.Term)                 // this node leads
	Lost      func(term entry.Term)                 // it does not any more
	Sent      func(kind string, bytes int)          // a packet
	Synced    func(d time.Duration, entries int)    // one sync, and for how many entries
	Confirmed func(d time.Duration, waiters int)    // one round that confirmed the lead
	Stalled   func(d time.Duration)                 // the disk did not answer for d, so far
	Refused   func(from int, refused *RefusedError) // a packet
}

// withDefaults returns c with zero fields replaced, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Nodes < 1 || c.Nodes > NodesMax || c.Self < 0 || c.Self >= c.Nodes:
		return c, fmt.Errorf("cluster: node %d of %d: want 1 to %d nodes, numbered from 0", c.Self, c.Nodes, NodesMax)
	case c.Log == nil || c.Applier == nil || c.Save == nil || c.Send == nil || c.Clock == nil || c.Random == nil || c.Marker == nil:
		return c, errors.New("cluster: Log, Applier, Save, Marker, Send, Clock and Random are required")
	case c.Hard.Vote < NoNode || c.Hard.Vote >= c.Nodes || c.Hard.Term > termMax:
		return c, fmt.Errorf("cluster: a vote for node %d of %d in term %d", c.Hard.Vote, c.Nodes, c.Hard.Term)
	}
	if c.Hard.Term == 0 {
		c.Hard.Vote = NoNode
	}
	c.Commit = max(c.Commit, c.Applied)
	if last := c.Log.Last(); c.Commit > last {
		return c, fmt.Errorf("cluster: entry %d is committed, and the log ends with entry %d", c.Commit, last)
	}
	if c.ElectionTimeout <= 0 {
		c.ElectionTimeout = defaultElectionTimeout
	}
	if c.DiskTimeout <= 0 {
		c.DiskTimeout = c.ElectionTimeout
	}
	if c.Window <= 0 {
		c.Window = defaultWindow
	}
	if c.Full == nil {
		c.Full = func() bool { return false }
	}
	if c.Behind == nil {
		c.Behind = func(int) {}
	}
	if c.Fatal == nil {
		c.Fatal = func(error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
