package readme

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/mq/test/process"
)

// script returns the commands in a section of a document, in order. What is printed below a command begins with a brace,
// and becomes a look at all that was said so far.
func script(t *testing.T, document, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	section, ok := sectionOf(string(text), heading)
	if !ok {
		t.Fatalf("%s has no section %q", document, heading)
	}
	var commands strings.Builder
	item, code := false, false // within a numbered item; within a block of code, which follows an empty line
	before := ""
	for line := range strings.Lines(section) {
		switch {
		case len(line) > 2 && line[0] >= '1' && line[0] <= '9' && line[1] == '.':
			item = true
		case len(line) > 1 && line[0] != ' ':
			item = false
		}
		indent := "    "
		if item {
			indent = "       "
		}
		command, indented := strings.CutPrefix(line, indent)
		code = indented && (code || strings.TrimSpace(before) == "")
		switch {
		case code && strings.HasPrefix(command, "{"):
			// In brackets, so that it does not find itself: commands are said as well.
			fmt.Fprintf(&commands, "grep -qE '[{]%s' said\n", regexp.QuoteMeta(strings.TrimSpace(command[1:])))
		case code:
			commands.WriteString(command)
		}
		before = line
	}
	return commands.String()
}

// sectionOf returns what stands below a heading of the second level.
func sectionOf(text, heading string) (section string, ok bool) {
	_, section, ok = strings.Cut(text, "\n## "+heading+"\n")
	if !ok {
		return "", false
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section, true
}

// again is a function of the shell that runs a command. A lead that stays where it is for now, since the machine is busy, is
// one that a person would hand over again: so does the function, up to 10 times, and only then.
const again = `again() {
  for try in 1 2 3 4 5 6 7 8 9 10; do
    if answer=$("$@" 2>&1); then printf '%s\n' "$answer"; return; fi
    printf '%s\n' "$answer" >&2
    case $answer in *'status 503: the lead was not handed over: '*'nothing was done; try again later'*) sleep 0.5;; *) return 1;; esac
  done
  return 1
}
`

// handOver is how documents hand over the lead.
var handOver = regexp.MustCompile(`(?m)^mq cluster transfer `)

// What the documents tell to do with two nodes is done as it is written, but for the addresses.
func TestTwoNodes(t *testing.T) {
	for document, starts := range map[string]int{"README.md": 2, "docs/operations.md": 5} {
		t.Run(document, func(t *testing.T) {
			runCommands(t, script(t, document, "Two nodes"), `mqd -role (leader|follower) `, starts, "")
		})
	}
}

// The same with the quick start of a cluster.
func TestCluster(t *testing.T) {
	runCommands(t, script(t, "README.md", cluster), `mqd -role cluster `, 3, "")
}

// The same with all that an operator of a cluster is told to do. In between, each figure that is to be watched is looked for.
func TestClusterRunbook(t *testing.T) {
	commands := script(t, "docs/operations.md", cluster)
	const stop = "kill -TERM $a $b $c; wait $a $b $c\n"
	if strings.Count(commands, stop) != 1 {
		t.Fatalf("the runbook does not end with %q", stop)
	}
	const look = "curl -s http://127.0.0.1:8080/metrics http://127.0.0.1:8081/metrics http://127.0.0.1:8082/metrics >metrics\n"
	metrics := runCommands(t, strings.Replace(commands, stop, look+stop, 1), `(?m)^ *node \d 127\.`, 11, "metrics")
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	section, _ := sectionOf(string(text), cluster)
	documented := map[string]bool{"mq_raft_refused_packets_total": true} // it is absent while there is nothing to count
	for _, name := range regexp.MustCompile(`mq_raft_[a-z_]+`).FindAllString(section, -1) {
		if !documented[name] && !regexp.MustCompile(`(?m)^`+name+`[ {]`).MatchString(metrics) {
			t.Errorf("%s is documented and not served", name)
		}
		documented[name] = true
	}
	for _, found := range regexp.MustCompile(`(?m)^(mq_raft_[a-z_]+)[ {]`).FindAllStringSubmatch(metrics, -1) {
		if !documented[found[1]] {
			t.Errorf("%s is served and not documented", found[1])
			documented[found[1]] = true
		}
	}
	if len(documented) < 20 {
		t.Errorf("only %d figures of a cluster are documented", len(documented))
	}
}

// cluster is the heading of the sections on clusters.
const cluster = "Three nodes and more"

// runCommands runs a script that starts nodes at least so many times, and returns a file that it leaves, if named.
func runCommands(t *testing.T, script, start string, starts int, result string) string {
	if _, err := exec.LookPath("curl"); err != nil {
		process.Skip(t, "there is no curl")
	}
	if n := len(regexp.MustCompile(start).FindAllString(script, -1)); n < starts {
		t.Fatalf("only %d starts of nodes found:\n%s", n, script)
	}
	script = strings.ReplaceAll(script, "go install ./cmd/mqd ./cmd/mq\n", "") // they are built below
	if handOver.MatchString(script) {
		script = again + handOver.ReplaceAllString(script, "again $0")
	}
	bin, dir := t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "example.com/mq/cmd/mq")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build mq: %v\n%s", err, out)
	}
	if err := os.Symlink(process.Binary(t), filepath.Join(bin, "mqd")); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"8080", "8081", "8082"} { // once all is built: they are free now
		address, err := process.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		script = strings.ReplaceAll(script, "127.0.0.1:"+port, address)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail")
	// Bash ends the nodes that it started, and waits for them: they write into the folder until they are gone.
	cmd.Stdin = strings.NewReader("trap 'kill -KILL $(jobs -p) || true; wait || true' EXIT\n" + script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	// What it has started ends with it, however it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	said, err := os.Create(filepath.Join(dir, "said")) // a file: the nodes hold it open after the script has ended
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	err = cmd.Run()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	out, readErr := os.ReadFile(said.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	if err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log")) // where the commands leave them
		for _, name := range logs {
			text, _ := os.ReadFile(name)
			out = fmt.Appendf(out, "\n%s:\n%s", filepath.Base(name), text)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	if result == "" {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, result))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Only a lead that was not handed over is handed over again.
func TestAgain(t *testing.T) {
	for _, c := range []struct {
		said  string
		fails int // times
		tries int
		ok    bool
	}{
		{"mq: http://127.0.0.1:8080: status 503: the lead was not handed over: node 1 is behind: nothing was done; try again later", 2, 3, true},
		{"mq: http://127.0.0.1:8080: status 503: the lead was not handed over: node 1 is behind: nothing was done; try again later", 99, 10, false},
		{"mq: http://127.0.0.1:8080: status 503: no majority: nothing was done; try again later", 2, 1, false},
		{"mq: no node of the cluster leads", 2, 1, false},
	} {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", again+`sleep() { :; }
fake() { echo >>tries; if [ $(wc -l <tries) -le "$2" ]; then echo "$1" >&2; return 1; fi; echo "node 0 leads"; }
again fake "$@"
`, "bash", c.said, fmt.Sprint(c.fails))
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		tries, readErr := os.ReadFile(filepath.Join(cmd.Dir, "tries"))
		if readErr != nil {
			t.Fatal(readErr)
		}
		if (err == nil) != c.ok || len(tries) != c.tries || c.ok != strings.Contains(string(out), "node 0 leads\n") {
			t.Errorf("%q %d times: tried %d times, want %d; %v\n%s", c.said, c.fails, len(tries), c.tries, err, out)
		}
	}
}
