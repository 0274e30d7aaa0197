package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// takeover is a leader that is stopped in the middle of its work, and another node that leads meanwhile, with a new
// follower. Node 0 leads first, then node 1, whose follower is node 2.
type takeover struct {
	*pair
	before *load.Load  // of the first leader
	after  *load.Load  // of the second one, with names of its own
	over   atomic.Bool // the second one leads: the first one must not acknowledge anything
	late   answers     // what it did acknowledge
	ends   func()      // lets the first load end once it has the answers to what it sent

	stragglers sync.WaitGroup
}

// newTakeover starts a pair of three nodes and the load.
func newTakeover(t *testing.T, p *pair) *takeover {
	t.Helper()
	seed := process.Seed(t)
	o := &takeover{pair: p}
	o.before = load.New(load.Config{Seed: seed, Publishers: 16})
	o.after = load.New(load.Config{Seed: seed, Checker: o.before.Checker, Prefix: "after-", Quiet: true})
	o.start()
	c := o.clientOf(0, o.hear)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		defer c.Close()
		o.before.RunBy(ctx, c)
	}()
	o.ends = cancel
	t.Cleanup(func() {
		cancel()
		o.nodes[0].Kill()
		<-done
		o.stragglers.Wait()
	})
	o.awaitAck(o.before, time.Now())
	return o
}

// hear counts what the first leader acknowledges too late.
func (o *takeover) hear(_, path string, a load.Answer) {
	if o.over.Load() && a.Outcome == load.Done && isWrite(path) {
		o.late.hear("", path, a)
	}
}

// stopLeader stops the first leader while requests are in flight. With a tail, so many entries at least are in its log
// that are in no other: the follower is stopped first, and killed after.
func (o *takeover) stopLeader(tail uint64) {
	o.t.Helper()
	o.awaitTail(tail)
	if err := o.nodes[0].p.Pause(); err != nil {
		o.t.Fatal(err)
	}
	o.nodes[1].Kill()
	o.insist() // this arrives while nobody listens
}

// awaitTail stops the follower, and waits until so many entries are in the leader's log alone. What was on its way to
// the follower when that stopped may be in the follower's log, acknowledged or not: only what the leader appends
// later counts. The load waits for answers by then, so writes of our own have to come.
func (o *takeover) awaitTail(tail uint64) {
	o.t.Helper()
	if tail == 0 {
		return
	}
	leader, follower := o.nodes[0].p, o.nodes[1].p
	c := o.clientOf(0, o.hear)
	var stopped time.Time
	var shared uint64 // the follower may have entries up to here
	o.await("entries that only the leader has", func() string {
		if stopped.IsZero() {
			if err := follower.Pause(); err != nil {
				return err.Error()
			}
			s, err := leader.PairStatus()
			if err != nil {
				return err.Error()
			}
			stopped, shared = time.Now(), s.Last
			for range tail {
				o.stragglers.Go(func() { o.before.Probe(context.Background(), c, 100) })
			}
		}
		s, err := leader.PairStatus()
		if err == nil && s.Last >= shared+tail {
			return ""
		}
		if time.Since(stopped) > 100*time.Millisecond { // there will be no more: as much is in flight as may be
			err = errors.Join(err, follower.Resume())
			o.awaitAck(o.before, time.Now())
			stopped = time.Time{}
		}
		return fmt.Sprintf("%+v, %v", s, err)
	})
}

// insist goes on to write to the first leader until it has ended.
func (o *takeover) insist() {
	c := o.clientOf(0, o.hear)
	for range 8 {
		o.stragglers.Go(func() {
			for {
				if a := o.before.Probe(context.Background(), c, 100); a.Status == 0 {
					return
				}
			}
		})
	}
}

// promote lets node 1 lead, with node 2 as its follower, and returns how long it took until it acknowledged.
func (o *takeover) promote() time.Duration {
	o.t.Helper()
	began := time.Now()
	o.ends() // what it would read from the first leader from now on may be old
	o.epoch = 2
	o.follow(2)
	o.lead(1, 2)
	o.await("the second leader", func() string {
		s, err := o.now().PairStatus()
		if err != nil || s.Epoch != 2 {
			return fmt.Sprintf("%+v, %v", s, err)
		}
		return ""
	})
	o.over.Store(true)
	o.awaitInStep()
	o.pair.publish(o.after)
	return time.Since(began)
}

// publish keeps the new leader busy for a while.
func (o *takeover) publish() {
	o.t.Helper()
	c := o.clientOf(1, nil)
	defer c.Close()
	l := begin(o.t, o.after, c)
	o.awaitAck(o.after, time.Now().Add(200*time.Millisecond))
	l.stop()
}

// resume lets the first leader go on until it has learned that it is none any more.
func (o *takeover) resume() time.Duration {
	o.t.Helper()
	began := time.Now()
	if err := o.nodes[0].p.Resume(); err != nil {
		o.t.Fatal(err)
	}
	o.wantFenced()
	return time.Since(began)
}

func (o *takeover) wantFenced() {
	o.t.Helper()
	wantFailure(o.t, o.nodes[0].p, "fenced: epoch 1 of this leader is over")
	o.stragglers.Wait()
	for _, a := range o.late.all() {
		o.t.Errorf("the old leader acknowledged a write after another one led: %s, %v, which came at %v", a.path, a, a.at.UTC())
	}
	if o.t.Failed() {
		o.t.Log(o.said())
	}
}

// comeBack lets the first leader follow the second one, and checks everything.
func (o *takeover) comeBack() {
	o.t.Helper()
	for _, i := range []int{1, 2} {
		if err := o.nodes[i].p.Stop(); err != nil {
			o.t.Fatal(err)
		}
	}
	o.nodes = o.nodes[:2]
	o.start()
	c := o.clientOf(1, nil)
	defer c.Close()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	for _, l := range []*load.Load{o.before, o.after} { // both have groups and publishes of their own
		l.Checker.Restarted()
		if err := l.SettleBy(ctx, c); err != nil {
			o.t.Fatalf("%v\n%s", err, o.said())
		}
		o.readBack(l, true)
	}
	o.finish(o.before)
	if err := o.after.Err(); err != nil {
		o.t.Error(err)
	}
	o.t.Log(o.before.Checker.Report())
}

// newTrio returns a pair and a third node.
func newTrio(t *testing.T) *pair {
	t.Helper()
	p := newPair(t, append([]string{"-replica-timeout", "1s"}, small...)...)
	p.addNode()
	return p
}

// TestPairPause stops the leader under load, promotes the follower, and lets the old leader go on: it acknowledges
// nothing more, learns that it is fenced, and can come back as follower. MQ_PAIR_PAUSES says how often.
func TestPairPause(t *testing.T) {
	seed := process.Seed(t)
	draw(t, rand.New(rand.NewPCG(seed, 99)), "MQ_PAIR_PAUSES", 1, pauses, func(i int, s scenario[func(*takeover)]) {
		t.Run(fmt.Sprintf("%d: %s", i, s.name), func(t *testing.T) { s.do(newTakeover(t, newTrio(t))) })
	})
}

var pauses = []scenario[func(*takeover)]{
	{"in flight anywhere", func(o *takeover) {
		o.stopLeader(0)
		promotion := o.promote()
		o.publish()
		fenced := o.resume()
		o.refuseOldEpoch()
		o.comeBack()
		o.t.Logf("promotion %v, fenced %v after it went on", promotion, fenced)
	}},
	{"entries on the leader alone", func(o *takeover) {
		o.stopLeader(2)
		o.promote()
		o.publish()
		o.resume()
		o.comeBack()
		checkCuts(o.t, o.nodes[0].cuts(o.t))
	}},
	{"more of them than the new leader writes", func(o *takeover) {
		o.stopLeader(8)
		o.promote()
		o.resume()
		o.comeBack()
		checkCuts(o.t, o.nodes[0].cuts(o.t))
	}},
	// The old leader never learns it before it is started again in its old role.
	{"killed while it is stopped", func(o *takeover) {
		o.stopLeader(2)
		o.promote()
		o.publish()
		o.nodes[0].Kill()
		o.stragglers.Wait()
		p := o.run(0, "-role", "leader", "-epoch", "1", "-replica", o.nodes[1].url)
		c := o.clientOf(0, o.hear)
		defer c.Close()
		for running := true; running; {
			o.before.Probe(o.t.Context(), c, 0)
			select {
			case <-p.Ended():
				running = false
			default:
			}
		}
		o.wantFenced()
		o.comeBack()
		checkCuts(o.t, o.nodes[0].cuts(o.t))
	}},
}

// refuseOldEpoch starts the old leader once more as it was: it must refuse, and change nothing.
func (o *takeover) refuseOldEpoch() {
	o.t.Helper()
	before := hashFolder(o.t, o.nodes[0].Data, everything)
	p := o.run(0, "-role", "leader", "-epoch", "1", "-replica", o.nodes[1].url)
	wantFailure(o.t, p, "epoch 1 is over")
	wantSame(o.t, o.nodes[0].Data, before, everything)
}

// checkCuts looks into the side files of what was cut off a log.
func checkCuts(t *testing.T, names []string) {
	t.Helper()
	if len(names) == 0 {
		t.Error("nothing was saved of what was cut off")
	}
	for _, name := range names {
		var first, last, epoch uint64
		if _, err := fmt.Sscanf(filepath.Base(name), "%d-%d-epoch-%d.jsonl", &first, &last, &epoch); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at := first - 1
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e struct {
				Index, Term uint64
				Kind, Topic string
				Offset      *uint64
				Value       *[]byte
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e.Index != at && e.Index != at+1 || e.Term == 0 {
				t.Errorf("%s: entry %d of term %d after entry %d", name, e.Index, e.Term, at)
			}
			if e.Kind == "" && (e.Topic == "" || e.Offset == nil || e.Value == nil) {
				t.Errorf("%s: a record without topic, offset or value: %s", name, lines.Text())
			}
			at = e.Index
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		if at != last {
			t.Errorf("%s ends with entry %d", name, at)
		}
	}
}

// TestPairFollowerPause stops the follower under load: what is in flight is answered in time and called unknown, what
// comes later is refused at once, reads go on, and writes come back by themselves.
func TestPairFollowerPause(t *testing.T) {
	seed := process.Seed(t)
	p := newPair(t, small...)
	l := load.New(load.Config{Seed: seed, Publishers: 16})
	p.start()
	var a answers
	c := p.clientOf(0, a.hear)
	defer c.Close()
	run := begin(t, l, c)
	p.awaitAck(l, time.Now())
	if err := p.nodes[1].p.Pause(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	unknown, slowest := p.wantRefusals(l, c, &a, paused)
	if err := p.nodes[1].p.Resume(); err != nil {
		t.Fatal(err)
	}
	back := p.awaitAck(l, time.Now())
	if back > backMax {
		t.Errorf("writes came back %v after the follower", back)
	}
	run.stop()
	p.check(l)
	p.finish(l)
	t.Logf("in flight: %d unknown, the slowest after %v; writes came back after %v; %v", unknown, slowest, back, l.Checker.Report())
}
