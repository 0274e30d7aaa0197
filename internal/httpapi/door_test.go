package httpapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/api"
)

// TestRefusedAtTheDoor: who finds no place gets the contract's error, whatever was sent, and what was sent is not executed.
func TestRefusedAtTheDoor(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 1 })
	s.fillUp()
	publish := request1(api.PathPublish, goodBodies[api.PathPublish])
	want := string(appendError(nil, errManyConnections))
	for _, row := range []struct{ method, text string }{
		{"POST", publish}, {"POST", publish + publish}, {"POST", publish[:len(publish)-5]}, {"POST", publish[:30]},
		{"GET", "GET /v1/publish HTTP/1.1\r\n"}, {"HEAD", "HEAD /v1/publish HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"GET", "GET /healthz/ HTTP/1.1\r\nHost: localhost\r\n\r\n"}, {"GET", "GET /" + strings.Repeat("a", 2*doorPeek)},
		{"GET", "GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"GET", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 300)},
		{"POST", request1(api.PathPublish, string(benchBody(1, 100<<10)))},
	} {
		c := s.dial()
		c.send(row.text)
		a := c.receive(row.method)
		if a.status != 503 || !a.closed || a.header.Get("Retry-After") != "1" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%.30q: %d %v, closed: %v", row.text, a.status, a.header, a.closed)
		}
		if row.method != "HEAD" && a.body != want {
			t.Errorf("%.30q: %s, want %s", row.text, a.body, want)
		}
		c.Close()
	}
	if n := s.fake.callCount(); n != 0 {
		t.Errorf("%d calls were served", n)
	}
}

// TestWaitersGetPlaces: a place that becomes free is for who waits at the door, whether it has said something or not.
func TestWaitersGetPlaces(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 2 })
	request := request1(api.PathPublish, goodBodies[api.PathPublish])
	var inside []*raw
	for range 2 {
		inside = append(inside, s.dial())
	}
	waitUntil(t, "all places are taken", func() bool { n, _, _ := s.counted(); return n == 2 })
	for i, early := range []string{"", "POST /v1/pub"} { // the path is not known yet
		c := s.dial()
		c.send(early)
		inside[i].Close()
		waitUntil(t, "it has a place", func() bool { return c.isServed(s) })
		c.send(strings.TrimPrefix(request, early))
		if a := c.receive("POST"); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// isServed reports whether the server has given a connection a place.
func (c *raw) isServed(s *running) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.conns {
		if x.raw.RemoteAddr().String() == c.LocalAddr().String() {
			return true
		}
	}
	return false
}

// TestTheDoorIsCheap: who waits at the door, or is refused there, has no goroutine and no place, and there is a bound.
func TestTheDoorIsCheap(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 1 })
	s.fillUp()
	before := runtime.NumGoroutine()
	var silent []*raw
	for range 3 * doorParked {
		silent = append(silent, s.dial())
	}
	for range doorLeaving {
		c := s.dial()
		c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
		if a := c.receive("POST"); a.status != 503 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines more", n)
	}
	if n := s.open(); n != 1 {
		t.Errorf("%d connections have a place", n)
	}
	// The newest has pushed out the oldest.
	began := time.Now()
	silent[0].atEnd()
	if d := time.Since(began); d > reserveTimeout/2 {
		t.Errorf("the oldest was closed after %v", d)
	}
}

// TestSpeakersKeepNobodyOut: who has begun a request, or a handshake of TLS, and does not go on keeps no node and no probe out,
// however many they are.
func TestSpeakersKeepNobodyOut(t *testing.T) {
	withTLS := someTLS(t)
	for name, config := range map[string]*tls.Config{"G": nil, "GET /healthz": nil, "\x16": withTLS} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			s := start(t, withRaft(nil), func(c *Config) { c.TLS, c.ConnectionsMax = config, 1 })
			s.fillUp()
			dial := s.dial
			if config != nil {
				dial = s.dialTLS
			}
			for range 5 {
				for range doorParked/2 + 10 {
					s.dial().send(name)
				}
				c := dial()
				c.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if a := c.receive("GET"); a.status != 200 {
					t.Fatalf("a probe: %d %s", a.status, a.body)
				}
				c.Close()
				c = dial()
				c.send(goodRaftUpgrade)
				c.switched(api.ProtocolRaft)
				c.Close()
			}
		})
	}
}

// TestDoorUnderFire: the door loses nobody and leaks nothing while clients that speak, are silent and vanish come at once,
// and places become free now and then.
func TestDoorUnderFire(t *testing.T) {
	files := openFiles(t)
	s := start(t, func(c *Config) { c.ConnectionsMax = 4 })
	publish := request1(api.PathPublish, goodBodies[api.PathPublish])
	done := make(chan string, 8)
	for w := range cap(done) {
		go func() {
			for i := range 100 {
				c, err := net.Dial("tcp", s.addr)
				if err != nil {
					done <- err.Error()
					return
				}
				c.SetDeadline(time.Now().Add(20 * time.Second))
				switch (w + i) % 4 {
				case 0: // vanishes
				case 1:
					fmt.Fprint(c, publish[:1+i%len(publish)])
				default:
					fmt.Fprint(c, publish)
					b := make([]byte, 12)
					if n, err := c.Read(b); err != nil || string(b[9:n]) != "200" && string(b[9:n]) != "503" {
						done <- fmt.Sprintf("answer %q %v", b[:n], err)
						return
					}
				}
				c.Close()
			}
			done <- ""
		}()
	}
	for range cap(done) {
		if text := <-done; text != "" {
			t.Error(text)
		}
	}
	waitUntil(t, "all are gone", func() bool { return s.open() == 0 })
	c := s.dial()
	c.send(publish)
	if a := c.receive("POST"); a.status != 200 {
		t.Errorf("afterwards: %d %s", a.status, a.body)
	}
	c.Close()
	waitUntil(t, "no file is left open", func() bool { return openFiles(t) <= files+3 }) // the listener, the poller
}

// openFiles is how many files this process has open.
func openFiles(t *testing.T) (n int) {
	t.Helper()
	for fd := range 4096 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			n++
		}
	}
	return n
}

// TestStopAtTheDoor: a stop sends away who waits at the door, at once.
func TestStopAtTheDoor(t *testing.T) {
	s := start(t, func(c *Config) { c.ConnectionsMax = 1 })
	s.fillUp()
	waiting := s.dial()
	began := time.Now()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, waiting); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) { // it is closed or, in the kernel still, reset
		t.Errorf("%d bytes, %v", n, err)
	}
	if d := time.Since(began); d > reserveTimeout/2 {
		t.Errorf("it took %v", d)
	}
}

// TestJudge: what the first bytes say.
func TestJudge(t *testing.T) {
	s := start(t, withRaft(nil), func(c *Config) { c.Metrics = http.NotFoundHandler() })
	d := &door{s: s.Server}
	for text, want := range map[string]verdict{
		"G": doorWait, "GET": doorWait, "GET ": doorWait, "GET /health": doorWait, "GET /healthz": doorWait, "GET /healthz ": doorPass,
		"GET /healthz\r\n": doorPass, "GET /readyz?verbose ": doorPass, "HEAD /metrics HTTP/1.1\r\n": doorPass,
		"POST " + api.PathRaftStream + " HTTP/1.1": doorPass, "POST /v1/publish ": doorRefuse, "HEAD /v1/publish ": doorRefuseHead,
		"GET  /healthz ": doorRefuse, "nothing of the kind": doorRefuse, strings.Repeat("x", methodMax+1): doorRefuse,
		"GET /" + strings.Repeat("x", doorPeek): doorRefuse, "GET /healthz?" + strings.Repeat("x", doorPeek): doorRefuse,
	} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fds[0], []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := d.judge(fds[1]); got != want {
			t.Errorf("%.40q: %d, want %d", text, got, want)
		}
		unix.Close(fds[0])
		left := make([]byte, 4096)
		if n, err := unix.Read(fds[1], left); err != nil || string(left[:n]) != text {
			t.Errorf("%.40q: left is %.40q %v", text, left[:n], err)
		}
		if got := d.judge(fds[1]); got != doorGone {
			t.Errorf("after the end: %d", got)
		}
		unix.Close(fds[1])
	}
}
