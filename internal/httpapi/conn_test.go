package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/test/process"
)

// TestOversize: a body above the limit is refused on its header alone, or as soon as it passes the limit.
func TestOversize(t *testing.T) {
	s := start(t)
	head := "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n"
	for name, message := range map[string]string{
		"announced":             head + fmt.Sprintf("Content-Length: %d\r\n\r\n", bodyMax+1),
		"announced, huge":       head + "Content-Length: 9000000000000000000\r\n\r\n",
		"announced, some sent":  head + fmt.Sprintf("Content-Length: %d\r\n\r\n{\"topic\":", bodyMax+1),
		"announced, expecting":  head + fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", bodyMax+1),
		"chunked, no announced": head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat(fmt.Sprintf("100000\r\n%s\r\n", strings.Repeat(" ", 1<<20)), 16) + "1\r\n \r\n",
		"one huge chunk":        head + "Transfer-Encoding: chunked\r\n\r\n40000000\r\n" + strings.Repeat(" ", bodyMax+1),
	} {
		c := s.dial()
		c.send(message)
		a := c.receive("POST")
		if a.status != 413 || a.code() != "too_large" || !a.closed {
			t.Errorf("%s: %d %s, closed %v", name, a.status, a.body, a.closed)
		}
		c.atEnd()
	}
	// Exactly the limit is read: white space makes up the rest.
	body := goodBodies[api.PathPublish]
	body += strings.Repeat(" ", bodyMax-len(body))
	if a := s.post(api.PathPublish, body); a.status != 200 {
		t.Errorf("a body of exactly the limit: %d %s", a.status, a.body)
	}
	c := s.dial()
	c.send(head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body))
	if a := c.receive("POST"); a.status != 200 || a.closed {
		t.Errorf("chunked, exactly the limit: %d %s", a.status, a.body)
	}
}

// TestLargestBatch: 32 messages of 256 KiB are legal.
func TestLargestBatch(t *testing.T) {
	s := start(t)
	body := string(benchBody(32, 256<<10))
	for range 2 {
		if a := s.post(api.PathPublishBatch, body); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	c := s.dial()
	c.send("POST /v1/publish-batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
	for rest := body; rest != ""; {
		n := min(len(rest), 100001)
		c.send(fmt.Sprintf("%x\r\n%s\r\n", n, rest[:n]))
		rest = rest[n:]
	}
	c.send("0\r\n\r\n")
	if a := c.receive("POST"); a.status != 200 || a.closed {
		t.Errorf("chunked: %d %s", a.status, a.body)
	}
	waitUntil(t, "all memory is given back", func() bool {
		return s.budget.left.Load() == s.cfg.BodyBudgetBytes && s.chunked.left.Load() == bodyCharge(bodyMax+1)
	})
	if a := s.post(api.PathFetch, `{"topic":"bench","offset":0,"limit":1000}`); a.status != 200 || len(a.json["records"].([]any)) != 16 {
		t.Errorf("fetch: %d, %d bytes", a.status, len(a.body))
	}
}

// TestAnswerReachesSender: a client that sends 100 MB and reads only then finds the answer, not a reset.
func TestAnswerReachesSender(t *testing.T) {
	s := start(t, func(c *Config) { c.ClientToken = "c" })
	const size = 100_000_000
	junk := strings.Repeat("x", 1<<20)
	for name, row := range map[string]struct {
		head   string
		status int
	}{
		"too large":        {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer c\r\n", 413},
		"no token":         {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n", 401},
		"no such path":     {"POST /nope HTTP/1.1\r\nHost: localhost\r\n", 404},
		"malformed header": {"POST /nope HTTP/1.1\r\nHost: localhost\r\nX Y: z\r\n", 400},
		"no host":          {"POST /nope HTTP/1.1\r\n", 400},
	} {
		c := s.dial()
		c.send(row.head + fmt.Sprintf("Content-Length: %d\r\n\r\n", size))
		for range size/len(junk) + 1 {
			c.send(junk)
		}
		if a := c.receive("POST"); a.status != row.status || !a.closed {
			t.Errorf("%s: %d %s, closed %v", name, a.status, a.body, a.closed)
		}
		c.atEnd()
	}
}

// TestCurl sends a body of 12 MB with curl, which asks with Expect: 100-continue first.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		process.Skip(t, "there is no curl here")
	}
	s := start(t)
	run := func(body string, args ...string) string {
		cmd := exec.Command(curl, append([]string{"-sS", "--data-binary", "@-", "-w", " %{http_code}"}, args...)...)
		cmd.Stdin = strings.NewReader(body)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("curl: %v: %s", err, out)
		}
		return string(out)
	}
	url := "http://" + s.addr + api.PathPublishBatch
	body := string(benchBody(32, 256<<10))
	if out := run(body, "-H", "Expect: 100-continue", "-v", url); !strings.Contains(out, "100 Continue") || !strings.HasSuffix(out, " 200") {
		t.Errorf("large body: %.3000s", out)
	}
	if out := run(body, "-H", "Transfer-Encoding: chunked", url); !strings.HasSuffix(out, " 200") {
		t.Errorf("chunked: %.300s", out)
	}
	for _, header := range []string{"Expect:", "Expect: 100-continue"} {
		if out := run(strings.Repeat("x", 100_000_000), "-H", header, url); !strings.HasSuffix(out, " 413") {
			t.Errorf("too large with %q: %.300s", header, out)
		}
	}
}

// TestExpectIsAnsweredBeforeTheBody: what is refused is refused before the client sends the body.
func TestExpectIsAnsweredBeforeTheBody(t *testing.T) {
	s := start(t, func(c *Config) { c.ClientToken = "c" })
	for _, row := range []struct {
		target, header string
		status         int
	}{
		{api.PathPublish, "", 401},
		{"/nope", "", 404},
		{api.PathHealth, "", 405},
		{api.PathPublish, "Origin: http://evil.example\r\n", 403},
		{api.PathPublish, "Authorization: Bearer c\r\n", 100},
	} {
		c := s.dial()
		c.send("POST " + row.target + " HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 24\r\n" + row.header + "\r\n")
		a := c.receive("POST")
		if a.status != row.status {
			t.Errorf("%+v: %d %s", row, a.status, a.body)
		}
		if row.status == 100 {
			c.send(`{"topic":"t","value":""}`)
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("%+v: %d %s", row, a.status, a.body)
			}
		} else {
			c.atEnd()
		}
	}
}

// TestSlowClients: time runs out for who is slow with the header, the body, or reading.
func TestSlowClients(t *testing.T) {
	const header, transfer, idle = time.Second, 1250 * time.Millisecond, 1500 * time.Millisecond
	s := start(t, func(c *Config) { c.HeaderTimeout, c.TransferTimeout, c.IdleTimeout = header, transfer, idle })
	body := goodBodies[api.PathPublish]
	for name, row := range map[string]struct {
		message string
		status  int // 0: closed without an answer
		after   time.Duration
	}{
		"silent":            {"", 0, header},
		"half a line":       {"POST /v1/pub", 408, header},
		"half a header":     {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n", 408, header},
		"no body":           {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n", 408, transfer},
		"half a body":       {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n{", 408, transfer},
		"half a large body": {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n" + strings.Repeat(" ", 9000), 408, transfer + timeFor(50000)},
		"half a chunk":      {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n18\r\n{", 408, transfer},
		"half a chunk size": {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1", 408, transfer},
		"idle":              {request1(api.PathPublish, body), 200, idle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now() // the server's time begins when it accepts
			c := s.in(t).dial()
			c.send(row.message)
			if row.status != 0 {
				if a := c.receive("POST"); a.status != row.status || row.status == 408 && (a.code() != "timeout" || !a.closed) {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
			c.atEnd()
			slack := 8 * time.Second
			if row.after == header {
				slack = 3900 * time.Millisecond // less than what HeaderTimeout is by itself
			}
			if d := time.Since(began); d < row.after-5*time.Millisecond || d > row.after+slack {
				t.Errorf("it took %v, want %v", d, row.after)
			}
		})
	}
	t.Run("drip", func(t *testing.T) { // a byte now and then does not extend the time
		t.Parallel()
		began := time.Now()
		c := s.in(t).dial()
		go func() {
			for _, b := range []byte("POST /v1/publish HTTP/1.1\r\n" + strings.Repeat("X", 4000)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(2 * time.Millisecond) // how slow the client is
			}
		}()
		if a := c.receive("POST"); a.status != 408 {
			t.Errorf("%d %s", a.status, a.body)
		}
		if d := time.Since(began); d > header+6*time.Second { // all of it takes 8 s
			t.Errorf("it took %v", d)
		}
	})
}

// TestSlowReader: who does not take the answer is cut off.
func TestSlowReader(t *testing.T) {
	s := start(t, func(c *Config) { c.TransferTimeout = 50 * time.Millisecond })
	s.post(api.PathPublish, string(benchBody(1, 20<<10)))
	c := s.dial()
	c.Conn.(*net.TCPConn).SetReadBuffer(4096)
	go func() { // requests are small: it is the answers that fill the buffers
		for range 600 {
			if _, err := io.WriteString(c, request1(api.PathFetch, `{"topic":"bench","offset":0}`)); err != nil {
				return
			}
		}
	}()
	began := time.Now()
	waitUntil(t, "it is served", func() bool { return s.fake.callCount() >= 2 })
	waitUntil(t, "it is cut off", func() bool { return s.open() <= 1 })
	if d, limit := time.Since(began), 50*time.Millisecond+timeFor(400<<10); d > limit {
		t.Errorf("after %v, want %v", d, limit)
	}
}

// TestBudget: bodies beyond the memory that is set aside wait for it, and are refused after a while.
func TestBudget(t *testing.T) {
	b := newBudget(100)
	if !b.take(60, 0) || b.take(60, 10*time.Millisecond) {
		t.Fatal("60 of 100 once, not twice")
	}
	if !b.take(40, 0) {
		t.Fatal("a refused one must not block others")
	}
	done := make(chan bool)
	go func() { done <- b.take(50, 10*time.Second) }()
	waitUntil(t, "it waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.queue) == 1 })
	b.give(40)
	b.give(60)
	if !<-done {
		t.Fatal("what waited must get what was given back")
	}
	b.give(50)
	if b.left.Load() != 100 || len(b.queue) != 0 || b.waiting.Load() != 0 {
		t.Fatalf("%d left, %d wait", b.left.Load(), len(b.queue))
	}
}

// TestBudgetLosesNoShare: what is given back just when someone begins to wait reaches him.
func TestBudgetLosesNoShare(t *testing.T) {
	b := newBudget(10)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20_000 {
				if !b.take(10, 5*time.Second) {
					t.Error("a share was lost")
					return
				}
				b.give(10)
			}
		})
	}
	wg.Wait()
	if b.left.Load() != 10 || b.waiting.Load() != 0 {
		t.Errorf("%d left, %d wait", b.left.Load(), b.waiting.Load())
	}
}

// TestBudgetOfChunkedBodies: many clients that do not say how much they send and send little do not lock
// others out.
func TestBudgetOfChunkedBodies(t *testing.T) {
	s := start(t)
	for range 10 {
		c := s.dial()
		c.send(fmt.Sprintf("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", bodyMax, strings.Repeat(" ", 9000)))
	}
	waitUntil(t, "all are being read", func() bool {
		return s.budget.left.Load() == s.cfg.BodyBudgetBytes-10*bodyCharge(chunkedFirst)
	})
	if a := s.post(api.PathPublishBatch, string(benchBody(32, 256<<10))); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestWaitEnds: a client that goes away during a long poll is noticed, in whatever way it goes.
func TestWaitEnds(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half":  func(c *net.TCPConn) { c.CloseWrite() },
		"behind": func(c *net.TCPConn) { // the end comes behind a request that was not read yet
			io.WriteString(c, request1(api.PathHealth, ""))
			c.CloseWrite()
		},
	} {
		s := start(t)
		s.post(api.PathPublish, goodBodies[api.PathPublish])
		c := s.dial()
		began := time.Now()
		c.send(request1(api.PathFetch, `{"topic":"t","offset":1,"wait_ms":20000}`))
		waiting := func() int { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits }
		waitUntil(t, "it waits", func() bool { return waiting() == 1 })
		// Nothing of what the server does meanwhile may end the wait.
		<-time.After(100 * time.Millisecond)
		if waiting() != 1 {
			t.Errorf("%s: the wait ended by itself", name)
		}
		leave(c.Conn.(*net.TCPConn))
		waitUntil(t, "the wait ends", func() bool { return waiting() == 0 })
		if d := time.Since(began); d > 8*time.Second {
			t.Errorf("%s: noticed after %v", name, d)
		}
		if name == "half" { // it still reads: it gets an answer
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		waitUntil(t, "the connection is gone", func() bool { return s.open() <= 1 })
	}
}

// TestWaitIsLongerThanOtherTimes: the deadline for reading a request does not end a long poll.
func TestWaitIsLongerThanOtherTimes(t *testing.T) {
	t.Parallel()
	const other, wait = 2 * time.Second, 3 * time.Second
	s := start(t, func(c *Config) { c.HeaderTimeout, c.TransferTimeout, c.IdleTimeout = other, other, other })
	s.post(api.PathPublish, goodBodies[api.PathPublish])
	began := time.Now()
	a := s.post(api.PathFetch, fmt.Sprintf(`{"topic":"t","offset":1,"wait_ms":%d}`, wait.Milliseconds()))
	if d := time.Since(began); a.status != 200 || d < wait {
		t.Errorf("after %v: %d %s", d, a.status, a.body)
	}
	var publisher sync.WaitGroup
	defer publisher.Wait()
	publisher.Go(func() {
		waitUntil(t, "it waits", func() bool { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits == 1 })
		s.post(api.PathPublish, goodBodies[api.PathPublish])
	})
	if a := s.post(api.PathFetch, `{"topic":"t","offset":1,"wait_ms":10000}`); a.status != 200 || len(a.json["records"].([]any)) != 1 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestShutdown: waits end at once, requests finish, idle connections close, answers say close.
func TestShutdown(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := newFake()
	s, err := New(Config{Broker: fake, Logger: startLogger(), EndWaits: fake.endWaits})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	r := &running{Server: s, fake: fake, addr: ln.Addr().String(), t: t}

	fresh := r.dial() // never sends anything
	idle := r.dial()
	idle.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
	idle.receive("POST")
	poll := r.dial()
	poll.send(request1(api.PathFetch, `{"topic":"t","offset":1,"wait_ms":20000}`))
	half := r.dial() // in the middle of a request
	half.begin("{\"topic\":")
	waitUntil(t, "all are there", func() bool {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		s.mu.Lock()
		n := len(s.conns)
		s.mu.Unlock()
		return fake.waits == 1 && n == 4
	})
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- s.Shutdown(ctx)
	}()
	fresh.atEnd()
	idle.atEnd()
	if a := poll.receive("POST"); a.status != 200 || !a.closed || len(a.json["records"].([]any)) != 0 {
		t.Errorf("long poll: %d %s, closed %v", a.status, a.body, a.closed)
	}
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("it took %v to end what was idle", d)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	select {
	case err := <-done:
		t.Errorf("Shutdown did not wait for the request: %v", err)
	default:
	}
	half.send(`"t","value":""}`)
	if a := half.receive("POST"); a.status != 200 || !a.closed {
		t.Errorf("request under way: %d %s, closed %v", a.status, a.body, a.closed)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener still accepts: %v", err)
	}
}

// TestShutdownCuts: what does not end in time is cut off.
func TestShutdownCuts(t *testing.T) {
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	fake := newFake()
	s, err := New(Config{Broker: fake, Logger: startLogger()})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	r := &running{Server: s, fake: fake, addr: ln.Addr().String(), t: t}
	half := r.dial()
	half.begin("{")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	waitUntil(t, "the connection is gone", func() bool { return s.open() == 0 })
}

// TestShutdownUnderLoad: whoever was answered was answered completely.
func TestShutdownUnderLoad(t *testing.T) {
	for range 5 {
		ln, _ := net.Listen("tcp", "127.0.0.1:0")
		fake := newFake()
		s, err := New(Config{Broker: fake, Logger: startLogger()})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(ln) }()
		var wg sync.WaitGroup
		answered := make([]int, 8)
		for i := range answered {
			wg.Go(func() {
				client := &http.Client{Transport: &http.Transport{}}
				for {
					resp, err := client.Post("http://"+ln.Addr().String()+api.PathPublish, "", strings.NewReader(goodBodies[api.PathPublish]))
					if err != nil {
						return // refused or closed while idle
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || resp.StatusCode != 200 {
						t.Errorf("half an answer: %d %q %v", resp.StatusCode, body, err)
					}
					answered[i]++
				}
			})
		}
		waitUntil(t, "there is load", func() bool { return fake.callCount() > 200 })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		cancel()
		wg.Wait()
		sum := 0
		for _, n := range answered {
			sum += n
		}
		if n := fake.callCount(); n != sum {
			t.Errorf("%d executed, %d answered", n, sum)
		}
		<-served
	}
}

func TestTooManyConnections(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 3 })
	var open []*raw
	for range 3 {
		c := s.dial()
		c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
		c.receive("POST")
		open = append(open, c)
	}
	c := s.dial()
	c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
	if a := c.receive("POST"); a.status != 503 || a.code() != "unavailable" || a.header.Get("Retry-After") == "" || !a.closed {
		t.Errorf("%d %s %v", a.status, a.body, a.header)
	}
	c.atEnd()
	open[0].Close()
	waitUntil(t, "one has left", func() bool { return s.open() == 2 })
	if a := s.post(api.PathPublish, goodBodies[api.PathPublish]); a.status != 200 {
		t.Errorf("after one has left: %d %s", a.status, a.body)
	}
}

// flakyListener fails to accept a few times.
type flakyListener struct {
	net.Listener
	mu   sync.Mutex
	errs []error
}

func (l *flakyListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		l.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	l.mu.Unlock()
	return l.Listener.Accept()
}

func TestAcceptGoesOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, &flakyListener{Listener: ln, errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS}})
	if a := s.post(api.PathPublish, goodBodies[api.PathPublish]); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if !strings.Contains(s.log.String(), "too many open files") {
		t.Errorf("not logged: %s", s.log)
	}
}

// TestHeaderTooLarge: the limit of the header is answered, and the answer arrives.
func TestHeaderTooLarge(t *testing.T) {
	s := start(t)
	c := s.dial()
	c.send("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n")
	if a := c.receive("POST"); a.status != 431 || a.code() != "too_large" || !a.closed {
		t.Errorf("%d %s", a.status, a.body)
	}
	c.atEnd()
}

// TestTruncatedBody: a client that ends before its body does is told so, and nothing is done.
func TestTruncatedBody(t *testing.T) {
	s := start(t)
	for _, message := range []string{
		"Content-Length: 24\r\n\r\n{",
		"Content-Length: 24\r\n\r\n",
		"Content-Length: 50000\r\n\r\n{" + strings.Repeat(" ", 20000),
		"Transfer-Encoding: chunked\r\n\r\n18\r\n{",
		"Transfer-Encoding: chunked\r\n\r\n18\r\n" + `{"topic":"t","value":""}` + "\r\n",
		"Transfer-Encoding: chunked\r\n\r\n18\r\n" + `{"topic":"t","value":""}` + "\r\n0\r\n",
	} {
		c := s.dial()
		c.send("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n" + message)
		c.Conn.(*net.TCPConn).CloseWrite()
		if a := c.receive("POST"); a.status != 400 || !a.closed {
			t.Errorf("%.60q: %d %s", message, a.status, a.body)
		}
		c.atEnd()
	}
	if n := s.fake.callCount(); n != 0 {
		t.Errorf("%d calls reached the broker", n)
	}
}

// TestShutdownFirst: a stop that comes before Serve is not lost.
func TestShutdownFirst(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Broker: newFake(), Logger: startLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := s.Serve(ln); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener still accepts: %v", err)
	}
}
