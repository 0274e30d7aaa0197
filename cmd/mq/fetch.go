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
	Topic  string        `arg:"" help:"Topic to read."`
	Offset string        `default:"start" help:"Where to begin: an offset, 'start' or 'end'."`
	Limit  uint64        `short:"n" default:"100" help:"Most records to print; 0 for all up to the end of the topic."`
	Wait   time.Duration `default:"0s" help:"If there is nothing to read, wait up to this long (at most 20s) for a record."`
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
	offset, err := findOffset(ctx, mq, c.Topic, c.Offset)
	if err != nil {
		return err
	}
	if c.Wait > 0 {
		// Wait here, where a record ends the waiting; the consumer then finds it.
		if _, err := mq.Fetch(ctx, c.Topic, offset, client.FetchOptions{Limit: 1, Wait: c.Wait}); err != nil {
			return err
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
	if errors.As(err, &e) && e.Code == client.ErrOffsetGone && e.StartOffset != nil {
		return fmt.Errorf("%w: the topic starts at offset %d (--offset start)", err, *e.StartOffset)
	}
	return err
}
