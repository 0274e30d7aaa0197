package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// toyBinary is the tests of testdata/toy, compiled once.
var toyBinary = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("testdata/toy")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "mq-toy-")
	if err != nil {
		return "", err
	}
	r := &round{ctx: context.Background(), root: root, work: dir, built: new(binaries)}
	return r.build(scenario{pkg: "./toys"})
})

func TestMain(m *testing.M) {
	code := m.Run()
	if binary, err := toyBinary(); err == nil {
		os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

// toyTorture is a run over the tests of testdata/toy.
func toyTorture(t *testing.T, ctx context.Context, opts options, scenarios ...scenario) *torture {
	t.Helper()
	root, err := filepath.Abs("testdata/toy")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := toyBinary()
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if err := os.Link(binary, filepath.Join(work, filepath.Base(binary))); err != nil {
		t.Fatal(err)
	}
	opts.folder, opts.seed, opts.short = t.TempDir(), 17, opts.hours == 0
	for i := range scenarios {
		scenarios[i].pkg, scenarios[i].group = "./toys", "toy"
	}
	return &torture{
		ctx: ctx, opts: opts, scenarios: scenarios, out: io.Discard, now: time.Now, root: root, work: work,
		built:   &binaries{made: map[string]error{filepath.Join(work, filepath.Base(binary)): nil}},
		summary: summary{Started: time.Now(), Mode: opts.mode(), Seed: opts.seed},
	}
}

// files returns the reports.
func (t *torture) files(tt *testing.T) (md string, decoded summary) {
	tt.Helper()
	if err := t.write(); err != nil {
		tt.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(t.opts.folder, "report.md"))
	if err != nil {
		tt.Fatal(err)
	}
	j, err := os.ReadFile(filepath.Join(t.opts.folder, "report.json"))
	if err != nil {
		tt.Fatal(err)
	}
	if err := json.Unmarshal(j, &decoded); err != nil {
		tt.Fatal(err)
	}
	return string(b), decoded
}

func TestRun(t *testing.T) {
	t.Setenv("MQ_MQD", "")
	t.Setenv("MQ_REQUIRE_ALL", "")
	size := []size{{name: "MQ_SIZE", short: 5, long: 50}}
	all := []scenario{
		{name: "good", what: "what|that", run: "^TestPasses$", sizes: size},
		{name: "bad", run: "^(TestFails|TestPasses)$", sizes: size},
		{name: "none", run: "^TestMissing$"},
		{name: "skips", run: "^TestSkips$"},
		{name: "exits", run: "^TestExits$"},
		{name: "idle", run: "^TestIdle$", checkers: byHistory},
		{name: "breaks", run: "^TestBreaks$"},
	}
	run := toyTorture(t, t.Context(), options{keepGoing: true}, all...)
	run.rounds()
	md, report := run.files(t)
	if report.Passed || len(report.Results) != len(all) || len(report.Rows) != len(all) {
		t.Fatalf("passed %v, %d results", report.Passed, len(report.Results))
	}
	good, bad, none, skips, exits, idle, breaks := report.Results[0], report.Results[1], report.Results[2], report.Results[3], report.Results[4], report.Results[5], report.Results[6]
	if good.bad() || good.Passed != 1 || good.Counts["kills"] != 1003 || len(good.Figures) != 1 || good.Kept != "" || len(good.Summary) != 1 {
		t.Errorf("good: %+v", good)
	}
	wantAgain := []string{
		"MQ_SIM_SEED=1 go test ./toys",
		"MQ_SIZE=5 MQ_SEED=" + strconv.FormatUint(derive(17, "bad", 1), 10) + " go test -count=1 -v -timeout 2h -run '^TestFails$' ./toys",
	}
	if !bad.bad() || bad.Passed != 1 || !slices.Equal(bad.Failed, []string{"TestFails/below", "TestFails"}) || len(bad.Violations) != 1 ||
		!slices.Equal(bad.Again, wantAgain) || bad.Error != "" {
		t.Errorf("bad: %+v", bad)
	}
	if _, err := os.Stat(filepath.Join(bad.Kept, "rest")); err != nil {
		t.Errorf("what a failed test leaves is not kept: %v", err)
	}
	if none.Error != "no test ran" {
		t.Errorf("none: %+v", none)
	}
	if skips.bad() || !slices.Equal(skips.Skipped, []string{"TestSkips"}) {
		t.Errorf("skips: %+v", skips)
	}
	if !slices.Equal(exits.Failed, []string{"TestExits"}) {
		t.Errorf("exits: %+v", exits)
	}
	if want := "it proves nothing, for these are 0: kills, records acknowledged"; idle.Error != want || idle.Passed != 1 {
		t.Errorf("idle: %+v, want the error %q", idle, want)
	}
	if want := []string{"TestBreaks: lost 2, group offsets wrong 10"}; !slices.Equal(breaks.Violations, want) {
		t.Errorf("breaks: %+v, want the violations %q", breaks, want)
	}
	log, err := os.ReadFile(filepath.Join(run.opts.folder, good.Output))
	if want := "of MQ_SEED=" + strconv.FormatUint(derive(17, "good", 1), 10) + " and MQ_SIZE=5"; err != nil || !strings.Contains(string(log), want) {
		t.Errorf("%v: %s, want %s", err, log, want)
	}
	for _, want := range []string{
		"# Torture: failed", "| seed | 17 |", `what\|that`, "kills 1,003", "| nothing |", "- bad: failed: TestFails\n", "- bad: TestFails: a record is lost\n",
		"- skips: skipped: TestSkips\n", "**not run in full**", "| good | TestPasses: slowest start | 0.25 s |", "    " + wantAgain[1] + "\n",
		"`go run ./test/torture -short -seed 17`", "- bad: all of its output is in 001-bad.log beside this file, and what it left in " + bad.Kept + "\n",
	} {
		if !strings.Contains(md, want) {
			t.Errorf("the report lacks %q:\n%s", want, md)
		}
	}
}

// What is skipped fails the run unless that is allowed, and a failure ends it unless it is to go on.
func TestVerdict(t *testing.T) {
	skips, good, bad := scenario{name: "skips", run: "^TestSkips$"}, scenario{name: "good", run: "^TestPasses$"}, scenario{name: "bad", run: "^TestFails$"}
	for _, row := range []struct {
		name      string
		opts      options
		scenarios []scenario
		passed    bool
		results   int
	}{
		{"all is well", options{}, []scenario{good}, true, 1},
		{"skipped", options{}, []scenario{skips, good}, false, 1},
		{"skipped, and that is allowed", options{allowSkip: true}, []scenario{skips, good}, true, 2},
		{"failed", options{}, []scenario{bad, good}, false, 1},
		{"failed, and goes on", options{keepGoing: true}, []scenario{bad, good}, false, 2},
		{"nothing", options{}, nil, false, 0},
	} {
		run := toyTorture(t, t.Context(), row.opts, row.scenarios...)
		if run.rounds(); run.summary.Passed != row.passed || len(run.summary.Results) != row.results {
			t.Errorf("%s: passed %v with %d results", row.name, run.summary.Passed, len(run.summary.Results))
		}
	}
}

// An interrupt ends the tests and all that they started, and there is a report.
func TestInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	pids := filepath.Join(t.TempDir(), "pid")
	run := toyTorture(t, ctx, options{keepGoing: true},
		scenario{name: "hangs", run: "^TestHangs$", env: []string{"MQ_PIDS=" + pids}}, scenario{name: "good", run: "^TestPasses$"})
	go func() {
		await(t, func() bool { b, _ := os.ReadFile(pids); return len(b) > 0 })
		interrupt()
	}()
	run.rounds()
	md, report := run.files(t)
	if report.Passed || !report.Interrupted || len(report.Results) != 1 || report.Results[0].Error != interrupted || !strings.HasPrefix(md, "# Torture: interrupted\n") ||
		len(report.Results[0].Failed) > 0 || len(report.Results[0].Again) > 0 {
		t.Errorf("%+v\n%s", report, md)
	}
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !alive(pid) })
}

// Scenarios that wait run one at a time, those that fill beside them, and those that run alone after all others. A failure
// ends what runs beside it.
func TestLanes(t *testing.T) {
	var mu sync.Mutex
	running, most, together, order := make(map[string]bool), 0, false, []string(nil)
	met := make(chan struct{})
	do := func(r *round, s scenario) result {
		mu.Lock()
		order = append(order, s.name)
		running[s.name] = true
		most = max(most, len(running))
		both := running["a"] && running["x"]
		if s.lane == alone && len(running) > 1 {
			t.Errorf("beside %s: %v", s.name, running)
		}
		if both {
			together = true
			close(met)
		}
		mu.Unlock()
		if s.name == "a" || s.name == "x" {
			select {
			case <-met:
			case <-r.ctx.Done():
			}
		}
		mu.Lock()
		defer mu.Unlock()
		delete(running, s.name)
		return result{Passed: 1}
	}
	run := toyTorture(t, t.Context(), options{},
		scenario{name: "q", special: do, lane: alone}, scenario{name: "a", special: do}, scenario{name: "x", special: do, lane: fills},
		scenario{name: "b", special: do}, scenario{name: "y", special: do, lane: fills})
	run.rounds()
	if !run.summary.Passed || !together || most > 2 || len(order) != 5 || order[4] != "q" {
		t.Errorf("passed %v, together %v, %d at a time, order %v", run.summary.Passed, together, most, order)
	}
	waits := func(r *round, s scenario) result {
		<-r.ctx.Done()
		return result{}
	}
	run = toyTorture(t, t.Context(), options{}, scenario{name: "bad", run: "^TestFails$"}, scenario{name: "x", special: waits, lane: fills},
		scenario{name: "q", special: do, lane: alone})
	run.rounds()
	if run.summary.Passed || run.summary.Interrupted || len(run.summary.Results) != 1 || run.summary.Results[0].Scenario != "bad" {
		t.Errorf("after a failure: %+v", run.summary.Results)
	}
}

// alive reports whether a process runs; one that has ended and that nobody waits for does not.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, state, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// await waits for a condition.
func await(t *testing.T, ok func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Error("it does not come")
			return
		}
	}
}

// In a long run each round has seeds of its own, some scenarios are in the first one only, short rounds make the next ones
// grow, and no scenario begins when the time is up.
func TestRounds(t *testing.T) {
	type step struct {
		name string
		grow float64
	}
	var got []step
	clock := time.Unix(1_700_000_000, 0)
	takes := func(minutes int) func(*round, scenario) result {
		return func(r *round, s scenario) result {
			got = append(got, step{s.name, r.grow})
			clock = clock.Add(time.Duration(minutes) * time.Minute)
			return result{Passed: 1}
		}
	}
	run := toyTorture(t, t.Context(), options{hours: 0.65},
		scenario{name: "a", special: takes(3)}, scenario{name: "once", special: takes(5), once: true}, scenario{name: "b", special: takes(5)})
	run.now, run.summary.Started = func() time.Time { return clock }, clock
	run.rounds()
	// Rounds of 13, 8, 8, 8 minutes, and one of which the second half would come too late.
	want := []step{{"a", 1}, {"once", 1}, {"b", 1}, {"a", 1}, {"b", 1}, {"a", 1.25}, {"b", 1.25}, {"a", 1.5625}, {"b", 1.5625}, {"a", 1.953125}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	seeds := make(map[uint64]bool)
	for _, r := range run.summary.Results {
		seeds[r.Seed] = true
	}
	if !run.summary.Passed || len(seeds) != len(got) {
		t.Errorf("passed %v, %d seeds", run.summary.Passed, len(seeds))
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-short", "-hours", "1"}, {"-hours", "-1"}, {"x"}, {"-x"}, {"-only", "nothing-like-this"}} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit status %d", args, code)
		}
	}
	var b strings.Builder
	if code := run(t.Context(), []string{"-list", "-only", "sim"}, &b, io.Discard); code != 0 || strings.Count(b.String(), "\n") != 2 {
		t.Errorf("-list: %d\n%s", code, b.String())
	}
	one, _ := parse([]string{}, io.Discard)
	other, _ := parse([]string{"-seed", "17"}, io.Discard)
	if one.seed == 0 || other.seed != 17 {
		t.Errorf("seeds %d, %d", one.seed, other.seed)
	}
}

// Only the files of an earlier report are removed.
func TestClear(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"report.md", "report.json", "001-kill.log", "012-kill.jsonl", "notes.md", "kill.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := clear(dir); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 2 || list[0].Name() != "kill.log" || list[1].Name() != "notes.md" {
		t.Errorf("%v, %v", list, err)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	got := countsText(map[string]int64{"seeds": 2000, "fault kill": 12, "fault cut": 3})
	if want := "seeds 2,000; faults: cut 3, kill 12"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
