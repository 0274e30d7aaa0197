// Package process builds mqd and runs it as processes for the tests that look at it from outside. A
// process that it started ends with the test, even when the test itself is killed.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// AdminToken is what the processes accept for admin calls. Client calls need no token.
const AdminToken = "test-admin-token"

// ReplicationToken is what the nodes of a pair show each other.
const ReplicationToken = "test-replication-token"

// readyMax is how long a start may take, recovery included. It is generous: how long a start takes is
// measured elsewhere, and a machine that runs tests is busy.
const readyMax = 30 * time.Second

var build struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Binary returns the path of mqd, built once for the test binary, or what MQ_MQD names.
func Binary(t testing.TB) string {
	t.Helper()
	build.once.Do(func() {
		if build.path = os.Getenv("MQ_MQD"); build.path != "" {
			return
		}
		if build.dir, build.err = os.MkdirTemp("", "mqd-binary-"); build.err != nil {
			return
		}
		build.path = filepath.Join(build.dir, "mqd")
		out, err := exec.Command("go", "build", "-o", build.path, "example.com/mq/cmd/mqd").CombinedOutput()
		if err != nil {
			build.err = fmt.Errorf("build mqd: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Main runs the tests of a package and removes the binary after them. TestMain calls it.
func Main(m *testing.M) int {
	defer func() {
		if build.dir != "" {
			os.RemoveAll(build.dir)
		}
	}()
	return m.Run()
}

// Config says how to run mqd.
type Config struct {
	Binary string
	Data   string
	Args   []string // further flags
	Env    []string // further variables, NAME=value
	Wrap   []string // a command that runs mqd: its words stand before mqd's

	Listen  string       // address, host:port; empty: a free one of this machine
	Network *Network     // that mqd runs in; nil: that of the test
	Client  *http.Client // reaches mqd by https; nil: it is reached by http
	Log     string       // file that what mqd says is appended to; empty: only the last part is kept, in memory
}

// Process is one running mqd.
type Process struct {
	URL string // where it listens
	PID int    // of mqd, or of the command that wraps it

	client *http.Client
	cmd    *exec.Cmd
	stderr tail
	ended  chan struct{} // closed when the process is gone and err is set
	err    error
}

// Start starts mqd and returns at once. It need not be ready.
func Start(cfg Config) (*Process, error) {
	addr, client, scheme := cfg.Listen, http.DefaultClient, "http://"
	if addr == "" {
		var err error
		if addr, err = FreeAddress(); err != nil {
			return nil, err
		}
	}
	if cfg.Client != nil {
		client, scheme = cfg.Client, "https://"
	}
	words := append([]string{}, cfg.Wrap...)
	words = append(words, cfg.Binary, "-listen", addr, "-data", cfg.Data)
	words = append(words, cfg.Args...)
	p := &Process{URL: scheme + addr, client: client, ended: make(chan struct{})}
	p.cmd = exec.Command(words[0], words[1:]...)
	p.cmd.Env = append(append(os.Environ(), "MQ_ADMIN_TOKEN="+AdminToken), cfg.Env...)
	p.cmd.Stdout = io.Discard
	p.cmd.Stderr = &p.stderr
	if cfg.Log != "" {
		log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the log of mqd: %w", err)
		}
		p.stderr.all = log
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the process ends, so one thread is kept
		// for it until then. The goroutine ends with the process.
		runtime.LockOSThread()
		var err error
		if cfg.Network == nil {
			defer runtime.UnlockOSThread()
		} else { // the thread ends with the goroutine
			err = cfg.Network.enter()
		}
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		p.stderr.close()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start mqd: %w", err)
	}
	p.PID = p.cmd.Process.Pid
	return p, nil
}

// StartReady starts mqd and waits until it is ready.
func StartReady(cfg Config) (*Process, error) {
	const tries = 5
	for try := 1; ; try++ {
		p, err := Start(cfg)
		if err != nil {
			return nil, err
		}
		err = p.AwaitReady()
		if err == nil {
			return p, nil
		}
		p.Kill()
		// Between the choice of a port and its use somebody else may have taken it.
		if try == tries || !strings.Contains(p.stderr.String(), "address already in use") {
			return nil, err
		}
	}
}

// AwaitReady waits until /readyz says 200.
func (p *Process) AwaitReady() error {
	deadline := time.Now().Add(readyMax)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		status, body, err := p.Get("/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("mqd is not ready after %v: status %d, %s, %v\n%s", readyMax, status, body, err, p.Stderr())
		}
		select {
		case <-p.ended:
			return fmt.Errorf("mqd ended before it was ready: %v\n%s", p.err, p.Stderr())
		case <-poll.C:
		}
	}
}

// Get asks for a page by GET.
func (p *Process) Get(path string) (status int, body string, err error) { return p.get(path, nil) }

func (p *Process) get(path string, header http.Header) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return 0, "", err
	}
	r.Close = true // the next process has another port: keep nothing open
	if header != nil {
		r.Header = header
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}

// Pause stops the process, as a long pause of the whole machine would, and returns once no thread of it runs.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause mqd: %w", err)
	}
	deadline := time.Now().Add(readyMax)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID))
		if err != nil || len(threads) == 0 {
			return fmt.Errorf("pause mqd: no threads: %w", err)
		}
		running := 0
		for _, name := range threads {
			text, err := os.ReadFile(name)
			if err != nil {
				continue // it has ended
			}
			// The state follows the name, which is in parentheses and may hold any byte.
			if _, state, ok := strings.Cut(string(text), ") "); !ok || state[0] != 'T' {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("pause mqd: %d threads go on", running)
		}
		<-poll.C
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume mqd: %w", err)
	}
	return nil
}

// Kill kills the process and waits until it is gone. It may be called again.
func (p *Process) Kill() {
	p.cmd.Process.Signal(syscall.SIGKILL) // an error means that it is gone already
	<-p.ended
}

// Stop ends the process by SIGTERM and returns an error unless it exits with status 0.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop mqd: %w\n%s", err, p.Stderr())
	}
	select {
	case <-p.ended:
	case <-time.After(readyMax):
		p.Kill()
		return fmt.Errorf("mqd did not end within %v of SIGTERM\n%s", readyMax, p.Stderr())
	}
	if p.err != nil {
		return fmt.Errorf("mqd after SIGTERM: %w\n%s", p.err, p.Stderr())
	}
	return nil
}

// Ended returns a channel that is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode waits until the process is gone and returns its exit status, -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.ended
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// Stderr returns the last part of what the process wrote to standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// FreeAddress returns a loopback address that nothing else uses, now or later: a process may be started on it again
// and again.
func FreeAddress() (string, error) {
	// 127.0.0.0/8 is this machine, all of it, and others use 127.0.0.1 only.
	const tries = 20
	var err error
	for range tries {
		var l net.Listener
		host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250))
		if l, err = net.Listen("tcp", host+":0"); err == nil {
			address := l.Addr().String()
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("no free address: %w", err)
}

// tail keeps the last bytes written to it.
type tail struct {
	all *os.File // gets everything; nil for none

	mu  sync.Mutex // guards the field below
	buf bytes.Buffer
}

const tailMax = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if t.all != nil {
		if _, err := t.all.Write(p); err != nil {
			fmt.Fprintf(&t.buf, "the log cannot be written: %v\n", err)
		}
	}
	if extra := t.buf.Len() - tailMax; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) close() {
	if t.all != nil {
		t.all.Close()
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Metric returns the sum of a metric over its labels, without the prefix mq_; 0 if there is none.
func (p *Process) Metric(name string) (float64, error) {
	all, err := p.Metrics()
	return all["mq_"+name], err
}

// Metrics returns what /metrics says, each by its name, summed up over its labels.
func (p *Process) Metrics() (map[string]float64, error) {
	status, body, err := p.Get("/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for line := range strings.Lines(body) {
		space := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		name, _, _ := strings.Cut(line[:space], "{")
		n, err := strconv.ParseFloat(strings.TrimSpace(line[space:]), 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		sums[name] += n
	}
	return sums, nil
}
