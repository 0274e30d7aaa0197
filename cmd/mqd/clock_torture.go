//go:build torture

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"example.com/mq/internal/clock"
)

// Only builds for tests have this file: the tag torture lets the wall clock jump.

// clockVariable names the file that says how far the wall clock is off, such as -1h.
const clockVariable = "MQ_TORTURE_CLOCK"

// clockEvery is how often that file is read, at most.
const clockEvery = 10 * time.Millisecond

// jumpingClock is the clock of the machine, whose wall time is off by what a file says. Its times have no monotonic
// reading: two of them differ by what the wall clock did in between. Timers and Monotonic know nothing of it.
type jumpingClock struct {
	clock.System
	file string

	mu   sync.Mutex // guards what follows
	next time.Duration
	off  time.Duration
}

// wallClock is the clock of the node.
func wallClock() (clock.Clock, error) {
	file := os.Getenv(clockVariable)
	if file == "" {
		return clock.System{}, nil
	}
	c := &jumpingClock{file: file}
	off, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", clockVariable, err)
	}
	c.off = off
	return c, nil
}

// Now implements clock.Clock.
func (c *jumpingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Monotonic(); now >= c.next {
		c.next = now + clockEvery
		if off, err := c.read(); err == nil { // else it stays as it is: there may be no file descriptor left
			c.off = off
		}
	}
	return c.System.Now().Round(0).Add(c.off)
}

// read returns what the file says; without one the clock is right.
func (c *jumpingClock) read() (time.Duration, error) {
	text, err := os.ReadFile(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(strings.TrimSpace(string(text)))
}
