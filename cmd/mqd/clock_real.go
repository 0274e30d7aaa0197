//go:build !torture

package main

import "example.com/mq/internal/clock"

// wallClock is the clock of the node.
func wallClock() (clock.Clock, error) { return clock.System{}, nil }
