package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/mq/test/history"
	"example.com/mq/test/mutation"
	"example.com/mq/test/report"
)

// figure is something that was measured.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// result is what one scenario came to in one round.
type result struct {
	Scenario   string           `json:"scenario"`
	Group      string           `json:"group"`
	Round      int              `json:"round"`
	Seed       uint64           `json:"seed,omitempty"` // derived from that of the run; 0 for none
	Variables  []string         `json:"variables,omitempty"`
	Seconds    float64          `json:"seconds"`
	CPUSeconds float64          `json:"cpu_seconds"`
	Passed     int              `json:"passed"`            // tests
	Failed     []string         `json:"failed,omitempty"`  // tests
	Skipped    []string         `json:"skipped,omitempty"` // tests
	Error      string           `json:"error,omitempty"`   // why there is no verdict of tests
	Counts     map[string]int64 `json:"counts,omitempty"`
	Figures    []figure         `json:"figures,omitempty"`
	Violations []string         `json:"violations,omitempty"`
	Again      []string         `json:"again,omitempty"`   // commands that repeat a failure
	Summary    []string         `json:"summary,omitempty"` // lines of the tests that count
	Output     string           `json:"output,omitempty"`  // a file in the folder of the report
	Kept       string           `json:"kept,omitempty"`    // a folder with what the tests left

	mutations *mutation.Report
	broken    map[string][]string // promises, by test, as far as its output tells
}

// bad tells whether the scenario failed.
func (r *result) bad() bool { return len(r.Failed) > 0 || r.Error != "" || len(r.Violations) > 0 }

// round is one pass over the scenarios.
type round struct {
	ctx    context.Context
	opts   options
	root   string // of the module
	work   string // for binaries and what tests leave
	number int
	grow   float64
	built  *binaries
}

// binaries are what was compiled, each once.
type binaries struct {
	mu   sync.Mutex
	made map[string]error // by path
}

// get compiles a binary unless that was tried before. compile is called with mu held: one compiler at a time is enough.
func (b *binaries) get(path string, compile func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err, ok := b.made[path]
	if !ok {
		if b.made == nil {
			b.made = make(map[string]error)
		}
		err = compile()
		b.made[path] = err
	}
	return err
}

func (b *binaries) paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.made))
}

// interrupted is the error of a scenario that was ended.
const interrupted = "interrupted"

// prefix names the files of a scenario in this round.
func (r *round) prefix(s scenario) string { return fmt.Sprintf("%03d-%s", r.number, s.name) }

// do runs a scenario.
func (r *round) do(s scenario) (out result) {
	began := time.Now()
	seed := derive(r.opts.seed, s.name, r.number)
	defer func() {
		out.Scenario, out.Group, out.Round, out.Seconds = s.name, s.group, r.number, time.Since(began).Seconds()
		if !s.seedless {
			out.Seed = seed
		}
		if r.ctx.Err() != nil {
			out.Error = interrupted
		}
	}()
	if s.special != nil {
		return s.special(r, s)
	}
	binary, err := r.build(s)
	if err != nil {
		return result{Error: err.Error()}
	}
	return r.tests(s, binary, seed)
}

// build compiles the tests of a package, once.
func (r *round) build(s scenario) (string, error) {
	key := strings.ReplaceAll(s.folder(), "/", "-") + s.tags + ".test"
	binary := filepath.Join(r.work, key)
	return binary, r.built.get(binary, func() error { return r.compile(binary, "test", "-c", "-vet=off", "-tags", s.tags, "-o", binary, s.pkg) })
}

func (r *round) compile(result string, args ...string) error {
	var out bytes.Buffer
	cmd := r.command(waits, r.root, &out, "go", args...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	if _, err := os.Stat(result); err != nil {
		return fmt.Errorf("go %s: there are no tests", strings.Join(args, " "))
	}
	return nil
}

// command is a process in a group of its own, which ends with r.ctx.
func (r *round) command(l lane, dir string, out io.Writer, name string, args ...string) *exec.Cmd {
	if l == fills {
		name, args = "nice", append([]string{"-n", "19", name}, args...)
	}
	cmd := exec.CommandContext(r.ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error {
		// First the test binary, which has nothing to tidy up, then whatever it started.
		group := cmd.Process.Pid
		err := syscall.Kill(-group, syscall.SIGTERM)
		time.AfterFunc(3*time.Second, func() { syscall.Kill(-group, syscall.SIGKILL) })
		return err
	}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// tests runs the tests of a scenario and reads what they tell.
func (r *round) tests(s scenario, binary string, seed uint64) (out result) {
	out.Variables = s.variables(r.opts.short, r.grow)
	switch {
	case s.seedless:
	case s.simulated:
		out.Variables = append(out.Variables, fmt.Sprintf("MQ_SIM_FIRST=%d", firstSeed(seed)))
	default:
		out.Variables = append(out.Variables, fmt.Sprintf("MQ_SEED=%d", seed))
	}
	temp := filepath.Join(r.work, r.prefix(s))
	if err := os.Mkdir(temp, 0o700); err != nil {
		out.Error = err.Error()
		return out
	}
	defer func() {
		if out.bad() {
			out.Kept = temp
		} else if err := os.RemoveAll(temp); err != nil {
			out.Error = err.Error()
		}
	}()
	lines := filepath.Join(r.opts.folder, r.prefix(s)+".jsonl")
	out.Output = r.prefix(s) + ".log"
	log, err := os.Create(filepath.Join(r.opts.folder, out.Output))
	if err != nil {
		out.Error = err.Error()
		return out
	}
	defer log.Close()
	args := []string{"tool", "test2json", "-t", "-p", s.pkg, binary, "-test.v=test2json", "-test.paniconexit0",
		"-test.timeout", timeoutOf(r.opts.short).String(), "-test.run", s.run}
	reader, writer := io.Pipe()
	cmd := r.command(s.lane, filepath.Join(r.root, s.folder()), writer, "go", append(args, s.flags...)...)
	cmd.Env = append(os.Environ(), out.Variables...)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp, report.Variable+"="+lines, "MQ_SIM_SHRINK=1")
	if r.opts.requireAll() {
		cmd.Env = append(cmd.Env, "MQ_REQUIRE_ALL=1")
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		out.read(r.ctx, reader, log)
	}()
	err = cmd.Run()
	writer.Close()
	<-read
	if state := cmd.ProcessState; state != nil {
		out.CPUSeconds = (state.UserTime() + state.SystemTime()).Seconds()
	}
	if err != nil && len(out.Failed) == 0 && r.ctx.Err() == nil {
		out.Error = fmt.Sprintf("the test binary ends with %v: see %s", err, out.Output)
	}
	if err == nil && out.Passed == 0 && len(out.Skipped) == 0 {
		out.Error = "no test ran"
	}
	out.hear(lines)
	out.addBroken()
	if idle := out.idle(s); len(idle) > 0 && out.Error == "" && len(out.Failed) == 0 && r.ctx.Err() == nil {
		out.Error = "it proves nothing, for these are 0: " + strings.Join(idle, ", ")
	}
	for _, test := range out.Failed {
		if !strings.Contains(test, "/") {
			out.Again = append(out.Again, again(s, out.Variables, test))
		}
	}
	return out
}

// firstSeed is the first seed of a simulation: small enough to be copied, and to have many behind it.
func firstSeed(seed uint64) uint64 { return 1 + seed%1_000_000_000 }

// again is the command that repeats a test.
func again(s scenario, variables []string, test string) string {
	words := slices.Clone(variables)
	for _, name := range []string{"MQ_MQD", "MQ_REQUIRE_ALL"} { // the caller's
		if value := os.Getenv(name); value != "" {
			words = append(words, name+"="+value)
		}
	}
	words = append(words, "go test -count=1 -v -timeout 2h")
	if s.tags != "" {
		words = append(words, "-tags "+s.tags)
	}
	words = append(words, fmt.Sprintf("-run '^%s$'", test), s.pkg)
	return strings.Join(append(words, s.flags...), " ")
}

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// counting are lines of tests that tell how often something was done.
var counting = regexp.MustCompile(`acknowledged \d+, read \d+|\d+ seeds from \d+|^\s+\S+_test\.go:\d+: \d+ (states|flips|faults|operations|cuts|lives)`)

// summaryMax is how many such lines are kept.
const summaryMax = 12

// read takes in what the tests tell while they run.
func (out *result) read(ctx context.Context, from io.Reader, log io.Writer) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case line[0] != '{' || json.Unmarshal(line, &e) != nil:
			log.Write(line) // of a process that shares the output
		default:
			io.WriteString(log, e.Output)
			if e.Action != "fail" || ctx.Err() == nil { // what is ended has not failed
				out.see(e)
			}
		}
		if err != nil {
			return
		}
	}
}

func (out *result) see(e event) {
	out.note(e)
	switch {
	case e.Test == "":
	case e.Action == "pass":
		out.Passed++
	case e.Action == "fail":
		out.Failed = append(out.Failed, e.Test)
	case e.Action == "skip":
		out.Skipped = append(out.Skipped, e.Test)
	case e.Action == "output" && counting.MatchString(e.Output) && len(out.Summary) < summaryMax:
		out.Summary = append(out.Summary, e.Test+": "+strings.TrimSpace(e.Output))
	}
}

// historyLine is a line with what package history counts.
var historyLine = regexp.MustCompile(`acknowledged \d+, read \d+(, lost \d+.*)`)

// note takes in a line of output that counts violations.
func (out *result) note(e event) {
	match := historyLine.FindStringSubmatch(e.Output)
	if match == nil {
		return
	}
	var list []string
	for k := range history.Kinds {
		count := regexp.MustCompile(", (" + k.String() + " [1-9][0-9]*)").FindStringSubmatch(match[1])
		if count != nil {
			list = append(list, count[1])
		}
	}
	if len(list) == 0 {
		return
	}
	if out.broken == nil {
		out.broken = make(map[string][]string)
	}
	out.broken[e.Test] = list // the last line counts all
}

// addBroken adds what failed tests have printed of violations, and did not come to tell package report.
func (out *result) addBroken() {
	for _, test := range out.Failed {
		told := slices.ContainsFunc(out.Violations, func(v string) bool { return strings.HasPrefix(v, test+": ") })
		if list := out.broken[test]; len(list) > 0 && !told {
			out.Violations = append(out.Violations, test+": "+strings.Join(list, ", "))
		}
	}
}

// hear takes in what the tests told package report.
func (out *result) hear(path string) {
	lines, err := report.Read(path)
	if err != nil && out.Error == "" {
		out.Error = err.Error()
	}
	for _, l := range lines {
		switch l.Kind {
		case report.KindCount:
			if out.Counts == nil {
				out.Counts = make(map[string]int64)
			}
			out.Counts[l.What] += l.Count
		case report.KindFigure:
			out.Figures = append(out.Figures, figure{l.Test + ": " + l.What, l.Value, l.Unit})
		case report.KindViolation:
			out.Violations = append(out.Violations, l.Test+": "+l.What)
		case report.KindAgain:
			out.Again = append(out.Again, l.What)
		}
	}
}

// idle names what the scenario should have done, and has not: what was told with a count of 0, or, where a history is
// checked, was not told.
func (out *result) idle(s scenario) (list []string) {
	if strings.Contains(s.checkers, byHistory) {
		for _, what := range []string{"records acknowledged", "records read"} {
			if out.Counts[what] == 0 {
				list = append(list, what)
			}
		}
	}
	for what, n := range out.Counts {
		if n == 0 && !slices.Contains(mayBeZero, what) && !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	slices.Sort(list)
	return list
}

// mayBeZero are the counts that tell of bad things.
var mayBeZero = []string{"violations", "seeds that fail"}

// runMutations has package mutation put faults into the code.
func runMutations(r *round, s scenario) (out result) {
	out.Output = r.prefix(s) + ".log"
	log, err := os.Create(filepath.Join(r.opts.folder, out.Output))
	if err != nil {
		return result{Error: err.Error()}
	}
	defer log.Close()
	m, err := mutation.Run(r.ctx, mutation.Config{Wide: r.opts.hours >= wideFrom && r.opts.only == s.name, GiveWay: s.lane == fills, Log: log})
	if err != nil {
		out.Error = err.Error()
	}
	out.Passed = m.Caught
	out.Counts = map[string]int64{
		"deliberate faults": int64(len(m.Results)), "noticed by a test": int64(m.Caught), "noticed by none": int64(m.Survived), "not judged": int64(m.Errors),
	}
	for _, one := range m.Results {
		if one.Survived || one.Err != "" {
			out.Failed = append(out.Failed, one.Name)
			out.Again = append(out.Again, "go run ./test/mutation/cmd -only "+one.Name)
		}
	}
	out.mutations = &m
	return out
}

// wideFrom is how many hours a run of nothing but these must have for all tests that could notice a fault, not only the quickest.
const wideFrom = 4
