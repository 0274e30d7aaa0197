package httpapi

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
)

var (
	goodRaftUpgrade = "POST " + api.PathRaftStream + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + api.ProtocolRaft + "\r\n" +
		api.HeaderRaftToken + ": " + raftToken + "\r\n\r\n"
	askRole = "GET " + api.PathRaftRole + " HTTP/1.1\r\nHost: localhost\r\n" + api.HeaderRaftToken + ": " + raftToken + "\r\n\r\n"
)

// counted returns how many connections have each place, and fails if the books are wrong.
func (r *running) counted() (clients, reserve, streams int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		switch c.place {
		case placeClient:
			clients++
		case placeReserve:
			reserve++
		case placeStream:
			streams++
		}
	}
	if clients != r.count.clients || reserve != len(r.count.reserve) || streams != r.count.streams {
		r.t.Errorf("counted %d, %d, %d; the books say %d, %d, %d", clients, reserve, streams, r.count.clients, len(r.count.reserve), r.count.streams)
	}
	return clients, reserve, streams
}

// fillUp opens idle connections until all places of clients are taken.
func (r *running) fillUp() {
	r.t.Helper()
	for range r.cfg.ConnectionsMax {
		r.dial()
	}
	waitUntil(r.t, "all places are taken", func() bool { n, _, _ := r.counted(); return n == r.cfg.ConnectionsMax })
}

// someTLS is a TLS configuration with a certificate of its own.
func someTLS(t *testing.T) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, certFile, keyFile, 1)
	c, err := LoadTLS(certFile, keyFile, startLogger())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNodesGetIn: with all places taken by clients that say nothing, the streams and questions of nodes are served, plain
// and over TLS, and clients are refused as ever.
func TestNodesGetIn(t *testing.T) {
	withTLS := someTLS(t)
	for name, config := range map[string]*tls.Config{"plain": nil, "tls": withTLS} {
		t.Run(name, func(t *testing.T) {
			s := start(t, withStream(nil), withRaft(nil), func(c *Config) { c.TLS, c.ConnectionsMax = config, 5 })
			s.fillUp()
			dial := s.dial
			if config != nil {
				dial = s.dialTLS
			}
			var streams []*raw
			for range 6 {
				c := dial()
				c.send(goodRaftUpgrade + "early")
				c.switched(api.ProtocolRaft)
				c.expect("early")
				streams = append(streams, c)
			}
			c := dial()
			c.send(goodUpgrade)
			c.switched()
			c = dial()
			c.send(askRole)
			if a := c.receive("GET"); a.status != 200 || !a.closed {
				t.Errorf("%d %s, closed: %v", a.status, a.body, a.closed)
			}
			for what, request := range map[string]string{
				"client":      request1(api.PathPublish, goodBodies[api.PathPublish]),
				"wrong token": strings.Replace(goodRaftUpgrade, raftToken, "nope", 1), "other's token": strings.Replace(goodRaftUpgrade, raftToken, peerToken, 1),
				"bare LF": strings.Replace(askRole, "\r\n", "\n", 1), "no path": "GET /raft HTTP/1.1\r\nHost: localhost\r\n\r\n",
			} {
				c := dial()
				c.send(request)
				if a := c.receive("POST"); a.status != 503 || a.code() != "unavailable" || !a.closed {
					t.Errorf("%s: %d %s", what, a.status, a.body)
				}
				c.Close()
			}
			if n := s.fake.callCount(); n != 0 {
				t.Errorf("%d calls were served", n)
			}
			for _, c := range streams {
				c.echo("still here")
			}
			waitUntil(t, "the reserve is empty", func() bool { _, n, _ := s.counted(); return n == 0 })
			if clients, _, n := s.counted(); clients != 5 || n != 7 {
				t.Errorf("%d clients, %d streams", clients, n)
			}
			if strings.Contains(s.log.String(), "canary") {
				t.Errorf("log: %s", s.log)
			}
		})
	}
}

// TestReserveIsNotUsedUp: with all places and the whole reserve taken by connections that say nothing, or half a request,
// the newest still gets in, and those that are silent go by themselves.
func TestReserveIsNotUsedUp(t *testing.T) {
	s := start(t, withRaft(nil), func(c *Config) { c.ConnectionsMax = 2 })
	s.fillUp()
	var silent []*raw
	for i := range 3 * reserveMax {
		c := s.dial()
		if i%2 == 1 {
			c.send(askRole[:len(askRole)-2-i%5])
		}
		silent = append(silent, c)
		if i >= 2*reserveMax && i%8 == 0 {
			c := s.dial()
			c.send(goodRaftUpgrade)
			c.switched(api.ProtocolRaft)
			c.echo("x")
		}
	}
	waitUntil(t, "the reserve is within its limit", func() bool { _, n, _ := s.counted(); return n <= reserveMax })
	began := time.Now()
	for _, c := range silent {
		io.Copy(io.Discard, c) // until the server has closed it
	}
	if d := time.Since(began); d > reserveTimeout+lingerTimeout {
		t.Errorf("they were kept for %v", d)
	}
	waitUntil(t, "they are gone", func() bool { return s.open() == 2+reserveMax/8 })
	if _, n, _ := s.counted(); n != 0 {
		t.Errorf("%d are in the reserve", n)
	}
}

// TestSlowBodyInReserve: a body that trickles in does not hold a place of the reserve beyond its time.
func TestSlowBodyInReserve(t *testing.T) {
	s := start(t, withRaft(nil), func(c *Config) { c.ConnectionsMax = 1 })
	s.fillUp()
	c := s.dial()
	c.send("POST " + api.PathRaftTransfer + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	began := time.Now()
	io.Copy(io.Discard, c)
	if d := time.Since(began); d > reserveTimeout+lingerSilence+5*time.Second {
		t.Errorf("it was kept for %v", d)
	}
}

// TestStreamsDoNotCountAsClients: however many nodes there are, clients have all their places; and streams have a limit.
func TestStreamsDoNotCountAsClients(t *testing.T) {
	s := start(t, withRaft(nil), func(c *Config) { c.ConnectionsMax = 2 })
	var streams []*raw
	for range streamsMax {
		c := s.dial()
		c.send(goodRaftUpgrade)
		c.switched(api.ProtocolRaft)
		streams = append(streams, c)
	}
	c := s.dial()
	c.send(goodRaftUpgrade)
	if a := c.receive("POST"); a.status != 503 || !strings.Contains(a.body, "streams") {
		t.Errorf("%d %s", a.status, a.body)
	}
	c.Close()
	for range 2 {
		c := s.dial()
		c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
		if a := c.receive("POST"); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	streams[0].Close()
	waitUntil(t, "one has left", func() bool { _, _, n := s.counted(); return n == streamsMax-1 })
}

// TestProbesGetIn: while clients have taken all places, how the node is can still be asked, and nothing else.
func TestProbesGetIn(t *testing.T) {
	s := start(t, func(c *Config) {
		c.ConnectionsMax, c.ClientToken, c.Metrics, c.HeaderTimeout = 1, "c", http.NotFoundHandler(), time.Minute
	})
	s.fillUp()
	for _, row := range []struct {
		request string
		status  int
	}{
		{"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
		{"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
		{"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer c\r\n\r\n", 404}, // by what stands in for it
		{"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 503},
		{"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 503},
		{request1(api.PathPublish, goodBodies[api.PathPublish], "Authorization", "Bearer c"), 503},
	} {
		c := s.dial()
		c.send(row.request)
		if a := c.receive("GET"); a.status != row.status || !a.closed {
			t.Errorf("%.20q: %d %s, closed: %v", row.request, a.status, a.body, a.closed)
		}
		c.Close()
	}
	if n := s.fake.callCount(); n != 0 {
		t.Errorf("%d calls were served", n)
	}
	waitUntil(t, "the reserve is empty", func() bool { _, n, _ := s.counted(); return n == 0 })
	began := time.Now()
	s.dial().atEnd() // who says nothing goes soon
	if d := time.Since(began); d < reserveTimeout/2 || d > reserveTimeout+6*time.Second {
		t.Errorf("a silent connection was closed after %v", d)
	}
}

// TestProbesAreBounded: who asks for health and is slow to end holds no connection beyond the reserve.
func TestProbesAreBounded(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 2 })
	s.fillUp()
	const length = 1 << 20 // more than is skipped: the connection lingers
	for range 3 * reserveMax {
		s.dial().send(fmt.Sprintf("GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", length, strings.Repeat("x", prefetchMax)))
	}
	c := s.dial()
	c.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if a := c.receive("GET"); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.counted()
	s.mu.Lock()
	for c := range s.conns {
		if c.place == placeNode {
			t.Error("a connection without a token counts as a node's")
			break
		}
	}
	s.mu.Unlock()
	waitUntil(t, "they are within their limit", func() bool { return s.open() <= 2+reserveMax })
}

// TestPlacesUnderFire: clients, nodes and silent connections come and go at once; in the end all places are free again.
func TestPlacesUnderFire(t *testing.T) {
	s := start(t, withRaft(nil), func(c *Config) { c.ConnectionsMax = 8 })
	requests := []string{"", "POST", request1(api.PathPublish, goodBodies[api.PathPublish]), askRole, goodRaftUpgrade + "x", "\n\n", askRole + askRole}
	done := make(chan error, 8)
	for w := range cap(done) {
		go func() {
			for i := range 150 {
				c, err := net.Dial("tcp", s.addr)
				if err != nil {
					done <- err
					return
				}
				c.SetDeadline(time.Now().Add(time.Duration(1+i%20) * time.Millisecond))
				io.WriteString(c, requests[(w+i)%len(requests)])
				io.Copy(io.Discard, c)
				c.Close()
			}
			done <- nil
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	waitUntil(t, "all are gone", func() bool { return s.open() == 0 })
	if a, b, c := s.counted(); a+b+c != 0 {
		t.Errorf("%d, %d, %d", a, b, c)
	}
	if log := s.log.String(); strings.Contains(log, "panic") {
		t.Error(fmt.Sprint(log))
	}
}
