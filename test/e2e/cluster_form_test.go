package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestClusterForms: the first start needs all nodes, and from then on a majority is enough; a minority takes no writes.
func TestClusterForms(t *testing.T) {
	c := newCluster(t, 3, small...)
	l := load.New(load.Config{})
	c.Start(0, 1)
	c.wantNoWrites(l, 4*electionTimeout, 0, 1)
	c.Start(2)
	c.AwaitWhole(patience)
	c.publish(l)

	c.Stop()
	c.Start(1, 2)
	c.Leader(patience)
	c.publish(l)
	c.Kill(1)
	// What is in flight when the other one dies may be answered late; what is sent from now on is not taken.
	c.wantNoWrites(l, 4*electionTimeout, 2)
	c.Start(0)
	c.Leader(patience)
	c.publish(l)
	c.Start(1)
	c.finish(l)
}

// publish publishes a record and reads everything back.
func (c *cluster) publish(l *load.Load) {
	c.t.Helper()
	client := c.client(nil)
	defer client.Close()
	c.Await(patience, "a publish", func() string {
		if a := l.Probe(c.t.Context(), client, 100); a.Outcome != load.Done {
			return a.String()
		}
		return ""
	})
	c.readBack(l, true)
}

// wantNoWrites checks for some time that some nodes acknowledge nothing and say why.
func (c *cluster) wantNoWrites(l *load.Load, during time.Duration, numbers ...int) {
	c.t.Helper()
	for _, i := range numbers {
		client := c.clientOf(nil, i)
		defer client.Close()
		c.Await(patience, "an answer", func() string {
			if a := l.Probe(c.t.Context(), client, 100); a.Status == 0 {
				return a.String()
			}
			return ""
		})
		refused := false
		for until := time.Now().Add(during / time.Duration(len(numbers))); time.Now().Before(until); {
			a := l.Probe(c.t.Context(), client, 100)
			refused = refused || a.Status == http.StatusServiceUnavailable && a.Outcome == load.NotDone
			if a.Outcome == load.Done {
				c.t.Fatalf("node %d acknowledged a publish without a majority: %v", i, a)
			}
		}
		if !refused {
			c.t.Errorf("node %d did not answer 503 with nothing done", i)
		}
		if status, body, err := c.Nodes[i].Process.Get("/readyz"); err != nil || status != http.StatusServiceUnavailable {
			c.t.Errorf("/readyz of node %d without a majority: %d %s, %v", i, status, body, err)
		}
	}
}

// TestClusterRefusals starts nodes as they must not be started: each says why in one line, and changes nothing.
func TestClusterRefusals(t *testing.T) {
	c := newCluster(t, 3, small...)
	l := load.New(load.Config{})
	c.startWhole()
	c.publish(l)
	taken, err := process.Start(process.Config{
		Binary: c.Nodes[0].Binary, Data: c.Nodes[0].Data, Args: c.Role(0), Env: []string{"MQ_RAFT_TOKEN=" + process.RaftToken},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantExit(t, taken, 1, "in use by another process")
	c.publish(l)
	c.Stop()

	takes := everything
	refused := func(i, code int, why string, flags ...string) {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			before := hashFolder(t, c.Nodes[i].Data, takes)
			defer func() {
				c.Nodes[i].Process.Kill()
				c.Nodes[i].Process = nil
				wantSame(t, c.Nodes[i].Data, before, takes)
			}()
			wantExit(t, c.Run(i, flags...), code, why)
		})
	}
	peers := strings.Join(c.URLs(), ",")
	refused(0, 1, "of node 0", c.Role(1)...)
	refused(0, 1, "3 nodes", "-role", "cluster", "-raft-self", "0", "-raft-peers", peers+",http://127.0.0.1:1,http://127.0.0.1:2")
	refused(0, 1, "cluster", "-role", "standalone")
	refused(0, 1, "cluster", "-role", "follower", "-replication-token", "x")
	refused(0, 1, "cluster", "-role", "leader", "-replication-token", "x", "-replica", "http://127.0.0.1:1", "-epoch", "9")
	refused(0, 2, "-raft-self", "-role", "cluster", "-raft-self", "3", "-raft-peers", peers)
	refused(0, 2, "-raft-self", "-role", "cluster", "-raft-self", "-1", "-raft-peers", peers)
	refused(0, 2, "-raft-self", "-role", "cluster", "-raft-peers", peers)
	refused(0, 2, "-raft-peers", "-role", "cluster", "-raft-self", "0")
	refused(0, 2, "1, 3, 5 or 7", "-role", "cluster", "-raft-self", "0", "-raft-peers", c.Nodes[0].URL+","+c.Nodes[1].URL)
	refused(0, 2, "twice", "-role", "cluster", "-raft-self", "0", "-raft-peers", c.Nodes[0].URL+","+c.Nodes[1].URL+","+c.Nodes[1].URL)
	refused(0, 2, "https", "-role", "cluster", "-raft-self", "0", "-raft-peers", c.Nodes[0].URL+","+c.Nodes[1].URL+",http://192.0.2.1:8080")
	refused(0, 2, "-raft-peers", "-role", "standalone", "-raft-peers", peers)
	token := c.Nodes[0].Env
	c.Nodes[0].Env = nil
	refused(0, 2, "-raft-token", c.Role(0)...)
	c.Nodes[0].Env = token

	// A folder of another cluster, in the place of one that knows this one.
	other := newCluster(t, 3, small...)
	other.startWhole()
	other.publish(load.New(load.Config{}))
	other.Stop()
	c.Start(1, 2)
	c.Leader(patience)
	own := c.Nodes[0].Data
	c.Nodes[0].Data = other.Nodes[0].Data
	takes = lasting // it has to ask the others first
	refused(0, 1, "another", c.Role(0)...)
	c.Nodes[0].Data = own

	// After all that, the cluster is as it was.
	c.Start(0)
	c.finish(l)
}

// TestClusterStrangers connects a node whose flags are not those of the others: it takes no part and says why, and the
// others go on.
func TestClusterStrangers(t *testing.T) {
	c := newCluster(t, 3, small...)
	l := load.New(load.Config{})
	c.startWhole()
	c.publish(l)
	for name, test := range map[string]struct {
		why string
		run func()
	}{
		"a wrong token": {"token", func() {
			right := c.Nodes[2].Env
			c.Nodes[2].Env = []string{"MQ_RAFT_TOKEN=another-token"}
			c.Start(2)
			c.Nodes[2].Env = right
		}},
		"other peers": {"-raft-peers", func() {
			u := c.URLs()
			c.Run(2, "-role", "cluster", "-raft-self", "2", "-raft-peers", fmt.Sprintf("%s,%s,%s", u[1], u[0], u[2]))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.Stop(2)
			c.Leader(patience)
			before := hashFolder(t, c.Nodes[2].Data, lasting)
			test.run()
			c.Await(patience, "a node that says: "+test.why, func() string {
				if said := c.Nodes[2].Process.Stderr(); !strings.Contains(said, test.why) {
					return said
				}
				return ""
			})
			c.publish(l)
			c.wantNoWrites(load.New(load.Config{}), electionTimeout, 2)
			c.Nodes[2].Kill()
			c.Nodes[2].Process = nil
			wantSame(t, c.Nodes[2].Data, before, func(name string) bool {
				return everything(name) && name != "raft.state" && name != "log/next.seg" && name != "log/prepare.tmp" && name != "clean.json"
			})
		})
		c.Start(2)
		c.AwaitWhole(patience)
	}
	c.finish(l)
}

// lasting takes what a node of a cluster that takes no part must not change: it counts its starts in raft.state, and
// prepares a segment.
func lasting(name string) bool {
	return everything(name) && name != "raft.state" && name != "clean.json" && name != "log/next.seg" && name != "log/prepare.tmp"
}

// TestClusterOfOne: one node is a cluster, too, and serves after each start by itself.
func TestClusterOfOne(t *testing.T) {
	c := newCluster(t, 1, small...)
	seed := process.Seed(t)
	l := load.New(load.Config{Seed: seed})
	for range 3 {
		c.startWhole()
		client := c.client(nil)
		run := begin(t, l, client)
		c.awaitAck(l, time.Now().Add(50*time.Millisecond))
		c.Kill()
		c.Start()
		c.awaitAck(l, time.Now())
		run.stop()
		client.Close()
		c.settle(l)
		c.readBack(l, true)
		c.Stop()
	}
	c.startWhole()
	c.readBack(l, true)
	c.Stop()
	t.Log(l.Checker.Report())
}

// TestClusterFromStandalone: a standalone node's folder becomes that of a cluster's first node, and all of it is on all
// nodes then, whichever of them is elected first. Two such folders are refused.
func TestClusterFromStandalone(t *testing.T) {
	seed := process.Seed(t)
	for i := range process.Count(t, "MQ_CLUSTER_FOUNDINGS", 2) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := newCluster(t, 3, small...)
			l := load.New(load.Config{Seed: seed})
			c.alone(0, l)
			if i == 0 {
				c.alone(1, load.New(load.Config{Seed: seed}))
				c.refuseTwoLogs()
				c.Nodes[1].Wipe(t)
			}
			c.startWhole()
			c.readBack(l, true)
			client := c.client(nil)
			defer client.Close()
			run := begin(t, l, client)
			c.awaitAck(l, time.Now().Add(100*time.Millisecond))
			run.stop()
			c.finish(l)
		})
	}
}

// alone runs a node as a standalone one for a while.
func (c *cluster) alone(i int, l *load.Load) {
	c.t.Helper()
	if err := c.Run(i).AwaitReady(); err != nil {
		c.t.Fatal(err)
	}
	client := c.clientOf(nil, i)
	defer client.Close()
	run := begin(c.t, l, client)
	c.awaitAck(l, time.Now().Add(200*time.Millisecond))
	run.stop()
	if err := l.SettleBy(c.t.Context(), client); err != nil {
		c.t.Fatal(err)
	}
	c.Stop(i)
	l.Checker.Restarted()
}

// refuseTwoLogs starts all nodes, two of which have a log of their own: no cluster is founded.
func (c *cluster) refuseTwoLogs() {
	c.t.Helper()
	c.Start()
	c.Await(patience, "a node that names the two logs", func() string {
		if said := c.Said(); !strings.Contains(said, "a log of their own") && !strings.Contains(said, "another log") {
			return said
		}
		return ""
	})
	for _, m := range c.Nodes { // one of them may have given up
		m.Process.Kill()
		m.Process = nil
	}
}
