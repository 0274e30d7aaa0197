package fault

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
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
	var tracer *strace
	during(t, l, p, func(context.Context) {
		wait(t, p, after)
		var err error
		if tracer, err = attach(p.PID, trace, calls, first); err != nil {
			t.Error(err)
			return
		}
		deadline := time.Now().Add(10 * time.Second)
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
	tracer.wait()
	failure := checkTrace(t, trace)
	// The failed call has to come back, and the process to take note of it, on a busy machine.
	const margin = 50 * time.Millisecond
	if last := l.LastAcknowledged(); last.After(failure.Add(margin)) {
		t.Errorf("a publish was acknowledged that was sent %v after a call had failed", last.Sub(failure))
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

// strace is a tracer that makes calls of a process fail. It ends with the process.
type strace struct{ cmd *exec.Cmd }

// needStrace skips the test where strace is missing or may not attach.
func needStrace(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		process.Skip(t, err.Error())
	}
	idle := exec.Command("sleep", "60")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	tracer, err := attach(idle.Process.Pid, os.DevNull, "fsync", 1)
	idle.Process.Kill()
	idle.Wait()
	if err != nil {
		process.Skip(t, err.Error())
	}
	tracer.wait()
}

// attach attaches to a running process and returns when all its threads are traced.
func attach(pid int, output, calls string, first int) (*strace, error) {
	s := &strace{exec.Command("strace", "-f", "-y", "-ttt", "-o", output, "-e", "trace="+calls,
		"-e", fmt.Sprintf("inject=%s:error=EIO:when=%d+", calls, first), "-p", fmt.Sprint(pid))}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("strace: %w", err)
	}
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		return nil, fmt.Errorf("strace did not attach: %q %w", line, err)
	}
	go io.Copy(io.Discard, lines) // ends with strace
	return s, nil
}

func (s *strace) wait() { s.cmd.Wait() } // its status says only how the process ended

// Lines of a trace: a call with its result, or its beginning only, and then the rest of a call.
var (
	callLine    = regexp.MustCompile(`^(\d+) +([\d.]+) (\w+)\((?:\d+<([^>]*)>)?`)
	resumedLine = regexp.MustCompile(`^(\d+) +[\d.]+ <\.\.\. \w+ resumed>`)
)

// checkTrace checks that no file was synced or written again after that had failed once: the kernel may
// have dropped the pages, and would say that all is well. It returns when the first call failed.
func checkTrace(t *testing.T, name string) (firstFailure time.Time) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		at   float64 // seconds since 1970
		path string  // empty for calls that change names: another one is no retry
	}
	running := map[string]call{} // by thread
	failed := map[string]bool{}  // by path
	ended := func(c call, line string) {
		if !strings.Contains(line, "(INJECTED)") {
			return
		}
		failed[c.path] = c.path != ""
		if at := time.UnixMicro(int64(c.at * 1e6)); firstFailure.IsZero() || at.Before(firstFailure) {
			firstFailure = at
		}
	}
	for line := range strings.Lines(string(text)) {
		if m := resumedLine.FindStringSubmatch(line); m != nil {
			ended(running[m[1]], line)
			continue
		}
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue // a signal or the end of a thread
		}
		at, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatalf("trace: %q: %v", line, err)
		}
		c := call{at: at}
		if !strings.HasPrefix(m[3], "rename") {
			c.path = m[4]
		}
		if failed[c.path] {
			t.Errorf("once more after a failure: %s", line)
		}
		if strings.Contains(line, "<unfinished ...>") {
			running[m[1]] = c
		} else {
			ended(c, line)
		}
	}
	if firstFailure.IsZero() {
		t.Errorf("nothing failed in the trace:\n%.2000s", text)
	}
	return firstFailure
}
