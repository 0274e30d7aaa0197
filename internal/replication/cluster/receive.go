package cluster

import (
	"bytes"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/entry"
)

// Receive takes a packet that came from another node. It keeps packet. A *RefusedError says why nothing came of it; any
// other error, that this role was closed or has failed.
func (r *Role) Receive(from int, packet []byte) error {
	m, refused := decode(packet, r.cfg.LogID, from, r.cfg.Self, r.cfg.Log.Parse)
	if refused != nil {
		return r.refused(from, refused)
	}
	var pull bool
	var fatal error
	err := r.locked(func() error {
		if refused, fatal = r.check(from, m); refused != nil || fatal != nil {
			return nil
		}
		pull = r.step(from, m)
		return nil
	})
	switch {
	case refused != nil:
		return r.refused(from, refused)
	case fatal != nil:
		r.stopHere(fatal)
		return fatal
	case err == nil && pull:
		go r.cfg.Behind(from) // it may close this role, which waits for nobody who calls Receive, but others may
	}
	return err
}

// refused counts a packet that was refused.
func (r *Role) refused(from int, refused *RefusedError) error {
	if r.cfg.Observer.Refused != nil {
		r.cfg.Observer.Refused(from, refused)
	}
	return refused
}

// check compares a message with what this node knows. What passes does not make the library panic. A fatal error says
// that the logs of the nodes are not what they must be. Called with mu held.
func (r *Role) check(from int, m *received) (refused *RefusedError, fatal error) {
	term, last := uint64(r.term), r.window.last()
	if m.term > term+termAhead {
		return refuse(CodeTerm, "term %d, and this node is in term %d", m.term, term), nil
	}
	current := m.term == term
	switch m.typ {
	case pb.MsgApp, pb.MsgHeartbeat, pb.MsgSnap:
		if m.term < term {
			return nil, nil // the library answers that the leader is out of date
		}
		if current && (r.leading != 0 || r.lead != NoNode && r.lead != from) {
			return refuse(CodeStray, "node %d does not lead in term %d", from, term), nil
		}
		if m.typ == pb.MsgHeartbeat && m.commit > last {
			return nil, &LostError{Acknowledged: entry.Index(m.commit), Last: entry.Index(last), Leader: from}
		}
		if m.typ == pb.MsgApp {
			return r.checkAppend(m)
		}
	case pb.MsgAppResp:
		if current && r.leading != 0 && m.index > last {
			return refuse(CodeStray, "it acknowledges entry %d, and the log ends with entry %d", m.index, last), nil
		}
	case pb.MsgHeartbeatResp:
		if readNumber(m.Context) > r.readSent {
			return refuse(CodeStray, "it confirms read %d of %d", readNumber(m.Context), r.readSent), nil
		}
	case pb.MsgTimeoutNow:
		if !current || r.lead != from {
			return refuse(CodeStray, "node %d does not lead in term %d, and asks this node to", from, term), nil
		}
		if r.full || r.stalled.Load() {
			return refuse(CodeFull, "the disk of this node takes no entries"), nil
		}
	}
	return nil, nil
}

// checkAppend looks whether entries that are committed here are the leader's, too, and whether there is room for those
// that are not here.
func (r *Role) checkAppend(m *received) (refused *RefusedError, fatal error) {
	for _, e := range m.Entries {
		i := e.GetIndex()
		if i > uint64(r.commit) {
			break
		}
		if i > r.window.base && !bytes.Equal(r.window.at(i).GetData(), e.GetData()) {
			return nil, &DivergedError{Index: entry.Index(i), What: "it is committed here, and the leader has another one"}
		}
	}
	if beginsSegment(m.Entries) && r.cfg.Full() {
		// What is not on disk could not be taken back, and nothing could be written behind it: not by this node as leader, either.
		return refuse(CodeFull, "there is no room for the segment that begins with them"), nil
	}
	if len(m.Entries) > 0 && (r.full || r.stalled.Load()) {
		waiting := 0
		for _, q := range r.queue {
			waiting += entryBytes(q.GetEntries())
		}
		if waiting > waitingBytesMax {
			return refuse(CodeFull, "%d bytes wait for the disk", waiting), nil
		}
	}
	return nil, nil
}

// beginsSegment reports whether one of the entries, which were checked, begins a segment.
func beginsSegment(list []*pb.Entry) bool {
	for _, e := range list {
		if _, extra := frameOf(e.GetData()); len(extra) > 0 {
			return true
		}
	}
	return false
}

// step gives raft a message that was checked, and notes what it tells. It reports whether this node has to pull. Called
// with mu held.
func (r *Role) step(from int, m *received) (pull bool) {
	now := r.cfg.Clock.Monotonic()
	p := &r.peers[from]
	p.contact, p.contacted, p.full = now, true, m.full
	r.heard()
	switch m.typ {
	case pb.MsgAppResp:
		if !m.reject && m.term == uint64(r.term) && r.leading != 0 {
			p.acked = max(p.acked, entry.Index(m.index))
			r.lazy = true
		}
		r.awake(from, now)
	case pb.MsgHeartbeatResp:
		r.awake(from, now)
	case pb.MsgSnap:
		// Raft does not get it, but hears of the leader.
		m.typ = pb.MsgHeartbeat
		pull = m.term >= uint64(r.term)
	}
	// An error only says that the message is of no use.
	_ = r.node.Step(&m.Message)
	if fromLeader(m.typ) && m.term >= uint64(r.term) {
		r.electAt = now + r.patience()
	}
	return pull
}

// awake lets raft look again at a node that was told to pull, and is heard of: it may have done so, or have failed to.
// Raft has noted where the window began when it told the node to; by now that may be long gone.
//
//  1. The failure is reported: raft looks at the node as it last knew it, and finds that it lags.
//  2. Raft would tell it to pull again, and notes where the window begins now. That is not sent.
//  3. Success is reported: raft asks whether the node has the entry before the window. If it has not, it is told to pull.
//
// Called with mu held.
func (r *Role) awake(from int, now time.Duration) {
	p := &r.peers[from]
	if !p.pulling || now-p.pulls < pullPause || r.leading == 0 {
		return
	}
	p.pulling = false
	heard := &pb.Message{
		Type: pb.MsgHeartbeatResp.Enum(), From: new(idOf(from)), To: new(idOf(r.cfg.Self)), Term: new(uint64(r.leading)),
	}
	r.node.ReportSnapshot(idOf(from), raft.SnapshotFailure)
	_ = r.node.Step(heard)
	r.mute = true
	r.ready()
	r.mute = false
	r.node.ReportSnapshot(idOf(from), raft.SnapshotFinish)
	_ = r.node.Step(heard)
}

// Unreachable says that packets to a node may have been lost.
func (r *Role) Unreachable(node int) {
	// Closed or failed: then it does not matter.
	_ = r.locked(func() error {
		if node == r.cfg.Self || node < 0 || node >= r.cfg.Nodes {
			return fmt.Errorf("BUG: cluster: node %d is unreachable for node %d", node, r.cfg.Self)
		}
		r.node.ReportUnreachable(idOf(node))
		r.peers[node].pulls -= pullPause // when it is heard of again, raft looks at once
		return nil
	})
}
