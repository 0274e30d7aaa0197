package readme

import "testing"

// What an operator is told to do about a damaged log is done as it is written.
func TestDamage(t *testing.T) {
	runCommands(t, script(t, "docs/operations.md", "Damage"), `mqd -listen `, 3, "")
}
