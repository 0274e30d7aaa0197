package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"example.com/mq/api"
)

// CommitGroup sets the offset that group reads next in topic, forwards or back, and returns it. It must lie
// between the topic's start and end.
//
// An attempt that got no answer is repeated: setting the same offset twice changes nothing, as long as nothing
// was committed in between. But an attempt that timed out may still be executed late, even after a newer
// commit, which it then undoes: records are delivered again, none is skipped that was not committed once. For
// the same reason do not commit for one group and topic from two places at once: the later one wins.
func (c *Client) CommitGroup(ctx context.Context, topic, group string, next uint64) (uint64, error) {
	call := &call{operation: "group commit", path: api.PathGroupsCommit, answerMax: smallAnswerMax, writes: true, again: true}
	if err := call.checkNames(topic, group); err != nil {
		return 0, err
	}
	b := append(call.body, `{"group":`...)
	b = appendString(b, group)
	b = append(b, `,"topic":`...)
	b = appendString(b, topic)
	b = appendField(b, "next_offset", next)
	call.body = append(b, '}')
	return c.askNumber(ctx, call, "next_offset")
}

// askNumber sends a call whose answer is one number.
func (c *Client) askNumber(ctx context.Context, call *call, name string) (uint64, error) {
	answer, err := c.do(ctx, call)
	if err != nil {
		return 0, err
	}
	var (
		fields map[string]json.RawMessage
		n      *uint64
	)
	if err := json.Unmarshal(answer, &fields); err != nil {
		return 0, call.badAnswer(err)
	}
	if fields[name] == nil {
		return 0, call.badAnswer(errors.New("no " + name))
	}
	if err := json.Unmarshal(fields[name], &n); err != nil || n == nil || *n > api.OffsetMax {
		return 0, call.badAnswer(fmt.Errorf("%s is %s", name, fields[name]))
	}
	return *n, nil
}
