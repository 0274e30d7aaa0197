package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	"example.com/mq/api"
	"example.com/mq/client"
)

type pubCmd struct {
	Topic     string  `arg:"" optional:"" help:"Topic to publish to. With --jsonl: for lines that name none."`
	Value     *string `arg:"" optional:"" help:"Value of the record; '-' reads all of standard input as one value."`
	Key       string  `short:"k" help:"Key of the record; with -l, of all records."`
	RequestID *string `name:"request-id" placeholder:"ID" help:"Request id of the one record: publishing it again with the same id does nothing."`

	Lines    bool    `short:"l" help:"Publish each line of standard input as one value, without its line end."`
	JSONL    string  `name:"jsonl" placeholder:"FILE" help:"Publish each line of FILE ('-': standard input), a JSON object with the strings topic, key (may be left out) and value."`
	Base64   bool    `name:"base64" help:"Keys and values of the input are base64. With --jsonl this reads what 'mq fetch -o json' writes, and the files of entries that a follower has cut off its log."`
	Batch    int     `default:"32" help:"With -l and --jsonl: most records in one request; 1 to 32."`
	Jobs     int     `short:"j" default:"4" help:"With --jsonl: most requests at a time. Those of one topic always go one after the other, so its order is kept."`
	ImportID *string `name:"import-id" placeholder:"ID" help:"With -l and --jsonl: derive request ids from ID and from where in the input a record stands. Run the same command on the same input again after a crash, and what was published already is not published twice (within the broker's request id window). Choose a new ID for other input, e.g. its checksum."`
	Quiet    bool    `short:"q" help:"No progress, and no summary."`
}

func (*pubCmd) Help() string {
	return `Examples:
  mq pub orders '{"id":1}' -k customer-7     one record; prints its offset
  tail -F app.log | mq pub logs -l           a record a line
  mq pub --jsonl events.jsonl --import-id "$(sha256sum < events.jsonl | cut -c1-32)"

Many records are published in batches of up to 32 records of one topic; each batch is stored whole or not at
all. Lines read from a slow pipe are published as soon as no more input is at hand, unless --import-id asks for
batches that a second run would repeat. A line that cannot be read ends the import. The lines before it are
published; with --import-id only whole batches of them, so that the repaired input can be run with the same ID; and
of lines with request ids only whole publishes.
The summary has a line per topic.

A node that comes back as a follower cuts off its log what its leader does not have, and saves it in the folder "cut"
of its data directory. To publish the records again, at the end of their topics:
  mq pub --jsonl cut/FILE.jsonl --base64
What was published with a request id is published with the same one, as one publish, so that records which got in
after all (the client tried again) are not doubled, as long as the broker remembers the id; --import-id is for those
without. Lines that hold no record (moves of groups, retains, settings) are skipped and counted.`
}

func (c *pubCmd) Run(ctx context.Context, g *Global, std streams) error {
	if err := c.validate(); err != nil {
		return err
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	if !c.Lines && c.JSONL == "" {
		return c.one(ctx, g, std, mq)
	}
	return c.many(ctx, g, std, mq)
}

func (c *pubCmd) validate() error {
	switch many := c.Lines || c.JSONL != ""; {
	case c.Lines && c.JSONL != "":
		return usagef("-l and --jsonl exclude each other")
	case many && c.Value != nil:
		return usagef("-l and --jsonl take no VALUE")
	case many && c.RequestID != nil:
		return usagef("-l and --jsonl take --import-id instead of --request-id")
	case !many && c.ImportID != nil:
		return usagef("--import-id is for -l and --jsonl")
	case c.JSONL != "" && c.Key != "":
		return usagef("--jsonl takes the keys from the file, not from --key")
	case c.JSONL == "" && c.Topic == "":
		return usagef("TOPIC is missing")
	case !many && c.Value == nil:
		return usagef("VALUE is missing ('-' for standard input, or see -l and --jsonl)")
	case c.Batch < 1 || c.Batch > api.BatchMax:
		return usagef("--batch is 1 to %d", api.BatchMax)
	case c.Jobs < 1 || c.Jobs > 64:
		return usagef("--jobs is 1 to 64")
	case c.ImportID != nil && *c.ImportID == "":
		return usagef("--import-id is empty")
	case c.ImportID != nil && len(*c.ImportID) > importIDMax:
		return usagef("--import-id is longer than %d bytes", importIDMax)
	case c.RequestID != nil && *c.RequestID == "":
		return usagef("--request-id is empty")
	}
	return nil
}

// one publishes the record of the command line.
func (c *pubCmd) one(ctx context.Context, g *Global, std streams, mq *client.Client) error {
	record := client.Record{Key: []byte(c.Key), Value: []byte(*c.Value)}
	if *c.Value == "-" {
		value, err := io.ReadAll(io.LimitReader(newInterruptible(ctx, std.in), inputMax+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(value) > inputMax {
			return fmt.Errorf("standard input is longer than %d bytes", inputMax)
		}
		record.Value = value
	}
	if c.Base64 {
		var err error
		if record.Key, err = base64.StdEncoding.AppendDecode(nil, record.Key); err != nil {
			return usagef("key: %w", err)
		}
		if record.Value, err = base64.StdEncoding.AppendDecode(nil, record.Value); err != nil {
			return usagef("value: %w", err)
		}
	}
	var opts client.PublishOptions
	if c.RequestID != nil {
		opts.RequestID = *c.RequestID
	}
	p, err := mq.Publish(ctx, c.Topic, record, opts)
	if err != nil {
		return err
	}
	if g.Output == "json" {
		return writeJSON(std.out, struct {
			Topic     string `json:"topic"`
			Offset    uint64 `json:"offset"`
			Duplicate bool   `json:"duplicate"`
		}{c.Topic, p.Offset, p.Duplicate})
	}
	_, err = fmt.Fprintln(std.out, p.Offset)
	return err
}

// many publishes lines.
func (c *pubCmd) many(ctx context.Context, g *Global, std streams, mq *client.Client) error {
	in, size := std.in, int64(0)
	if c.JSONL != "" && c.JSONL != "-" {
		file, err := os.Open(c.JSONL)
		if err != nil {
			return err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in = file
	}
	src := newSource(newInterruptible(ctx, in), c)
	job := &importJob{
		mq: mq, src: src, batch: c.Batch, jobs: c.Jobs,
		// Batches that depend on when input arrives could not be repeated.
		prompt: c.ImportID == nil,
		topics: map[string]*topicTotal{},
	}
	if c.ImportID != nil {
		job.id = *c.ImportID
	}
	bar := newProgress(std.err, c.Quiet, size, src.read.Load, job.published.Load)
	err := job.run(ctx)
	bar.stop()
	src.reportSkipped(std.err)
	if !c.Quiet {
		if err := job.summarize(std, g); err != nil {
			return err
		}
	}
	// After a conflict, it would end in the same way.
	if err != nil && c.ImportID != nil && !errors.Is(err, client.ErrRequestIDConflict) {
		return fmt.Errorf("%w; the same command can be run again", err)
	}
	return err
}
