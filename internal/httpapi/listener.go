package httpapi

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener hands out connections as *conn, in TLS where that is configured. It outlives what the operating
// system refuses for a while (too many open files), and answers connections above the limit itself.
type listener struct {
	net.Listener
	s        *Server
	refusing chan struct{} // a place for each connection that is being refused
	warned   time.Time
}

func newListener(s *Server, ln net.Listener) *listener {
	return &listener{Listener: ln, s: s, refusing: make(chan struct{}, 64)}
}

// Accept returns the next connection that may be served.
func (l *listener) Accept() (net.Conn, error) {
	wait := 5 * time.Millisecond
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if l.s.stopping.Load() || errors.Is(err, net.ErrClosed) {
				return nil, io.EOF // fasthttp takes this for a proper end
			}
			if !passing(err) {
				return nil, err
			}
			l.warn("cannot accept connections for now", "err", err)
			time.Sleep(wait)
			wait = min(2*wait, time.Second)
			continue
		}
		if c := l.admit(raw); c != nil {
			return c, nil
		}
	}
}

// admit registers the connection, or refuses it and returns nil.
func (l *listener) admit(raw net.Conn) *conn {
	outer := raw
	if l.s.cfg.TLS != nil {
		outer = tls.Server(raw, l.s.cfg.TLS)
	}
	c := newConn(l.s, outer, raw)
	if !l.s.register(c) {
		l.warn("too many connections", "limit", l.s.cfg.ConnectionsMax)
	}
	if c.place == placeNone {
		l.refuse(raw)
		return nil
	}
	boundUnsent(raw)
	if l.s.cfg.TLS != nil {
		// The handshake happens in the first read, under its deadline; what it writes needs one too.
		raw.SetWriteDeadline(time.Now().Add(l.s.cfg.HeaderTimeout))
	}
	return c
}

// boundUnsent bounds what the kernel takes of an answer while the client does not. By itself it takes up to tcp_wmem, 4 MiB
// and more: with a few hundred clients that ask for much and read nothing that is more memory than all of ours, it counts
// where a container's memory is limited, and no budget of this package sees it. What is on its way to a client that
// does read is not bounded, so the bound costs no speed.
func boundUnsent(raw net.Conn) {
	sc, ok := raw.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	// An error means that the connection is no TCP, or is gone.
	_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMax) })
}

var refusal = func() []byte {
	body := appendError(nil, errManyConnections)
	head := "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n" +
		"Connection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}()

// refuse answers 503 and closes, without holding up Accept. Under a flood it just closes.
func (l *listener) refuse(raw net.Conn) {
	select {
	case l.refusing <- struct{}{}:
	default:
		raw.Close()
		return
	}
	// It ends within two deadlines; nobody waits for it.
	go func() {
		defer func() { <-l.refusing }()
		defer raw.Close()
		if l.s.cfg.TLS != nil {
			return // there is no plain answer before a handshake, and the handshake is what costs
		}
		raw.SetDeadline(time.Now().Add(lingerSilence))
		if _, err := raw.Write(refusal); err != nil {
			return
		}
		c := &conn{Conn: raw, raw: raw, s: l.s}
		c.drain()
	}()
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
