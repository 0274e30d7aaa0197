package process

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// PairStatus is what a node of a pair tells of itself.
type PairStatus struct {
	Role      string `json:"role"`
	NodeID    string `json:"node_id"`
	LogID     string `json:"log_id"`
	Epoch     uint64 `json:"epoch"`
	State     string `json:"state"`
	Reason    string `json:"reason"`
	Writable  bool   `json:"writable"`
	Last      uint64 `json:"last_index"`
	Durable   uint64 `json:"durable_index"`
	Committed uint64 `json:"committed_index"`
	Applied   uint64 `json:"applied_index"`
	Peer      struct {
		NodeID  string `json:"node_id"`
		Durable uint64 `json:"durable_index"`
		Applied uint64 `json:"applied_index"`
		Lag     uint64 `json:"lag_entries"`
	} `json:"peer"`
	Sync *struct {
		Done  int64 `json:"done_bytes"`
		Total int64 `json:"total_bytes"`
	} `json:"sync"`
}

// InStep reports whether this is a leader whose follower has everything, its history included.
func (s PairStatus) InStep() bool { return s.Role == "leader" && s.Writable && s.State == "streaming" }

// PairStatus asks a node of a pair how it stands.
func (p *Process) PairStatus() (s PairStatus, err error) {
	status, body, err := p.get("/replication/status", http.Header{"X-Replication-Token": {ReplicationToken}})
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	return s, err
}
