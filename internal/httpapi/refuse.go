package httpapi

import (
	"bytes"

	"example.com/mq/api"
	"github.com/valyala/fasthttp"
)

// A request is checked when its header is there and before any of its body is read. fasthttp gives no way
// to answer at that point. So a refused request is marked, with a header field that no client can send, its
// body is struck from the header, and the handler turns the mark into the answer.

// refusalKey is the name of the mark. A client cannot send it: its bytes are not legal in a field name.
var refusalKey = []byte{0}

// A mark is one letter for the reason, and whether a body was struck.
const (
	refuseNone byte = 'A' + iota
	refuseFraming
	refuseHeader
	refuseEncoding
	refuseLineEnd
	refuseHost
	refuseOrigin
	refusePath
	refuseMethod
	refuseUnauthenticated
	refusePermission
	refuseNoAdmin
	refusePeer
	refuseRaft
	refuseSize
	refuseSizeSmall

	refuseKeep  = 'k' // the body was small: it is skipped and the connection lives on
	refuseClose = 'c'
)

// refusals holds the answers, by reason.
var refusals = [...]*apiError{
	refuseFraming: {status: 400, code: api.CodeInvalidArgument,
		message: "the length of the body must be given once, by Content-Length or by Transfer-Encoding: chunked, not by both"},
	refuseHeader: {status: 400, code: api.CodeInvalidArgument,
		message: "the header is malformed: every line must be \"Name: value\", end in CRLF and not be folded"},
	refuseEncoding: {status: 400, code: api.CodeInvalidArgument,
		message: "the only transfer encoding that is understood is chunked"},
	refuseLineEnd: {status: 400, code: api.CodeInvalidArgument,
		message: "the request line must end in CRLF"},
	refuseHost: {status: 403, code: api.CodePermissionDenied,
		message: "the Host header must be localhost or a loopback address, because the server listens on loopback only"},
	refuseOrigin: {status: 403, code: api.CodePermissionDenied,
		message: "requests of web pages from another origin are refused"},
	refusePath: {status: 404, code: api.CodeNotFound,
		message: "there is no such path; paths are matched exactly as they are written in the documentation"},
	refuseMethod: {status: 405, code: api.CodeMethodNotAllowed,
		message: "the path does not allow this method; the Allow header names those that it does"},
	refuseUnauthenticated: {status: 401, code: api.CodeUnauthenticated,
		message: "a valid token is needed: send the header \"Authorization: Bearer TOKEN\""},
	refusePermission: {status: 403, code: api.CodePermissionDenied,
		message: "this call needs the admin token; a client token does not allow it"},
	refuseNoAdmin: {status: 403, code: api.CodePermissionDenied,
		message: "this call needs an admin token, and the server was started without one"},
	refusePeer: {status: 401, code: api.CodeUnauthenticated, challenge: api.HeaderReplicationToken,
		message: "the replication token is needed: send the header \"" + api.HeaderReplicationToken + ": TOKEN\""},
	refuseRaft: {status: 401, code: api.CodeUnauthenticated, challenge: api.HeaderRaftToken,
		message: "the token of the cluster is needed: send the header \"" + api.HeaderRaftToken + ": TOKEN\""},
	refuseSize:      errBodyTooLarge,
	refuseSizeSmall: errBodyNotSmall,
}

// headerReceived checks a request whose header is complete, and says how long the first piece of its body
// may take to arrive.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if reason := s.check(h); reason != refuseNone {
		mark(h, reason)
	}
	return fasthttp.RequestConfig{ReadTimeout: s.cfg.TransferTimeout}
}

// check returns why the request is refused, or refuseNone. The order is part of the contract: a request that
// is wrong in several ways gets the first of the answers. What is secret (tokens) comes after what is not.
func (s *Server) check(h *fasthttp.RequestHeader) byte {
	f := framing(h.RawHeaders())
	if f != refuseNone {
		return f
	}
	if s.loopback && !isLoopbackHost(h.Host()) {
		return refuseHost
	}
	if !sameOrigin(h) {
		return refuseOrigin
	}
	r := s.route(h.RequestURI())
	if r == nil {
		return refusePath
	}
	if !r.allows(h.Method()) {
		return refuseMethod
	}
	if reason := s.tokens.check(r.scope, h); reason != refuseNone {
		return reason
	}
	switch n := h.ContentLength(); {
	case n > bodyMax:
		return refuseSize
	case r.shape != nil && n > r.shape.bodyMax():
		return refuseSizeSmall
	}
	return refuseNone
}

// mark refuses the request. A small body with a known length is left for fasthttp to skip, so that the
// connection can go on; any other is not read.
func mark(h *fasthttp.RequestHeader, reason byte) {
	value := [2]byte{reason, refuseKeep}
	n := h.ContentLength()
	expects := len(h.Peek("Expect")) > 0
	switch {
	case reason <= refuseLineEnd, n > prefetchMax, n == -1, expects && n > 0:
		value[1] = refuseClose
		h.Del("Expect")
		h.SetContentLength(0)
	}
	h.SetCanonical(refusalKey, value[:])
}

// refuse answers a marked request.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, conn *conn, r *route, mark []byte) {
	e := refusals[mark[0]]
	if mark[0] == refuseMethod {
		withAllow := *e
		withAllow.allow = r.allow()
		e = &withAllow
	}
	writeError(ctx, e)
	if mark[1] == refuseClose {
		conn.closeAfter(ctx)
	}
}

// framing checks the header block as it was sent, for what fasthttp lets pass and two servers in a row might
// read in two ways: lines that end in a bare LF, folded lines, spaces in names, Content-Length together with
// Transfer-Encoding, and transfer encodings other than chunked. (fasthttp itself refuses Content-Length that
// is repeated or not a number, bytes that are not legal in names and values, and HTTP/1.1 without one Host.)
func framing(raw []byte) byte {
	length, chunked := false, false
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\n')
		if i < 1 || raw[i-1] != '\r' {
			return refuseHeader
		}
		line := raw[:i-1]
		raw = raw[i+1:]
		if len(line) == 0 {
			break // fasthttp ends the block here
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 || line[0] == ' ' || line[0] == '\t' || bytes.IndexByte(line, '\r') >= 0 {
			return refuseHeader
		}
		name := line[:colon]
		if bytes.IndexByte(name, ' ') >= 0 {
			return refuseHeader
		}
		switch {
		case len(name) == len("Content-Length") && bytes.EqualFold(name, []byte("Content-Length")):
			if length {
				return refuseFraming
			}
			length = true
		case len(name) == len("Transfer-Encoding") && bytes.EqualFold(name, []byte("Transfer-Encoding")):
			if chunked {
				return refuseFraming
			}
			if !bytes.EqualFold(bytes.Trim(line[colon+1:], " \t"), []byte("chunked")) {
				return refuseEncoding
			}
			chunked = true
		}
	}
	if length && chunked {
		return refuseFraming
	}
	return refuseNone
}
