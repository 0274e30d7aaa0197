package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.com/mq/api"
)

// server is an mqd with its data folder. It is killed, never stopped: what a start costs after that is what is measured.
type server struct {
	b       *bench
	name    string
	data    string
	address string
	debug   string // address of the profiler; "" for none
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// newServer makes a server with an empty data folder. It is not started.
func (b *bench) newServer(name string) (*server, error) {
	s := &server{b: b, name: name, data: filepath.Join(b.dir, name)}
	var err error
	if s.address, err = freeAddress(); err == nil && b.profile != "" {
		s.debug, err = freeAddress()
	}
	if err != nil {
		return nil, err
	}
	b.started = append(b.started, s)
	return s, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// startMax is how long a start may take.
const startMax = time.Minute

// start starts the process and returns how long it took until its first publish was acknowledged.
func (s *server) start(flags ...string) (time.Duration, error) {
	log, err := os.OpenFile(s.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close() // the process has its own
	args := []string{"-listen", s.address, "-data", s.data, "-admin-token", adminToken}
	if s.debug != "" {
		args = append(args, "-debug-listen", s.debug)
	}
	s.cmd = exec.Command(s.b.mqd, append(args, flags...)...)
	s.cmd.Stderr = log
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return 0, err
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { // ends with the process, which kill waits for
		cmd.Wait()
		close(ended)
	}(s.cmd, s.ended)
	for time.Since(began) < startMax {
		select {
		case <-s.ended:
			text, _ := os.ReadFile(s.data + ".log")
			return 0, fmt.Errorf("%s has ended: %s", s.name, tail(text))
		default:
		}
		if err = s.publishOnce(); err == nil {
			return time.Since(began), nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, fmt.Errorf("%s acknowledges nothing: %w", s.name, err)
}

func (s *server) publishOnce() error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.call(api.PathPublish, []byte(`{"topic":"started","value":"YQ=="}`))
	return err
}

func tail(text []byte) []byte { return text[max(0, len(text)-2000):] }

// kill ends the process as kill -9 does, if it runs.
func (s *server) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-s.ended
	s.cmd = nil
	return err
}

// restart kills and starts the server so many times, and returns how long each start took.
func (s *server) restart(times int, flags ...string) ([]time.Duration, error) {
	var took []time.Duration
	for range times {
		if err := s.kill(); err != nil {
			return nil, err
		}
		t, err := s.start(flags...)
		if err != nil {
			return nil, err
		}
		took = append(took, t)
	}
	return took, nil
}

// memory is what a process takes.
type memory struct{ rss, pss, peak int64 }

func (m memory) String() string {
	return fmt.Sprintf("RSS %s, PSS %s, peak %s", mib(m.rss), mib(m.pss), mib(m.peak))
}

// memory returns what the process takes now, and the most it ever took.
func (s *server) memory() memory {
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	return memory{
		rss:  field(proc+"status", "VmRSS:"),
		pss:  field(proc+"smaps_rollup", "Pss:"),
		peak: field(proc+"status", "VmHWM:"),
	}
}

// field reads a line of kilobytes from a file of /proc; 0 if it is not there.
func field(file, name string) int64 {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// clockTick is the unit of processor time in /proc, on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// cpu is the processor time that the process has used.
func (s *server) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

// quiet waits until the process uses next to nothing: what a start or a load leaves to do is done.
func (s *server) quiet() {
	for range 120 {
		before := s.cpu()
		time.Sleep(time.Second)
		if s.cpu()-before <= 3*clockTick {
			return
		}
	}
}

// verbose is a part of what /readyz?verbose tells.
type verbose struct {
	Log struct {
		Segments int   `json:"segments"`
		Bytes    int64 `json:"bytes"`
	} `json:"log"`
	Cleaner struct {
		State      string `json:"state"`
		LiveBytes  int64  `json:"live_bytes"`
		MovedBytes int64  `json:"moved_bytes"`
	} `json:"cleaner"`
}

func (s *server) verbose() (v verbose, err error) {
	answer, err := http.Get("http://" + s.address + api.PathReady + "?verbose")
	if err != nil {
		return v, err
	}
	defer answer.Body.Close()
	told := struct {
		Detail *verbose `json:"detail"`
	}{&v}
	err = json.NewDecoder(answer.Body).Decode(&told)
	return v, err
}

// gauge returns a figure of /metrics.
func (s *server) gauge(name string) (float64, error) {
	answer, err := http.Get("http://" + s.address + api.PathMetrics)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no figure %s", name)
}

// space is how much disk the files of the log take, those that are being written included, and not their indexes.
func (s *server) space() int64 {
	sum := int64(0)
	// Files may vanish meanwhile.
	_ = filepath.WalkDir(filepath.Join(s.data, "log"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, ".idx") {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// profiled runs something while the profiler of the server looks, if it shall, and writes what it has seen to a file.
func (s *server) profiled(what string, seconds int, run func() error) error {
	if s.debug == "" {
		return run()
	}
	done := make(chan error, 1)
	go func() { done <- s.fetchProfile(what+".cpu", fmt.Sprintf("profile?seconds=%d", seconds)) }() // awaited below
	err := run()
	return errors.Join(err, <-done, s.fetchProfile(what+".heap", "heap"))
}

func (s *server) fetchProfile(name, query string) error {
	if s.debug == "" {
		return nil
	}
	answer, err := http.Get("http://" + s.debug + "/debug/pprof/" + query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	f, err := os.Create(filepath.Join(s.b.profile, s.name+"-"+name))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, answer.Body)
	return errors.Join(err, f.Close())
}
