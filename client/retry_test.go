package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
)

const (
	unknownAnswer = `{"code":"unavailable","message":"the replica does not answer","outcome_unknown":true}`
	notDoneAnswer = `{"code":"unavailable","message":"the node is shutting down"}`
)

func requestID(t *testing.T, r received) string {
	t.Helper()
	var request api.PublishRequest
	if err := json.Unmarshal([]byte(r.body), &request); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return request.RequestID
}

func asError(t *testing.T, err error) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want an *Error", err, err)
	}
	return e
}

func TestPublishIsRetriedWithTheSameRequestID(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch n {
		case 0:
			say(w, 503, unknownAnswer)
		case 1:
			hangUp()
		case 2:
			say(w, 502, "<html>a proxy</html>")
		default:
			say(w, 200, `{"offset":42,"duplicate":true}`)
		}
	})
	p, err := publish(quick(t, Config{}, f), PublishOptions{})
	if err != nil || p != (Published{42, 1, true}) {
		t.Fatalf("got %+v, %v", p, err)
	}
	got := f.got()
	if len(got) != 4 {
		t.Fatalf("%d requests, want 4", len(got))
	}
	for _, r := range got {
		if r != got[0] {
			t.Errorf("the attempts differ: %+v, %+v", got[0], r)
		}
	}
	if id := requestID(t, got[0]); len(id) < 20 {
		t.Errorf("generated request id %q", id)
	}
	if _, err := publish(quick(t, Config{}, f), PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.got(); requestID(t, got[0]) == requestID(t, got[4]) {
		t.Error("two publishes had the same generated request id")
	}
}

// TestRetryingIsTold: who asked for it is told of each failure before a pause, and not of the last one.
func TestRetryingIsTold(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n < 3 {
			say(w, 503, unknownAnswer)
			return
		}
		say(w, 400, `{"code":"bad_request","message":"it is wrong"}`)
	})
	var told []*Error
	last := time.Duration(0)
	_, err := publish(quick(t, Config{Retrying: func(failed *Error, since, pause time.Duration) {
		if since < last || pause <= 0 {
			t.Errorf("since %v, then since %v; a pause of %v", last, since, pause)
		}
		last = since
		told = append(told, failed)
	}}, f), PublishOptions{})
	if e := asError(t, err); e.Status != 400 || !e.Unknown || e.Attempts != 4 {
		t.Errorf("the call ended with %+v", e)
	}
	if len(told) != 3 {
		t.Fatalf("told of %d failures, want 3", len(told))
	}
	for i, e := range told {
		if e.Status != 503 || e.Attempts != i+1 || !e.Unknown {
			t.Errorf("failure %d is %+v", i, e)
		}
	}
}

func TestPublishKeepsTheCallersRequestID(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":0}`) })
	if _, err := publish(quick(t, Config{}, f), PublishOptions{RequestID: "mine \u00e9"}); err != nil {
		t.Fatal(err)
	}
	if id := requestID(t, f.got()[0]); id != "mine \u00e9" {
		t.Errorf("request id %q", id)
	}
}

// TestWithoutRequestID: what may have been done is not done again, what was not done is.
func TestWithoutRequestID(t *testing.T) {
	for _, test := range []struct {
		name    string
		first   func(w http.ResponseWriter)
		again   bool
		unknown bool
	}{
		{"the connection is cut", func(w http.ResponseWriter) { hangUp() }, false, true},
		{"the node does not know", func(w http.ResponseWriter) { say(w, 503, unknownAnswer) }, false, true},
		{"a proxy gave up", func(w http.ResponseWriter) { say(w, 504, "") }, false, true},
		{"nothing was done", func(w http.ResponseWriter) { say(w, 503, notDoneAnswer) }, true, false},
		{"a gateway's limit", func(w http.ResponseWriter) { say(w, 429, "") }, false, true},
		{"a gateway's deadline", func(w http.ResponseWriter) { say(w, 504, `{"code":"deadline_exceeded","message":"m"}`) }, false, true},
		{"a gateway's timeout", func(w http.ResponseWriter) { say(w, 408, "<html>") }, false, true},
		{"our code with another status", func(w http.ResponseWriter) { say(w, 502, notDoneAnswer) }, false, true},
		{"names that are not ours", func(w http.ResponseWriter) { say(w, 503, `{"Code":"unavailable","Message":"m"}`) }, false, true},
		{"half a body", func(w http.ResponseWriter) { say(w, 503, notDoneAnswer[:len(notDoneAnswer)-1]) }, false, true},
		{"not the leader", func(w http.ResponseWriter) { say(w, 503, `{"code":"not_leader","message":"m"}`) }, true, false},
		{"the request did not arrive", func(w http.ResponseWriter) { say(w, 408, `{"code":"timeout","message":""}`) }, true, false},
	} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 0 {
				test.first(w)
				return
			}
			say(w, 200, `{"offset":1}`)
		})
		_, err := publish(quick(t, Config{}, f), PublishOptions{NoRequestID: true})
		if again := len(f.got()) == 2; again != test.again || (err == nil) != test.again {
			t.Errorf("%s: %d requests, error %v", test.name, len(f.got()), err)
		}
		if err != nil && asError(t, err).Unknown != test.unknown {
			t.Errorf("%s: %v", test.name, err)
		}
		if strings.Contains(f.got()[0].body, "request_id") {
			t.Errorf("%s: a request id was sent: %s", test.name, f.got()[0].body)
		}
	}
}

// TestNotConnectedIsNotSent: a node that cannot be reached has done nothing.
func TestNotConnectedIsNotSent(t *testing.T) {
	c := quick(t, Config{Nodes: []string{noNode}, Retry: Retry{For: -1}})
	_, err := publish(c, PublishOptions{})
	if e := asError(t, err); e.Code != ErrTransport || e.Unknown || e.Attempts != 1 {
		t.Errorf("got %+v", e)
	}
	// With another node it is sent there, even without a request id.
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":1}`) })
	c = quick(t, Config{Nodes: []string{noNode}}, f)
	if _, err := publish(c, PublishOptions{NoRequestID: true}); err != nil {
		t.Error(err)
	}
}

func TestNotRetried(t *testing.T) {
	for _, test := range []struct {
		status  int
		answer  string
		code    Code
		unknown bool
	}{
		{400, `{"code":"invalid_argument","message":"m","field":"value"}`, ErrInvalidArgument, false},
		{401, `{"code":"unauthenticated","message":"m"}`, ErrUnauthenticated, false},
		{403, `{"code":"permission_denied","message":"m"}`, ErrPermissionDenied, false},
		{404, `{"code":"topic_not_found","message":"m"}`, ErrTopicNotFound, false},
		{409, `{"code":"request_id_conflict","message":"m"}`, ErrRequestIDConflict, false},
		{413, `{"code":"too_large","message":"m"}`, ErrTooLarge, false},
		{500, `{"code":"internal","message":"m"}`, ErrInternal, true},
		{507, `{"code":"storage_full","message":"m"}`, ErrStorageFull, false},
		{431, `{"code":"too_large","message":"m"}`, ErrTooLarge, false},
		{507, `{"code":"storage_full","message":"m","outcome_unknown":true}`, ErrStorageFull, true},
		{500, `{"code":"data_corrupt","message":"m"}`, ErrDataCorrupt, true},
		// No words of a broker: who said them may have passed the call on.
		{404, `not a broker`, ErrBadAnswer, true},
		{400, `{"code":"storage_full","message":"m"}`, ErrBadAnswer, true},
		{499, `{"code":"canceled","message":"m"}`, ErrBadAnswer, true},
		{500, `not a broker`, ErrBadAnswer, true},
		{500, `{"code":"unavailable","message":"m"}`, ErrBadAnswer, true},
		{507, `{"code":"storage_full","message":"m","outcome_unknown":"?"}`, ErrBadAnswer, true},
		{507, `{"CODE":"storage_full","message":"m"}`, ErrBadAnswer, true},
		{507, `["storage_full"]`, ErrBadAnswer, true},
		{599, `{"code":"new_code","message":"m"}`, ErrBadAnswer, true},
		{202, `{"offset":1}`, ErrBadAnswer, true},
		{204, ``, ErrBadAnswer, true},
		{302, ``, ErrBadAnswer, true},
		{308, ``, ErrBadAnswer, true},
		{200, `{}`, ErrBadAnswer, true},
		{200, `{"offset":null}`, ErrBadAnswer, true},
		{200, `{"offset":-1}`, ErrBadAnswer, true},
		{200, `{"offset":1`, ErrBadAnswer, true},
	} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Location", "/elsewhere")
			say(w, test.status, test.answer)
		})
		_, err := publish(quick(t, Config{}, f), PublishOptions{})
		if e := asError(t, err); e.Code != test.code || !errors.Is(err, test.code) || e.Unknown != test.unknown || len(f.got()) != 1 {
			t.Errorf("%d %s: got %+v after %d requests", test.status, test.answer, e, len(f.got()))
		}
		if errors.Is(err, ErrUnavailable) {
			t.Errorf("%v is taken for unavailable", err)
		}
	}
}

// TestGatewayAnswersToReads: a read is in no doubt, and is tried again whoever failed.
func TestGatewayAnswersToReads(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			say(w, 504, `{"code":"deadline_exceeded","message":"m"}`)
			return
		}
		say(w, 405, `<html>`)
	})
	_, err := quick(t, Config{}, f).Fetch(context.Background(), "t", 0, FetchOptions{})
	if e := asError(t, err); e.Code != ErrBadAnswer || e.Status != 405 || e.Unknown || e.Attempts != 2 || !strings.Contains(e.Message, "<html>") {
		t.Errorf("got %+v", e)
	}
}

// TestDoubtStays: "nothing was done" about the second attempt says nothing about the first.
func TestDoubtStays(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			hangUp()
		}
		say(w, 507, `{"code":"storage_full","message":"m"}`)
	})
	_, err := publish(quick(t, Config{}, f), PublishOptions{RequestID: "x"})
	if e := asError(t, err); e.Code != ErrStorageFull || !e.Unknown || e.RequestID != "x" || e.Attempts != 2 {
		t.Errorf("got %+v", e)
	}
}

func TestCancel(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		close(arrived)
		<-release
	})
	defer close(release)
	c := quick(t, Config{}, f)
	ctx, cancel := context.WithCancel(context.Background())

	cancelled, cancelIt := context.WithCancel(context.Background())
	cancelIt()
	_, err := c.Publish(cancelled, "t", Record{}, PublishOptions{})
	if e := asError(t, err); e.Unknown || !errors.Is(err, context.Canceled) || len(f.got()) != 0 {
		t.Errorf("before it was sent: %+v", e)
	}

	go func() {
		<-arrived
		cancel()
	}()
	_, err = c.Publish(ctx, "t", Record{}, PublishOptions{})
	e := asError(t, err)
	if !e.Unknown || e.RequestID == "" || e.Code != ErrCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("after it was sent: %+v", e)
	}
	if !strings.Contains(err.Error(), "the outcome is unknown") || !strings.Contains(err.Error(), e.RequestID) {
		t.Errorf("the text does not say so: %v", err)
	}
}

func TestCancelWhileWaitingToTryAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Retry-After", "60")
		say(w, 503, unknownAnswer)
		w.(http.Flusher).Flush()
		cancel()
	})
	c := quick(t, Config{Retry: Retry{For: time.Hour}}, f)
	_, err := c.Publish(ctx, "t", Record{}, PublishOptions{})
	if e := asError(t, err); !errors.Is(err, context.Canceled) || !e.Unknown {
		t.Errorf("got %+v", e)
	}
}

// TestRetryAfterBeyondTheEnd returns at once instead of waiting for nothing.
func TestRetryAfterBeyondTheEnd(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Retry-After", "50")
		say(w, 503, notDoneAnswer)
	})
	start := time.Now()
	_, err := publish(quick(t, Config{Retry: Retry{For: 40 * time.Second}}, f), PublishOptions{})
	if e := asError(t, err); e.Code != ErrUnavailable || e.RetryAfter != 50*time.Second || e.Unknown || e.Attempts != 1 {
		t.Errorf("got %+v", e)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestRetryAfterIsHonoured waits a real second.
func TestRetryAfterIsHonoured(t *testing.T) {
	var at [2]time.Time
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		at[n] = time.Now()
		if n == 0 {
			w.Header().Set("Retry-After", "1")
			say(w, 503, notDoneAnswer)
			return
		}
		say(w, 200, `{"offset":1}`)
	})
	if _, err := publish(quick(t, Config{}, f), PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := at[1].Sub(at[0]); d < 900*time.Millisecond {
		t.Errorf("the second attempt came after %v", d)
	}
}

func TestRetryAfterHeader(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "3": 3 * time.Second, "999999999": retryAfterMax, "99999999999999999999": 0, "-1": 0, "soon": 0,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(header, now); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

func TestPauses(t *testing.T) {
	r := Retry{Backoff: 100 * time.Millisecond, BackoffMax: time.Second}.withDefaults()
	seen := map[time.Duration]bool{}
	for range 200 {
		for round, full := range map[int]time.Duration{1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000, 100: 1000} {
			full *= time.Millisecond
			if d := r.pause(round); d < full/2 || d > full {
				t.Fatalf("round %d: %v is not between %v and %v", round, d, full/2, full)
			} else {
				seen[d] = true
			}
		}
	}
	if len(seen) < 500 {
		t.Errorf("only %d different pauses", len(seen))
	}
}

// TestGivesUp ends after Retry.For with the last error.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 503, notDoneAnswer) })
	c := quick(t, Config{Retry: Retry{For: 2 * time.Second, Backoff: 100 * time.Millisecond, BackoffMax: 100 * time.Millisecond}}, f)
	_, err := publish(c, PublishOptions{})
	if e := asError(t, err); e.Code != ErrUnavailable || e.Attempts < 2 || e.Attempts != len(f.got()) {
		t.Errorf("got %+v after %d requests", e, len(f.got()))
	}
	c = quick(t, Config{Retry: Retry{For: -1}}, f)
	before := len(f.got())
	if _, err := publish(c, PublishOptions{}); err == nil || len(f.got()) != before+1 {
		t.Errorf("%v after %d requests", err, len(f.got())-before)
	}
}

// TestHungNode: a node that takes the call and says nothing is left after Timeout, and the next one is asked.
func TestHungNode(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second // also for the node that answers
	release := make(chan struct{})
	hung := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { <-release })
	defer close(release)
	good := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{"offset":1}`) })
	c := quick(t, Config{Timeout: timeout}, hung, good)
	if _, err := publish(c, PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	if a, b := hung.got(), good.got(); len(a) != 1 || len(b) != 1 || a[0].body != b[0].body {
		t.Errorf("requests: %v, %v", a, b)
	}
	// The next call goes to the node that answered.
	if _, err := publish(c, PublishOptions{}); err != nil || len(hung.got()) != 1 {
		t.Errorf("%v, %d requests to the node that hangs", err, len(hung.got()))
	}
	// Alone, over a connection that is there: what cannot connect is not in doubt.
	hungNow := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n > 0 {
			<-release
		}
		say(w, 200, `{"offset":1}`)
	})
	c = quick(t, Config{Timeout: timeout, Retry: Retry{For: -1}}, hungNow)
	if _, err := publish(c, PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := publish(c, PublishOptions{})
	if e := asError(t, err); e.Code != ErrTransport || !e.Unknown || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v", e)
	}
}

// TestAnswerIsCutOff: half an answer is no answer.
func TestAnswerIsCutOff(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			w.Header().Set("Content-Length", "13")
			say(w, 200, `{"offset":4`)
			w.(http.Flusher).Flush()
			hangUp()
		}
		say(w, 200, `{"offset":42}`)
	})
	if p, err := publish(quick(t, Config{}, f), PublishOptions{}); err != nil || p.Offset != 42 {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestAnswerTooLarge does not read on and on.
func TestAnswerTooLarge(t *testing.T) {
	for name, declare := range map[string]bool{"declared": true, "endless": false} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if declare {
				w.Header().Set("Content-Length", "1000000000000")
			}
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		})
		c := quick(t, Config{}, f)
		_, err := publish(c, PublishOptions{})
		if e := asError(t, err); e.Code != ErrBadAnswer || !errors.Is(err, errAnswerTooLarge) || !e.Unknown || len(f.got()) != 1 {
			t.Errorf("%s: publish: %+v", name, e)
		}
		_, err = c.Fetch(context.Background(), "t", 0, FetchOptions{})
		if e := asError(t, err); e.Code != ErrBadAnswer || e.Unknown {
			t.Errorf("%s: fetch: %+v", name, e)
		}
	}
}
