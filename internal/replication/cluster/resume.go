package cluster

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/replication"
)

// Resume says that all that is proposed from now on is decided on top of the entries that were applied before the last
// Applier.Lead. Between Start, or Applier.Follow, and a Resume that comes after Lead, Propose answers an
// *replication.UnavailableError, and so does Resume until the role is about to call Lead. It never waits. It must not be
// called while a Propose runs.
//
// Why it is there: whoever decides may have begun under a lead that is over, on top of entries that were cut. When it proposes
// then, this node may lead again, and its log be as long as it was.
func (r *Role) Resume() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.led == 0 || r.led != r.leading {
		return &replication.UnavailableError{Reason: r.whyNot()}
	}
	r.resumed = r.led
	return nil
}

// Urgent reports whether a packet may overtake those that wait to be sent: votes, heartbeats and what answers them, and
// the word to take over. Entries may not: whoever gets one before the one that it follows refuses it.
func Urgent(packet []byte) bool {
	if len(packet) < packetHeader || int(packet[5]) >= len(messageTypes) {
		return false
	}
	switch messageTypes[packet[5]] {
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgTimeoutNow:
		return true
	}
	return false
}
