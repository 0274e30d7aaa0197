package cluster

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"example.com/mq/internal/entry"
)

// What Info.Role says.
const (
	RoleLeader    = "leader"
	RoleFollower  = "follower"
	RoleCandidate = "candidate"
)

// Info says how a node stands.
type Info struct {
	Role         string // RoleLeader, RoleFollower or RoleCandidate
	Term         entry.Term
	Leader       int         // NoNode when none is known
	Commit       entry.Index // known to be committed, and durable here
	Applied      entry.Index // told to the applier
	Last         entry.Index // in the log
	Durable      entry.Index
	Transferring bool // the lead is being handed over
	Stuck        bool // the disk does not answer
	Deciding     bool // the applier decides: it was told to lead
	Peers        []PeerInfo
}

// PeerInfo is what is known of another node. Match, Next, State and NeedsPull are known to a leader only.
type PeerInfo struct {
	Node        int
	Match, Next entry.Index
	State       string        // "probe", "replicate" or "pull"
	LastContact time.Duration // ago; negative when there was none
	Full        bool          // its disk is full
	NeedsPull   bool          // it lags more than the window holds
	Acked       entry.Index   // see Role.Acked
}

// peer is what is known of another node, guarded by Role.mu.
type peer struct {
	contact   time.Duration // the moment, by the clock
	contacted bool
	full      bool
	acked     entry.Index
	pulls     time.Duration // when it was told to pull
	pulling   bool          // raft waits for it
}

// Info returns how this node stands.
func (r *Role) Info() Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info()
}

// info is called with mu held.
func (r *Role) info() Info {
	info := Info{
		Role: RoleFollower, Term: r.term, Leader: r.lead, Commit: r.commit, Applied: r.reported,
		Last: r.cfg.Log.Last(), Durable: r.cfg.Log.Durable(), Transferring: r.transferee != NoNode,
		Stuck: r.stalled.Load(), Deciding: r.led != 0 && r.led == r.leading,
	}
	switch r.state {
	case raft.StateLeader:
		info.Role = RoleLeader
	case raft.StateCandidate, raft.StatePreCandidate:
		info.Role = RoleCandidate
	}
	now := r.cfg.Clock.Monotonic()
	for n := range r.peers {
		if n == r.cfg.Self {
			continue
		}
		p := &r.peers[n]
		one := PeerInfo{Node: n, Full: p.full, Acked: p.acked, LastContact: -1}
		if p.contacted {
			one.LastContact = max(now-p.contact, 0)
		}
		info.Peers = append(info.Peers, one)
	}
	if r.leading != 0 {
		r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
			for i := range info.Peers {
				if p := &info.Peers[i]; p.Node == nodeOf(id) {
					p.Match, p.Next = entry.Index(pr.Match), entry.Index(pr.Next)
					p.NeedsPull = pr.State == tracker.StateSnapshot
					p.State = stateNames[pr.State]
				}
			}
		})
	}
	return info
}

var stateNames = map[tracker.StateType]string{
	tracker.StateProbe: "probe", tracker.StateReplicate: "replicate", tracker.StateSnapshot: "pull",
}

// Acked returns the highest index that a node acknowledged to this process, whatever this node's role is now. It is
// evidence against a node that forgot it.
func (r *Role) Acked(node int) entry.Index {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peers[node].acked
}
