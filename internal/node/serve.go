package node

import (
	"errors"
	"sync"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

var errNotReady = &broker.UnavailableError{Reason: "the node is reading its log and will serve soon"}

// Publish implements httpapi.Broker.
func (n *Node) Publish(p *broker.Publish) (broker.Published, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.Published{}, errNotReady
	}
	return b.Publish(p)
}

// Fetch implements httpapi.Broker.
func (n *Node) Fetch(q *broker.Fetch, sink broker.Sink) (broker.Page, error) {
	b := n.broker.Load()
	if b == nil {
		return broker.Page{}, errNotReady
	}
	return b.Fetch(q, sink)
}

// CommitGroup implements httpapi.Broker.
func (n *Node) CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, errNotReady
	}
	return b.CommitGroup(topic, group, next)
}

// Retain implements httpapi.Broker.
func (n *Node) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, errNotReady
	}
	return b.Retain(topic, start)
}

// Snapshot implements httpapi.Broker.
func (n *Node) Snapshot() (entry.Index, error) {
	b := n.broker.Load()
	if b == nil {
		return 0, errNotReady
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

// EndWaits makes waiting fetches return now, and later ones not wait.
func (n *Node) EndWaits() {
	if b := n.broker.Load(); b != nil {
		b.EndWaits()
	}
}

// fail stops all writes: the disk can no longer be trusted.
func (n *Node) fail(err error) {
	if b := n.broker.Load(); b != nil {
		b.Failed(err)
	}
}

// Status is what /readyz tells.
type Status struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why not
	// While recovering: how much of the log that must be read has been.
	RecoveredBytes int64 `json:"recovered_bytes,omitempty"`
	RecoverBytes   int64 `json:"recover_bytes,omitempty"`
	// StorageFull: publishes are refused until there is room; reads work.
	StorageFull bool `json:"storage_full,omitempty"`
}

// Status says whether the node serves.
func (n *Node) Status() Status {
	b := n.broker.Load()
	if b == nil {
		done, total := n.progress.get()
		return Status{Reason: "recovering: reading the log", RecoveredBytes: done, RecoverBytes: total}
	}
	if err := b.Err(); err != nil {
		return Status{Reason: "writes have stopped for good, restart the node: " + err.Error()}
	}
	if err := n.log.Err(); err != nil { // it may fail by itself, and the broker learns that from the next write
		return Status{Reason: "writes have stopped for good, restart the node: " + err.Error()}
	}
	return Status{Ready: true, StorageFull: n.log.Full()}
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
