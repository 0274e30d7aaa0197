package main

import (
	"context"
	"errors"
	"io"
)

// errInterrupted ends the reading of the input.
var errInterrupted = errors.New("interrupted")

// interruptible reads from a reader that may wait for ever, as a terminal or a pipe does, and gives up with
// errInterrupted when its context ends. It is for one goroutine.
type interruptible struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte // never the caller's: a read that was given up may still write to it
	rest []byte // of buf
	err  error  // comes after rest
}

func newInterruptible(ctx context.Context, in io.Reader) *interruptible {
	return &interruptible{ctx: ctx, in: in, buf: make([]byte, 256<<10)}
}

func (r *interruptible) Read(p []byte) (int, error) {
	// The context does not come back, so no read follows one that was given up.
	if r.ctx.Err() != nil {
		return 0, errInterrupted
	}
	if len(r.rest) == 0 && r.err == nil {
		done := make(chan struct{})
		go func() { // ended by the input, or by the end of the process
			defer close(done)
			n, err := r.in.Read(r.buf)
			r.rest, r.err = r.buf[:n], err
		}()
		select {
		case <-done:
		case <-r.ctx.Done():
			return 0, errInterrupted
		}
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
