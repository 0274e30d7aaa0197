// Command mqd is the broker: one process that owns one data folder and serves the API over HTTP.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stderr)
	stop()
	os.Exit(code)
}

// endAtOnce is called when a bug of ours came up in the middle of the broker's work. Locks may be held for
// ever; what was acknowledged is safe on the disk, and a new process reads it back.
func endAtOnce(stderr io.Writer, bug any) {
	fmt.Fprintf(stderr, "mqd: stopped by a bug: %v\n", bug)
	os.Exit(exitFailure)
}
