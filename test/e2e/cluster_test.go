package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

const (
	// electionTimeout is the default of -election-timeout.
	electionTimeout = 500 * time.Millisecond
	// healMax is how long a node may take to be whole again that lost some or all of its data.
	healMax = time.Minute
	// takeoverSyncs is how many syncs may stand between the end of a leader and the first write that another one takes: a vote is
	// two on each of two nodes, and elections are repeated.
	takeoverSyncs = 60
)

// leadMax returns how long it may take until another node leads, with syncs that take so long at most. quiet is the limit for a
// disk that has little to do. Where a sync has taken longer than an election may, there is none: it takes luck.
func leadMax(quiet, slowestSync time.Duration) time.Duration {
	if slowestSync > electionTimeout {
		return patience
	}
	return quiet + takeoverSyncs*slowestSync
}

// cluster is a cluster of real processes, and what a test does with it.
type cluster struct {
	*process.Cluster
	t     *testing.T
	dir   string       // of all nodes
	reach load.Options // how clients reach the nodes
}

// newCluster returns a cluster of n nodes in which nothing runs yet.
func newCluster(t *testing.T, n int, flags ...string) *cluster {
	t.Helper()
	dir := process.KeptDir(t)
	return &cluster{Cluster: process.NewCluster(t, dir, n, flags...), t: t, dir: dir}
}

// startWhole starts all nodes and waits until they are in step. It returns which one leads.
func (c *cluster) startWhole() (leader int) {
	c.t.Helper()
	c.Start()
	return c.AwaitWhole(patience)
}

// client returns a client that knows all nodes and goes on when none answers. heard may be nil.
func (c *cluster) client(heard func(url, path string, a load.Answer)) *load.Client {
	o := c.reach
	o.URLs, o.Cluster, o.Patient, o.Heard = c.URLs(), true, true, heard
	return load.Open(o)
}

// clientOf returns a client of some nodes only, which follows redirects between them and no others. heard may be nil.
func (c *cluster) clientOf(heard func(url, path string, a load.Answer), numbers ...int) *load.Client {
	o := c.reach
	o.Patient, o.Cluster, o.Heard, o.Nodes = true, len(numbers) > 1, heard, c.URLs()
	for _, i := range numbers {
		o.URLs = append(o.URLs, c.Nodes[i].URL)
	}
	return load.Open(o)
}

// newLoad returns a load whose checker knows that a leader which was replaced may still show records.
func newLoad(cfg load.Config) *load.Load {
	l := load.New(cfg)
	l.Checker.Doubt(true)
	return l
}

// stalls begins to look for nodes that say that their disk does not answer: such a node rightly gives up its lead. The returned
// function tells what some nodes have said of that since. It must not be asked about one that was stopped meanwhile: that one
// cannot tell its pause from its disk's.
func (c *cluster) stalls() (said func(numbers ...int) string) {
	c.t.Helper()
	from := make([]int, len(c.Nodes))
	for i := range c.Nodes {
		from[i] = len(c.log(i))
	}
	return func(numbers ...int) (text string) {
		c.t.Helper()
		for _, i := range numbers {
			for line := range strings.Lines(c.log(i)[from[i]:]) {
				if strings.Contains(line, "the disk does not answer") {
					text += fmt.Sprintf("node %d: %s", i, line)
				}
			}
		}
		return text
	}
}

// all returns the numbers of all nodes.
func (c *cluster) all() (numbers []int) {
	for i := range c.Nodes {
		numbers = append(numbers, i)
	}
	return numbers
}

// log returns all that a node has said.
func (c *cluster) log(i int) string {
	c.t.Helper()
	text, err := os.ReadFile(c.Nodes[i].Log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return string(text)
}

// undisturbed lets a scenario happen in which nodes must keep their lead. It happens again where it says that the disk spoiled
// it, but at most so often: the last time counts in any case.
func undisturbed(t *testing.T, scenario func(last bool) (spoiled string)) {
	t.Helper()
	const most = 3
	for try := 1; try <= most; try++ {
		spoiled := scenario(try == most)
		if spoiled == "" {
			return
		}
		t.Logf("try %d of %d was spoiled by a disk that did not answer: %s", try, most, spoiled)
	}
}

// awaitAck waits until a publish is acknowledged that was sent after an instant, and returns how long after it that is.
func (c *cluster) awaitAck(l *load.Load, after time.Time) time.Duration {
	c.t.Helper()
	c.Await(patience, "writes are taken", func() string {
		if l.LastAcknowledged().After(after) {
			return ""
		}
		return fmt.Sprintf("answers by status %v; %v", l.Statuses(), l.Err())
	})
	return time.Since(after)
}

// check fails the test if the load saw anything that must not be.
func (c *cluster) check(l *load.Load) {
	c.t.Helper()
	if err := l.Err(); err != nil {
		c.t.Fatalf("%v\n%s", err, c.Said())
	}
}

// settle waits until all nodes are in step, and lets all clients of the load learn what became of their calls. Nothing
// else may be under way: afterwards what is not done never will be.
func (c *cluster) settle(l *load.Load) (leader int) {
	c.t.Helper()
	leader = c.AwaitWhole(healMax)
	client := c.client(nil)
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	if err := l.SettleBy(ctx, client); err != nil {
		c.t.Fatalf("%v\n%s", err, c.Said())
	}
	l.Checker.Restarted()
	return leader
}

// readBack checks what the cluster has, from whichever node leads.
func (c *cluster) readBack(l *load.Load, all bool) {
	c.t.Helper()
	client := c.client(nil)
	defer client.Close()
	c.Await(patience, "everything is read back", func() string {
		if err := l.ReadBackBy(c.t.Context(), client, all); err != nil {
			return err.Error()
		}
		return ""
	})
	c.check(l)
}

// lead makes a node the leader.
func (c *cluster) lead(i int) {
	c.t.Helper()
	c.Await(patience, fmt.Sprintf("node %d leads", i), func() string {
		leader := c.Leader(patience)
		if leader == i {
			return ""
		}
		if err := c.Nodes[leader].Process.Transfer(i); err != nil {
			return err.Error()
		}
		return fmt.Sprintf("node %d leads", leader)
	})
}

// finish settles what is open, reads everything back from each node as the leader, compares the logs, and stops all.
func (c *cluster) finish(l *load.Load) {
	c.t.Helper()
	c.settle(l)
	l.Checker.Doubt(false)
	for i := range c.Nodes {
		c.lead(i)
		c.readBack(l, true)
	}
	c.awaitEqual()
	c.Stop()
	c.wantEqualAtRest()
	report.History(c.t, l.Checker.Report())
	if r := l.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		c.t.Error("the load did nothing")
	}
}

// awaitEqual waits until all nodes have the same log, byte for byte. Nothing may be written.
func (c *cluster) awaitEqual() {
	c.t.Helper()
	c.Await(patience, "equal logs", func() string {
		for i := range c.Nodes[1:] {
			cmp, err := c.compare(0, i+1)
			if err != nil || !cmp.Equal() {
				return fmt.Sprintf("nodes 0 and %d: %+v, %v", i+1, cmp, err)
			}
		}
		return ""
	})
}

// wantEqualAtRest checks that the logs of stopped nodes hold the same bytes as far as both have entries. One that stops
// last may have written more than the others.
func (c *cluster) wantEqualAtRest() {
	c.t.Helper()
	for i := range c.Nodes[1:] {
		if cmp, err := c.compare(0, i+1); err != nil || len(cmp.Differences) > 0 {
			c.t.Errorf("the logs of nodes 0 and %d: %+v, %v", i+1, cmp, err)
		}
	}
}

func (c *cluster) compare(a, b int) (wal.Comparison, error) {
	var folders [2]*vfs.OS
	for i, n := range []int{a, b} {
		folder, err := vfs.Open(c.Nodes[n].Data)
		if err != nil {
			return wal.Comparison{}, err
		}
		defer folder.Close()
		folders[i] = folder
	}
	return wal.Compare(folders[0], "log", folders[1], "log")
}

// stopwatch collects how long something took.
type stopwatch []time.Duration

// String tells the median, the 99th percentile and the longest.
func (s stopwatch) String() string {
	if len(s) == 0 {
		return "never"
	}
	sorted := slices.Sorted(slices.Values(s))
	at := func(percent int) time.Duration {
		return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(time.Millisecond)
	}
	return fmt.Sprintf("%d times, median %v, p99 %v, longest %v", len(sorted), at(50), at(99), at(100))
}

func (s stopwatch) median() time.Duration { return slices.Sorted(slices.Values(s))[len(s)/2] }

// wait waits for a random time up to so many milliseconds.
func wait(dice *rand.Rand, ms int) {
	<-time.After(time.Duration(dice.IntN(1000*ms)) * time.Microsecond)
}
