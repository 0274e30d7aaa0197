package api

// What the nodes of a cluster say to each other, and to those who look after it. All paths need HeaderRaftToken, and no
// other token.
const (
	PathRaftStream   = "/raft/stream"   // POST that switches to ProtocolRaft (header Upgrade)
	PathRaftRole     = "/raft/role"     // GET; answers RaftRole
	PathRaftStatus   = "/raft/status"   // GET; answers RaftStatus
	PathRaftTransfer = "/raft/transfer" // POST of TransferRequest or of nothing; answers TransferAnswer

	HeaderRaftToken = "X-Raft-Token"
	ProtocolRaft    = "mq-raft/1"
)

// The roles of RaftRole, RaftStatus and RaftNode.
const (
	RaftLeader    = "leader"
	RaftFollower  = "follower"
	RaftCandidate = "candidate"
)

// RaftRole answers GET /raft/role: what this node is in its cluster, and who leads. Nodes are numbered from 0 on, in the
// order of -raft-peers.
type RaftRole struct {
	Role         string  `json:"role"` // leader, follower or candidate; follower for a node that takes no part yet
	Node         int     `json:"node"`
	Term         uint64  `json:"term"`
	Leader       *string `json:"leader"` // its URL; null: none is known
	CommitIndex  uint64  `json:"commit_index"`
	AppliedIndex uint64  `json:"applied_index"`
}

// RaftStatus answers GET /raft/status: what this node knows of itself and of the others. Indexes are those of the log.
type RaftStatus struct {
	Role   string  `json:"role"`
	Node   int     `json:"node"`
	Term   uint64  `json:"term"`
	Leader *string `json:"leader"` // its URL; null: none is known
	NodeID string  `json:"node_id"`
	LogID  string  `json:"log_id"` // empty: this node has no log yet

	Phase  string `json:"phase"` // new, whole, healing, fetching, quarantined or failed; only a whole node votes
	Reason string `json:"reason,omitempty"`

	LastIndex     uint64 `json:"last_index"`     // of the last entry in the log
	DurableIndex  uint64 `json:"durable_index"`  // up to here the log is synced
	CommitIndex   uint64 `json:"commit_index"`   // up to here it is known to be committed
	AppliedIndex  uint64 `json:"applied_index"`  // up to here it can be read
	SnapshotIndex uint64 `json:"snapshot_index"` // what the newest snapshot covers
	DiskFull      bool   `json:"disk_full"`

	Nodes []RaftNode `json:"nodes"` // all of the cluster by number, this one among them
}

// RaftNode is what a node knows of one node of its cluster. Match and lag are known to the leader only.
type RaftNode struct {
	Node      int    `json:"node"`
	URL       string `json:"url"`
	NodeID    string `json:"node_id,omitempty"` // empty: not known yet
	Connected bool   `json:"connected"`         // packets reach it; true for the node itself

	Role   string `json:"role,omitempty"`   // as far as it is known
	Phase  string `json:"phase,omitempty"`  // as in RaftStatus, as far as it is known
	State  string `json:"state,omitempty"`  // how the leader sends to it: probe, replicate or pull
	Reason string `json:"reason,omitempty"` // why it is not connected, or not whole
	Term   uint64 `json:"term"`

	MatchIndex    uint64 `json:"match_index"` // up to here its log is known to be the leader's, and synced
	LagEntries    uint64 `json:"lag_entries"` // entries of the leader that its disk does not have yet
	LastIndex     uint64 `json:"last_index"`
	DurableIndex  uint64 `json:"durable_index"`
	AppliedIndex  uint64 `json:"applied_index"`
	SnapshotIndex uint64 `json:"snapshot_index"`
	DiskFull      bool   `json:"disk_full"`

	LastContactMS  int64  `json:"last_contact_ms"` // milliseconds since it was last heard; -1: never; 0 for the node itself
	DroppedPackets uint64 `json:"dropped_packets"` // that did not get onto the way to it, since this process started
}

// TransferRequest asks the leader to hand over the lead. An empty body stands for {}.
type TransferRequest struct {
	To *int `json:"to,omitempty"` // the number of the node that is to lead; left out: the one that is the furthest
}

// TransferAnswer is the role of the node that was asked, once another one leads (or To led already).
type TransferAnswer = RaftRole
