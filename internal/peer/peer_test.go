package peer

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/httpapi"
)

const token = "peer-canary-9b1d"

var replication = Protocol{Name: api.ProtocolReplication, Path: api.PathReplicationStream, TokenHeader: api.HeaderReplicationToken}

// certificate makes a self-signed one for localhost and 127.0.0.1, and the pool that trusts it.
func certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mq"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, pool
}

// node runs the HTTP server of a node, and returns its address.
func node(t testing.TB, config *tls.Config, stream func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := httpapi.New(httpapi.Config{
		Broker: struct{ httpapi.Broker }{}, Logger: slog.New(slog.DiscardHandler), TLS: config,
		Replication: &httpapi.Replication{Token: token, Stream: stream, Status: func() any { return nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }() // ended by Shutdown
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		<-served
	})
	return ln.Addr().String()
}

// TestDial: a connection to a real node carries bytes both ways from the first on, and outlives its context.
func TestDial(t *testing.T) {
	config, pool := certificate(t)
	greetAndEcho := func(c net.Conn) {
		io.WriteString(c, "greeting") // before the other side has said a word
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	}
	for name, row := range map[string]struct {
		config *tls.Config
		scheme string
	}{"plain": {nil, "http://"}, "tls": {config, "https://"}} {
		t.Run(name, func(t *testing.T) {
			addr := node(t, row.config, greetAndEcho)
			for _, host := range []string{addr, strings.Replace(addr, "127.0.0.1", "localhost", 1)} {
				ctx, cancel := context.WithCancel(t.Context())
				conn, err := Dial(ctx, Config{URL: row.scheme + host, Token: token, CA: pool, Timeout: 10 * time.Second}, replication)
				if err != nil {
					t.Fatalf("%s: %v", host, err)
				}
				cancel() // must not touch the connection
				if _, ok := conn.(*net.TCPConn); ok != (row.config == nil) {
					t.Errorf("it is a %T", conn)
				}
				for _, s := range []string{"", "hello", strings.Repeat("x", 100000)} {
					go io.WriteString(conn, s)
					want := "greeting" + s
					if s != "" {
						want = s
					}
					got := make([]byte, len(want))
					if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
						t.Fatalf("got %.50q, %v", got, err)
					}
				}
				conn.Close()
			}
		})
	}
}

// TestDialRefused: a node that refuses is understood, and nothing of the token is in the error.
func TestDialRefused(t *testing.T) {
	config, pool := certificate(t)
	stream := func(net.Conn) { t.Error("a stream was opened") }
	plain, secure := node(t, nil, stream), node(t, config, stream)
	other := func(p Protocol, change func(*Protocol)) Protocol { change(&p); return p }
	for name, row := range map[string]struct {
		cfg    Config
		p      Protocol
		status int    // of a RefusedError, 0 for another error
		want   string // in the text
	}{
		"wrong token":        {Config{URL: "http://" + plain, Token: token[:8]}, replication, 401, "unauthenticated"},
		"wrong version":      {Config{URL: "http://" + plain, Token: token}, other(replication, func(p *Protocol) { p.Name = "mq-replication/0" }), 426, "versions that do not go together"},
		"wrong header":       {Config{URL: "http://" + plain, Token: token}, other(replication, func(p *Protocol) { p.TokenHeader = "X-Raft-Token" }), 401, "unauthenticated"},
		"wrong path":         {Config{URL: "http://" + plain, Token: token}, other(replication, func(p *Protocol) { p.Path = "/raft/stream" }), 404, "not_found"},
		"wrong token, tls":   {Config{URL: "https://" + secure, Token: token[:8], CA: pool}, replication, 401, "unauthenticated"},
		"untrusted":          {Config{URL: "https://" + secure, Token: token}, replication, 0, "certificate"},
		"other name":         {Config{URL: "https://" + strings.Replace(secure, "127.0.0.1", "127.0.0.2", 1), Token: token, CA: pool}, replication, 0, "127.0.0.2"},
		"plain to tls":       {Config{URL: "http://" + secure, Token: token}, replication, 0, ""},
		"tls to plain":       {Config{URL: "https://" + plain, Token: token, CA: pool}, replication, 0, "tls handshake"},
		"no token":           {Config{URL: "http://" + plain}, replication, 0, "printable"},
		"token of two lines": {Config{URL: "http://" + plain, Token: token + "\r\nX: y"}, replication, 0, "printable"},
		"beyond":             {Config{URL: "http://192.0.2.1:8080", Token: token}, replication, 0, "unencrypted"},
		"nobody":             {Config{URL: "http://127.0.0.1:1", Token: token}, replication, 0, "connect"},
	} {
		row.cfg.Timeout = 10 * time.Second
		conn, err := Dial(t.Context(), row.cfg, row.p)
		if err == nil {
			conn.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		var refused *RefusedError
		if errors.As(err, &refused) != (row.status != 0) || refused != nil && refused.Status != row.status || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want status %d and %q", name, err, row.status, row.want)
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the token is in the error: %v", name, err)
		}
	}
}

// hostile runs a server that reads a request and then does what it likes.
func hostile(t testing.TB, do func(c net.Conn, request *http.Request)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ended by closing ln
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				do(c, r)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return "http://" + ln.Addr().String()
}

// TestHostileServers: whatever answers, Dial ends in time, with an error that does not hold the token.
func TestHostileServers(t *testing.T) {
	const ok = "HTTP/1.1 101 Switching Protocols\r\n"
	good := ok + "Connection: Upgrade\r\nUpgrade: mq-replication/1\r\n\r\n"
	write := func(s string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) { io.WriteString(c, s) }
	}
	stall := func(s string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) {
			io.WriteString(c, s)
			io.Copy(io.Discard, c) // until the other side gives up
		}
	}
	flood := func(head, s string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) {
			io.WriteString(c, head)
			for {
				if _, err := io.WriteString(c, strings.Repeat(s, 1000)); err != nil {
					return
				}
			}
		}
	}
	elsewhere := hostile(t, func(net.Conn, *http.Request) { t.Error("a redirect was followed") })
	timeout := context.DeadlineExceeded
	for name, row := range map[string]struct {
		do     func(net.Conn, *http.Request)
		is     error
		status int
		want   string
	}{
		"silence":       {stall(""), timeout, 0, ""},
		"half a line":   {stall("HTTP/1.1 1"), timeout, 0, ""},
		"half a header": {stall(ok + "Connection: Upgrade\r\n"), timeout, 0, ""},
		"slow header": {func(c net.Conn, _ *http.Request) {
			for _, b := range []byte(good) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}, timeout, 0, ""},
		"hang up":           {write(""), io.ErrUnexpectedEOF, 0, ""},
		"hang up later":     {write(ok), io.ErrUnexpectedEOF, 0, ""},
		"giant header":      {flood(ok, "X-Y: z\r\n"), errHeadTooLarge, 0, ""},
		"giant line":        {flood(ok, "x"), errHeadTooLarge, 0, ""},
		"garbage":           {flood("", "\x00\xff"), errNotHTTP, 0, ""},
		"another protocol":  {write("220 smtp.example.com ESMTP\r\n\r\n"), errNotHTTP, 0, ""},
		"bad status":        {write("HTTP/1.1 abc\r\n\r\n"), errNotHTTP, 0, ""},
		"bad header":        {write(ok + "no colon\r\n\r\n"), errNotHTTP, 0, ""},
		"no upgrade":        {write(ok + "\r\n"), errNotSwitched, 0, ""},
		"no connection":     {write(ok + "Upgrade: mq-replication/1\r\n\r\n"), errNotSwitched, 0, ""},
		"other upgrade":     {write(ok + "Connection: Upgrade\r\nUpgrade: mq-replication/2\r\n\r\n"), errNotSwitched, 0, ""},
		"redirect":          {write("HTTP/1.1 307 x\r\nLocation: " + elsewhere + "/\r\nContent-Length: 0\r\n\r\n"), nil, 307, ""},
		"moved":             {write("HTTP/1.1 301 x\r\nLocation: " + elsewhere + "/\r\nContent-Length: 0\r\n\r\n"), nil, 301, ""},
		"200":               {write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), nil, 200, ""},
		"100 only":          {write("HTTP/1.1 100 Continue\r\n\r\n"), nil, 100, ""},
		"HTTP/1.0":          {write("HTTP/1.0 502 Bad Gateway\r\n\r\n<html>"), nil, 502, ""},
		"body for ever":     {flood("HTTP/1.1 503 x\r\n\r\n", "x"), nil, 503, ""},
		"chunks for ever":   {flood("HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), nil, 503, ""},
		"body never":        {stall("HTTP/1.1 503 x\r\nContent-Length: 100\r\n\r\n{"), nil, 503, ""},
		"huge length":       {write("HTTP/1.1 503 x\r\nContent-Length: 9223372036854775807\r\n\r\n{"), nil, 503, ""},
		"message of a node": {write("HTTP/1.1 503 x\r\n\r\n" + `{"code":"unavailable","message":"shutting down"}`), nil, 503, "(unavailable): shutting down"},
		"message of a liar": {write("HTTP/1.1 503 x\r\n\r\n" + `{"code":"a\nb","message":"` + strings.Repeat("\\u0000é", 300) + `"}`), nil, 503, "(a b)"},
		"message is a list": {write("HTTP/1.1 503 x\r\n\r\n" + `[1,2]`), nil, 503, ""},
		"token as message": {func(c net.Conn, r *http.Request) {
			secret := r.Header.Get(replication.TokenHeader)
			io.WriteString(c, "HTTP/1.1 503 "+secret+"\r\nX: "+secret+"\r\n\r\n"+`{"code":"`+secret+`","message":"`+secret+` `+secret+`"}`)
		}, nil, 503, "([token]): [token] [token]"},
		"token as status": {func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 "+r.Header.Get(replication.TokenHeader)+"\r\n\r\n")
		}, errNotHTTP, 0, ""},
		"token as header": {func(c net.Conn, r *http.Request) {
			io.WriteString(c, ok+r.Header.Get(replication.TokenHeader)+"\r\n\r\n")
		}, errNotHTTP, 0, ""},
		"token as protocol": {func(c net.Conn, r *http.Request) {
			io.WriteString(c, ok+"Connection: Upgrade\r\nUpgrade: "+r.Header.Get(replication.TokenHeader)+"\r\n\r\n")
		}, errNotSwitched, 0, ""},
	} {
		url := hostile(t, row.do)
		// Only what stalls is ended by the time; all else by what it says.
		limit := 10 * time.Second
		switch {
		case row.is == timeout:
			limit = 100 * time.Millisecond
		case name == "body never": // its header has to come in that time
			limit = 2 * time.Second
		}
		began := time.Now()
		conn, err := Dial(t.Context(), Config{URL: url, Token: token, Timeout: limit}, replication)
		if err == nil {
			conn.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%s: it took %v", name, d)
		}
		var refused *RefusedError
		if errors.As(err, &refused); row.status != 0 && (refused == nil || refused.Status != row.status) || row.is != nil && !errors.Is(err, row.is) {
			t.Errorf("%s: %v", name, err)
		}
		if text := err.Error(); strings.Contains(text, "canary") || strings.ContainsAny(text, "\r\n\x00") || len(text) > 500 || !strings.Contains(text, row.want) {
			t.Errorf("%s: text %q", name, text)
		}
	}
}

// TestRequest: this is what is sent.
func TestRequest(t *testing.T) {
	got := make(chan *http.Request, 1)
	url := hostile(t, func(_ net.Conn, r *http.Request) { got <- r })
	Dial(t.Context(), Config{URL: url, Token: token}, replication)
	r := <-got
	if r.Method != "POST" || r.RequestURI != "/replication/stream" || "http://"+r.Host != url || r.ContentLength != 0 || len(r.TransferEncoding) > 0 ||
		r.Header.Get("Connection") != "Upgrade" || r.Header.Get("Upgrade") != "mq-replication/1" || r.Header.Get("X-Replication-Token") != token || r.Header.Get("Authorization") != "" {
		t.Errorf("%s %s, host %s: %v", r.Method, r.RequestURI, r.Host, r.Header)
	}
}

// TestDialCanceled: the context ends a dial in any of its steps, and the error says so.
func TestDialCanceled(t *testing.T) {
	_, pool := certificate(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, scheme := range []string{"http://", "https://"} {
		for name, ctx := range map[string]context.Context{"before": canceled(0), "during": canceled(50 * time.Millisecond)} {
			if _, err := Dial(ctx, Config{URL: scheme + ln.Addr().String(), Token: token, CA: pool, Timeout: time.Minute}, replication); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v", scheme, name, err)
			}
		}
	}
}

// canceled returns a context that is canceled after d.
func canceled(d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	if d == 0 {
		cancel()
	} else {
		time.AfterFunc(d, cancel)
	}
	return ctx
}

// TestNotInTheClear: a name that is loopback when it is checked and leads elsewhere when it is dialled gets no token.
func TestNotInTheClear(t *testing.T) {
	here, there := net.Pipe() // is nowhere
	defer there.Close()
	there.SetDeadline(time.Now().Add(5 * time.Second))
	sent := make(chan []byte, 1)
	go func() { // ended by closing here
		text, _ := io.ReadAll(there)
		sent <- text
	}()
	_, err := (&target{host: "localhost", address: "localhost:1"}).open(t.Context(), here, Config{Token: token}, replication)
	here.Close()
	if text := <-sent; !errors.Is(err, errInTheClear) || len(text) > 0 {
		t.Errorf("%v, sent %q", err, text)
	}
}

func TestCheck(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:8080", "http://localhost:1", "http://LOCALHOST:8080/", "http://[::1]:8080", "http://127.9.9.9:65535",
		"https://127.0.0.1:8080", "https://mq-2.example.com:8080", "https://10.0.0.2:443/", "https://[2001:db8::1]:8080"} {
		if err := Check(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"", "localhost", "localhost:8080", "127.0.0.1:8080", "//localhost:8080", "http:localhost:8080", "ftp://localhost:1", "mq://localhost:1",
		"http://localhost", "https://localhost", "http://localhost:", "http://localhost:0", "http://localhost:65536", "http://localhost:http", "http://:8080", "http://",
		"http://localhost:8080/x", "http://localhost:8080//", "http://localhost:8080?", "http://localhost:8080?x", "http://localhost:8080#x", "http://u@localhost:8080",
		"https://u:canary@localhost:8080", "http://u:canary@[::1", "http://mq-2.example.com:8080", "http://10.0.0.2:8080", "http://0.0.0.0:8080", "http://[::]:8080",
		"http://localhost.example.com:8080", "http://127.0.0.1.example.com:8080", "http://2130706433:8080", "http://[fe80::1%25lo]:8080", "https://[fe80::1%25eth0]:8080",
		"https://bücher.example:8080", "https://a b:8080", "https://a\r\nX:y:8080", "https://a%0d%0ab:8080", "https://a%20b:8080", "https://a]b:8080", "https://a[b:8080", "https://[::1:8080", "https://[1.2]:8080",
		"https://a,b:8080", "https://a!b:8080", "https://a(b:8080"} {
		err := Check(url)
		if err == nil {
			t.Errorf("%q: no error", url)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// BenchmarkPing compares a round trip over a dialled stream with one over a plain TCP connection.
func BenchmarkPing(b *testing.B) {
	echo := func(c net.Conn) {
		buf := make([]byte, 64)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			c.Write(buf[:n])
		}
	}
	ping := func(b *testing.B, c net.Conn) {
		buf := make([]byte, 64)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
	}
	b.Run("tcp", func(b *testing.B) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer ln.Close()
		go func() { // ended by the other side's Close
			if c, err := ln.Accept(); err == nil {
				echo(c)
				c.Close()
			}
		}()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		ping(b, c)
	})
	b.Run("stream", func(b *testing.B) {
		c, err := Dial(b.Context(), Config{URL: "http://" + node(b, nil, echo), Token: token}, replication)
		if err != nil {
			b.Fatal(err)
		}
		ping(b, c)
	})
}
