package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/fact"
)

// lines collects stderr, and tells the address that mqd logs.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	addr chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if m := regexp.MustCompile(`msg=serving`).FindIndex(l.text.Bytes()); m != nil && l.addr != nil {
		if m := regexp.MustCompile(`msg=listening address=(\S+)`).FindSubmatch(l.text.Bytes()); m != nil {
			l.addr <- string(m[1])
			l.addr = nil
		}
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func noEnv(string) (string, bool) { return "", false }

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// Wrong usage ends with status 2 and one line that says what is wrong, and touches nothing.
func TestWrongUsage(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty-token")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		env  func(string) (string, bool)
		want string // in the line
	}{
		{[]string{"-no-such-flag"}, nil, "no-such-flag"},
		{[]string{"extra"}, nil, "extra"},
		{[]string{"-listen", "0.0.0.0:0"}, nil, "TLS (-tls-cert, -tls-key) and a client token"},
		{[]string{"-listen", ":0"}, nil, "not loopback"},
		{[]string{"-listen", "[::]:0", "-client-token", "x"}, nil, "TLS"},
		{[]string{"-listen", "0.0.0.0:0", "-tls-cert", "c", "-tls-key", "k"}, nil, "client token"},
		{[]string{"-listen", "127.0.0.1"}, nil, "-listen"},
		{[]string{"-listen", "127.0.0.1:99999"}, nil, "-listen"},
		{[]string{"-client-token", ""}, nil, "empty"},
		{[]string{"-admin-token", ""}, nil, "empty"},
		{[]string{"-client-token-file", empty}, nil, "empty"},
		{[]string{"-client-token-file", filepath.Join(dir, "none")}, nil, "no such file"},
		{[]string{"-client-token", "a", "-client-token-file", empty}, nil, "exclude"},
		{[]string{"-client-token", "with space"}, nil, "printable"},
		{nil, env("MQ_CLIENT_TOKEN", ""), "MQ_CLIENT_TOKEN"},
		{nil, env("MQ_ADMIN_TOKEN", ""), "MQ_ADMIN_TOKEN"},
		{[]string{"-tls-cert", "c"}, nil, "go together"},
		{[]string{"-role", "king"}, nil, "king"},
		{[]string{"-role", "cluster"}, nil, "token of the cluster"},
		{[]string{"-role", "follower"}, nil, "token of the pair"},
		{[]string{"-role", "leader", "-epoch", "1"}, env("MQ_REPLICATION_TOKEN", "x"), "-replica"},
		{[]string{"-epoch", "1"}, nil, "-epoch"},
		{[]string{"-data", ""}, nil, "-data"},
		{[]string{"-log-format", "xml"}, nil, "xml"},
		{[]string{"-request-id-window", "0s"}, nil, "-request-id-window"},
		{[]string{"-request-id-window", "soon"}, nil, "request-id-window"},
		{[]string{"-segment-bytes", "1"}, nil, "-segment-bytes"},
		{[]string{"-snapshot-bytes", "1"}, nil, "-snapshot-bytes"},
		{[]string{"-retention", "1us"}, nil, "-retention 1µs"},
		{[]string{"-retention", "-1h"}, nil, "-retention"},
		{[]string{"-retention", "forever"}, nil, "12h, 7d or 2w"},
		{[]string{"-retention", "99999999999d"}, nil, "12h, 7d or 2w"},
		{[]string{"-retention-bytes", "-1"}, nil, "-retention-bytes"},
		{[]string{"-retention-bytes", "9007199254740992"}, nil, "-retention-bytes"},
		{[]string{"-retention-records", "-1"}, nil, "-retention-records"},
		{[]string{"-retention-records", "9007199254740992"}, nil, "-retention-records"},
		{[]string{"-debug-listen", "0.0.0.0:0"}, nil, "-debug-listen"},
	} {
		data := filepath.Join(dir, "data")
		args := append([]string{"-data", data, "-listen", "127.0.0.1:0"}, c.args...)
		lookup := c.env
		if lookup == nil {
			lookup = noEnv
		}
		var stderr lines
		if code := run(t.Context(), args, lookup, &stderr); code != exitUsage {
			t.Errorf("%v: status %d, %s", c.args, code, stderr.String())
			continue
		}
		if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want) {
			t.Errorf("%v: got %q, want one line with %q", c.args, got, c.want)
		}
		if _, err := os.Stat(data); err == nil {
			t.Errorf("%v: a data folder was made", c.args)
			os.RemoveAll(data)
		}
	}
}

// TestRetentionFlags: what the flags say reaches the node, in every role.
func TestRetentionFlags(t *testing.T) {
	for _, role := range []string{
		"", "-role follower -replication-token x", "-role leader -replication-token x -epoch 1 -replica http://127.0.0.1:1",
		"-role cluster -raft-token x -raft-self 0 -raft-peers http://127.0.0.1:1",
	} {
		for _, c := range []struct {
			args string
			want fact.Retention
		}{
			{"", fact.Retention{}},
			{"-retention 7d", fact.Retention{MS: 168 * 3600 * 1000}},
			{"-retention 2w", fact.Retention{MS: 14 * 24 * 3600 * 1000}},
			{"-retention 0", fact.Retention{}},
			{"-retention 168h -retention-bytes 1000000 -retention-records 7", fact.Retention{MS: 168 * 3600 * 1000, Bytes: 1000000, Records: 7}},
			{"-retention 1ms", fact.Retention{MS: 1}},
		} {
			o, err := parseFlags(strings.Fields(role+" "+c.args), noEnv, io.Discard)
			if err != nil {
				t.Errorf("%s %s: %v", role, c.args, err)
			} else if got := o.defaults(); got != c.want {
				t.Errorf("%s %s: %+v, want %+v", role, c.args, got, c.want)
			}
		}
	}
}

// Other failures end with status 1 and one line after the log's.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	lost := filepath.Join(dir, "lost")
	if err := os.MkdirAll(filepath.Join(lost, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lost, "log", "00000000000000000001.seg"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-data", file}, "not a folder"},
		{[]string{"-data", filepath.Join(dir, "a"), "-listen", taken.Addr().String()}, "address already in use"},
		{[]string{"-data", lost}, "identity.json"},
		{[]string{"-data", filepath.Join(dir, "b"), "-tls-cert", file, "-tls-key", file}, file},
	} {
		var stderr lines
		if code := run(t.Context(), append([]string{"-listen", "127.0.0.1:0"}, c.args...), noEnv, &stderr); code != exitFailure {
			t.Errorf("%v: status %d, %s", c.args, code, stderr.String())
		}
		all := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		if last := all[len(all)-1]; !strings.HasPrefix(last, "mqd: ") || !strings.Contains(last, c.want) {
			t.Errorf("%v: got %q, want %q", c.args, last, c.want)
		}
	}
}

// start runs mqd in this process and returns its address, and what stops it and returns its exit status.
func start(t *testing.T, lookup func(string) (string, bool), args ...string) (string, *lines, func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stderr := &lines{addr: make(chan string, 1)}
	addr := stderr.addr
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, append([]string{"-listen", "127.0.0.1:0"}, args...), lookup, stderr) }() // ended by stop
	stop := sync.OnceValue(func() int {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { stop() })
	select {
	case a := <-addr:
		return a, stderr, stop
	case code := <-ended:
		ended <- code
		t.Fatalf("mqd ended with status %d: %s", code, stderr.String())
	case <-time.After(20 * time.Second):
		t.Fatalf("mqd does not serve: %s", stderr.String())
	}
	return "", nil, nil
}

func call(t *testing.T, method, url, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// Tokens from a file and from the environment guard what they should, and show up nowhere. A stop is clean.
func TestTokensAndStop(t *testing.T) {
	dir := t.TempDir()
	const client, admin = "client-canary-5f1c", "admin-canary-77aa"
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(client+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, stderr, stop := start(t, env("MQ_ADMIN_TOKEN", admin), "-data", filepath.Join(dir, "data"), "-client-token-file", file)
	base := "http://" + addr
	publish := `{"topic":"t","value":"YQ=="}`
	for _, c := range []struct {
		path, token, body string
		want              int
	}{
		{"/v1/publish", "", publish, 401},
		{"/v1/publish", "wrong", publish, 401},
		{"/v1/publish", client, publish, 200},
		{"/v1/publish", admin, publish, 200},
		{"/v1/snapshot", client, "", 403},
		{"/v1/snapshot", admin, "", 200},
	} {
		got, text := call(t, "POST", base+c.path, c.token, c.body)
		if got != c.want || strings.Contains(text, "canary") {
			t.Errorf("%s with token %q: %d %s, want %d", c.path, c.token, got, text, c.want)
		}
	}
	if got, _ := call(t, "GET", base+"/healthz", "", ""); got != 200 {
		t.Errorf("healthz: %d", got)
	}
	if got, _ := call(t, "GET", base+"/metrics", "", ""); got != 401 {
		t.Errorf("metrics without a token: %d", got)
	}
	if code := stop(); code != exitOK {
		t.Errorf("status %d: %s", code, stderr.String())
	}
	if strings.Contains(stderr.String(), "canary") {
		t.Errorf("a token was logged: %s", stderr.String())
	}
}

// Every metric that docs/operations.md names is there, and counts.
func TestMetricsAreWhatTheDocumentsSay(t *testing.T) {
	addr, _, _ := start(t, noEnv, "-data", filepath.Join(t.TempDir(), "data"))
	base := "http://" + addr
	for range 3 {
		call(t, "POST", base+"/v1/publish", "", `{"topic":"t","value":"YQ==","request_id":"r"}`)
	}
	call(t, "POST", base+"/v1/fetch", "", `{"topic":"t","offset":0}`)
	_, text := call(t, "GET", base+"/metrics", "", "")
	leader, _, _ := start(t, noEnv, "-data", filepath.Join(t.TempDir(), "data"), "-role", "leader", "-epoch", "1",
		"-replica", "http://127.0.0.1:9", "-replication-token", "secret")
	_, pairText := call(t, "GET", "http://"+leader+"/metrics", "", "")
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(mq_[a-z_]+)").FindAllStringSubmatch(string(docs), -1)
	if len(names) < 20 {
		t.Fatalf("only %d metrics found in the document", len(names))
	}
	for _, m := range names {
		text := text
		if strings.HasPrefix(m[1], "mq_pair_") {
			text = pairText
		}
		if !regexp.MustCompile(`(?m)^` + m[1] + `(_bucket|_sum|_count)?[ {]`).MatchString(text) {
			t.Errorf("%s is documented and not served", m[1])
		}
	}
	for _, want := range []string{"mq_published_records_total 1", "mq_publish_duplicates_total 2", "mq_fetched_records_total 1",
		`mq_requests_total{path="/v1/publish",status="200"} 3`, `mq_request_seconds_count{path="/v1/fetch"} 1`, "mq_ready 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^mq_log_sync_seconds_count [1-9]`).MatchString(text) {
		t.Error("no sync was observed")
	}
}

func TestJSONLog(t *testing.T) {
	dir := t.TempDir()
	stderr := &lines{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := run(ctx, []string{"-listen", "127.0.0.1:0", "-data", filepath.Join(dir, "data"), "-log-format", "json"}, noEnv, stderr); code != exitOK {
		t.Fatalf("status %d: %s", code, stderr)
	}
	for _, line := range strings.Split(strings.TrimSpace(stderr.String()), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestHelp(t *testing.T) {
	var stderr lines
	if code := run(t.Context(), []string{"-help"}, noEnv, &stderr); code != exitOK || !strings.Contains(stderr.String(), "-listen") {
		t.Fatalf("status %d: %s", code, stderr.String())
	}
}

// A second process on the same folder is refused whatever its address, and the first is unharmed.
func TestSecondProcess(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	addr, _, _ := start(t, noEnv, "-data", data)
	for range 2 {
		var stderr lines
		if code := run(t.Context(), []string{"-data", data, "-listen", "127.0.0.1:0"}, noEnv, &stderr); code != exitFailure {
			t.Fatalf("status %d", code)
		}
		if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "in use by another process") {
			t.Fatalf("got %q", got)
		}
		os.Remove(filepath.Join(data, "LOCK")) // does not help
	}
	if status, text := call(t, "POST", fmt.Sprintf("http://%s/v1/publish", addr), "", `{"topic":"t","value":""}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
}

// TestProfilerRefusesWebPages: the profiler has no token, so what a page could do with it is refused as calls are.
func TestProfilerRefusesWebPages(t *testing.T) {
	_, stderr, _ := start(t, noEnv, "-data", filepath.Join(t.TempDir(), "data"), "-debug-listen", "127.0.0.1:0")
	m := regexp.MustCompile(`msg=profiler address=(\S+)`).FindStringSubmatch(stderr.String())
	if m == nil {
		t.Fatalf("no profiler: %s", stderr)
	}
	for _, row := range []struct {
		host, name, value string
		want              int
	}{
		{want: 200}, {host: "localhost:1", want: 200}, {host: "[::1]", want: 200},
		{name: "Origin", value: "http://" + m[1], want: 200}, {name: "Sec-Fetch-Site", value: "none", want: 200},
		{host: "evil.example", want: 403}, {host: "127.0.0.1.evil.example", want: 403}, {host: "0.0.0.0", want: 403},
		{name: "Origin", value: "http://evil.example", want: 403}, {name: "Origin", value: "null", want: 403},
		{name: "Sec-Fetch-Site", value: "cross-site", want: 403}, {name: "Sec-Fetch-Site", value: "same-site", want: 403},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+m[1]+"/debug/pprof/goroutine?debug=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Close, r.Host = true, row.host; row.name != "" {
			r.Header.Set(row.name, row.value)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != row.want || strings.Contains(string(text), "goroutine") != (row.want == 200) {
			t.Errorf("%+v: %d %.100s %v", row, answer.StatusCode, text, err)
		}
	}
}
