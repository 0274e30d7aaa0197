package fault

import (
	"context"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestSyscallFails lets system calls of a running mqd fail with EIO. From then on this process acknowledges
// nothing, says so on /readyz, and goes on serving reads; the next one has all that was acknowledged.
// MQ_EIO_CYCLES says how often for each system call.
func TestSyscallFails(t *testing.T) {
	needStrace(t)
	for _, calls := range []string{"fdatasync", "pwrite64", "fsync,fdatasync", "rename,renameat,renameat2"} {
		t.Run(calls, func(t *testing.T) {
			cycles := process.Count(t, "MQ_EIO_CYCLES", 1)
			seed := process.Seed(t)
			dice := rand.New(rand.NewPCG(seed, 96))
			l := load.New(load.Config{Seed: seed})
			node := process.NewNode(t, process.Config{
				Binary: process.Binary(t), Data: filepath.Join(process.Dir(t), "data"),
				Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
			})
			for range cycles {
				failCalls(t, l, node, calls, 1+dice.IntN(3), time.Duration(dice.IntN(40_000))*time.Microsecond)
			}
			finish(t, l, node, node.StartReady())
			report.Count(t, "lives that end with a failing call", int64(cycles))
			report.History(t, l.Checker.Report())
			t.Logf("%s fails: cycles %d, %v, answers by status %v", calls, cycles, l.Checker.Report(), l.Statuses())
		})
	}
}

// failCalls is one life of mqd: from some time on, every such call but the first ones of each thread fails.
func failCalls(t *testing.T, l *load.Load, node *process.Node, calls string, first int, after time.Duration) {
	t.Helper()
	p := node.StartReady()
	if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	trace := filepath.Join(t.TempDir(), "trace")
	var tracer *nemesis.Tracer
	during(t, l, p, func(context.Context) {
		wait(t, p, after)
		var err error
		meddling := nemesis.Meddling{Calls: calls, How: nemesis.Fail("EIO"), First: first, Output: trace}
		if tracer, err = meddling.Trace(p.PID); err != nil {
			t.Error(err)
			return
		}
		deadline := time.Now().Add(patience) // a rename comes with a segment or a snapshot
		for failed := false; !failed; failed, _ = l.Failed() {
			if time.Now().After(deadline) {
				t.Errorf("no publish failed although every %s does", calls)
				return
			}
			wait(t, p, time.Millisecond)
		}
		wait(t, p, 100*time.Millisecond)
	})
	if t.Failed() {
		t.Fatal(p.Stderr())
	}
	if _, late := l.Failed(); late > 0 {
		t.Errorf("%d publishes were acknowledged after one had failed\n%s", late, p.Stderr())
	}
	checkFailed(t, l, p)
	p.Kill()
	tracer.Wait()
	const (
		// inLog is the margin where what publishes wait for has failed itself: no other one can overtake it.
		inLog = 50 * time.Millisecond
		// beside is the margin where something has failed that goes on beside publishes, as a snapshot does, or any rename: the thread that
		// has met it must run once more until anybody knows, on a busy machine.
		beside = 2 * time.Second
	)
	failure, failureInLog := checkTrace(t, trace)
	last := l.LastAcknowledged()
	if last.After(failure.Add(beside)) {
		t.Errorf("a publish was acknowledged that was sent %v after a call had failed", last.Sub(failure))
	}
	if !failureInLog.IsZero() && last.After(failureInLog.Add(inLog)) {
		t.Errorf("a publish was acknowledged that was sent %v after the segment could not be written or synced", last.Sub(failureInLog))
	}
	l.Checker.Restarted()
	if err := l.Checker.Report().Err(); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
}

// checkFailed looks at a process whose storage has failed.
func checkFailed(t *testing.T, l *load.Load, p *process.Process) {
	t.Helper()
	status, body, err := p.Get("/readyz")
	if err != nil || status != http.StatusServiceUnavailable || len(strings.TrimSpace(body)) < 10 {
		t.Errorf("/readyz after a failure: %d %q %v, want 503 and why", status, body, err)
	}
	if status, body, err := p.Get("/healthz"); err != nil || status == 0 {
		t.Errorf("/healthz after a failure: %d %q %v", status, body, err)
	}
	c := load.NewClient(p.URL)
	defer c.Close()
	for range 20 {
		if a := l.Probe(t.Context(), c, 0); a.Status != http.StatusServiceUnavailable {
			t.Errorf("publish after a failure: %v, want 503", a)
			break
		}
	}
	if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
		t.Errorf("reads must go on: %v\n%s", err, p.Stderr())
	}
}

// needStrace skips the test where strace is missing or may not attach.
func needStrace(t *testing.T) {
	t.Helper()
	if err := nemesis.NeedTrace(); err != nil {
		process.Skip(t, err.Error())
	}
}

// segment is the path of a segment of the log. The next one has its header before its name; while it is prepared beside all
// this, it has another one.
var segment = regexp.MustCompile(`/log/(\d+|next)\.seg$`)

// checkTrace checks that no file was synced or written again after that had failed once: the kernel may
// have dropped the pages, and would say that all is well. It returns when the first call failed, and the first one on a segment
// that is written to; zero: none did.
func checkTrace(t *testing.T, name string) (first, firstInLog time.Time) {
	t.Helper()
	calls, err := nemesis.ReadTrace(name)
	if err != nil {
		t.Fatal(err)
	}
	failedBy := map[string]int{} // by path: how many calls had begun when one had failed
	path := func(c nemesis.Call) string {
		if strings.HasPrefix(c.Name, "rename") {
			return "" // another one is no retry
		}
		return c.Path
	}
	for _, c := range calls {
		if !c.Met {
			continue
		}
		if first.IsZero() || c.At.Before(first) {
			first = c.At
		}
		if segment.MatchString(c.Path) && (firstInLog.IsZero() || c.At.Before(firstInLog)) {
			firstInLog = c.At
		}
		if by, ok := failedBy[path(c)]; path(c) != "" && (!ok || c.Ended < by) {
			failedBy[path(c)] = c.Ended
		}
	}
	for i, c := range calls {
		if by, ok := failedBy[path(c)]; ok && i >= by {
			t.Errorf("once more after a failure: %s", c.Line)
		}
	}
	if first.IsZero() {
		t.Errorf("nothing failed in the trace: %+v", calls)
	}
	return first, firstInLog
}
