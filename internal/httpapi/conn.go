package httpapi

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// conn is one connection, as fasthttp sees it. It adds five things.
//
//   - Deadlines cost nothing. fasthttp sets three for every request; here they are only noted, and armed
//     when a read or write is about to happen and the armed one is more than a second off.
//   - A connection that ends early lingers: the sending side is closed and what the client still sends is
//     read and dropped for a while. Closing at once would make the kernel answer unread bytes with a reset,
//     and a reset throws away the answer that the client has not read yet.
//   - It knows whether it is idle, so that a stop can end it without hurting a request.
//   - It tells whether the client is still there.
//   - It tells whether fasthttp may hold back the answer before, because requests are pipelined.
type conn struct {
	net.Conn // TCP, or TLS on top of it
	raw      net.Conn
	s        *Server

	// owned by the goroutine that serves the connection
	answered   bool // the answer of a request is complete: the next deadline set is the one for being idle
	linger     bool // see closeAfter
	heard      bool // a byte was received
	lineStart  bool // the next read begins with a request line
	badLine    bool // a request line ended in a bare LF
	begun      bool // a request came before the one that is read or served
	held       bool // see holdsAnswer
	deadlines  int  // set since the last answer
	want       time.Time
	readArmed  time.Time
	writeArmed time.Time
	// acknowledges: what is written next holds an answer "done" to a write: see Config.MayAnswer
	acknowledges bool
	answerSize   int  // of the last answer to a fetch: the next will likely be as large
	handedOver   bool // reads return io.EOF: the connection is a stream's, which reads past this type

	place place // guarded by s.mu: what it counts as

	// deadline is when a connection of the reserve must have shown that it comes from a node; zero for the others.
	deadline time.Time

	idle   atomic.Bool // waiting for the first byte of a request
	closed atomic.Bool
}

func newConn(s *Server, c, raw net.Conn) *conn {
	return &conn{Conn: c, raw: raw, s: s, answered: true}
}

// deadlineSlack is how far an armed deadline may be from the wanted one.
const deadlineSlack = time.Second

// SetReadDeadline notes the deadline. fasthttp calls it first when it begins to wait for a request, and
// again when the first byte of it is there.
func (c *conn) SetReadDeadline(t time.Time) error {
	if !c.deadline.IsZero() && t.After(c.deadline) {
		t = c.deadline
	}
	c.want = t
	c.lineStart = c.answered
	c.deadlines++
	if c.answered {
		c.deadlines = 0
		c.held = c.begun
		c.begun = true
		c.answered = false
		c.idle.Store(true)
	} else if c.idle.Load() {
		c.idle.Store(false)
	}
	return nil
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

var errBareLF = errors.New("request line ends in a bare LF")

func (c *conn) Read(p []byte) (int, error) {
	if c.handedOver {
		return 0, io.EOF
	}
	if c.badLine {
		return 0, errBareLF // do not wait for the CRLF CRLF that such a client will not send
	}
	n, err := c.read(p)
	if n > 0 {
		c.heard = true
		if c.deadlines < 2 {
			c.held = false
		}
		if c.idle.Load() {
			c.idle.Store(false)
		}
		if c.lineStart {
			c.lineStart = false
			c.checkLine(p[:n])
		}
	}
	return n, err
}

// read reads, and arms the deadline that is wanted.
func (c *conn) read(p []byte) (int, error) {
	arm := c.want.Before(c.readArmed) || c.want.Sub(c.readArmed) > deadlineSlack
	for {
		if arm {
			if err := c.Conn.SetReadDeadline(c.want); err != nil {
				return 0, err
			}
			c.readArmed = c.want
		}
		// Shutdown sets stopping and then looks at idle; here idle was set before stopping is read. So one of
		// the two sees the other, and no idle connection sleeps through a stop.
		if c.s.stopping.Load() && c.idle.Load() {
			c.Conn.SetReadDeadline(past)
		}
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.readArmed.Equal(c.want) || !time.Now().Before(c.want) {
			return n, err
		}
		arm = true // the armed deadline was an earlier one
	}
}

// checkLine notes a request line that ends in a bare LF. fasthttp accepts one, and hands on the line without
// its end, so this is the only place to see it. Only the lines at the start of a read are seen; that is what
// a client which does not know better sends.
func (c *conn) checkLine(p []byte) {
	i := bytes.IndexByte(p, '\n')
	if i > 0 && p[i-1] != '\r' {
		c.badLine = true
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if !c.heard {
		return len(p), nil // fasthttp tells a client that never spoke that its time is over: not of use
	}
	limit := c.s.cfg.TransferTimeout + timeFor(len(p))
	want := time.Now().Add(limit)
	if d := want.Sub(c.writeArmed); d > min(deadlineSlack, limit/8) || d < -deadlineSlack {
		if err := c.Conn.SetWriteDeadline(want); err != nil {
			return 0, err
		}
		c.writeArmed = want
	}
	if c.acknowledges {
		c.acknowledges = false
		if !c.s.cfg.MayAnswer() {
			return 0, errMayNotAnswer
		}
	}
	return c.Conn.Write(p)
}

var errMayNotAnswer = errors.New("another node may lead: nothing is acknowledged any more")

// holdsAnswer reports whether the answer before may not have been sent yet. fasthttp sends it unless the whole
// header of the next request is in its buffer already, that is, unless it gets there without a read. The
// deadlines tell where it is: the first is set when it begins to wait for a request, the second when a byte
// of it is there, the third when its header is.
func (c *conn) holdsAnswer() bool { return c.held }

// timeFor is how long n bytes may take at the lowest rate that is allowed.
func timeFor(n int) time.Duration { return time.Duration(n) * (time.Second / rateMin) }

// closeAfter makes the connection end after this answer, and linger then, because the client may not have
// finished sending.
func (c *conn) closeAfter(ctx *fasthttp.RequestCtx) {
	c.linger = true
	ctx.SetConnectionClose()
}

// wakeIdle ends the wait of an idle connection. Any goroutine may call it.
func (c *conn) wakeIdle() {
	if c.idle.Load() {
		c.Conn.SetReadDeadline(past)
	}
}

// Close closes the connection, after lingering where that was asked for.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	if c.linger && c.heard {
		c.drain()
	}
	err := c.Conn.Close()
	c.s.unregister(c)
	return err
}

var drainBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// drain closes the sending side and drops what still comes, for a bounded time and amount.
func (c *conn) drain() {
	if t, ok := c.Conn.(*tls.Conn); ok {
		t.SetWriteDeadline(time.Now().Add(lingerSilence))
		if t.CloseWrite() != nil {
			return
		}
	}
	half, ok := c.raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	buf := drainBuffers.Get().(*[32 << 10]byte)
	defer drainBuffers.Put(buf)
	for end, left := time.Now().Add(lingerTimeout), lingerMax; left > 0; {
		n, err := c.drainRead(buf[:], &end)
		if err != nil {
			return
		}
		left -= n
	}
}

// drainRead reads once, and not for long. It looks for a stop now and then, and moves the end close when it
// sees one: a client that goes on sending must not hold up Shutdown.
func (c *conn) drainRead(buf []byte, end *time.Time) (int, error) {
	for quiet := time.Now().Add(lingerSilence); ; {
		now := time.Now()
		if c.s.stopping.Load() && end.Sub(now) > lingerStop {
			*end = now.Add(lingerStop)
		}
		until := now.Add(lingerStop)
		for _, t := range []time.Time{quiet, *end} {
			if t.Before(until) {
				until = t
			}
		}
		c.raw.SetReadDeadline(until)
		n, err := c.raw.Read(buf)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if now = time.Now(); !now.Before(quiet) || !now.Before(*end) {
			return 0, err
		}
	}
}

// alive reports whether the client has kept its side of the connection open.
func (c *conn) alive() bool {
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	// Control, unlike Read, minds no deadline: the one for reading the request has long passed.
	err = rc.Control(func(fd uintptr) { gone = peerClosed(fd) })
	return err == nil && !gone
}

// peerClosed reports whether the peer of a socket has closed its side, or reset the connection. It sees that
// also behind data that nobody has read yet, such as the farewell of TLS or a pipelined request, where a
// peek at the data would not.
func peerClosed(fd uintptr) bool { return polled(fd, unix.POLLRDHUP) }

// polled reports whether one of the events, or an end of the connection, has come to a socket.
func polled(fd uintptr, events int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return err == nil && n > 0 && p[0].Revents&(events|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		}
	}
}

// awaitBytes waits until n bytes have come that nobody has read, until the kernel has no room for more, until the client
// closes its side, or until the given time. Nothing is held for them meanwhile but what the kernel has. Through TLS it does
// not wait: how much of what comes is content is not known.
func (c *conn) awaitBytes(n int, until time.Time) error {
	sc, ok := c.raw.(syscall.Conn)
	if n <= 0 || !ok || c.Conn != c.raw {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	lowat := func(n int) (err error) {
		if e := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }); e != nil {
			return e
		}
		return err
	}
	there := false // mostly it is
	err = rc.Control(func(fd uintptr) {
		have, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		there = err != nil || have >= n
	})
	if err != nil || there || lowat(n) != nil {
		return err
	}
	defer lowat(1)
	for {
		if err := c.raw.SetReadDeadline(until); err != nil {
			return err
		}
		c.readArmed = until
		// A wake may be an old one, so the kernel is asked. It alone knows when no more fits: its buffer may be smaller than
		// n, or it may be short of memory. It says "readable" then, and may have said so for the last time.
		err := rc.Read(func(fd uintptr) bool { return polled(fd, unix.POLLIN|unix.POLLRDHUP) })
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(until) {
			return err
		}
		// A stop took the connection for an idle one.
	}
}
