package report

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	t.Setenv(Variable, path)
	Count(t, "kills", 3)
	Count(t, "kills", 1<<40)
	Figure(t, "slowest start", 0.25, "s")
	Violation(t, "record 3 of a is \"gone\"\nand more")
	Again(t, "MQ_SEED=1 go test ./x")
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []Line{
		{t.Name(), KindCount, "kills", 3, 0, ""},
		{t.Name(), KindCount, "kills", 1 << 40, 0, ""},
		{t.Name(), KindFigure, "slowest start", 0, 0.25, "s"},
		{t.Name(), KindViolation, "record 3 of a is \"gone\"\nand more", 0, 0, ""},
		{t.Name(), KindAgain, "MQ_SEED=1 go test ./x", 0, 0, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNothingWithoutAFile(t *testing.T) {
	t.Setenv(Variable, "")
	t.Chdir(t.TempDir())
	Count(t, "kills", 3)
	if list, err := os.ReadDir("."); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// Lines that are written at the same time stay whole.
func TestManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	t.Setenv(Variable, path)
	const writers, each = 8, 50
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				Count(t, strings.Repeat("x", 5000), 1)
			}
		})
	}
	all.Wait()
	got, err := Read(path)
	if err != nil || len(got) != writers*each {
		t.Errorf("%d lines, want %d: %v", len(got), writers*each, err)
	}
}

func TestReadWhatIsNotWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	if got, err := Read(path); len(got) != 0 || err != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	whole := `{"test":"T","kind":"count","what":"kills","count":1}` + "\n"
	for cut := range len(whole) {
		if err := os.WriteFile(path, []byte(whole+whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); len(got) != 1 || err != nil {
			t.Errorf("cut at %d: %v, %v", cut, got, err)
		}
	}
	if err := os.WriteFile(path, []byte(whole+"{]\n"+whole), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), ":2:") {
		t.Errorf("a line that is no JSON: %v", err)
	}
}

// What cannot be told fails the test that tells it.
func TestErrorsAreTold(t *testing.T) {
	dir := t.TempDir()
	for _, row := range []struct {
		name, path string
		value      float64
	}{
		{"not a number", filepath.Join(dir, "report"), math.NaN()},
		{"no folder", filepath.Join(dir, "missing", "report"), 1},
	} {
		t.Setenv(Variable, row.path)
		r := &recorder{TB: t}
		if Figure(r, "x", row.value, "s"); !r.failed {
			t.Errorf("%s: the test does not fail", row.name)
		}
	}
}

// recorder notes that a test would fail.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
