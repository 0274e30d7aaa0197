// Package readme runs the README: every curl command in it, in order, against a real mqd, compared with the
// answer printed below it; the commands of the mq client; and, as scripts, what it and docs/operations.md tell to do
// with several nodes.
package readme

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/mq/test/process"
)

func TestMain(m *testing.M) { os.Exit(process.Main(m)) }

// scripted are the sections whose commands belong together, and are run as scripts.
var scripted = []string{"Two nodes", cluster}

// command is one line of the README that can be run, and the line printed below it, if any.
type command struct {
	line, want string
}

func commands(t *testing.T, prefixes ...string) []command {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(text)
	for _, heading := range scripted {
		section, ok := sectionOf(rest, heading)
		if !ok {
			t.Fatalf("the README has no section %q", heading)
		}
		rest = strings.Replace(rest, section, "", 1)
	}
	var list []command
	lines := strings.Split(rest, "\n")
	for i, line := range lines {
		line, ok := strings.CutPrefix(line, "    ")
		if !ok {
			continue
		}
		for _, prefix := range prefixes {
			if strings.HasPrefix(line, prefix) {
				c := command{line: line}
				if below, ok := strings.CutPrefix(lines[i+1], "    {"); ok {
					c.want = "{" + below
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// volatile is what differs from run to run.
var volatile = regexp.MustCompile(`"(timestamp_ms|index)":\d+`)

// matches compares an answer with what the README shows; "..." there stands for anything.
func matches(got, want string) bool {
	got, want = volatile.ReplaceAllString(got, "T"), volatile.ReplaceAllString(want, "T")
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), regexp.QuoteMeta("..."), ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(got))
}

func TestCurlCommands(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		process.Skip(t, "there is no curl")
	}
	p, err := process.StartReady(process.Config{Binary: process.Binary(t), Data: filepath.Join(t.TempDir(), "data"),
		Args: []string{"-admin-token", "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	list := commands(t, "curl ")
	if len(list) < 9 {
		t.Fatalf("only %d curl commands found in the README", len(list))
	}
	for _, c := range list {
		line := strings.ReplaceAll(c.line, "http://127.0.0.1:8080", p.URL)
		if line == c.line {
			t.Fatalf("%s: another address than in the quick start", c.line)
		}
		out, err := exec.Command("bash", "-c", strings.Replace(line, "curl ", "curl -sS ", 1)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.line, err, out)
		}
		if c.want != "" && !matches(string(out), c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.line, out, c.want)
		}
		if c.want == "" && bytes.Contains(out, []byte(`"code"`)) {
			t.Errorf("%s\n got %s", c.line, out)
		}
	}
}

func TestMatchesCanFail(t *testing.T) {
	for _, c := range []struct {
		got, want string
		ok        bool
	}{
		{`{"offset":0}`, `{"offset":0}`, true},
		{`{"offset":1}`, `{"offset":0}`, false},
		{`{"timestamp_ms":5,"a":1}`, `{"timestamp_ms":7,"a":1}`, true},
		{`{"code":"x","message":"y"}`, `{"code":"x", ...}`, false},
		{`{"code":"x","message":"y"}`, `{"code":"x",...}`, true},
	} {
		if got := matches(c.got, c.want); got != c.ok {
			t.Errorf("matches(%s, %s) = %v", c.got, c.want, got)
		}
	}
}

// The README shows the two commands of a start, as they are.
func TestQuickStartIsShown(t *testing.T) {
	if n := len(commands(t, "go run ./cmd/mqd -listen 127.0.0.1:8080", "go test ./...")); n != 2 {
		t.Fatalf("%d of the 2 commands are in the README", n)
	}
}

func TestClientCommands(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "mq"), "example.com/mq/cmd/mq")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build mq: %v\n%s", err, out)
	}
	p, err := process.StartReady(process.Config{Binary: process.Binary(t), Data: filepath.Join(t.TempDir(), "data")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	list := commands(t, "echo ", "mq ")
	if len(list) < 4 {
		t.Fatalf("only %d commands of mq found in the README", len(list))
	}
	for _, c := range list {
		line := c.line
		if strings.HasPrefix(line, "mq tail -f") {
			line = "timeout -s INT 1 " + line + " || true" // it would follow for ever
		}
		if strings.HasPrefix(line, "mq bench") {
			line += " --duration 200ms --warmup 50ms"
		}
		cmd := exec.Command("bash", "-c", line)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MQ_URL="+p.URL)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c.line, err, out)
		}
	}
}
