package httpapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/api"
)

const peerToken = "peer-canary-3"

// upgrade is a request for a stream.
func upgrade(headers ...string) string {
	s := "POST " + api.PathReplicationStream + " HTTP/1.1\r\nHost: localhost\r\n"
	for i := 0; i+1 < len(headers); i += 2 {
		s += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	return s + "\r\n"
}

var goodUpgrade = upgrade("Connection", "Upgrade", "Upgrade", api.ProtocolReplication, api.HeaderReplicationToken, peerToken)

// withStream configures replication; nil for a stream that sends back all that it gets.
func withStream(stream func(net.Conn)) func(*Config) {
	if stream == nil {
		stream = func(c net.Conn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }
	}
	return func(c *Config) {
		c.Replication = &Replication{Token: peerToken, Stream: stream, Status: func() any { return api.PairStatus{Role: "follower"} }}
	}
}

// switched reads the 101 of the answer, and nothing behind it. The protocol is that of a pair unless it is given.
func (c *raw) switched(protocol ...string) {
	c.t.Helper()
	want := append(protocol, api.ProtocolReplication)[0]
	resp, err := http.ReadResponse(c.br, &http.Request{Method: "POST"})
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != want || !strings.EqualFold(resp.Header.Get("Connection"), "Upgrade") ||
		resp.Header.Get("Content-Length") != "" || resp.Header.Get("Content-Type") != "" {
		c.t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
}

// echo sends s and wants it back.
func (c *raw) echo(s string) {
	c.t.Helper()
	c.send(s)
	c.expect(s)
}

func (c *raw) expect(s string) {
	c.t.Helper()
	got := make([]byte, len(s))
	if _, err := io.ReadFull(c.br, got); err != nil || string(got) != s {
		c.t.Errorf("got %.100q, %v, want %.100q", got, err, s)
	}
}

// begin sends a publish of 24 bytes down to the beginning of its body, and returns once the server is reading that.
func (c *raw) begin(body string) {
	c.t.Helper()
	c.send("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 24\r\n\r\n")
	c.expect("HTTP/1.1 100 Continue\r\n\r\n")
	c.send(body)
}

func (r *running) dialTLS() *raw {
	r.t.Helper()
	c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return newRaw(r.t, c)
}

// TestStreamHasKernelsBuffers: what bounds the answers to clients does not slow down nodes.
func TestStreamHasKernelsBuffers(t *testing.T) {
	bounds := make(chan int, 1)
	s := start(t, withStream(func(conn net.Conn) {
		n := -1
		if rc, err := conn.(*net.TCPConn).SyscallConn(); err == nil {
			rc.Control(func(fd uintptr) {
				if v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT); err == nil {
					n = v
				}
			})
		}
		bounds <- n
	}))
	c := s.dial()
	c.send(goodUpgrade)
	c.switched()
	if n := <-bounds; n != 0 {
		t.Errorf("the kernel takes %d bytes ahead, want its own bound", n)
	}
}

// TestStream: the connection is handed over as it is, bytes that came early are not lost, and it ends with Stream.
func TestStream(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, certFile, keyFile, 1)
	withTLS, err := LoadTLS(certFile, keyFile, startLogger())
	if err != nil {
		t.Fatal(err)
	}
	const limit = 1500 * time.Millisecond
	for name, config := range map[string]*tls.Config{"plain": nil, "tls": withTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := make(chan string, 1)
			s := start(t, func(c *Config) {
				// Shorter than the test: a stream must not be under the deadlines of a request.
				c.TLS, c.HeaderTimeout, c.IdleTimeout, c.TransferTimeout = config, limit, limit, limit
				withStream(func(conn net.Conn) {
					kinds <- fmt.Sprintf("%T", conn)
					buf := make([]byte, 64<<10)
					for {
						n, err := conn.Read(buf)
						if err != nil {
							return
						}
						if string(buf[:n]) == "last word" {
							conn.Write([]byte("good bye"))
							return
						}
						if _, err := conn.Write(buf[:n]); err != nil {
							return
						}
					}
				})(c)
			})
			dial := s.dial
			want := "*net.TCPConn"
			if config != nil {
				dial, want = s.dialTLS, "*tls.Conn"
			}
			c := dial()
			c.send(goodUpgrade)
			c.switched()
			c.echo("hello")
			<-time.After(limit + 500*time.Millisecond)
			for range 100 {
				c.echo("ping")
			}
			c.send("last word")
			c.expect("good bye")
			c.send(strings.Repeat("x", 100000)) // that nobody reads this must not reset the connection
			c.atEnd()
			c.Close()
			if got := <-kinds; got != want {
				t.Errorf("Stream got a %s, want %s", got, want)
			}

			// Bytes behind the request in the same packet come first, also when there are many.
			for _, early := range []string{"x", "\r\n\r\nPOST /v1/publish HTTP/1.1\r\n\r\n", strings.Repeat("early", 1000), strings.Repeat("0123456789", 10000)} {
				c := dial()
				go c.send(goodUpgrade + early)
				c.switched()
				c.expect(early)
				c.echo("late")
				c.Close()
				<-kinds
			}

			// So they do behind requests that are answered.
			c = dial()
			c.send(request1(api.PathPublish, goodBodies[api.PathPublish]) + goodUpgrade + "early")
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
			c.switched()
			c.expect("early")
			c.Close()
			<-kinds
			waitUntil(t, "all connections are gone", func() bool { return s.open() == 0 })
		})
	}
}

// TestStreamDeadlines: deadlines work as on any connection, on early bytes and behind them.
func TestStreamDeadlines(t *testing.T) {
	got := make(chan error, 3)
	s := start(t, withStream(func(c net.Conn) {
		c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		_, err := io.ReadFull(c, make([]byte, 6))
		got <- err
		c.SetReadDeadline(time.Time{})
		_, err = io.ReadFull(c, make([]byte, 4))
		got <- err
		c.SetDeadline(past)
		_, err = c.Write([]byte("x"))
		got <- err
	}))
	c := s.dial()
	c.send(goodUpgrade + "early")
	c.switched()
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	c.send("more")
	if err := <-got; err != nil {
		t.Errorf("read without a deadline: %v", err)
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
}

// TestStreamRequests: what does not ask properly for a stream is refused, and gets none.
func TestStreamRequests(t *testing.T) {
	s := start(t, withStream(func(net.Conn) { t.Error("a stream was opened") }))
	token, right := api.HeaderReplicationToken, api.ProtocolReplication
	for name, row := range map[string]struct {
		request string
		status  int
	}{
		"no token":            {upgrade("Connection", "Upgrade", "Upgrade", right), 401},
		"wrong token":         {upgrade("Connection", "Upgrade", "Upgrade", right, token, "x"), 401},
		"no token, no else":   {upgrade(), 401},
		"no upgrade":          {upgrade(token, peerToken), 400},
		"no protocol":         {upgrade(token, peerToken, "Connection", "Upgrade"), 400},
		"empty protocol":      {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", ""), 400},
		"no connection":       {upgrade(token, peerToken, "Upgrade", right), 400},
		"keep-alive":          {upgrade(token, peerToken, "Connection", "keep-alive", "Upgrade", right), 400},
		"close":               {upgrade(token, peerToken, "Connection", "close", "Upgrade", right), 400},
		"upgrade and close":   {upgrade(token, peerToken, "Connection", "Upgrade, close", "Upgrade", right), 400},
		"close in two lines":  {upgrade(token, peerToken, "Connection", "Upgrade", "Connection", "close", "Upgrade", right), 400},
		"newer":               {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", "mq-replication/2"), 426},
		"other":               {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", "websocket"), 426},
		"longer":              {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", right+"1"), 426},
		"body":                {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", right, "Content-Length", "4") + "body", 400},
		"chunked":             {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", right, "Transfer-Encoding", "chunked") + "0\r\n\r\n", 400},
		"HTTP/1.0":            {strings.Replace(goodUpgrade, "HTTP/1.1", "HTTP/1.0", 1), 400},
		"HTTP/1.0 that stays": {strings.Replace(upgrade("Connection", "keep-alive", "Connection", "Upgrade", "Upgrade", right, token, peerToken), "HTTP/1.1", "HTTP/1.0", 1), 400},
		"GET":                 {strings.Replace(goodUpgrade, "POST", "GET", 1), 405},
		"origin":              {upgrade(token, peerToken, "Connection", "Upgrade", "Upgrade", right, "Origin", "https://evil.example"), 403},
		"host":                {strings.Replace(goodUpgrade, "localhost", "evil.example", 1), 403},
		"slash":               {strings.Replace(goodUpgrade, "/stream", "/stream/", 1), 404},
	} {
		c := s.dial()
		c.send(row.request)
		a := c.receive("POST")
		if a.status != row.status || a.json["message"] == "" || strings.Contains(a.body+fmt.Sprint(a.header), "canary") {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.body, row.status)
		}
		if row.status == 426 && (a.header.Get("Upgrade") != right || a.header.Get("Connection") != "Upgrade") {
			t.Errorf("%s: header %v", name, a.header)
		}
		if row.status == 401 && a.header.Get("WWW-Authenticate") != token {
			t.Errorf("%s: header %v", name, a.header)
		}
		if !a.closed { // then it goes on as if nothing had been
			c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("after %s: %d %s", name, a.status, a.body)
			}
		}
		c.Close()
	}
	if strings.Contains(s.log.String(), "canary") {
		t.Errorf("a token is in the log: %s", s.log)
	}
}

// TestStreamSpelling: what HTTP leaves to the sender is accepted.
func TestStreamSpelling(t *testing.T) {
	s := start(t, withStream(nil))
	for _, request := range []string{
		upgrade("connection", "keep-alive , UPGRADE", "upgrade", "MQ-Replication/1", "x-replication-token", peerToken),
		upgrade("Connection", "keep-alive", "Connection", "upgrade", "Upgrade", "other/3, mq-replication/1", api.HeaderReplicationToken, peerToken),
		upgrade("Connection", "Upgrade", "Upgrade", api.ProtocolReplication, api.HeaderReplicationToken, peerToken, "Content-Length", "0"),
	} {
		c := s.dial()
		c.send(request)
		c.switched()
		c.echo("x")
	}
}

// TestNoStream: the paths exist only where they are configured.
func TestNoStream(t *testing.T) {
	for name, r := range map[string]*Replication{"none": nil, "no stream": {Token: peerToken, Status: func() any { return api.PairStatus{} }}} {
		s := start(t, func(c *Config) { c.Replication = r })
		c := s.dial()
		c.send(goodUpgrade)
		if a := c.receive("POST"); a.status != 404 {
			t.Errorf("%s: stream: %d %s", name, a.status, a.body)
		}
		want := 404
		if r != nil {
			want = 200
		}
		if a := s.do("GET", api.PathReplicationStatus, "", api.HeaderReplicationToken, peerToken); a.status != want {
			t.Errorf("%s: status: %d %s", name, a.status, a.body)
		}
	}
	for _, r := range []*Replication{{}, {Token: "x"}, {Status: func() any { return nil }}} {
		if _, err := New(Config{Broker: newFake(), Logger: startLogger(), Replication: r}); err == nil {
			t.Errorf("%+v: no error", r)
		}
	}
}

func TestReplicationStatus(t *testing.T) {
	want := api.PairStatus{Role: "leader", NodeID: "n", LogID: "l", Epoch: 7, State: "full_sync", Writable: true, LastIndex: 4, DurableIndex: 3,
		CommittedIndex: 2, AppliedIndex: 1, Peer: api.PairPeer{NodeID: "m", Address: "http://localhost:1", LagEntries: 2, LastContactMS: -1},
		Sync: &api.PairSync{DoneBytes: 1, TotalBytes: 2}}
	s := start(t, func(c *Config) {
		c.Replication = &Replication{Token: peerToken, Status: func() any { return want }}
	})
	a := s.do("GET", api.PathReplicationStatus, "", api.HeaderReplicationToken, peerToken)
	var got api.PairStatus
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if got.Sync == nil || *got.Sync != *want.Sync {
		t.Errorf("sync: %+v", got.Sync)
	}
	got.Sync = want.Sync
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, name := range []string{"role", "node_id", "log_id", "epoch", "state", "writable", "last_index", "durable_index", "committed_index", "applied_index", "peer", "sync"} {
		if _, ok := a.json[name]; !ok {
			t.Errorf("no %s in %s", name, a.body)
		}
	}
}

// serveFor runs a server that the test stops itself.
func serveFor(t *testing.T, change ...func(*Config)) (r *running, stop func(within time.Duration) error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &running{fake: newFake(), addr: ln.Addr().String(), log: &syncBuffer{}, t: t}
	cfg := Config{Broker: r.fake, Logger: startLogger()}
	for _, f := range change {
		f(&cfg)
	}
	if r.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(ln) }()
	return r, func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		err := r.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		return err
	}
}

// TestShutdownOfStreams: a stop closes streams at once, and waits for Stream to return.
func TestShutdownOfStreams(t *testing.T) {
	release, ended := make(chan struct{}), make(chan error, 10)
	s, stop := serveFor(t, withStream(func(c net.Conn) {
		c.Write([]byte("up"))
		_, err := c.Read(make([]byte, 1))
		ended <- err
		<-release
	}))
	var peers []*raw
	for range 10 {
		c := s.dial()
		c.send(goodUpgrade)
		c.switched()
		c.expect("up")
		peers = append(peers, c)
	}
	if n := s.open(); n != 10 {
		t.Errorf("%d connections, want 10", n)
	}
	half := s.dial() // a request under way does not keep streams open
	half.begin("{\"topic\":")
	stopped := make(chan error, 1)
	go func() { stopped <- stop(20 * time.Second) }()
	for range peers {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Stream read: %v", err)
		}
	}
	for _, c := range peers {
		c.atEnd()
	}
	half.send(`"t","value":""}`)
	if a := half.receive("POST"); a.status != 200 || !a.closed {
		t.Errorf("request under way: %d %s", a.status, a.body)
	}
	waitUntil(t, "only streams are left", func() bool { return s.open() == len(peers) })
	select {
	case err := <-stopped:
		t.Errorf("Shutdown did not wait for Stream: %v", err)
	default:
	}
	close(release)
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestShutdownCutsStreams: a Stream that does not return does not hold up a stop for ever.
func TestShutdownCutsStreams(t *testing.T) {
	serving, release := make(chan struct{}), make(chan struct{})
	s, stop := serveFor(t, withStream(func(net.Conn) { close(serving); <-release }))
	c := s.dial()
	c.send(goodUpgrade)
	c.switched()
	<-serving // the answer goes out before Stream is called, which does not begin once the stop has
	if err := stop(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	close(release)
	waitUntil(t, "the stream is gone", func() bool { return s.open() == 0 })
}

// TestShutdownAsStreamsOpen: whenever the stop comes, no stream is left, and none is opened after it.
func TestShutdownAsStreamsOpen(t *testing.T) {
	for range 30 {
		s, stop := serveFor(t, withStream(nil))
		done := make(chan struct{})
		for range 8 {
			go func() {
				defer func() { done <- struct{}{} }()
				for {
					c, err := net.Dial("tcp", s.addr)
					if err != nil {
						return
					}
					c.SetDeadline(time.Now().Add(20 * time.Second))
					io.WriteString(c, goodUpgrade+"x")
					io.CopyN(io.Discard, c, int64(rand.N(200)))
					c.Close()
				}
			}()
		}
		waitUntil(t, "there are streams", func() bool { return s.open() > 3 })
		if err := stop(10 * time.Second); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		for range 8 {
			<-done
		}
	}
}

// TestPanicOfStreamIsFatal: the stream works on what the broker works on.
func TestPanicOfStreamIsFatal(t *testing.T) {
	fatal := make(chan any, 1)
	s := start(t, withStream(func(net.Conn) { panic("stream panic") }), func(c *Config) { c.Fatal = func(p any) { fatal <- p } })
	c := s.dial()
	c.send(goodUpgrade)
	c.switched()
	c.atEnd()
	if p := <-fatal; p != "stream panic" {
		t.Errorf("Fatal got %v", p)
	}
	if log := s.log.String(); !strings.Contains(log, "stream panic") || !strings.Contains(log, "goroutine") {
		t.Errorf("it was not logged: %s", log)
	}
}

// TestHostileUpgrades: requests put together at random from what is right and what is not never get a stream
// without the token, never break the server, and leave no connection behind.
func TestHostileUpgrades(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	streams := make(chan struct{}, 1000)
	s := start(t, withStream(func(net.Conn) { streams <- struct{}{} }))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	secret := "\r\n" + strings.ToLower(api.HeaderReplicationToken) + ": " + peerToken + "\r\n"
	allowed := 0
	for i := range 1000 {
		var b strings.Builder
		b.WriteString(pick("POST", "POST", "POST", "GET", "CONNECT", "PRI") + " " +
			pick(api.PathReplicationStream, api.PathReplicationStream, api.PathReplicationStream+"?x", "*", api.PathReplicationStatus, "http://localhost"+api.PathReplicationStream) +
			" " + pick("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "") + pick("\r\n", "\r\n", "\r\n", "\n"))
		for range rnd.IntN(9) {
			b.WriteString(pick("Host", "Connection", "Upgrade", "Content-Length", "Transfer-Encoding", api.HeaderReplicationToken, api.HeaderReplicationToken, "Expect", "Origin", "\x00", "Sec-Fetch-Site") +
				pick(": ", ":", " : ", "") +
				pick("localhost", "Upgrade", "close", "mq-replication/1", "mq-replication/1, mq-replication/2", "0", "1", "-1", "99999999999999999999", "chunked", peerToken, peerToken, peerToken[:5], "100-continue", "\xff\xfe", strings.Repeat("A", rnd.IntN(9000))) +
				pick("\r\n", "\r\n", "\r\n", "\n", "\r\n ", ""))
		}
		b.WriteString(pick("\r\n", "\r\n", "\r\n", "\n", "") + pick("", "x", goodUpgrade[:20], "0\r\n\r\n"))
		request := b.String()
		if strings.Contains(strings.ToLower(request), secret) {
			allowed++
		}
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, request)
		c.(*net.TCPConn).CloseWrite()
		if answer, err := io.ReadAll(c); err == nil && strings.Contains(string(answer), "canary") {
			t.Errorf("request %d %.300q: the token came back", i, request)
		}
		c.Close()
	}
	waitUntil(t, "all connections are gone", func() bool { return s.open() == 0 })
	if n := len(streams); n > allowed {
		t.Errorf("%d streams, but only %d requests had the token", n, allowed)
	}
	c := s.dial()
	c.send(goodUpgrade)
	c.switched()
	if strings.Contains(s.log.String(), "canary") || strings.Contains(s.log.String(), "panic") {
		t.Errorf("log: %s", s.log)
	}
}
