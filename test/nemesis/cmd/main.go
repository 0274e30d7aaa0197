// Command cmd applies a piece of nemesis by hand, and undoes it after a time or an interrupt.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: nemesis KIND ARGUMENT... [flags]

processes  kill PID                    SIGKILL
           stop PID                    SIGSTOP, and SIGCONT at the end
           freeze PID                  by a control group
           calls PID -calls C -how H   system calls; C: syncs, writes, renames, or names with commas;
                                       H: EIO, ENOSPC, ..., hang, lie, or a delay such as 50ms
disks      power-cut FOLDER            shuts its file system down: unmount and mount it then
           fill FILE                   until the disk is full, or -left BYTES
files      flip FILE BIT               zero FILE SECTOR          swap-sectors FILE SECTOR SECTOR
           truncate FILE SIZE          empty FILE                remove NAME ASIDE
           swap FILE FILE              extra FILE TEXT           copy NAME NAME
           replace NAME WITH ASIDE     a copy of WITH stands for NAME, which is kept ASIDE
networks   deafen PID ADDRESS...       drops what comes from there, where the process is
           refuse PID ADDRESS...       answers it with a reset
           reset PID ADDRESS           resets all connections to there
           link PID ADDRESS PID ADDRESS  joins the networks of two processes, which keep their addresses;
                                       -drop, -duplicate, -reorder, -corrupt P, -delay, -jitter D
clock      clock FILE OFFSET           for an mqd built with -tags torture; MQ_TORTURE_CLOCK names FILE
clients    slow-readers ADDRESS        poll-readers, pipeliners, slow-headers, slow-bodies, slow-writers,
                                       oversize-bodies, oversize-chunks, tiny-chunks, expect, flood,
                                       half-open, half-closed, storm, garbage, malformed
                                       -n CLIENTS, -pace D, -topic T, -token T, -return

-for D     how long; then it is undone. Without it, what goes on ends with an interrupt, and what was
           done to files, disks and clocks stays.
-seed N    of what is drawn
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command without the process around it. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := &options{}
	words, err := o.parse(args)
	if err == flag.ErrHelp || err == nil && len(words) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	if err == nil {
		err = o.do(ctx, words[0], words[1:], stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "nemesis: %v\n", err)
		return 1
	}
	return 0
}
