package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// weather draws what happens on a link.
func weather(dice *rand.Rand) Rates {
	const ms = time.Millisecond
	return Rates{
		Drop: dice.Float64() * 0.05, Duplicate: dice.Float64() * 0.1, Reorder: dice.Float64() * 0.1, Corrupt: dice.Float64() * 0.02,
		Delay: time.Duration(dice.IntN(20)) * ms, Jitter: time.Duration(dice.IntN(20)) * ms, HeldUp: time.Duration(5+dice.IntN(40)) * ms,
	}
}

// storm changes the weather of all links, so many times, and more until something of each kind has happened. Afterwards it
// is fine.
func storm(t *testing.T, dice *rand.Rand, links []*Link, changes int) {
	t.Helper()
	const most = 100 // changes more
	for i := 0; i < changes || !stormy(links) && i < changes+most; i++ {
		for _, l := range links {
			l.Set(weather(dice), weather(dice))
		}
		if !pause(t.Context(), time.Duration(100+dice.IntN(500))*time.Millisecond) {
			return
		}
	}
	for _, l := range links {
		l.Set(Rates{}, Rates{})
	}
	if !stormy(links) {
		t.Errorf("fine weather: %v", sum(links))
	}
}

// stormy reports whether something of each kind has happened on the links.
func stormy(links []*Link) bool {
	p := sum(links)
	return p.Dropped > 0 && p.Duplicated > 0 && p.Overtaken > 0 && p.Corrupted > 0 && p.Delayed > 0
}

// told counts what happened to packets for the report.
func told(t *testing.T, p Packets) {
	report.Count(t, "packets", p.Sent)
	report.Count(t, "packets dropped", p.Dropped)
	report.Count(t, "packets duplicated", p.Duplicated)
	report.Count(t, "packets overtaken", p.Overtaken)
	report.Count(t, "packets corrupted", p.Corrupted)
}

// sum is what happened on all links, both ways.
func sum(links []*Link) (sum Packets) {
	for _, l := range links {
		forth, back := l.Packets()
		for _, p := range []Packets{forth, back} {
			sum.Sent += p.Sent
			sum.Arrived += p.Arrived
			sum.Dropped += p.Dropped
			sum.Duplicated += p.Duplicated
			sum.HeldUp += p.HeldUp
			sum.Overtaken += p.Overtaken
			sum.Corrupted += p.Corrupted
			sum.Delayed += p.Delayed
			sum.Lost += p.Lost
		}
	}
	return sum
}

// TestClusterLinks runs a cluster whose nodes reach each other by links that lose, repeat, reorder, corrupt and delay
// packets, under load. MQ_LINK_CHANGES says how often that changes.
func TestClusterLinks(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	places, dir := newPlaces(t, 3), process.KeptDir(t)
	var links []*Link
	for i := range places {
		for j := range i {
			links = append(links, newLink(t, places[i], places[j], dice.Uint64(), Rates{}))
		}
	}
	o, flags := reach(t, dir, places)
	c := process.NewCluster(t, dir, 0, flags...)
	for _, p := range places {
		cfg, url := config(p, o)
		c.Add(dir, cfg, url)
	}
	g, stop := gatherGroup(t, c, o, load.Config{Seed: seed})
	storm(t, dice, links, process.Count(t, "MQ_LINK_CHANGES", 4))
	awaitAck(t, g.load, time.Now(), g.Said)
	stop()
	g.finish()
	told(t, sum(links))
	report.History(t, g.load.Checker.Report())
	t.Logf("links of a cluster: packets %v; %v, answers by status %v", sum(links), g.load.Checker.Report(), g.load.Statuses())
}

// TestPairLinks is TestClusterLinks with a pair.
func TestPairLinks(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 98))
	places, dir := newPlaces(t, 2), process.KeptDir(t)
	links := []*Link{newLink(t, places[0], places[1], dice.Uint64(), Rates{})}
	o, flags := reach(t, dir, places)
	var (
		nodes [2]*process.Node
		urls  [2]string
		p     [2]*process.Process
	)
	for i, place := range places {
		cfg, url := config(place, o)
		cfg.Binary, cfg.Data, cfg.Log = process.Binary(t), filepath.Join(dir, fmt.Sprintf("node-%d", i)), filepath.Join(dir, fmt.Sprintf("node-%d.log", i))
		cfg.Env = []string{"MQ_REPLICATION_TOKEN=" + process.ReplicationToken}
		nodes[i], urls[i] = process.NewNode(t, cfg), url
	}
	start := func(leader, epoch int) {
		follower := 1 - leader
		nodes[follower].Args = append(flags[:len(flags):len(flags)], "-role", "follower")
		nodes[leader].Args = append(flags[:len(flags):len(flags)], "-role", "leader", "-epoch", fmt.Sprint(epoch), "-replica", urls[follower])
		p[follower], p[leader] = nodes[follower].Start(), nodes[leader].Start()
	}
	said := func() string { return p[0].Stderr() + p[1].Stderr() }
	inStep := func(leader int) {
		t.Helper()
		await(t, "leader and follower are in step", func() string {
			s, err := p[leader].PairStatus()
			if err == nil && s.InStep() {
				if s, err = p[1-leader].PairStatus(); err == nil && s.State == "streaming" {
					return ""
				}
			}
			return fmt.Sprintf("%+v, %v\n%s", s, err, said())
		})
	}
	readBack := func(l *load.Load, leader int) {
		t.Helper()
		o := o
		o.URLs, o.Patient = []string{urls[leader]}, true
		client := load.Open(o)
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := l.SettleBy(ctx, client); err != nil {
			t.Fatalf("%v\n%s", err, said())
		}
		l.Checker.Restarted()
		if err := l.ReadBackBy(ctx, client, true); err != nil {
			t.Fatalf("%v\n%s", err, said())
		}
		await(t, "equal logs", func() string { return equal(nodes[0].Data, nodes[1].Data) })
		if err := l.Err(); err != nil {
			t.Errorf("%v\n%s", err, said())
		}
	}
	l := load.New(load.Config{Seed: seed})
	start(0, 1)
	inStep(0)
	of := o
	of.URLs, of.Patient = urls[:1], true
	client := load.Open(of)
	defer client.Close()
	stop := begin(t, l, client)
	awaitAck(t, l, time.Now(), said)
	storm(t, dice, links, process.Count(t, "MQ_LINK_CHANGES", 4))
	awaitAck(t, l, time.Now(), said)
	stop()
	inStep(0)
	readBack(l, 0)
	for i := range p {
		if err := p[i].Stop(); err != nil {
			t.Error(err)
		}
	}
	start(1, 2)
	inStep(1)
	l.Checker.Restarted()
	readBack(l, 1)
	for i := range p {
		if err := p[i].Stop(); err != nil {
			t.Error(err)
		}
	}
	if r := l.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		t.Error("the load did nothing")
	}
	told(t, sum(links))
	report.History(t, l.Checker.Report())
	t.Logf("links of a pair: packets %v; %v, answers by status %v", sum(links), l.Checker.Report(), l.Statuses())
}
