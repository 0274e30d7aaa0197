package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"

	"example.com/mq/api"
)

// ConfigureTopic changes how long records of a topic are kept, and returns what holds now. It needs the admin token.
//
// Nil fields of change are left as they are; api.NoLimit is no limit. What is sent again after a lost answer changes nothing
// more; but as with CommitGroup, an attempt that timed out may still be executed late, and undo a newer change.
func (c *Client) ConfigureTopic(ctx context.Context, change api.ConfigureTopicRequest) (api.ConfigureTopicAnswer, error) {
	call := &call{
		operation: "configure topic", path: api.PathTopicsConfigure, answerMax: smallAnswerMax,
		admin: true, writes: true, again: true,
	}
	return ask[api.ConfigureTopicAnswer](ctx, c, call, change, []string{"settings", "own"}, change.Topic)
}

// DeleteTopic deletes a topic with its records, settings and groups, and returns where its offsets go on if it is published
// to again: they are not given out a second time. It needs the admin token.
//
// An attempt that got no answer is repeated. So ErrTopicNotFound with Error.Unknown set means that the topic is not there any
// more, most likely because an earlier attempt of this call has deleted it. What was published to the topic while the
// call was under way may be gone with it.
func (c *Client) DeleteTopic(ctx context.Context, topic string) (end uint64, err error) {
	call := &call{
		operation: "delete topic", path: api.PathTopicsDelete, answerMax: smallAnswerMax,
		admin: true, writes: true, again: true,
	}
	if err := call.request(api.TopicRequest{Topic: topic}, topic); err != nil {
		return 0, err
	}
	return c.askNumber(ctx, call, "end_offset")
}

// ListTopics returns one page of the topics, in the order of their names. Topics has all of them.
func (c *Client) ListTopics(ctx context.Context, page api.ListTopicsRequest) (api.ListTopicsAnswer, error) {
	call := &call{operation: "list topics", path: api.PathTopicsList, answerMax: listAnswerMax, again: true}
	return ask[api.ListTopicsAnswer](ctx, c, call, page, []string{"topics"}, page.Prefix, page.Cursor)
}

// Topics ranges over the topics whose names begin with prefix, in the order of their names. It ends after the first error.
// A topic that is there all the while comes exactly once.
func (c *Client) Topics(ctx context.Context, prefix string) iter.Seq2[api.TopicSummary, error] {
	return func(yield func(api.TopicSummary, error) bool) {
		for page := (api.ListTopicsRequest{Prefix: prefix, Limit: api.LimitMax}); ; {
			answer, err := c.ListTopics(ctx, page)
			if err != nil {
				yield(api.TopicSummary{}, err)
				return
			}
			for _, t := range answer.Topics {
				if !yield(t, nil) {
					return
				}
			}
			if answer.Cursor == "" {
				return
			}
			page.Cursor = answer.Cursor
		}
	}
}

// DescribeTopic returns all about a topic.
func (c *Client) DescribeTopic(ctx context.Context, topic string) (api.DescribeTopicAnswer, error) {
	call := &call{operation: "describe topic", path: api.PathTopicsDescribe, answerMax: listAnswerMax, again: true}
	must := []string{
		"topic", "start_offset", "end_offset", "records", "bytes", "oldest_ms", "newest_ms",
		"settings", "own", "groups", "groups_total",
	}
	return ask[api.DescribeTopicAnswer](ctx, c, call, api.TopicRequest{Topic: topic}, must, topic)
}

// listAnswerMax is more than a page of a list can have, all names as long as can be.
const listAnswerMax = 4 << 20

// request makes the body of a call. Names are all texts in it, see checkNames.
func (call *call) request(v any, names ...string) error {
	if err := call.checkNames(names...); err != nil {
		return err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return call.refuse(err.Error())
	}
	call.body = body
	return nil
}

// ask sends a call and decodes its answer, which must have the given members.
func ask[T any](ctx context.Context, c *Client, call *call, request any, must []string, names ...string) (answer T, err error) {
	if err := call.request(request, names...); err != nil {
		return answer, err
	}
	body, err := c.do(ctx, call)
	if err != nil {
		return answer, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return answer, call.badAnswer(err)
	}
	for _, name := range must {
		if members[name] == nil {
			return answer, call.badAnswer(errors.New("no " + name))
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		var none T
		return none, call.badAnswer(err)
	}
	return answer, nil
}
