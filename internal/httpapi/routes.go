package httpapi

import (
	"bytes"

	"example.com/mq/api"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"
)

// scope says which token a route needs.
type scope uint8

const (
	scopeOpen   scope = iota // none
	scopeClient              // the client token, where there is one; the admin token serves too
	scopeAdmin               // the admin token
	scopePeer                // the replication token, and no other
	scopeRaft                // the token of the cluster, and no other
)

// isNode tells the scopes of what nodes say to each other.
func (sc scope) isNode() bool { return sc >= scopePeer }

// route is one path. A call has shape and do; the others have plain.
type route struct {
	path  string
	scope scope
	get   bool // GET and HEAD instead of POST
	write bool // "done" is an acknowledgement
	shape *shape
	do    func(c *call) *apiError
	plain fasthttp.RequestHandler
}

// routeOther labels what belongs to no route.
const routeOther = "other"

// newRoutes lists all that is served. Tests derive their matrices from it.
func (s *Server) newRoutes() map[string]*route {
	list := []*route{
		{path: api.PathPublish, scope: scopeClient, shape: &shapePublish, write: true, do: (*call).publish},
		{path: api.PathPublishBatch, scope: scopeClient, shape: &shapePublishBatch, write: true, do: (*call).publishBatch},
		{path: api.PathFetch, scope: scopeClient, shape: &shapeFetch, do: (*call).fetch},
		{path: api.PathGroupsFetch, scope: scopeClient, shape: &shapeGroupsFetch, do: (*call).fetch},
		{path: api.PathGroupsCommit, scope: scopeClient, shape: &shapeGroupsCommit, write: true, do: (*call).groupsCommit},
		{path: api.PathTopicsRetain, scope: scopeAdmin, shape: &shapeTopicsRetain, write: true, do: (*call).topicsRetain},
		{path: api.PathTopicsConfigure, scope: scopeAdmin, shape: &shapeTopicsConfigure, write: true, do: (*call).topicsConfigure},
		{path: api.PathTopicsList, scope: scopeClient, shape: &shapeTopicsList, do: (*call).topicsList},
		{path: api.PathTopicsDescribe, scope: scopeClient, shape: &shapeTopic, do: (*call).topicsDescribe},
		{path: api.PathTopicsDelete, scope: scopeAdmin, shape: &shapeTopic, write: true, do: (*call).topicsDelete},
		{path: api.PathGroupsList, scope: scopeClient, shape: &shapeGroupsList, do: (*call).groupsList},
		{path: api.PathGroupsDescribe, scope: scopeClient, shape: &shapeGroup, do: (*call).groupsDescribe},
		{path: api.PathGroupsDelete, scope: scopeClient, shape: &shapeGroup, write: true, do: (*call).groupsDelete},
		{path: api.PathGroupsSeek, scope: scopeClient, shape: &shapeGroupsSeek, write: true, do: (*call).groupsSeek},
		{path: api.PathSnapshot, scope: scopeAdmin, shape: &shapeSnapshot, do: (*call).snapshot},
		{path: api.PathBackupBegin, scope: scopeAdmin, shape: &shapeBackupBegin, do: (*call).backupBegin},
		{path: api.PathBackupRead, scope: scopeAdmin, shape: &shapeBackupRead, do: (*call).backupRead},
		{path: api.PathBackupEnd, scope: scopeAdmin, shape: &shapeBackupEnd, do: (*call).backupEnd},
		{path: api.PathHealth, scope: scopeOpen, get: true, plain: s.serveHealth},
		{path: api.PathReady, scope: scopeOpen, get: true, plain: s.serveReady},
	}
	if s.cfg.Metrics != nil {
		list = append(list, &route{path: api.PathMetrics, scope: scopeClient, get: true,
			plain: fasthttpadaptor.NewFastHTTPHandler(s.cfg.Metrics)})
	}
	list = append(list, s.replicationRoutes()...)
	list = append(list, s.raftRoutes()...)
	m := make(map[string]*route, len(list))
	for _, r := range list {
		m[r.path] = r
	}
	return m
}

// route finds the route of a request target as it was sent. Nothing is cleaned or decoded: a path that is
// spelled in another way is another path. A query string is ignored, as most servers do.
func (s *Server) route(uri []byte) *route {
	if i := bytes.IndexByte(uri, '?'); i >= 0 {
		uri = uri[:i]
	}
	return s.routes[string(uri)]
}

// allow is the value of header Allow.
func (r *route) allow() string {
	if r.get {
		return "GET, HEAD"
	}
	return "POST"
}

// allows reports whether the method is one of the route's.
func (r *route) allows(method []byte) bool {
	if r.get {
		return string(method) == "GET" || string(method) == "HEAD"
	}
	return string(method) == "POST"
}

var contentJSON = []byte("application/json")

// serveHealth says that the process lives: nothing more was needed to get here.
func (s *Server) serveHealth(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetContentTypeBytes(contentJSON)
	ctx.Response.SetBodyString(`{"status":"ok"}`)
}

// serveReady says whether the node can serve, and why not.
func (s *Server) serveReady(ctx *fasthttp.RequestCtx) {
	ok, detail := s.cfg.Ready()
	if s.cfg.Verbose != nil && ctx.QueryArgs().Has("verbose") {
		// It names topics.
		if s.tokens.check(scopeClient, &ctx.Request.Header) != refuseNone {
			detail = "verbose needs the client token"
		} else {
			detail = s.cfg.Verbose()
		}
	}
	if s.stopping.Load() {
		ok, detail = false, "the node is shutting down"
	}
	answer := struct {
		Status string `json:"status"`
		Detail any    `json:"detail,omitempty"`
	}{"ready", detail}
	if !ok {
		answer.Status = "unavailable"
		ctx.SetStatusCode(503)
		ctx.Response.Header.Set("Retry-After", "1")
	}
	ctx.Response.Header.SetContentTypeBytes(contentJSON)
	ctx.Response.SetBodyRaw(appendJSON(nil, answer))
}
