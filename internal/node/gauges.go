package node

import (
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/state"
)

// Gauges implements metrics.Gauges.
func (n *Node) Gauges(set func(name string, value float64)) {
	ready := 0.0
	if n.Status().Ready {
		ready = 1
	}
	set("ready", ready)
	if usage, err := n.fs.Usage(); err == nil {
		set("disk_free_bytes", float64(usage.FreeBytes))
		set("disk_total_bytes", float64(usage.TotalBytes))
	}
	n.pairGauges(set)
	b := n.broker.Load()
	if b == nil {
		return
	}
	n.dataGauges(b, set)
}

// keptGauges tells what is kept, and what the cleaner does about what is not.
func (n *Node) keptGauges(b interface {
	View(func(*state.State))
}, set func(name string, value float64)) {
	b.View(func(s *state.State) {
		set("topics", float64(s.LiveTopics()))
		set("groups", float64(s.Groups()))
		set("request_ids", float64(s.RequestIDs()))
		set("live_records", float64(s.LiveRecords()))
		set("live_bytes", float64(s.LiveBytes()))
	})
	c := n.cleaner.status()
	blocked, low := 0.0, 0.0
	if c.State == cleanerBlocked {
		blocked = 1
	}
	if n.room.low.Load() {
		low = 1
	}
	set("cleaner_blocked", blocked)
	set("cleaner_moved_bytes_total", float64(c.MovedBytes))
	set("cleaner_moved_records_total", float64(c.MovedRecords))
	set("storage_low", low)
}

// pairGauges tells how the pair stands.
func (n *Node) pairGauges(set func(name string, value float64)) {
	if n.cfg.Role == Standalone {
		return
	}
	s := n.PairStatus()
	leads, inStep := 0.0, 0.0
	if n.cfg.Role == Leader {
		leads = 1
	}
	if s.Writable || n.cfg.Role == Follower && s.State == string(pair.StateStreaming) {
		inStep = 1
	}
	set("pair_epoch", float64(s.Epoch))
	set("pair_leader", leads)
	set("pair_in_step", inStep)
	set("pair_committed_index", float64(s.CommittedIndex))
	set("pair_durable_index", float64(s.DurableIndex))
	set("pair_peer_durable_index", float64(s.Peer.DurableIndex))
	set("pair_peer_applied_index", float64(s.Peer.AppliedIndex))
	set("pair_lag_entries", float64(s.Peer.LagEntries))
	contact := -1.0
	if s.Peer.LastContactMS >= 0 {
		contact = float64(s.Peer.LastContactMS) / 1000
	}
	set("pair_last_contact_seconds", contact)
	done, total := 0.0, 0.0
	if s.Sync != nil {
		done, total = float64(s.Sync.DoneBytes), float64(s.Sync.TotalBytes)
	}
	set("pair_sync_done_bytes", done)
	set("pair_sync_total_bytes", total)
}
