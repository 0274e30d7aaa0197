// Package fault breaks the machine below a real mqd, by the pieces of nemesis: it cuts the power of the file system,
// fills it, and makes system calls fail. It needs root, Linux, loop devices and strace; where one is missing, the tests
// that need it are skipped loudly, or fail with MQ_REQUIRE_ALL=1.
package fault

import (
	"fmt"
	"os"
	"testing"

	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
)

func TestMain(m *testing.M) {
	// On failure go on without: the tests clean up after themselves, unless they are killed.
	if err := nemesis.PrivateMounts("MQ_FAULT_NAMESPACE"); err != nil {
		fmt.Fprintln(os.Stderr, "fault: no private mount namespace:", err)
	}
	os.Exit(process.Main(m))
}
