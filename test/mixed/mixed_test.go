package mixed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/linear"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

func TestMain(m *testing.M) { os.Exit(process.Main(m)) }

// TestMixed lets everything go wrong at once, in rounds that each end with all checks. MQ_MIXED_ROLE is standalone, pair,
// cluster, or all; MQ_MIXED_ROUNDS says how many rounds, and MQ_MIXED_SECONDS how long faults go on in each.
func TestMixed(t *testing.T) {
	roles := map[string][]role{
		"": {cluster}, "standalone": {standalone}, "pair": {pair}, "cluster": {cluster}, "all": {standalone, pair, cluster},
	}[os.Getenv("MQ_MIXED_ROLE")]
	if roles == nil {
		t.Fatalf("MQ_MIXED_ROLE=%q: say standalone, pair, cluster, or all", os.Getenv("MQ_MIXED_ROLE"))
	}
	seed := process.Seed(t)
	rounds, seconds := process.Count(t, "MQ_MIXED_ROUNDS", 1), process.Count(t, "MQ_MIXED_SECONDS", 3)
	for _, r := range roles {
		t.Run(string(r), func(t *testing.T) { mix(t, r, seed, rounds, time.Duration(seconds)*time.Second) })
	}
}

// mix is one run of some rounds on the same folders. The first round is that of the seed, the next one of the seed after it.
func mix(t *testing.T, r role, seed uint64, rounds int, long time.Duration) {
	w := newWorld(t, r, seed)
	for _, n := range slices.Backward(w.nodes) { // the follower of a pair first
		n.start()
	}
	w.whole()
	began, events := time.Now(), 0
	for i := range uint64(rounds) {
		one := &round{world: w, began: time.Now(), dice: rand.New(rand.NewPCG(seed+i, 2)), events: plan(r, seed+i, long)}
		t.Logf("round %d, MQ_SEED=%d:\n%s", i, seed+i, list(one.events))
		events += len(one.events)
		again := fmt.Sprintf("MQ_MIXED_ROLE=%s MQ_MIXED_SECONDS=%d MQ_SEED=%d go test -v -timeout 1h -run TestMixed ./test/mixed", r, int(long.Seconds()), seed+i)
		w.judgeRound(one, seed+i, again)
	}
	w.finish()
	// A short plan may have no kill.
	if r := w.load.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 || w.skipped == events || rounds >= 5 && w.kills == 0 {
		t.Errorf("this run did not test what it is for: kills %d, %v", w.kills, r)
	}
	// Many calls whose outcome is unknown make a history hard to judge.
	if n := len(w.judged); n >= 20 && w.undecided > n/5 {
		t.Errorf("%d of the histories of %d topics are undecided", w.undecided, n)
	}
	report.History(t, w.load.Checker.Report())
	report.Count(t, "faults", int64(events-w.skipped))
	report.Count(t, "calls judged as linearizable", int64(len(w.record.Operations())))
	t.Logf("%s: rounds %d in %v, faults %d and %d that had no place, kills %d, starts %d, promotions %d and %d that were refused, backups %d and %d broken off, %v, answers by status %v, "+
		"recorded calls %d of %d topics, %d of which are undecided", r, rounds, time.Since(began).Round(time.Millisecond), events-w.skipped, w.skipped, w.kills, w.started, w.promoted, w.refused,
		w.taken, w.broken, w.load.Checker.Report(), w.load.Statuses(), len(w.record.Operations()), len(w.judged), w.undecided)
}

// judgeRound plays a round, and says what was done, and how to do it again, if that fails.
func (w *world) judgeRound(one *round, seed uint64, again string) {
	defer func() {
		for _, v := range w.violations {
			report.Violation(w.t, v)
			w.t.Error(v)
		}
		if w.t.Failed() {
			report.Again(w.t, again)
			w.t.Logf("what was done:\n%s\nagain: %s", strings.Join(one.log, "\n"), again)
		}
	}()
	one.play(seed)
	if len(w.violations) > 0 {
		w.t.FailNow()
	}
}

// play lets a round happen under load, heals, and checks everything.
func (r *round) play(seed uint64) {
	r.t.Helper()
	r.keepOld()
	client, scribes := r.client(0), r.client(time.Second)
	r.load.Checker.Doubt(r.role != standalone)
	stop := background(func(ctx context.Context) { r.load.RunBy(ctx, client) })
	defer stop()
	stopRecord := background(func(ctx context.Context) { r.record.Run(ctx, scribes, 4, seed) })
	defer stopRecord()
	for _, part := range []struct {
		what string
		do   func()
	}{
		{"writes are taken", r.awaitWrites},
		{"faults are over", func() { r.run(); r.insisting.Wait() }},
		{"all is healed", r.heal},
		{"all nodes are in step", r.whole},
		{"writes are taken", r.awaitWrites},
		{"clients have stopped", func() { stopRecord(); stop() }},
		{"outcomes are known", func() { r.settle(client) }},
		{"judged as linearizable", func() { r.judge(scribes) }},
		{"connections are closed", func() { client.Close(); scribes.Close(); r.http.CloseIdleConnections() }},
		{"read back from each node", r.readBack},
		{"logs are equal", r.equal},
		{"nothing has grown", r.flat},
		{"a backup is good", r.lastBackup},
		{"logs say nothing odd", r.words},
		{"ready for another round", r.renew},
	} {
		part.do()
		r.say("%s", part.what)
	}
}

// background runs something until the returned function is called, which may be called again.
func background(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		f(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// keepOld copies the folder that an event of this round needs, and lets its node live on, so that the copy is old.
func (r *round) keepOld() {
	r.t.Helper()
	if !slices.ContainsFunc(r.events, func(e event) bool { return e.kind == oldFolder }) {
		return
	}
	n := r.resolve(follower)
	if r.role == cluster {
		n = r.nodes[r.dice.IntN(len(r.nodes))]
	}
	n.terminate()
	n.finish()
	old := n.cfg.Data + "-old"
	if err := os.RemoveAll(old); err != nil {
		r.t.Fatal(err)
	}
	if err := os.CopyFS(old, os.DirFS(n.cfg.Data)); err != nil {
		r.t.Fatal(err)
	}
	n.start()
	r.old = n
	r.whole()
}

// awaitWrites waits until a publish is acknowledged that is sent from now on.
func (w *world) awaitWrites() {
	w.t.Helper()
	now := time.Now()
	w.await("writes are taken", func() string {
		if w.load.LastAcknowledged().After(now) {
			return ""
		}
		return fmt.Sprintf("answers by status %v; %v", w.load.Statuses(), w.load.Err())
	})
}

// whole waits until all nodes are in step. A node that refuses its damaged folder gets an empty one, as the operator is told.
func (w *world) whole() {
	w.t.Helper()
	w.await("all nodes are in step", func() (lacks string) {
		w.look()
		for _, n := range w.nodes {
			if n.life == nil || n.life.over() {
				if n.life == nil || !n.broken {
					w.t.Fatalf("node %d has ended\n%s", n.number, w.said())
				}
				w.t.Logf("node %d refuses its folder, and gets an empty one: %s", n.number, last(n.life.Stderr(), 500))
				n.bury()
				if err := os.RemoveAll(n.cfg.Data); err != nil {
					w.t.Fatal(err)
				}
				n.start()
				return "a node was started anew"
			}
			if text := n.lacks(); text != "" {
				lacks += fmt.Sprintf("node %d: %s; ", n.number, text)
			}
		}
		return lacks
	})
	for _, n := range w.nodes {
		n.broken = false
		n.life.broken.Store(false)
	}
}

// lacks says why a node is not in step with the others; empty: it is.
func (n *node) lacks() string {
	w := n.w
	status, body, err := n.life.Get("/readyz")
	text := fmt.Sprintf("/readyz %d %q, %v", status, body, err)
	switch w.role {
	case standalone:
		if status == http.StatusOK {
			return ""
		}
	case pair:
		s, err := n.life.PairStatus()
		if err == nil && s.State == "streaming" && (n.number != w.leads || status == http.StatusOK && s.InStep()) {
			return ""
		}
		text += fmt.Sprintf("; %+v, %v", s, err)
	case cluster:
		s, err := n.life.RaftStatus()
		if err == nil && status == http.StatusOK && s.Phase == "whole" && s.Leader == w.nodes[w.leads].url {
			return ""
		}
		text += fmt.Sprintf("; %+v, %v", s, err)
	}
	return text
}

// settle lets all clients learn what became of their calls. Nothing else is under way: what is not done then never will be.
func (w *world) settle(client *load.Client) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := w.load.SettleBy(ctx, client); err != nil {
		w.t.Fatalf("%v\n%s", err, w.said())
	}
	w.load.Checker.Restarted()
	w.load.Checker.Doubt(false)
}

// readBack reads everything back from each node, which leads for it.
func (w *world) readBack() {
	w.t.Helper()
	for _, n := range slices.Backward(w.nodes) {
		switch {
		case w.role == cluster:
			w.transfer(n)
		case w.role == pair && n.number != w.leads: // swapped on purpose
			for _, i := range []int{w.leads, n.number} {
				w.nodes[i].terminate()
				w.nodes[i].finish()
			}
			w.lead(n.number)
			w.nodes[1-n.number].start()
			n.start()
			w.whole()
			w.load.Checker.Restarted()
		case w.role == standalone:
			n.terminate()
			n.finish()
			n.start()
			w.whole()
		}
		client := w.client(0)
		w.await(fmt.Sprintf("everything is read back from node %d", n.number), func() string {
			if err := w.load.ReadBackBy(w.t.Context(), client, true); err != nil {
				return err.Error()
			}
			return ""
		})
		client.Close()
	}
	if err := w.load.Err(); err != nil && !w.onlyCorrupt(err) {
		w.violation("%v", err)
	}
}

// onlyCorrupt reports whether all that the load calls strange is that records of a damaged node were called damaged. A
// cluster repairs them, at once when a read has met them; until then that is the right answer.
func (w *world) onlyCorrupt(err error) bool {
	if !w.damaged || w.load.Checker.Report().Err() != nil {
		return false
	}
	for one := range strings.SplitSeq(err.Error(), `" "`) {
		if !strings.Contains(one, "500 data_corrupt") {
			return false
		}
	}
	return true
}

// renew begins with a new load, which knows of nothing strange, where the one before has met damage.
func (r *round) renew() {
	if r.load.Err() != nil && len(r.violations) == 0 {
		r.generation++
		r.load = load.New(load.Config{Seed: r.dice.Uint64(), Churn: true, Checker: r.load.Checker, Prefix: fmt.Sprintf("%d-", r.generation)})
	}
	r.damaged = false
}

// transfer makes a node of a cluster the leader.
func (w *world) transfer(n *node) {
	w.t.Helper()
	w.await(fmt.Sprintf("node %d leads", n.number), func() string {
		if w.look(); w.leads == n.number {
			return ""
		}
		if err := w.nodes[w.leads].life.Transfer(n.number); err != nil {
			return err.Error()
		}
		return "another one does"
	})
	w.whole()
}

// equal waits until all nodes have the same log, byte for byte.
func (w *world) equal() {
	w.t.Helper()
	w.await("equal logs", func() string {
		for i := range w.nodes[1:] {
			if c, err := w.compare(0, i+1); err != nil || !c.Equal() {
				return fmt.Sprintf("nodes 0 and %d: %+v, %v", i+1, c, err)
			}
		}
		return ""
	})
}

// judge decides whether all that was recorded in this round is linearizable.
func (w *world) judge(client *load.Client) {
	w.t.Helper()
	const most = 3 * time.Second // for a topic and a group
	w.record.Complete(w.t.Context(), client)
	byTopic, topics := map[string][]linear.Operation{}, []string{}
	for _, o := range w.record.Operations() {
		if byTopic[o.Topic] == nil {
			topics = append(topics, o.Topic)
		}
		byTopic[o.Topic] = append(byTopic[o.Topic], o)
		switch o.Code {
		case "", linear.TopicNotFound, linear.OffsetGone, linear.OffsetOutOfRange, "unavailable", "not_leader":
		case "data_corrupt":
			if !w.damagedOnce {
				w.violation("a record is called damaged: %v", o)
			}
		default:
			w.violation("an answer that no client should get: %v", o)
		}
	}
	for i, topic := range topics {
		if w.judged[topic] {
			continue
		}
		w.judged[topic] = i < len(topics)-1 // the next round goes on with the last one
		switch err := linear.Check(byTopic[topic], most); {
		case errors.Is(err, linear.ErrUndecided):
			w.undecided++
		case err != nil:
			w.violation("%v", err)
			var v *linear.Violation
			if errors.As(err, &v) {
				if err := v.Draw(filepath.Join(w.dir, "history.html")); err != nil {
					w.t.Error(err)
				}
			}
		}
	}
}

// flat compares what the processes take with what they took when it was quiet for the first time.
func (w *world) flat() {
	w.t.Helper()
	const spareMemory, spareGoroutines, spareFiles = 64 << 20, 10, 16
	for i, n := range w.nodes {
		if i == len(w.first) {
			u, err := n.usage()
			if err != nil {
				w.t.Fatal(err)
			}
			w.first = append(w.first, u)
			continue
		}
		first := w.first[i]
		w.await(fmt.Sprintf("node %d takes no more than before", i), func() string {
			u, err := n.usage()
			if err == nil && u.memory <= first.memory+spareMemory && u.goroutines <= first.goroutines+spareGoroutines && u.files <= first.files+spareFiles {
				return ""
			}
			return fmt.Sprintf("%+v, %v; it was %+v", u, err, first)
		})
	}
}

// lastBackup takes a backup while nothing goes wrong. It must succeed.
func (w *world) lastBackup() {
	w.t.Helper()
	if w.backups != nil {
		w.noteBackup(<-w.backups)
	}
	w.look()
	if err := backUp(w.t.Context(), w.http, w.nodes[w.leads].url, w.backupDir()); err != nil {
		w.violation("a backup while all is quiet: %v", err)
	}
	w.taken++
}

// words looks for lines in the logs of the nodes that no fault of this test may cause.
func (w *world) words() {
	w.t.Helper()
	for _, n := range w.nodes {
		text, err := os.ReadFile(n.cfg.Log)
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			for _, word := range []string{"panic", "BUG", "DATA RACE", "goroutine ", "fold differs", "folds of the nodes differ", "raft panicked"} {
				if strings.Contains(line, word) {
					w.violation("node %d says: %s", n.number, line)
				}
			}
		}
	}
}

// finish stops all nodes, and compares their logs once more.
func (w *world) finish() {
	w.t.Helper()
	if w.role == pair {
		w.nodes[w.leads].terminate()
		w.nodes[w.leads].finish()
	}
	for _, n := range w.nodes {
		n.terminate()
	}
	for _, n := range w.nodes {
		n.finish()
	}
	for i := range w.nodes[1:] {
		// One that stops last may have written more than the others.
		if c, err := w.compare(0, i+1); err != nil || len(c.Differences) > 0 {
			w.t.Errorf("the logs of nodes 0 and %d: %+v, %v", i+1, c, err)
		}
	}
	if len(w.violations) > 0 {
		w.t.Errorf("%q", w.violations)
	}
}
