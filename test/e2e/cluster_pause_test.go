package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestClusterPause stops the leader under load for 2 to 5 election timeouts, until another one leads, and lets it go on
// with requests waiting for it: it must not answer as if it still led. MQ_CLUSTER_PAUSES says how often.
func TestClusterPause(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	c := newCluster(t, 3, small...)
	before := newLoad(load.Config{Seed: seed})
	var after *load.Load
	c.startWhole()
	var took stopwatch
	for i := range process.Count(t, "MQ_CLUSTER_PAUSES", 2) {
		after = newLoad(load.Config{Seed: seed + uint64(i), Checker: before.Checker, Prefix: fmt.Sprintf("after-%d-", i), Quiet: true})
		took = append(took, c.pauseLeader(before, after, time.Duration(2000+dice.IntN(3000))*electionTimeout/1000))
		c.check(after)
		report.Count(t, "leaders stopped", 1)
	}
	c.finish(before)
	t.Logf("another one led after: %v; %v", took, before.Checker.Report())
}

// pauseLeader stops the leader for some time, or until another one has led for a while, and returns how long that took.
func (c *cluster) pauseLeader(before, after *load.Load, pause time.Duration) (took time.Duration) {
	c.t.Helper()
	old := c.AwaitWhole(patience)
	client := c.client(nil)
	defer client.Close()
	run := begin(c.t, before, client)
	c.awaitAck(before, time.Now())
	if err := c.Nodes[old].Process.Pause(); err != nil {
		c.t.Fatal(err)
	}
	paused := time.Now()

	// The clients of before wait for the one that is stopped, sooner or later. Those of after do not know it.
	others := c.clientOf(nil, c.Others(old)...)
	defer others.Close()
	busy := begin(c.t, after, others)
	took = c.awaitAck(after, paused)
	c.awaitAck(after, time.Now().Add(100*time.Millisecond))
	busy.stop()

	// What it is asked now it must answer after it has gone on, and others have written meanwhile.
	stale := c.clientOf(nil, old)
	defer stale.Close()
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() { before.Probe(c.t.Context(), stale, 100) })
		asking.Go(func() { after.ReadBackBy(c.t.Context(), stale, false) }) // an error is right; the checker judges the rest
	}
	<-time.After(max(pause-time.Since(paused), 50*time.Millisecond))
	if err := c.Nodes[old].Process.Resume(); err != nil {
		c.t.Fatal(err)
	}
	asking.Wait()
	c.awaitAck(before, time.Now())
	run.stop()
	c.check(before)
	c.settle(before)
	if err := after.SettleBy(c.t.Context(), client); err != nil {
		c.t.Fatal(err)
	}
	c.readBack(before, false)
	c.readBack(after, false)
	return took
}

// silentMax is how long no write may be taken while one follower is silent for 8 election timeouts. It tells going on from
// waiting for that follower, also where the machine has much else to do; that nobody else leads is looked at apart from it.
const silentMax = 5 * electionTimeout

// TestClusterFollowerPause stops a follower under load: writes go on as if nothing had happened, and it catches up.
func TestClusterFollowerPause(t *testing.T) {
	seed := process.Seed(t)
	undisturbed(t, func(last bool) string { return followerPause(t, seed, last) })
}

// followerPause returns what the nodes say that gave up the lead for want of their disks, if that is why a check failed. The
// last time it fails the test instead.
func followerPause(t *testing.T, seed uint64, last bool) (spoiled string) {
	c := newCluster(t, 3, small...)
	l := newLoad(load.Config{Seed: seed})
	stalled := c.stalls()
	leader := c.startWhole()
	follower := c.Others(leader)[0]
	client := c.clientOf(nil, leader)
	defer client.Close()
	run := begin(t, l, client)
	// await is awaitAck, but the client knows one leader only: when that gives up the lead, it need not come back.
	await := func(after time.Time) bool {
		c.Await(patience, "writes are taken", func() string {
			if l.LastAcknowledged().After(after) {
				return ""
			}
			if !last {
				if spoiled = stalled(c.Others(follower)...); spoiled != "" {
					return ""
				}
			}
			return fmt.Sprintf("answers by status %v; %v", l.Statuses(), l.Err())
		})
		return spoiled == ""
	}
	var gap time.Duration
	pause := func() bool {
		if !await(time.Now()) {
			return false
		}
		l.ForgetGap()
		if err := c.Nodes[follower].Process.Pause(); err != nil {
			t.Fatal(err)
		}
		goesOn := await(time.Now().Add(8 * electionTimeout))
		if err := c.Nodes[follower].Process.Resume(); err != nil {
			t.Fatal(err)
		}
		if !goesOn || !await(time.Now().Add(electionTimeout)) {
			return false
		}
		gap = l.LongestGap()
		return true
	}
	if pause() {
		now := c.AwaitWhole(patience)
		if !last && (now != leader || gap > silentMax) {
			spoiled = stalled(c.Others(follower)...)
		}
		if now != leader && spoiled == "" {
			t.Errorf("node %d leads, and node %d before", now, leader)
		}
		if gap > silentMax && spoiled == "" {
			t.Errorf("no writes for %v, want at most %v", gap, silentMax)
		}
	}
	run.stop()
	c.check(l)
	c.finish(l)
	t.Logf("no writes for %v at most; %v", gap, l.Checker.Report())
	return spoiled
}
