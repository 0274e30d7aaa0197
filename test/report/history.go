package report

import (
	"testing"

	"example.com/mq/test/history"
)

// History tells what a checker has seen and found.
func History(t testing.TB, r history.Report) {
	t.Helper()
	Count(t, "records acknowledged", int64(r.Acknowledged))
	Count(t, "records read", int64(r.Read))
	violations := 0
	for _, n := range r.Counts {
		violations += n
	}
	Count(t, "violations", int64(violations))
	for _, v := range r.First {
		Violation(t, v.String())
	}
}
