package client

import (
	"context"
	"iter"

	"example.com/mq/api"
)

// ListGroups returns one page of the groups, in the order of their names and then of their topics. Groups has all of them.
func (c *Client) ListGroups(ctx context.Context, page api.ListGroupsRequest) (api.ListGroupsAnswer, error) {
	call := &call{operation: "list groups", path: api.PathGroupsList, answerMax: listAnswerMax, again: true}
	return ask[api.ListGroupsAnswer](ctx, c, call, page, []string{"groups"}, page.Topic, page.Prefix, page.Cursor)
}

// Groups ranges over the groups whose names begin with prefix, of one topic, or of all if topic is empty; in the order of
// ListGroups. It ends after the first error. A group that is there all the while comes exactly once.
func (c *Client) Groups(ctx context.Context, topic, prefix string) iter.Seq2[api.GroupState, error] {
	return func(yield func(api.GroupState, error) bool) {
		for page := (api.ListGroupsRequest{Topic: topic, Prefix: prefix, Limit: api.LimitMax}); ; {
			answer, err := c.ListGroups(ctx, page)
			if err != nil {
				yield(api.GroupState{}, err)
				return
			}
			for _, g := range answer.Groups {
				if !yield(g, nil) {
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

// DescribeGroup returns where a group stands in a topic: ErrGroupNotFound if it never committed there.
func (c *Client) DescribeGroup(ctx context.Context, topic, group string) (api.GroupState, error) {
	call := &call{operation: "describe group", path: api.PathGroupsDescribe, answerMax: smallAnswerMax, again: true}
	must := []string{"group", "topic", "next_offset", "start_offset", "end_offset", "lag", "last_activity_ms"}
	return ask[api.GroupState](ctx, c, call, api.GroupRequest{Group: group, Topic: topic}, must, topic, group)
}

// DeleteGroup deletes a group of a topic, and returns the offset at which it stood. If the group reads again it begins at
// the topic's start.
//
// An attempt that got no answer is repeated. So ErrGroupNotFound with Error.Unknown set means that the group is not there any
// more, most likely because an earlier attempt of this call has deleted it.
func (c *Client) DeleteGroup(ctx context.Context, topic, group string) (next uint64, err error) {
	call := &call{operation: "delete group", path: api.PathGroupsDelete, answerMax: smallAnswerMax, writes: true, again: true}
	if err := call.request(api.GroupRequest{Group: group, Topic: topic}, topic, group); err != nil {
		return 0, err
	}
	return c.askNumber(ctx, call, "next_offset")
}

// SeekGroup sets the offset that a group reads next in a topic, by one of Offset, TimeMS and To of seek, or with DryRun only
// tells what that would do.
//
// An attempt that got no answer is repeated, and then finds the group where the one before may have put it: PreviousOffset,
// Skipped and Repeated of the answer are those of the last attempt. What CommitGroup says of late attempts holds here, too.
func (c *Client) SeekGroup(ctx context.Context, seek api.SeekRequest) (api.SeekAnswer, error) {
	call := &call{operation: "seek group", path: api.PathGroupsSeek, answerMax: smallAnswerMax, writes: !seek.DryRun, again: true}
	must := []string{"next_offset", "previous_offset", "skipped", "repeated"}
	return ask[api.SeekAnswer](ctx, c, call, seek, must, seek.Topic, seek.Group, seek.To)
}
