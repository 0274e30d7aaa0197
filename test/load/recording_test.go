package load

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"example.com/mq/test/linear"
)

// TestRecording lets a few clients use the small broker and its bugs. Only without a bug is what they saw linearizable.
func TestRecording(t *testing.T) {
	for _, bug := range []string{
		"", "no request ids", "store, then call it not done", "commit, then call it not done", "show half batches", "old end",
	} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			b := newBroker(bug)
			server := httptest.NewServer(b)
			defer server.Close()
			c := Open(Options{URLs: []string{server.URL}, Patient: true, Cluster: true, Timeout: time.Second})
			defer c.Close()
			r := NewRecording()
			var err error
			const most = 100
			for round := range most {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				r.Run(ctx, c, 5, uint64(round))
				cancel()
				b.restart()
				r.Complete(t.Context(), c)
				what, judged := r.Judge(time.Second)
				if err = judged; err != nil && !errors.Is(err, linear.ErrUndecided) {
					break
				}
				if bug == "" && len(r.Operations()) > 5*callsPerTopic {
					t.Log(what)
					break
				}
			}
			var v *linear.Violation
			if errors.As(err, &v) != (bug != "") {
				t.Errorf("%v", err)
			}
		})
	}
}
