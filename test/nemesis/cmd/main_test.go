package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func call(t *testing.T, ctx context.Context, words ...string) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(ctx, words, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestFiles breaks files by hand.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, bytes.Repeat([]byte{0}, 2048), 0o600); err != nil {
		t.Fatal(err)
	}
	want := func(at int, value byte, size int) {
		t.Helper()
		if text, err := os.ReadFile(name); err != nil || len(text) != size || text[at] != value {
			t.Errorf("%d bytes, %v; want %d, and %d at %d", len(text), err, size, value, at)
		}
	}
	for _, c := range []struct {
		words string
		at    int
		value byte
		size  int
	}{
		{"flip a 4097", 512, 2, 2048},
		{"flip -for 1ms a 4097", 512, 2, 2048}, // and back
		{"swap-sectors a 1 2", 1024, 2, 2048},
		{"truncate a 1500", 1024, 2, 1500},
		{"copy a b", 1024, 2, 1500},
		{"zero a 2", 1024, 0, 1500},
		{"replace a b aside", 1024, 2, 1500},
		{"extra c text", 1024, 2, 1500},
		{"clock clock -1h", 1024, 2, 1500},
	} {
		words := strings.Fields(c.words)
		for i, w := range words {
			if i > 0 && len(w) == 1 && w[0] >= 'a' || w == "aside" || i == 1 && w == "clock" {
				words[i] = filepath.Join(dir, w)
			}
		}
		if code, _, said := call(t, t.Context(), words...); code != 0 {
			t.Fatalf("%v: %d %s", words, code, said)
		}
		want(c.at, c.value, c.size)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "clock")); err != nil || string(text) != "-1h0m0s" {
		t.Errorf("clock: %q, %v", text, err)
	}
}

// TestProcess stops a process for a time, and kills it.
func TestProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	began := time.Now()
	if code, _, said := call(t, t.Context(), "stop", strconv.Itoa(pid), "-for", "50ms"); code != 0 || time.Since(began) < 50*time.Millisecond {
		t.Errorf("stop: %d %s after %v", code, said, time.Since(began))
	}
	if code, _, said := call(t, t.Context(), "kill", strconv.Itoa(pid)); code != 0 {
		t.Errorf("kill: %d %s", code, said)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v", err)
	}
}

// TestCrowd lets a crowd meet a port until an interrupt.
func TestCrowd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() { // ends with the tenth connection
		for range 10 {
			if conn, err := ln.Accept(); err == nil {
				defer conn.Close()
			}
		}
		interrupt()
		<-t.Context().Done()
	}()
	code, out, said := call(t, ctx, "flood", ln.Addr().String(), "-n", "10")
	if code != 0 && !strings.Contains(said, "canceled") || code == 0 && !strings.Contains(out, "opened") {
		t.Errorf("%d %s %s", code, out, said)
	}
}

// TestUsage checks what is refused, and that all kinds are in the help.
func TestUsage(t *testing.T) {
	for _, words := range [][]string{{}, {"-help"}, {"flip", "-what"}, {"flip", "a"}, {"flip", "a", "b"}, {"none"}, {"stop", "0x"}, {"deafen", "1"}} {
		if code, _, said := call(t, t.Context(), words...); code == 0 || said == "" {
			t.Errorf("%q: %d %q", words, code, said)
		}
	}
	for name := range kinds {
		if !strings.Contains(usage, name+" ") {
			t.Errorf("the help says nothing of %s", name)
		}
	}
	for name := range crowds {
		if !strings.Contains(usage, name) {
			t.Errorf("the help says nothing of %s", name)
		}
	}
	if n := strings.Count(usage, "\n"); n > 40 {
		t.Errorf("the help has %d lines: more than a screen", n)
	}
}
