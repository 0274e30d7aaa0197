package nemesis

import (
	"os/exec"
	"testing"
	"time"

	"example.com/mq/test/process"
)

// ticker is a process that says something all the time.
func ticker(t *testing.T) (pid int, said chan struct{}, ended chan struct{}) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while sleep 0.01; do echo; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, ended = make(chan struct{}), make(chan struct{})
	go func() { // ends with the process
		defer close(ended)
		buf := make([]byte, 1)
		for {
			if n, err := out.Read(buf); n == 0 || err != nil {
				break
			}
			select {
			case said <- struct{}{}:
			default:
			}
		}
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	return cmd.Process.Pid, said, ended
}

// says reports whether something is said within a time.
func says(said chan struct{}, within time.Duration) bool {
	select {
	case <-said:
		return true
	case <-time.After(within):
		return false
	}
}

// TestStop stops and freezes a process: it is silent until it is let go on.
func TestStop(t *testing.T) {
	for _, c := range []struct {
		name string
		need func() error
		do   func(pid int) (Undo, error)
	}{
		{"stop", func() error { return nil }, Stop},
		{"freeze", NeedFreeze, func(pid int) (Undo, error) { return Freeze(pid) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.need(); err != nil {
				process.Skip(t, err.Error())
			}
			pid, said, ended := ticker(t)
			if !says(said, patience) {
				t.Fatal("it says nothing")
			}
			undo, err := c.do(pid)
			if err != nil {
				t.Fatal(err)
			}
			for says(said, 50*time.Millisecond) { // what was on its way, and a sleep that was under way
				if t.Context().Err() != nil {
					t.Fatal("it goes on")
				}
			}
			if says(said, 300*time.Millisecond) {
				t.Error("it goes on")
			}
			if c.name == "freeze" { // not even SIGKILL ends it
				if err := Kill(pid); err != nil {
					t.Error(err)
				}
				select {
				case <-ended:
					t.Error("a frozen process has ended")
				case <-time.After(100 * time.Millisecond):
				}
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if c.name == "stop" {
				if !says(said, patience) {
					t.Error("it does not go on")
				}
				if err := Kill(pid); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-ended:
			case <-time.After(patience):
				t.Error("it was killed and has not ended")
			}
		})
	}
	for _, pid := range []int{1 << 30, 1, 0, -1} {
		if _, err := Stop(pid); err == nil {
			t.Errorf("stopping %d is no error", pid)
		}
		if err := Kill(pid); err == nil {
			t.Errorf("killing %d is no error", pid)
		}
	}
}
