package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	mq "example.com/mq/client"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// callers use the Go client as programs would: each publishes one record after another, and would give each call callBudget.
type callers struct {
	syncs *process.Syncs // beside them

	mu      sync.Mutex // guards all below
	calls   int
	longest time.Duration
	failed  []error
	stop    func() // ends them after the calls that are under way
}

// callBudget is how long a program lets the client try. On a disk with slow syncs a takeover may take longer: then it waits for
// that, too.
const callBudget = 5 * time.Second

// call lets some callers publish to a cluster until stop.
func (c *cluster) call(n int, syncs *process.Syncs) *callers {
	c.t.Helper()
	client, err := mq.New(mq.Config{Nodes: c.URLs()})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	all := &callers{syncs: syncs}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				all.publish(client, fmt.Sprintf("called-%d", i), k)
			}
		})
	}
	all.stop = func() {
		cancel()
		group.Wait()
		client.Close()
	}
	c.t.Cleanup(all.stop)
	return all
}

// publish publishes the k-th record of a topic, whose offset must be k: nothing is lost and nothing is twice.
func (a *callers) publish(client *mq.Client, topic string, k int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began, slowest := time.Now(), a.syncs.Slowest() // that before it counts, too: others may forget it meanwhile
	p, err := client.Publish(ctx, topic, mq.Record{Value: fmt.Append(nil, k)}, mq.PublishOptions{})
	took := time.Since(began)
	slowest = max(slowest, a.syncs.Slowest())
	switch {
	case err == nil && p.Offset != uint64(k):
		err = fmt.Errorf("record %d of %s is at offset %d", k, topic, p.Offset)
	case err == nil && took > leadMax(callBudget, slowest):
		err = fmt.Errorf("it would have failed after %v, with syncs of %v", callBudget, slowest)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	a.longest = max(a.longest, took)
	if err != nil {
		a.failed = append(a.failed, fmt.Errorf("after %v: %w", took, err))
	}
}

// forget begins to measure the longest call anew, and the slowest sync.
func (a *callers) forget() {
	a.syncs.Forget()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.longest = 0
}

// await waits until so many more calls have succeeded as there are callers, and returns the longest so far.
func (a *callers) await(c *cluster, more int) time.Duration {
	c.t.Helper()
	a.mu.Lock()
	before := a.calls
	a.mu.Unlock()
	c.Await(patience, "publishers go on", func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.calls >= before+more {
			return ""
		}
		return fmt.Sprint(a.failed)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.longest
}

// check fails the test if any call failed.
func (a *callers) check(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.failed) > 0 {
		t.Errorf("%d of %d calls failed; the first: %v", len(a.failed), a.calls, a.failed[0])
	}
}

// TestClusterRoll restarts all nodes by SIGTERM, one after another, under load. No call of the Go client fails that may
// take callBudget. MQ_CLUSTER_ROLLS says how often.
func TestClusterRoll(t *testing.T) {
	c := newCluster(t, 3, small...)
	l := newLoad(load.Config{Seed: process.Seed(t)})
	c.startWhole()
	client := c.client(nil)
	defer client.Close()
	run := begin(t, l, client)
	all := c.call(8, process.TimeSyncs(t, c.dir))
	all.await(c, 100)
	var leaders, followers stopwatch
	for range process.Count(t, "MQ_CLUSTER_ROLLS", 1) {
		for i := range c.Nodes {
			leader := c.AwaitWhole(patience)
			all.forget()
			c.Stop(i)
			c.Start(i)
			c.AwaitWhole(patience)
			report.Count(t, "restarts", 1)
			if longest := all.await(c, 50); i == leader {
				leaders = append(leaders, longest)
			} else {
				followers = append(followers, longest)
			}
		}
	}
	all.stop()
	run.stop()
	all.check(t)
	c.check(l)
	c.finish(l)
	t.Logf("longest call while a node restarts: leaders %v; followers %v; %d calls; %v", leaders, followers, all.calls, l.Checker.Report())
}

// TestClusterTransfer hands the lead over by mq cluster transfer, under load. MQ_CLUSTER_TRANSFERS says how often.
func TestClusterTransfer(t *testing.T) {
	const longest = 2 * time.Second // 200 ms, on a machine that is not busy with other tests
	c := newCluster(t, 3)
	c.buildMQ() // now: it keeps the machine busy
	l := newLoad(load.Config{Seed: process.Seed(t), Publishers: 2})
	c.startWhole()
	client := c.client(nil)
	defer client.Close()
	run := begin(t, l, client)
	syncs := process.TimeSyncs(t, c.dir)
	all := c.call(8, syncs)
	all.await(c, 100)
	var gaps stopwatch
	for i := range process.Count(t, "MQ_CLUSTER_TRANSFERS", 3) {
		c.transfer(all, i%2)
		gap := all.await(c, 50)
		gaps = append(gaps, gap)
		report.Count(t, "transfers of the lead", 1)
		report.Figure(t, "longest call while the lead is handed over", gap.Seconds(), "s")
		if slowest := syncs.Slowest(); gap > longest+transferSyncs*slowest {
			t.Errorf("a call took %v, with syncs of %v", gap, slowest)
		}
	}
	all.stop()
	run.stop()
	all.check(t)
	if out, err := c.mq("cluster", "status"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	c.check(l)
	c.finish(l)
	t.Logf("longest call while the lead is handed over: %v", gaps)
}

// transferSyncs is how many syncs may stand between the wish that another node leads and the first write that it takes.
const transferSyncs = 20

// transfer hands the lead over to one of the followers by mq, and begins to measure calls and syncs anew when it does. Where
// syncs are slow, that node may not get ready within the election timeout that it has: then nothing was done, and it is asked
// again.
func (c *cluster) transfer(all *callers, follower int) {
	c.t.Helper()
	const most = 10
	for try := 1; ; try++ {
		to := c.Others(c.AwaitWhole(patience))[follower]
		stalled := c.stalls()
		all.forget()
		out, err := c.mq("cluster", "transfer", "--to", fmt.Sprint(to))
		if err == nil {
			leader := c.Leader(patience)
			if leader == to {
				return
			}
			if stalled(c.all()...) == "" || try == most {
				c.t.Errorf("node %d leads, want %d", leader, to)
				return
			}
		}
		refused := strings.Contains(out, "the lead was not handed over") && strings.Contains(out, "nothing was done")
		slow := transferSyncs*all.syncs.Slowest() > electionTimeout
		if err != nil && !(refused && slow) || try == most {
			c.t.Fatalf("%v\n%s\nwith syncs of %v\n%s", err, out, all.syncs.Slowest(), c.Said())
		}
		c.t.Logf("try %d: %v\n%s", try, err, out)
		all.await(c, 50) // the calls that waited meanwhile
	}
}

// buildMQ builds what mq runs.
func (c *cluster) buildMQ() {
	c.t.Helper()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(c.dir, "mq"), "example.com/mq/cmd/mq").CombinedOutput(); err != nil {
		c.t.Fatalf("build mq: %v\n%s", err, out)
	}
}

// mq runs mq with the addresses and the token of the cluster, after buildMQ.
func (c *cluster) mq(words ...string) (string, error) {
	c.t.Helper()
	path := filepath.Join(c.dir, "mq")
	urls := ""
	for i, u := range c.URLs() {
		if i > 0 {
			urls += ","
		}
		urls += u
	}
	cmd := exec.Command(path, append(words, "-u", urls)...)
	cmd.Env = append(cmd.Environ(), "MQ_RAFT_TOKEN="+process.RaftToken)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
