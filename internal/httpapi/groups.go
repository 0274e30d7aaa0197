package httpapi

import (
	"strconv"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
)

// groupsDescribe serves /v1/groups/describe.
func (c *call) groupsDescribe() *apiError {
	c.inBroker = true
	g, err := c.s.cfg.Broker.DescribeGroup(c.req.topic, c.req.group)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.answer(appendGroupState(c.out[:0], &g))
	return nil
}

// groupsDelete serves /v1/groups/delete.
func (c *call) groupsDelete() *apiError {
	c.inBroker = true
	next, err := c.s.cfg.Broker.DeleteGroup(c.req.topic, c.req.group)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.answer(appendNumber(c.out[:0], `{"next_offset":`, uint64(next)))
	return nil
}

// groupsSeek serves /v1/groups/seek.
func (c *call) groupsSeek() *apiError {
	q := &broker.Seek{
		Topic: c.req.topic, Group: c.req.group, Offset: fact.Offset(c.req.offset), TimeMS: int64(c.req.rare.timeMS),
		DryRun: c.req.rare.dryRun,
	}
	switch {
	case c.req.given.has(fieldOffset):
		q.By = broker.SeekByOffset
	case c.req.given.has(fieldTimeMS):
		q.By = broker.SeekByTime
	case string(c.req.rare.seekTo) == api.SeekStart:
		q.By = broker.SeekToStart
	default:
		q.By = broker.SeekToEnd
	}
	c.inBroker = true
	sought, err := c.s.cfg.Broker.SeekGroup(q)
	c.inBroker = false
	if err != nil {
		return c.failedAt(err, "offset", q.Offset)
	}
	c.answer(appendSought(c.out[:0], &sought, q.DryRun))
	return nil
}

func appendSought(dst []byte, s *broker.Sought, dryRun bool) []byte {
	dst = appendOffset(dst, `{"next_offset":`, s.Next)
	dst = appendOffset(dst, `,"previous_offset":`, s.Previous)
	dst = strconv.AppendUint(append(dst, `,"skipped":`...), s.Skipped, 10)
	dst = strconv.AppendUint(append(dst, `,"repeated":`...), s.Repeated, 10)
	if dryRun {
		dst = append(dst, `,"dry_run":true`...)
	}
	return append(dst, '}')
}
