package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestClusterKill kills nodes of a cluster at random instants under load that comes by all nodes, and checks after each
// round that nothing acknowledged was lost and nothing else made up. MQ_CLUSTER_ROUNDS says how many rounds. In the end
// everything is read from each node, and all logs are the same.
func TestClusterKill(t *testing.T) { clusterKill(t, "MQ_CLUSTER_ROUNDS", 3, load.Config{}) }

// TestChurnCluster is TestClusterKill while starts are moved by policies, topics are deleted and published to again, and the
// cleaner moves what lives. MQ_CHURN_CLUSTER_ROUNDS says how many rounds.
func TestChurnCluster(t *testing.T) {
	k := clusterKill(t, "MQ_CHURN_CLUSTER_ROUNDS", 3, load.Config{Churn: true})
	k.churned.check(t, k.load)
}

func clusterKill(t *testing.T, variable string, rounds int, cfg load.Config) *clusterKiller {
	seed := process.Seed(t)
	cfg.Seed = seed
	k := &clusterKiller{
		cluster: newCluster(t, 3, small...), dice: rand.New(rand.NewPCG(seed, 99)),
		load: newLoad(cfg), churn: cfg.Churn, back: map[string]*stopwatch{},
	}
	k.startWhole()
	began, done := time.Now(), 0
	draw(t, k.dice, variable, rounds, clusterMishaps, func(round int, m clusterMishap) {
		t.Logf("round %d: %s", round, m.name)
		k.round(m, round%20 == 19)
		done++
	})
	k.finish(k.load)
	t.Logf("kill -9 in a cluster: rounds %d in %v, %v, answers by status %v",
		done, time.Since(began).Round(time.Millisecond), k.load.Checker.Report(), k.load.Statuses())
	for _, m := range clusterMishaps {
		if s := k.back[m.name]; s != nil {
			t.Logf("%-32s no writes for: %v", m.name, *s)
		}
	}
	return k
}

// clusterMishap is what happens to a cluster in one round.
type clusterMishap = scenario[func(k *clusterKiller)]

var clusterMishaps = []clusterMishap{
	{"leader", func(k *clusterKiller) { k.restart(k.killLeader(), 300) }},
	{"leader, back at once", func(k *clusterKiller) { k.restart(k.killLeader(), 1) }},
	{"follower", func(k *clusterKiller) { k.restart(k.killFollower(), 300) }},
	{"all at once", func(k *clusterKiller) {
		for _, i := range k.dice.Perm(3) {
			k.Kill(i)
		}
		for _, i := range k.dice.Perm(3) {
			k.restart(i, 30)
		}
	}},
	{"the majority", func(k *clusterKiller) {
		first, second := k.killLeader(), 0
		for k.Nodes[second].Process == nil {
			second++
		}
		wait(k.dice, 50)
		k.Kill(second)
		wait(k.dice, 200)
		k.restart(second, 30) // before the other, or after it
		k.restart(first, 30)
	}},
	{"leader after leader", func(k *clusterKiller) {
		for range 3 {
			i := k.killLeader()
			k.awaitAck(k.load, time.Now())
			k.restart(i, 100)
		}
	}},
	{"one after another, not whole", func(k *clusterKiller) {
		for _, i := range k.dice.Perm(3) {
			k.Kill(i)
			wait(k.dice, 20)
			k.restart(i, 20)
			wait(k.dice, 200)
		}
	}},
	{"again during its start", func(k *clusterKiller) {
		i := k.killLeader()
		for range 3 {
			k.Start(i)
			wait(k.dice, 60)
			k.Kill(i)
		}
		k.restart(i, 10)
	}},
}

type clusterKiller struct {
	*cluster
	dice *rand.Rand
	load *load.Load

	churn   bool // rounds are long enough for policies and the cleaner
	churned churned

	back map[string]*stopwatch // the longest time without acknowledged writes in each round, by mishap
}

// round lets one mishap happen under load and checks what is left.
func (k *clusterKiller) round(m clusterMishap, all bool) {
	k.t.Helper()
	c := k.client(nil)
	defer c.Close()
	k.load.Checker.Doubt(true)
	l := begin(k.t, k.load, c)
	k.awaitAck(k.load, time.Now())
	wait(k.dice, 60)
	if k.churn {
		linger(k.dice)
		k.churned.add(k.Nodes[k.Leader(patience)].Process, k.load)
	}
	k.load.ForgetGap()
	m.do(k)
	k.awaitAck(k.load, time.Now())
	gap := k.load.LongestGap()
	if k.back[m.name] == nil {
		k.back[m.name] = &stopwatch{}
	}
	*k.back[m.name] = append(*k.back[m.name], gap)
	wait(k.dice, 100)
	l.stop()
	k.check(k.load)
	k.settle(k.load)
	k.load.Checker.Doubt(false)
	k.readBack(k.load, all)
}

func (k *clusterKiller) killLeader() int {
	k.t.Helper()
	i := k.Leader(patience)
	k.Kill(i)
	return i
}

func (k *clusterKiller) killFollower() int {
	k.t.Helper()
	others := k.Others(k.Leader(patience))
	i := others[k.dice.IntN(len(others))]
	k.Kill(i)
	return i
}

// restart starts a node after up to so many milliseconds.
func (k *clusterKiller) restart(i, ms int) {
	k.t.Helper()
	wait(k.dice, ms)
	k.Start(i)
}

// TestClusterFailover measures how long no write is acknowledged after a leader was killed. An election waits for the disk, so
// syncs are timed beside it. MQ_CLUSTER_KILLS says how often.
func TestClusterFailover(t *testing.T) {
	const longest = 5 * time.Second // G: 2 s for 99 of 100, on a machine that is not busy with other tests
	kills := process.Count(t, "MQ_CLUSTER_KILLS", 3)
	c := newCluster(t, 3)
	l := newLoad(load.Config{Seed: process.Seed(t), Quiet: true, Consumers: -1, Readers: -1, Large: -1})
	client := c.client(nil)
	defer client.Close()
	c.startWhole()
	run := begin(t, l, client)
	syncs := process.TimeSyncs(t, c.dir)
	var gaps stopwatch
	for range kills {
		c.AwaitWhole(patience)
		c.awaitAck(l, time.Now())
		leader := c.Leader(patience)
		l.ForgetGap()
		syncs.Forget()
		c.Kill(leader)
		c.awaitAck(l, time.Now())
		gap, slowest := l.LongestGap(), syncs.Slowest()
		if most := leadMax(longest, slowest); gap > most {
			t.Errorf("no writes for %v after the leader was killed, want at most %v, with syncs of %v", gap, most, slowest)
		}
		gaps = append(gaps, gap)
		report.Count(t, "leaders killed", 1)
		report.Figure(t, "no writes after kill -9 of the leader", gap.Seconds(), "s")
		c.Start(leader)
	}
	run.stop()
	c.check(l)
	c.finish(l)
	t.Logf("no writes after kill -9 of the leader: %v", gaps)
}
