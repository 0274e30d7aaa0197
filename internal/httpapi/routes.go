package httpapi

import (
	"bytes"
	"encoding/json"

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
)

// route is one path. A call has shape and do; the others have plain.
type route struct {
	path  string
	scope scope
	get   bool // GET and HEAD instead of POST
	shape *shape
	do    func(c *call) *apiError
	plain fasthttp.RequestHandler
}

// routeOther labels what belongs to no route.
const routeOther = "other"

// newRoutes lists all that is served. Tests derive their matrices from it.
func (s *Server) newRoutes() map[string]*route {
	list := []*route{
		{path: api.PathPublish, scope: scopeClient, shape: &shapePublish, do: (*call).publish},
		{path: api.PathPublishBatch, scope: scopeClient, shape: &shapePublishBatch, do: (*call).publishBatch},
		{path: api.PathFetch, scope: scopeClient, shape: &shapeFetch, do: (*call).fetch},
		{path: api.PathGroupsFetch, scope: scopeClient, shape: &shapeGroupsFetch, do: (*call).fetch},
		{path: api.PathGroupsCommit, scope: scopeClient, shape: &shapeGroupsCommit, do: (*call).groupsCommit},
		{path: api.PathTopicsRetain, scope: scopeAdmin, shape: &shapeTopicsRetain, do: (*call).topicsRetain},
		{path: api.PathSnapshot, scope: scopeAdmin, shape: &shapeSnapshot, do: (*call).snapshot},
		{path: api.PathHealth, scope: scopeOpen, get: true, plain: s.serveHealth},
		{path: api.PathReady, scope: scopeOpen, get: true, plain: s.serveReady},
	}
	if s.cfg.Metrics != nil {
		list = append(list, &route{path: api.PathMetrics, scope: scopeClient, get: true,
			plain: fasthttpadaptor.NewFastHTTPHandler(s.cfg.Metrics)})
	}
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
	body, err := json.Marshal(answer)
	if err != nil {
		panic("BUG: the detail of Config.Ready cannot be written as JSON: " + err.Error())
	}
	ctx.Response.Header.SetContentTypeBytes(contentJSON)
	ctx.Response.SetBodyRaw(body)
}
