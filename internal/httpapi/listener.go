package httpapi

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener hands out connections as *conn, in TLS where that is configured. It outlives what the operating
// system refuses for a while (too many open files). While all places are taken new connections wait at the door.
type listener struct {
	net.Listener
	s      *Server
	door   *door      // nil where there can be none
	in     []net.Conn // have come through the door
	warned time.Time
}

func newListener(s *Server, ln net.Listener) *listener {
	return &listener{Listener: ln, s: s, door: newDoor(s, ln)}
}

// Accept returns the next connection that may be served.
func (l *listener) Accept() (net.Conn, error) {
	wait := 5 * time.Millisecond
	for {
		raw, err := l.next()
		if err != nil {
			if l.s.stopping.Load() || errors.Is(err, net.ErrClosed) {
				l.leave()
				return nil, io.EOF // fasthttp takes this for a proper end
			}
			if !passing(err) {
				l.leave()
				return nil, err
			}
			l.warn("cannot accept connections for now", "err", err)
			time.Sleep(wait)
			if wait = min(2*wait, time.Second); l.door != nil && l.door.stands() { // a turn gives files back
				wait = min(wait, 50*time.Millisecond)
			}
			continue
		}
		return l.admit(raw), nil
	}
}

// next waits for the next connection.
func (l *listener) next() (net.Conn, error) {
	for len(l.in) == 0 {
		if l.door == nil || !l.door.stands() {
			return l.Listener.Accept()
		}
		var err error
		if l.in, err = l.door.turn(); l.door.refused {
			l.door.refused = false
			l.warn("too many connections", "limit", l.s.cfg.ConnectionsMax)
		}
		if err != nil && (len(l.in) == 0 || !passing(err)) {
			return nil, err
		}
	}
	raw := l.in[0]
	l.in = l.in[1:]
	return raw, nil
}

// leave sends away all that have not been handed out.
func (l *listener) leave() {
	if l.door != nil {
		l.door.close()
	}
	for _, c := range l.in {
		c.Close()
	}
	l.in = nil
}

// admit registers the connection.
func (l *listener) admit(raw net.Conn) *conn {
	outer := raw
	if l.s.cfg.TLS != nil {
		outer = tls.Server(raw, l.s.cfg.TLS)
	}
	c := newConn(l.s, outer, raw)
	if !l.s.register(c) {
		l.warn("too many connections", "limit", l.s.cfg.ConnectionsMax)
	}
	setUnsent(raw, unsentMax)
	if l.s.cfg.TLS != nil {
		// The handshake happens in the first read, under its deadline; what it writes needs one too.
		raw.SetWriteDeadline(time.Now().Add(l.s.cfg.HeaderTimeout))
	}
	return c
}

// setUnsent bounds what the kernel takes of an answer while the client does not. By itself it takes up to tcp_wmem, 4 MiB
// and more: with a few hundred clients that ask for much and read nothing that is more memory than all of ours, it counts
// where a container's memory is limited, and no budget of this package sees it. What is on its way to a client that
// does read is not bounded, so the bound costs no speed. 0 is the kernel's own bound.
func setUnsent(raw net.Conn, n int) {
	sc, ok := raw.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	// An error means that the connection is no TCP, or is gone.
	_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, n) })
}

// warn logs at most once a minute.
func (l *listener) warn(msg string, args ...any) {
	if now := time.Now(); now.Sub(l.warned) > time.Minute {
		l.warned = now
		l.s.cfg.Logger.Warn(msg, args...)
	}
}

// passing tells errors of accept that end by themselves.
func passing(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EAGAIN, syscall.EPROTO, syscall.EPERM,
		syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EOPNOTSUPP, syscall.ENOPROTOOPT} {
		if errors.Is(err, e) {
			return true
		}
	}
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
