// Command scale measures what mq costs when there is much of everything: tens of millions of records, a hundred thousand
// topics or groups, millions of request ids, a consumer that reads 10 GB, a log that is cleaned, a backup. It builds mqd, runs it on
// loopback with its data on a real disk, and prints a Markdown table with the goals. A line without a goal is there to
// explain the others.
//
//	go run ./test/bench/scale -case records
//	go run ./test/bench/scale -case all -scale 0.01    # a rehearsal: a hundredth of the data, no figures to quote
//
// Its client is lean, but it shares the machine's processors with the broker, as that of mq bench does.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bench is what all cases share.
type bench struct {
	dir     string // of this run; removed at its end
	mqd     string // the program
	scale   float64
	rounds  int           // how often two things are measured in turn
	measure time.Duration // for how long each time
	profile string        // folder for profiles of mqd, or ""
	started []*server
	rows    [][3]string
}

// cases in the order in which all runs them.
var cases = []struct {
	name string
	run  func(*bench) error
}{
	{"records", records},
	{"topics", topics},
	{"groups", groups},
	{"ids", ids},
	{"reading", reading},
	{"cleaning", cleaning},
	{"backup", backup},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	names := []string{"all"}
	for _, c := range cases {
		names = append(names, c.name)
	}
	b := &bench{}
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	only := f.String("case", "", "what to measure: "+strings.Join(names, ", "))
	dir := f.String("dir", cmp.Or(os.Getenv("TMPDIR"), "/var/tmp"), "`folder` for the data, on a real disk with up to 30 GB free")
	f.Float64Var(&b.scale, "scale", 1, "part of the data to make")
	f.IntVar(&b.rounds, "rounds", 5, "how often two things are measured in turn")
	f.DurationVar(&b.measure, "measure", 4*time.Second, "for how long, each time")
	f.StringVar(&b.profile, "profile", "", "`folder` to write profiles of mqd to; costs a little")
	f.StringVar(&b.mqd, "mqd", "", "`program` to measure; default is to build ./cmd/mqd")
	if err := f.Parse(args); err != nil {
		return err
	}
	if !slices.Contains(names, *only) || f.NArg() > 0 {
		return fmt.Errorf("-case %q: say one of %s", *only, strings.Join(names, ", "))
	}
	if b.dir, err = os.MkdirTemp(*dir, "mq-scale-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.mqd == "" {
		b.mqd = filepath.Join(b.dir, "mqd")
		build := exec.Command("go", "build", "-o", b.mqd, "./cmd/mqd")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build mqd, from the root of the repository: %w", err)
		}
	}
	for _, c := range cases {
		if *only != c.name && *only != "all" {
			continue
		}
		if err := b.one(c.name, c.run); err != nil {
			return err
		}
	}
	return nil
}

// one runs one case and prints its table, also that of a case that has failed in the middle.
func (b *bench) one(name string, run func(*bench) error) error {
	b.rows = nil
	err := run(b)
	for _, s := range b.started {
		err = errors.Join(err, s.kill(), os.RemoveAll(s.data))
	}
	b.started = nil
	if len(b.rows) > 0 {
		b.print(os.Stdout, name)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

func (b *bench) print(w io.Writer, name string) {
	text := fmt.Sprintf("\n| %s | measured | goal |\n| --- | --- | --- |\n", name)
	if b.scale != 1 {
		text = fmt.Sprintf("\n| %s, at %g of the size | measured | goal |\n| --- | --- | --- |\n", name, b.scale)
	}
	for _, row := range b.rows {
		text += fmt.Sprintf("| %s | %s | %s |\n", row[0], row[1], row[2])
	}
	fmt.Fprintln(w, text)
}

// row adds a line to the table.
func (b *bench) row(what, goal, format string, args ...any) {
	measured := fmt.Sprintf(format, args...)
	b.rows = append(b.rows, [3]string{what, measured, goal})
	b.say("%s: %s", what, measured)
}

// say tells who waits what has been done.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// of is a number of things, scaled.
func (b *bench) of(n int) int { return max(1, int(float64(n)*b.scale)) }

// ms and us print durations.
func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f us", d.Seconds()*1e6) }

func mib(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }

// median of values that it may sort.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// list prints values in the order in which they were measured.
func list[T any](values []T, text func(T) string) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = text(v)
	}
	return strings.Join(parts, ", ")
}
