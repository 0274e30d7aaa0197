package mutation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config says what to run.
type Config struct {
	// Names are those of the mutations to run; none for all.
	Names []string
	// Wide runs each mutation against all tests that could notice it, and lists all that do. Otherwise the first test that
	// notices is enough.
	Wide bool
	// Parallel is how many checks run at a time. Default 2.
	Parallel int
	// GiveWay runs all at the lowest priority.
	GiveWay bool
	// Baseline runs each check once without a mutation before anything else: it must be green.
	Baseline bool
	// Log, if not nil, gets a line for each result as it comes.
	Log io.Writer

	root string     // of the module; default: that of the working directory
	list []Mutation // default: those of List
}

// Run runs mutations. It returns an error when the list cannot be run: a name that is not there, a text that is not found
// in the code, a check that is red without any mutation. Then nothing was tried. What came of each mutation is in the
// report, also that it could not be judged. When ctx ends, the report has what was done until then, and its error is
// returned.
func Run(ctx context.Context, cfg Config) (Report, error) {
	began := time.Now()
	list, err := cfg.prepare()
	if err != nil {
		return Report{}, err
	}
	r := &runner{cfg: cfg, gc: goCommand{root: cfg.root, giveWay: cfg.GiveWay}, places: make(chan struct{}, cfg.Parallel)}
	if cfg.Baseline {
		if err := r.baseline(ctx, list); err != nil {
			return Report{}, err
		}
	}
	results := make([]*Result, len(list))
	var running sync.WaitGroup
	for i := range list {
		if !r.enter(ctx) {
			break
		}
		running.Go(func() { // awaited below; ends with ctx
			defer r.leave()
			results[i] = r.try(ctx, &list[i])
		})
	}
	running.Wait()
	report := Report{Wide: cfg.Wide}
	for _, result := range results {
		if result != nil {
			report.add(*result)
		}
	}
	report.Seconds = time.Since(began).Seconds()
	return report, ctx.Err()
}

// prepare fills in the defaults and returns what is to be run. All of it applies to the code as it is.
func (c *Config) prepare() (list []Mutation, err error) {
	if c.Parallel <= 0 {
		c.Parallel = 2
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.root == "" {
		if c.root, err = findRoot("."); err != nil {
			return nil, err
		}
	}
	if list = c.list; list == nil {
		if list, err = List(); err != nil {
			return nil, err
		}
	}
	if list, err = some(list, c.Names); err != nil {
		return nil, err
	}
	for i := range list {
		if _, applyErr := list[i].apply(c.root); applyErr != nil {
			err = errors.Join(err, applyErr)
		}
	}
	return list, err
}

// runner is one Run.
type runner struct {
	cfg    Config
	gc     goCommand
	places chan struct{} // holds a value for each check that runs

	mu    sync.Mutex      // of cfg.Log, and guards what follows
	green map[string]bool // checks that were seen green without a mutation
}

// enter waits until another check may run, and reports false when ctx ended before.
func (r *runner) enter(ctx context.Context) bool {
	select {
	case r.places <- struct{}{}:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (r *runner) leave() { <-r.places }

func (r *runner) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.cfg.Log, format+"\n", args...)
}

// checks returns the checks of a mutation, each once.
func (r *runner) checks(m *Mutation) []Check {
	list := slices.Clone(m.Checks)
	if r.cfg.Wide {
		list = append(append(list, m.Wide...), wideFor(m)...)
	}
	var once []Check
	for _, c := range list {
		if !slices.ContainsFunc(once, func(o Check) bool { return o.String() == c.String() }) {
			once = append(once, c)
		}
	}
	return once
}

// try runs the checks of a mutation. It returns nil when ctx ended before there was a result.
func (r *runner) try(ctx context.Context, m *Mutation) *Result {
	began := time.Now()
	result := &Result{Name: m.Name, What: m.What, Guarantee: m.Guarantee}
	if err := r.judge(ctx, m, result); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		result.Err = err.Error()
	}
	result.Survived = result.Err == "" && len(result.CaughtBy) == 0
	result.Seconds = time.Since(began).Seconds()
	r.logf("%s", result)
	return result
}

// judge adds the tests that notice a mutation to its result.
func (r *runner) judge(ctx context.Context, m *Mutation, result *Result) error {
	dir, err := os.MkdirTemp("", "mq-mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(r.cfg.root, dir)
	if err != nil {
		return err
	}
	for _, c := range r.checks(m) {
		failed, err := r.notice(ctx, c, overlay, dir, result)
		if err != nil {
			return err
		}
		for _, test := range failed {
			name := strings.TrimPrefix(c.Package, "./") + " " + test
			if !slices.Contains(result.CaughtBy, name) {
				result.CaughtBy = append(result.CaughtBy, name)
			}
		}
		if len(failed) > 0 && !r.cfg.Wide {
			break
		}
	}
	return nil
}

// rounds is how often a check is run with and without a fault, at most, until one round tells whether it notices.
const rounds = 3

// notice returns the tests of a check that notice a mutation: in one and the same round they are red with it and green without.
// A test may fail by chance on a busy machine. One that fails without the fault in each round is an error. In the first round
// a check that was green without any fault before, for another mutation, counts as green.
func (r *runner) notice(ctx context.Context, c Check, overlay, dir string, result *Result) (failed []string, err error) {
	for round := range rounds {
		o := r.gc.run(ctx, &c, overlay, dir, !r.cfg.Wide)
		result.CPUSeconds += o.cpu.Seconds()
		if o.err != nil {
			return nil, o.err
		}
		err = r.confirm(ctx, c, dir, o.failed, round == 0, result)
		if err == nil {
			return o.failed, nil
		}
		if !errors.As(err, new(*redError)) {
			return nil, err
		}
		r.logf("%s, round %d: %v", result.Name, round+1, err)
	}
	return nil, err
}

// redError says that tests fail without a fault.
type redError struct {
	failed []string
	check  Check
}

func (e *redError) Error() string {
	return fmt.Sprintf("%s fails without the fault, too, in check %q", strings.Join(e.failed, ", "), e.check)
}

// confirm sees that tests which fail with a mutation pass without it: else it is not the mutation that they notice, but the
// machine. One that did not come to its end in time must do so in half of it. If known will do, a check need not run that was
// green before.
func (r *runner) confirm(ctx context.Context, c Check, dir string, failed []string, known bool, result *Result) error {
	if len(failed) == 0 {
		return nil
	}
	var names []string
	for _, test := range failed {
		name, how, _ := strings.Cut(test, " ")
		names = append(names, name)
		if how == timedOut {
			c.Timeout /= 2
		}
	}
	if !strings.Contains(c.Run, "/") { // subtests that are named stay named
		c.Run = "^(" + strings.Join(names, "|") + ")$"
	}
	r.mu.Lock()
	known = known && r.green[c.String()]
	r.mu.Unlock()
	if known {
		return nil
	}
	o := r.gc.run(ctx, &c, "", dir, true)
	result.CPUSeconds += o.cpu.Seconds()
	switch {
	case o.err != nil:
		return fmt.Errorf("without the fault: %w", o.err)
	case len(o.failed) > 0:
		return &redError{o.failed, c}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.green == nil {
		r.green = make(map[string]bool)
	}
	r.green[c.String()] = true
	return nil
}

// baseline runs each check of a list once without a mutation, and returns what is not green.
func (r *runner) baseline(ctx context.Context, list []Mutation) error {
	var all []Check
	for i := range list {
		for _, c := range r.checks(&list[i]) {
			if !slices.ContainsFunc(all, func(o Check) bool { return o.String() == c.String() }) {
				all = append(all, c)
			}
		}
	}
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i := range all {
		if !r.enter(ctx) {
			break
		}
		running.Go(func() { // awaited below; ends with ctx
			defer r.leave()
			began := time.Now()
			errs[i] = r.isGreen(ctx, &all[i])
			r.logf("without a mutation: %s: %.1f s", all[i], time.Since(began).Seconds())
		})
	}
	running.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// isGreen runs a check without a mutation, and returns an error if it is not green.
func (r *runner) isGreen(ctx context.Context, c *Check) error {
	dir, err := os.MkdirTemp("", "mq-mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	switch o := r.gc.run(ctx, c, "", dir, false); {
	case o.err != nil:
		return fmt.Errorf("without a mutation: %w", o.err)
	case len(o.failed) > 0:
		return fmt.Errorf("without a mutation the check %q is red: %s", c, strings.Join(o.failed, ", "))
	}
	return nil
}
