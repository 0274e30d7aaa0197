package seeds

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/report"
)

const (
	shrinkVariable = "MQ_SIM_SHRINK" // 1: a seed that fails is shrunk
	shrinkMax      = 2 * time.Minute // for all seeds of a test
	untilMax       = 1 << 20         // more faults than any seed draws
)

// outcome is what a seed came to with some of its faults left out.
type outcome struct {
	Class string   // of the violation; "" for none
	Done  int      // faults
	Kinds []string // of them
}

// shrinker looks for few faults with which a seed still breaks the same promise.
type shrinker struct {
	class string
	try   func(narrow) outcome
	over  func() bool // the time is up
	best  narrow
	found outcome // with best
	first outcome // before anything was left out
}

// fails reports whether the seed still breaks the same promise with n, and keeps n if so.
func (s *shrinker) fails(n narrow) bool {
	if s.over() {
		return false
	}
	o := s.try(n)
	if o.Class != s.class {
		return false
	}
	s.best, s.found = n, o
	return true
}

// run shrinks: first how many faults there are, then which kinds, then how many clients, and once more how many faults.
// It reports whether the seed fails at all with s.best as given.
func (s *shrinker) run(clientsMax int) bool {
	if !s.fails(s.best) {
		return false
	}
	s.first = s.found
	s.until()
	for _, kind := range s.found.Kinds {
		n := s.best
		n.without = append(slices.Clone(n.without), kind)
		slices.Sort(n.without)
		s.fails(n)
	}
	for clients := 1; clients < clientsMax; clients++ {
		n := s.best
		n.clients = clients
		if s.fails(n) {
			break
		}
	}
	s.until()
	return true
}

// until looks for the smallest number of faults. More faults need not mean that the seed fails, too; so it need not be the
// smallest one of all.
func (s *shrinker) until() {
	with := func(until int) bool {
		n := s.best
		n.until = until
		return s.fails(n)
	}
	most := untilMax
	if s.best.until >= 0 {
		most = s.best.until
	}
	low, high := -1, 0 // it does not fail with low
	for ; high < most && !with(high); high = max(1, 2*high) {
		low = high
	}
	if high >= most {
		if s.best.until < 0 {
			return // not even with all that it draws, which it has done before: it does not repeat
		}
		high = most
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; with(middle) {
			high = middle
		} else {
			low = middle
		}
	}
}

var invariantName = regexp.MustCompile(`^INVARIANT "[^"]*"`)

// classOf is what stays the same of a violation when a seed is narrowed.
func classOf(violation string) string {
	if name := invariantName.FindString(violation); name != "" {
		return name
	}
	first, _, _ := strings.Cut(violation, ":")
	return first
}

// classEnds is the class of seeds that end the process.
const classEnds = "ends the process"

// told is what a child tells of a seed that fails.
type told struct {
	Seed      uint64
	Violation string
	Done      int
	Kinds     []string
}

const toldMark = "FAILED "

// tell prints what parents read.
func tell(t *testing.T, seed uint64, violation error, f *Faults) {
	b, err := json.Marshal(told{seed, violation.Error(), f.count(), f.kinds()})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s%s\n", toldMark, b)
}

// heard reads what a child tells.
func heard(output string) (list []told) {
	for line := range strings.Lines(output) {
		var one told
		if text, ok := strings.CutPrefix(line, toldMark); ok && json.Unmarshal([]byte(text), &one) == nil {
			list = append(list, one)
		}
	}
	return list
}

// failure is a seed that fails.
type failure struct {
	seed  uint64
	class string
}

// shrink shrinks seeds that fail, the lowest of each class, and prints the commands.
func (s Simulation[S]) shrink(t *testing.T, failed []failure) {
	slices.SortFunc(failed, func(a, b failure) int { return cmp.Compare(a.seed, b.seed) })
	for _, f := range failed {
		report.Violation(t, fmt.Sprintf("seed %d: %s", f.seed, f.class))
	}
	if os.Getenv(shrinkVariable) != "1" {
		return
	}
	began := time.Now()
	seen := make(map[string]bool)
	for _, f := range failed {
		if seen[f.class] {
			continue
		}
		seen[f.class] = true
		command, before, after := s.shrinkOne(t, f, func() bool { return time.Since(began) > shrinkMax })
		if command == "" {
			t.Logf("seed %d does not fail again with %s", f.seed, f.class)
			continue
		}
		t.Logf("seed %d of %d faults, shrunk to %d: %s", f.seed, before, after, command)
		report.Again(t, command)
	}
}

// shrinkOne shrinks a seed. It returns the command that repeats it, and how many faults there were before and are then.
func (s Simulation[S]) shrinkOne(t *testing.T, f failure, over func() bool) (command string, before, after int) {
	k := &shrinker{class: f.class, best: s.faults(t).narrow, over: over, try: func(n narrow) outcome { return s.trial(t, f.seed, n) }}
	fails := false
	for range 3 { // a machine with too much to do may give another trace
		if fails = k.run(s.Clients); fails {
			break
		}
	}
	if !fails {
		return "", 0, 0
	}
	words := append([]string{fmt.Sprintf("MQ_SIM_SEED=%d", f.seed)}, k.best.environment()...)
	words = append(words, "go test -v -run '^"+s.Test+"$'", s.Folder)
	return strings.Join(words, " "), k.first.Done, k.found.Done
}

// trial runs one seed in a process of its own.
func (s Simulation[S]) trial(t *testing.T, seed uint64, n narrow) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), 2*stuckAfter)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+s.Test+"$", "-test.v", "-test.timeout", "0")
	cmd.Env = append(withoutNarrow(os.Environ()), n.environment()...)
	cmd.Env = append(cmd.Env, report.Variable+"=", fmt.Sprintf("%s=%d,%d,1,%s", childVariable, seed, seed+1, filepath.Join(t.TempDir(), "seed")))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if list := heard(out.String()); len(list) > 0 {
		return outcome{classOf(list[0].Violation), list[0].Done, list[0].Kinds}
	}
	if err != nil && !strings.Contains(out.String(), "TOTAL ") {
		return outcome{Class: classEnds, Kinds: s.Kinds}
	}
	return outcome{}
}

// withoutNarrow is an environment without what narrows a seed.
func withoutNarrow(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{untilVariable, withoutVariable, clientsVariable}, name)
	})
}
