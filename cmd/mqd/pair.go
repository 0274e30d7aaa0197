package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/httpapi"
	"example.com/mq/internal/node"
	"example.com/mq/internal/peer"
)

// The roles, as flag -role has them.
const (
	roleStandalone = string(node.Standalone)
	roleLeader     = string(node.Leader)
	roleFollower   = string(node.Follower)
	roleCluster    = string(node.InCluster)
)

const (
	replicaTimeoutDefault = 2 * time.Second
	replicaTimeoutMin     = 100 * time.Millisecond
	replicaTimeoutMax     = time.Minute
	epochMax              = api.OffsetMax // every JSON reader can hold it exactly
)

// checkRole checks what the role needs, and that no flag is there that does nothing for it. given has the names
// of the flags on the command line.
func (o *options) checkRole(given map[string]bool) error {
	if err := o.checkCluster(given); err != nil || o.role == roleCluster {
		return err
	}
	switch o.role {
	case roleStandalone:
		for _, name := range []string{"replication-token", "replication-token-file", "replica-timeout", "tls-ca"} {
			if given[name] {
				roles := "-role leader and -role follower"
				if name == "tls-ca" {
					roles = "-role leader, -role follower and -role cluster"
				}
				return usageError("-%s is for %s", name, roles)
			}
		}
	case roleLeader, roleFollower:
		if o.replicationToken == "" {
			return usageError("-role %s needs the token of the pair: -replication-token-file, MQ_REPLICATION_TOKEN or -replication-token", o.role)
		}
	default:
		return usageError("-role %q: say standalone, leader, follower or cluster", o.role)
	}
	if o.role != roleLeader {
		for _, name := range []string{"replica", "epoch"} {
			if given[name] {
				return usageError("-%s is for -role leader only", name)
			}
		}
	} else {
		if o.replica == "" {
			return usageError("-role leader needs -replica, the URL of its follower")
		}
		if err := peer.Check(o.replica); err != nil {
			return usageError("-replica: %v", err)
		}
		if !given["epoch"] {
			return usageError("-role leader needs -epoch: 1 for a new pair, and a higher one than ever before after a promotion")
		}
		if o.epoch < 1 || o.epoch > epochMax {
			return usageError("-epoch %d: must be from 1 to %d", o.epoch, uint64(epochMax))
		}
	}
	if o.replicaTimeout < replicaTimeoutMin || o.replicaTimeout > replicaTimeoutMax {
		return usageError("-replica-timeout %v: must be from %v to %v", o.replicaTimeout, replicaTimeoutMin, replicaTimeoutMax)
	}
	return nil
}

// replicationProtocol is what the leader opens a connection to its follower for.
var replicationProtocol = peer.Protocol{
	Name: api.ProtocolReplication, Path: api.PathReplicationStream, TokenHeader: api.HeaderReplicationToken,
}

// configurePair sets what a node of a pair needs.
func (o *options) configurePair(c *node.Config) error {
	c.Role = node.Role(o.role)
	if o.role == roleStandalone || o.role == roleCluster {
		return nil
	}
	authorities, err := loadAuthorities(o.tlsCA)
	if err != nil {
		return err
	}
	c.ReplicaTimeout = o.replicaTimeout
	if o.role != roleLeader {
		return nil
	}
	c.Epoch, c.Replica = entry.Term(o.epoch), o.replica
	to := peer.Config{URL: o.replica, Token: o.replicationToken, CA: authorities, Timeout: max(o.replicaTimeout, replicaTimeoutDefault)}
	c.Replica = o.replica
	c.Dial = node.DialConn(func(ctx context.Context) (net.Conn, error) { return peer.Dial(ctx, to, replicationProtocol) })
	return nil
}

// replication is what the node serves to the other one of its pair; nil when it is alone. A leader takes streams,
// too: it is how it learns that another one leads.
func (o *options) replication(n *node.Node) *httpapi.Replication {
	if o.role == roleStandalone {
		return nil
	}
	return &httpapi.Replication{Token: o.replicationToken, Stream: n.ServePeer, Status: func() any { return n.PairStatus() }}
}

// loadAuthorities reads certificates. Without a file it returns nil, which stands for those of the system.
func loadAuthorities(name string) (*x509.CertPool, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of -tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s (-tls-ca) holds no certificate in PEM form", name)
	}
	return pool, nil
}
