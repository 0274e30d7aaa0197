package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"example.com/mq/api"
	"example.com/mq/cmd/mq/internal/bench"
)

type benchCmd struct {
	Publish benchPublishCmd `cmd:"" help:"Producers that each publish and wait for the answer, over and over."`
	Fetch   benchFetchCmd   `cmd:"" help:"One reader that reads a topic from its start to its end."`
	Latency benchLatencyCmd `cmd:"" help:"From the call of a publish until a waiting fetch has the record."`
	All     benchAllCmd     `cmd:"" help:"All of these: single publishes, batches of 32, fetch, latency."`
}

func (benchCmd) Help() string {
	return `Every answer is checked: status, offsets without gap or repetition, records in order. Any error fails the
measurement and the command. Unless --topic names one, each measurement uses a new topic.

The "lean" client speaks just enough HTTP/1.1, so that the figures say more about the broker than about the client;
"net/http" is Go's usual client. Times are from sending a request to having checked its answer.`
}

// benchFlags are those of all measurements.
type benchFlags struct {
	Sizes      []int         `name:"size" short:"s" default:"100,1024" help:"Bytes of each value; several are measured one after the other."`
	Duration   time.Duration `short:"d" default:"5s" help:"How long to measure each."`
	Warmup     time.Duration `default:"1s" help:"How long to run each before measuring."`
	Client     string        `enum:"lean,net/http" default:"lean" help:"lean, or net/http."`
	Topic      string        `help:"Topic to use instead of new ones. Its records stay."`
	RequestIDs bool          `name:"request-ids" help:"Send a request id with each publish."`
}

type benchPublishCmd struct {
	benchFlags
	Producers []int `short:"p" default:"1,16,64,256" help:"How many producers; several are measured one after the other."`
	Batch     []int `short:"b" default:"1" help:"Records in each request; 1 to 32."`
}

type benchFetchCmd struct {
	benchFlags
	Fill int  `default:"0" help:"Publish this many records of --size first. Without it, --topic has to be given."`
	Full bool `help:"Read to the end even if that takes longer than --duration."`
}

type benchLatencyCmd struct {
	benchFlags
}

type benchAllCmd struct {
	benchFlags
	Fill int `default:"1000000" help:"Records for fetch."`
}

func (c *benchPublishCmd) Run(ctx context.Context, g *Global, std streams) error {
	return c.run(ctx, g, std, func(b *benchRun) error { return b.publish(c.Producers, c.Batch) })
}

func (c *benchFetchCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Fill == 0 && c.Topic == "" {
		return usagef("give --topic, or --fill")
	}
	if c.Fill == 0 {
		c.Sizes = []int{0} // the topic has the size that it has
	}
	if c.Full {
		c.Duration = 0
	}
	return c.run(ctx, g, std, func(b *benchRun) error { return b.fetch(c.Fill) })
}

func (c *benchLatencyCmd) Run(ctx context.Context, g *Global, std streams) error {
	return c.run(ctx, g, std, (*benchRun).latency)
}

func (c *benchAllCmd) Run(ctx context.Context, g *Global, std streams) error {
	return c.run(ctx, g, std, func(b *benchRun) error {
		return errors.Join(
			b.publish([]int{1, 16, 64, 256}, []int{1}),
			b.publish([]int{16}, []int{api.BatchMax}),
			b.fetch(c.Fill),
			b.latency(),
		)
	})
}

// benchRun measures and prints.
type benchRun struct {
	ctx    context.Context
	flags  *benchFlags
	config bench.Config
	out    io.Writer
	err    io.Writer
	output string
	head   bool // was printed
}

func (f *benchFlags) run(ctx context.Context, g *Global, std streams, measure func(*benchRun) error) error {
	for _, size := range f.Sizes {
		if size < 0 || size > api.MessageMax {
			return usagef("--size is 0 to %d", api.MessageMax)
		}
	}
	if !utf8.ValidString(f.Topic) {
		return usagef("--topic is not valid UTF-8")
	}
	token, _, err := g.tokens()
	if err != nil {
		return err
	}
	tls, err := g.tls()
	if err != nil {
		return err
	}
	if _, err := g.connect(); err != nil { // for what it finds wrong with the URLs
		return err
	}
	return measure(&benchRun{
		ctx: ctx, flags: f, out: std.out, err: std.err, output: g.Output,
		config: bench.Config{
			Target:  bench.Target{Nodes: g.URL, Token: token, TLS: tls},
			NetHTTP: f.Client == "net/http", Warmup: f.Warmup, Duration: f.Duration, RequestIDs: f.RequestIDs,
		},
	})
}

// each runs one measurement for each size.
func (b *benchRun) each(measure func(bench.Config) (bench.Result, error)) error {
	for _, size := range b.flags.Sizes {
		cfg := b.config
		cfg.Size, cfg.Topic, cfg.FreshTopic = size, b.flags.Topic, b.flags.Topic == ""
		if cfg.FreshTopic {
			cfg.Topic = bench.FreshTopic()
		}
		r, err := measure(cfg)
		if err != nil {
			return err
		}
		if err := b.print(r); err != nil {
			return err
		}
	}
	return nil
}

func (b *benchRun) publish(producers, batches []int) error {
	for _, batch := range batches {
		if batch < 1 || batch > api.BatchMax {
			return usagef("--batch is 1 to %d", api.BatchMax)
		}
		for _, n := range producers {
			if n < 1 || n > 10000 {
				return usagef("--producers is 1 to 10000")
			}
			err := b.each(func(cfg bench.Config) (bench.Result, error) { return bench.Publish(b.ctx, cfg, n, batch) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *benchRun) fetch(fill int) error {
	return b.each(func(cfg bench.Config) (bench.Result, error) {
		if fill > 0 {
			fmt.Fprintf(b.err, "mq: publishing %s of %d bytes first\n", count(uint64(fill), "record"), cfg.Size)
		}
		return bench.Fetch(b.ctx, cfg, fill)
	})
}

func (b *benchRun) latency() error {
	return b.each(func(cfg bench.Config) (bench.Result, error) { return bench.Latency(b.ctx, cfg) })
}

// print shows each result as soon as it is there.
func (b *benchRun) print(r bench.Result) error {
	if b.output == "json" {
		return writeJSON(b.out, r)
	}
	const format = "%-8s %-8s %7s %9s %5s %12s %9s %9s %9s %9s %9s\n"
	if !b.head {
		b.head = true
		if _, err := fmt.Fprintf(b.out, format, "CASE", "CLIENT", "BYTES", "PRODUCERS", "BATCH",
			"RECORDS/S", "MB/S", "P50_MS", "P99_MS", "P99.9_MS", "CPU_US"); err != nil {
			return err
		}
	}
	dash := func(text string, shown bool) string {
		if !shown {
			return "-"
		}
		return text
	}
	ms := func(us float64) string { return dash(fmt.Sprintf("%.3f", us/1000), us > 0) }
	_, err := fmt.Fprintf(b.out, format, r.Case, r.Client, strconv.Itoa(r.Size),
		dash(strconv.Itoa(r.Producers), r.Producers > 0), dash(strconv.Itoa(r.Batch), r.Batch > 0),
		fmt.Sprintf("%.0f", r.Rate), fmt.Sprintf("%.2f", r.MBRate), ms(r.P50), ms(r.P99), ms(r.P999),
		fmt.Sprintf("%.2f", r.ClientCPU))
	return err
}
