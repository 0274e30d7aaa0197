package mixed

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/mq/test/process"
)

// node is one folder, its address, and the mqd that runs there, one after another. All is done by one goroutine.
type node struct {
	w      *world
	number int
	url    string
	cfg    process.Config
	role   []string // flags
	life   *life    // nil: nothing runs
	held   bool     // nothing starts it but the event that holds it
	broken bool     // its files were damaged and it has not been whole since: it may refuse to start
}

// life is one mqd.
type life struct {
	*process.Process
	handle  *os.Process
	told    atomic.Bool // to end
	broken  atomic.Bool // its folder was damaged: it may refuse it
	killed  bool
	paused  bool
	stopped chan error  // gets the outcome of SIGTERM; nil: none was sent
	tracer  *exec.Cmd   // makes system calls slow, or fail; nil: none
	spoilt  atomic.Bool // its disk has failed, as far as it knows
}

// start starts mqd unless it runs, or somebody holds the node.
func (n *node) start() {
	w := n.w
	w.t.Helper()
	if n.life != nil && n.life.over() {
		n.bury()
	}
	if n.life != nil || n.held {
		return
	}
	n.cfg.Args = append(append([]string{}, w.flags...), n.role...)
	p, err := process.Start(n.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	handle, err := os.FindProcess(p.PID) // by a descriptor: it never stands for another process
	if err != nil {
		w.t.Fatal(err)
	}
	l := &life{Process: p, handle: handle}
	l.broken.Store(n.broken)
	n.life = l
	w.lives.Go(func() { // ends with the process, which ends with the test
		<-p.Ended()
		right := l.told.Load() || l.broken.Load() || w.role == pair && l.yields() ||
			l.spoilt.Load() && strings.Contains(l.Stderr(), "input/output error") // during its start
		if !right {
			w.violation("node %d ended by itself, with status %d:\n%s", n.number, p.ExitCode(), p.Stderr())
		}
	})
	w.started++
}

// notWhole is what a follower says that cannot be promoted.
const notWhole = "has not got all of the log yet"

// yields reports whether a node of a pair has ended as one does that must not lead, or does not lead any more.
func (l *life) yields() bool {
	text := l.Stderr()
	return l.ExitCode() == 1 && (strings.Contains(text, "is over") || strings.Contains(text, notWhole))
}

// over reports whether the process is gone.
func (l *life) over() bool {
	select {
	case <-l.Ended():
		return true
	default:
		return false
	}
}

// bury forgets a process that is gone.
func (n *node) bury() {
	l := n.life
	n.life = nil
	l.detach()
	if l.stopped != nil {
		// One that had not said a word was told before it could listen.
		if err := <-l.stopped; err != nil && !l.killed && !l.spoilt.Load() && l.Stderr() != "" {
			n.w.violation("node %d: %v", n.number, err)
		}
	}
}

// kill kills what runs.
func (n *node) kill() {
	l := n.life
	if l == nil {
		return
	}
	if !l.over() {
		l.told.Store(true)
		l.killed = true
		n.w.kills++
	}
	l.Kill()
	n.bury()
}

// terminate sends SIGTERM. finish waits for the end.
func (n *node) terminate() {
	l := n.life
	if l == nil || l.stopped != nil || l.over() {
		return
	}
	l.told.Store(true)
	l.stopped = make(chan error, 1)
	go func() { l.stopped <- l.Stop() }() // ends with the process, or by its own deadline
}

// finish waits until a process has ended that was told to.
func (n *node) finish() {
	if n.life == nil || n.life.stopped == nil {
		return
	}
	n.resume()
	<-n.life.Ended()
	n.bury()
}

// pause stops the process. Not all its threads need stand when it returns.
func (n *node) pause() {
	if n.life == nil {
		return
	}
	n.life.paused = true
	n.life.handle.Signal(syscall.SIGSTOP) // an error means that it is gone
}

func (n *node) resume() {
	if n.life == nil || !n.life.paused {
		return
	}
	n.life.paused = false
	n.life.handle.Signal(syscall.SIGCONT) // an error means that it is gone
}

// inject attaches a tracer that does something to each fdatasync.
func (n *node) inject(what string) error {
	l := n.life
	if l == nil || l.tracer != nil || l.over() {
		return fmt.Errorf("node %d does not run, or is traced", n.number)
	}
	l.tracer = exec.Command("strace", "-f", "-o", os.DevNull, "-e", "trace=fdatasync", "-e", "inject=fdatasync:"+what, "-p", fmt.Sprint(l.PID))
	stderr, err := l.tracer.StderrPipe()
	if err != nil {
		return err
	}
	if err := l.tracer.Start(); err != nil {
		return fmt.Errorf("strace: %w", err)
	}
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	go io.Copy(io.Discard, lines) // ends with strace
	if err != nil || !strings.Contains(line, "attached") {
		l.detach()
		return fmt.Errorf("strace did not attach: %q, %w", line, err)
	}
	return nil
}

// detach ends the tracer. The process goes on.
func (l *life) detach() {
	if l.tracer == nil {
		return
	}
	l.tracer.Process.Signal(syscall.SIGTERM) // strace lets go of a call that it delays, and an error means that it is gone
	gone := make(chan struct{})
	go func() { // ends with strace
		l.tracer.Wait() // its status says only how it ended
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(patience):
		l.tracer.Process.Kill()
		<-gone
	}
	l.tracer = nil
}
