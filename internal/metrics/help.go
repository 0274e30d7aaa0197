package metrics

// helps says what each figure is that is read when somebody asks, by its name without the prefix mq_.
var helps = map[string]string{
	"ready":                       "1 when this node can do all its work, as /readyz says; else 0.",
	"disk_free_bytes":             "Bytes that are free on the file system of the data folder.",
	"disk_total_bytes":            "Bytes that the file system of the data folder has in all.",
	"storage_low":                 "1 while the disk is nearly full; else 0.",
	"storage_full":                "1 while the disk is full and publishes are refused; else 0.",
	"topics":                      "Topics that exist.",
	"groups":                      "Groups of readers, counted once for each topic that they read.",
	"request_ids":                 "Request ids of publishes that are remembered, so that a retry is answered as such.",
	"live_records":                "Records that are kept: those at or above the start of their topic.",
	"live_bytes":                  "Bytes of keys and values of the records that are kept.",
	"log_last_index":              "Index of the last entry of the log that is applied.",
	"log_segments":                "Segments of the log, the one that is written to included.",
	"log_disk_bytes":              "Bytes that the segments of the log take on the disk.",
	"snapshot_index":              "Index of the last entry that the newest snapshot covers; 0 without one.",
	"cleaner_blocked":             "1 while the oldest segment of the log cannot be cleaned, so that no room is given back; else 0.",
	"cleaner_moved_bytes_total":   "Bytes of keys and values that the cleaner has moved to the end of the log to give room back.",
	"cleaner_moved_records_total": "Records that the cleaner has moved to the end of the log to give room back.",

	"scrub_damage_total":                "Damaged places that the scrubber has found in the log and the snapshots since the start.",
	"scrub_damaged_places":              "Damaged places that are known and there now, at most 100.",
	"scrub_read_bytes":                  "Bytes that this pass of the scrubber, or the last one, has read.",
	"scrub_pass_bytes":                  "Bytes that this pass of the scrubber, or the last one, reads in all, about.",
	"scrub_pass_seconds":                "Seconds that the last whole pass of the scrubber took; 0 before the first.",
	"scrub_last_pass_timestamp_seconds": "When the last whole pass of the scrubber ended, in seconds since 1970; 0 before the first.",

	"pair_epoch":                "Epoch of the pair: it rises with each failover.",
	"pair_leader":               "1 on the node of the pair that leads; else 0.",
	"pair_in_step":              "1 while the two nodes of the pair are in step: what is acknowledged is on both disks; else 0.",
	"pair_committed_index":      "Index of the last entry that is known to be on both disks of the pair.",
	"pair_durable_index":        "Index of the last entry on the disk of this node of the pair.",
	"pair_peer_durable_index":   "Index of the last entry on the disk of the other node of the pair, as it last said.",
	"pair_peer_applied_index":   "Index of the last entry that the other node of the pair has applied, as it last said.",
	"pair_lag_entries":          "Entries that the follower of the pair is behind.",
	"pair_last_contact_seconds": "Seconds since the other node of the pair was last heard of; -1 for never.",
	"pair_sync_done_bytes":      "Bytes of the history that the full sync which runs has carried; 0 without one.",
	"pair_sync_total_bytes":     "Bytes of the history that the full sync which runs carries in all; 0 without one.",

	"raft_term":          "Term of this node of the cluster: it rises with each election.",
	"raft_leader":        "1 on the node of the cluster that leads; else 0.",
	"raft_has_leader":    "1 while this node knows who leads the cluster; else 0.",
	"raft_commit_index":  "Index of the last entry that this node knows to be on the disks of a majority.",
	"raft_applied_index": "Index of the last entry that this node of the cluster has applied.",
	"raft_durable_index": "Index of the last entry on the disk of this node of the cluster.",
	"raft_whole":         "1 when this node has its whole log and its promises, and votes; 0 while it heals or takes no part.",

	"raft_peer_last_contact_seconds": "Seconds since another node of the cluster was last heard of; -1 for never.",
	"raft_peer_match_index":          "Index up to which the log of another node is known, by the leader, to be that of the leader.",
	"raft_peer_lag_entries":          "Entries that the log of another node is behind that of the leader.",
}

// helpOf never leaves a figure without help: Prometheus takes an empty one, but nobody learns from it.
func helpOf(name string) string {
	if help := helps[name]; help != "" {
		return help
	}
	return "A figure of mqd that has no description yet."
}
