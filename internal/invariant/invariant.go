// Package invariant states what must be true at a place in the code. A check that fails is a bug of ours, never
// a caller's mistake or a fault of the machine, and it stops the process before a wrong state reaches the disk.
//
// Cheap checks are always on. Costly ones (a pass over a table, say) stand under "if invariant.Enabled".
package invariant

import "fmt"

// Check panics with "BUG: " and the message unless cond is true. Each argument that is not a constant may cost
// an allocation even then. Where that matters, write
//
//	if last > end {
//		invariant.Check(false, "last %d is above end %d", last, end)
//	}
func Check(cond bool, format string, args ...any) {
	if !cond {
		fail(format, args)
	}
}

//go:noinline
func fail(format string, args []any) {
	panic("BUG: " + fmt.Sprintf(format, args...))
}
