package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/client"
)

// TestWaitingIsTold: a call that is tried again for longer than a moment says so, once, and for what it waits.
func TestWaitingIsTold(t *testing.T) {
	var text bytes.Buffer
	timeout := 7 * time.Second
	tell := waiting(&text, &timeout)
	failed := &client.Error{Operation: "publish", Code: client.ErrTransport, Message: "connection\x1b refused"}
	tell(failed, patience-1)
	if text.Len() > 0 {
		t.Errorf("told at once: %q", &text)
	}
	tell(failed, patience)
	tell(failed, 2*patience)
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "refused") || !strings.Contains(got, "7s") || strings.Contains(got, "\x1b") {
		t.Errorf("told %q", got)
	}
}

// TestWaitsForABroker runs a command against a broker that asks for patience twice.
func TestWaitsForABroker(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if calls.Add(1) <= 2 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"unavailable","message":"the node is starting"}`)
			return
		}
		_, _ = io.WriteString(w, `{"offset":3,"duplicate":false}`)
	}))
	defer s.Close()
	var out, err bytes.Buffer
	if status := run(t.Context(), []string{"pub", "t", "v", "-u", s.URL}, streams{strings.NewReader(""), &out, &err}); status != 0 {
		t.Fatalf("status %d: %s", status, &err)
	}
	if got := err.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "the node is starting") || !strings.Contains(got, "trying again until 30s") {
		t.Errorf("told %q", got)
	}
	if !strings.Contains(out.String(), "3") {
		t.Errorf("printed %q", &out)
	}
}
