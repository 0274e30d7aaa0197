// Command mqd is the broker: one process that owns one data folder and serves the API over HTTP.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// flushMax is how long the end of the process waits for a reader of standard error.
const flushMax = time.Second

func main() {
	// Whoever reads standard error may go away: no reason to end.
	signal.Ignore(syscall.SIGPIPE)
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stops...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	out := newStderr(os.Stderr)
	code := run(ctx, os.Args[1:], os.LookupEnv, out)
	stop()
	out.flush(flushMax)
	os.Exit(code)
}

// endAtOnce is called when a bug of ours came up in the middle of the broker's work. Locks may be held for
// ever; what was acknowledged is safe on the disk, and a new process reads it back.
func endAtOnce(to io.Writer, bug any) {
	fmt.Fprintf(to, "mqd: stopped by a bug: %v\n", bug)
	if s, ok := to.(*stderr); ok {
		s.flush(flushMax)
	}
	os.Exit(exitFailure)
}
