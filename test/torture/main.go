// Torture breaks mq in every way that the tests know, and writes a report: what was tried, how often, what was found, and
// the commands that repeat what failed.
//
//	go run ./test/torture -short            what every change must pass
//	go run ./test/torture -hours 8          rounds with new seeds until the time is up
//	go run ./test/torture -only sim,kill    scenarios, or groups of them; -list names all
//	go run ./test/torture -seed 17          everything that is random follows from the seed, which is printed
//
// Each scenario is a run of the tests of one package, in processes of their own. Scenarios that wait most of the time run
// one after the other, and beside them, at the lowest priority, those that only need processors; then come those that need
// the machine for themselves. As root everything must run: what is skipped is a failure, unless -allow-skip is given. Data
// goes to TMPDIR, which must be on a disk.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	short     bool
	hours     float64
	seed      uint64
	only      string
	folder    string
	keepGoing bool
	allowSkip bool
	list      bool
}

// requireAll tells the tests to fail where they would be skipped.
func (o options) requireAll() bool { return os.Geteuid() == 0 && !o.allowSkip }

func parse(args []string, stderr io.Writer) (o options, ok bool) {
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.short, "short", false, "one round of the size that every change must pass")
	flags.Float64Var(&o.hours, "hours", 0, "rounds with new seeds until so many hours are up; 0 for one round")
	flags.Uint64Var(&o.seed, "seed", 0, "of everything random; 0 for a new one, with -short always the same: what fails then is due to the change")
	flags.StringVar(&o.only, "only", "", "scenarios or groups, with commas between them; default: all")
	flags.StringVar(&o.folder, "report", "torture-report", "folder of the report and of all output")
	flags.BoolVar(&o.keepGoing, "keep-going", false, "go on after a scenario that failed")
	flags.BoolVar(&o.allowSkip, "allow-skip", false, "what this machine cannot run is no failure")
	flags.BoolVar(&o.list, "list", false, "print the scenarios, and run nothing")
	if err := flags.Parse(args); err != nil {
		return o, false
	}
	if flags.NArg() > 0 || o.hours < 0 || o.short && o.hours > 0 {
		fmt.Fprintln(stderr, "torture: -short and -hours exclude each other, and there are no arguments")
		return o, false
	}
	if o.seed == 0 && o.short {
		o.seed = 1
	} else if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) / 1000
	}
	return o, true
}

// run returns 0 if all is well, 1 if something failed or was not run, and 2 for wrong flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, ok := parse(args, stderr)
	if !ok {
		return 2
	}
	scenarios, err := choose(table(), opts.only)
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return 2
	}
	if opts.list {
		printList(stdout, scenarios)
		return 0
	}
	t := &torture{ctx: ctx, opts: opts, scenarios: scenarios, out: stdout, now: time.Now}
	if err := t.prepare(); err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return 1
	}
	defer t.tidy()
	t.rounds()
	if err := t.write(); err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return 1
	}
	if !t.summary.Passed {
		return 1
	}
	return 0
}

func printList(out io.Writer, scenarios []scenario) {
	for _, s := range scenarios {
		fmt.Fprintf(out, "%-20s %-12s %s\n", s.name, s.group, s.what)
	}
}

// torture is one run of the command.
type torture struct {
	ctx       context.Context
	opts      options
	scenarios []scenario
	out       io.Writer
	now       func() time.Time

	root  string // of the module
	work  string // for binaries, and for what tests leave
	built *binaries

	mu      sync.Mutex // guards what follows
	stopped bool       // after a failure
	kept    bool       // a scenario left something in work
	summary summary
}

// prepare looks where it is, and makes the folders.
func (t *torture) prepare() error {
	var err error
	if t.root, err = moduleRoot(); err != nil {
		return err
	}
	if err := os.Chdir(t.root); err != nil {
		return err
	}
	if t.opts.folder, err = filepath.Abs(t.opts.folder); err != nil {
		return err
	}
	if err := os.MkdirAll(t.opts.folder, 0o755); err != nil {
		return err
	}
	if err := clear(t.opts.folder); err != nil {
		return err
	}
	if t.work, err = os.MkdirTemp("", "mq-torture-"); err != nil {
		return err
	}
	t.built = new(binaries)
	t.summary = summary{Machine: lookAround(t.ctx, t.work), Started: t.now().UTC(), Seed: t.opts.seed, Mode: t.opts.mode(), Only: t.opts.only}
	if t.summary.Machine.InMemory {
		return fmt.Errorf("%s is in memory, where a sync does nothing: set TMPDIR to a folder on a disk", t.work)
	}
	fmt.Fprintf(t.out, "torture: %s, seed %d, report in %s\n", t.summary.Mode, t.opts.seed, t.opts.folder)
	return nil
}

// clear removes the files of an earlier report, and nothing else.
func clear(folder string) error {
	for _, pattern := range []string{"report.md", "report.json", "[0-9][0-9][0-9]-*.log", "[0-9][0-9][0-9]-*.jsonl"} {
		names, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// tidy removes what is of no use any more.
func (t *torture) tidy() {
	if !t.kept {
		os.RemoveAll(t.work)
		return
	}
	for _, path := range t.built.paths() { // but not what failed tests left
		os.Remove(path)
	}
	fmt.Fprintf(t.out, "torture: kept %s\n", t.work)
}

// rounds runs the scenarios, once or until the time is up.
func (t *torture) rounds() {
	end := t.summary.Started.Add(time.Duration(t.opts.hours * float64(time.Hour)))
	for number, grow := 1, 1.0; ; number++ {
		began := t.now()
		r := &round{opts: t.opts, root: t.root, work: t.work, number: number, grow: grow, built: t.built}
		if !t.round(r, end) || t.opts.hours == 0 || !t.now().Before(end) {
			break
		}
		if took := t.now().Sub(began); took < roundAim {
			grow *= min(2, float64(roundAim)/float64(took))
		}
	}
	t.summary.Interrupted = t.ctx.Err() != nil
	t.summary.judge(t.opts.allowSkip)
}

// roundAim is how long a round of a long run is at least: if it is shorter, the next one does more.
const roundAim = 10 * time.Minute

// round runs all scenarios once. It reports whether to go on.
func (t *torture) round(r *round, end time.Time) bool {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	r.ctx = ctx
	run := func(l lane) {
		for _, s := range t.scenarios {
			switch {
			case s.lane != l, s.once && r.number > 1, r.number > 1 && !t.now().Before(end):
			case ctx.Err() == nil && !t.done(s, r.do(s)):
				cancel() // what runs beside it need not go on
			}
		}
	}
	var beside sync.WaitGroup
	beside.Go(func() { run(fills) })
	run(waits)
	beside.Wait()
	run(alone)
	return ctx.Err() == nil
}

// done takes in what a scenario came to. It reports whether to go on.
func (t *torture) done(s scenario, out result) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = t.kept || out.Kept != ""
	if t.stopped && out.Error == interrupted {
		return false // by the failure of another one
	}
	t.summary.add(s, out)
	fmt.Fprintln(t.out, out.line())
	if out.bad() {
		t.printEnd(out.Output)
	}
	if err := t.write(); err != nil { // so that there is a report whatever comes
		fmt.Fprintln(t.out, "torture:", err)
		t.stopped = true
	}
	if (out.bad() || len(out.Skipped) > 0 && !t.opts.allowSkip) && !t.opts.keepGoing {
		t.stopped = true
	}
	return !t.stopped
}

// endLines is how much of the output of a scenario that failed is printed; all of it is in the folder of the report.
const endLines = 150

func (t *torture) printEnd(name string) {
	b, err := os.ReadFile(filepath.Join(t.opts.folder, name))
	if name == "" || err != nil {
		return // there was no output: the line that is printed says why
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	fmt.Fprintf(t.out, "--- the end of %s:\n%s\n---\n", name, strings.Join(lines[max(0, len(lines)-endLines):], "\n"))
}

// line is what is printed of a scenario as it ends.
func (r *result) line() string {
	verdict := "ok"
	switch {
	case r.bad():
		verdict = "FAILED"
	case len(r.Skipped) > 0:
		verdict = "SKIPPED"
	}
	text := fmt.Sprintf("%-7s %-18s %6.1f s  %s", verdict, r.Scenario, r.Seconds, countsText(r.Counts))
	for _, name := range r.Failed {
		text += "\n        failed: " + name
	}
	for _, name := range r.Skipped {
		text += "\n        skipped: " + name
	}
	if r.Error != "" {
		text += "\n        " + strings.ReplaceAll(r.Error, "\n", "\n        ")
	}
	for _, what := range r.Violations {
		text += "\n        violation: " + what
	}
	for _, command := range r.Again {
		text += "\n        again: " + command
	}
	return text
}

func (o options) mode() string {
	switch {
	case o.short:
		return "short"
	case o.hours > 0:
		return fmt.Sprintf("%g hours", o.hours)
	}
	return "one round"
}

// moduleRoot is the folder of go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("there is no go.mod at or above the working directory")
		}
	}
}
