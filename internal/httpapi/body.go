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
// the same. So a large announcement holds memory before it is sent; readDeadline bounds for how long, and who sends
// little gets none: some of the body must have come to the kernel first. Bodies of one record have a budget of their
// own, so that those who announce much do not keep them out.
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
		if began.IsZero() {
			began = time.Now()
			if err := c.conn.awaitBytes(shown(size, len(buf)), c.s.readDeadline(began, len(buf), room)); err != nil {
				return bodyError(err)
			}
		}
		waits := time.Now()
		if !c.takeForBody(room, size) {
			return errBusy
		}
		began = began.Add(time.Since(waits)) // what was our doing is not held against the client
		bigger := append(getBuffer(room), buf...)
		if c.big != nil {
			putBuffer(c.big)
		}
		c.big, buf = bigger, bigger
	}
}

// shown is how many bytes must have come to the kernel before a body of the given size gets memory, when n bytes have been
// read and up to headerMax more wait in fasthttp's buffer. A body of unknown size may end at once.
func shown(size, n int) int {
	if size < 0 {
		return 0
	}
	return min(size-n-headerMax, shownMin)
}

// takeForBody waits for the memory of a body of n bytes: the first time in one budget, which depends on what was
// announced, the second in another.
func (c *call) takeForBody(n, announced int) bool {
	charge := bodyCharge(n)
	if c.booked == 0 {
		from := c.s.budget
		if announced >= 0 && announced <= singleMax {
			from = c.s.singles
		}
		if from.take(charge, budgetTimeout) {
			c.booked, c.bookedOf = charge, from
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
