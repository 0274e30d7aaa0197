package httpapi

import (
	"slices"
	"time"

	"example.com/mq/api"
	"github.com/valyala/fasthttp"
)

// place is what a connection counts as.
type place uint8

const (
	placeNone    place = iota // it has made room for another, and ends
	placeClient               // one of Config.ConnectionsMax
	placeReserve              // beyond them: it must show that it is not one of a client, or go
	placeNode                 // it came from the reserve, with the token of a node: it ends after this answer
	placeStream               // it has switched protocols, and a stop closes it
)

// places counts the connections that are open. Clients, however many and however slow, must not keep the nodes apart: so there
// are places beyond those of clients, for connections whose first request has the token of a node, or asks for health or
// metrics. They come in through the door, which knows the path, and over TLS not even that; so such a connection gets little
// time, and when the reserve is full too, the oldest makes room for the newest.
type places struct {
	clients int
	streams int
	reserve []*conn // the oldest first
}

// register gives a new connection a place: c.place tells which. It says no when those of clients are taken.
func (s *Server) register(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	within := s.count.clients < s.cfg.ConnectionsMax
	if within {
		c.place = placeClient
		s.count.clients++
	} else {
		if len(s.count.reserve) >= reserveMax {
			oldest := s.count.reserve[0]
			s.count.reserve = slices.Delete(s.count.reserve, 0, 1)
			oldest.place = placeNone
			oldest.raw.Close() // its own goroutine does the rest
		}
		c.place = placeReserve
		c.deadline = time.Now().Add(reserveTimeout)
		s.count.reserve = append(s.count.reserve, c)
	}
	s.conns[c] = struct{}{}
	return within
}

// freePlaces is how many clients may still come.
func (s *Server) freePlaces() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.ConnectionsMax - s.count.clients
}

// unregister forgets a connection.
func (s *Server) unregister(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(c)
	delete(s.conns, c)
}

// release takes a connection off its place. The caller holds mu.
func (s *Server) release(c *conn) {
	switch c.place {
	case placeClient:
		s.count.clients--
	case placeStream:
		s.count.streams--
	case placeReserve:
		if i := slices.Index(s.count.reserve, c); i >= 0 {
			s.count.reserve = slices.Delete(s.count.reserve, i, i+1)
		}
	}
	c.place = placeNone
}

// move gives a connection another place, if that is to be had.
func (s *Server) move(c *conn, to place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to == placeStream {
		if s.count.streams >= streamsMax {
			return false
		}
		s.count.streams++
	}
	s.release(c)
	c.place = to
	return true
}

var errManyConnections = &apiError{status: 503, code: api.CodeUnavailable,
	message: "too many connections are open: close some, or try again later"}

// mayStay says whether the request on a connection of the reserve may be served, and answers it otherwise: it is for a path of
// the nodes, with the right token, or for one by which is watched how this node is: who is told nothing while clients
// crowd would restart it. The connection ends after the answer, unless it becomes a stream: so nothing of the
// reserve is held for longer than a request takes. Who has no token of a node stays in the reserve until the end: else
// anybody could hold more connections than there may be, by asking for health and being slow about it.
func (s *Server) mayStay(ctx *fasthttp.RequestCtx, c *conn, r *route) bool {
	known := !c.badLine && ctx.Request.Header.PeekCanonical(refusalKey) == nil
	if !known || r == nil || !r.scope.isNode() && r.plain == nil {
		writeError(ctx, errManyConnections)
		c.closeAfter(ctx)
		return false
	}
	if r.scope.isNode() {
		s.move(c, placeNode)
		c.deadline = time.Time{}
	}
	ctx.SetConnectionClose()
	return true
}
