package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// When one node is down and the other says why it does not do it, that is the error.
func TestReasonOfTheNodeThatAnswers(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(503)
		w.Write([]byte(`{"code":"unavailable","message":"writes wait for the follower"}`))
	}))
	defer up.Close()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	for _, nodes := range [][]string{{up.URL, down.URL}, {down.URL, up.URL}} {
		c, err := New(Config{Nodes: nodes, Timeout: time.Second, Retry: Retry{For: 300 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Publish(t.Context(), "t", Record{Value: []byte("v")}, PublishOptions{})
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != ErrUnavailable {
			t.Errorf("nodes %v: %v", nodes, err)
		}
	}
}
