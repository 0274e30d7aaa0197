package sum

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func TestSum(t *testing.T) {
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
