package process

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Skip skips a test that this machine cannot run, and says why. With MQ_REQUIRE_ALL=1, as in CI, it fails
// instead: a test that is always skipped protects nothing.
func Skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("MQ_REQUIRE_ALL") == "1" {
		t.Fatalf("MQ_REQUIRE_ALL is set, but this test cannot run: %s", why)
	}
	t.Skipf("SKIPPED, so this promise is NOT tested here: %s", why)
}

// Count returns the number that an environment variable gives, or otherwise.
func Count(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is not a count", name, text)
	}
	return n
}

// Seed returns the seed of a random test: MQ_SEED, or a new one. It is printed, so that a run can be
// repeated as far as the scheduler lets it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MQ_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("MQ_SEED=%q is not a number", text)
		}
		seed = n
	}
	t.Logf("seed: MQ_SEED=%d", seed)
	return seed
}

// Dir returns a temporary folder on a disk. In memory a sync does nothing, so a test there proves nothing.
func Dir(t testing.TB) string {
	t.Helper()
	return onDisk(t, t.TempDir())
}

// KeptDir is Dir, but the folder stays when the test fails.
func KeptDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mq-"+strings.ReplaceAll(t.Name(), "/", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kept: %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return onDisk(t, dir)
}

func onDisk(t testing.TB, dir string) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		t.Fatalf("%s is in memory: set TMPDIR to a folder on a disk", dir)
	}
	return dir
}
