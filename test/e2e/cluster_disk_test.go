package e2e

import (
	"bufio"
	"fmt"
	"io"
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
	if took > takeoverMax {
		t.Errorf("another node led %v after the leader's disk hung, want at most %v", took, takeoverMax)
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

// TestClusterSlowFollower makes each sync of a follower slow: that costs the others little.
func TestClusterSlowFollower(t *testing.T) {
	c := newCluster(t, 3)
	l := newLoad(load.Config{Seed: process.Seed(t), Publishers: 2, Consumers: -1, Readers: -1, Quiet: true, Large: -1})
	leader := c.startWhole()
	client := c.clientOf(nil, leader)
	defer client.Close()
	var a answers
	timed := c.clientOf(a.hear, leader)
	defer timed.Close()
	run := begin(t, l, client)
	measure := func() (s stopwatch) {
		from := len(a.all())
		for range 200 {
			l.Probe(t.Context(), timed, 100)
		}
		for _, h := range a.all()[from:] {
			s = append(s, h.Took)
		}
		return s
	}
	before := measure()
	end := slowDisk(t, c.Nodes[c.Others(leader)[0]].Process.PID, 200*time.Millisecond)
	during := measure()
	end()
	if b, d := before.median(), during.median(); d > 4*b+20*time.Millisecond {
		t.Errorf("a publish takes %v with a slow follower, and %v without", d, b)
	}
	run.stop()
	c.check(l)
	c.finish(l)
	t.Logf("a publish: %v; with a slow follower: %v", before, during)
}
