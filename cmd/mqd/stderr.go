package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// stderrMax is how many bytes wait at most for somebody to read standard error.
const stderrMax = 1 << 20

// stderr is standard error without its reader: what is written is passed on by a goroutine of its own, so that a pipe which
// nobody reads holds up no call, no election and no stop. What finds no room is lost, and a line says how many lines
// were, once there is room again.
type stderr struct {
	to io.Writer

	mu      sync.Mutex
	wake    *sync.Cond // waiting or written has changed
	waiting []byte     // not yet passed on, whole lines
	busy    bool       // some is being passed on
	lost    int        // lines, since the last that was not
	json    bool       // the lines are JSON
}

// newStderr starts the goroutine that passes on. It ends with the process.
func newStderr(to io.Writer) *stderr {
	s := &stderr{to: to}
	s.wake = sync.NewCond(&s.mu)
	go s.passOn()
	return s
}

// Write implements io.Writer, for whole lines. It does not wait, and does not fail.
func (s *stderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting)+len(p) > stderrMax {
		s.lost += max(1, bytes.Count(p, []byte("\n")))
		return len(p), nil
	}
	s.json = bytes.HasPrefix(p, []byte("{"))
	s.tellLost()
	s.waiting = append(s.waiting, p...)
	s.wake.Broadcast()
	return len(p), nil
}

// tellLost adds a line about lines that were lost. Called with mu held.
func (s *stderr) tellLost() {
	if s.lost == 0 {
		return
	}
	form := "time=%s level=WARN msg=\"lines of the log are lost: nobody has read them\" lines=%d\n"
	if s.json {
		form = `{"time":"%s","level":"WARN","msg":"lines of the log are lost: nobody has read them","lines":%d}` + "\n"
	}
	s.waiting = fmt.Appendf(s.waiting, form, time.Now().Format(time.RFC3339Nano), s.lost)
	s.lost = 0
}

func (s *stderr) passOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.waiting) == 0 {
			s.wake.Wait()
		}
		text := s.waiting
		s.waiting, s.busy = nil, true
		s.mu.Unlock()
		s.to.Write(text) // an error means that nobody will ever read it
		s.mu.Lock()
		s.busy = false
		if len(s.waiting) == 0 {
			s.tellLost()
		}
		s.wake.Broadcast()
	}
}

// flush waits until all has been passed on, but no longer than most.
func (s *stderr) flush(most time.Duration) {
	late := false
	defer time.AfterFunc(most, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.wake.Broadcast()
	}).Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for (len(s.waiting) > 0 || s.busy) && !late {
		s.wake.Wait()
	}
}
