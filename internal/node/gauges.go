package node

import "example.com/mq/internal/state"

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
	b := n.broker.Load()
	if b == nil {
		return
	}
	var last, topics float64
	b.View(func(s *state.State) { last, topics = float64(s.Applied()), float64(s.Topics()) })
	set("log_last_index", last)
	set("topics", topics)
	var bytes int64
	segments := n.log.Segments()
	for _, s := range segments {
		bytes += s.Bytes
	}
	set("log_segments", float64(len(segments)))
	set("log_disk_bytes", float64(bytes))
	full := 0.0
	if n.log.Full() {
		full = 1
	}
	set("storage_full", full)
	set("snapshot_index", float64(n.keeper.newest.Load()))
}
