package e2e

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestPairRefusals starts nodes as they must not be started: each says why in one line, and changes nothing.
func TestPairRefusals(t *testing.T) {
	p := newPair(t, append([]string{"-replica-timeout", "200ms"}, small...)...)
	third := p.addNode()
	l := load.New(load.Config{})
	publish := func() {
		t.Helper()
		p.awaitInStep()
		p.publish(l)
	}
	replica := func(i int) []string { return []string{"-replica", p.nodes[i].url} }
	refused := func(i int, code int, why string, role ...string) {
		t.Helper()
		before := hashFolder(t, p.nodes[i].Data, everything)
		wantExit(t, p.run(i, role...), code, why)
		p.nodes[i].p = nil
		wantSame(t, p.nodes[i].Data, before, everything)
	}

	p.epoch = 2
	p.start()
	publish()
	// In use.
	taken, err := process.Start(process.Config{Binary: p.nodes[0].Binary, Data: p.nodes[0].Data})
	if err != nil {
		t.Fatal(err)
	}
	wantExit(t, taken, 1, "in use by another process")
	p.stop()

	refused(0, 1, "epoch 1 is over", append(replica(1), "-role", "leader", "-epoch", "1")...)
	refused(1, 1, "give it a higher -epoch", append(replica(0), "-role", "leader", "-epoch", "2")...)
	refused(1, 1, "epoch 1 is over", append(replica(0), "-role", "leader", "-epoch", "1")...)
	flags := p.flags
	p.flags = small
	refused(1, 1, "not the leader's", "-role", "standalone")
	p.flags = flags
	refused(0, 2, "use https, or http to this machine only", "-role", "leader", "-epoch", "3", "-replica", "http://192.0.2.1:8080")
	refused(0, 2, "needs -epoch", append(replica(1), "-role", "leader")...)

	// The follower is another one from now on, which knows more than node 1.
	p.follow(third)
	p.lead(0, third)
	publish()
	p.stop()

	// Two nodes lead with one epoch: the follower takes the first.
	p.epoch = 3
	p.follow(0)
	p.lead(third, 0)
	publish()
	p.awaitQuiet()
	kept := hashFolder(t, p.nodes[0].Data, logAndPromise)
	wantFailure(t, p.run(1, append(replica(0), "-role", "leader", "-epoch", "3")...), "leads with the same epoch 3")
	wantSame(t, p.nodes[0].Data, kept, logAndPromise)
	publish()
	p.awaitQuiet()
	kept = hashFolder(t, p.nodes[0].Data, logAndPromise)

	// A node that lacks what was acknowledged is promoted: it says so and takes nothing, and harms nobody.
	p.nodes[third].Kill()
	p.run(1, append(replica(0), "-role", "leader", "-epoch", "4")...)
	p.wantNoWrites(l, 1, "promote the node that has them")
	p.nodes[1].Kill()
	wantSame(t, p.nodes[0].Data, kept, logAndPromise)
	p.nodes[1].p = nil
	p.lead(third, 0)
	publish()
	p.stop()
}

// TestPairStrangers connects a leader with followers that are none of its own: it takes no writes and says why, and
// nothing is changed.
func TestPairStrangers(t *testing.T) {
	p := newPair(t, append([]string{"-replica-timeout", "200ms"}, small...)...)
	l := load.New(load.Config{})
	p.start()
	p.publish(l)
	p.stop()

	t.Run("another log", func(t *testing.T) {
		other := newPair(t, p.flags...)
		other.start()
		other.publish(load.New(load.Config{}))
		other.awaitQuiet()
		other.nodes[0].Kill()
		other.nodes[0].p = nil
		before := hashFolder(t, other.nodes[1].Data, logAndPromise)
		p.run(0, "-role", "leader", "-epoch", "1", "-replica", other.nodes[1].url)
		p.wantNoWrites(l, 0, "give it an empty data folder")
		p.nodes[0].Kill()
		wantSame(t, other.nodes[1].Data, before, logAndPromise)
	})
	t.Run("a copy of the leader's folder", func(t *testing.T) {
		copied := p.addNode()
		if err := os.CopyFS(p.nodes[copied].Data, os.DirFS(p.nodes[0].Data)); err != nil {
			t.Fatal(err)
		}
		p.follow(copied)
		before := hashFolder(t, p.nodes[copied].Data, logAndPromise)
		p.run(0, "-role", "leader", "-epoch", "1", "-replica", p.nodes[copied].url)
		p.wantNoWrites(l, 0, "one data folder is a copy of the other")
		p.nodes[0].Kill()
		p.nodes[copied].Kill()
		wantSame(t, p.nodes[copied].Data, before, logAndPromise)
	})
	t.Run("wrong token", func(t *testing.T) {
		n := p.nodes[1]
		right := n.Env
		n.Env = []string{"MQ_REPLICATION_TOKEN=another-token"}
		defer func() { n.Env = right }()
		p.follow(1)
		before := hashFolder(t, n.Data, logAndPromise)
		p.lead(0, 1)
		p.wantNoWrites(l, 0, "token")
		p.nodes[0].Kill()
		n.Kill()
		wantSame(t, n.Data, before, logAndPromise)
	})

	// After all that, the pair is as it was.
	p.start()
	p.nodes = p.nodes[:2]
	p.finish(l)
}

// publish publishes a record to the leader.
func (p *pair) publish(l *load.Load) {
	p.t.Helper()
	c := p.clientOf(p.leader, nil)
	defer c.Close()
	p.await("a publish", func() string {
		if a := l.Probe(p.t.Context(), c, 100); a.Outcome != load.Done {
			return a.String()
		}
		return ""
	})
}

// wantNoWrites checks that a leader runs, refuses writes, and logs and tells why.
func (p *pair) wantNoWrites(l *load.Load, leader int, why string) {
	p.t.Helper()
	n := p.nodes[leader]
	p.await("a leader that says: "+why, func() string {
		s, err := n.p.PairStatus()
		if err != nil || s.Writable || !strings.Contains(s.Reason, why) || !strings.Contains(n.p.Stderr(), why) {
			return fmt.Sprintf("%+v, %v", s, err)
		}
		return ""
	})
	c := p.clientOf(leader, nil)
	defer c.Close()
	if a := l.Probe(p.t.Context(), c, 100); a.Outcome != load.NotDone || a.Status != http.StatusServiceUnavailable {
		p.t.Errorf("publish: %v; want 503 and nothing done", a)
	}
}

// wantFailure checks that a process has ended with status 1 and one line that says why.
func wantFailure(t *testing.T, p *process.Process, why string) {
	t.Helper()
	wantExit(t, p, 1, why)
}

func wantExit(t *testing.T, p *process.Process, code int, why string) {
	t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		t.Fatalf("mqd goes on; want %q\n%s", why, p.Stderr())
	}
	var lines []string
	for line := range strings.Lines(p.Stderr()) {
		if strings.HasPrefix(line, "mqd: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if got := p.ExitCode(); got != code || len(lines) != 1 || !strings.Contains(lines[0], why) {
		t.Errorf("exit status %d and %q; want %d and one line with %q\n%s", got, lines, code, why, p.Stderr())
	}
}

// hashFolder returns a sum of each file of a folder that a filter takes.
func hashFolder(t *testing.T, dir string, takes func(name string) bool) map[string]string {
	t.Helper()
	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path) // it is below
		if err != nil || d.IsDir() || !takes(name) {
			return err
		}
		text, err := os.ReadFile(path)
		sums[name] = fmt.Sprintf("%d bytes %x", len(text), sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// everything in a data folder but the lock, which has no content.
func everything(name string) bool { return name != "LOCK" }

// logAndPromise takes what a running follower changes only for its leader.
func logAndPromise(name string) bool {
	return filepath.Ext(name) == ".seg" && filepath.Base(name) != "next.seg" || name == "identity.json" || name == "pair.json"
}

// wantSame checks that a folder is as it was.
func wantSame(t *testing.T, dir string, before map[string]string, takes func(name string) bool) {
	t.Helper()
	after := hashFolder(t, dir, takes)
	for name, sum := range before {
		if after[name] != sum {
			t.Errorf("%s in %s was %s, is %q", name, dir, sum, after[name])
		}
	}
	for name := range after {
		if before[name] == "" {
			t.Errorf("%s in %s was made", name, dir)
		}
	}
}
