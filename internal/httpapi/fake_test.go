package httpapi

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// fakeBroker keeps topics in memory and follows the contract.
type fakeBroker struct {
	mu     sync.Mutex
	topics map[string]*fakeTopic
	woken  chan struct{} // closed and replaced when something was published
	ended  chan struct{} // closed by endWaits
	waits  int           // fetches that wait now
	fail   error         // what every call answers, if not nil
	panics bool          // every call panics
	keeps  bool          // see seed
	calls  int
	alive  time.Duration // how often Alive is called
}

type fakeTopic struct {
	start   uint64
	records []fakeRecord
	groups  map[string]uint64
	ids     map[string]fakeID
	own     fact.Retention
	deleted bool
}

type fakeRecord struct {
	key, value []byte
	timeMS     int64
}

type fakeID struct {
	base  uint64
	bytes string
	count int
}

var _ Broker = (*fakeBroker)(nil)

func newFake() *fakeBroker {
	return &fakeBroker{topics: map[string]*fakeTopic{}, woken: make(chan struct{}), ended: make(chan struct{}), alive: 20 * time.Millisecond}
}

// begin counts a call and says whether it fails.
func (f *fakeBroker) begin() error {
	f.calls++
	if f.panics {
		panic("fake panic")
	}
	return f.fail
}

func (f *fakeBroker) endWaits() { close(f.ended) }

func (f *fakeBroker) Publish(p *broker.Publish) (broker.Published, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.Published{}, err
	}
	t := f.topics[string(p.Topic)]
	if t == nil {
		t = &fakeTopic{groups: map[string]uint64{}, ids: map[string]fakeID{}}
		f.topics[string(p.Topic)] = t
	}
	t.deleted = false
	var all strings.Builder
	for _, r := range p.Records {
		if len(p.RequestID) > 0 {
			fmt.Fprintf(&all, "%q%q", r.Key, r.Value)
		}
	}
	base := uint64(len(t.records))
	if len(p.RequestID) > 0 {
		if old, ok := t.ids[string(p.RequestID)]; ok {
			if old.bytes != all.String() {
				return broker.Published{}, broker.ErrRequestIDConflict
			}
			return broker.Published{Base: fact.Offset(old.base), Count: old.count, Duplicate: true}, nil
		}
		t.ids[string(p.RequestID)] = fakeID{base, all.String(), len(p.Records)}
	}
	for _, r := range p.Records {
		t.records = append(t.records, fakeRecord{bytes.Clone(r.Key), bytes.Clone(r.Value), 1700000000000 + int64(len(t.records))})
	}
	close(f.woken)
	f.woken = make(chan struct{})
	return broker.Published{Base: fact.Offset(base), Count: len(p.Records)}, nil
}

func (f *fakeBroker) Fetch(q *broker.Fetch, sink broker.Sink) (broker.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.Page{}, err
	}
	end := time.Now().Add(q.Wait)
	for {
		t := f.topic(q.Topic)
		if t == nil {
			return broker.Page{}, broker.ErrTopicNotFound
		}
		off := uint64(q.Offset)
		if q.ByTime {
			off = t.at(q.FromMS)
		}
		if len(q.Group) > 0 {
			off = max(t.groups[string(q.Group)], t.start)
		}
		if off < t.start {
			return broker.Page{}, &broker.OffsetGoneError{Start: fact.Offset(t.start)}
		}
		stop := time.Now().After(end)
		if off < uint64(len(t.records)) || q.Wait == 0 || stop {
			next, size := min(off, uint64(len(t.records))), 0
			for ; next < uint64(len(t.records)) && next-off < uint64(q.Limit); next++ {
				r := t.records[next]
				if size += len(r.key) + len(r.value); next > off && size > cmp.Or(int(q.MaxBytes), 4<<20) {
					break
				}
				sink.Record(fact.Offset(next), r.key, r.value, r.timeMS)
			}
			return broker.Page{Next: fact.Offset(next), Start: fact.Offset(t.start), End: fact.Offset(len(t.records))}, nil
		}
		woken := f.woken
		f.waits++
		f.mu.Unlock()
		select {
		case <-woken:
		case <-f.ended:
			end = time.Time{}
		case <-time.After(f.alive):
			if q.Alive != nil && !q.Alive() {
				end = time.Time{}
			}
		}
		f.mu.Lock()
		f.waits--
	}
}

func (f *fakeBroker) topicAt(name []byte, off fact.Offset) (*fakeTopic, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	t := f.topic(name)
	if t == nil {
		return nil, broker.ErrTopicNotFound
	}
	if uint64(off) < t.start || uint64(off) > uint64(len(t.records)) {
		return nil, &broker.OffsetRangeError{Start: fact.Offset(t.start), End: fact.Offset(len(t.records))}
	}
	return t, nil
}

func (f *fakeBroker) CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.topicAt(topic, next)
	if err != nil {
		return 0, err
	}
	t.groups[string(group)] = uint64(next)
	return next, nil
}

func (f *fakeBroker) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.topicAt(topic, start)
	if err != nil {
		return 0, err
	}
	t.start = uint64(start)
	return start, nil
}

func (f *fakeBroker) Snapshot() (entry.Index, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return 0, err
	}
	return 42, nil
}

func (f *fakeBroker) setFail(err error) {
	f.mu.Lock()
	f.fail = err
	f.mu.Unlock()
}

func (f *fakeBroker) callCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// waitUntil fails the test when cond does not come true.
func waitUntil(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// syncBuffer is a log that many goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// running is a server under test.
type running struct {
	*Server
	fake *fakeBroker
	addr string
	log  *syncBuffer
	t    testing.TB
	http *http.Client
}

// start runs a server with a fake broker on a loopback port. It ends with the test.
func start(t testing.TB, change ...func(*Config)) *running {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, ln, change...)
}

func startOn(t testing.TB, ln net.Listener, change ...func(*Config)) *running {
	t.Helper()
	r := &running{fake: newFake(), addr: ln.Addr().String(), log: &syncBuffer{}, t: t}
	cfg := Config{Broker: r.fake, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = s
	tr := &http.Transport{MaxIdleConnsPerHost: 16, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	r.http = &http.Client{Transport: tr, Timeout: 30 * time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	json   map[string]any
	closed bool // the server closes the connection
}

func (a *answer) code() string {
	code, _ := a.json["code"].(string)
	return code
}

func (a *answer) field() string {
	f, _ := a.json["field"].(string)
	return f
}

// in is r for a subtest, whose own failures its connections report.
func (r *running) in(t testing.TB) *running {
	sub := *r
	sub.t = t
	return &sub
}

func (r *running) post(path, body string, headers ...string) *answer {
	r.t.Helper()
	return r.do("POST", path, body, headers...)
}

func (r *running) do(method, path, body string, headers ...string) *answer {
	r.t.Helper()
	scheme := "http"
	if r.cfg.TLS != nil {
		scheme = "https"
	}
	req, err := http.NewRequest(method, scheme+"://"+r.addr+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return read(r.t, resp)
}

func read(t testing.TB, resp *http.Response) *answer {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	a := &answer{status: resp.StatusCode, header: resp.Header, body: string(body), closed: resp.Close}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(body, &a.json); err != nil && len(body) > 0 {
			t.Errorf("the answer is not JSON: %v: %q", err, body)
		}
	}
	return a
}

// raw is a plain connection.
type raw struct {
	net.Conn
	t  testing.TB
	br *bufio.Reader
}

func (r *running) dial() *raw {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return newRaw(r.t, c)
}

func newRaw(t testing.TB, c net.Conn) *raw { return &raw{Conn: c, t: t, br: bufio.NewReader(c)} }

func (c *raw) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *raw) receive(method string) *answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.br, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return read(c.t, resp)
}

// atEnd fails the test unless the server closes the connection without another byte.
func (c *raw) atEnd() {
	c.t.Helper()
	rest, err := io.ReadAll(c.br)
	if err != nil || len(rest) > 0 {
		c.t.Errorf("want the end of the connection, got %q, %v", rest, err)
	}
}

func request1(path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", path, len(body))
	for i := 0; i+1 < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	return b.String() + "\r\n" + body
}

func startLogger() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
