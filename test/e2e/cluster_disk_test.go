package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// slowDisk makes every sync of a process take longer, until the returned function is called.
func slowDisk(t *testing.T, pid int, by time.Duration) (end func()) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		process.Skip(t, err.Error())
	}
	cmd := exec.Command("strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
		"-e", fmt.Sprintf("inject=fdatasync,fsync:delay_enter=%d", by.Microseconds()), "-p", fmt.Sprint(pid))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		process.Skip(t, err.Error())
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			cmd.Process.Kill() // the process goes on without its tracer
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	lines := bufio.NewReader(stderr)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "attached") {
		end()
		process.Skip(t, fmt.Sprintf("strace does not attach: %q %v", line, err))
	}
	go io.Copy(io.Discard, lines) // ends with strace
	return end
}

// TestClusterHungDisk lets the leader's disk hang: it gives up the lead, another node takes it, and when the disk is back
// all is in step again.
func TestClusterHungDisk(t *testing.T) {
	const takeoverMax = 10 * electionTimeout // 3, on a machine that is not busy with other tests
	c := newCluster(t, 3, small...)
	l := newLoad(load.Config{Seed: process.Seed(t), Publishers: 16})
	leader := c.startWhole()
	client := c.client(nil)
	defer client.Close()
	run := begin(t, l, client)
	c.awaitAck(l, time.Now())
	syncs := process.TimeSyncs(t, c.dir)
	end := slowDisk(t, c.Nodes[leader].Process.PID, time.Minute)
	hung := time.Now()
	var took time.Duration
	c.Await(patience, "another leader", func() string {
		for _, i := range c.Others(leader) {
			if r, err := c.Nodes[i].Process.RaftRole(); err == nil && r.Role == "leader" {
				took = time.Since(hung)
				return ""
			}
		}
		return "none"
	})
	if most := leadMax(takeoverMax, syncs.Stop()); took > most {
		t.Errorf("another node led %v after the leader's disk hung, want at most %v", took, most)
	}
	others := c.clientOf(nil, c.Others(leader)...)
	defer others.Close()
	for range 5 {
		c.Await(patience, "the new leader takes writes", func() string {
			if a := l.Probe(t.Context(), others, 100); a.Outcome != load.Done {
				return a.String()
			}
			return ""
		})
	}
	writes := time.Since(hung)
	end()
	c.AwaitWhole(patience)
	c.awaitAck(l, time.Now())
	run.stop()
	c.check(l)
	c.finish(l)
	report.Figure(t, "writes after the leader's disk hung", writes.Seconds(), "s")
	t.Logf("another node led after %v, and took writes after %v; %v", took, writes, l.Checker.Report())
}

// TestClusterSlowFollower makes each sync of a follower slow: that costs the others little. The same is measured without,
// before it and after it, and counts against the worse of both: the disk may have got busy in between.
func TestClusterSlowFollower(t *testing.T) {
	c := newCluster(t, 3)
	l := newLoad(load.Config{Seed: process.Seed(t), Publishers: 2, Consumers: -1, Readers: -1, Quiet: true, Large: -1})
	c.startWhole()
	client := c.client(nil)
	defer client.Close()
	run := begin(t, l, client)
	const tries = 3
	for try := 1; ; try++ {
		leader := c.AwaitWhole(patience)
		slow := c.Others(leader)[0]
		stalled := c.stalls()
		before := c.publishes(l, leader)
		end := slowDisk(t, c.Nodes[slow].Process.PID, 200*time.Millisecond)
		during := c.publishes(l, leader)
		end()
		c.AwaitWhole(patience)
		after := c.publishes(l, leader)
		t.Logf("a publish: %v; with a slow follower: %v; without one again: %v", before, during, after)
		if len(before) < publishesMin || len(during) < publishesMin || len(after) < publishesMin {
			if try == tries || stalled(c.Others(slow)...) == "" {
				t.Fatalf("node %d does not take publishes\n%s", leader, c.Said())
			}
			continue // it has given up the lead for want of its disk
		}
		without, d := max(before.median(), after.median()), during.median()
		if d <= 4*without+20*time.Millisecond {
			break
		}
		if try == tries {
			t.Errorf("a publish takes %v with a slow follower, and %v without", d, without)
			break
		}
	}
	run.stop()
	c.check(l)
	c.finish(l)
}

// publishesMin is how many publishes a median needs.
const publishesMin = 20

// publishes publishes to a node one record after another, and returns how long each took that was acknowledged: 200, but no
// more after some time than a median needs; fewer if the node does not lead.
func (c *cluster) publishes(l *load.Load, node int) (took stopwatch) {
	const most, enough = 200, 15 * time.Second
	client := c.clientOf(nil, node)
	defer client.Close()
	for began := time.Now(); len(took) < most && (len(took) < publishesMin || time.Since(began) < enough); {
		switch a := l.Probe(c.t.Context(), client, 100); {
		case a.Outcome == load.Done:
			took = append(took, a.Took)
		case a.Status == http.StatusTemporaryRedirect || time.Since(began) > patience:
			return took
		}
	}
	return took
}
