package nemesis

import (
	"fmt"
	"os"
	"testing"

	"example.com/mq/test/process"
)

// leftovers are folders that are removed after all tests.
var leftovers []string

func TestMain(m *testing.M) {
	// On failure go on without: the tests clean up after themselves, unless they are killed.
	if err := PrivateMounts("MQ_NEMESIS_NAMESPACE"); err != nil {
		fmt.Fprintln(os.Stderr, "nemesis: no private mount namespace:", err)
	}
	code := process.Main(m)
	for _, dir := range leftovers {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}
