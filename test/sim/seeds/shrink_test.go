package seeds

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/mq/test/report"
)

type toyStats struct{ faults int }

// toy is a simulation whose seeds draw 40 faults of four kinds. It fails as soon as "b" was done twice and "c" after that;
// seed 3 fails in another way, at once.
var toy = Simulation[toyStats]{
	Test: "TestToy", Folder: "./test/sim/seeds", Default: 6, Collect: 8, Kinds: []string{"a", "b", "c", "d"}, Clients: 4,
	Run: func(seed uint64, faults *Faults, verbose io.Writer) (r Result[toyStats]) {
		rng := rand.New(rand.NewPCG(seed, 0))
		b := 0
		if seed == 3 && faults.Clients(4) >= 2 {
			r.Violation = errors.New(`INVARIANT "three": at once`)
		}
		for range 40 {
			kind := string(rune('a' + rng.IntN(4)))
			if r.Violation != nil || faults.Spare(kind) {
				continue
			}
			r.Stats.faults++
			switch {
			case kind == "b":
				b++
			case kind == "c" && b >= 2:
				r.Violation = fmt.Errorf(`INVARIANT "b, b, c": after %d faults`, r.Stats.faults)
			}
		}
		return r
	},
	Add:    func(total, s *toyStats) { total.faults += s.faults },
	Counts: func(total *toyStats) map[string]int { return map[string]int{"toys": total.faults} },
}

const toyVariable = "MQ_SIM_TOY"

// TestToy is run by TestShrink: its seeds fail.
func TestToy(t *testing.T) {
	if os.Getenv(toyVariable) == "" {
		t.Skip("its seeds fail on purpose; TestShrink runs them")
	}
	toy.Check(t)
}

// runToy runs TestToy in a process of its own.
func runToy(t *testing.T, variables ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestToy$", "-test.v")
	cmd.Env = append(append(os.Environ(), toyVariable+"=1"), variables...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A seed that fails is shrunk, printed as a command, and fails with that command, by the faults that matter alone.
func TestShrink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	out, err := runToy(t, "MQ_SIM_SHRINK=1", report.Variable+"="+path)
	if err == nil {
		t.Fatalf("the seeds do not fail:\n%s", out)
	}
	lines, err := report.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var again []string
	counts := make(map[string]int64)
	for _, l := range lines {
		switch l.Kind {
		case report.KindAgain:
			again = append(again, l.What)
		case report.KindCount:
			counts[l.What] += l.Count
		}
	}
	if counts["seeds"] != 6 || counts["seeds that fail"] != 6 || counts["toys"] == 0 || counts["fault b"] < 10 {
		t.Errorf("counts: %v", counts)
	}
	if len(again) != 2 {
		t.Fatalf("%d commands, want one for each kind of violation: %q\n%s", len(again), again, out)
	}
	shape := regexp.MustCompile(`^MQ_SIM_SEED=1 MQ_SIM_UNTIL=(\d+) MQ_SIM_WITHOUT=a,d MQ_SIM_CLIENTS=1 go test -v -run '\^TestToy\$' \./test/sim/seeds$`)
	if !shape.MatchString(again[0]) {
		t.Errorf("command: %s", again[0])
	}
	if want := "MQ_SIM_SEED=3 MQ_SIM_UNTIL=0 MQ_SIM_CLIENTS=2 go test"; !strings.HasPrefix(again[1], want) {
		t.Errorf("command: %s, want %s...", again[1], want)
	}
	for i, faults := range []string{`map\[b:\d+ c:\d+\]`, `0 faults of 0 drawn`} {
		before, _, _ := strings.Cut(again[i], " go test")
		if out, err := runToy(t, strings.Fields(before)...); err == nil || !regexp.MustCompile(faults).MatchString(out) || !strings.Contains(out, "INVARIANT") {
			t.Errorf("%s: %v, want %s...:\n%s", again[i], err, faults, out)
		}
	}
}

func TestUnknownKind(t *testing.T) {
	if out, err := runToy(t, "MQ_SIM_SEED=1", "MQ_SIM_WITHOUT=a,x"); err == nil || !strings.Contains(out, `there is no kind "x"`) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// model is a seed that draws faults of these kinds, in this order.
func model(kinds string, fails func(done string) string) func(narrow) outcome {
	return func(n narrow) outcome {
		done := ""
		for i, kind := range strings.Split(kinds, "") {
			if (n.until < 0 || i < n.until) && !slices.Contains(n.without, kind) {
				done += kind
			}
		}
		o := outcome{Class: fails(done), Done: len(done)}
		for kind := range strings.SplitSeq("abcdef", "") {
			if strings.Contains(done, kind) {
				o.Kinds = append(o.Kinds, kind)
			}
		}
		return o
	}
}

func TestShrinker(t *testing.T) {
	contains := func(what string) func(string) string {
		return func(done string) string {
			if strings.Contains(done, what) {
				return "X"
			}
			return ""
		}
	}
	for _, row := range []struct {
		name  string
		kinds string
		fails func(string) string
		want  narrow
		done  int
	}{
		{"the first fault", "abcabc", contains("a"), narrow{until: 1}, 1},
		{"the last fault", "bbbbbbba", contains("a"), narrow{until: 8, without: []string{"b"}}, 1},
		{"no fault", "abcabc", contains(""), narrow{until: 0}, 0},
		{
			"kinds between others",
			"dacbdacbdacb", func(done string) string {
				if strings.Count(done, "b") < 2 {
					return ""
				}
				return "X"
			}, narrow{until: 8, without: []string{"a", "c", "d"}}, 2,
		},
		{
			"another violation comes first",
			"abcabc", func(done string) string {
				switch {
				case strings.Contains(done, "a") && !strings.Contains(done, "b"):
					return "Y"
				case strings.Contains(done, "c"):
					return "X"
				}
				return ""
			}, narrow{until: 3, without: []string{"a", "b"}}, 1,
		},
	} {
		s := &shrinker{class: "X", best: narrow{until: -1}, over: func() bool { return false }, try: model(row.kinds, row.fails)}
		if !s.run(0) || fmt.Sprint(s.best) != fmt.Sprint(row.want) || s.found.Done != row.done {
			t.Errorf("%s: %+v with %d faults, want %+v with %d", row.name, s.best, s.found.Done, row.want, row.done)
		}
	}
}

// What does not fail again, and what takes too long, ends the search.
func TestShrinkerEnds(t *testing.T) {
	tries := 0
	s := &shrinker{class: "X", best: narrow{until: -1}, over: func() bool { return false }, try: func(narrow) outcome { tries++; return outcome{} }}
	if s.run(8) || tries != 1 {
		t.Errorf("a seed that does not fail: %d tries, %+v", tries, s.best)
	}
	tries = 0
	s = &shrinker{class: "X", best: narrow{until: -1}, over: func() bool { return tries >= 4 }, try: func(n narrow) outcome {
		tries++
		return outcome{Class: "X", Done: 9, Kinds: []string{"a"}}
	}}
	if !s.run(8) || tries > 4 {
		t.Errorf("no time: %d tries", tries)
	}
	once := false // it fails once, and never again
	s = &shrinker{class: "X", best: narrow{until: -1}, over: func() bool { return false }, try: func(narrow) outcome {
		if once {
			return outcome{}
		}
		once = true
		return outcome{Class: "X", Done: 9, Kinds: []string{"a"}}
	}}
	if !s.run(2) || s.best.until != -1 {
		t.Errorf("it failed once: %+v", s.best)
	}
}
