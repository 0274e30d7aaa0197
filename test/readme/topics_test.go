package readme

import "testing"

// What an operator is told to do about topics and groups is done as it is written.
func TestTopics(t *testing.T) {
	runCommands(t, script(t, "docs/operations.md", "Topics and retention"), `mqd -listen `, 1, "")
}
