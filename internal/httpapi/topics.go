package httpapi

import (
	"strconv"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
)

// topicsConfigure serves /v1/topics/configure.
func (c *call) topicsConfigure() *apiError {
	q := &broker.Configure{
		Topic: c.req.topic, Reset: c.req.rare.reset,
		RetentionMS:      c.limit(fieldRetentionMS),
		RetentionBytes:   c.limit(fieldRetentionBytes),
		RetentionRecords: c.limit(fieldRetentionRecords),
	}
	c.inBroker = true
	now, err := c.s.cfg.Broker.ConfigureTopic(q)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.answer(append(appendSettings(append(c.out[:0], '{'), &now), '}'))
	return nil
}

// limit returns what the body says about a limit, or nil if it says nothing.
func (c *call) limit(f field) *fact.Limit {
	if !c.req.given.has(f) {
		return nil
	}
	n, _, _ := c.req.number(f)
	l := fact.LimitNone
	if *n > 0 {
		l = fact.Limit(*n)
	}
	return &l
}

// topicsDelete serves /v1/topics/delete.
func (c *call) topicsDelete() *apiError {
	c.inBroker = true
	end, err := c.s.cfg.Broker.DeleteTopic(c.req.topic)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.answer(appendNumber(c.out[:0], `{"end_offset":`, uint64(end)))
	return nil
}

// topicsDescribe serves /v1/topics/describe. With little memory for answers left it shows fewer groups.
func (c *call) topicsDescribe() *apiError {
	c.inBroker = true
	d, err := c.s.cfg.Broker.DescribeTopic(c.req.topic, api.GroupsShown)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.beginList(`{`)
	c.out = appendTopicSummary(c.out, &d.TopicSummary)
	c.out = appendTime(c.out, `,"oldest_ms":`, d.OldestMS)
	c.out = appendTime(c.out, `,"newest_ms":`, d.NewestMS)
	c.out = appendSettings(append(c.out, ','), &d.Settings)
	c.out = append(c.out, `,"groups":[`...)
	appendElements(c, d.Groups, appendGroupState)
	c.out = strconv.AppendInt(append(c.out, `],"groups_total":`...), int64(d.GroupsTotal), 10)
	c.answer(append(c.out, '}'))
	return nil
}

// appendTime appends a time, or null for one below 0.
func appendTime(dst []byte, head string, ms int64) []byte {
	dst = append(dst, head...)
	if ms < 0 {
		return append(dst, "null"...)
	}
	return strconv.AppendInt(dst, ms, 10)
}

// appendSettings appends the settings in effect, and the names of those that are the topic's own.
func appendSettings(dst []byte, s *broker.Settings) []byte {
	limits := [...]struct {
		name           string
		own, effective fact.Limit
	}{
		{"retention_ms", s.Own.MS, s.Effective.MS},
		{"retention_bytes", s.Own.Bytes, s.Effective.Bytes},
		{"retention_records", s.Own.Records, s.Effective.Records},
	}
	dst = append(dst, `"settings":{`...)
	for i, l := range limits {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), l.name...), `":`...)
		if l.effective > 0 {
			dst = strconv.AppendInt(dst, int64(l.effective), 10)
		} else {
			dst = append(dst, "null"...)
		}
	}
	dst = append(dst, `},"own":[`...)
	first := true
	for _, l := range limits {
		if l.own == fact.LimitDefault {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(append(dst, '"'), l.name...), '"')
	}
	return append(dst, ']')
}
