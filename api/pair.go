package api

// PairStatus answers GET /replication/status: what this node knows of the pair. Indexes are those of the log.
type PairStatus struct {
	Role     string `json:"role"` // leader or follower
	NodeID   string `json:"node_id"`
	LogID    string `json:"log_id"` // empty: a follower that has no log yet
	Epoch    uint64 `json:"epoch"`  // the highest that this node has seen
	State    string `json:"state"`  // disconnected, handshake, catching_up, full_sync, streaming, fenced or failed
	Reason   string `json:"reason,omitempty"`
	Writable bool   `json:"writable"` // a leader that acknowledges writes now

	LastIndex      uint64 `json:"last_index"`      // of the last entry in the log
	DurableIndex   uint64 `json:"durable_index"`   // up to here the log is synced
	CommittedIndex uint64 `json:"committed_index"` // up to here it is known to be synced on both nodes
	AppliedIndex   uint64 `json:"applied_index"`   // up to here it can be read

	Peer PairPeer  `json:"peer"`
	Sync *PairSync `json:"sync,omitempty"` // while a full sync runs
}

// PairPeer is what a node knows of the other one.
type PairPeer struct {
	NodeID        string `json:"node_id"`
	Address       string `json:"address"` // on the leader: the URL of its follower
	DurableIndex  uint64 `json:"durable_index"`
	AppliedIndex  uint64 `json:"applied_index"`
	LagEntries    uint64 `json:"lag_entries"`     // entries that the follower's disk does not have yet
	LastContactMS int64  `json:"last_contact_ms"` // milliseconds since the other node was last heard; -1: never
}

// PairSync tells how far a full sync has come.
type PairSync struct {
	DoneBytes  int64 `json:"done_bytes"`
	TotalBytes int64 `json:"total_bytes"`
}
