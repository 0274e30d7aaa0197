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
		if offset, err = before(ctx, mq, c.Topic, page, c.Lines); err != nil {
			return err
		}
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

// before returns the offset of the n-th last record of a topic, or that of the first one. Page is of the topic.
func before(ctx context.Context, mq *client.Client, topic string, page *client.Page, n uint64) (uint64, error) {
	for end := page.EndOffset; ; {
		switch {
		case n == 0:
			return end, nil
		case end <= page.StartOffset || end-page.StartOffset <= n:
			return page.StartOffset, nil
		}
		offset := end - n
		at, err := mq.Fetch(ctx, topic, offset, client.FetchOptions{Limit: 1})
		var e *client.Error
		lost, goesOn := offset, offset // a restore from a backup made offsets jump from here to there
		switch {
		case err == nil && len(at.Records) > 0:
			goesOn = at.Records[0].Offset
		case err == nil:
		case !errors.As(err, &e):
			return 0, err
		case e.Code == client.ErrOffsetGone && e.RestoredEnd != nil && e.StartOffset != nil:
			lost, goesOn = *e.RestoredEnd, *e.StartOffset
		case e.Code == client.ErrOffsetGone && e.StartOffset != nil: // the topic's start has moved meanwhile
			return *e.StartOffset, nil
		case e.Code != client.ErrDataCorrupt:
			return 0, err
		}
		if lost >= goesOn || goesOn > end {
			return offset, nil
		}
		n -= end - goesOn // the rest of them stand below
		end = lost
	}
}
