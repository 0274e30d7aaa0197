// Package fault breaks the machine below a real mqd: it cuts the power of the file system, fills it, and
// makes system calls fail. It needs root, Linux, loop devices and strace; where one is missing, the tests
// that need it are skipped loudly, or fail with MQ_REQUIRE_ALL=1.
package fault

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/mq/test/process"
)

// TestMain moves the test binary into a mount namespace of its own first. So its mounts are seen by nobody
// else, and they and their loop devices are gone when its processes are, however they end.
func TestMain(m *testing.M) {
	const inside = "MQ_FAULT_NAMESPACE"
	if os.Getuid() == 0 && os.Getenv(inside) == "" {
		// On failure go on without: the tests clean up after themselves, unless they are killed.
		if err := enterNamespace(inside); err != nil {
			fmt.Fprintln(os.Stderr, "fault: no private mount namespace:", err)
		}
	}
	os.Exit(process.Main(m))
}

// enterNamespace runs the test binary anew in a private mount namespace. It returns only when it failed.
func enterNamespace(inside string) error {
	// A namespace belongs to a thread. Exec makes this thread the only one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), inside+"=1"))
}
