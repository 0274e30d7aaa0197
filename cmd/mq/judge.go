package main

import (
	"fmt"
	"strings"

	"example.com/mq/api"
)

// The roles and states of api.PairStatus that decide.
const (
	roleLeader   = "leader"
	roleFollower = "follower"

	stateDisconnected = "disconnected"
	stateHandshake    = "handshake"
	stateCatchingUp   = "catching_up"
	stateFullSync     = "full_sync"
	stateStreaming    = "streaming"
	stateFenced       = "fenced"
	stateFailed       = "failed"
)

// judgePair says in one line how the pair stands, and whether that is well. Of several things that are wrong it
// names the one that the others follow from, as far as the nodes tell.
func judgePair(nodes []nodeStatus) (verdict string, ok bool) {
	var wrong []string
	var answered []nodeStatus
	for _, n := range nodes {
		if n.PairStatus == nil {
			wrong = append(wrong, n.URL+": "+n.Error)
		} else {
			answered = append(answered, n)
		}
	}
	if len(answered) == pairNodes {
		if s := judgeBoth(answered[0], answered[1]); s != "" {
			wrong = append(wrong, s)
		}
	} else {
		for _, n := range answered {
			if s := judgeNode(n); s != "" {
				wrong = append(wrong, s)
			}
		}
	}
	if len(wrong) > 0 {
		return string(appendVisible(nil, []byte(strings.Join(wrong, "; ")))), false
	}
	var leads, follows []string
	for _, n := range answered {
		if n.Role == roleLeader {
			leads = append(leads, fmt.Sprintf("%s leads with epoch %d and takes writes", n.URL, n.Epoch))
		} else {
			follows = append(follows, fmt.Sprintf("%s follows in epoch %d", n.URL, n.Epoch))
		}
	}
	return "in step: " + strings.Join(append(leads, follows...), ", "), true
}

// judgeBoth says what is wrong with two nodes that answered; empty for nothing.
func judgeBoth(a, b nodeStatus) string {
	switch {
	case a.NodeID == b.NodeID:
		return fmt.Sprintf("%s and %s are the same node %s: give the URLs of both nodes, and make sure that no data directory was copied",
			a.URL, b.URL, a.NodeID)
	case a.Role == roleLeader && b.Role == roleLeader:
		return judgeLeaders(a, b)
	case a.LogID != b.LogID && a.LogID != "" && b.LogID != "":
		return fmt.Sprintf("different logs, so this is no pair: %s has log %s, %s has log %s", a.URL, a.LogID, b.URL, b.LogID)
	case a.Role == roleFollower && b.Role == roleFollower:
		return fmt.Sprintf("no node leads: %s and %s are both followers; the highest epoch they know is %d", a.URL, b.URL, max(a.Epoch, b.Epoch))
	}
	leader, follower := a, b
	if b.Role == roleLeader {
		leader, follower = b, a
	}
	if follower.Epoch > leader.Epoch {
		return fmt.Sprintf("epochs differ: the follower %s has met epoch %d, which is higher than epoch %d of the leader %s: it takes nothing from that leader",
			follower.URL, follower.Epoch, leader.Epoch, leader.URL)
	}
	for _, n := range []nodeStatus{leader, follower} {
		if n.State == stateFailed || n.State == stateFenced {
			return judgeNode(n) // that the other one is not connected comes of it
		}
	}
	for _, n := range []nodeStatus{leader, follower} {
		if s := judgeNode(n); s != "" {
			return s
		}
	}
	switch {
	case follower.Epoch < leader.Epoch:
		return fmt.Sprintf("epochs differ: the leader %s has %d, the follower %s still has %d", leader.URL, leader.Epoch, follower.URL, follower.Epoch)
	case leader.Peer.NodeID != follower.NodeID:
		return fmt.Sprintf("the leader %s is connected to node %s (%s), not to %s, which is node %s",
			leader.URL, leader.Peer.NodeID, leader.Peer.Address, follower.URL, follower.NodeID)
	case follower.Peer.NodeID != leader.NodeID:
		return fmt.Sprintf("the follower %s is connected to node %s, not to %s, which is node %s",
			follower.URL, follower.Peer.NodeID, leader.URL, leader.NodeID)
	}
	return ""
}

// judgeLeaders says what two leaders mean. Their logs do not matter: the follower takes over the other's.
func judgeLeaders(a, b nodeStatus) string {
	if a.Epoch == b.Epoch {
		return fmt.Sprintf("two leaders with the same epoch %d: %s and %s: decide which one leads, restart it with a higher -epoch, "+
			"and the other one with -role follower", a.Epoch, a.URL, b.URL)
	}
	higher, lower := a, b
	if b.Epoch > a.Epoch {
		higher, lower = b, a
	}
	return fmt.Sprintf("two leaders: %s has the higher epoch %d and leads, %s has only %d: restart %s with -role follower",
		higher.URL, higher.Epoch, lower.URL, lower.Epoch, lower.URL)
}

// judgeNode says what is wrong by what the node itself says; empty for nothing.
func judgeNode(n nodeStatus) string {
	who := fmt.Sprintf("the %s %s", n.Role, n.URL)
	switch {
	case n.State == stateStreaming && (n.Writable || n.Role == roleFollower):
		return ""
	case n.State == stateFullSync:
		what := "a full sync is under way"
		if n.Sync != nil {
			what += " (" + fullSync(n.PairStatus) + ")"
		}
		if n.Role == roleLeader && !n.Writable {
			what += ", and writes wait for it"
		}
		return fmt.Sprintf("%s: %s: the follower must not be promoted before it has the whole log", who, what)
	case n.Role == roleLeader && !n.Writable:
		return fmt.Sprintf("%s takes no writes: %s%s", who, describeState(n.PairStatus), because(n.Reason))
	}
	return fmt.Sprintf("%s: %s%s", who, describeState(n.PairStatus), because(n.Reason))
}

func describeState(s *api.PairStatus) string {
	other := "its follower"
	if s.Role == roleFollower {
		other = "its leader"
	}
	switch s.State {
	case stateDisconnected:
		return other + " is not connected"
	case stateHandshake:
		return "the handshake with " + other + " is under way"
	case stateCatchingUp:
		return fmt.Sprintf("the follower is catching up, %d entries behind", s.Peer.LagEntries)
	case stateStreaming:
		return "it is streaming"
	case stateFenced:
		return "it is fenced, another node leads"
	case stateFailed:
		return "it has failed"
	}
	return "state " + s.State
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
