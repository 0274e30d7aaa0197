package client

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"
)

// Retry says how a failed call is tried again. The zero value means the defaults.
//
// What is tried again: calls that got no answer, or 408, 429, 502, 503 or 504. Fetches, group commits, retains and
// snapshots can always be sent again, because twice is the same as once. A publish is sent again only if it
// carries a request id, which it does unless you switch that off, or if it is certain that nothing was done:
// only a broker's own answer makes that certain, not a gateway's with the same status.
// All other errors return at once, and so do those that only another setting can cure: a certificate that is not
// trusted, http where https is spoken. Other nodes are asked before.
type Retry struct {
	// For is how long new attempts are made, counted from the call; default 30s; negative for one attempt
	// only. Keep it below the broker's -request-id-window (1h unless changed): after that, the broker no longer
	// knows that it has done the call.
	For time.Duration
	// Backoff is the pause after the first attempt; it doubles up to BackoffMax. A random part of up to one
	// half is taken off. Default 50ms and 2s. A node that asks for a longer pause gets it.
	Backoff, BackoffMax time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.For == 0 {
		r.For = 30 * time.Second
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

// redirectsMax is how many redirects in a row are followed without a pause: two nodes that each take the
// other for the leader must not keep us busy.
const redirectsMax = 3

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
		start     = time.Now()
		node      = int(c.preferred.Load())
		unknown   bool // an attempt that failed may have had its effect
		redirects int
		tried     int // nodes in this round
		hopeless  int // of them: asking again cannot help
		rounds    int
		asked     time.Duration // the longest pause that a node of this round asked for
	)
	for attempts := 1; ; attempts++ {
		answer, target, failed := c.send(ctx, node, call)
		if failed == nil {
			c.preferred.Store(int32(node))
			return answer, nil
		}
		// Once one attempt is in doubt, a later "nothing was done" speaks only of the later one.
		unknown = unknown || failed.Unknown
		failed.Unknown, failed.Attempts = unknown, attempts
		if failed.Code == ErrCanceled || !failed.mayRetry(call, unknown) {
			return nil, failed
		}

		if target >= 0 && redirects < redirectsMax {
			redirects++
			node = target
			continue
		}
		redirects = 0
		tried++
		if failed.hopeless() {
			hopeless++
		}
		asked = max(asked, failed.RetryAfter)
		if target >= 0 {
			node = target
		} else {
			node = (node + 1) % len(c.nodes)
		}
		// Each node gets its chance before we pause: one that is down, or that waits for a leader, says
		// nothing about the others.
		if tried < len(c.nodes) && time.Since(start) < c.retry.For {
			continue
		}
		if hopeless == tried {
			return nil, failed
		}
		rounds++
		pause := max(c.retry.pause(rounds), asked)
		tried, hopeless, asked = 0, 0, 0
		if time.Since(start)+pause >= c.retry.For {
			return nil, failed
		}
		if err := sleep(ctx, pause); err != nil {
			// What the node said stays in the text.
			failed.Code, failed.Message, failed.cause = ErrCanceled, "before another attempt, after: "+failed.summary(), err
			return nil, failed
		}
	}
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
