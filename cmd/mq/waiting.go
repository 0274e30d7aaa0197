package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"example.com/mq/client"
)

// patience is how long a call is tried again before mq says so: a lead that moves is not worth a line.
const patience = time.Second

// waiting tells what a call waits for, at most once in the time for which one is tried again. An attempt that hangs is told
// when it has failed.
type waiting struct {
	w       io.Writer
	timeout *time.Duration // --timeout, once it has been parsed

	mu   sync.Mutex // guards told, and keeps lines whole
	told time.Time
}

// tell is for client.Config.Retrying.
func (w *waiting) tell(failed *client.Error, since, pause time.Duration) {
	limit := *w.timeout
	w.mu.Lock()
	defer w.mu.Unlock()
	if since+pause < patience || !w.told.IsZero() && time.Since(w.told) < limit {
		return
	}
	w.told = time.Now()
	failed.Unknown = false // what that means for the caller is said at the end, if it still holds
	erase := ""
	if file, ok := w.w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		erase = "\r\x1b[K" // of progress
	}
	fmt.Fprintf(w.w, "%smq: %s: trying again (--timeout %v)\n", erase, plain(failed.Error()), limit)
}
