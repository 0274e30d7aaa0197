package main

import (
	"fmt"
	"strings"

	"example.com/mq/api"
)

// The phases and states of api.RaftStatus that decide.
const (
	phaseWhole     = "whole"
	stateReplicate = "replicate"
)

// judgeCluster says in one line how the cluster stands, and whether all is well: each node that was asked answers, they are
// nodes of one cluster, one of them or one that they name leads, and nothing is wrong with any node as far as anybody knows.
func judgeCluster(members []member) (verdict string, ok bool) {
	var wrong []string
	for _, m := range members {
		if m.RaftStatus == nil {
			wrong = append(wrong, m.URL+": "+m.Error)
		}
	}
	best := bestView(members)
	if best == nil {
		return visible(strings.Join(wrong, "; ")), false
	}
	if s := judgeMembers(members); s != "" {
		return visible(strings.Join(append(wrong, s), "; ")), false
	}
	if s := judgeLead(best, members); s != "" {
		wrong = append(wrong, s)
	}
	said := make(map[int]member)
	for _, m := range members {
		if m.RaftStatus != nil {
			said[m.Node] = m
		}
	}
	for i, n := range nodesOf(members) {
		m, asked := said[i]
		who, reason := fmt.Sprintf("node %d (%s)", i, n.URL), n.Reason
		if asked && m.Reason != "" {
			reason = m.Reason
		}
		if s := judgeRaftNode(&n, i == best.Node, best.Role == api.RaftLeader); s != "" {
			wrong = append(wrong, who+" "+s+because(reason))
		}
	}
	if len(wrong) > 0 {
		return visible(strings.Join(wrong, "; ")), false
	}
	leader := best.URL
	if best.Leader != nil {
		leader = *best.Leader
	}
	verdict = fmt.Sprintf("all is well: %s leads %s in term %d", leader, count(uint64(len(best.Nodes)), "node"), best.Term)
	if best.Role != api.RaftLeader {
		verdict = fmt.Sprintf("nothing is wrong as far as %s knows: %s leads in term %d; give all URLs, or the leader's, to know more", best.URL, leader, best.Term)
	}
	return visible(verdict), true
}

// judgeMembers says why the nodes that answered are not those of one cluster; empty when they are.
func judgeMembers(members []member) string {
	var first *member
	seen := make(map[int]string)
	for i := range members {
		m := &members[i]
		if m.RaftStatus == nil {
			continue
		}
		if other, twice := seen[m.Node]; twice {
			return fmt.Sprintf("%s and %s are both node %d: give each node once, and make sure that no two have the same -raft-self", other, m.URL, m.Node)
		}
		seen[m.Node] = m.URL
		switch {
		case first == nil:
			first = m
		case len(m.Nodes) != len(first.Nodes):
			return fmt.Sprintf("no one cluster: %s has %s, %s has %d", first.URL, count(uint64(len(first.Nodes)), "node"), m.URL, len(m.Nodes))
		case m.LogID != first.LogID && m.LogID != "" && first.LogID != "":
			return fmt.Sprintf("no one cluster: %s has log %s, %s has log %s", first.URL, first.LogID, m.URL, m.LogID)
		}
		if first.LogID == "" {
			first = m
		}
	}
	return ""
}

// judgeLead says what is wrong with who leads; empty for nothing.
func judgeLead(best *member, members []member) string {
	if best.Role != api.RaftLeader && best.Leader == nil {
		return fmt.Sprintf("no node leads, as far as %s knows in term %d", best.URL, best.Term)
	}
	for _, m := range members {
		switch {
		case m.RaftStatus == nil || m.URL == best.URL:
		case m.Role == api.RaftLeader && best.Role == api.RaftLeader:
			return fmt.Sprintf("%s leads in term %d, and %s still takes itself for the leader of term %d", best.URL, best.Term, m.URL, m.Term)
		case m.Phase == phaseWhole && m.Leader == nil:
			return fmt.Sprintf("%s knows of no leader", m.URL)
		case m.Leader != nil && best.Leader != nil && *m.Leader != *best.Leader:
			return fmt.Sprintf("%s takes %s for the leader, %s takes %s", m.URL, *m.Leader, best.URL, *best.Leader)
		}
	}
	return ""
}

// judgeRaftNode says what is wrong with a node; empty for nothing. self says that it is the one whose view it is, and leads
// that this one leads, and so knows how it sends to the node.
func judgeRaftNode(n *api.RaftNode, self, leads bool) string {
	switch {
	case !self && !n.Connected:
		return "is not connected"
	case n.Phase != "" && n.Phase != phaseWhole:
		return "is " + n.Phase
	case n.DiskFull:
		return "has a full disk"
	case leads && !self && n.State != stateReplicate:
		return fmt.Sprintf("is being caught up (%s), %d entries behind", n.State, n.LagEntries)
	}
	return ""
}
