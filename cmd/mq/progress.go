package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress draws a line on a terminal that tells how far a command is, and draws nothing elsewhere.
type progress struct {
	quit, ended chan struct{} // nil when nothing is drawn
}

// newProgress starts to draw: done of size bytes (a bar, if size is not 0), and how many records.
func newProgress(w io.Writer, quiet bool, size int64, done func() int64, records func() uint64) *progress {
	file, ok := w.(*os.File)
	if quiet || !ok || !term.IsTerminal(int(file.Fd())) {
		return &progress{}
	}
	p := &progress{quit: make(chan struct{}), ended: make(chan struct{})}
	start := time.Now()
	draw := func() {
		width, _, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 20 {
			width = 80
		}
		line := progressLine(width-1, done(), size, records(), time.Since(start))
		fmt.Fprintf(file, "\r%s\x1b[K", line)
	}
	go func() { // ended by stop, which waits for it
		defer close(p.ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				draw()
			case <-p.quit:
				draw()
				fmt.Fprintln(file)
				return
			}
		}
	}()
	return p
}

func (p *progress) stop() {
	if p.quit != nil {
		close(p.quit)
		<-p.ended
	}
}

// progressLine is the text of at most width columns.
func progressLine(width int, done, size int64, records uint64, elapsed time.Duration) string {
	text := fmt.Sprintf("%s in %s", count(records, "record"), short(elapsed))
	if s := elapsed.Seconds(); s >= 0.5 {
		text += fmt.Sprintf(", %.0f/s", float64(records)/s)
	}
	if size > 0 {
		part := min(1, float64(done)/float64(size))
		text = fmt.Sprintf("%3.0f%%  %s", 100*part, text)
		if room := min(40, width-len(text)-3); room >= 10 {
			full := int(part * float64(room))
			text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
		}
	}
	return text[:min(len(text), max(0, width))]
}
