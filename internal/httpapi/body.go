package httpapi

import (
	"errors"
	"io"
	"net"
	"time"
)

// readBody reads the whole body into c.body. Up to prefetchMax bytes were read before the handler ran; they
// are copied into the call's own buffer, which takes less time than any other way to get at them through
// fasthttp's interface, and nothing to allocate. For more, a share of the budget is taken in one step, before
// the reading goes on: whoever waited for a second share while keeping the first would block others that do
// the same. So a large announcement holds memory before it is sent; readDeadline bounds for how long.
//
// A body of unknown size gets a moderate share first. One that outgrows it waits for a place in a budget of
// its own, whose holders wait for nothing.
func (c *call) readBody(sh *shape) *apiError {
	size := c.ctx.Request.Header.ContentLength() // -1: chunked, -2: no body
	if size == 0 || size == -2 {
		c.body = nil
		c.bodyDone = true
		return nil
	}
	var (
		r     = c.ctx.RequestBodyStream()
		limit = sh.bodyMax()
		buf   = c.small[:0]
		room  = len(c.small) // buf is filled up to here
		began time.Time
	)
	for {
		for len(buf) < room {
			if c.big != nil {
				c.conn.SetReadDeadline(c.s.readDeadline(began, len(buf), room))
			}
			n, err := r.Read(buf[len(buf):room])
			buf = buf[:len(buf)+n]
			switch {
			case len(buf) == size, err == io.EOF && size < 0:
				c.body, c.bodyDone = buf, true
				return nil
			case err == io.EOF:
				return errTruncated
			case err != nil:
				return bodyError(err)
			}
		}
		if len(buf) > limit {
			return sh.tooLarge()
		}
		switch {
		case size > 0:
			room = size
		case c.big == nil:
			room = min(chunkedFirst, limit+1) // the one byte more shows that the body is too large
		default:
			room = limit + 1
		}
		if !c.takeForBody(room) {
			return errBusy
		}
		if began.IsZero() {
			began = time.Now()
		}
		bigger := append(getBuffer(room), buf...)
		if c.big != nil {
			putBuffer(c.big)
		}
		c.big, buf = bigger, bigger
	}
}

// takeForBody waits for the memory of a body of n bytes: the first time in one budget, the second in another.
func (c *call) takeForBody(n int) bool {
	charge := bodyCharge(n)
	if c.booked == 0 {
		if c.s.budget.take(charge, budgetTimeout) {
			c.booked = charge
			return true
		}
		return false
	}
	if !c.s.chunked.take(charge, budgetTimeout) {
		return false
	}
	c.chunked = charge
	return true
}

// bodyCharge is how much memory a body of n bytes takes while it is served: itself, its decoded form, and a
// string of it without its escapes.
func bodyCharge(n int) int64 { return int64(n + n/4*3 + arenaSlack + min(n, textMax)) }

// bodyStride is how far readDeadline looks ahead.
const bodyStride = 1 << 20

// readDeadline is until when more of a body must have arrived, of which n bytes have. It follows what was
// sent, so that a client which stalls does not hold memory for as long as the whole body might take.
func (s *Server) readDeadline(began time.Time, n, size int) time.Time {
	return began.Add(s.cfg.TransferTimeout + timeFor(min(size, n+bodyStride)))
}

func (sh *shape) tooLarge() *apiError {
	if sh.records {
		return errBodyTooLarge
	}
	return errBodyNotSmall
}

func bodyError(err error) *apiError {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return errTimeout
	}
	return errTruncated
}
