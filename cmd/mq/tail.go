package main

import (
	"context"
	"errors"

	"example.com/mq/client"
)

type tailCmd struct {
	Topic  string `arg:"" help:"Topic to read."`
	Lines  uint64 `short:"n" default:"10" help:"How many of the last records to print first."`
	Follow bool   `short:"f" help:"Go on with what is published, until interrupted. Waits for the topic if it does not exist."`
	recordFormat
}

func (c *tailCmd) Run(ctx context.Context, g *Global, std streams) error {
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
	page, err := mq.Fetch(ctx, c.Topic, farOffset, client.FetchOptions{Limit: 1})
	switch {
	case err == nil:
		offset = max(page.StartOffset, page.EndOffset-min(page.EndOffset, c.Lines))
	case !c.Follow || !errors.Is(err, client.ErrTopicNotFound):
		return err
	}
	records, err := mq.Consume(client.ConsumerConfig{Topic: c.Topic, Offset: offset, Follow: c.Follow, SkipGone: true})
	if err != nil {
		return err
	}
	defer records.Close()
	err = copyRecords(ctx, w, records, 0)
	if c.Follow && ctx.Err() != nil && errors.Is(err, client.ErrCanceled) {
		return w.flush() // an interrupt is how one ends it
	}
	return err
}
