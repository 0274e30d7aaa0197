//go:build race || invariants

package invariant

// Enabled tells whether costly checks run: in builds with -race, or with the tag invariants.
const Enabled = true
