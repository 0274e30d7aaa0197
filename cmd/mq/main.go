// Command mq talks to a broker from the shell: it publishes, reads and administers, measures speed, and
// looks into a data directory. Data goes to standard output, everything else to standard error. It exits
// with 0 when all went well, 2 for wrong usage, and 1 for any other failure.
//
// Each subcommand has its own file. What they share is in cli.go (flags, connection) and output.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A closed pipe is an error of the write that found it, not a signal that kills us in the middle.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are the standard ones.
type streams struct {
	in       io.Reader
	out, err io.Writer
}
