package main

import "context"

type topicCmd struct {
	Retain topicRetainCmd `cmd:"" help:"Move a topic's start offset: the records below it are gone for good. Prints the start."`
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
