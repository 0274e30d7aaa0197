package mutation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/process"
)

// TestMutations puts each fault of the list into the code, as far as MQ_MUTATIONS asks: "all", or names separated by
// commas. By default it only sees that all of them still apply: each text is once in its file, and what is changed is Go.
func TestMutations(t *testing.T) {
	names := os.Getenv("MQ_MUTATIONS")
	if names == "" {
		cfg := Config{}
		list, err := cfg.prepare()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d mutations apply", len(list))
		return
	}
	process.Dir(t) // the checks need a disk
	cfg := Config{Log: logWriter{t}}
	if names != "all" {
		cfg.Names = strings.Split(names, ",")
	}
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		t.Errorf("%d mutations have survived, and %d could not be judged:\n%s", report.Survived, report.Errors, report.Markdown())
	}
}

// logWriter writes to the log of a test.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// The list is large, names real packages and guarantees, and is written as it is read.
func TestList(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 40 {
		t.Errorf("there are %d mutations, and 40 are wanted", len(list))
	}
	root, err := findRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	promises, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		m := &list[i]
		if !bytes.Contains(promises, []byte("| **"+m.Guarantee+"** |")) {
			t.Errorf("%s: there is no guarantee %s", m.Name, m.Guarantee)
		}
		checks := append(append([]Check{}, m.Checks...), m.Wide...)
		for _, c := range append(checks, wideFor(m)...) {
			if tests, err := filepath.Glob(filepath.Join(root, c.Package, "*_test.go")); err != nil || len(tests) == 0 {
				t.Errorf("%s: %s has no tests: %v", m.Name, c.Package, err)
			}
		}
	}
}

// fixture returns a configuration for the module in testdata.
func fixture(t *testing.T, names ...string) Config {
	t.Helper()
	list, err := load(os.DirFS("testdata"), "list")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("testdata", "module"))
	if err != nil {
		t.Fatal(err)
	}
	return Config{Names: names, root: root, list: list}
}

// TestRun runs mutations of a small module of which it is known what must come of them.
func TestRun(t *testing.T) {
	var log bytes.Buffer
	cfg := fixture(t)
	cfg.Log = &log
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	before := tree(t, cfg.root)
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"caught": "sum TestSum", "crash": "sum TestSum", "crash-beside": "sum TestSum (crashed)", "hangs": "sum TestSum (timed out)",
		"survives": "", "environment": "TestEnvironment fails without the fault, too", "slow": "TestSlow (timed out) fails without the fault, too",
		"killed": "something has killed it", "no-compile": "it does not compile", "no-test": "it ran no test", "only-skipped": "all of its tests were skipped",
	}
	for _, r := range report.Results {
		w, ok := want[r.Name]
		if !ok {
			t.Errorf("%s: unexpected", r.Name)
			continue
		}
		delete(want, r.Name)
		bad := slices.Contains([]string{"no-compile", "no-test", "only-skipped", "environment", "slow", "killed"}, r.Name)
		switch {
		case bad && (!strings.Contains(r.Err, w) || r.Survived || len(r.CaughtBy) > 0):
			t.Errorf("%s: want the error %q, got %+v", r.Name, w, r)
		case !bad && (r.Err != "" || strings.Join(r.CaughtBy, ", ") != w || r.Survived != (w == "")):
			t.Errorf("%s: want it caught by %q, got %+v", r.Name, w, r)
		}
		if !strings.Contains(log.String(), r.Name) || !strings.Contains(report.Markdown(), "| "+r.Name+" |") {
			t.Errorf("%s is not in the log or the table:\n%s\n%s", r.Name, log.String(), report.Markdown())
		}
	}
	for name := range want {
		t.Errorf("%s: no result", name)
	}
	if report.Caught != 4 || report.Survived != 1 || report.Errors != 6 || report.OK() {
		t.Errorf("counted %d caught, %d survived, %d errors", report.Caught, report.Survived, report.Errors)
	}
	if after := tree(t, cfg.root); after != before {
		t.Errorf("the files of the module were changed: %s, and now %s", before, after)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	text, err := json.Marshal(report)
	if err != nil || !bytes.Contains(text, []byte(`"caught_by":["sum TestSum"]`)) {
		t.Errorf("as JSON: %v\n%s", err, text)
	}
}

// A test that fails by chance without a fault gets more rounds, and the fault is noticed only within one of them.
func TestRounds(t *testing.T) {
	for _, c := range []struct {
		ends     string // of the runs: with the fault, without it, and so on; r is red
		left     string // runs that there were not
		by, err  string
		survived bool
	}{
		{ends: "rgr", left: "r", by: "sum TestScripted"},
		{ends: "rrrgr", left: "r", by: "sum TestScripted"},
		{ends: "rrrrrgr", left: "r", by: "sum TestScripted"},
		{ends: "gr", left: "r", survived: true},
		{ends: "rrgr", left: "r", survived: true}, // neither round has both
		{ends: "rrrrrrrg", left: "rg", err: "TestScripted fails without the fault, too"},
	} {
		file := filepath.Join(t.TempDir(), "ends")
		if err := os.WriteFile(file, []byte(c.ends), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := fixture(t, "survives")
		cfg.list[slices.IndexFunc(cfg.list, func(m Mutation) bool { return m.Name == "survives" })].Checks = []Check{
			{Package: "./sum", Run: "TestScripted", Env: []string{"MQ_TEST_SCRIPT=" + file}, Timeout: time.Minute},
		}
		report, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := report.Results[0]
		if strings.Join(r.CaughtBy, ", ") != c.by || r.Survived != c.survived || (r.Err != "") != (c.err != "") || !strings.Contains(r.Err, c.err) || string(left) != c.left {
			t.Errorf("%s: got %+v, and left %q", c.ends, r, left)
		}
	}
}

// tree returns the content of all files of a folder.
func tree(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		b.WriteString(name + "\n" + string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// In the wide form all checks run, and all tests that notice are named.
func TestWide(t *testing.T) {
	cfg := fixture(t, "caught")
	cfg.Wide = true
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if by := strings.Join(report.Results[0].CaughtBy, ", "); by != "sum TestParts, sum TestSum" {
		t.Errorf("caught by %q: %+v", by, report.Results[0])
	}
}

// A check that is red without a mutation is found before any mutation is tried.
func TestBaseline(t *testing.T) {
	cfg := fixture(t, "crash")
	cfg.Baseline = true
	if report, err := Run(t.Context(), cfg); err != nil || report.Caught != 1 {
		t.Errorf("with a green baseline: %v, %+v", err, report)
	}
	cfg = fixture(t, "crash", "environment")
	cfg.Baseline = true
	report, err := Run(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "MQ_TEST_WORD=red") || len(report.Results) > 0 {
		t.Errorf("with a red baseline: %v, %+v", err, report)
	}
}

// When the context ends, so does all that runs, and nothing is called caught or survived that was not tried to its end.
func TestCanceled(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	cfg := fixture(t, "survives")
	cfg.list[slices.IndexFunc(cfg.list, func(m Mutation) bool { return m.Name == "survives" })].Checks = []Check{
		{Package: "./sum", Run: "TestBlocks", Env: []string{"MQ_TEST_MARK=" + mark}, Timeout: time.Hour},
	}
	type end struct {
		report Report
		err    error
	}
	ended := make(chan end)
	go func() { // awaited below
		report, err := Run(ctx, cfg)
		ended <- end{report, err}
	}()
	pid := 0
	for deadline := time.Now().Add(2 * time.Minute); pid == 0; {
		text, _ := os.ReadFile(mark) // not there yet
		pid, _ = strconv.Atoi(string(text))
		if time.Now().After(deadline) {
			t.Fatal("the check does not begin")
		}
		<-time.After(pollEvery)
	}
	cancel()
	e := <-ended
	if !errors.Is(e.err, context.Canceled) || len(e.report.Results) > 0 {
		t.Errorf("got %v, %+v", e.err, e.report)
	}
	// The process was killed with its parents, and is gone as soon as whoever inherits it has noticed.
	for deadline := time.Now().Add(time.Minute); alive(pid); <-time.After(pollEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

// pollEvery is how often a condition is looked at.
const pollEvery = 10 * time.Millisecond

// alive reports whether a process runs. One that has ended, and of which nobody has taken note, does not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(state, "Z")
}

// A list that does not fit the code is an error that names the mutation.
func TestStale(t *testing.T) {
	edit := func(file, old, text string) []Mutation {
		return []Mutation{{Name: "stale-one", Edits: []Edit{{File: file, Old: old, New: text}}}}
	}
	for what, list := range map[string][]Mutation{
		"is 0 times":  edit("sum/sum.go", "	nothing of the kind\n", ""),
		"is 8 times":  edit("sum/sum_test.go", "}\n", ""),
		"is no Go":    edit("sum/sum.go", "	total := 0\n", "	total :=\n"),
		"no such":     edit("sum/none.go", "	total := 0\n", ""),
		"is 0  times": edit("sum/sum.go", "otal := 0\n", ""), // no whole line
	} {
		cfg := fixture(t)
		cfg.list = list
		_, err := Run(t.Context(), cfg)
		if what = strings.Replace(what, "  ", " ", 1); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "stale-one") {
			t.Errorf("want an error with %q that names the mutation, got %v", what, err)
		}
	}
	cfg := fixture(t, "nobody")
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a name that is not there: %v", err)
	}
}

func TestTimes(t *testing.T) {
	for _, c := range []struct {
		text, lines string
		want        int
	}{
		{"\na\nb\n", "a\n", 1},
		{"\na\na\n", "a\n", 2}, // they share the end of a line
		{"\na\na\na\n", "a\na\n", 2},
		{"\nba\n", "a\n", 0},
		{"\n", "a\n", 0},
	} {
		if got := times(c.text, c.lines); got != c.want {
			t.Errorf("%q is %d times in %q, want %d", c.lines, got, c.text, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	head := "what: A word.\nguarantee: G1\ncheck: ./a TestA|TestB MQ_X=1 tags=race -n=3 timeout=5s mqd\nwide: ./b TestC\n"
	m, err := parse("name", head+"\n@@ a/b.go\n stays\n-goes\n+comes\n\n-end\n\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (Edit{File: "a/b.go", Old: "stays\ngoes\n\nend\n", New: "stays\ncomes\n\n"}); m.Edits[0] != want {
		t.Errorf("got %q, want %q", m.Edits[0], want)
	}
	if got, want := m.Checks[0].String(), "./a TestA|TestB MQ_X=1 tags=race -n=3 timeout=5s mqd"; got != want {
		t.Errorf("got the check %q, want %q", got, want)
	}
	if m.What != "A word." || m.Guarantee != "G1" || len(m.Wide) != 1 || m.Wide[0].Timeout != timeoutDefault {
		t.Errorf("got %+v", m)
	}
	for _, text := range []string{
		"", head, "what: A word.\n@@ a.go\n-x\n",
		head + "@@ a.go\n stays\n",
		head + "@@ ../a.go\n-x\n",
		head + "@@ a.txt\n-x\n",
		head + "@@ a.go\n*x\n",
		head + "odd: x\n@@ a.go\n-x\n",
		head + "check: ./a\n@@ a.go\n-x\n",
		head + "check: ./a TestA what\n@@ a.go\n-x\n",
		head + "check: ./a TestA timeout=soon\n@@ a.go\n-x\n",
		strings.Replace(head, "G1", "1", 1) + "@@ a.go\n-x\n",
		"no head\n" + head + "@@ a.go\n-x\n",
	} {
		if m, err := parse("name", text); err == nil {
			t.Errorf("%q is taken: %+v", text, m)
		}
	}
}
