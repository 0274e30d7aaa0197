package crowd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childVariable holds the plan of a crowd, in a process of its own.
const childVariable = "MQ_CROWD_PLAN"

// Child is a crowd in a process of its own: it has its own files, and its work, however much, gives way to that of the
// clients whose requests are measured.
type Child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	here  chan error // tells once that all have connected
}

// Main runs the tests of this package, or, in a process that Start started, a crowd. TestMain calls it.
func Main(run func() int) int {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return run()
	}
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := giveWay(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	report := Run(ctx, p, func() { fmt.Println(hereLine) })
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// hereLine is what a crowd writes when all of it has connected once. Its report follows, at the end.
const hereLine = "here"

// giveWay has this process run only while nobody else wants the processor (SCHED_IDLE). It stands for many machines that are
// not this one: what is to be measured is what mqd does for them, and not what they do.
func giveWay() error {
	for range 2 { // a thread takes after the one that starts it: the second time finds those that came meanwhile
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, x := range threads {
			id, err := strconv.Atoi(x.Name())
			if err != nil {
				return err
			}
			a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
			if err := unix.SchedSetAttr(id, &a, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("give way to others: %w", err)
			}
		}
	}
	return nil
}

// Start starts a crowd. It ends with the test at the latest: this process holds the other end of its standard input.
func Start(t testing.TB, p Plan) *Child {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{cmd: exec.Command(self)}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = in
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out, c.here = bufio.NewReader(out), make(chan error, 1)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.cmd.Process.Kill() })
	go func() { // ends with the process
		line, err := c.out.ReadString('\n')
		if err == nil && strings.TrimSpace(line) != hereLine {
			err = fmt.Errorf("the crowd said %q", line)
		}
		c.here <- err
	}()
	return c
}

// Here waits until every member has connected at least once.
func (c *Child) Here(most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case err := <-c.here:
		return err
	case <-timer.C:
		return fmt.Errorf("not all of the crowd has connected within %v", most)
	}
}

// Stop sends the crowd away, and returns what happened to it once all of it has gone. Here must have returned nil.
func (c *Child) Stop() (r Report, err error) {
	c.stdin.Close()
	err = json.NewDecoder(c.out).Decode(&r)
	if e := c.cmd.Wait(); err == nil {
		err = e
	}
	return r, err
}
