package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/httpapi"
	"example.com/mq/internal/metrics"
	"example.com/mq/internal/node"
	"example.com/mq/internal/peer"
)

const (
	electionTimeoutMin = 50 * time.Millisecond
	electionTimeoutMax = time.Minute
)

// checkCluster checks what a node of a cluster needs, and that no other role has its flags.
func (o *options) checkCluster(given map[string]bool) error {
	if o.role != roleCluster {
		for _, name := range []string{"raft-peers", "raft-self", "raft-token", "raft-token-file", "election-timeout"} {
			if given[name] {
				return usageError("-%s is for -role cluster", name)
			}
		}
		return nil
	}
	for _, name := range []string{"replica", "epoch", "replication-token", "replication-token-file", "replica-timeout"} {
		if given[name] {
			return usageError("-%s is for a pair, not for -role cluster", name)
		}
	}
	if o.raftToken == "" {
		return usageError("-role cluster needs the token of the cluster: -raft-token-file, MQ_RAFT_TOKEN or -raft-token")
	}
	switch n := len(o.raftPeers); {
	case n == 0:
		return usageError("-role cluster needs -raft-peers, the URLs of all its nodes")
	case n%2 == 0 || n > 7:
		return usageError("-raft-peers names %d nodes: a cluster has 1, 3, 5 or 7; one more to an even number would not survive more failures", n)
	case !given["raft-self"]:
		return usageError("-role cluster needs -raft-self, the number of this node in -raft-peers, from 0 on")
	case o.raftSelf < 0 || o.raftSelf >= n:
		return usageError("-raft-self %d: -raft-peers names the nodes 0 to %d", o.raftSelf, n-1)
	}
	seen := map[string]bool{}
	for i, url := range o.raftPeers {
		url = strings.TrimRight(url, "/")
		if err := peer.Check(url); err != nil {
			return usageError("-raft-peers, node %d: %v", i, err)
		}
		if seen[url] {
			return usageError("-raft-peers names %s twice", url)
		}
		seen[url] = true
		o.raftPeers[i] = url
	}
	if o.electionTimeout < electionTimeoutMin || o.electionTimeout > electionTimeoutMax {
		return usageError("-election-timeout %v: must be from %v to %v", o.electionTimeout, electionTimeoutMin, electionTimeoutMax)
	}
	return nil
}

// raftProtocol is what the nodes of a cluster open connections for.
var raftProtocol = peer.Protocol{Name: api.ProtocolRaft, Path: api.PathRaftStream, TokenHeader: api.HeaderRaftToken}

// openCluster opens a node of a cluster, and sets what the server shows to the others.
func (o *options) openCluster(c node.Config, h *httpapi.Config, m *metrics.Metrics) (service, error) {
	authorities, err := loadAuthorities(o.tlsCA)
	if err != nil {
		return nil, err
	}
	n, err := node.OpenCluster(c, node.ClusterConfig{
		Self: o.raftSelf, URLs: o.raftPeers, ElectionTimeout: o.electionTimeout,
		Observer: m.Raft(), Streams: m.Mesh(len(o.raftPeers)),
		Dial: func(ctx context.Context, to int) (net.Conn, error) {
			return peer.Dial(ctx, peer.Config{URL: o.raftPeers[to], Token: o.raftToken, CA: authorities, Timeout: max(2*o.electionTimeout, time.Second)}, raftProtocol)
		},
	})
	if err != nil {
		return nil, err
	}
	m.WatchPeers(n)
	h.Raft = &httpapi.Raft{
		Token: o.raftToken, Stream: n.ServePeer, Role: func() any { return n.RaftRole() }, Status: func() any { return n.RaftStatus() },
		Transfer: func(ctx context.Context, to int) error {
			err := n.Transfer(ctx, to)
			if errors.Is(err, node.ErrNoNode) {
				return httpapi.ErrNoSuchNode
			}
			return err
		},
	}
	return n, nil
}
