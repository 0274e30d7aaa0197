package httpapi

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/api"
)

// TestUnsentIsBounded: what the kernel holds of an answer that the client does not take is bounded.
func TestUnsentIsBounded(t *testing.T) {
	s := start(t)
	s.fill(64, 64<<10)
	c := s.dial()
	c.Conn.(*net.TCPConn).SetReadBuffer(4096)
	c.send(request1(api.PathFetch, `{"topic":"bench","offset":0,"limit":1000}`))
	var own *conn
	waitUntil(t, "it is accepted", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for x := range s.conns {
			if x.raw.RemoteAddr().String() == c.LocalAddr().String() {
				own = x
			}
		}
		return own != nil
	})
	unsent := func() (n int) {
		rc, err := own.raw.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := rc.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	waitUntil(t, "the kernel takes no more", func() bool { return unsent() >= unsentMax })
	for range 20 { // it would go on growing
		if n := unsent(); n > unsentMax+64<<10 {
			t.Fatalf("%d bytes are held unsent", n)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestTricklersHoldNothing: who announces a body and sends little of it takes no memory from those who send.
func TestTricklersHoldNothing(t *testing.T) {
	s := start(t, func(c *Config) { c.SingleBudgetBytes = bodyCharge(singleMax) })
	const clients = 20
	for i := range clients {
		size := []int{60 << 10, singleMax, bodyMax}[i%3]
		c := s.dial()
		c.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", api.PathPublishBatch, size, strings.Repeat(" ", 20_000)))
	}
	waiting := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			rc, err := c.raw.(syscall.Conn).SyscallConn()
			if err != nil {
				continue
			}
			rc.Control(func(fd uintptr) {
				if v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT); err == nil && v > 1 {
					n++
				}
			})
		}
		return n
	}
	waitUntil(t, "all have announced", func() bool { return waiting() == clients })
	if n := s.singles.left.Load(); n != s.cfg.SingleBudgetBytes {
		t.Errorf("they hold %d bytes", s.cfg.SingleBudgetBytes-n)
	}
	if n := s.budget.left.Load(); n != s.cfg.BodyBudgetBytes {
		t.Errorf("they hold %d bytes", s.cfg.BodyBudgetBytes-n)
	}
	for _, size := range []int{10 << 10, 64 << 10, 256 << 10} {
		if a := s.post(api.PathPublish, string(benchBody(1, size))); a.status != 200 {
			t.Errorf("%d bytes: %d %s", size, a.status, a.body)
		}
	}
}

// TestBodyComesInPieces: a body gets its memory as soon as some of it has come, however it comes.
func TestBodyComesInPieces(t *testing.T) {
	s := start(t)
	for _, size := range []int{prefetchMax, 2 * prefetchMax, 3*prefetchMax + 100, 60 << 10, 256 << 10} {
		body := string(benchBody(1, size*3/4))
		for _, piece := range []int{1 << 10, prefetchMax - 1, shownMin, len(body)} {
			c := s.dial()
			c.send(request1(api.PathPublish, body)[:len(request1(api.PathPublish, body))-len(body)])
			for rest := body; rest != ""; {
				n := min(piece, len(rest))
				c.send(rest[:n])
				rest = rest[n:]
			}
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("%d bytes in pieces of %d: %d %s", len(body), piece, a.status, a.body)
			}
			c.Close()
		}
	}
}

// TestBodyAndFewBuffers: a body is read also where the kernel has less room than awaitBytes would like to see filled.
func TestBodyAndFewBuffers(t *testing.T) {
	for _, buffer := range []int{2 << 10, 8 << 10, 16 << 10, 32 << 10} {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) }); e != nil {
				return e
			}
			return err
		}}
		ln, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := startOn(t, ln)
		for _, size := range []int{15 << 10, 45 << 10, api.MessageMax} {
			for _, piece := range []int{1400, 16 << 10, 1 << 20} {
				c := s.dial()
				for rest := request1(api.PathPublish, string(benchBody(1, size))); rest != ""; {
					n := min(piece, len(rest))
					c.send(rest[:n])
					rest = rest[n:]
				}
				if a := c.receive("POST"); a.status != 200 {
					t.Errorf("a record of %d bytes in pieces of %d into a buffer of %d: %d %s", size, piece, buffer, a.status, a.body)
				}
				c.Close()
			}
		}
	}
}

// TestAwaitSurvivesWake: a stop that takes a connection for an idle one, just before its body is awaited, ends no request.
func TestAwaitSurvivesWake(t *testing.T) {
	s := start(t)
	body := string(benchBody(1, 45<<10))
	request := request1(api.PathPublish, body)
	c := s.dial()
	c.send(request[:20<<10])
	var own *conn
	waitUntil(t, "its body is awaited", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for x := range s.conns {
			if rc, err := x.raw.(syscall.Conn).SyscallConn(); err == nil {
				rc.Control(func(fd uintptr) {
					if v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT); err == nil && v > 1 {
						own = x
					}
				})
			}
		}
		return own != nil
	})
	for range 10 { // it may not have armed its own deadline yet
		own.Conn.SetReadDeadline(past)
		<-time.After(time.Millisecond)
	}
	c.send(request[20<<10:])
	if a := c.receive("POST"); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestLargeBodiesLeaveRoomForOthers: who holds all memory for large bodies keeps no single record out.
func TestLargeBodiesLeaveRoomForOthers(t *testing.T) {
	s := start(t)
	if !s.budget.tryTake(s.cfg.BodyBudgetBytes) {
		t.Fatal("the budget is not full")
	}
	defer s.budget.give(s.cfg.BodyBudgetBytes)
	if a := s.post(api.PathPublish, string(benchBody(1, api.MessageMax))); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	waitUntil(t, "all is given back", func() bool { return s.singles.left.Load() == s.cfg.SingleBudgetBytes })
}
