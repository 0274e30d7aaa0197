package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A reader that stands still holds up nobody. What it misses is counted, in the place where it is missing: the log may lose
// lines more than once, where the goroutine that passes on gets to run in the middle.
func TestStderrWithoutReader(t *testing.T) {
	for name, line := range map[string]string{"text": "level=INFO n=%d %s\n", "json": `{"n":%d,"text":"%s"}` + "\n"} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			s := newStderr(w)
			const lines = 300
			for i := range lines { // three times what waits at most; the test would hang
				fmt.Fprintf(s, line, i, strings.Repeat("x", 10<<10))
			}
			s.flush(10 * time.Millisecond)
			in := bufio.NewReader(r)
			next, lost := 0, 0 // the line that comes next, how many did not come
			for next < lines {
				text, err := in.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				n, err := strconv.Atoi(regexp.MustCompile(`(?:lines"?|n"?)[=:](\d+)`).FindStringSubmatch(text)[1])
				if err != nil {
					t.Fatalf("%.60s: %v", text, err)
				}
				switch {
				case strings.Contains(text, "are lost"):
					next, lost = next+n, lost+n
					if n == 0 || strings.HasPrefix(text, "{") != (name == "json") {
						t.Fatalf("none, or another form: %s", text)
					}
				case n != next:
					t.Fatalf("line %d comes, want %d", n, next)
				default:
					next++
				}
			}
			if next != lines || lost == 0 || lost == lines {
				t.Errorf("%d of %d lines told, %d were lost", next, lines, lost)
			}
			fmt.Fprintf(s, line, lines, "last")
			if text, err := in.ReadString('\n'); err != nil || !strings.Contains(text, "last") {
				t.Errorf("%q %v", text, err)
			}
			s.flush(time.Minute)
			r.Close()
			fmt.Fprintf(s, line, lines, "nobody hears it")
			s.flush(time.Minute)
		})
	}
}

// The process itself: it goes on without a reader, and stops cleanly on SIGHUP, but not where that is ignored.
func TestSignals(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "mqd")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct {
		name   string
		before string // of mqd, in the shell
		close  bool   // the reader goes away
		signal []syscall.Signal
		want   string
	}{
		{"hangup", "", false, []syscall.Signal{syscall.SIGHUP}, "msg=stopped"},
		{"nohup", "trap '' HUP; ", false, []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}, "msg=stopped"},
		{"no reader", "", true, []syscall.Signal{syscall.SIGTERM}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			// Where this process ignores hangups, as under nohup, so would its children: those that are caught are not passed on.
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, syscall.SIGHUP)
			defer signal.Stop(caught)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", c.before+"exec "+binary+" -listen 127.0.0.1:0 -data "+data)
			cmd.Stderr = w
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			w.Close()
			in := bufio.NewReader(r)
			var said bytes.Buffer
			for !strings.Contains(said.String(), "msg=serving") {
				text, err := in.ReadString('\n')
				if said.WriteString(text); err != nil {
					t.Fatalf("%v: %s", err, said.String())
				}
			}
			if c.close {
				r.Close()
			}
			for i, s := range c.signal {
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatalf("signal %d: %v", i, err) // it has ended
				}
			}
			if !c.close {
				rest, err := io.ReadAll(in)
				if err != nil {
					t.Fatal(err)
				}
				said.Write(rest)
			}
			err = cmd.Wait()
			if err != nil || !strings.Contains(said.String(), c.want) {
				t.Errorf("%v: %s", err, said.String())
			}
			if _, err := os.Stat(filepath.Join(data, "clean.json")); err != nil {
				t.Errorf("no clean stop: %v", err)
			}
			if n := strings.Count(said.String(), "msg=stopping"); !c.close && n != 1 {
				t.Errorf("it stopped %d times", n)
			}
		})
	}
}
