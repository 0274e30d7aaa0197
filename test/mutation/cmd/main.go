// Command cmd puts deliberate faults into the code, one at a time, and prints which test notices each: see package mutation.
// It ends with 1 if one has survived, or could not be judged.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"example.com/mq/test/mutation"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	flags.SetOutput(stderr)
	wide := flags.Bool("wide", false, "run all tests that could notice a fault, not only the quickest")
	only := flags.String("only", "", "names of faults, separated by commas")
	list := flags.Bool("list", false, "print the faults, and run nothing")
	baseline := flags.Bool("baseline", false, "first see that each check is green without a fault")
	parallel := flags.Int("parallel", 2, "checks that run at a time")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	if *list {
		return printList(stdout, stderr)
	}
	cfg := mutation.Config{Wide: *wide, Baseline: *baseline, Parallel: *parallel, Log: stderr}
	if *only != "" {
		cfg.Names = strings.Split(*only, ",")
	}
	report, err := mutation.Run(ctx, cfg)
	if err == nil || len(report.Results) > 0 {
		text := report.Markdown()
		if *asJSON {
			b, _ := json.MarshalIndent(report, "", "  ") // text and numbers only
			text = string(b) + "\n"
		}
		fmt.Fprint(stdout, text)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	if err != nil || !report.OK() {
		return 1
	}
	return 0
}

func printList(stdout, stderr io.Writer) int {
	all, err := mutation.List()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	for _, m := range all {
		fmt.Fprintf(stdout, "%-34s %-4s %s\n", m.Name, m.Guarantee, m.What)
	}
	return 0
}
