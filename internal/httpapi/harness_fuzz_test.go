package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs/memfs"
)

// fuzzAdmin and fuzzRaft are the tokens of a server under a fuzzer. There is no client token.
const (
	fuzzAdmin = "a"
	fuzzRaft  = "r"
	fuzzPair  = "p"
)

// published is a record that reached the broker.
type published struct{ topic, key, value string }

// realBroker is a whole node in memory that notes what is published to it.
type realBroker struct {
	*node.Node
	fs *memfs.FS

	mu   sync.Mutex
	seen []published
}

func newRealBroker(t testing.TB, c clock.Clock) *realBroker {
	t.Helper()
	b := &realBroker{fs: memfs.New()}
	var err error
	if b.Node, err = node.Open(node.Config{FS: b.fs, Clock: c, SegmentBytes: 64 << 10, Inline: true, ScrubWithin: -1}); err == nil {
		err = b.Recover()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *realBroker) Publish(p *broker.Publish) (broker.Published, error) {
	b.mu.Lock()
	for _, r := range p.Records {
		b.seen = append(b.seen, published{string(p.Topic), string(r.Key), string(r.Value)})
	}
	b.mu.Unlock()
	return b.Node.Publish(p)
}

// last is the last entry of the log.
func (b *realBroker) last(t testing.TB) uint64 {
	t.Helper()
	info, err := b.BackupBegin()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.BackupEnd(info.Backup); err != nil {
		t.Fatal(err)
	}
	return uint64(info.Index)
}

// seed makes what goodBodies asks for: topic t with two records, and group g.
func (b *realBroker) seed(t testing.TB) {
	t.Helper()
	if _, err := b.Node.Publish(&broker.Publish{Topic: []byte("t"), Records: make([]fact.Record, 2)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CommitGroup([]byte("t"), []byte("g"), 1); err != nil {
		t.Fatal(err)
	}
}

// everyRoute configures all that a server can serve.
func everyRoute(c *Config) {
	echo := func(c net.Conn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }
	status := func() any { return map[string]int{"x": 1} }
	c.AdminToken = fuzzAdmin
	c.Replication = &Replication{Token: fuzzPair, Stream: echo, Status: status}
	c.Raft = &Raft{Token: fuzzRaft, Stream: echo, Role: status, Status: status, Transfer: func(_ context.Context, to int) error {
		if to > 2 {
			return ErrNoSuchNode
		}
		return nil
	}}
	c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "mq_up 1\n") })
}

// observed is the Observer of a fuzzed server: the requests in the order of their answers.
type observed struct {
	mu   sync.Mutex
	list []observation
}

type observation struct {
	route  string
	status int
}

func (o *observed) Request(route string, status int, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, observation{route, status})
}

// pipes is a listener whose connections are pipes in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

// fuzzed is a server with every route, on a whole node in memory, behind pipes.
type fuzzed struct {
	*Server
	broker *realBroker
	pipes  *pipes
	seen   *observed
	log    syncBuffer
	ended  chan error
}

func newFuzzed(t testing.TB, c clock.Clock) *fuzzed {
	t.Helper()
	f := &fuzzed{broker: newRealBroker(t, c), pipes: newPipes(), seen: &observed{}, ended: make(chan error, 1)}
	f.broker.seed(t)
	cfg := Config{Broker: f.broker, Logger: slog.New(slog.NewTextHandler(&f.log, nil)), Observe: f.seen}
	everyRoute(&cfg)
	cfg.Fatal = func(p any) { t.Errorf("a panic of the broker: %v", p) }
	var err error
	if f.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	go func() { f.ended <- f.Serve(f.pipes) }()
	return f
}

// stop ends the server and its node; all that they started has ended then.
func (f *fuzzed) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-f.ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := f.broker.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if open := f.broker.fs.OpenFiles(); len(open) > 0 {
		t.Errorf("files left open: %v", open)
	}
	if text := f.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "request failed") {
		t.Errorf("the log says\n%s", text)
	}
}

// parsedAnswer is one answer as it was sent.
type parsedAnswer struct {
	status int
	header map[string]string // names in lower case
	body   []byte
	isHead bool // it announces a body and has none
}

var (
	statusLine  = regexp.MustCompile(`^HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*$`)
	headerLine  = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([ -~]*)$")
	numberValue = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

// parseAnswers reads what a server sent, byte for byte, and stricter than clients do. rest is what follows the switch to another
// protocol; cut says that the last answer is not complete.
func parseAnswers(sent []byte) (list []parsedAnswer, rest []byte, cut bool, err error) {
	for len(sent) > 0 {
		head, body, ok := bytes.Cut(sent, []byte("\r\n\r\n"))
		if !ok {
			return list, nil, true, nil
		}
		lines := strings.Split(string(head), "\r\n")
		m := statusLine.FindStringSubmatch(lines[0])
		if m == nil {
			return list, nil, false, fmt.Errorf("status line %q", lines[0])
		}
		a := parsedAnswer{header: map[string]string{}}
		a.status, _ = strconv.Atoi(m[1])
		for _, line := range lines[1:] {
			m := headerLine.FindStringSubmatch(line)
			if m == nil {
				return list, nil, false, fmt.Errorf("header line %q", line)
			}
			name := strings.ToLower(m[1])
			if _, twice := a.header[name]; twice {
				return list, nil, false, fmt.Errorf("header %q twice", name)
			}
			a.header[name] = m[2]
		}
		switch a.status {
		case 100:
			sent = body
			continue
		case 101:
			return append(list, a), body, false, nil
		}
		text, ok := a.header["content-length"]
		if !ok || !numberValue.MatchString(text) || a.header["transfer-encoding"] != "" {
			return list, nil, false, fmt.Errorf("the length of the body is not told: %q", head)
		}
		n, _ := strconv.Atoi(text)
		switch isJSON := a.header["content-type"] == string(contentJSON); {
		case n == 0:
		case bytes.HasPrefix(body, []byte("HTTP/1.1 ")), isJSON && len(body) > 0 && body[0] != '{', len(body) == 0:
			a.isHead, n = true, 0
		case len(body) < n:
			return append(list, a), nil, true, nil
		}
		a.body, sent = body[:n], body[n:]
		list = append(list, a)
	}
	return list, nil, false, nil
}

// check says what is wrong with an answer by the contract.
func (a *parsedAnswer) check() error {
	if a.isHead || a.status == 101 {
		return nil
	}
	if a.header["date"] == "" || a.header["server"] != "" {
		return fmt.Errorf("the header is %v", a.header)
	}
	if kind := a.header["content-type"]; kind != string(contentJSON) {
		if a.status == 200 && (kind == string(contentBytes) || strings.HasPrefix(kind, "text/plain")) {
			return nil
		}
		return fmt.Errorf("status %d with content type %q", a.status, kind)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(a.body, &members); err != nil {
		return fmt.Errorf("no JSON object: %w", err)
	}
	if a.status == 200 || a.status == 503 && members["status"] != nil {
		return nil
	}
	var e api.Error
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return fmt.Errorf("no error of the contract: %w", err)
	}
	if e.Code == "" || e.Message == "" {
		return fmt.Errorf("neither code nor message: %s", a.body)
	}
	switch a.status {
	case 400, 401, 403, 404, 405, 408, 409, 410, 413, 426, 431, 503:
		return nil
	}
	return fmt.Errorf("status %d", a.status)
}
