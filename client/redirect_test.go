package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func notLeader(w http.ResponseWriter, location string) {
	w.Header().Set("Location", location)
	say(w, 307, `{"code":"not_leader","message":"ask the leader","leader":"x"}`)
}

func TestRedirectToAConfiguredNode(t *testing.T) {
	leader := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":7}`) })
	follower := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { notLeader(w, leader.URL+r.URL.Path) })
	c := quick(t, Config{Token: "secret"}, follower, leader)
	p, err := publish(c, PublishOptions{NoRequestID: true})
	if err != nil || p.Offset != 7 {
		t.Fatalf("got %+v, %v", p, err)
	}
	a, b := follower.got(), leader.got()
	if len(a) != 1 || len(b) != 1 || a[0] != b[0] || b[0].method != "POST" || b[0].token != "Bearer secret" {
		t.Errorf("requests: %+v, %+v", a, b)
	}
	if _, err := publish(c, PublishOptions{}); err != nil || len(follower.got()) != 1 {
		t.Errorf("%v; the leader was not remembered", err)
	}
}

func TestRedirectElsewhereIsRefused(t *testing.T) {
	stranger := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":7}`) })
	other := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":7}`) })
	host := strings.TrimPrefix(other.URL, "http://")
	for name, location := range map[string]string{
		"another node":        stranger.URL + "/v1/publish",
		"none":                "",
		"not a URL":           "http://[",
		"another scheme":      "https://" + host + "/v1/publish",
		"a file":              "file:///v1/publish",
		"another path":        other.URL + "/v1/topics/retain",
		"with a password":     "http://u:p@" + host + "/v1/publish",
		"host in disguise":    "http://" + host + "@" + strings.TrimPrefix(stranger.URL, "http://") + "/v1/publish",
		"without a scheme":    "//" + strings.TrimPrefix(stranger.URL, "http://") + "/v1/publish",
		"no port":             "http://127.0.0.1/v1/publish",
		"a name like another": "http://" + host + ".example.com/v1/publish",
	} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { notLeader(w, location) })
		_, err := publish(quick(t, Config{Token: "secret"}, f, other), PublishOptions{})
		if err == nil {
			t.Errorf("%s: followed %q", name, location)
			continue
		}
		if e := asError(t, err); e.Code != ErrForeignRedirect || e.Unknown || len(f.got()) != 1 {
			t.Errorf("%s: got %+v after %d requests", name, e, len(f.got()))
		}
	}
	if n := len(stranger.got()) + len(other.got()); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// TestRedirectsInACircle are followed a few times, then with pauses, then given up.
func TestRedirectsInACircle(t *testing.T) {
	var a, b *fake
	a = newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { notLeader(w, b.URL+r.URL.Path) })
	b = newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { notLeader(w, a.URL+r.URL.Path) })
	c := quick(t, Config{Retry: Retry{For: 200 * time.Millisecond, Backoff: 20 * time.Millisecond}}, a, b)
	_, err := publish(c, PublishOptions{})
	if e := asError(t, err); e.Code != ErrNotLeader || e.Unknown {
		t.Errorf("got %+v", e)
	}
	// Each pause of at least 10 ms allows two rounds of redirectsMax and one request.
	if n := len(a.got()) + len(b.got()); n > 250 {
		t.Errorf("%d requests in 200 ms", n)
	}
}

// TestNextNodeIsAskedAtOnce: a node that waits for a leader holds nobody up who knows another one.
func TestNextNodeIsAskedAtOnce(t *testing.T) {
	waiting := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Retry-After", "60")
		say(w, 503, notDoneAnswer)
	})
	good := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":7}`) })
	start := time.Now()
	if _, err := publish(quick(t, Config{}, waiting, good), PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestTokens(t *testing.T) {
	ctx := context.Background()
	calls := map[string]func(c *Client) error{
		"/v1/publish": func(c *Client) error { _, err := publish(c, PublishOptions{}); return err },
		"/v1/publish-batch": func(c *Client) error {
			_, err := c.PublishBatch(ctx, "t", []Record{{}}, PublishOptions{})
			return err
		},
		"/v1/fetch":         func(c *Client) error { _, err := c.Fetch(ctx, "t", 0, FetchOptions{}); return err },
		"/v1/groups/fetch":  func(c *Client) error { _, err := c.FetchGroup(ctx, "t", "g", FetchOptions{}); return err },
		"/v1/groups/commit": func(c *Client) error { _, err := c.CommitGroup(ctx, "t", "g", 0); return err },
		"/v1/topics/retain": func(c *Client) error { _, err := c.Retain(ctx, "t", 0); return err },
		"/v1/snapshot":      func(c *Client) error { _, err := c.Snapshot(ctx); return err },
	}
	admin := map[string]bool{"/v1/topics/retain": true, "/v1/snapshot": true}
	for path, call := range calls {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			switch r.URL.Path {
			case "/v1/fetch", "/v1/groups/fetch":
				say(w, 200, `{"records":[],"next_offset":0,"start_offset":0,"end_offset":0}`)
			case "/v1/publish-batch":
				say(w, 200, `{"offsets":[0]}`)
			default:
				say(w, 200, `{"offset":0,"next_offset":0,"start_offset":0,"index":0}`)
			}
		})
		for _, test := range []struct{ token, adminToken, want, wantAdmin string }{
			{"", "", "", ""},
			{"c", "", "Bearer c", "Bearer c"},
			{"c", "a", "Bearer c", "Bearer a"},
			{"", "a", "", "Bearer a"},
		} {
			if err := call(quick(t, Config{Token: test.token, AdminToken: test.adminToken}, f)); err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			got, want := f.got()[len(f.got())-1], test.want
			if admin[path] {
				want = test.wantAdmin
			}
			if got.path != path || got.token != want {
				t.Errorf("%s with %+v: %+v", path, test, got)
			}
		}
	}
}

// TestTokenInNoError: an error may be logged; a token in it would be too.
func TestTokenInNoError(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		say(w, 401, `{"code":"unauthenticated","message":"m"}`)
	})
	_, err := publish(quick(t, Config{Token: "canary"}, f), PublishOptions{})
	if e := asError(t, err); e.Code != ErrUnauthenticated || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v", err)
	}
}

// TestTokenSentBack: whatever answers may send back what it got.
func TestTokenSentBack(t *testing.T) {
	const token, admin = "canary-\"1", "canary-<2>"
	quoted, err := json.Marshal("got " + token + " and " + admin)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		status int
		body   string
	}{
		"code and message": {401, `{"code":"unauthenticated","message":` + string(quoted) + `}`},
		"leader":           {503, `{"code":"not_leader","message":"m","leader":` + string(quoted) + `}`},
		"field":            {400, `{"code":"invalid_argument","message":"m","field":` + string(quoted) + `}`},
		"redirect":         {307, `{"code":"not_leader","message":` + string(quoted) + `}`},
		"gateway":          {502, "<html>" + strings.Repeat("x", 170) + token + " " + admin},
	} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Location", "http://elsewhere.example/?"+token+admin)
			say(w, row.status, row.body)
		})
		_, err := publish(quick(t, Config{Token: token, AdminToken: admin}, f), PublishOptions{})
		if e := asError(t, err); strings.Contains(fmt.Sprintf("%+v %v", *e, err), "canary") {
			t.Errorf("%s: %+v", name, *e)
		}
	}
}

// TestTokenIsAWord: a token that is a word of the contract, or of a node's name, spoils no answer.
func TestTokenIsAWord(t *testing.T) {
	for _, token := range []string{"leader", "unavailable", "message", "outcome_unknown", "127.0.0.1"} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			say(w, 503, `{"code":"unavailable","message":"no quorum","leader":"http://`+r.Host+`","outcome_unknown":true}`)
		})
		_, err := publish(quick(t, Config{Token: token, Retry: Retry{For: -1}}, f), PublishOptions{})
		if e := asError(t, err); e.Code != ErrUnavailable || e.Message != "no quorum" || e.Leader != f.URL || !e.Unknown {
			t.Errorf("%s: %+v", token, *e)
		}
	}
}

// TestPasswordInNoError: a URL with a password is refused, and not repeated.
func TestPasswordInNoError(t *testing.T) {
	for _, url := range []string{"http://u:canary@localhost:1", "http://u:canary@[::1", "http://u:canary/x@h", "http://u:can%zzary@h", "u:canary@h", "http://u:canary@h:x"} {
		_, err := New(Config{Nodes: []string{url}})
		if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "zzary") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := New(Config{Nodes: []string{"ftp://mq.example.com"}}); err == nil || !strings.Contains(err.Error(), "ftp://mq.example.com") {
		t.Errorf("a URL that may be shown is not: %v", err)
	}
}

func TestNoProxy(t *testing.T) {
	c := quick(t, Config{Nodes: []string{"https://mq.example.com"}})
	if c.transport.Proxy != nil {
		t.Error("a proxy would see the tokens")
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { say(w, 200, `{"offset":3}`) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	c := quick(t, Config{Nodes: []string{server.URL}, Token: "t", TLS: &tls.Config{RootCAs: pool}})
	if p, err := publish(c, PublishOptions{}); err != nil || p.Offset != 3 {
		t.Errorf("got %+v, %v", p, err)
	}
	c = quick(t, Config{Nodes: []string{server.URL}, Token: "t", Retry: Retry{For: -1}})
	_, err := publish(c, PublishOptions{})
	if e := asError(t, err); e.Code != ErrTransport || e.Unknown {
		t.Errorf("an unknown certificate: %+v", e)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no nodes":           {},
		"no scheme":          {Nodes: []string{"127.0.0.1:8080"}},
		"another scheme":     {Nodes: []string{"ftp://127.0.0.1"}},
		"no host":            {Nodes: []string{"http://"}},
		"only a port":        {Nodes: []string{"http://:8080"}},
		"a path":             {Nodes: []string{"http://127.0.0.1/mq"}},
		"a query":            {Nodes: []string{"http://127.0.0.1?x"}},
		"an empty query":     {Nodes: []string{"http://127.0.0.1?"}},
		"a password":         {Nodes: []string{"http://u:p@127.0.0.1"}},
		"the second is bad":  {Nodes: []string{"http://127.0.0.1", "x"}},
		"plaintext token":    {Nodes: []string{"http://mq.example.com"}, Token: "t"},
		"plaintext admin":    {Nodes: []string{"http://10.0.0.1:8080"}, AdminToken: "t"},
		"a line in a token":  {Nodes: []string{"http://127.0.0.1"}, Token: "a\nb"},
		"a space in a token": {Nodes: []string{"http://127.0.0.1"}, AdminToken: "a b"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, cfg := range map[string]Config{
		"a slash":            {Nodes: []string{"http://127.0.0.1:8080/"}, Token: "t"},
		"IPv6":               {Nodes: []string{"http://[::1]:8080"}, Token: "t"},
		"localhost":          {Nodes: []string{"http://localhost"}, Token: "t"},
		"encrypted":          {Nodes: []string{"https://mq.example.com"}, Token: "t"},
		"without a token":    {Nodes: []string{"http://mq.example.com"}},
		"plaintext, allowed": {Nodes: []string{"http://mq.example.com"}, Token: "t", UnsafePlaintextTokens: true},
	} {
		if _, err := New(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOrigins(t *testing.T) {
	c := quick(t, Config{Nodes: []string{"http://Example.com", "https://example.com:8443"}})
	for location, want := range map[string]int{
		"http://example.com/": 0, "http://EXAMPLE.com:80/x": 0, "https://example.com:8443": 1, "https://example.com": -1,
		"http://example.com:8443": -1, "http://u@example.com": -1, "//example.com": -1,
	} {
		request, err := http.NewRequest("POST", location, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.find(request.URL); got != want {
			t.Errorf("%s: %d, want %d", location, got, want)
		}
	}
}
