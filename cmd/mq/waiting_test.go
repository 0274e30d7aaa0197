package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/client"
)

// TestWaitingIsTold: a call that is tried again for longer than a moment says so, once, and for what it waits.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{7 * time.Second, client.RetryForDefault} {
			limit := timeout
			var text bytes.Buffer
			w := &waiting{w: &text, timeout: &timeout}
			fail := func(since, pause time.Duration, lines int) {
				t.Helper()
				text.Reset()
				w.tell(&client.Error{Operation: "publish", Code: client.ErrTransport, Message: "connection\x1b refused", Unknown: true, RequestID: "r"}, since, pause)
				got := text.String()
				if strings.Count(got, "\n") != lines {
					t.Errorf("since %v, a pause of %v: told %q", since, pause, got)
				}
				if lines > 0 && (!strings.Contains(got, "refused") || !strings.Contains(got, limit.String()) || strings.ContainsAny(got, "\x1b\r") || strings.Contains(got, "request id")) {
					t.Errorf("told %q", got)
				}
			}
			fail(0, patience-1, 0)
			fail(patience/2, patience/2, 1)
			fail(2*patience, patience, 0)
			time.Sleep(limit - 1)
			fail(patience, 1, 0)
			time.Sleep(time.Nanosecond)
			fail(0, patience, 1) // another call
		}
	})
}

// TestWaitsForABroker runs a command against a broker that asks for patience.
func TestWaitsForABroker(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if calls.Add(1) == 1 {
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
	if got := err.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "the node is starting") || !strings.Contains(got, "trying again (--timeout 30s)") {
		t.Errorf("told %q", got)
	}
	if !strings.Contains(out.String(), "3") {
		t.Errorf("printed %q", &out)
	}
}
