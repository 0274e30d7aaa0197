package nemesis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What is done to a system call, in the words of strace.

// Fail lets a call fail with an error such as EIO or ENOSPC, without doing anything.
func Fail(errno string) string { return "error=" + errno }

// Delay lets a call wait before it is done.
func Delay(d time.Duration) string { return fmt.Sprintf("delay_enter=%d", d.Microseconds()) }

// Hang lets a call wait until the tracer detaches, and is done then.
func Hang() string { return Delay(time.Hour) }

// Lie lets a call succeed without being done.
func Lie() string { return "retval=0" }

// The calls that make data durable, that write it, and that change names.
const (
	Syncs   = "fsync,fdatasync,sync_file_range,syncfs"
	Writes  = "pwrite64,write,pwritev,writev"
	Renames = "rename,renameat,renameat2"
)

// Meddling says which system calls of a process meet what.
type Meddling struct {
	Calls string // names, with commas between them
	How   string // Fail, Delay, Hang or Lie
	First int    // the first call of each thread that is met, 65535 at most; default 1. All that follow are, too
	Once  bool   // only the first is met
	// Path, where it is set, spares all calls but those on this file. It must exist when the tracer attaches.
	Path   string
	Output string // file for the trace, as ReadTrace reads it; default: none
}

func (m Meddling) words() []string {
	output, first, more := m.Output, max(m.First, 1), "+"
	if output == "" {
		output = os.DevNull
	}
	if m.Once {
		more = ""
	}
	words := []string{"strace", "-f", "-y", "-ttt", "-o", output, "-e", "trace=" + m.Calls}
	words = append(words, "-e", fmt.Sprintf("inject=%s:%s:when=%d%s", m.Calls, m.How, first, more))
	if m.Path != "" {
		words = append(words, "-P", m.Path)
	}
	return words
}

// Wrap returns the words that begin a command whose system calls are meddled with from its start. The process that runs
// then is the tracer: a signal to it does not reach the command, and when it is killed, the command goes on, without
// it.
func (m Meddling) Wrap() []string { return append(m.words(), "--") }

// Tracer meddles with the system calls of a running process. It ends with that process, or by Detach.
type Tracer struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when strace is gone
}

// NeedTrace returns why Trace cannot work on this machine, or nil.
func NeedTrace() error {
	if _, err := exec.LookPath("strace"); err != nil {
		return err
	}
	idle := exec.Command("sleep", "60")
	if err := idle.Start(); err != nil {
		return err
	}
	defer idle.Wait()
	defer idle.Process.Kill()
	tracer, err := Meddling{Calls: "fsync", How: Fail("EIO")}.Trace(idle.Process.Pid)
	if err != nil {
		return err
	}
	return tracer.Detach()
}

// Trace attaches to a running process and returns when all its threads are traced.
func (m Meddling) Trace(pid int) (*Tracer, error) {
	words := append(m.words(), "-p", fmt.Sprint(pid))
	t := &Tracer{cmd: exec.Command(words[0], words[1:]...), ended: make(chan struct{})}
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the keyboard is for the caller
	stderr, err := t.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("strace: %w", err)
	}
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	for err == nil && strings.Contains(line, "Requested path") { // says how a path was resolved
		line, err = lines.ReadString('\n')
	}
	if err != nil || !strings.Contains(line, "attached") {
		t.cmd.Process.Kill()
		t.cmd.Wait()
		return nil, fmt.Errorf("strace did not attach: %q %w", line, err)
	}
	go func() { // ends with strace
		defer close(t.ended)
		io.Copy(io.Discard, lines)
		t.cmd.Wait() // its status says only how the process ended
	}()
	return t, nil
}

// Wait waits until the process that is traced has ended, or the tracer has.
func (t *Tracer) Wait() { <-t.ended }

// Detach ends the meddling. Calls that hang are done now. It does no harm when the process has ended.
func (t *Tracer) Detach() error {
	const detachMax = 10 * time.Second
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end strace: %w", err)
	}
	select {
	case <-t.ended:
		return nil
	case <-time.After(detachMax):
		// The kernel detaches what its tracer has left.
		t.cmd.Process.Kill()
		<-t.ended
		return fmt.Errorf("strace did not end within %v", detachMax)
	}
}

// Call is a system call in a trace.
type Call struct {
	Thread string
	At     time.Time
	Name   string
	Path   string // of the file that the first argument describes, where there is one
	Met    bool   // the call was meddled with
	Line   string
	Ended  int // how many calls had begun when this one ended, itself included; 0 if it never did
}

// Lines of a trace: a call with its result, or its beginning only, and then the rest of a call.
var (
	callLine    = regexp.MustCompile(`^(\d+) +([\d.]+) (\w+)\((?:\d+<([^>]*)>)?`)
	resumedLine = regexp.MustCompile(`^(\d+) +[\d.]+ <\.\.\. \w+ resumed>`)
)

// ReadTrace reads the output of a tracer that has ended: all calls, in the order in which they began.
func ReadTrace(name string) ([]Call, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var calls []Call
	running := map[string]int{} // by thread: the call that it is in
	ended := func(i int, line string) {
		calls[i].Met = strings.Contains(line, "(INJECTED)") || strings.Contains(line, "(DELAYED)")
		calls[i].Ended = len(calls)
	}
	for line := range strings.Lines(string(text)) {
		if m := resumedLine.FindStringSubmatch(line); m != nil {
			if i, ok := running[m[1]]; ok {
				ended(i, line)
			}
			continue
		}
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue // a signal or the end of a thread
		}
		at, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("trace: %q: %w", line, err)
		}
		calls = append(calls, Call{Thread: m[1], At: time.UnixMicro(int64(at * 1e6)), Name: m[3], Path: m[4], Line: line})
		if strings.Contains(line, "<unfinished ...>") {
			running[m[1]] = len(calls) - 1
		} else {
			ended(len(calls)-1, line)
		}
	}
	return calls, nil
}
