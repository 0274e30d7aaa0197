// Package seeds runs simulations that a seed decides: one seed, with its trace, or many, on all processors.
//
//	MQ_SIM_SEEDS=100000 go test -timeout 4h -run TestX ./test/sim/x    many seeds; MQ_SIM_FIRST is the first
//	MQ_SIM_SEED=17 go test -v -run TestX ./test/sim/x                  one seed, with its trace
//
// MQ_SIM_UNTIL=n does only the first n faults that a seed draws, MQ_SIM_WITHOUT=kind,kind leaves kinds of faults out, and
// MQ_SIM_CLIENTS=n has at most n clients. With MQ_SIM_SHRINK=1 a seed that fails is tried with such variables for two
// minutes at most, and the command with the fewest faults that still breaks the same promise is printed.
//
// A run is a function of its seed as long as at most one goroutine at a time has a choice to make, everything waits in
// ways that testing/synctest knows, and nothing depends on real time. Each child process has one processor, one bubble
// and no garbage collection during a seed.
package seeds

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/test/report"
)

const childVariable = "MQ_SIM_CHILD" // first seed, end, step and the file that tells the seed under way

// Result is what a seed came to.
type Result[S any] struct {
	Hash      uint64 // of the trace
	Violation error
	Stats     S
	// Judge, if not nil, is called outside the bubble, where it may take real time, if there is no violation yet. It may
	// change Stats by the pointer it is given.
	Judge func(stats *S) error
}

// Simulation is a kind of run.
type Simulation[S any] struct {
	Test    string // the name of the test that calls Check
	Folder  string // of its package: "./test/sim"
	Default uint64 // how many seeds unless MQ_SIM_SEEDS says so
	// Collect is after how many seeds the garbage is collected.
	Collect uint64
	// Run runs one seed, in the bubble, and asks faults before it does one. verbose, if not nil, gets the trace.
	Run     func(seed uint64, faults *Faults, verbose io.Writer) Result[S]
	Kinds   []string // of faults
	Clients int      // the most that a seed has; 0 if their number cannot be narrowed
	Add     func(total, stats *S)
	// Counts is what the report tells of many seeds, beside seeds and faults.
	Counts func(total *S) map[string]int
	// Missed, if not nil, tells what many seeds should have reached, and have not; nothing if that is all.
	Missed func(total *S) string
}

// Zero names the figures that are zero.
func Zero(figures map[string]int) string {
	var list []string
	for name, n := range figures {
		if n == 0 {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// many is how many seeds of a process reach everything.
const many = 20

// inBubble calls f in the one bubble of this process. One, because the pools of the packages under test keep channels,
// which must not leave the bubble they were made in.
func inBubble(t *testing.T, f func()) {
	debug.SetGCPercent(-1) // a collection changes the order in which goroutines run: it comes between seeds only
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(*testing.T) { f() })
}

// run runs a seed, in the bubble, and has it judged outside.
func (s Simulation[S]) run(seed uint64, faults *Faults, verbose io.Writer, judge judge) Result[S] {
	r := s.Run(seed, faults, verbose)
	if r.Violation == nil && r.Judge != nil {
		judge.ask <- func() { r.Violation = r.Judge(&r.Stats) }
		<-judge.done
	}
	return r
}

// judge runs functions outside the bubble. Both channels are made there.
type judge struct {
	ask  chan func()
	done chan struct{}
}

// newJudge starts the goroutine that judges; closing ask ends it.
func newJudge() judge {
	j := judge{make(chan func()), make(chan struct{})}
	go func() {
		for f := range j.ask {
			f()
			j.done <- struct{}{}
		}
	}()
	return j
}

func number(t *testing.T, name string, fallback uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: want a number", name, text)
	}
	return n
}

// Check runs the seeds that the environment asks for.
func (s Simulation[S]) Check(t *testing.T) {
	switch {
	case os.Getenv(childVariable) != "":
		s.child(t)
		return
	case os.Getenv("MQ_SIM_SEED") != "":
		s.one(t, number(t, "MQ_SIM_SEED", 0))
		return
	}
	first, count := number(t, "MQ_SIM_FIRST", 1), number(t, "MQ_SIM_SEEDS", s.Default)
	if testing.Short() {
		count = min(count, 50)
	}
	began := time.Now()
	var children sync.WaitGroup
	step := uint64(runtime.GOMAXPROCS(0))
	failed := make([][]failure, step)
	for k := range step {
		children.Go(func() { failed[k] = s.parent(t, first+k, first+count, step) })
	}
	children.Wait()
	t.Logf("%d seeds from %d in %v", count, first, time.Since(began).Round(time.Millisecond))
	s.shrink(t, slices.Concat(failed...))
}

// one runs one seed, with its trace.
func (s Simulation[S]) one(t *testing.T, seed uint64) {
	faults := s.faults(t)
	var r Result[S]
	j := newJudge()
	defer close(j.ask)
	inBubble(t, func() { r = s.run(seed, faults, os.Stderr, j) })
	t.Logf("trace %016x, %+v", r.Hash, r.Stats)
	t.Logf("%d faults of %d drawn: %v", faults.count(), faults.drawn, faults.done)
	if r.Violation != nil {
		t.Error(r.Violation)
		s.shrink(t, []failure{{seed, classOf(r.Violation.Error())}})
	}
}

// parent runs seeds in a process of its own, with one processor. It returns those that fail.
func (s Simulation[S]) parent(t *testing.T, first, end, step uint64) (failed []failure) {
	progress := filepath.Join(t.TempDir(), "seed")
	cmd := exec.Command(os.Args[0], "-test.run", "^"+s.Test+"$", "-test.v", "-test.timeout", "0")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d,%d,%s", childVariable, first, end, step, progress))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := out.String()
	if err != nil && !strings.Contains(text, "TOTAL ") { // a panic
		seed, _ := os.ReadFile(progress)
		t.Errorf("seed %s ends the process: %s\n%s", seed, s.again(string(seed)), text)
		if n, err := strconv.ParseUint(string(seed), 10, 64); err == nil {
			failed = append(failed, failure{n, classEnds})
		}
	}
	for _, one := range heard(text) {
		failed = append(failed, failure{one.Seed, classOf(one.Violation)})
	}
	if !strings.Contains(text, "TOTAL ") {
		return failed
	}
	show := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		// What goes on behind a first line is indented.
		show = strings.Contains(line, "SEED ") || strings.Contains(line, "TOTAL ") || show && strings.HasPrefix(line, "        ")
		if show {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Error("some seeds fail")
	}
	return failed
}

func (s Simulation[S]) again(seed string) string {
	return fmt.Sprintf("MQ_SIM_SEED=%s go test -v -run '^%s$' %s", seed, s.Test, s.Folder)
}

// child runs the seeds that its parent asks for.
func (s Simulation[S]) child(t *testing.T) {
	var first, end, step uint64
	var progress string
	if _, err := fmt.Sscanf(strings.ReplaceAll(os.Getenv(childVariable), ",", " "), "%d %d %d %s", &first, &end, &step, &progress); err != nil {
		t.Fatal(err)
	}
	var total S
	failed, ran := 0, 0
	done := make(map[string]int) // faults
	var under, ended atomic.Uint64
	go watch(&under, &ended, s.again)
	j := newJudge()
	defer close(j.ask)
	inBubble(t, func() {
		for seed := first; seed < end; seed += step {
			if err := os.WriteFile(progress, fmt.Append(nil, seed), 0o600); err != nil {
				t.Fatal(err)
			}
			under.Store(seed)
			faults := s.faults(t)
			r := s.run(seed, faults, nil, j)
			ended.Add(1)
			ran++
			s.Add(&total, &r.Stats)
			for kind, n := range faults.done {
				done[kind] += n
			}
			if r.Violation != nil {
				failed++
				tell(t, seed, r.Violation, faults)
				t.Errorf("SEED %d: %v    %s", seed, r.Violation, s.again(fmt.Sprint(seed)))
			}
			if (seed-first)/step%s.Collect == s.Collect-1 {
				runtime.GC()
			}
		}
	})
	t.Logf("TOTAL %d failed, %+v", failed, total)
	report.Count(t, "seeds", int64(ran))
	report.Count(t, "seeds that fail", int64(failed))
	for kind, n := range done {
		report.Count(t, "fault "+kind, int64(n))
	}
	for what, n := range s.Counts(&total) {
		report.Count(t, what, int64(n))
	}
	if s.Missed != nil && failed == 0 && (end-first)/step >= many {
		if what := s.Missed(&total); what != "" {
			t.Errorf("SEED %d and all others do not cover %s", first, what)
		}
	}
}

// stuckAfter is how long a seed may take.
const stuckAfter = 30 * time.Second

// watch ends the process when a seed takes too long. It ends with the process.
func watch(seed, done *atomic.Uint64, again func(string) string) {
	for last := done.Load(); ; last = done.Load() {
		time.Sleep(stuckAfter)
		if n := done.Load(); n == last {
			buf := make([]byte, 1<<20)
			fmt.Printf("seed %d takes more than %v: %s\n%s\n", seed.Load(), stuckAfter, again(fmt.Sprint(seed.Load())), buf[:runtime.Stack(buf, true)])
			os.Exit(3)
		}
	}
}

// Repeats checks that the first n seeds give the same trace again. On a machine with too much to do the runtime may take
// the processor away from a goroutine that has had it for long, which changes the order of the others: so two equal traces
// of a few are enough.
func (s Simulation[S]) Repeats(t *testing.T, n uint64) {
	if os.Getenv("MQ_SIM_SEED") != "" {
		t.Skip("one seed is asked for")
	}
	inBubble(t, func() {
		for seed := uint64(1); seed <= n; seed++ {
			const most = 8
			var hashes []uint64
			for again := false; !again; runtime.GC() {
				if len(hashes) == most {
					t.Errorf("seed %d gave the traces %016x", seed, hashes)
					break
				}
				hash := s.Run(seed, s.faults(t), nil).Hash
				again = slices.Contains(hashes, hash)
				hashes = append(hashes, hash)
			}
		}
	})
}
