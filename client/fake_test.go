package client

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// fake is a node whose answers a test writes.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

// received is a request that a fake got.
type received struct {
	method, path, token string
	body                string
}

// newFake starts a node; answer gets each request with its number, from 0.
func newFake(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, n int)) *fake {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		f.mu.Lock()
		n := len(f.requests)
		f.requests = append(f.requests, received{r.Method, r.URL.Path, r.Header.Get("Authorization"), string(body)})
		f.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r, n)
	}))
	t.Cleanup(f.Close)
	return f
}

// noNode is the URL of a node that is down. No server of a test gets this port.
const noNode = "http://127.0.0.1:1"

func (f *fake) got() []received {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]received{}, f.requests...)
}

func readBody(t *testing.T, r *http.Request) []byte {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return body
}

// say answers with a status and a body.
func say(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

// hangUp ends the connection without an answer.
func hangUp() { panic(http.ErrAbortHandler) }

// quick makes a client of nodes that tries again at once.
func quick(t *testing.T, cfg Config, nodes ...*fake) *Client {
	t.Helper()
	for _, n := range nodes {
		cfg.Nodes = append(cfg.Nodes, n.URL)
	}
	if cfg.Retry == (Retry{}) {
		cfg.Retry = Retry{For: 10 * time.Second, Backoff: time.Millisecond, BackoffMax: 2 * time.Millisecond}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func publish(c *Client, opts PublishOptions) (Published, error) {
	return c.Publish(context.Background(), "orders", Record{Key: []byte("k"), Value: []byte("v")}, opts)
}
