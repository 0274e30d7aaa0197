package sum

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestSum leaves a folder behind.
func TestSum(t *testing.T) {
	if os.Getenv("RAPID_NOFAILFILE") != "1" {
		t.Error("what makes a property fail would be written into the source")
	}
	if _, err := os.MkdirTemp("", "left-"); err != nil {
		t.Fatal(err)
	}
	if got := Sum([]int{1, 2, 3}); got != 6 {
		t.Errorf("1+2+3 = %d", got)
	}
}

func TestEmpty(t *testing.T) {
	if got := Sum(nil); got != 0 {
		t.Errorf("the sum of nothing is %d", got)
	}
}

func TestEnvironment(t *testing.T) {
	if os.Getenv("MQ_TEST_WORD") == "red" {
		t.Error("it was asked to fail")
	}
}

func TestSkipped(t *testing.T) { t.Skip("always") }

func TestParts(t *testing.T) {
	t.Run("first", func(t *testing.T) {
		if Sum([]int{1}) != 1 {
			t.Error("1 is not 1")
		}
	})
}

// TestSlow takes a second and more, with any code.
func TestSlow(t *testing.T) {
	if os.Getenv("MQ_TEST_WORD") == "slow" {
		<-time.After(1300 * time.Millisecond)
		Sum([]int{1})
	}
}

func TestKilled(t *testing.T) {
	if os.Getenv("MQ_TEST_WORD") == "killed" && Sum([]int{1}) != 1 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-make(chan bool)
	}
}

func TestBlocks(t *testing.T) {
	mark := os.Getenv("MQ_TEST_MARK")
	if mark == "" {
		t.Skip("it never ends")
	}
	tmp := mark + ".tmp"
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, mark); err != nil {
		t.Fatal(err)
	}
	<-make(chan bool)
}

// TestScripted ends as a file says, one letter for each run.
func TestScripted(t *testing.T) {
	name := os.Getenv("MQ_TEST_SCRIPT")
	if name == "" {
		t.Skip("nothing says how it ends")
	}
	ends, err := os.ReadFile(name)
	if err != nil || len(ends) == 0 {
		t.Fatalf("once more than was expected: %v", err)
	}
	if err := os.WriteFile(name, ends[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if ends[0] == 'r' {
		t.Error("it was asked to fail")
	}
}
