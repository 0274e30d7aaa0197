package client

import (
	"context"

	"example.com/mq/api"
)

// Retain moves the start of topic: the records below start are gone for good. It returns the topic's start.
// It needs the admin token.
func (c *Client) Retain(ctx context.Context, topic string, start uint64) (uint64, error) {
	call := &call{
		operation: "retain", path: api.PathTopicsRetain, answerMax: smallAnswerMax,
		admin: true, writes: true, again: true,
	}
	if err := call.checkNames(topic); err != nil {
		return 0, err
	}
	b := append(call.body, `{"topic":`...)
	b = appendString(b, topic)
	b = appendField(b, "start_offset", start)
	call.body = append(b, '}')
	return c.askNumber(ctx, call, "start_offset")
}

// Snapshot makes the broker write a recovery snapshot now, and returns the last log index that it covers. It
// needs the admin token.
func (c *Client) Snapshot(ctx context.Context) (uint64, error) {
	call := &call{
		operation: "snapshot", path: api.PathSnapshot, answerMax: smallAnswerMax,
		admin: true, writes: true, again: true,
	}
	return c.askNumber(ctx, call, "index")
}
