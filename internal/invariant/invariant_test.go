package invariant_test

import (
	"testing"

	"example.com/mq/internal/invariant"
)

func TestCheck(t *testing.T) {
	invariant.Check(true, "not reached")
	defer func() {
		if got, want := recover(), "BUG: commit 7 is above last 5"; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}()
	invariant.Check(false, "commit %d is above last %d", 7, 5)
	t.Error("Check(false) returned")
}

func TestCheckDoesNotAllocate(t *testing.T) {
	type index uint64
	last, end := index(1<<40), index(1<<41)
	got := testing.AllocsPerRun(100, func() {
		last++
		invariant.Check(last < end, "a constant message")
		if last >= end {
			invariant.Check(false, "last %d is above end %d", last, end)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}
