package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// When one node is down and the other says why it does not do it, that is the error.
func TestReasonOfTheNodeThatAnswers(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(503)
		w.Write([]byte(`{"code":"unavailable","message":"writes wait for the follower"}`))
	}))
	defer up.Close()
	// Once the short pauses are over, the node asks for more time than is left. Both calls are made at once.
	rows := [][]string{{up.URL, noNode}, {noNode, up.URL}}
	errs := make([]error, len(rows))
	var calls sync.WaitGroup
	for i, nodes := range rows {
		c, err := New(Config{Nodes: nodes, Retry: Retry{For: 20 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		calls.Go(func() { _, errs[i] = publish(c, PublishOptions{}) })
	}
	calls.Wait()
	for i, err := range errs {
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != ErrUnavailable || failed.Attempts < 2 {
			t.Errorf("nodes %v: %v", rows[i], err)
		}
	}
}
