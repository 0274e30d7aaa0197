package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// mqdBinary is the server, built once for all tests.
var mqdBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mq-test-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "mqd")
	out, err := exec.Command("go", "build", "-o", binary, "example.com/mq/cmd/mqd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
})

type testingM struct{ *testing.M }

func (m testingM) Run() int {
	status := m.M.Run()
	if binary, err := mqdBinary(); err == nil {
		os.RemoveAll(filepath.Dir(binary))
	}
	return status
}

func TestMain(m *testing.M) {
	// A program built with -race sleeps for a second before it exits, and we run many.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	testscript.Main(testingM{m}, map[string]func(){"mq": main})
}

// server is a running mqd.
type server struct {
	url  string
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
}

var listening = regexp.MustCompile(`msg=listening .*address=(\S+)`)

// startServer runs mqd on a free port and returns once it serves.
func startServer(dir string, flags ...string) (*server, error) {
	binary, err := mqdBinary()
	if err != nil {
		return nil, err
	}
	s := &server{gone: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{"-listen", "127.0.0.1:0", "-data", dir}, flags...)...)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() { // ended by the end of the process
		defer close(s.gone)
		defer close(ready)
		address, log := "", ""
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			log += lines.Text() + "\n"
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address = m[1]
			}
			if address != "" && strings.Contains(lines.Text(), "msg=serving") {
				ready <- address
				address = ""
			}
		}
		s.cmd.Wait()
	}()
	select {
	case address := <-ready:
		if address == "" {
			return nil, fmt.Errorf("mqd did not start: %v", s.cmd.ProcessState)
		}
		s.url = "http://" + address
		return s, nil
	case <-time.After(30 * time.Second):
		s.kill()
		return nil, fmt.Errorf("mqd did not start in time")
	}
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.gone
}

func (s *server) terminate() {
	s.cmd.Process.Signal(os.Interrupt)
	<-s.gone
}

// mq runs the program under test and returns what it wrote.
func mq(t *testing.T, s *server, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := mqCommand(t, s, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func mqCommand(t *testing.T, s *server, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := exec.LookPath("mq") // testscript.Main has put it there
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "MQ_URL="+s.url)
	return cmd
}

// TestScripts runs testdata/script. Beyond the usual commands there are "mqd start [flag...]", which sets
// $MQ_URL, "mqd stop" (as by an interrupt) and "mqd kill".
func TestScripts(t *testing.T) {
	var mu sync.Mutex
	servers := map[string]*server{} // by $WORK
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"mqd": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) == 0 {
					ts.Fatalf("usage: mqd start|stop|kill")
				}
				work := ts.Getenv("WORK")
				mu.Lock()
				s := servers[work]
				mu.Unlock()
				switch args[0] {
				case "start":
					s, err := startServer(filepath.Join(work, "data"), args[1:]...)
					ts.Check(err)
					ts.Defer(s.kill)
					ts.Setenv("MQ_URL", s.url)
					mu.Lock()
					servers[work] = s
					mu.Unlock()
				case "stop":
					s.terminate()
				case "kill":
					s.kill()
				}
			},
		},
	})
}
