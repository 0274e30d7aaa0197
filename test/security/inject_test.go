package security

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"
	"unicode/utf8"

	"example.com/mq/api"
	"example.com/mq/test/process"
)

// odd are names that are legal, and would break a line that is not careful.
var odd = []string{
	`a" level=ERROR msg="forged" topic="b`, `{"level":"ERROR","msg":"forged"}`, `","msg":"forged","x":"`, "a=b c", `back\slash\n\x1b[31m`, "\u202eright to left", "a\u2028b\u2029c",
	"%s%d%n%!", "''`$(id)`;|&>", "../../etc/passwd", "-o", "<script>alert(1)</script>", "\u200bnothing to see", strings.Repeat("é", 127),
}

// illegal are names that are refused.
var illegal = []string{"a\nb", "a\rb", "a\tb", "a\x1b[31mb", "a\x00b", "a\x7fb", "a\u0085b", "a\u009b31mb", "\xff"}

// TestNamesDoNotBreakTheLog has mqd speak of topics whose names look like parts of a log line, and reads the log back.
func TestNamesDoNotBreakTheLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		dir := process.Dir(t)
		n := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "data"), Log: filepath.Join(dir, "log"), Args: []string{"-log-format", format, "-segment-bytes", "1048576"}})
		p := n.StartReady()
		w := newWire(t, p.URL)
		const mark = "here is the value of a record"
		for _, name := range odd {
			body, err := json.Marshal(api.PublishRequest{Topic: name, Value: []byte(mark)})
			if err != nil {
				t.Fatal(err)
			}
			if a := w.send(request{method: "POST", target: api.PathPublish, body: string(body)}); a.status != 200 {
				t.Fatalf("%q: %d %s", name, a.status, a.body)
			}
		}
		for _, name := range illegal {
			quoted := strconv.Quote(name)
			quoted = strings.NewReplacer(`\x`, `\u00`, `\r`, `\u000d`, `\t`, `\u0009`, `\n`, `\u000a`).Replace(quoted)
			if name == "\xff" {
				quoted = "\"\xff\""
			}
			if a := w.send(request{method: "POST", target: api.PathPublish, body: `{"topic":` + quoted + `,"value":""}`}); a.status != 400 {
				t.Errorf("%q: %d %s", name, a.status, a.body)
			}
		}
		if a := w.send(request{method: "POST", target: api.PathSnapshot, headers: []string{bearer(process.AdminToken)}}); a.status != 200 {
			t.Fatalf("snapshot: %d %s", a.status, a.body)
		}
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if flipped := flip(t, n.Data, mark); flipped != len(odd) {
			t.Fatalf("%d records damaged, want %d", flipped, len(odd))
		}
		// A node speaks of damage that it meets once a minute.
		names := odd[:2]
		if each(t) == 1 {
			names = odd
		}
		for _, name := range names {
			p = n.StartReady()
			w = newWire(t, p.URL)
			body, err := json.Marshal(map[string]any{"topic": name, "offset": 0})
			if err != nil {
				t.Fatal(err)
			}
			if a := w.send(request{method: "POST", target: api.PathFetch, body: string(body)}); a.status != 500 {
				t.Errorf("%q: %d %s", name, a.status, a.body)
			}
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			w.close()
		}
		// Paths come from clients, too.
		p = n.StartReady()
		w = newWire(t, p.URL)
		for _, target := range []string{"/x%0alevel=ERROR", "/x\x1b[31m", `/x"level=ERROR`, "/v1/fetch?\x1b[31m=level=ERROR"} {
			w.send(request{method: "POST", target: target, body: "{}"})
		}
		w.close()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		log, err := os.ReadFile(n.Log)
		if err != nil {
			t.Fatal(err)
		}
		readLog(t, format, log, names)
		for _, words := range [][]string{{"log", "dump"}, {"log", "dump", "--records"}, {"log", "verify"}, {"log", "dump", "-o", "json"}, {"log", "verify", "-o", "json"}} {
			out, _ := exec.Command(mqBinary(t), append(words, n.Data)...).CombinedOutput() // the log is damaged
			if len(out) < 100 {
				t.Errorf("mq %v: %s", words, out)
			}
			terminal(t, strings.Join(words, " "), out, slices.Contains(words, "json"))
		}
	}
}

// flip changes a bit of each place in the log where a text stands, and returns how many there were.
func flip(t *testing.T, data, text string) (n int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(data, "log", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(file, []byte(text))
		if err := os.WriteFile(name, bytes.ReplaceAll(file, []byte(text), []byte(strings.ToUpper(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// fields are the names that a line of the log may have.
var fields = strings.Fields("time level msg address role tls data log_id applied_index last_index topics took segment file position first last topic topics err torn bytes damage index entries what " +
	"offset offsets records reason why node count before")

// readLog reads a log back, strictly, and checks that there is a line about each of the names, which says that name.
func readLog(t *testing.T, format string, log []byte, names []string) {
	t.Helper()
	told := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSuffix(string(log), "\n"), "\n") {
		var pairs map[string]string
		var err error
		if format == "json" {
			pairs, err = readJSONLine(line)
		} else {
			pairs, err = readTextLine(line)
		}
		if err != nil {
			t.Errorf("%s, line %d: %v: %s", format, i+1, err, line)
			continue
		}
		terminal(t, "log line", []byte(line), format == "json")
		for key := range pairs {
			if !slices.Contains(fields, key) {
				t.Errorf("%s, line %d has a field %q: %s", format, i+1, key, line)
			}
		}
		if pairs["msg"] == "forged" {
			t.Errorf("%s: a client has written a line of the log: %s", format, line)
		}
		if topic, ok := pairs["topic"]; ok && pairs["msg"] == "damaged records in the log" {
			told[topic] = true
		}
	}
	for _, name := range names {
		if !told[name] {
			t.Errorf("%s: the log does not tell of %q", format, name)
		}
	}
	if len(told) != len(names) {
		t.Errorf("%s: the log tells of %d topics: %v", format, len(told), told)
	}
}

// readTextLine reads what slog's text handler writes: fields key=value, where what is not plain is quoted as in Go.
func readTextLine(line string) (map[string]string, error) {
	pairs := map[string]string{}
	for line != "" {
		key, rest, ok := strings.Cut(line, "=")
		if !ok || strings.ContainsAny(key, "\" ") {
			return nil, fmt.Errorf("no field at %q", line)
		}
		value := ""
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, err
			}
			if value, err = strconv.Unquote(quoted); err != nil {
				return nil, err
			}
			rest = rest[len(quoted):]
		} else if value, _, _ = strings.Cut(rest, " "); true {
			rest = rest[len(value):]
		}
		if _, twice := pairs[key]; twice {
			return nil, fmt.Errorf("field %q stands there twice", key)
		}
		pairs[key] = value
		if line = strings.TrimPrefix(rest, " "); line == rest && rest != "" {
			return nil, fmt.Errorf("no space before %q", rest)
		}
	}
	return pairs, nil
}

// readJSONLine reads an object whose names are different.
func readJSONLine(line string) (map[string]string, error) {
	d := json.NewDecoder(strings.NewReader(line))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("no object: %v", err)
	}
	pairs := map[string]string{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := pairs[key.(string)]; twice {
			return nil, fmt.Errorf("field %q stands there twice", key)
		}
		pairs[key.(string)] = fmt.Sprint(value)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if rest := line[d.InputOffset():]; rest != "" {
		return nil, fmt.Errorf("it goes on: %q", rest)
	}
	return pairs, nil
}

// terminal checks that a text does nothing to a terminal: it is UTF-8, and only text and line ends. In JSON, which is for
// programs, only what would break the lines.
func terminal(t *testing.T, from string, out []byte, isJSON bool) {
	t.Helper()
	if !utf8.Valid(out) {
		t.Errorf("%s: not UTF-8: %.300q", from, out)
	}
	for i, r := range string(out) {
		if r == '\n' || r == ' ' || r == '\t' || unicode.IsPrint(r) || isJSON && r >= ' ' && r != '\u2028' && r != '\u2029' {
			continue
		}
		t.Errorf("%s: %q at byte %d: ...%.200q...", from, r, i, out[max(0, i-60):])
		return
	}
}

// TestStrangersDoNotReachTheTerminal lets mq talk to a server that answers what a terminal would obey.
func TestStrangersDoNotReachTheTerminal(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b]0;owned\x07\x1b[2J\r\nmq: all is well\n\u009b31m\u202e\u2066\x7f\x00\ufeff"
	quoted, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	var status, ran int
	var body string
	var calls atomic.Int64
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if status == 307 {
			w.Header()["Location"] = []string{"http://\u009b31m.example/" + "\u202e"}
		}
		w.Header().Set("Content-Type", "application/json; \u202e")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	defer h.Close()
	for i, row := range []struct {
		status int
		body   string
	}{
		{401, `{"code":"unauthenticated","message":$}`}, {403, `{"code":"permission_denied","message":$}`}, {404, `{"code":"topic_not_found","message":$}`},
		{400, `{"code":"invalid_argument","message":$,"field":$}`}, {400, `{"code":$,"message":$}`}, {503, `{"code":"not_leader","message":$,"leader":$}`},
		{307, `{"code":"not_leader","message":$,"leader":$}`}, {307, ``}, {502, evil}, {500, `{"code":"data_corrupt","message":$,"first_offset":0,"last_offset":1}`}, {418, `$`},
		{200, `{"topics":[{"topic":$,"start_offset":0,"end_offset":1,"records":1,"bytes":1}],"groups":[{"group":$,"topic":$,"next_offset":0,"lag":1}]}`},
		{200, `{"topic":$,"start_offset":0,"end_offset":1,"records":1,"bytes":1,"settings":{},"own":[$],"groups":[{"group":$,"topic":$,"next_offset":0,"lag":1}],"groups_n":2}`},
		{200, `{"role":$,"node":0,"term":1,"leader":$,"commit_index":1,"applied_index":1,"phase":$,"reason":$,"nodes":[{"node":0,"url":$,"error":$}]}`},
		{200, `{"role":"leader","node_id":$,"log_id":$,"epoch":1,"state":$,"reason":$,"writable":true,"peer":{"node_id":$}}`},
		{200, `{"role":"leader","node":0,"term":1,"leader":$,"commit_index":1,"applied_index":1,"phase":"whole","reason":$}`},
		{200, `{"records":[{"offset":0,"key":"G10w","value":"G1sySg3CmzMxbeKArg==","timestamp_ms":1}],"next_offset":1,"start_offset":0,"end_offset":1}`},
		{200, `{"backup":$,"log_id":$,"index":1,"segments":[{"first":1,"last":1,"bytes":1}]}`},
		{200, evil},
	} {
		status, body = row.status, strings.ReplaceAll(row.body, "$", string(quoted))
		for k, words := range [][]string{
			{"topic", "list"}, {"topic", "describe", "t"}, {"group", "list"}, {"fetch", "t"}, {"pub", "t", "v"}, {"cluster", "status"}, {"pair", "status"},
			{"cluster", "transfer", "--to", "0"}, {"backup", "take", filepath.Join(t.TempDir(), "b")}, {"cluster", "status", "-o", "json"}, {"topic", "list", "-o", "json"},
		} {
			if (11*i+k)%each(t) != 0 {
				continue
			}
			ran++
			var out, errs bytes.Buffer
			run := func(timeout string) {
				c := exec.Command(mqBinary(t), append(words, "--url", h.URL, "--timeout", timeout)...)
				c.Env = append(os.Environ(), "MQ_RAFT_TOKEN=raft-token", "MQ_REPLICATION_TOKEN=replication-token")
				out.Reset()
				errs.Reset()
				c.Stdout, c.Stderr = &out, &errs
				c.Run() // mostly it fails
			}
			before := calls.Load()
			if run("20ms"); calls.Load() == before { // perhaps its time was over before the request left
				run("2s")
			}
			name := fmt.Sprintf("%d %.60s: mq %s", row.status, row.body, strings.Join(words, " "))
			terminal(t, name, out.Bytes(), slices.Contains(words, "json"))
			terminal(t, name+" says", errs.Bytes(), false)
			if strings.Contains(errs.String(), "\nmq: all is well") || strings.Contains(out.String(), "\nmq: all is well") {
				t.Errorf("%s: the server has written a line of its own: %q %q", name, out.String(), errs.String())
			}
		}
	}
	if calls := int(calls.Load()); calls < ran/2 {
		t.Errorf("only %d requests came of %d commands", calls, ran)
	}
}

// TestTerminalCheck: the check sees what it looks for.
func TestTerminalCheck(t *testing.T) {
	for _, bad := range []string{"\x1b[31m", "\r", "\x00", "\x7f", "\u009b", "\u202e", "\u200b", "\ufeff", "\u2028", "\xff"} {
		fake := &testing.T{}
		terminal(fake, "", []byte("text "+bad+" text"), false)
		if !fake.Failed() {
			t.Errorf("%q passes", bad)
		}
	}
	terminal(t, "good", []byte("é 日本 😀\n\ttext \\x1b"), false)
	if _, err := readTextLine(`a=b c="d e" f=`); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`a=b b`, `a="x"b=c`, `a=b a=c`, `"a"=b`, `a="b`} {
		if pairs, err := readTextLine(bad); err == nil {
			t.Errorf("%s is read as %q", bad, pairs)
		}
	}
	for _, bad := range []string{`{"a":1}{"b":1}`, `{"a":1,"a":2}`, `x`} {
		if pairs, err := readJSONLine(bad); err == nil {
			t.Errorf("%s is read as %q", bad, pairs)
		}
	}
}
