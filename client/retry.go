package client

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"
)

// Retry says how a failed call is tried again. The zero value means the defaults.
//
// What is tried again: calls that got no answer, or 408, 429, 502, 503 or 504. All calls but publishes can always be sent
// again, because twice is the same as once (the second deletion finds nothing, see DeleteTopic). A publish is sent again
// only if it carries a request id, which it does unless you switch that off, or if it is certain that nothing was done:
// only a broker's own answer makes that certain, not a gateway's with the same status.
// All other errors return at once, and so do those that only another setting can cure: a certificate that is not
// trusted, http where https is spoken. Other nodes are asked before.
type Retry struct {
	// For is how long new attempts are made, counted from the call; default RetryForDefault, 30s; negative for one attempt
	// only. Keep it below the broker's -request-id-window (1h unless changed): after that, the broker no longer
	// knows that it has done the call.
	For time.Duration
	// Backoff is the pause after the first attempt; it doubles up to BackoffMax. A random part of up to one
	// half is taken off. Default 50ms and 2s. A node that asks for a longer pause gets it. Where several nodes are
	// configured, and those that answer say only that they do not lead or cannot now, the pauses of the first two seconds
	// are shorter: 10 to 50 ms.
	Backoff, BackoffMax time.Duration
}

// RetryForDefault is the default of Retry.For.
const RetryForDefault = 30 * time.Second

func (r Retry) withDefaults() Retry {
	if r.For == 0 {
		r.For = RetryForDefault
	}
	if r.Backoff <= 0 {
		r.Backoff = 50 * time.Millisecond
	}
	if r.BackoffMax <= 0 {
		r.BackoffMax = 2 * time.Second
	}
	r.BackoffMax = max(r.Backoff, r.BackoffMax)
	return r
}

// pause is how long to wait after round failed rounds (1, 2, ...) through the nodes.
func (r Retry) pause(round int) time.Duration {
	d := r.BackoffMax
	if shift := round - 1; shift < 20 {
		d = min(d, r.Backoff<<shift)
	}
	return d - rand.N(d/2+1)
}

// retryAfterMax bounds what a node can make us wait.
const retryAfterMax = time.Minute

// Where there are several nodes, one of them will lead soon: a lead that is handed over is back within 200 ms, one that is
// lost within a second or two. So long no node's word is taken for how long to wait, and the pauses are short.
const (
	quickFor      = 2 * time.Second
	quickPause    = 10 * time.Millisecond // the first one; doubles
	quickPauseMax = 50 * time.Millisecond
)

// quick is pause while a leader is being looked for.
func (r Retry) quick(round int) time.Duration {
	d := quickPauseMax
	if shift := round - 1; shift < 8 {
		d = min(d, quickPause<<shift)
	}
	return min(d-rand.N(d/2+1), r.pause(round))
}

// call is what do sends, as often as it must.
type call struct {
	operation string // for errors
	path      string
	body      []byte
	admin     bool
	writes    bool          // it changes something, so its outcome can be unknown
	again     bool          // sending it again is safe even if an earlier attempt had its effect
	requestID string        // for errors
	wait      time.Duration // how long the node may wait before it answers
	answerMax int64         // most bytes of an answer
}

// do sends a call until it has an answer or may not go on. The errors that it returns are of type *Error.
func (c *Client) do(ctx context.Context, call *call) ([]byte, error) {
	var (
		start   = time.Now()
		failing time.Time // since when
		round   = round{nodes: len(c.nodes), node: int(c.preferred.Load())}
		unknown bool   // an attempt that failed may have had its effect
		quick   int    // rounds while a leader is looked for
		slow    int    // rounds after
		reason  *Error // the last failure that says more than that
	)
	for attempts := 1; ; attempts++ {
		answer, target, failed := c.send(ctx, round.node, call)
		if failed == nil {
			c.preferred.Store(int32(round.node))
			return answer, nil
		}
		if attempts == 1 {
			failing = time.Now()
		}
		// Once one attempt is in doubt, a later "nothing was done" speaks only of the later one.
		unknown = unknown || failed.Unknown
		failed.Unknown, failed.Attempts = unknown, attempts
		if failed.Code == ErrCanceled || !failed.mayRetry(call, unknown) {
			return nil, failed
		}
		// That a follower serves nobody, or that a node is down, is of no interest when another one has said why it does
		// not do it.
		if failed.Code != ErrNotLeader && (failed.Code != ErrTransport || reason == nil || reason.Code == ErrTransport) {
			reason = failed
		}
		if round.note(failed, target) && (target >= 0 || time.Since(start) < c.retry.For) {
			continue
		}
		if reason != nil && (failed.Code == ErrNotLeader || failed.Code == ErrTransport) {
			failed, reason.Unknown, reason.Attempts = reason, unknown, attempts
		}
		if round.failed > 0 && round.hopeless == round.failed {
			return nil, failed
		}
		var pause time.Duration
		if len(c.nodes) > 1 && !round.other && time.Since(start) < quickFor {
			quick++
			pause = c.retry.quick(quick)
		} else {
			slow++
			pause = max(c.retry.pause(slow), round.wish)
		}
		round.begin()
		if time.Since(start)+pause >= c.retry.For {
			return nil, failed
		}
		if c.retrying != nil {
			told := *failed // the call goes on with its own
			c.retrying(&told, time.Since(failing), pause)
		}
		if err := sleep(ctx, pause); err != nil {
			// What the node said stays in the text.
			failed.Code, failed.Message, failed.cause = ErrCanceled, "before another attempt, after: "+failed.summary(), err
			return nil, failed
		}
	}
}

// round is one way through the nodes. Each gets its chance before there is a pause: one that is down, or that waits for a
// leader, says nothing about the others. None gets two: followers may point to a node that is gone, or at each other.
type round struct {
	nodes int
	node  int    // to ask next
	asked []bool // those of this round; nil while nothing has failed

	failed   int           // nodes that did not just point to another one
	hopeless int           // of them: asking again cannot help
	other    bool          // one of them failed for another reason than that it does not lead, or is down
	wish     time.Duration // the longest pause that a node asked for
}

// note notes how the node failed, and where it pointed to or -1, and goes on to the next one. When all have been asked it
// reports false, and the next one is that for another round.
func (r *round) note(failed *Error, target int) bool {
	if r.asked == nil {
		r.asked = make([]bool, r.nodes)
	}
	r.asked[r.node] = true
	r.wish = max(r.wish, failed.RetryAfter)
	if target < 0 {
		r.failed++
		if failed.hopeless() {
			r.hopeless++
		}
		switch failed.Code {
		case ErrUnavailable, ErrNotLeader, ErrTransport:
		default:
			r.other = true
		}
	}
	next := (r.node + 1) % len(r.asked)
	if target >= 0 {
		next = target
	}
	for i := range r.asked {
		if n := (next + i) % len(r.asked); !r.asked[n] {
			r.node = n
			return true
		}
	}
	r.node = next
	return false
}

// begin begins another round.
func (r *round) begin() {
	clear(r.asked)
	r.failed, r.hopeless, r.other, r.wish = 0, 0, false, 0
}

// mayRetry says whether another attempt can help and do no harm.
func (e *Error) mayRetry(call *call, unknown bool) bool {
	if call.writes && !call.again && unknown {
		return false
	}
	switch e.Status {
	case 0:
		return e.Code == ErrTransport
	case http.StatusTemporaryRedirect:
		return e.Code == ErrNotLeader
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// summary is the error in short, for use inside another one's message.
func (e *Error) summary() string {
	s := e.Code.Error()
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
