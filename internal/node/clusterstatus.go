package node

import (
	"context"
	"net"
	"sync"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/catchup"
	"example.com/mq/internal/mesh"
	"example.com/mq/internal/replication/cluster"
	"example.com/mq/internal/state"
)

// statusTimeout is how long a status waits for what the other nodes say of themselves.
const statusTimeout = 500 * time.Millisecond

// startMesh connects the node to the others by streams. It is called before any other method that needs them.
func (c *Cluster) startMesh(dial func(ctx context.Context, to int) (net.Conn, error), observer mesh.Observer) {
	c.mesh = mesh.New(mesh.Config{
		Self: c.cc.Self, Nodes: len(c.cc.URLs), Dial: dial, Hello: c.hello, Check: c.checkHello,
		Packet: c.PeerPacket, Answer: c.PeerAnswer, Lost: c.PeerLost, Urgent: cluster.Urgent,
		Clock: c.cfg.Clock, Random: c.seeds(), Logger: c.logger, Observer: observer,
	})
	c.cc.Send, c.cc.Call = c.mesh.Send, c.mesh.Call
	c.mesh.Start()
}

// hello is how this node greets another one.
func (c *Cluster) hello() mesh.Hello {
	st := c.store.state()
	return mesh.Hello{Fingerprint: c.print, NodeID: nodeID(st.NodeID), LogID: logIDOf(st.LogID), Boot: st.Boot, Nonce: st.Nonce}
}

// checkHello says whether a node may connect: any may. It is told what it is, when it introduces itself, and packets of
// raft say whose log they are about.
func (c *Cluster) checkHello(int, mesh.Hello) error { return nil }

// ServePeer holds a stream of another node, which has connected. It returns when it has ended.
func (c *Cluster) ServePeer(conn net.Conn) {
	select {
	case <-c.begun:
		c.mesh.Serve(conn)
	case <-c.ctx.Done():
	}
}

// RaftRole says what this node is.
func (c *Cluster) RaftRole() api.RaftRole {
	st := c.store.state()
	out := api.RaftRole{Role: api.RaftFollower, Node: c.cc.Self, Term: st.Term}
	leader := -1
	if role := c.role.Load(); role != nil {
		info := role.Info()
		out.Role, out.Term, leader = info.Role, max(out.Term, uint64(info.Term)), info.Leader
		out.CommitIndex, out.AppliedIndex = uint64(info.Commit), uint64(info.Applied)
	} else {
		leader, _ = c.leader()
		if n := c.life.Load(); n != nil {
			out.CommitIndex, out.AppliedIndex = uint64(n.committed), uint64(n.committed)
		}
	}
	out.Leader = c.urlOf(leader)
	return out
}

// urlOf returns the address of a node, nil for none.
func (c *Cluster) urlOf(node int) *string {
	if node < 0 || node >= len(c.cc.URLs) {
		return nil
	}
	return &c.cc.URLs[node]
}

// RaftStatus says how the cluster stands, as far as this node knows. It asks the others how they are.
func (c *Cluster) RaftStatus() api.RaftStatus {
	st, own := c.store.state(), c.RaftRole()
	out := api.RaftStatus{
		Role: own.Role, Node: own.Node, Term: own.Term, Leader: own.Leader, NodeID: st.NodeID, LogID: st.LogID,
		Phase: string(st.Phase), CommitIndex: own.CommitIndex, AppliedIndex: own.AppliedIndex,
	}
	c.mu.Lock()
	out.Reason = c.reason
	if c.outcast != "" {
		out.Phase = c.outcast
	}
	c.mu.Unlock()
	if n := c.life.Load(); n != nil {
		out.LastIndex, out.DurableIndex, out.DiskFull = uint64(n.log.Last()), uint64(n.log.Durable()), n.log.NextFull()
		out.SnapshotIndex = n.keeper.newest.Load()
	}
	var info cluster.Info
	if role := c.role.Load(); role != nil {
		info = role.Info()
	}
	var meshed []mesh.PeerInfo
	select {
	case <-c.begun:
		if c.mesh != nil {
			meshed = c.mesh.Peers()
		}
	default: // Recover was not called yet
		return out
	}
	told := c.askStanding()
	for i, url := range c.cc.URLs {
		node := api.RaftNode{Node: i, URL: url, NodeID: st.Members[i].NodeID, LastContactMS: -1, Term: out.Term}
		if i == c.cc.Self {
			node.Connected, node.Role, node.Phase, node.Reason, node.LastContactMS = true, out.Role, out.Phase, out.Reason, 0
			node.LastIndex, node.DurableIndex, node.AppliedIndex = out.LastIndex, out.DurableIndex, out.AppliedIndex
			node.SnapshotIndex, node.DiskFull, node.MatchIndex = out.SnapshotIndex, out.DiskFull, out.DurableIndex
			out.Nodes = append(out.Nodes, node)
			continue
		}
		if a := told[i]; a != nil {
			node.Role, node.Phase, node.Term = a.Role, a.Phase, uint64(a.Term)
			node.LastIndex, node.AppliedIndex, node.Connected = uint64(a.Last), uint64(a.Commit), true
			if a.Verdict != catchup.VerdictOK {
				node.Reason = a.Objection
			}
		}
		for _, m := range meshed {
			if m.Node != i {
				continue
			}
			node.Connected, node.DroppedPackets = m.Connected, m.Dropped
			if m.Refused != "" {
				node.Reason = m.Refused
			}
			if m.LastContact >= 0 {
				node.LastContactMS = m.LastContact.Milliseconds()
			}
		}
		for _, p := range info.Peers {
			if p.Node == i && own.Role == api.RaftLeader {
				node.MatchIndex, node.State, node.DiskFull = uint64(p.Match), p.State, p.Full
				node.LagEntries = out.LastIndex - min(out.LastIndex, uint64(p.Match))
			}
		}
		out.Nodes = append(out.Nodes, node)
	}
	return out
}

// askStanding asks all others who they are, and returns what they say by number; nil for who does not answer soon.
func (c *Cluster) askStanding() []*catchup.Introduced {
	told := make([]*catchup.Introduced, len(c.cc.URLs))
	if c.role.Load() == nil { // it has not introduced itself yet, and would be taken for what it is not
		return told
	}
	in := c.introduction()
	var asking sync.WaitGroup
	for _, i := range c.others() {
		asking.Go(func() {
			if a, _, err := (catchup.Client{Peer: c.peer(i, statusTimeout)}).Introduce(c.ctx, in); err == nil {
				told[i] = &a
			}
		})
	}
	asking.Wait()
	return told
}

// Status is what /readyz tells.
func (c *Cluster) Status() Status {
	s := Status{Role: string(InCluster)}
	if n := c.life.Load(); n != nil {
		s.StorageFull, s.StorageLow = n.log.Full(), n.room.low.Load()
		if n.broker.Load() == nil {
			s.RecoveredBytes, s.RecoverBytes = n.progress.get()
		}
	}
	leader, reason := c.leader()
	c.mu.Lock()
	if c.outcast != "" {
		leader, reason = -1, c.reason
	}
	c.mu.Unlock()
	switch {
	case c.role.Load() == nil, leader < 0:
		s.Reason = reason
	case leader == c.cc.Self && !c.leading.Load():
		s.Reason = reason
	default:
		s.Ready = true
	}
	return s
}

// Gauges implements metrics.Gauges.
func (c *Cluster) Gauges(set func(name string, value float64)) {
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	set("ready", truth(c.Status().Ready))
	if usage, err := c.fs.Usage(); err == nil {
		set("disk_free_bytes", float64(usage.FreeBytes))
		set("disk_total_bytes", float64(usage.TotalBytes))
	}
	own := c.RaftRole()
	set("raft_term", float64(own.Term))
	set("raft_leader", truth(own.Role == api.RaftLeader))
	set("raft_has_leader", truth(own.Leader != nil))
	set("raft_commit_index", float64(own.CommitIndex))
	set("raft_applied_index", float64(own.AppliedIndex))
	set("raft_whole", truth(c.store.state().Phase == phaseWhole))
	n := c.life.Load()
	if n == nil {
		return
	}
	set("raft_durable_index", float64(n.log.Durable()))
	if b := n.broker.Load(); b != nil {
		n.dataGauges(b, set)
	}
}

// dataGauges tells about the log and the fold.
func (n *Node) dataGauges(b interface {
	View(func(*state.State))
}, set func(name string, value float64)) {
	var last float64
	b.View(func(s *state.State) { last = float64(s.Applied()) })
	set("log_last_index", last)
	n.keptGauges(b, set)
	n.scrubs.gauges(set)
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

// PeerGauges tells, for a leader, how each other node stands.
func (c *Cluster) PeerGauges(set func(name string, peer int, value float64)) {
	role := c.role.Load()
	if role == nil {
		return
	}
	info := role.Info()
	for _, p := range info.Peers {
		if p.Node == c.cc.Self {
			continue
		}
		contact := -1.0
		if p.LastContact >= 0 {
			contact = p.LastContact.Seconds()
		}
		set("raft_peer_last_contact_seconds", p.Node, contact)
		if info.Role == cluster.RoleLeader {
			set("raft_peer_match_index", p.Node, float64(p.Match))
			set("raft_peer_lag_entries", p.Node, float64(info.Last-min(info.Last, p.Match)))
		}
	}
}
