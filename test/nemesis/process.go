package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Undo ends what a piece did. It may be called once.
type Undo func() error

// oneProcess refuses what the kernel takes for a group of processes, or for all.
func oneProcess(pid int) error {
	if pid <= 1 {
		return fmt.Errorf("%d is not a process to break", pid)
	}
	return nil
}

// stopMax is how long the kernel may take to stop all threads of a process.
const stopMax = 30 * time.Second

// Kill ends a process at once, by SIGKILL. There is no way to undo it.
func Kill(pid int) error {
	if err := oneProcess(pid); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// Stop stops a process by SIGSTOP, as a long pause of its machine would, and returns once no thread of it runs. Undo
// lets it go on.
func Stop(pid int) (Undo, error) {
	if err := oneProcess(pid); err != nil {
		return nil, err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop %d: %w", pid, err)
	}
	undo := func() error {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return fmt.Errorf("continue %d: %w", pid, err)
		}
		return nil
	}
	if err := until(stopMax, func() error { return stopped(pid) }); err != nil {
		return nil, errors.Join(fmt.Errorf("stop %d: %w", pid, err), undo())
	}
	return undo, nil
}

// stopped returns an error while a thread of a process runs.
func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return fmt.Errorf("no threads: %w", err)
	}
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The state follows the name, which is in parentheses and may hold any byte.
		if end := strings.LastIndex(string(text), ") "); end < 0 || text[end+2] != 'T' {
			return errors.New("a thread goes on")
		}
	}
	return nil
}

// freezer is where the control groups are mounted that freeze.
const freezer = "/sys/fs/cgroup/freezer"

// NeedFreeze returns why Freeze cannot work on this machine, or nil.
func NeedFreeze() error {
	if _, err := os.Stat(freezer + "/cgroup.procs"); err != nil {
		return fmt.Errorf("no control groups that freeze: %w", err)
	}
	if os.Getuid() != 0 {
		return errors.New("freezing needs root")
	}
	return nil
}

// Freeze freezes processes by a control group of their own. Unlike Stop, no signal shows it and none ends it, SIGKILL
// included, until Undo lets them go on. A caller that is killed before leaves them frozen, and the next Freeze lets them
// go on.
func Freeze(pids ...int) (Undo, error) {
	if err := NeedFreeze(); err != nil {
		return nil, err
	}
	thawForgotten()
	dir, err := os.MkdirTemp(freezer, fmt.Sprintf("%s%d-", freezerPrefix, os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("freeze: %w", err)
	}
	set := func(dir, file, text string) error { return os.WriteFile(filepath.Join(dir, file), []byte(text), 0) }
	undo := func() error {
		err := set(dir, "freezer.state", "THAWED")
		for _, pid := range pids {
			// One that has ended in the meantime is in no group any more.
			if e := set(freezer, "cgroup.procs", fmt.Sprint(pid)); e != nil && !errors.Is(e, syscall.ESRCH) {
				err = errors.Join(err, e)
			}
		}
		// One that is about to end keeps the group for a moment.
		return errors.Join(err, until(stopMax, func() error { return syscall.Rmdir(dir) }))
	}
	for _, pid := range pids {
		if err := set(dir, "cgroup.procs", fmt.Sprint(pid)); err != nil {
			return nil, errors.Join(fmt.Errorf("freeze %d: %w", pid, err), undo())
		}
	}
	if err := set(dir, "freezer.state", "FROZEN"); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze: %w", err), undo())
	}
	asked := time.Now()
	if err := until(stopMax, func() error {
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		if err == nil && strings.TrimSpace(string(state)) != "FROZEN" {
			err = fmt.Errorf("still %q", state)
			// Now and then the kernel misses a process that has just been forked, and never gets to it.
			if time.Since(asked) > freezeAgain {
				asked = time.Now()
				err = errors.Join(err, set(dir, "freezer.state", "THAWED"), set(dir, "freezer.state", "FROZEN"))
			}
		}
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze: %w", err), undo())
	}
	return undo, nil
}

// freezeAgain is how long a freeze may take until it is asked for once more.
const freezeAgain = 500 * time.Millisecond

// freezerPrefix begins the names of groups that are frozen. The process that made one follows.
const freezerPrefix = "mq-nemesis-"

// thawForgotten lets processes go on whose freezer has ended before it could.
func thawForgotten() {
	dirs, _ := filepath.Glob(filepath.Join(freezer, freezerPrefix+"*")) // the pattern is right
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), freezerPrefix), "-")
		if _, err := os.Stat(filepath.Join("/proc", pid)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// It is somebody else's who may be at it, too: errors do not matter.
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		held, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(held)) {
			_ = os.WriteFile(freezer+"/cgroup.procs", []byte(pid), 0)
		}
		_ = syscall.Rmdir(dir)
	}
}

// until calls f until it returns no error, for so long at most.
func until(most time.Duration, f func() error) error {
	deadline := time.Now().Add(most)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		pause(context.Background(), time.Millisecond)
	}
}
