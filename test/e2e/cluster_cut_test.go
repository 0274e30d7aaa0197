package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestClusterCut cuts the network between the nodes of a cluster in all ways, by dropping packets. Each node is in a
// network of its own; clients reach all nodes all the time. MQ_CLUSTER_CUTS says how many cuts.
func TestClusterCut(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	draw(t, dice, "MQ_CLUSTER_CUTS", 2, clusterCuts, func(i int, s scenario[func(*clusterCut)]) {
		t.Run(fmt.Sprintf("%d: %s", i, s.name), func(t *testing.T) {
			own := dice.Uint64()
			undisturbed(t, func(last bool) string {
				w := newWires(t)
				return w.cut(s.do, rand.New(rand.NewPCG(seed, own)), last)
			})
		})
	})
}

// clusterCut is one cut under way. a and b follow.
type clusterCut struct {
	*wires
	dice         *rand.Rand
	load         *load.Load
	leader, a, b int
	heard        answers
	changed      []string // complaints that a node has not kept its lead
	syncs        *process.Syncs
}

var clusterCuts = []scenario[func(*clusterCut)]{
	{"the leader is alone", func(c *clusterCut) {
		c.isolate(c.leader)
		c.wantTakeover()
		c.healStable()
	}},
	{"the leader hears nothing", func(c *clusterCut) {
		c.networks[c.leader].Deafen()
		c.wantTakeover()
		c.heal()
	}},
	{"nobody hears the leader", func(c *clusterCut) {
		c.networks[c.a].Deafen(c.networks[c.leader])
		c.networks[c.b].Deafen(c.networks[c.leader])
		c.wantTakeover()
		c.heal()
	}},
	// One follower sees both. Whoever leads in the end, it does so for good.
	{"the leader and a follower do not see each other", func(c *clusterCut) {
		terms := c.watch()
		c.part(c.leader, c.a)
		c.awaitAck(c.load, time.Now().Add(6*electionTimeout))
		if n := terms(); n > 2 {
			c.complain("%d terms in which a node led after the cut, want at most 2 more", n)
		}
		c.healStable()
	}},
	{"a follower is alone, and comes back", func(c *clusterCut) {
		c.load.ForgetGap()
		c.isolate(c.a)
		c.awaitAck(c.load, time.Now().Add(8*electionTimeout))
		c.healStable()
		if gap := c.load.LongestGap(); gap > silentMax {
			c.complain("no writes for %v", gap)
		}
	}},
	{"a follower hears nothing", func(c *clusterCut) {
		c.load.ForgetGap()
		c.networks[c.a].Deafen()
		c.awaitAck(c.load, time.Now().Add(8*electionTimeout))
		c.healStable()
		if gap := c.load.LongestGap(); gap > silentMax {
			c.complain("no writes for %v", gap)
		}
	}},
	{"all are alone", func(c *clusterCut) {
		for i := range c.Nodes {
			c.networks[i].Deafen()
		}
		cut := time.Now()
		<-time.After(6 * electionTimeout)
		for _, a := range c.heard.all() {
			if a.Outcome == load.Done && isWrite(a.path) && a.Began.After(cut) {
				c.t.Errorf("%s was acknowledged by a node that is alone: %v", a.path, a)
			}
		}
		c.heal()
	}},
	{"flapping", func(c *clusterCut) {
		for range 12 {
			for i := range c.Nodes {
				for j := range c.Nodes {
					if i != j && c.dice.IntN(3) == 0 {
						c.networks[i].Deafen(c.networks[j])
					}
				}
			}
			wait(c.dice, 800)
			for _, n := range c.networks {
				n.Heal()
			}
			wait(c.dice, 400)
		}
		c.heal()
	}},
}

// wires is a cluster each of whose nodes is in a network of its own.
type wires struct {
	*cluster
	networks []*process.Network
}

// newWires makes the networks and the nodes. Nothing runs yet.
func newWires(t *testing.T) *wires {
	t.Helper()
	const n = 3
	w := &wires{cluster: &cluster{t: t, dir: process.KeptDir(t)}}
	var addresses []string
	networks := map[string]*process.Network{}
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("10.77.0.%d", i+1))
		w.networks = append(w.networks, process.NewNetwork(t))
		networks[addresses[i]] = w.networks[i]
		for j := range i {
			w.networks[i].Join(addresses[i], w.networks[j], addresses[j])
		}
	}
	w.reach = load.Options{
		TLS: &tls.Config{RootCAs: makeCertificate(t, w.dir, addresses...)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return networks[host].DialContext(ctx, network, address)
		},
	}
	w.Cluster = process.NewCluster(t, w.dir, 0, append([]string{
		"-tls-cert", filepath.Join(w.dir, "cert.pem"), "-tls-key", filepath.Join(w.dir, "key.pem"), "-tls-ca", filepath.Join(w.dir, "cert.pem"),
		"-client-token", "test-client-token",
	}, small...)...)
	for i, a := range addresses {
		w.Add(w.dir, process.Config{Listen: a + ":8443", Network: w.networks[i], Client: &http.Client{
			Transport: &http.Transport{DialContext: w.reach.Dial, TLSClientConfig: w.reach.TLS},
		}}, "https://"+a+":8443")
	}
	return w
}

// cut lets one thing happen under load, to which it adds clients that use one topic together. It returns what the nodes say
// that gave up the lead for want of their disks, if that is why a node did not keep it. The last time it fails the test
// instead.
func (w *wires) cut(do func(*clusterCut), dice *rand.Rand, last bool) (spoiled string) {
	t := w.t
	seed := dice.Uint64()
	c := &clusterCut{wires: w, dice: dice, load: newLoad(load.Config{Seed: seed})}
	stalled := c.stalls()
	c.leader = c.startWhole()
	c.a, c.b = c.Others(c.leader)[0], c.Others(c.leader)[1]
	if dice.IntN(2) == 0 {
		c.a, c.b = c.b, c.a
	}
	client := c.client(c.heard.hear)
	defer client.Close()
	record := c.record(client, seed)
	run := begin(t, c.load, client)
	c.awaitAck(c.load, time.Now())
	c.syncs = process.TimeSyncs(t, c.dir)
	do(c)
	c.syncs.Stop()
	if len(c.changed) > 0 && !last {
		spoiled = stalled(c.all()...)
	}
	for _, complaint := range c.changed {
		if spoiled == "" {
			t.Error(complaint)
		}
	}
	back := c.awaitAck(c.load, time.Now())
	run.stop()
	record.stop()
	c.check(c.load)
	c.AwaitWhole(patience)
	record.Complete(t.Context(), client)
	c.finish(c.load)
	record.judge(t)
	t.Logf("writes %v after the network; %v; answers by status %v", back, c.load.Checker.Report(), c.load.Statuses())
	return spoiled
}

// complain notes that a node has not kept its lead. A disk that does not answer excuses that.
func (c *clusterCut) complain(format string, args ...any) {
	c.changed = append(c.changed, fmt.Sprintf(format, args...))
}

// part makes two nodes deaf to each other.
func (w *wires) part(i, j int) {
	w.t.Helper()
	w.networks[i].Deafen(w.networks[j])
	w.networks[j].Deafen(w.networks[i])
}

// isolate makes a node and all others deaf to each other.
func (w *wires) isolate(i int) {
	w.t.Helper()
	for _, j := range w.Others(i) {
		w.part(i, j)
	}
}

// heal ends all cuts and waits until all nodes are in step.
func (c *clusterCut) heal() (leader int) {
	c.t.Helper()
	for _, n := range c.networks {
		n.Heal()
	}
	return c.AwaitWhole(patience)
}

// healStable ends all cuts. That must not change who leads.
func (c *clusterCut) healStable() {
	c.t.Helper()
	leader := c.Leader(patience)
	before, err := c.Nodes[leader].Process.RaftRole()
	if err != nil {
		c.t.Fatal(err)
	}
	c.heal()
	c.awaitAck(c.load, time.Now().Add(4*electionTimeout))
	after, err := c.Nodes[leader].Process.RaftRole()
	if err != nil || after.Role != "leader" || after.Term != before.Term {
		c.complain("the network was healed, and node %d is %+v, %v; it was %+v", leader, after, err, before)
	}
}

// wantTakeover checks that others lead soon after the leader was cut off, and that it takes no write that was sent to it
// after that, though clients reach it all the time.
func (c *clusterCut) wantTakeover() {
	c.t.Helper()
	cut := time.Now()
	stale := c.clientOf(nil, c.leader)
	defer stale.Close()
	ctx, cancel := context.WithCancel(c.t.Context())
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for ctx.Err() == nil {
				c.load.ReadBackBy(ctx, stale, false) // an error is right; the checker judges the rest
				<-time.After(5 * time.Millisecond)
			}
		})
		asking.Go(func() {
			for ctx.Err() == nil {
				if a := c.load.Probe(ctx, stale, 100); a.Outcome == load.Done {
					c.heard.hear(c.Nodes[c.leader].URL, "/v1/publish", a)
				}
				<-time.After(5 * time.Millisecond)
			}
		})
	}
	took := c.awaitAck(c.load, cut)
	c.awaitAck(c.load, time.Now().Add(2*electionTimeout))
	cancel()
	asking.Wait()
	if leader := c.Leader(patience); leader == c.leader {
		c.t.Errorf("node %d still leads", leader)
	}
	for _, a := range c.heard.all() {
		const margin = 50 * time.Millisecond // until the packets are dropped
		if a.Outcome == load.Done && isWrite(a.path) && a.url == c.Nodes[c.leader].URL && a.Began.After(cut.Add(margin)) {
			c.t.Errorf("the node that was cut off acknowledged %s: %v", a.path, a)
		}
	}
	if slowest := c.syncs.Slowest(); took > leadMax(5*time.Second, slowest) {
		c.t.Errorf("writes came back %v after the cut, with syncs of %v", took, slowest)
	}
	c.t.Logf("writes came back %v after the cut", took)
}

// watch begins to count the terms in which some node leads. The returned function returns how many more than one were
// seen.
func (c *clusterCut) watch() func() int {
	terms := map[uint64]bool{}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() { // ends with the returned function
		defer close(done)
		for ctx.Err() == nil {
			for _, m := range c.Nodes {
				if r, err := m.Process.RaftRole(); err == nil && r.Role == "leader" {
					terms[r.Term] = true
				}
			}
			<-time.After(20 * time.Millisecond)
		}
	}()
	return func() int {
		cancel()
		<-done
		return len(terms) - 1
	}
}
