package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/linear"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// recording is a load.Recording that goes on in the background.
type recording struct {
	*load.Recording
	*cluster
	stop func() // ends it: each call that is under way is finished
}

// record lets a few clients use small topics together, by nodes at random.
func (c *cluster) record(client *load.Client, seed uint64) *recording {
	r := &recording{Recording: load.NewRecording(), cluster: c}
	r.stop = r.add(client, 5, seed)
	return r
}

// add lets some more clients work until the returned function is called.
func (r *recording) add(client *load.Client, clients int, seed uint64) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		r.Run(ctx, client, clients, seed)
	}()
	stop = func() {
		cancel()
		<-done
	}
	r.t.Cleanup(stop)
	return stop
}

// judge checks that what was recorded is linearizable.
func (r *recording) judge(t *testing.T) {
	t.Helper()
	began := time.Now()
	what, err := r.Judge(10 * time.Second)
	if err == nil {
		report.Count(t, "histories judged linearizable", 1)
		t.Logf("linearizable: %s; judged in %v", what, time.Since(began).Round(time.Millisecond))
		return
	}
	t.Error(err)
	var v *linear.Violation
	if errors.As(err, &v) {
		if err := v.Draw(filepath.Join(r.dir, "history.html")); err != nil {
			t.Error(err)
		}
	}
}

// TestClusterLinear kills, stops, and replaces leaders while a few clients use small topics together, and decides
// whether all that they saw is linearizable. MQ_CLUSTER_HISTORIES says how many mishaps.
func TestClusterLinear(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	c := newCluster(t, 3, small...)
	c.startWhole()
	o := load.Options{URLs: c.URLs(), Cluster: true, Patient: true, Timeout: time.Second}
	client := load.Open(o)
	defer client.Close()
	r := c.record(client, seed)
	draw(t, dice, "MQ_CLUSTER_HISTORIES", 3, linearMishaps, func(i int, m scenario[func(*recording, *rand.Rand, int)]) {
		t.Logf("%d: %s", i, m.name)
		wait(dice, 500)
		m.do(r, dice, c.AwaitWhole(healMax))
	})
	c.AwaitWhole(healMax)
	wait(dice, 500)
	r.stop()
	r.Complete(t.Context(), client)
	r.judge(t)
	c.awaitEqual()
	c.Stop()
}

var linearMishaps = []scenario[func(c *recording, dice *rand.Rand, leader int)]{
	{"the leader is killed", func(c *recording, dice *rand.Rand, leader int) {
		c.Kill(leader)
		wait(dice, 1500)
		c.Start(leader)
	}},
	{"the leader is stopped for a while", func(c *recording, dice *rand.Rand, leader int) {
		if err := c.Nodes[leader].Process.Pause(); err != nil {
			c.t.Fatal(err)
		}
		<-time.After(time.Duration(2000+dice.IntN(3000)) * electionTimeout / 1000)
		// What it is asked now it must answer after it has gone on, and others have written meanwhile.
		client := c.clientOf(nil, leader)
		defer client.Close()
		stop := c.add(client, 6, dice.Uint64())
		<-time.After(50 * time.Millisecond)
		if err := c.Nodes[leader].Process.Resume(); err != nil {
			c.t.Fatal(err)
		}
		stop()
	}},
	{"all are killed", func(c *recording, dice *rand.Rand, _ int) {
		c.Kill()
		c.Start()
	}},
	{"the lead is handed over and over", func(c *recording, dice *rand.Rand, leader int) {
		for range 3 {
			to := c.Others(leader)[dice.IntN(2)]
			if err := c.Nodes[leader].Process.Transfer(to); err != nil {
				c.t.Log(fmt.Errorf("transfer: %w", err))
			}
			wait(dice, 300)
			leader = c.Leader(patience)
		}
	}},
	{"the leader is stopped and killed", func(c *recording, dice *rand.Rand, leader int) {
		if err := c.Nodes[leader].Process.Pause(); err != nil {
			c.t.Fatal(err)
		}
		c.Await(patience, "another leader", func() string {
			for _, i := range c.Others(leader) {
				if r, err := c.Nodes[i].Process.RaftRole(); err == nil && r.Role == "leader" {
					return ""
				}
			}
			return "none"
		})
		c.Kill(leader)
		c.Start(leader)
	}},
}
