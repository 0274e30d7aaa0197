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

	List     groupListCmd     `cmd:"" help:"List the groups, and how far behind they are."`
	Describe groupDescribeCmd `cmd:"" help:"Tell where a group is in a topic."`
	Seek     groupSeekCmd     `cmd:"" help:"Set where a group reads next: at an offset, a time, the start or the end."`
	Delete   groupDeleteCmd   `cmd:"" help:"Delete a group of a topic. Prints the offset at which it stood."`
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

type groupListCmd struct {
	Topic  string `placeholder:"TOPIC" help:"Only groups of this topic."`
	Prefix string `placeholder:"TEXT" help:"Only groups whose names begin with it."`
}

func (c *groupListCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	var groups []api.GroupState
	for s, err := range mq.Groups(ctx, c.Topic, c.Prefix) {
		if err != nil {
			return err
		}
		groups = append(groups, s)
	}
	return writeGroups(std.out, g, groups)
}

type groupDescribeCmd struct {
	Group string `arg:"" help:"Group to describe."`
	Topic string `arg:"" help:"Topic that it reads."`
}

func (c *groupDescribeCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	s, err := mq.DescribeGroup(ctx, c.Topic, c.Group)
	if err != nil {
		return err
	}
	return writeGroups(std.out, g, []api.GroupState{s})
}

type groupSeekCmd struct {
	Group  string   `arg:"" help:"Group whose offset is set."`
	Topic  string   `arg:"" help:"Topic that it reads."`
	Offset *uint64  `xor:"where" required:"" placeholder:"N" help:"To this offset."`
	Time   *instant `xor:"where" required:"" placeholder:"TIME" help:"To the first record that was published at this time or later: a time (2026-11-30T12:00:00Z), milliseconds since 1970, or how long ago (90m, 7d)."`
	Start  bool     `xor:"where" required:"" help:"To the topic's start."`
	End    bool     `xor:"where" required:"" help:"To the topic's end."`
	DryRun bool     `help:"Change nothing; only tell what would be skipped and repeated."`
}

func (groupSeekCmd) Help() string {
	return `SKIPPED is how many records the group will not get at all, REPEATED how many it gets that were behind it.

Examples:
  mq group seek billing orders --time 1h --dry-run
  mq group seek billing orders --end`
}

func (c *groupSeekCmd) Run(ctx context.Context, g *Global, std streams) error {
	seek := api.SeekRequest{Group: c.Group, Topic: c.Topic, Offset: c.Offset, DryRun: c.DryRun}
	switch {
	case c.Time != nil:
		ms := max(0, c.Time.time(time.Now()).UnixMilli())
		seek.TimeMS = &ms
	case c.Start:
		seek.To = api.SeekStart
	case c.End:
		seek.To = api.SeekEnd
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	a, err := mq.SeekGroup(ctx, seek)
	if err != nil {
		return err
	}
	row := []string{number(a.NextOffset), number(a.PreviousOffset), number(a.Skipped), number(a.Repeated)}
	return writeRows(std.out, g.Output, []string{"NEXT", "PREVIOUS", "SKIPPED", "REPEATED"}, [][]string{row}, []any{a})
}

type groupDeleteCmd struct {
	Group string `arg:"" help:"Group to delete."`
	Topic string `arg:"" help:"Topic that it reads."`
}

func (c *groupDeleteCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	next, err := mq.DeleteGroup(ctx, c.Topic, c.Group)
	if err != nil {
		return err
	}
	return writeNumber(std, g, "next_offset", next)
}
