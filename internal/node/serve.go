package node

import (
	"context"
	"errors"
	"sync"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication/pair"
)

// notReady says why there is no broker yet, and whether the outcome of what was asked for is unknown.
func (n *Node) notReady(unknown bool) error {
	if n.cfg.Role == Follower {
		return &broker.NotLeaderError{}
	}
	reason := "the node is reading its log and will serve soon"
	if n.waiting.Load() {
		reason = takingOver
	}
	return &broker.UnavailableError{Reason: reason, Unknown: unknown}
}

// Publish implements httpapi.Broker.
func (n *Node) Publish(p *broker.Publish) (broker.Published, error) {
	b := n.broker.Load()
	if b == nil {
		// An earlier attempt with the same request id may stand in the log.
		return broker.Published{}, n.notReady(len(p.RequestID) > 0)
	}
	return b.Publish(p)
}

// Fetch implements httpapi.Broker.
func (n *Node) Fetch(q *broker.Fetch, sink broker.Sink) (broker.Page, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.Page{}, n.notReady(false)
	}
	return b.Fetch(q, sink)
}

// CommitGroup implements httpapi.Broker.
func (n *Node) CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, n.notReady(false)
	}
	return b.CommitGroup(topic, group, next)
}

// Retain implements httpapi.Broker.
func (n *Node) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, n.notReady(false)
	}
	return b.Retain(topic, start)
}

// ConfigureTopic implements httpapi.Broker.
func (n *Node) ConfigureTopic(c *broker.Configure) (broker.Settings, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.Settings{}, n.notReady(false)
	}
	return b.ConfigureTopic(c)
}

// DeleteTopic implements httpapi.Broker.
func (n *Node) DeleteTopic(topic []byte) (end fact.Offset, err error) {
	b := n.broker.Load()
	if b == nil {
		return 0, n.notReady(false)
	}
	return b.DeleteTopic(topic)
}

// DeleteGroup implements httpapi.Broker.
func (n *Node) DeleteGroup(topic, group []byte) (next fact.Offset, err error) {
	b := n.broker.Load()
	if b == nil {
		return 0, n.notReady(false)
	}
	return b.DeleteGroup(topic, group)
}

// SeekGroup implements httpapi.Broker.
func (n *Node) SeekGroup(q *broker.Seek) (broker.Sought, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.Sought{}, n.notReady(false)
	}
	return b.SeekGroup(q)
}

// ListTopics implements httpapi.Broker.
func (n *Node) ListTopics(q *broker.List) (page []broker.TopicSummary, more bool, err error) {
	b := n.broker.Load()
	if b == nil {
		return nil, false, n.notReady(false)
	}
	return b.ListTopics(q)
}

// DescribeTopic implements httpapi.Broker.
func (n *Node) DescribeTopic(topic []byte, groups int) (broker.TopicDescription, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.TopicDescription{}, n.notReady(false)
	}
	return b.DescribeTopic(topic, groups)
}

// ListGroups implements httpapi.Broker.
func (n *Node) ListGroups(q *broker.List) (page []broker.GroupState, more bool, err error) {
	b := n.broker.Load()
	if b == nil {
		return nil, false, n.notReady(false)
	}
	return b.ListGroups(q)
}

// DescribeGroup implements httpapi.Broker.
func (n *Node) DescribeGroup(topic, group []byte) (broker.GroupState, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.GroupState{}, n.notReady(false)
	}
	return b.DescribeGroup(topic, group)
}

// Snapshot implements httpapi.Broker.
func (n *Node) Snapshot() (entry.Index, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, n.notReady(false)
	}
	if n.cfg.Role == Follower {
		return 0, &broker.NotLeaderError{}
	}
	if err := b.Err(); err != nil {
		return 0, &broker.UnavailableError{Reason: "the disk failed and the node must be restarted: " + err.Error()}
	}
	index, err := n.keeper.Snapshot()
	if unavailable := (*broker.UnavailableError)(nil); err != nil && !errors.Is(err, broker.ErrStorageFull) && !errors.As(err, &unavailable) {
		n.fail(err)
		return 0, &broker.UnavailableError{Reason: "the disk failed: " + err.Error(), Unknown: true}
	}
	return index, err
}

// MayAnswer reports whether this node may still acknowledge what it has called done: a leader that has not heard of its
// follower within its lease may not.
func (n *Node) MayAnswer() bool {
	l := n.leader.Load()
	return l == nil || l.MayAnswer()
}

// EndWaits makes waiting fetches return now, and later ones not wait.
func (n *Node) EndWaits() {
	if b := n.broker.Load(); b != nil {
		b.EndWaits()
	}
}

// HandOver does nothing: there is nobody to take over without an operator.
func (n *Node) HandOver(context.Context) {}

// fail stops all writes: the disk can no longer be trusted.
func (n *Node) fail(err error) {
	n.failFollower(err)
	if n.failed != nil {
		n.failed(err)
	}
	if b := n.broker.Load(); b != nil {
		b.Failed(err)
	}
}

// Status is what /readyz tells.
type Status struct {
	Role   string `json:"role,omitempty"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why not
	// While recovering: how much of the log that must be read has been.
	RecoveredBytes int64 `json:"recovered_bytes,omitempty"`
	RecoverBytes   int64 `json:"recover_bytes,omitempty"`
	// StorageFull: publishes are refused until there is room; reads work.
	StorageFull bool `json:"storage_full,omitempty"`
	// StorageLow: little room is left on the disk.
	StorageLow bool `json:"storage_low,omitempty"`
}

// Status says whether the node serves.
func (n *Node) Status() Status {
	if f := n.follower.Load(); f != nil {
		return n.followerStatus(f)
	}
	b := n.broker.Load()
	if b == nil {
		if n.waiting.Load() {
			return Status{Role: string(n.cfg.Role), Reason: takingOver}
		}
		done, total := n.progress.get()
		return Status{Role: string(n.cfg.Role), Reason: "recovering: reading the log", RecoveredBytes: done, RecoverBytes: total}
	}
	if err := b.Err(); err != nil {
		return Status{Role: string(n.cfg.Role), Reason: "writes have stopped for good, restart the node: " + err.Error()}
	}
	if err := n.log.Err(); err != nil { // it may fail by itself, and the broker learns that from the next write
		return Status{Role: string(n.cfg.Role), Reason: "writes have stopped for good, restart the node: " + err.Error()}
	}
	s := Status{Role: string(n.cfg.Role), Ready: true, StorageFull: n.log.Full(), StorageLow: n.room.low.Load()}
	if l := n.leader.Load(); l != nil {
		if p := l.Pair(); !p.Writable {
			s.Ready, s.Reason = false, "no writes, reads go on: "+p.Reason
		}
	}
	return s
}

// followerStatus says whether a follower keeps up with its leader.
func (n *Node) followerStatus(f *pair.Follower) Status {
	s := Status{Role: string(n.cfg.Role), StorageLow: n.room.low.Load()}
	switch p := f.Pair(); p.State {
	case pair.StateStreaming:
		s.Ready = true
	case pair.StateFullSync:
		s.Reason = "a full sync is under way: this node must not lead yet"
	case pair.StateCatchingUp:
		s.Reason = "what this node lacks is on its way"
	case pair.StateHandshake:
		s.Reason = "the leader has just connected"
	default:
		s.Reason = string(p.State) + ": " + p.Reason
	}
	return s
}

// progress of recovery.
type progress struct {
	mu          sync.Mutex
	done, total int64
}

func (p *progress) set(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
}

func (p *progress) get() (done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done, p.total
}
