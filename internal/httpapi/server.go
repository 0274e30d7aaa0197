// Package httpapi serves the outside contract over HTTP/1.1: it checks, decodes, calls the Broker and
// encodes the answer. It sits on github.com/valyala/fasthttp (docs/adr/0001-http-server.md says why) and
// adds what that lacks: exact paths, strict framing, bodies under a memory budget, answers that reach a
// client which is still sending, notice of a client that went away, a stop that hurries no one.
//
// It guarantees: nothing of a body is kept in memory before path, method, token and size are in order; what
// the Broker gets is exactly what was sent; every error is the contract's JSON; bodies and answers share
// bounded memory. A panic in its own code costs one connection; one that comes out of the Broker ends the
// process, because the Broker may have been left with its locks held. Another node can have its connection
// switched to a stream, which is handed over as it is.
// It never logs a token or a body, and never follows what a name says.
//
// Each connection has one goroutine, which calls the Broker directly. The next stop of a publish: package
// broker decides it.
package httpapi

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Server serves the contract. Make one with New, run Serve once, end it with Shutdown.
type Server struct {
	cfg      Config
	http     *fasthttp.Server
	tokens   tokens
	routes   map[string]*route
	budget   *budget // for bodies above singleMax, and those of unknown size
	singles  *budget // for the others above prefetchMax
	chunked  *budget // for bodies that outgrow their first share
	answers  *budget // for answers above keepMax
	calls    sync.Pool
	loopback bool // set by Serve before the first connection: the listener is reached from this machine only

	stopping atomic.Bool

	mu    sync.Mutex
	ln    net.Listener
	conns map[*conn]struct{} // open connections, streams among them
	count places
}

// New returns a server that does not serve yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     cfg,
		tokens:  newTokens(&cfg),
		budget:  newBudget(cfg.BodyBudgetBytes),
		singles: newBudget(cfg.SingleBudgetBytes),
		chunked: newBudget(bodyCharge(bodyMax + 1)),
		answers: newBudget(cfg.AnswerBudgetBytes),
		conns:   make(map[*conn]struct{}),
	}
	s.routes = s.newRoutes()
	s.calls.New = func() any { return newCall(s) }
	s.http = &fasthttp.Server{
		Handler:        s.handle,
		ErrorHandler:   s.handleMalformed,
		HeaderReceived: s.headerReceived,
		Logger:         discard{},

		// listener counts connections and answers the ones beyond the limit in the contract's form; this
		// limit must never be the one that is hit.
		Concurrency:    2*cfg.ConnectionsMax + 4*reserveMax + 2*streamsMax,
		ReadBufferSize: headerMax,

		ReadTimeout:        cfg.HeaderTimeout,
		IdleTimeout:        cfg.IdleTimeout,
		MaxRequestBodySize: bodyMax,
		StreamRequestBody:  true,
		LazyRequestTime:    true,

		// By default a crowd's goroutines stay for 10 to 20 s after it has gone.
		MaxIdleWorkerDuration: workerIdle,

		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true, // errors must not quote headers: there are tokens in them
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
	}
	return s, nil
}

// Serve accepts connections until Shutdown, and then returns nil. It takes ln over.
func (s *Server) Serve(ln net.Listener) error {
	s.loopback = isLoopbackAddr(ln.Addr())
	s.mu.Lock()
	s.ln = ln
	s.mu.Unlock()
	if s.stopping.Load() { // Shutdown came first and saw no listener
		return ln.Close()
	}
	if err := s.http.Serve(newListener(s, ln)); err != nil {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

// Shutdown ends the service: no new connections; waiting fetches answer with what they have; requests that
// are under way finish, and their answers close the connection; idle connections and streams are closed. It
// returns when all of them have ended. When ctx ends first, what is left is cut off and the error of ctx is
// returned.
//
// fasthttp's own Shutdown is not used: it knows nothing of connections that linger, closes idle ones under
// the hands of a request that is just arriving, and looks only ten times a second.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	if s.cfg.EndWaits != nil {
		s.cfg.EndWaits()
	}
	s.mu.Lock()
	if s.ln != nil {
		s.ln.Close() // Serve returns then
	}
	for c := range s.conns {
		if c.place == placeStream {
			c.raw.Close()
		}
		c.wakeIdle()
	}
	s.mu.Unlock()

	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for s.open() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.mu.Lock()
			for c := range s.conns {
				c.Conn.Close()
			}
			s.mu.Unlock()
			return ctx.Err()
		}
	}
	return nil
}

func (s *Server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// handle serves one request. What headerReceived refused comes here too, marked.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	var began time.Time
	if s.cfg.Observe != nil {
		began = time.Now()
	}
	conn := ctx.Conn().(*conn)
	label := routeOther
	var c *call
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.Error("panic while serving a request", "route", label, "panic", p, "stack", string(debug.Stack()))
			if c != nil && c.inBroker {
				s.cfg.Fatal(p)
			}
			ctx.Response.Reset()
			ctx.Response.Header.SetNoDefaultContentType(true)
			writeError(ctx, errInternal)
			conn.closeAfter(ctx)
		}
		if s.stopping.Load() && !ctx.Hijacked() {
			ctx.SetConnectionClose()
		}
		conn.answered = true
		if s.cfg.Observe != nil {
			s.cfg.Observe.Request(label, ctx.Response.StatusCode(), time.Since(began))
		}
	}()

	r := s.route(ctx.Request.Header.RequestURI())
	if r != nil {
		label = r.path
	}
	if !conn.deadline.IsZero() && !s.mayStay(ctx, conn, r) {
		return
	}
	if conn.badLine {
		writeError(ctx, refusals[refuseLineEnd])
		conn.closeAfter(ctx)
		return
	}
	if mark := ctx.Request.Header.PeekCanonical(refusalKey); mark != nil {
		s.refuse(ctx, conn, r, mark)
		return
	}
	if r.plain != nil {
		// fasthttp skips a body that nobody reads, and closes the connection if it is long.
		if n := ctx.Request.Header.ContentLength(); n > prefetchMax || n == -1 {
			conn.linger = true
		}
		r.plain(ctx)
		return
	}
	c = s.calls.Get().(*call)
	c.begin(ctx, conn)
	// fasthttp closes the value once the answer has been written: only then may its buffers be used again.
	ctx.SetUserValue(callKey, c)
	if err := c.serve(r); err != nil {
		writeError(ctx, err)
	} else if r.write && !c.req.rare.dryRun && s.cfg.MayAnswer != nil {
		conn.acknowledges = true
	}
	if !c.bodyDone {
		conn.closeAfter(ctx)
	}
}

// handleMalformed answers what fasthttp could not read as a request. It closes the connection then.
func (s *Server) handleMalformed(ctx *fasthttp.RequestCtx, err error) {
	writeError(ctx, malformed(err))
	ctx.Conn().(*conn).closeAfter(ctx)
	if s.cfg.Observe != nil {
		s.cfg.Observe.Request(routeOther, ctx.Response.StatusCode(), 0)
	}
}

// discard is the logger of fasthttp. What it has to say is about single connections that clients broke; to
// log it would let any client fill the disk.
type discard struct{}

func (discard) Printf(string, ...any) {}
