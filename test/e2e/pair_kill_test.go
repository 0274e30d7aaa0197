package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestPairKill kills nodes of a pair at random instants under load, promotes, and lets the old leader return, and checks
// after each round that nothing acknowledged was lost, nothing else made up, and that both logs are the same.
// MQ_PAIR_ROUNDS says how many rounds.
func TestPairKill(t *testing.T) { pairKill(t, "MQ_PAIR_ROUNDS", 4, load.Config{}) }

// TestChurnPair is TestPairKill while starts are moved by policies, topics are deleted and published to again, and the cleaner
// moves what lives. MQ_CHURN_PAIR_ROUNDS says how many rounds.
func TestChurnPair(t *testing.T) {
	k := pairKill(t, "MQ_CHURN_PAIR_ROUNDS", 3, load.Config{Churn: true})
	k.churned.check(t, k.load)
}

func pairKill(t *testing.T, variable string, rounds int, cfg load.Config) *pairKiller {
	seed := process.Seed(t)
	cfg.Seed = seed
	k := &pairKiller{
		pair: newPair(t, append([]string{"-replica-timeout", "1s"}, small...)...), dice: rand.New(rand.NewPCG(seed, 99)),
		load: load.New(cfg), churn: cfg.Churn, worst: map[string]*outage{},
	}
	k.start()
	began := time.Now()
	done := 0
	draw(t, k.dice, variable, rounds, mishaps, func(round int, m mishap) {
		t.Logf("round %d: %s; node %d leads with epoch %d", round, m.name, k.leader, k.epoch)
		k.round(m, round%20 == 19)
		done++
	})
	k.finish(k.load)
	t.Logf("kill -9 in a pair: rounds %d in %v, %v, answers by status %v, side files %d",
		done, time.Since(began).Round(time.Millisecond), k.load.Checker.Report(), k.load.Statuses(), k.cut+k.cuts())
	for _, m := range mishaps {
		if o := k.worst[m.name]; o != nil {
			t.Logf("%-30s %4d times, at most: from the last start to writes %v, no writes for %v", m.name, o.times, o.start, o.gap)
		}
	}
	return k
}

// mishap is what happens to a pair in one round.
type mishap = scenario[func(k *pairKiller)]

var mishaps = []mishap{
	{"leader", func(k *pairKiller) { k.kill(k.leader); k.pause(30); k.restart(k.leader) }},
	{"follower", func(k *pairKiller) { k.kill(1 - k.leader); k.pause(100); k.restart(1 - k.leader) }},
	{"both", (*pairKiller).both},
	{"promotion", (*pairKiller).promotion},
	{"promotion beside the leader", (*pairKiller).promotionBeside},
	{"promotion, leader alone before", (*pairKiller).promotionAfterAlone},
	{"catch-up", (*pairKiller).catchUp},
	{"empty follower", (*pairKiller).emptyFollower},
}

type pairKiller struct {
	*pair
	dice      *rand.Rand
	load      *load.Load
	churn     bool // rounds are long enough for policies and the cleaner
	churned   churned
	lastStart time.Time
	worst     map[string]*outage
	cut       int // side files that were removed with their folder
}

// outage is the longest for one kind of mishap.
type outage struct {
	times      int
	start, gap time.Duration
}

// round lets one mishap happen under load and checks what is left.
func (k *pairKiller) round(m mishap, all bool) {
	k.t.Helper()
	c := k.client()
	defer c.Close()
	k.load.Checker.Doubt(true)
	l := begin(k.t, k.load, c)
	k.awaitAck(l.Load, time.Now())
	k.pause(60)
	if k.churn {
		linger(k.dice)
		k.churned.add(k.now(), k.load)
	}
	l.ForgetGap()
	m.do(k)
	sinceStart := k.awaitAck(l.Load, k.lastStart)
	gap := l.LongestGap()
	k.awaitInStep()
	k.pause(20)
	l.stop()
	k.load.Checker.Doubt(false)
	k.check(k.load)
	o := k.worst[m.name]
	if o == nil {
		o = &outage{}
		k.worst[m.name] = o
	}
	o.times++
	o.start, o.gap = max(o.start, sinceStart), max(o.gap, gap)

	// Nobody waits for an answer, and all that is in the log is on both nodes: what is not there now never will be.
	k.load.Checker.Restarted()
	k.readBack(k.load, all)
	k.awaitEqual(0, 1)
}

// pause waits for a random time up to so many milliseconds.
func (k *pairKiller) pause(ms int) {
	timer := time.NewTimer(time.Duration(k.dice.IntN(1000*ms)) * time.Microsecond)
	defer timer.Stop()
	<-timer.C
}

func (k *pairKiller) coin() bool { return k.dice.IntN(2) == 0 }

func (k *pairKiller) kill(i int) {
	k.t.Helper()
	select {
	case <-k.nodes[i].p.Ended():
		k.t.Fatalf("node %d ended by itself with status %d\n%s", i, k.nodes[i].p.ExitCode(), k.said())
	default:
	}
	k.nodes[i].p.Kill()
}

// restart starts a node in the role that it has.
func (k *pairKiller) restart(i int) {
	k.t.Helper()
	k.lastStart = time.Now()
	if i == k.leader {
		k.lead(i, 1-i)
	} else {
		k.follow(i)
	}
}

func (k *pairKiller) both() {
	k.t.Helper()
	first := k.dice.IntN(2)
	k.kill(first)
	k.pause(20)
	k.kill(1 - first)
	k.restartBoth(k.dice.IntN(2))
}

func (k *pairKiller) restartBoth(first int) {
	k.t.Helper()
	k.restart(first)
	if k.coin() {
		k.pause(20)
	} else { // long enough to be asked for what it knows alone
		k.pause(300)
	}
	k.restart(1 - first)
}

// promotion kills the leader, and lets the follower lead with a higher epoch; the old leader returns as follower.
func (k *pairKiller) promotion() {
	k.t.Helper()
	if k.coin() { // what the leader takes after that is on its disk alone, and never acknowledged
		k.endFollower()
		k.pause(20)
		k.kill(k.leader)
	} else {
		k.kill(k.leader)
		k.endFollower()
	}
	k.epoch++
	k.leader = 1 - k.leader
	k.restartBoth(k.dice.IntN(2))
}

// promotionAfterAlone lets the leader serve without its follower for a while, after a restart, and promotes then: what it
// has shown must be on the follower.
func (k *pairKiller) promotionAfterAlone() {
	k.t.Helper()
	k.endFollower()
	k.kill(k.leader)
	k.restart(k.leader)
	k.pause(200)
	k.kill(k.leader)
	k.epoch++
	k.leader = 1 - k.leader
	k.restartBoth(k.dice.IntN(2))
}

// endFollower ends the follower in one way or the other.
func (k *pairKiller) endFollower() {
	k.t.Helper()
	follower := 1 - k.leader
	var err error
	switch k.dice.IntN(3) {
	case 0:
		err = k.nodes[follower].p.Stop()
	case 1: // what the leader sends meanwhile never arrives
		err = k.nodes[follower].p.Pause()
		k.pause(20)
		k.kill(follower)
	default:
		k.kill(follower)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// promotionBeside lets the follower lead while the old leader still runs: that one must learn it and end.
func (k *pairKiller) promotionBeside() {
	k.t.Helper()
	old := k.leader
	k.endFollower()
	k.epoch++
	k.leader = 1 - old
	k.restart(k.leader)
	p := k.nodes[old].p
	select {
	case <-p.Ended():
	case <-time.After(patience):
		k.t.Fatalf("the old leader goes on\n%s", k.said())
	}
	wantFailure(k.t, p, fmt.Sprintf("fenced: epoch %d of this leader is over", k.epoch-1))
	k.restart(old)
}

// catchUp kills a node again while the follower gets what it lacks.
func (k *pairKiller) catchUp() {
	k.t.Helper()
	first := k.dice.IntN(2)
	k.kill(first)
	k.pause(100)
	k.restart(first)
	k.pause(60)
	again := k.dice.IntN(2)
	k.kill(again)
	k.pause(30)
	k.restart(again)
}

// emptyFollower takes the follower's folder away. At times a node is killed while the follower gets everything anew.
func (k *pairKiller) emptyFollower() {
	k.t.Helper()
	follower := 1 - k.leader
	k.kill(follower)
	k.cut += len(k.nodes[follower].cuts(k.t))
	k.nodes[follower].wipe(k.t)
	k.restart(follower)
	if k.coin() {
		k.pause(60)
		again := k.dice.IntN(2)
		k.kill(again)
		k.restart(again)
	}
}
