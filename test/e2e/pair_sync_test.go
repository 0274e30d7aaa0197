package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestPairFromStandalone makes a standalone node's folder a leader's, and back, and again, under load.
func TestPairFromStandalone(t *testing.T) {
	p := newPair(t, small...)
	// An administrator's retains would let segments go while the node is alone, and a follower that lacks them is told to take
	// an empty folder.
	l := load.New(load.Config{Seed: process.Seed(t), Quiet: true})
	work := func() {
		t.Helper()
		c := p.clientOf(0, nil)
		defer c.Close()
		run := begin(t, l, c)
		p.awaitAck(l, time.Now().Add(200*time.Millisecond))
		run.stop()
		l.Checker.Restarted()
		p.readBack(l, true)
	}
	alone := func() {
		t.Helper()
		if err := p.run(0).AwaitReady(); err != nil {
			t.Fatal(err)
		}
		work()
		p.stop()
	}
	alone()
	p.start()
	work()
	p.awaitEqual(0, 1)
	p.stop()
	alone()
	p.start() // the follower has an old folder, which goes on
	work()
	p.finish(l)
	t.Log(l.Checker.Report())
}

// TestPairFullSync gives a leader with a larger log an empty follower, under load. The follower is killed in the middle,
// may not be promoted, and goes on where it was. Publishers never wait for long. MQ_PAIR_SYNC_MB says how large the
// log is.
func TestPairFullSync(t *testing.T) {
	const gapMax = time.Second // apart from what syncs take
	size := int64(process.Count(t, "MQ_PAIR_SYNC_MB", 24)) << 20
	p := newPair(t, "-segment-bytes", "4194304", "-snapshot-bytes", "16777216")
	seed := process.Seed(t)
	l := load.New(load.Config{Seed: seed, Quiet: true, Publishers: 4})
	fill(t, p, l, seed, size)

	p.lead(0, 1)
	c := p.clientOf(0, nil)
	defer c.Close()
	run := begin(t, l, c)
	syncs := process.TimeSyncs(t, p.dir)
	p.follow(1)
	started := time.Now()
	first := p.awaitAck(l, started)
	l.ForgetGap()
	syncs.Forget()
	done, gap := p.killInFullSync(l)
	slowest := syncs.Slowest()
	p.refusePromotion()

	p.follow(1)
	restarted := time.Now()
	again := p.awaitAck(l, restarted)
	l.ForgetGap()
	syncs.Forget()
	resumed := p.awaitSync()
	p.awaitInStep()
	took := time.Since(restarted)
	gap = max(gap, l.LongestGap())
	slowest = max(slowest, syncs.Stop())
	run.stop()
	if most := gapMax + slackSyncs*slowest; gap > most {
		t.Errorf("publishers waited for %v during the full sync, want at most %v, with syncs of %v", gap, most, slowest)
	}
	if resumed < done {
		t.Errorf("the follower had %d bytes of the history, and after a restart %d", done, resumed)
	}
	p.check(l)
	p.finish(l)
	report.Figure(t, "full sync", float64(size>>20)/took.Seconds(), "MB/s")
	report.Figure(t, "longest wait of a publisher during a full sync", gap.Seconds(), "s")
	t.Logf("full sync of %d MB under load: %d MB were there when the follower was killed, the rest took %v; from the start of the follower to writes %v, "+
		"after the kill %v; the longest wait %v with syncs of %v; %v", size>>20, done>>20, took, first, again, gap, slowest, l.Checker.Report())
}

// TestPairFullSyncLongEnd kills an empty follower again and again whose leader has a new snapshot and all of its log in the
// last segment: the history is there long before the entries that the snapshot holds.
func TestPairFullSyncLongEnd(t *testing.T) {
	p := newPair(t)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	l := load.New(load.Config{Seed: seed, Quiet: true})
	fill(t, p, l, seed, 12<<20)
	p.lead(0, 1)
	p.follow(1)
	p.awaitInStep()
	c := p.clientOf(0, nil)
	defer c.Close()
	if a := c.Snapshot(t.Context()); a.Outcome != load.Done {
		t.Fatal(a)
	}
	run := begin(t, l, c)
	p.nodes[1].Kill()
	p.nodes[1].wipe(t)
	for range 3 {
		p.follow(1)
		<-time.After(time.Duration(dice.IntN(150)) * time.Millisecond)
		p.nodes[1].Kill()
	}
	p.nodes[1].wipe(t)
	p.follow(1)
	p.await("the history is there", func() string {
		if unfinished, err := p.nodes[1].unfinished(); unfinished || err != nil {
			return fmt.Sprintf("unfinished %t, %v", unfinished, err)
		}
		return ""
	})
	p.nodes[1].Kill()
	p.follow(1)
	p.awaitInStep()
	run.stop()
	p.check(l)
	p.finish(l)
}

// fill makes a standalone node's log of about some size in node 0's folder, which does not run then.
func fill(t *testing.T, p *pair, l *load.Load, seed uint64, size int64) {
	t.Helper()
	const valueMax = 250 << 10
	big := load.New(load.Config{
		Seed: seed, Checker: l.Checker, Prefix: "fill-", Quiet: true, Consumers: -1, Readers: -1, Large: 100, ValueMax: valueMax,
	})
	if err := p.run(0).AwaitReady(); err != nil {
		t.Fatal(err)
	}
	var published atomic.Int64
	c := p.clientOf(0, func(_, _ string, a load.Answer) {
		if a.Outcome == load.Done {
			published.Add(valueMax / 2) // on average; a batch is as large as a single record
		}
	})
	defer c.Close()
	run := begin(t, big, c)
	for deadline := time.Now().Add(10 * patience); published.Load() < size; {
		if time.Now().After(deadline) {
			t.Fatalf("no log of %d bytes yet: %v", size, big.Statuses())
		}
		p.awaitAck(big, time.Now().Add(20*time.Millisecond))
	}
	run.stop()
	p.check(big)
	p.stop()
}

// killInFullSync kills the follower when it has a part of the history. It returns how many bytes it had at least, and how long
// publishers waited at most since their gap was forgotten; not while the follower was away.
func (p *pair) killInFullSync(l *load.Load) (bytes int64, gap time.Duration) {
	p.t.Helper()
	for try := 1; ; try++ {
		p.await("a full sync that has begun", func() string {
			s, err := p.now().PairStatus()
			if s.InStep() {
				return ""
			}
			if s.Sync != nil && s.Sync.Done > s.Sync.Total/10 {
				bytes = s.Sync.Done
				return ""
			}
			return fmt.Sprintf("%+v, %v", s, err)
		})
		gap = max(gap, l.LongestGap())
		p.nodes[1].Kill()
		if unfinished, err := p.nodes[1].unfinished(); err != nil {
			p.t.Fatal(err)
		} else if unfinished {
			return bytes, gap
		}
		const most = 10
		if try == most {
			p.t.Fatalf("the full sync was over before it was seen, %d times", most)
		}
		p.nodes[1].wipe(p.t)
		p.follow(1)
		p.awaitAck(l, time.Now())
		l.ForgetGap()
	}
}

// unfinished reports whether a follower knows that a full sync has not ended. Before it has begun, that is an error.
func (n *pairNode) unfinished() (bool, error) {
	var promise struct{ First uint64 }
	text, err := os.ReadFile(filepath.Join(n.Data, "pair.json"))
	if err == nil {
		err = json.Unmarshal(text, &promise)
	}
	return promise.First != 0, err
}

// refusePromotion tries to promote a follower that has not got all of the log.
func (p *pair) refusePromotion() {
	p.t.Helper()
	before := hashFolder(p.t, p.nodes[1].Data, everything)
	promoted := p.run(1, "-role", "leader", "-epoch", "9", "-replica", p.nodes[0].url)
	wantFailure(p.t, promoted, "has not got all of the log yet")
	wantSame(p.t, p.nodes[1].Data, before, everything)
}

// awaitSync waits until a full sync is under way, or over, and returns how many bytes the follower had then.
func (p *pair) awaitSync() (bytes int64) {
	p.t.Helper()
	p.await("the full sync goes on", func() string {
		s, err := p.now().PairStatus()
		switch {
		case s.Sync != nil:
			bytes = s.Sync.Done
			return ""
		case s.InStep():
			bytes = 1 << 62 // it was too fast to be seen
			return ""
		}
		return fmt.Sprintf("%+v, %v", s, err)
	})
	return bytes
}
