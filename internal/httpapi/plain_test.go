package httpapi

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/api"
)

func TestHealthAndReady(t *testing.T) {
	var mu sync.Mutex
	ok := false
	s := start(t, func(c *Config) {
		c.ClientToken = "c"
		c.Ready = func() (bool, any) {
			mu.Lock()
			defer mu.Unlock()
			return ok, map[string]int{"done": 3, "of": 7}
		}
	})
	if a := s.do("GET", api.PathHealth, ""); a.status != 200 || a.body != `{"status":"ok"}` {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("GET", api.PathReady, ""); a.status != 503 || a.body != `{"status":"unavailable","detail":{"done":3,"of":7}}` || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	mu.Lock()
	ok = true
	mu.Unlock()
	if a := s.do("GET", api.PathReady, ""); a.status != 200 || a.body != `{"status":"ready","detail":{"done":3,"of":7}}` {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("HEAD", api.PathReady, ""); a.status != 200 || a.body != "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("GET", api.PathReady, strings.Repeat("x", 1000)); a.status != 200 {
		t.Errorf("with a body: %d %s", a.status, a.body)
	}
	if a := s.do("GET", api.PathMetrics, "", "Authorization", "Bearer c"); a.status != 404 {
		t.Errorf("no metrics configured: %d %s", a.status, a.body)
	}
}

// TestVerbose: /readyz tells all that is known to those who may make calls, and only when it is asked for that.
func TestVerbose(t *testing.T) {
	for _, token := range []string{"", "c"} {
		s := start(t, func(c *Config) {
			c.ClientToken = token
			c.Ready = func() (bool, any) { return true, "short" }
			c.Verbose = func() any { return map[string]string{"damage": "of topic t"} }
		})
		const short, long = `{"status":"ready","detail":"short"}`, `{"status":"ready","detail":{"damage":"of topic t"}}`
		for query, want := range map[string]string{"": short, "?": short, "?x=verbose": short, "?verbose": long, "?verbose=1": long} {
			if a := s.do("GET", api.PathReady+query, "", "Authorization", "Bearer c"); a.status != 200 || a.body != want {
				t.Errorf("token %q, %s: %d %s", token, query, a.status, a.body)
			}
		}
		for _, headers := range [][]string{nil, {"Authorization", "Bearer wrong"}} {
			a := s.do("GET", api.PathReady+"?verbose", "", headers...)
			if a.status != 200 || strings.Contains(a.body, "topic t") != (token == "") {
				t.Errorf("token %q, %q: %d %s", token, headers, a.status, a.body)
			}
		}
	}
}

// TestPlainBodies: a body that nobody reads does not confuse the connection.
func TestPlainBodies(t *testing.T) {
	s := start(t)
	for name, message := range map[string]string{
		"small":    "Content-Length: 31\r\n\r\nPOST /v1/publish HTTP/1.1\r\n\r\nxx",
		"chunked":  "Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
		"moderate": "Content-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000),
	} {
		c := s.dial()
		for range 2 {
			c.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + message)
			if a := c.receive("GET"); a.status != 200 || a.closed {
				t.Errorf("%s: %d %s, closed %v", name, a.status, a.body, a.closed)
			}
		}
	}
	c := s.dial() // too much to skip
	c.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat("x", 10000000))
	if a := c.receive("GET"); a.status != 200 || !a.closed {
		t.Errorf("%d %s, closed %v", a.status, a.body, a.closed)
	}
	c.atEnd()
}

func TestMetrics(t *testing.T) {
	s := start(t, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			io.WriteString(w, "mq_up 1\n")
		})
	})
	if a := s.do("GET", api.PathMetrics, ""); a.status != 200 || a.body != "mq_up 1\n" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
}

// seen is an Observer.
type seen struct {
	mu   sync.Mutex
	list map[string][]int
}

func (o *seen) Request(route string, status int, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list[route] = append(o.list[route], status)
}

func TestObserve(t *testing.T) {
	o := &seen{list: map[string][]int{}}
	s := start(t, func(c *Config) { c.Observe = o })
	s.post(api.PathPublish, goodBodies[api.PathPublish])
	s.post(api.PathPublish, `{`)
	s.post("/canary-path", ``)
	s.do("GET", api.PathPublish, ``)
	c := s.dial()
	c.send("nonsense\r\n\r\n")
	c.receive("POST")
	o.mu.Lock()
	defer o.mu.Unlock()
	if got := o.list[api.PathPublish]; len(got) != 3 || got[0] != 200 || got[1] != 400 || got[2] != 405 {
		t.Errorf("publish: %v", got)
	}
	if got := o.list[routeOther]; len(got) != 2 || got[0] != 404 || got[1] != 400 || len(o.list) != 2 {
		t.Errorf("all: %v", o.list)
	}
}

// TestHeaders: answers have what HTTP asks for and do not tell what serves them.
func TestHeaders(t *testing.T) {
	s := start(t)
	for _, a := range []*answer{s.post(api.PathPublish, goodBodies[api.PathPublish]), s.post(api.PathPublish, `{`), s.do("GET", api.PathHealth, "")} {
		if a.header.Get("Date") == "" || a.header.Get("Server") != "" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d: %v", a.status, a.header)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{}, {Broker: newFake()}, {Broker: newFake(), Logger: startLogger(), BodyBudgetBytes: 1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// TestBufferPools: what is given back is used again, and sizes fit.
func TestBufferPools(t *testing.T) {
	for _, n := range []int{0, 1, bufferMin, bufferMin + 1, 4 * bufferMin, 4*bufferMin + 1, 16 << 20, 16<<20 + 1, 40 << 20} {
		b := getBuffer(n)
		if len(b) != 0 || cap(b) < n {
			t.Errorf("%d: len %d cap %d", n, len(b), cap(b))
		}
		if n <= 16<<20 && cap(b) > max(4*n, bufferMin) {
			t.Errorf("%d: cap %d is too much", n, cap(b))
		}
		putBuffer(b)
	}
}
