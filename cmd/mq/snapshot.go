package main

import "context"

type snapshotCmd struct{}

func (snapshotCmd) Run(ctx context.Context, g *Global, std streams) error {
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	index, err := mq.Snapshot(ctx)
	if err != nil {
		return err
	}
	return writeNumber(std, g, "index", index)
}
