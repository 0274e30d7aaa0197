package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"

	"example.com/mq/api"
	"github.com/valyala/fasthttp"
)

// Replication is what another node asks of this one: a stream, and how the pair stands.
type Replication struct {
	// Token must come with every such request, in header X-Replication-Token. Required.
	Token string

	// Stream serves a connection that has switched to api.ProtocolReplication, and owns it until it returns;
	// then the connection is closed. It is a *net.TCPConn or *tls.Conn as it is, without deadlines, unless the
	// peer did not wait for the answer before it sent more. Shutdown closes it, and waits for Stream to return.
	// A panic in it is treated as one in the Broker. Nil: the path of streams does not exist.
	Stream func(conn net.Conn)

	// Status answers /replication/status: any value that encoding/json can write. Required.
	Status func() any
}

func (r *Replication) validate() error {
	if r.Token == "" || r.Status == nil {
		return errors.New("httpapi: Token and Status of Replication are required")
	}
	return nil
}

// replicationRoutes are the paths for the other node of a pair.
func (s *Server) replicationRoutes() []*route {
	r := s.cfg.Replication
	if r == nil {
		return nil
	}
	list := []*route{{path: api.PathReplicationStatus, scope: scopePeer, get: true, plain: serveJSON(r.Status)}}
	if r.Stream != nil {
		list = append(list, s.streamRoute(&streamPath{
			path: api.PathReplicationStream, protocol: api.ProtocolReplication, scope: scopePeer, stream: r.Stream,
		}))
	}
	return list
}

// streamPath is a path that switches connections to a protocol of the nodes.
type streamPath struct {
	path, protocol string
	scope          scope
	stream         func(net.Conn)

	errNone, errOther *apiError // the request asks for no protocol, or for another one
}

// streamRoute returns the route of u.
func (s *Server) streamRoute(u *streamPath) *route {
	u.errNone = &apiError{status: 400, code: api.CodeInvalidArgument,
		message: "this path only switches protocols: send HTTP/1.1 with the headers \"Connection: Upgrade\" and \"Upgrade: " +
			u.protocol + "\", and no body"}
	u.errOther = &apiError{status: 426, code: api.CodeInvalidArgument, upgrade: u.protocol,
		message: "the only protocol that this path switches to is " + u.protocol + ": the two nodes run versions that do not go together"}
	return &route{path: u.path, scope: u.scope, plain: func(ctx *fasthttp.RequestCtx) { s.serveStream(ctx, u) }}
}

var errStopping = &apiError{status: 503, code: api.CodeUnavailable,
	message: "the node is shutting down: nothing was done; try again later"}

var errManyStreams = &apiError{status: 503, code: api.CodeUnavailable,
	message: "too many streams of other nodes are open: close some, or try again later"}

// serveStream answers 101 and hands the connection over.
func (s *Server) serveStream(ctx *fasthttp.RequestCtx, u *streamPath) {
	if err := u.check(&ctx.Request.Header); err != nil {
		writeError(ctx, err)
		return
	}
	if s.stopping.Load() {
		writeError(ctx, errStopping)
		return
	}
	c := ctx.Conn().(*conn)
	if !s.move(c, placeStream) {
		writeError(ctx, errManyStreams)
		return
	}
	h := &ctx.Response.Header
	ctx.Response.SetStatusCode(fasthttp.StatusSwitchingProtocols)
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", u.protocol)
	// fasthttp calls this once the answer is sent, on a goroutine of its own, with all deadlines taken off. It
	// closes c afterwards.
	ctx.Hijack(func(buffered net.Conn) { s.runStream(c, buffered, u) })
}

// check checks that the request asks to switch to the protocol, and says nothing that contradicts it.
func (u *streamPath) check(h *fasthttp.RequestHeader) *apiError {
	n := h.ContentLength()
	if !h.IsHTTP11() || h.ConnectionClose() || n > 0 || n == -1 || !hasElement(h, "Connection", "Upgrade") {
		return u.errNone
	}
	if len(h.Peek("Upgrade")) == 0 {
		return u.errNone
	}
	if !hasElement(h, "Upgrade", u.protocol) {
		return u.errOther
	}
	return nil
}

// hasElement reports whether a header that is a list has the element, in any case.
func hasElement(h *fasthttp.RequestHeader, name, want string) bool {
	for _, value := range h.PeekAll(name) {
		for element := range bytes.SplitSeq(value, []byte(",")) {
			if bytes.EqualFold(bytes.Trim(element, " \t"), []byte(want)) {
				return true
			}
		}
	}
	return false
}

// runStream lets u.stream have the connection. From buffered come the bytes that fasthttp has read
// beyond the request, and then what c.Read returns.
func (s *Server) runStream(c *conn, buffered io.Reader, u *streamPath) {
	c.handedOver = true
	early, err := io.ReadAll(buffered)
	if err != nil {
		panic(fmt.Sprintf("BUG: reading what is buffered of a stream: %v", err))
	}
	// Shutdown sets stopping and then closes the streams that it sees: one of the two sees the other.
	if s.stopping.Load() {
		return
	}
	setTCP(c.raw)
	setUnsent(c.raw, 0) // as the kernel has it: nodes read what they asked for
	plain := c.Conn
	if len(early) > 0 {
		plain = &earlyConn{Conn: plain, early: early}
	}
	// The last word of a stream may say why it ends: it must not be lost to a reset.
	c.linger = true
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.Error("panic while serving a stream", "route", u.path, "panic", p, "stack", string(debug.Stack()))
			s.cfg.Fatal(p)
		}
	}()
	u.stream(plain)
}

// setTCP sets what a stream needs, whatever the listener's settings were. Errors show up on first use.
func setTCP(raw net.Conn) {
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: probeEvery, Interval: probeEvery, Count: 4})
	}
}

// earlyConn is a connection whose first bytes have already been read.
type earlyConn struct {
	net.Conn
	early []byte
}

func (c *earlyConn) Read(p []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.early)
	c.early = c.early[n:]
	return n, nil
}
