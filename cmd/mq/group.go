package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

type groupCmd struct {
	Fetch  groupFetchCmd  `cmd:"" help:"Read records from the group's offset on. This does not move the offset, unless --commit is given."`
	Commit groupCommitCmd `cmd:"" help:"Set the offset that the group reads next; forwards, or back to read again."`
}

type groupFetchCmd struct {
	Group  string        `arg:"" help:"Group that reads."`
	Topic  string        `arg:"" help:"Topic to read."`
	Limit  int           `short:"n" default:"100" help:"Most records to print; 1 to 1000."`
	Wait   time.Duration `default:"0s" help:"If there is nothing to read, wait up to this long (at most 20s) for a record."`
	Commit bool          `help:"Commit what was printed. Records are printed first: after a failure they come again."`
	recordFormat
}

func (c *groupFetchCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Limit < 1 || c.Limit > api.LimitMax {
		return usagef("-n is 1 to %d, not %d", api.LimitMax, c.Limit)
	}
	if err := checkWait(c.Wait); err != nil {
		return err
	}
	w, err := newRecordWriter(std.out, g, c.recordFormat, c.Topic)
	if err != nil {
		return err
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	page, err := mq.FetchGroup(ctx, c.Topic, c.Group, client.FetchOptions{Limit: c.Limit, Wait: c.Wait})
	if err != nil {
		return err
	}
	for i := range page.Records {
		if err := w.write(&page.Records[i]); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	if !c.Commit {
		fmt.Fprintf(std.err, "mq: %s; next_offset %d, not committed\n", count(uint64(len(page.Records)), "record"), page.NextOffset)
		return nil
	}
	if len(page.Records) == 0 {
		return nil
	}
	_, err = mq.CommitGroup(ctx, c.Topic, c.Group, page.NextOffset)
	return err
}

type groupCommitCmd struct {
	Group      string `arg:"" help:"Group whose offset is set."`
	Topic      string `arg:"" help:"Topic that it reads."`
	NextOffset uint64 `arg:"" help:"Offset that it reads next."`
}

func (c *groupCommitCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	next, err := mq.CommitGroup(ctx, c.Topic, c.Group, c.NextOffset)
	if err != nil {
		return err
	}
	return writeNumber(std, g, "next_offset", next)
}

// writeNumber prints the answer to a command that has just one.
func writeNumber(std streams, g *Global, name string, n uint64) error {
	if g.Output == "json" {
		return writeJSON(std.out, map[string]uint64{name: n})
	}
	_, err := fmt.Fprintln(std.out, strconv.FormatUint(n, 10))
	return err
}
