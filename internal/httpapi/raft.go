package httpapi

import (
	"context"
	"errors"
	"math"
	"net"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"github.com/valyala/fasthttp"
)

// Raft is what the other nodes of a cluster, and those who look after it, ask of this node.
type Raft struct {
	// Token must come with every such request, in header X-Raft-Token. Required.
	Token string

	// Stream serves a connection that has switched to api.ProtocolRaft, as Replication.Stream does.
	// Nil: the path of streams does not exist.
	Stream func(conn net.Conn)

	// Role answers /raft/role, Status /raft/status: any value that encoding/json can write. Required.
	Role, Status func() any

	// Transfer hands the lead over to a node, or to the one that suits best when to is -1, and returns once another
	// node leads. ctx ends after 10 s. An error of package broker is answered as for any call (so a node that does
	// not lead redirects), ErrNoSuchNode as a mistake of the caller, any other with 503 and its text.
	// Nil: the path of transfers does not exist.
	Transfer func(ctx context.Context, to int) error
}

// ErrNoSuchNode is returned by Raft.Transfer for a number that no node of the cluster has.
var ErrNoSuchNode = errors.New("the cluster has no such node")

func (r *Raft) validate() error {
	if r.Token == "" || r.Role == nil || r.Status == nil {
		return errors.New("httpapi: Token, Role and Status of Raft are required")
	}
	return nil
}

// raftRoutes are the paths for the nodes of a cluster.
func (s *Server) raftRoutes() []*route {
	r := s.cfg.Raft
	if r == nil {
		return nil
	}
	list := []*route{
		{path: api.PathRaftRole, scope: scopeRaft, get: true, plain: serveJSON(r.Role)},
		{path: api.PathRaftStatus, scope: scopeRaft, get: true, plain: serveJSON(r.Status)},
	}
	if r.Transfer != nil {
		list = append(list, &route{path: api.PathRaftTransfer, scope: scopeRaft, shape: &shapeTransfer, do: (*call).transfer})
	}
	if r.Stream != nil {
		list = append(list, s.streamRoute(&streamPath{path: api.PathRaftStream, protocol: api.ProtocolRaft, scope: scopeRaft, stream: r.Stream}))
	}
	return list
}

// transferAny is the number in a decoded body that names no node.
const transferAny = math.MaxUint64

// transfer serves /raft/transfer. The answer is that of /raft/role afterwards.
func (c *call) transfer() *apiError {
	to := -1
	if c.req.to != transferAny {
		to = int(c.req.to)
	}
	ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
	defer cancel()
	c.inBroker = true
	err := c.s.cfg.Raft.Transfer(ctx, to)
	c.inBroker = false
	switch known := fromBroker(err); {
	case err == nil:
		c.answer(appendJSON(c.out[:0], c.s.cfg.Raft.Role()))
		return nil
	case errors.Is(err, ErrNoSuchNode):
		return invalid("to", "field \"to\" must be the number of a node of the cluster: they count from 0 in the order of -raft-peers")
	case known != nil:
		return known
	}
	return fromBroker(&broker.UnavailableError{Reason: "the lead was not handed over: " + err.Error()})
}

// serveJSON answers what value returns.
func serveJSON(value func() any) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.SetContentTypeBytes(contentJSON)
		ctx.Response.SetBodyRaw(appendJSON(nil, value()))
	}
}
