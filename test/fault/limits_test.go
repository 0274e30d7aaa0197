package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestShortWrites limits the size of files below what a segment needs, so that the kernel writes a part of
// a frame and then refuses. Whatever the process does then, it acknowledges nothing that is not whole.
func TestShortWrites(t *testing.T) {
	cycles := process.Count(t, "MQ_EIO_CYCLES", 1)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 95))
	l := load.New(load.Config{Seed: seed})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(process.Dir(t), "data"),
		Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
	})
	for range cycles {
		p := node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
			t.Fatalf("%v\n%s", err, p.Stderr())
		}
		during(t, l, p, func(ctx context.Context) {
			// Some of the load first: the limit may stop everything at once.
			for before := l.Checker.Report().Acknowledged; l.Checker.Report().Acknowledged == before; {
				select {
				case <-ctx.Done():
					t.Error("nothing was acknowledged")
					return
				case <-time.After(time.Millisecond):
				}
			}
			limit := unix.Rlimit{Cur: 200_000 + dice.Uint64N(600_000), Max: unix.RLIM_INFINITY}
			if err := unix.Prlimit(p.PID, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
				t.Errorf("prlimit: %v", err)
				return
			}
			for failed := false; !failed; failed, _ = l.Failed() {
				select {
				case <-p.Ended(): // Go programs die of SIGXFSZ: that is as good as a kill
					return
				case <-ctx.Done():
					t.Error("no publish failed although files cannot grow")
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
		if _, late := l.Failed(); late > 0 {
			t.Errorf("%d publishes were acknowledged after one had failed\n%s", late, p.Stderr())
		}
		p.Kill()
		l.Checker.Restarted()
	}
	finish(t, l, node, node.StartReady())
	report.Count(t, "lives with short writes", int64(cycles))
	report.History(t, l.Checker.Report())
	t.Logf("short writes: cycles %d, %v, answers by status %v", cycles, l.Checker.Report(), l.Statuses())
}

// TestManyConnections opens more connections than mqd may have files open, while segments roll and snapshots
// are written. The log's files come first: no write fails for good because of clients, connections are
// accepted again when there is room, and nothing is lost.
func TestManyConnections(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		process.Skip(t, err.Error())
	}
	const files = 256
	seed := process.Seed(t)
	l := load.New(load.Config{Seed: seed, Large: 30})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(process.Dir(t), "data"),
		Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
		Wrap: []string{"prlimit", fmt.Sprintf("--nofile=%d:%d", files, files)},
	})
	p := node.StartReady()
	during(t, l, p, func(context.Context) {
		var conns []net.Conn
		for range 2 * files { // what it does not accept, the kernel holds
			if conn, err := net.DialTimeout("tcp", strings.TrimPrefix(p.URL, "http://"), time.Second); err == nil {
				conns = append(conns, conn)
			}
		}
		wait(t, p, 300*time.Millisecond)
		for _, conn := range conns {
			conn.Close()
		}
	})
	crowded := l.Statuses()
	if err := p.AwaitReady(); err != nil {
		t.Fatalf("not ready again after too many connections: %v", err)
	}
	c := load.NewClient(p.URL)
	defer c.Close()
	if a := l.Probe(t.Context(), c, 100); a.Outcome != load.Done {
		t.Errorf("publish after too many connections: %v\n%s", a, p.Stderr())
	}
	p.Kill()
	l.Checker.Restarted()
	finish(t, l, node, node.StartReady())
	t.Logf("many connections: %v, answers by status meanwhile %v", l.Checker.Report(), crowded)
}
