package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var testName = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// source is the text of all Go files of a package.
func source(t *testing.T, pkg string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", "..", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func testsOf(t *testing.T, pkg string) (list []string) {
	for _, match := range testName.FindAllStringSubmatch(source(t, pkg), -1) {
		list = append(list, match[1])
	}
	return list
}

// Each scenario says all about itself, and names tests, variables and guarantees that exist.
func TestTable(t *testing.T) {
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	// What packages read through others.
	elsewhere := source(t, "test/process") + source(t, "test/sim/seeds")
	seen := make(map[string]bool)
	for _, s := range table() {
		if seen[s.name] || s.name == "" || s.group == "" || s.what == "" || s.nemeses == "" || s.checkers == "" {
			t.Errorf("%q: there are two, or it does not say all", s.name)
		}
		seen[s.name] = true
		for g := range strings.FieldsSeq(s.guarantees) {
			if !strings.Contains(string(guarantees), "**"+g+"**") {
				t.Errorf("%s: there is no %s", s.name, g)
			}
		}
		if s.special != nil {
			continue
		}
		run, err := regexp.Compile(s.run)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		tests := testsOf(t, s.folder())
		if !slices.ContainsFunc(tests, run.MatchString) {
			t.Errorf("%s: %s matches no test of %s", s.name, s.run, s.pkg)
		}
		if strings.HasPrefix(s.run, "^(") {
			for name := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(s.run, "^("), ")$"), "|") {
				if !slices.ContainsFunc(tests, func(test string) bool { return test == name }) {
					t.Errorf("%s: there is no %s in %s", s.name, name, s.pkg)
				}
			}
		}
		text := source(t, s.folder()) + elsewhere
		for _, variable := range s.variables(true, 1) {
			if name, _, _ := strings.Cut(variable, "="); !strings.Contains(text, `"`+name+`"`) {
				t.Errorf("%s: nothing in %s reads %s", s.name, s.pkg, name)
			}
		}
		for _, v := range s.sizes {
			if v.short <= 0 || v.long < v.short {
				t.Errorf("%s: %+v", s.name, v)
			}
		}
	}
}

// A test that is in no scenario is never tried for long; one that is in two is tried twice.
func TestEveryTestIsInOneScenario(t *testing.T) {
	for _, pkg := range []string{"./test/e2e", "./test/fault", "./test/soak", "./test/crowd", "./test/security"} {
		for _, test := range testsOf(t, pkg) {
			var in []string
			for _, s := range table() {
				if s.pkg == pkg && regexp.MustCompile(s.run).MatchString(test) {
					in = append(in, s.name)
				}
			}
			if len(in) != 1 {
				t.Errorf("%s of %s is in the scenarios %v", test, pkg, in)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	all := []scenario{{name: "a", group: "x"}, {name: "b", group: "x"}, {name: "c", group: "y"}}
	for only, want := range map[string]string{"": "abc", "x": "ab", "c,a": "ac", "y,b": "bc", "z": "", "a,z": ""} {
		list, err := choose(all, only)
		got := ""
		for _, s := range list {
			got += s.name
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("-only %s: %q, %v, want %q", only, got, err, want)
		}
	}
}

// Seeds follow from the seed of the run, and differ between scenarios and rounds.
func TestDerive(t *testing.T) {
	if got, want := derive(17, "kill", 1), uint64(0x7a732739ad20); got != want {
		t.Errorf("%#x, want %#x: a report that was written before cannot be repeated", got, want)
	}
	seen := make(map[uint64]bool)
	for seed := range uint64(4) {
		for _, name := range []string{"a", "b"} {
			for number := range 4 {
				seen[derive(seed, name, number)] = true
			}
		}
	}
	if len(seen) != 32 {
		t.Errorf("%d seeds, want 32", len(seen))
	}
	for _, seed := range []uint64{0, 1<<64 - 1} {
		if n := firstSeed(seed); n < 1 || n > 1_000_000_000 {
			t.Errorf("first seed %d", n)
		}
	}
}

func TestSize(t *testing.T) {
	v := size{name: "MQ_X", short: 3, long: 10, unit: "s"}
	fixed := size{name: "MQ_Y", short: 3, long: 10, fixed: true}
	for _, row := range []struct{ got, want string }{
		{v.text(true, 2), "MQ_X=3s"}, {v.text(false, 1), "MQ_X=10s"}, {v.text(false, 1.25), "MQ_X=13s"}, {fixed.text(false, 2), "MQ_Y=10"},
	} {
		if row.got != row.want {
			t.Errorf("%s, want %s", row.got, row.want)
		}
	}
}
