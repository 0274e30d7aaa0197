package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Target is the server that a crowd turns to. Only Address must be set.
type Target struct {
	Address string        // host:port
	Token   string        // of a client; empty: none is shown
	Topic   string        // that is read and published to; default "crowd"
	Pace    time.Duration // between two bytes of the slow; default 1 s
	// Return opens a connection anew when the server has ended it, after one Pace. So the crowd keeps its size.
	Return bool
	// Dial connects. Default: TCP. What it returns need not be TCP, but then resets and silent ends may go unseen.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Crowd is clients that do the same, each on a connection of its own.
type Crowd struct {
	target  Target
	script  script
	cancel  context.CancelFunc
	members sync.WaitGroup
	dials   chan struct{} // holds a token for each attempt to connect that is under way

	opened, refused, alive, closed, reset, sent, received atomic.Int64

	mu      sync.Mutex // guards what follows
	answers map[int]int64
	last    error // why the last attempt to connect failed
}

// Counts is what has become of a crowd so far.
type Counts struct {
	Opened   int64         // connections that were made
	Refused  int64         // attempts to connect that failed
	Alive    int64         // connections that are open, as far as the client can tell
	Closed   int64         // connections that the server closed in order
	Reset    int64         // connections that ended with an error
	Sent     int64         // bytes
	Received int64         // bytes
	Answers  map[int]int64 // heads of answers, by status
}

func (c Counts) String() string {
	return fmt.Sprintf("opened %d, refused %d, alive %d, closed %d, reset %d, sent %d B, received %d B, answers by status %v",
		c.Opened, c.Refused, c.Alive, c.Closed, c.Reset, c.Sent, c.Received, c.Answers)
}

// script is what each client of a crowd does on its connection.
type script struct {
	first func(i int) []byte       // sent at once by client i
	drip  func(i, k int) []byte    // sent after it, for k = 0, 1, ...; nil for nothing
	fast  bool                     // drip without a pause
	read  reading                  // how answers are read
	half  bool                     // the client closes its side after the first part
	leave func(i, k int) departure // whether client i ends its k-th connection by itself; nil: it stays
}

type reading int

const (
	readAll  reading = iota // as they come
	readSlow                // one byte at each Pace
	readNone                // never
)

type departure int

const (
	stay       departure = iota
	afterReply           // once something was answered
	atOnce               // by a reset, with the first part hardly sent
)

// dialsMax is how many clients of a crowd connect at the same time.
const dialsMax = 128

// gather begins a crowd of n. It returns when each client has tried to connect once, with an error when none could.
func gather(ctx context.Context, t Target, n int, s script) (*Crowd, error) {
	if t.Topic == "" {
		t.Topic = "crowd"
	}
	if t.Pace == 0 {
		t.Pace = time.Second
	}
	if t.Dial == nil {
		d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1}
		if s.read != readAll {
			d.Control = smallBuffer
		}
		t.Dial = d.DialContext
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Crowd{target: t, script: s, cancel: cancel, dials: make(chan struct{}, dialsMax), answers: map[int]int64{}}
	var tried sync.WaitGroup
	tried.Add(n)
	for i := range n {
		c.members.Go(func() { c.live(ctx, i, sync.OnceFunc(tried.Done)) }) // ends with Stop
	}
	tried.Wait()
	if c.opened.Load() == 0 && n > 0 {
		c.Stop()
		return nil, fmt.Errorf("none of %d clients could connect to %s: %w", n, t.Address, c.lastError())
	}
	return c, nil
}

// smallBuffer makes the receive buffer of a connection as small as the kernel lets it be, so that what is not read
// stays with the server.
func smallBuffer(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
}

// Stop closes all connections and returns when all clients have ended.
func (c *Crowd) Stop() {
	c.cancel()
	c.members.Wait()
}

// Counts returns what has become of the crowd.
func (c *Crowd) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := Counts{
		Opened: c.opened.Load(), Refused: c.refused.Load(), Alive: c.alive.Load(), Closed: c.closed.Load(), Reset: c.reset.Load(),
		Sent: c.sent.Load(), Received: c.received.Load(), Answers: map[int]int64{},
	}
	for status, k := range c.answers {
		n.Answers[status] = k
	}
	return n
}

func (c *Crowd) lastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// live is one client. tried is called after its first attempt to connect.
func (c *Crowd) live(ctx context.Context, i int, tried func()) {
	defer tried()
	for k := 0; ctx.Err() == nil; k++ {
		conn, err := c.dial(ctx)
		leaves := stay
		if c.script.leave != nil {
			leaves = c.script.leave(i, k)
		}
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return
		case err != nil:
			c.refused.Add(1)
			c.mu.Lock()
			c.last = err
			c.mu.Unlock()
		default:
			c.opened.Add(1)
			c.alive.Add(1)
			tried()
			c.attend(ctx, i, leaves, conn)
			c.alive.Add(-1)
		}
		tried()
		switch {
		case leaves != stay && err == nil:
		case !c.target.Return || !pause(ctx, c.target.Pace):
			return
		}
	}
}

func (c *Crowd) dial(ctx context.Context) (net.Conn, error) {
	select {
	case c.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-c.dials }()
	return c.target.Dial(ctx, "tcp", c.target.Address)
}

// attend is the life of one connection. It returns when the connection is closed.
func (c *Crowd) attend(ctx context.Context, i int, leaves departure, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	end := func(err error) {
		switch {
		case ctx.Err() != nil: // the crowd was stopped
		case errors.Is(err, io.EOF):
			c.closed.Add(1)
		default:
			c.reset.Add(1)
		}
	}
	if tcp, ok := conn.(*net.TCPConn); ok && leaves == atOnce {
		tcp.SetLinger(0)
	}
	first := c.script.first(i)
	m := &member{Crowd: c, conn: conn, heads: heads{note: c.note}}
	if err := m.write(ctx, first); err != nil {
		end(err)
		return
	}
	if leaves == atOnce {
		return
	}
	if tcp, ok := conn.(interface{ CloseWrite() error }); ok && c.script.half {
		if err := tcp.CloseWrite(); err != nil {
			end(err)
			return
		}
	}
	for k := 0; ; k++ {
		if err := m.readFor(ctx, c.script.drip != nil && c.script.fast); err != nil {
			end(err)
			return
		}
		if leaves == afterReply && m.heads.seen > 0 {
			return
		}
		if c.script.drip == nil {
			continue
		}
		if err := m.write(ctx, c.script.drip(i, k)); err != nil {
			end(err)
			return
		}
	}
}

func (c *Crowd) note(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[status]++
}

// member is one connection of a crowd.
type member struct {
	*Crowd
	conn  net.Conn
	heads heads
}

// write sends all, however long the server takes to read it. Where it does not read, answers are looked at meanwhile.
func (m *member) write(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		m.conn.SetWriteDeadline(time.Now().Add(m.target.Pace))
		n, err := m.conn.Write(p)
		m.sent.Add(int64(n))
		p = p[n:]
		if err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			if err != nil {
				// The answer may have come before the end did.
				for m.read(0) == nil {
				}
				return err
			}
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			return err
		}
		if err := m.readFor(ctx, true); err != nil {
			return err
		}
	}
	return nil
}

// readFor reads, in the way of the script, for one Pace, or, at once, only what is there. It returns an error when the
// connection has ended.
func (m *member) readFor(ctx context.Context, once bool) error {
	wait := m.target.Pace
	if once {
		wait = 0
	}
	switch m.script.read {
	case readNone:
		if !once && !pause(ctx, wait) {
			return ctx.Err()
		}
		return m.gone()
	case readSlow:
		if !once && !pause(ctx, wait) {
			return ctx.Err()
		}
		if err := m.gone(); err != nil {
			return err
		}
		return m.readSome(0, 1)
	}
	return m.read(wait)
}

// read reads for so long, or, with 0, what is there. A time that runs out is no error.
func (m *member) read(wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		before := m.heads.bytes
		if err := m.readSome(time.Until(deadline), 1024); err != nil {
			return err
		}
		if m.heads.bytes == before {
			return nil
		}
	}
}

// readSome reads once.
func (m *member) readSome(wait time.Duration, most int) error {
	// A deadline that is over lets nothing be read, even what is there.
	m.conn.SetReadDeadline(time.Now().Add(max(wait, 100*time.Microsecond)))
	var room [1024]byte
	n, err := m.conn.Read(room[:most])
	m.received.Add(int64(n))
	m.heads.add(room[:n])
	if isTimeout(err) {
		return nil
	}
	return err
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// gone returns an error when the server has ended the connection, without reading from it. With a full receive buffer
// a close does not get through, and only a reset is seen.
func (m *member) gone() error {
	tcp, ok := m.conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var gone error
	if err := raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		switch n, err := unix.Poll(look, 0); {
		case err != nil || n == 0:
		case look[0].Revents&unix.POLLERR != 0:
			gone = syscall.ECONNRESET
		case look[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0:
			gone = io.EOF
		}
	}); err != nil {
		return err
	}
	return gone
}

// pause waits for d and reports whether ctx is still open.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
