package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"example.com/mq/api"
)

type topicCmd struct {
	List      topicListCmd      `cmd:"" help:"List the topics."`
	Describe  topicDescribeCmd  `cmd:"" help:"Tell what a topic keeps, how long it does, and where its groups are."`
	Configure topicConfigureCmd `cmd:"" help:"Set how long records of a topic are kept (admin token)."`
	Retain    topicRetainCmd    `cmd:"" help:"Move a topic's start offset (admin token): the records below it are gone for good. Prints the start."`
	Delete    topicDeleteCmd    `cmd:"" help:"Delete a topic with its records, settings and groups (admin token). Prints where its offsets would go on."`
}

type topicListCmd struct {
	Prefix string `placeholder:"TEXT" help:"Only topics whose names begin with it."`
}

func (c *topicListCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	var rows [][]string
	var objects []any
	for t, err := range mq.Topics(ctx, c.Prefix) {
		if err != nil {
			return err
		}
		objects = append(objects, t)
		rows = append(rows, []string{visible(t.Topic), number(t.StartOffset), number(t.EndOffset), number(t.Records), number(t.Bytes)})
	}
	return writeRows(std.out, g.Output, []string{"TOPIC", "START", "END", "RECORDS", "BYTES"}, rows, objects)
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

type topicDescribeCmd struct {
	Topic string `arg:"" help:"Topic to describe."`
}

func (c *topicDescribeCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	d, err := mq.DescribeTopic(ctx, c.Topic)
	if err != nil {
		return err
	}
	if g.Output == "json" {
		return writeJSON(std.out, d)
	}
	moment := func(ms *int64) string {
		if ms == nil {
			return "-"
		}
		return showTime(*ms)
	}
	rows := [][]string{
		{"START", number(d.StartOffset)},
		{"END", number(d.EndOffset)},
		{"RECORDS", number(d.Records)},
		{"BYTES", number(d.Bytes)},
		{"OLDEST", moment(d.OldestMS)},
		{"NEWEST", moment(d.NewestMS)},
	}
	rows = append(rows, settingRows(d.Settings, d.Own)...)
	rows = append(rows, []string{"GROUPS", strconv.Itoa(d.GroupsN)})
	if err := writeRows(std.out, g.Output, []string{"TOPIC", visible(d.Topic)}, rows, nil); err != nil || len(d.Groups) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(std.out); err != nil {
		return err
	}
	if err := writeGroups(std.out, g, d.Groups); err != nil {
		return err
	}
	if more := d.GroupsN - len(d.Groups); more > 0 {
		fmt.Fprintf(std.err, "mq: %s more: mq group list --topic\n", count(uint64(more), "group"))
	}
	return nil
}

// settingRows are the limits in effect, and whether they are the topic's own.
func settingRows(s api.Settings, own []string) [][]string {
	row := func(head, name string, limit *int64, show func(n int64) string) []string {
		text, whose := "none", "default"
		if limit != nil {
			text = show(*limit)
		}
		if slices.Contains(own, name) {
			whose = "own"
		}
		return []string{head, text + " (" + whose + ")"}
	}
	plain := func(n int64) string { return strconv.FormatInt(n, 10) }
	age := func(n int64) string {
		const day = int64(24 * time.Hour / time.Millisecond)
		switch {
		case n%day == 0:
			return plain(n/day) + "d"
		case n > int64(maxSpan/time.Millisecond):
			return plain(n) + "ms"
		}
		return (time.Duration(n) * time.Millisecond).String()
	}
	return [][]string{
		row("KEEP FOR", "retention_ms", s.RetentionMS, age),
		row("KEEP BYTES", "retention_bytes", s.RetentionBytes, plain),
		row("KEEP RECORDS", "retention_records", s.RetentionRecords, plain),
	}
}

type topicConfigureCmd struct {
	Topic            string     `arg:"" help:"Topic to configure."`
	Retention        *ageFlag   `xor:"age" placeholder:"DURATION" help:"Keep records for so long: 90m, 7d, 2w; or none for no limit."`
	RetentionMS      *limitFlag `name:"retention-ms" xor:"age" placeholder:"N" help:"The same in milliseconds; or none."`
	RetentionBytes   *limitFlag `name:"retention-bytes" placeholder:"N" help:"Keep so many bytes of keys and values at most; or none."`
	RetentionRecords *limitFlag `name:"retention-records" placeholder:"N" help:"Keep so many records at most; or none."`
	Reset            bool       `help:"Go back to the broker's defaults first."`
}

func (topicConfigureCmd) Help() string {
	return `Limits that are not named stay as they are. The oldest records go first, and only as far as the strictest limit asks.
Prints what holds then.

Examples:
  mq topic configure orders --retention 7d --retention-bytes 10000000000
  mq topic configure orders --retention none
  mq topic configure orders --reset`
}

func (c *topicConfigureCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Retention == nil && c.RetentionMS == nil && c.RetentionBytes == nil && c.RetentionRecords == nil && !c.Reset {
		return usagef("say what to set: --retention, --retention-bytes, --retention-records, or --reset; " +
			"'mq topic describe' shows what holds")
	}
	change := api.ConfigureTopicRequest{
		Topic: c.Topic, Reset: c.Reset, RetentionMS: (*api.Limit)(c.RetentionMS),
		RetentionBytes: (*api.Limit)(c.RetentionBytes), RetentionRecords: (*api.Limit)(c.RetentionRecords),
	}
	if c.Retention != nil {
		change.RetentionMS = (*api.Limit)(c.Retention)
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	now, err := mq.ConfigureTopic(ctx, change)
	if err != nil {
		return err
	}
	return writeRows(std.out, g.Output, []string{"TOPIC", visible(c.Topic)}, settingRows(now.Settings, now.Own), []any{now})
}

type topicRetainCmd struct {
	Topic string `arg:"" help:"Topic whose start is moved."`
	Start uint64 `arg:"" help:"First offset to keep."`
}

func (c *topicRetainCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	start, err := mq.Retain(ctx, c.Topic, c.Start)
	if err != nil {
		return err
	}
	return writeNumber(std, g, "start_offset", start)
}

type topicDeleteCmd struct {
	Topic string `arg:"" help:"Topic to delete."`
	Yes   bool   `help:"Needed, because the records are gone for good."`
}

func (c *topicDeleteCmd) Run(ctx context.Context, g *Global, std streams) error {
	if !c.Yes {
		return usagef("this deletes all records, settings and groups of topic %q for good: say --yes if that is meant", c.Topic)
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	end, err := mq.DeleteTopic(ctx, c.Topic)
	if err != nil {
		return err
	}
	return writeNumber(std, g, "end_offset", end)
}

// writeGroups prints a line for each group.
func writeGroups(w io.Writer, g *Global, groups []api.GroupState) error {
	rows, objects := make([][]string, 0, len(groups)), make([]any, 0, len(groups))
	for _, s := range groups {
		objects = append(objects, s)
		rows = append(rows, []string{visible(s.Group), visible(s.Topic),
			number(s.NextOffset), number(s.EndOffset), number(s.Lag), showTime(s.LastActivityMS)})
	}
	return writeRows(w, g.Output, []string{"GROUP", "TOPIC", "NEXT", "END", "LAG", "LAST ACTIVITY"}, rows, objects)
}
