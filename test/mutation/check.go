package mutation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// outputKept is how much of what a check printed is kept for messages.
	outputKept = 4 << 10
	// waitAfterKill is how long output is waited for that processes hold open which a killed check has left.
	waitAfterKill = 5 * time.Second
)

// How a test may end but by its own verdict.
const (
	crashed  = "(crashed)"
	timedOut = "(timed out)"
)

// outcome is what a check came to.
type outcome struct {
	failed []string      // tests, by name; of one that crashed, or did not end, too
	err    error         // the check is none: it did not compile, or ran no test
	cpu    time.Duration // of processors, that it has taken
}

// goCommand is the go command in a folder.
type goCommand struct {
	root string
	env  []string // further variables

	giveWay bool // run it at the lowest priority
}

// command returns the go command with arguments. When ctx ends, it ends with all that it has started.
func (g *goCommand) command(ctx context.Context, args ...string) *exec.Cmd {
	words := append([]string{"go"}, args...)
	if g.giveWay {
		words = append([]string{"nice", "-n", "19"}, words...)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = g.root
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		// What the caller asks of its own tests does not hold here, but what the machine must be able to.
		return strings.HasPrefix(v, "MQ_") && !strings.HasPrefix(v, "MQ_REQUIRE_ALL=")
	}), g.env...)
	// What made a property fail is not for later runs, which would notice the fault by it.
	cmd.Env = append(cmd.Env, "RAPID_NOFAILFILE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitAfterKill
	return cmd
}

// run runs a check under an overlay; "" for none. dir is for files that it needs, and is the caller's to remove. first says
// that one failing test is enough.
func (g *goCommand) run(ctx context.Context, c *Check, overlay, dir string, first bool) (o outcome) {
	// What fails keeps its folders, and what is killed cannot remove them.
	temp := filepath.Join(dir, "temp")
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return outcome{err: err}
	}
	own := *g
	own.env = append(append(slices.Clone(g.env), "TMPDIR="+temp), c.Env...)
	args := []string{"test", "-json", "-count=1", "-vet=off", "-timeout=" + c.Timeout.String(), "-run=" + runExpression(c.Run)}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	if c.Tags != "" {
		args = append(args, "-tags="+c.Tags)
	}
	if first {
		args = append(args, "-failfast")
	}
	if c.MQD {
		mqd := filepath.Join(dir, "mqd")
		cpu, err := g.build(ctx, mqd, "./cmd/mqd", overlay)
		if err != nil {
			return outcome{err: err}
		}
		o.cpu += cpu
		own.env = append(own.env, "MQ_MQD="+mqd)
	}
	args = append(append(args, c.Package), c.Flags...)
	var stdout, stderr bytes.Buffer
	// The test binary ends itself at its timeout. This is for one that does not get to that.
	ctx, cancel := context.WithTimeout(ctx, 2*c.Timeout+5*time.Minute)
	defer cancel()
	cmd := own.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o.cpu += cpuOf(cmd)
	if ctx.Err() != nil {
		o.err = fmt.Errorf("check %q: %w", c, ctx.Err())
		return o
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		o.err = fmt.Errorf("check %q: %w", c, err)
		return o
	}
	r := readResults(&stdout)
	if o.failed, err = r.judge(err == nil); err != nil {
		o.err = fmt.Errorf("check %q: %w\n%s%s", c, err, r.output, last(stderr.Bytes()))
	}
	return o
}

// cpuOf returns the time of processors that a command has taken, with the processes that it has waited for.
func cpuOf(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// build builds a command, and returns the time of processors that it took.
func (g *goCommand) build(ctx context.Context, to, folder, overlay string) (time.Duration, error) {
	args := []string{"build", "-o", to}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	cmd := g.command(ctx, append(args, folder)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build %s: %w\n%s", folder, err, last(out))
	}
	return cpuOf(cmd), nil
}

// runExpression makes of names that are separated by | an expression that takes only whole names. Whatever else is given, a
// path of subtests too, is an expression as it is.
func runExpression(names string) string {
	if plain := strings.ReplaceAll(names, "|", ""); regexp.QuoteMeta(plain) == plain && !strings.Contains(plain, "/") {
		return "^(" + names + ")$"
	}
	return names
}

// event is a line of go test -json.
type event struct {
	Action      string
	Test        string
	Output      string
	FailedBuild string
}

// results is what the tests of a run came to.
type results struct {
	open                    map[string]bool // begun, and not ended
	failed                  map[string]bool
	passed, skipped         int
	packageFailed, noBuild  bool
	output                  string // the last of it
	buildOutput, testOutput []byte
}

// readResults reads what go test -json prints. What is not JSON is what a process has printed.
func readResults(r io.Reader) *results {
	s := &results{open: map[string]bool{}, failed: map[string]bool{}}
	text, _ := io.ReadAll(r) // of a buffer
	for line := range bytes.Lines(text) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			s.testOutput = append(s.testOutput, line...)
			continue
		}
		top, _, isSub := strings.Cut(e.Test, "/")
		switch e.Action {
		case "build-fail":
			s.noBuild = true
		case "build-output":
			s.buildOutput = append(s.buildOutput, e.Output...)
		case "output":
			s.testOutput = append(s.testOutput, e.Output...)
		case "run":
			s.open[top] = true
		case "pass", "skip", "fail":
			if e.Test == "" {
				s.packageFailed = s.packageFailed || e.Action == "fail"
				s.noBuild = s.noBuild || e.FailedBuild != ""
				break
			}
			if e.Action == "fail" {
				s.failed[top] = true
			}
			if isSub {
				break
			}
			delete(s.open, top)
			switch e.Action {
			case "pass":
				s.passed++
			case "skip":
				s.skipped++
			}
		}
	}
	s.output = last(s.buildOutput) + last(s.testOutput)
	return s
}

// judge returns the tests that failed, or why the run says nothing. ok says that the go command was content.
func (s *results) judge(ok bool) ([]string, error) {
	how := crashed
	if bytes.Contains(s.testOutput, []byte("panic: test timed out after ")) {
		how = timedOut
	}
	if len(s.open) > 0 && bytes.Contains(s.testOutput, []byte("\nsignal: killed\n")) {
		return nil, errors.New("something has killed it: there may be too little memory")
	}
	for name := range s.open { // the process ended before the test did
		delete(s.failed, name)
		s.failed[name+" "+how] = true
	}
	failed := slices.Sorted(maps.Keys(s.failed))
	switch {
	case s.noBuild:
		return nil, errors.New("it does not compile")
	case len(failed) > 0:
		return failed, nil
	case !ok:
		return nil, errors.New("it failed, and no test did")
	case s.passed == 0 && s.skipped > 0:
		return nil, errors.New("all of its tests were skipped")
	case s.passed == 0:
		return nil, errors.New("it ran no test")
	}
	return nil, nil
}

// last returns the end of what was printed.
func last(b []byte) string {
	if len(b) > outputKept {
		b = b[len(b)-outputKept:]
	}
	return strings.ToValidUTF8(string(b), "?")
}
