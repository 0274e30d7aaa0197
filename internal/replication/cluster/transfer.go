package cluster

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"

	"example.com/mq/internal/replication"
)

// Transfer hands the lead over to a node, or with NoNode to the one that has most. It returns nil when another node
// leads. It may fail, and this node leads on: when the other one does not get so far within an election timeout, or ctx
// ends before. An *UnavailableError says that this node does not lead.
func (r *Role) Transfer(ctx context.Context, to int) error {
	err := r.locked(func() error {
		if r.leading == 0 {
			return &replication.UnavailableError{Reason: r.reason}
		}
		if to == NoNode {
			to = r.best()
		}
		if to < 0 || to >= r.cfg.Nodes || to == r.cfg.Self {
			return &replication.UnavailableError{Reason: "no other node can take the lead"}
		}
		r.handTo(to)
		return nil
	})
	if err != nil {
		return err
	}
	for {
		r.mu.Lock()
		changed, err := r.changed, r.usable()
		lead, leading, transferee := r.lead, r.leading, r.transferee
		r.mu.Unlock()
		switch {
		case err != nil:
			return err
		case leading == 0 && lead != NoNode:
			return nil
		case leading != 0 && transferee == NoNode:
			return fmt.Errorf("node %d has not taken the lead within an election timeout", to)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("node %d has not taken the lead yet", to), ctx.Err())
		}
	}
}

// handTo begins to hand the lead over to a node. Called with mu held, by a leader.
func (r *Role) handTo(node int) {
	if r.giving { // raft would not take what is in the log any more
		r.later, r.transferee = node, node
		r.broadcast()
		return
	}
	r.node.TransferLeader(idOf(node))
	if r.node.BasicStatus().LeadTransferee != raft.None {
		r.transferee = node
		r.broadcast()
	}
}
