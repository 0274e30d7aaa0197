// Package security looks at real processes with the eyes of somebody who should not get in, or who reads what they leave
// behind: every route with every kind of token, secrets in all output, names that would break a log or a terminal, modes
// of files, and what the binaries are made of. docs/security.md says what stands against which threat.
package security

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"example.com/mq/test/process"
)

func TestMain(m *testing.M) {
	code := process.Main(m)
	if mqBuild.dir != "" {
		os.RemoveAll(mqBuild.dir)
	}
	os.Exit(code)
}

var mqBuild struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// mqBinary returns the path of mq, built once for the test binary.
func mqBinary(t testing.TB) string {
	t.Helper()
	mqBuild.once.Do(func() {
		if mqBuild.dir, mqBuild.err = os.MkdirTemp("", "mq-binary-"); mqBuild.err != nil {
			return
		}
		mqBuild.path = filepath.Join(mqBuild.dir, "mq")
		out, err := exec.Command("go", "build", "-o", mqBuild.path, "example.com/mq/cmd/mq").CombinedOutput()
		if err != nil {
			mqBuild.err = fmt.Errorf("build mq: %w\n%s", err, out)
		}
	})
	if mqBuild.err != nil {
		t.Fatal(mqBuild.err)
	}
	return mqBuild.path
}

// moduleRoot returns the folder of the module.
func moduleRoot(t testing.TB) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return root
}

// each says how many of the ways to do something are tried: each so many-th, all for 1.
func each(t testing.TB) int { return max(1, process.Count(t, "MQ_SECURITY_EACH", 21)) }
