// Package report tells the torture command what a test did: how often, with what figures, what was found, and how to do
// it again. It appends lines of JSON to the file that MQ_REPORT names, each with one write, so that any number of tests
// and processes may share the file. Without MQ_REPORT it does nothing.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// Variable names the environment variable that names the file.
const Variable = "MQ_REPORT"

// The kinds of lines.
const (
	KindCount     = "count"     // something was done Count times
	KindFigure    = "figure"    // something was measured
	KindViolation = "violation" // a promise was broken
	KindAgain     = "again"     // a command that repeats a failure
)

// Line is one line of the file.
type Line struct {
	Test  string  `json:"test"`
	Kind  string  `json:"kind"`
	What  string  `json:"what"` // what was counted, measured or found; the command
	Count int64   `json:"count,omitempty"`
	Value float64 `json:"value,omitempty"`
	Unit  string  `json:"unit,omitempty"` // of Value
}

// Count tells that something was done n times. Counts of the same name add up.
func Count(t testing.TB, what string, n int64) {
	t.Helper()
	write(t, Line{Kind: KindCount, What: what, Count: n})
}

// Figure tells what was measured.
func Figure(t testing.TB, name string, value float64, unit string) {
	t.Helper()
	write(t, Line{Kind: KindFigure, What: name, Value: value, Unit: unit})
}

// Violation tells of a promise that was broken.
func Violation(t testing.TB, what string) {
	t.Helper()
	write(t, Line{Kind: KindViolation, What: what})
}

// Again tells a command that repeats a failure.
func Again(t testing.TB, command string) {
	t.Helper()
	write(t, Line{Kind: KindAgain, What: command})
}

// write appends a line. A report that cannot be written fails the test: a figure that is missing looks like one of zero.
func write(t testing.TB, l Line) {
	t.Helper()
	path := os.Getenv(Variable)
	if path == "" {
		return
	}
	l.Test = t.Name()
	if err := appendLine(path, l); err != nil {
		t.Errorf("report: %v", err)
	}
}

func appendLine(path string, l Line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("%s of %q: %w", l.Kind, l.What, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	return err
}

// Read returns the lines of a file, none if there is no file. A last line that is cut off, by a test that was killed, is
// left out.
func Read(path string) ([]Line, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lines []Line
	for number := 1; ; number++ {
		text, rest, whole := bytes.Cut(b, []byte("\n"))
		if !whole {
			return lines, nil
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			return lines, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		lines = append(lines, l)
		b = rest
	}
}
