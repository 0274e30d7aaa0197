package httpapi

import (
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
)

// TestPathsAreExact: whatever is not spelled like a path of the contract is 404, never a redirect.
func TestPathsAreExact(t *testing.T) {
	s := start(t)
	for path := range goodBodies {
		last := path[strings.LastIndex(path, "/")+1:]
		for _, target := range []string{
			"/" + path, path + "/", strings.ToUpper(path), strings.Replace(path, "/v1", "/V1", 1), strings.Replace(path, "/v1/", "/v1//", 1),
			strings.Replace(path, "/v1/", "/v1/./", 1), strings.Replace(path, "/v1/", "/v1/x/../", 1), strings.Replace(path, last, "%70"+last[1:], 1),
			strings.Replace(path, "/v1/", "/v1%2f", 1), "http://" + s.addr + path, "http://localhost" + path, path + "%00", path + ";x=1", path + "#f",
			path + "x", path[:len(path)-1], "/v2" + path[3:], "/", "/v1", "/v1/", "//", "/..", path + "%20", path + `\`, "/index.html",
		} {
			c := s.dial()
			c.send("POST " + target + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
			a := c.receive("POST")
			if a.status != 404 || a.code() != "not_found" || a.header.Get("Location") != "" {
				t.Errorf("%s: %d %s", target, a.status, a.body)
			}
			// The connection goes on: a wrong path is no reason to drop it.
			c.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("after %s: %d %s", target, a.status, a.body)
			}
			c.Close()
		}
	}
}

func TestQueryIsIgnored(t *testing.T) {
	s := start(t)
	for _, q := range []string{"?", "?x=1", "?a/../b", "??"} {
		if a := s.post(api.PathPublish+q, goodBodies[api.PathPublish]); a.status != 200 {
			t.Errorf("query %q: %d %s", q, a.status, a.body)
		}
	}
}

func TestMethods(t *testing.T) {
	s := start(t, withStream(nil), withRaft(nil), func(c *Config) { c.Metrics = http.NotFoundHandler() })
	for path, r := range s.routes {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "PRI", "QUERY", "X"} {
			c := s.dial()
			c.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
			a := c.receive(method)
			switch {
			case r.get && (method == "GET" || method == "HEAD"), !r.get && method == "POST":
				if a.status == 405 {
					t.Errorf("%s %s: refused", method, path)
				}
			default:
				want := "POST"
				if r.get {
					want = "GET, HEAD"
				}
				if a.status != 405 || method != "HEAD" && a.code() != "method_not_allowed" || a.header.Get("Allow") != want {
					t.Errorf("%s %s: %d %q %s", method, path, a.status, a.header.Get("Allow"), a.body)
				}
			}
			if method == "HEAD" && a.body != "" {
				t.Errorf("HEAD %s: body %q", path, a.body)
			}
			c.Close()
		}
	}
}

// TestTokens crosses every route with every kind of token, in every configuration.
func TestTokens(t *testing.T) {
	const client, admin = "client-canary-1", "admin-canary-2"
	auth := map[string]string{
		"none": "", "client": "Bearer " + client, "admin": "Bearer " + admin, "lower": "bearer " + client, "upper": "BEARER " + admin,
		"wrong": "Bearer nope", "empty": "Bearer ", "bare": client, "basic": "Basic " + client, "prefix": "Bearer " + client[:5],
		"longer": "Bearer " + client + "x", "spaced": "Bearer  " + client, "bearer only": "Bearer", "two": "Bearer " + client + " " + admin,
		"peer": "Bearer " + peerToken,
	}
	peer := map[string]string{
		"none": "", "right": peerToken, "wrong": "nope", "client": client, "admin": admin, "prefix": peerToken[:5], "longer": peerToken + "x",
		"bearer": "Bearer " + peerToken, "case": strings.ToUpper(peerToken), "other's": raftToken,
	}
	// raft gives the values of peer for the routes of a cluster.
	raft := strings.NewReplacer(peerToken, raftToken, raftToken, peerToken, strings.ToUpper(peerToken), strings.ToUpper(raftToken), peerToken[:5], raftToken[:5])
	isClient := map[string]bool{"client": true, "lower": true, "spaced": true}
	isAdmin := map[string]bool{"admin": true, "upper": true}
	for _, config := range []struct{ client, admin string }{{"", ""}, {client, ""}, {"", admin}, {client, admin}} {
		s := start(t, withStream(nil), withRaft(nil), func(c *Config) {
			c.ClientToken, c.AdminToken = config.client, config.admin
			c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "m 1\n") })
		})
		s.fake.seed()
		for path, r := range s.routes {
			// Each kind of token in its own header, together with each kind in the other one where that matters.
			for both := range pairs(auth, peer) {
				kind, value, peerKind, peerValue := both[0], auth[both[0]], both[1], peer[both[1]]
				if !r.scope.isNode() && peerKind != "none" && peerKind != "right" {
					continue
				}
				peerHeader, otherHeader := api.HeaderReplicationToken, api.HeaderRaftToken
				if r.scope == scopeRaft {
					peerHeader, otherHeader, peerValue = otherHeader, peerHeader, raft.Replace(peerValue)
				}
				asClient := isClient[kind] && config.client != ""
				asAdmin := isAdmin[kind] && config.admin != ""
				want := 200
				switch {
				case r.scope.isNode() && peerKind != "right":
					want = 401
				case path == api.PathReplicationStream, path == api.PathRaftStream:
					want = 400 // it does not ask for an upgrade
				case r.scope.isNode(), r.scope == scopeOpen, r.scope == scopeClient && config.client == "":
				case r.scope == scopeClient && !asClient && !asAdmin:
					want = 401
				case r.scope == scopeAdmin && config.admin == "":
					want = 403
				case r.scope == scopeAdmin && asClient:
					want = 403
				case r.scope == scopeAdmin && !asAdmin:
					want = 401
				}
				method := "POST"
				if r.get {
					method = "GET"
				}
				var headers []string
				if value != "" {
					headers = append(headers, "Authorization", value)
				}
				if peerValue != "" {
					headers = append(headers, peerHeader, peerValue)
				}
				if r.scope.isNode() && peerKind != "right" { // the right one in the wrong place
					headers = append(headers, otherHeader, raft.Replace(peer["right"]))
				}
				a := s.do(method, path, goodBodies[path], headers...)
				code := map[int]string{200: "", 400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied"}[want]
				if a.status != want || a.code() != code {
					t.Errorf("client %q admin %q, %s %s/%s: %d %s, want %d", config.client, config.admin, path, kind, peerKind, a.status, a.body, want)
				}
				if strings.Contains(a.body, "canary") || strings.Contains(fmt.Sprint(a.header), "canary") {
					t.Errorf("%s %s: a token is in the answer", path, kind)
				}
			}
		}
		if strings.Contains(s.log.String(), "canary") {
			t.Errorf("a token is in the log: %s", s.log)
		}
	}
}

// TestTokensOnce: a token counts only where its header stands once.
func TestTokensOnce(t *testing.T) {
	s := start(t, withStream(nil), withRaft(nil), func(c *Config) { c.ClientToken, c.AdminToken = "client-canary-1", "admin-canary-2" })
	for path, header := range map[string][2]string{
		api.PathTopicsList:        {"Authorization", "Bearer client-canary-1"},
		api.PathSnapshot:          {"Authorization", "Bearer admin-canary-2"},
		api.PathReplicationStatus: {api.HeaderReplicationToken, peerToken},
		api.PathRaftStatus:        {api.HeaderRaftToken, raftToken},
	} {
		method := "POST"
		if s.routes[path].get {
			method = "GET"
		}
		name, right := header[0], header[1]
		for _, row := range []struct {
			values []string
			want   int
		}{
			{[]string{right}, 200}, {[]string{right, right}, 401}, {[]string{right, "x"}, 401}, {[]string{"x", right}, 401}, {[]string{"", right}, 401}, {nil, 401},
		} {
			c := s.dial()
			message := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n"
			for i, value := range row.values {
				if i == 1 {
					name = strings.ToLower(name)
				}
				message += name + ": " + value + "\r\n"
			}
			if method == "POST" {
				message += "Content-Length: 2\r\n\r\n{}"
			} else {
				message += "\r\n"
			}
			c.send(message)
			if a := c.receive(method); a.status != row.want {
				t.Errorf("%s with %q: %d %s, want %d", path, row.values, a.status, a.body, row.want)
			}
		}
	}
}

// pairs ranges over all pairs of a key of a and a key of b.
func pairs(a, b map[string]string) iter.Seq[[2]string] {
	return func(yield func([2]string) bool) {
		for x := range a {
			for y := range b {
				if !yield([2]string{x, y}) {
					return
				}
			}
		}
	}
}

// TestOrigin crosses what browsers send with what is allowed.
func TestOrigin(t *testing.T) {
	s := start(t)
	_, port, _ := net.SplitHostPort(s.addr)
	for _, row := range []struct {
		host, origin, site string
		ok                 bool
	}{
		{"localhost:" + port, "", "", true},
		{"127.0.0.1:" + port, "", "", true},
		{"LOCALHOST:" + port, "", "", true},
		{"localhost.", "", "", true},
		{"localhost", "", "", true},
		{"localhost:1", "", "", true},
		{"127.9.9.9", "", "", true},
		{"[::1]:" + port, "", "", true},
		{"[::1]", "", "", true},
		{"[::ffff:127.0.0.1]", "", "", true},
		{"example.com", "", "", false},
		{"localhost.example.com", "", "", false},
		{"example.com:" + port, "", "", false},
		{"127.0.0.1.example.com", "", "", false},
		{"127.0.0.1@example.com", "", "", false},
		{"10.0.0.1", "", "", false},
		{"0.0.0.0:" + port, "", "", false},
		{"[::]:" + port, "", "", false},
		{"[::1", "", "", false},
		{"localhost:http", "", "", false},
		{"localhost:80:80", "", "", false},
		{"2130706433", "", "", false},
		{"0x7f.1", "", "", false},
		{"localhost:" + port, "http://localhost:" + port, "same-origin", true},
		{"localhost:" + port, "http://localhost:" + port, "", true},
		{"localhost:" + port, "http://localhost:1", "", false},
		{"localhost:" + port, "http://localhost", "", false},
		{"localhost:" + port, "http://127.0.0.1:" + port, "", false},
		{"localhost:" + port, "https://evil.example", "", false},
		{"localhost:" + port, "null", "", false},
		{"localhost:" + port, "://", "", false},
		{"localhost:" + port, "localhost:" + port, "", false},
		{"localhost:" + port, "file://", "", false},
		{"localhost:" + port, "", "none", true},
		{"localhost:" + port, "", "same-origin", true},
		{"localhost:" + port, "", "same-site", false},
		{"localhost:" + port, "", "cross-site", false},
		{"localhost:" + port, "", "nonsense", false},
		{"localhost:" + port, "http://localhost:" + port, "cross-site", false},
		{"localhost:" + port, "https://evil.example", "same-origin", false},
	} {
		c := s.dial()
		msg := "POST /v1/publish HTTP/1.1\r\nHost: " + row.host + "\r\n"
		if row.origin != "" {
			msg += "oRIGIN: " + row.origin + "\r\n"
		}
		if row.site != "" {
			msg += "Sec-Fetch-Site: " + row.site + "\r\n"
		}
		c.send(msg + "Content-Length: 24\r\n\r\n" + `{"topic":"t","value":""}`)
		a := c.receive("POST")
		bad := a.status != 403 || a.code() != "permission_denied"
		if row.ok {
			bad = a.status != 200
		} else if a.status == 400 { // fasthttp refuses some hosts as malformed
			bad = false
		}
		if bad {
			t.Errorf("host %q origin %q site %q: %d %s", row.host, row.origin, row.site, a.status, a.body)
		}
		c.Close()
	}
	if n, want := s.fake.callCount(), 14; n > want {
		t.Errorf("%d calls reached the broker", n)
	}
}

// TestFraming sends what smuggles requests, or is malformed. The answer is 400 and the end of the connection;
// what is hidden behind is not executed.
func TestFraming(t *testing.T) {
	const (
		body   = `{"topic":"t","value":""}` // 24 bytes
		hidden = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body
		line   = "POST /v1/publish HTTP/1.1\r\n"
		head   = line + "Host: localhost\r\n"
	)
	for name, message := range map[string]string{
		"CL and TE":              head + "Content-Length: 24\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE and CL":              head + "Transfer-Encoding: chunked\r\nContent-Length: 24\r\n\r\n0\r\n\r\n" + hidden,
		"CL and TE, legal body":  head + "Content-Length: 36\r\nTransfer-Encoding: chunked\r\n\r\n18\r\n" + body + "\r\n0\r\n\r\n",
		"TE and CL, legal body":  head + "Transfer-Encoding: chunked\r\nContent-Length: 24\r\n\r\n18\r\n" + body + "\r\n0\r\n\r\n",
		"CL and TE, odd case":    head + "content-LENGTH: 24\r\ntransfer-ENCODING: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"CL twice, same":         head + "Content-Length: 24\r\nContent-Length: 24\r\n\r\n" + body,
		"CL twice, different":    head + "Content-Length: 24\r\nContent-Length: 0\r\n\r\n" + hidden,
		"CL list":                head + "Content-Length: 24, 24\r\n\r\n" + body,
		"CL negative":            head + "Content-Length: -24\r\n\r\n" + body,
		"CL plus":                head + "Content-Length: +24\r\n\r\n" + body,
		"CL hex":                 head + "Content-Length: 0x18\r\n\r\n" + body,
		"CL overflow":            head + "Content-Length: 18446744073709551640\r\n\r\n" + body,
		"CL overflow 63":         head + "Content-Length: 9223372036854775832\r\n\r\n" + body,
		"CL fraction":            head + "Content-Length: 24.0\r\n\r\n" + body,
		"CL empty":               head + "Content-Length:\r\n\r\n" + body,
		"CL with space inside":   head + "Content-Length: 2 4\r\n\r\n" + body,
		"CL space before colon":  head + "Content-Length : 24\r\n\r\n" + body,
		"CL tab before colon":    head + "Content-Length\t: 24\r\n\r\n" + body,
		"CL underscore":          head + "Content_Length: 24\r\nContent-Length: 0\r\nContent-Length: 24\r\n\r\n" + body,
		"TE identity":            head + "Transfer-Encoding: identity\r\nContent-Length: 24\r\n\r\n" + body,
		"TE identity alone":      head + "Transfer-Encoding: identity\r\n\r\n",
		"TE gzip":                head + "Transfer-Encoding: gzip\r\n\r\n" + hidden,
		"TE gzip, chunked":       head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"TE chunked, chunked":    head + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
		"TE twice":               head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"TE chunked then x":      head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
		"TE xchunked":            head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"TE quoted":              head + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
		"TE vertical tab":        head + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"TE space before colon":  head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"TE folded":              head + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"TE in HTTP/1.0":         "POST /v1/publish HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"bare LF in the header":  line + "Host: localhost\nContent-Length: 24\r\n\r\n" + body,
		"bare LF before the end": head + "Content-Length: 24\n\r\n" + body + "\r\n\r\n",
		"bare LF at the end":     head + "Content-Length: 24\r\n\n" + body + "\r\n\r\n",
		"bare LF everywhere":     "POST /v1/publish HTTP/1.1\nHost: localhost\nContent-Length: 24\n\n" + body,
		"bare LF request line":   "POST /v1/publish HTTP/1.1\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"bare CR in a value":     head + "X: a\rb\r\nContent-Length: 24\r\n\r\n" + body,
		"bare CR hides a line":   head + "X: a\rContent-Length: 0\r\nContent-Length: 24\r\n\r\n" + body,
		"folded line":            head + "X: a\r\n b\r\nContent-Length: 24\r\n\r\n" + body,
		"folded with tab":        head + "X: a\r\n\tb\r\nContent-Length: 24\r\n\r\n" + body,
		"folded CL":              head + "Content-Length:\r\n 24\r\n\r\n" + body,
		"folded first line":      line + " Host: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"NUL in a value":         head + "X: a\x00b\r\nContent-Length: 24\r\n\r\n" + body,
		"NUL in a name":          head + "X\x00: a\r\nContent-Length: 24\r\n\r\n" + body,
		"mark of ours":           head + "\x00: Ak\r\nContent-Length: 24\r\n\r\n" + body,
		"space in a name":        head + "X Y: a\r\nContent-Length: 24\r\n\r\n" + body,
		"no name":                head + ": a\r\nContent-Length: 24\r\n\r\n" + body,
		"no colon":               head + "nonsense\r\nContent-Length: 24\r\n\r\n" + body,
		"name not ASCII":         head + "Xé: a\r\nContent-Length: 24\r\n\r\n" + body,
		"name with (":            head + "X(: a\r\nContent-Length: 24\r\n\r\n" + body,
		"DEL in a value":         head + "X: a\x7f\r\nContent-Length: 24\r\n\r\n" + body,
		"no Host":                line + "Content-Length: 24\r\n\r\n" + body,
		"Host empty":             line + "Host:\r\nContent-Length: 24\r\n\r\n" + body,
		"Host twice":             head + "Host: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"Host twice, different":  head + "host: example.com\r\nContent-Length: 24\r\n\r\n" + body,
		"no version":             "POST /v1/publish\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"bad version":            "POST /v1/publish HTTP/x.y\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"version with tail":      "POST /v1/publish HTTP/1.1x\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"two spaces":             "POST  /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"tab in request line":    "POST\t/v1/publish\tHTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"no target":              "POST  HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"target not a path":      "POST v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n" + body,
		"TLS hello":              "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"HTTP/2":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"chunk size negative":    head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
		"chunk size not hex":     head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
		"chunk size 0x":          head + "Transfer-Encoding: chunked\r\n\r\n0x18\r\n" + body + "\r\n0\r\n\r\n",
		"chunk size overflow":    head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("f", 17) + "\r\n" + body,
		"chunk bare LF":          head + "Transfer-Encoding: chunked\r\n\r\n18\n" + body + "\n0\n\n",
		"chunk too short":        head + "Transfer-Encoding: chunked\r\n\r\n17\r\n" + body + "\r\n0\r\n\r\n",
		"chunk extension LF":     head + "Transfer-Encoding: chunked\r\n\r\n18;a\n" + body + "\r\n0\r\n\r\n",
		"trailer Content-Length": head + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + body + "\r\n0\r\nContent-Length: 5\r\n\r\n",
		"trailer malformed":      head + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + body + "\r\n0\r\nnonsense\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			c := s.dial()
			began := time.Now()
			c.send(message)
			a := c.receive("POST")
			if a.status != 400 || a.code() != "invalid_argument" || !a.closed {
				t.Errorf("%d %s, closed %v", a.status, a.body, a.closed)
			}
			if d := time.Since(began); d > 4*time.Second {
				t.Errorf("answered after %v", d)
			}
			c.atEnd()
			if n := s.fake.callCount(); n != 0 {
				t.Errorf("%d calls reached the broker", n)
			}
		})
	}
}

// TestLegalFraming: what clients may send, and some do.
func TestLegalFraming(t *testing.T) {
	const (
		body = `{"topic":"t","value":""}` // 24 bytes
		head = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n"
	)
	for name, message := range map[string]string{
		"plain":              head + "Content-Length: 24\r\n\r\n" + body,
		"CL with zeros":      head + "Content-Length: 0024\r\n\r\n" + body,
		"CL padded":          head + "Content-Length: \t 24 \t\r\n\r\n" + body,
		"names in any case":  "POST /v1/publish HTTP/1.1\r\nhOST: localhost\r\ncONTENT-lENGTH: 24\r\n\r\n" + body,
		"no space":           "POST /v1/publish HTTP/1.1\r\nHost:localhost\r\nContent-Length:24\r\n\r\n" + body,
		"chunked":            head + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + body + "\r\n0\r\n\r\n",
		"Chunked, case":      head + "Transfer-Encoding: Chunked\r\n\r\n18\r\n" + body + "\r\n0\r\n\r\n",
		"chunks of one byte": head + "Transfer-Encoding: chunked\r\n\r\n" + oneByteChunks(body) + "0\r\n\r\n",
		"chunk extension":    head + "Transfer-Encoding: chunked\r\n\r\n18;a=b\r\n" + body + "\r\n0\r\n\r\n",
		"trailer":            head + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + body + "\r\n0\r\nX-Sum: 1\r\n\r\n",
		"empty line before":  "\r\n" + head + "Content-Length: 24\r\n\r\n" + body,
		"value with UTF-8":   head + "X: é\r\nContent-Length: 24\r\n\r\n" + body,
		"value empty":        head + "X:\r\nContent-Length: 24\r\n\r\n" + body,
		"any content type":   head + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 24\r\n\r\n" + body,
		"multipart type":     head + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 24\r\n\r\n" + body,
		"no content type":    head + "Content-Length: 24\r\n\r\n" + body,
		"many headers":       head + strings.Repeat("X-Filler: 0123456789\r\n", 300) + "Content-Length: 24\r\n\r\n" + body,
		"expectation":        head + "Expect: 100-continue\r\nContent-Length: 24\r\n\r\n" + body,
		"other expectation":  head + "Expect: tea\r\nContent-Length: 24\r\n\r\n" + body,
		"keep-alive":         head + "Connection: keep-alive\r\nContent-Length: 24\r\n\r\n" + body,
		"upgrade to h2c":     head + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nContent-Length: 24\r\n\r\n" + body,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			c := s.dial()
			for range 2 { // the second shows that the first was read to its end
				c.send(message)
				a := c.receive("POST")
				if a.status == 100 {
					a = c.receive("POST")
				}
				if a.status != 200 || a.closed {
					t.Fatalf("%d %s, closed %v", a.status, a.body, a.closed)
				}
			}
		})
	}
}

func oneByteChunks(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteString("1\r\n" + s[i:i+1] + "\r\n")
	}
	return b.String()
}

func TestVersions(t *testing.T) {
	s := start(t)
	body := goodBodies[api.PathPublish]
	for _, row := range []struct {
		version, header string
		closed          bool
	}{
		{"HTTP/1.1", "Host: localhost\r\n", false},
		{"HTTP/1.1", "Host: localhost\r\nConnection: close\r\n", true},
		{"HTTP/1.1", "Host: localhost\r\nConnection: x, CLOSE\r\n", true},
		{"HTTP/1.0", "Host: localhost\r\n", true},
		{"HTTP/1.0", "", true},
		{"HTTP/1.0", "Connection: keep-alive\r\n", false},
	} {
		c := s.dial()
		for range 2 {
			c.send(fmt.Sprintf("POST /v1/publish %s\r\n%sContent-Length: %d\r\n\r\n%s", row.version, row.header, len(body), body))
			a := c.receive("POST")
			if a.status != 200 || a.closed != row.closed {
				t.Errorf("%+v: %d %s, closed %v", row, a.status, a.body, a.closed)
			}
			if row.closed {
				c.atEnd()
				break
			}
		}
	}
}

// TestPipelining sends many requests at once and reads the answers after.
func TestPipelining(t *testing.T) {
	s := start(t)
	c := s.dial()
	var all strings.Builder
	const n = 200
	for i := range n {
		switch i % 4 {
		case 0:
			all.WriteString(request1(api.PathPublish, fmt.Sprintf(`{"topic":"t","value":"%s"}`, strings.Repeat("A", 4*i))))
		case 1:
			all.WriteString(request1("/nope", `{"topic":"t"}`))
		case 2:
			all.WriteString(request1(api.PathFetch, `{"topic":"t","offset":0,"limit":1}`))
		case 3:
			all.WriteString(request1(api.PathPublish, `{`))
		}
	}
	go io.WriteString(c, all.String())
	for i := range n {
		a := c.receive("POST")
		if want := []int{200, 404, 200, 400}[i%4]; a.status != want {
			t.Fatalf("answer %d: %d %s, want %d", i, a.status, a.body, want)
		}
		if want := fmt.Sprintf(`{"offset":%d}`, i/4); i%4 == 0 && a.body != want {
			t.Fatalf("answer %d: %s, want %s", i, a.body, want)
		}
	}
}
