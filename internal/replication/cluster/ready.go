package cluster

import (
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
)

// ready hands on all that raft has to say after it was called. Called with mu held, after every call of the library.
func (r *Role) ready() {
	for r.node.HasReady() {
		rd := r.node.Ready()
		r.follow(&rd)
		for _, m := range rd.Messages {
			switch m.GetType() {
			case pb.MsgStorageAppend:
				r.enqueue(m)
			case pb.MsgStorageApply:
				r.committed(m)
			default:
				r.post(m)
			}
		}
		for _, s := range rd.ReadStates {
			r.confirmed(s)
		}
	}
	r.publish()
}

// follow notes who leads, in which term, and what it means when this node begins or ceases to.
func (r *Role) follow(rd *raft.Ready) {
	changed := false
	if rd.HardState != nil && r.term != entry.Term(rd.HardState.GetTerm()) {
		r.term, r.readSent, changed = entry.Term(rd.HardState.GetTerm()), 0, true
	}
	if s := rd.SoftState; s != nil {
		r.state, r.lead = s.RaftState, nodeOf(s.Lead)
		changed = true
	}
	if !changed {
		return
	}
	leading := entry.Term(0)
	if r.state == raft.StateLeader {
		leading = r.term
	}
	if leading != r.leading {
		r.turn(leading, rd)
	}
	if leading == 0 {
		r.reason = "no node leads"
		if r.lead != NoNode {
			r.reason = fmt.Sprintf("node %d leads", r.lead)
		}
	}
	r.transferee, r.later = NoNode, NoNode
	r.broadcast()
}

// turn notes that this node leads in a term from now on, or, with 0, that it does not any more. What is committed in this
// very step is not this node's doing, and comes later.
func (r *Role) turn(leading entry.Term, rd *raft.Ready) {
	r.handing = false // kept stays: the lead may be back in a moment
	if r.leading != 0 {
		if r.led == r.leading && r.lostBy != r.led {
			r.lostAt, r.lostBy = max(r.commit, r.reported), r.led
		}
		for n := range r.peers { // what is not committed may be replaced: then nobody has lost it
			r.peers[n].acked = min(r.peers[n].acked, r.commit)
		}
		r.heir.Store(nil)
		r.endRounds("this node does not lead any more")
		r.electAt = r.cfg.Clock.Monotonic() + r.patience()
		r.cfg.Logger.Info("this node does not lead any more", "term", uint64(r.leading))
		if r.cfg.Observer.Lost != nil {
			r.cfg.Observer.Lost(r.leading)
		}
	}
	r.leading = leading
	if leading == 0 {
		return
	}
	invariant.Check(len(rd.Entries) > 0, "term %d begins without an entry", leading)
	r.marker = entry.Index(rd.Entries[len(rd.Entries)-1].GetIndex())
	for n := range r.peers {
		r.peers[n].pulling = false
	}
	r.cfg.Logger.Info("this node leads", "term", uint64(leading))
	if r.cfg.Observer.Elected != nil {
		r.cfg.Observer.Elected(leading)
	}
}

// enqueue takes what raft wants to be durable.
func (r *Role) enqueue(m *pb.Message) {
	hard := r.hard
	if m.Term != nil {
		hard = Hard{Term: entry.Term(m.GetTerm()), Vote: nodeOf(m.GetVote())}
	}
	r.window.append(m.GetEntries())
	for _, a := range m.GetResponses() {
		if a.GetType() == pb.MsgVoteResp && !a.GetReject() && a.GetTo() != idOf(r.cfg.Self) {
			r.electAt = r.cfg.Clock.Monotonic() + r.patience() // the one voted for gets its time
		}
	}
	// That more is committed need not be durable.
	if hard == r.hard && len(m.GetEntries()) == 0 && len(m.GetResponses()) == 0 {
		return
	}
	r.hard = hard
	r.queue = append(r.queue, m)
	signal(r.drain)
}

// committed notes what is committed and durable here. It is applied by others, so that raft need not wait.
func (r *Role) committed(m *pb.Message) {
	list := m.GetEntries()
	r.commit = max(r.commit, entry.Index(list[len(list)-1].GetIndex()))
	for _, a := range m.GetResponses() {
		_ = r.node.Step(a)
	}
	r.window.trim(uint64(r.commit), r.cfg.Window)
}

// post queues a message for another node. Called with mu held.
func (r *Role) post(m *pb.Message) {
	switch m.GetType() {
	case pb.MsgApp:
		if r.lazy && len(m.GetEntries()) == 0 && r.streams(m) {
			return // the next entries tell, or the next heartbeat
		}
		for _, e := range m.GetEntries() {
			if e.GetData() == nil { // this node's marker is not in the log yet
				r.held = append(r.held, m)
				return
			}
		}
	case pb.MsgHeartbeat:
		if n := readNumber(m.GetContext()); n > r.readSent {
			r.readSent = n
		}
	case pb.MsgSnap:
		if r.mute {
			return
		}
		p := &r.peers[nodeOf(m.GetTo())]
		p.pulling, p.pulls = true, r.cfg.Clock.Monotonic()
		m.Snapshot = nil
	}
	r.out = append(r.out, m)
}

// streams reports whether a node gets entries one after the other, and has been sent all that it needs before m. Else a
// message without entries asks it what it has.
func (r *Role) streams(m *pb.Message) (streams bool) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == m.GetTo() {
			streams = pr.State == tracker.StateReplicate && pr.Next == m.GetIndex()+1
		}
	})
	return streams
}

// send encodes and sends what is queued, in order. Called without mu.
func (r *Role) send() {
	r.sending.Lock()
	defer r.sending.Unlock()
	for {
		r.mu.Lock()
		list := r.out
		r.out = nil
		silent := r.err != nil || r.closed
		r.mu.Unlock()
		if len(list) == 0 {
			return
		}
		full := r.cfg.Full()
		for _, m := range list {
			if silent || r.stalled.Load() && fromLeader(m.GetType()) {
				continue // who cannot write must not keep others from electing a leader
			}
			r.transmit(m, full)
		}
	}
}

// fromLeader reports whether messages of a type keep followers from electing another leader.
func fromLeader(t pb.MessageType) bool {
	return t == pb.MsgApp || t == pb.MsgHeartbeat || t == pb.MsgSnap
}

// transmit sends one message.
func (r *Role) transmit(m *pb.Message, full bool) {
	packet := encode(r.cfg.LogID, m, full)
	if r.cfg.Observer.Sent != nil {
		r.cfg.Observer.Sent(messageNames[packet[5]], len(packet))
	}
	r.cfg.Send(nodeOf(m.GetTo()), packet)
}

// heir is the node that a leader hands over to when it cannot go on.
type heir struct {
	term entry.Term
	node int
}

// best returns the node that would lead best, NoNode if none is in touch: the one that has most, and has room. Called
// with mu held, by a leader.
func (r *Role) best() int {
	best, match := NoNode, uint64(0)
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		n := nodeOf(id)
		if n == r.cfg.Self || !pr.RecentActive || pr.State == tracker.StateSnapshot || r.peers[n].full {
			return
		}
		if best == NoNode || pr.Match > match {
			best, match = n, pr.Match
		}
	})
	return best
}

// handOver asks the best of the others to lead in place of this node, which cannot go on. It takes no lock.
func (r *Role) handOver(term entry.Term) {
	h := r.heir.Load()
	if h == nil || h.term != term {
		return
	}
	r.transmit(&pb.Message{
		Type: pb.MsgTimeoutNow.Enum(), From: new(idOf(r.cfg.Self)), To: new(idOf(h.node)), Term: new(uint64(term)),
	}, false)
}
