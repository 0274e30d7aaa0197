package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

// farOffset is past the end of every topic: a fetch from there tells where the topic starts and ends.
const farOffset = 1<<53 - 1

type fetchCmd struct {
	Topic    string        `arg:"" help:"Topic to read."`
	Offset   *string       `xor:"where" placeholder:"WHERE" help:"Where to begin: an offset, 'start' (the default) or 'end'."`
	FromTime *instant      `xor:"where" placeholder:"TIME" help:"Begin at the first record that was published at this time or later: a time (2026-11-30T12:00:00Z), milliseconds since 1970, or how long ago (90m, 7d)."`
	Limit    uint64        `short:"n" default:"100" help:"Most records to print; 0 for all up to the end of the topic."`
	Wait     time.Duration `default:"0s" help:"If there is nothing to read, wait up to this long (at most 20s) for a record."`
	recordFormat
}

func (c *fetchCmd) Run(ctx context.Context, g *Global, std streams) error {
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
	var offset uint64
	switch {
	case c.FromTime != nil:
		offset, err = findTime(ctx, mq, c.Topic, c.FromTime.time(time.Now()))
	case c.Offset != nil:
		offset, err = findOffset(ctx, mq, c.Topic, *c.Offset)
	default:
		offset, err = findOffset(ctx, mq, c.Topic, "start")
	}
	if err != nil {
		return err
	}
	if c.Wait > 0 {
		// Wait here, where a record ends the waiting; the consumer then finds it.
		if _, err := mq.Fetch(ctx, c.Topic, offset, client.FetchOptions{Limit: 1, Wait: c.Wait}); err != nil {
			return explain(err)
		}
	}
	limit := 0 // of one answer
	if c.Limit > 0 && c.Limit < 1000 {
		limit = int(c.Limit)
	}
	records, err := mq.Consume(client.ConsumerConfig{Topic: c.Topic, Offset: offset, Limit: limit})
	if err != nil {
		return err
	}
	defer records.Close()
	return copyRecords(ctx, w, records, c.Limit)
}

// checkWait checks a --wait.
func checkWait(wait time.Duration) error {
	if most := api.WaitMSMax * time.Millisecond; wait < 0 || wait > most {
		return usagef("--wait is 0 to %v, not %v", most, wait)
	}
	return nil
}

// findOffset turns the text of an --offset into an offset.
func findOffset(ctx context.Context, mq *client.Client, topic, text string) (uint64, error) {
	switch text {
	case "start", "end":
		page, err := mq.Fetch(ctx, topic, farOffset, client.FetchOptions{Limit: 1})
		if err != nil {
			return 0, err
		}
		if text == "start" {
			return page.StartOffset, nil
		}
		return page.EndOffset, nil
	}
	offset, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, usagef("--offset is a number, 'start' or 'end', not %q", text)
	}
	return offset, nil
}

// findTime returns the offset of the first record of that time or later, or the end of the topic.
func findTime(ctx context.Context, mq *client.Client, topic string, from time.Time) (uint64, error) {
	page, err := mq.FetchFrom(ctx, topic, from, client.FetchOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	if len(page.Records) > 0 {
		return page.Records[0].Offset, nil
	}
	return page.NextOffset, nil
}

// copyRecords prints what the consumer reads, page by page, up to limit records (0: no limit) or its end.
func copyRecords(ctx context.Context, w *recordWriter, records *client.Consumer, limit uint64) error {
	for printed := uint64(0); ; {
		page, err := records.NextPage(ctx)
		if err == io.EOF {
			return w.flush()
		}
		if err != nil {
			return explain(err)
		}
		for i := range page.Records {
			if err := w.write(&page.Records[i]); err != nil {
				return err
			}
			if printed++; printed == limit {
				return w.flush()
			}
		}
		// What has come is shown before waiting for more.
		if err := w.flush(); err != nil {
			return err
		}
	}
}

// explain adds to an error what the user of the command can do about it.
func explain(err error) error {
	var e *client.Error
	switch {
	case !errors.As(err, &e) || e.Code != client.ErrOffsetGone || e.StartOffset == nil:
		return err
	case e.RestoredEnd != nil:
		return fmt.Errorf("%w: the topic goes on at offset %d (--offset %d)", err, *e.StartOffset, *e.StartOffset)
	}
	return fmt.Errorf("%w: the topic starts at offset %d (--offset start)", err, *e.StartOffset)
}
