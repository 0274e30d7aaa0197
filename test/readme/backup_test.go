package readme

import "testing"

// What an operator is told to do about backups is done as it is written.
func TestBackup(t *testing.T) {
	runCommands(t, script(t, "docs/operations.md", "Backup and restore"), `mqd -listen `, 2, "")
}
