package httpapi

import (
	"strconv"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
)

// The pages of a list hold at most api.LimitMax elements. Like those of a fetch they are charged to the memory for answers
// as they grow, and end before the element that finds no room: the client goes on with the cursor. The first one always has
// room, because a call keeps keepMax bytes for itself.

// elementMax is more than one element takes, with what stands around it: names are at most doubled by their escapes.
const elementMax = 4<<10 + pageMax

// listRequest makes out what the body asks for. Kind is that of the cursor, names how many it has.
func (c *call) listRequest(kind byte, names int) (*broker.List, *apiError) {
	q := &broker.List{Topic: c.req.topic, Prefix: c.req.rare.prefix, Limit: int(c.req.limit)}
	if c.req.given.has(fieldCursor) {
		if q.After = parseCursor(c.req.rare.cursor, kind, names); q.After == nil {
			return nil, invalid("cursor", "field \"cursor\" must be that of the last answer to this call, as it came; "+
				"leave it out to begin")
		}
	}
	return q, nil
}

// appendElements appends elements, with commas between them, until there is no room. It returns how many they are.
func appendElements[T any](c *call, list []T, appendOne func(dst []byte, e *T) []byte) int {
	for i := range list {
		if cap(c.out)-len(c.out) < elementMax && !c.growOut(elementMax) {
			return i
		}
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendOne(c.out, &list[i])
	}
	return len(list)
}

// beginList starts an answer that elements follow.
func (c *call) beginList(head string) {
	if c.out == nil {
		c.out = c.outFirst[:0]
	}
	c.outHint = 0
	c.out = append(c.out[:0], head...)
}

// topicsList serves /v1/topics/list.
func (c *call) topicsList() *apiError {
	q, bad := c.listRequest(cursorTopics, 1)
	if bad != nil {
		return bad
	}
	c.inBroker = true
	page, more, err := c.s.cfg.Broker.ListTopics(q)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.beginList(`{"topics":[`)
	n := appendElements(c, page, func(dst []byte, t *broker.TopicSummary) []byte {
		return append(appendTopicSummary(append(dst, '{'), t), '}')
	})
	c.out = append(c.out, ']')
	if n < len(page) || more && n > 0 {
		c.out = append(appendCursor(append(c.out, `,"cursor":"`...), cursorTopics, page[n-1].Name), '"')
	}
	c.answer(append(c.out, '}'))
	return nil
}

// groupsList serves /v1/groups/list.
func (c *call) groupsList() *apiError {
	q, bad := c.listRequest(cursorGroups, 2)
	if bad != nil {
		return bad
	}
	c.inBroker = true
	page, more, err := c.s.cfg.Broker.ListGroups(q)
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.beginList(`{"groups":[`)
	n := appendElements(c, page, appendGroupState)
	c.out = append(c.out, ']')
	if n < len(page) || more && n > 0 {
		last := &page[n-1]
		c.out = append(appendCursor(append(c.out, `,"cursor":"`...), cursorGroups, last.Group, last.Topic), '"')
	}
	c.answer(append(c.out, '}'))
	return nil
}

// appendTopicSummary appends the members of a topic, without the braces around them.
func appendTopicSummary(dst []byte, t *broker.TopicSummary) []byte {
	dst = appendQuoted(append(dst, `"topic":`...), t.Name)
	dst = appendOffset(dst, `,"start_offset":`, t.Start)
	dst = appendOffset(dst, `,"end_offset":`, t.End)
	dst = strconv.AppendUint(append(dst, `,"records":`...), t.Records, 10)
	return strconv.AppendUint(append(dst, `,"bytes":`...), t.Bytes, 10)
}

// appendGroupState appends a group.
func appendGroupState(dst []byte, g *broker.GroupState) []byte {
	dst = appendQuoted(append(dst, `{"group":`...), g.Group)
	dst = appendQuoted(append(dst, `,"topic":`...), g.Topic)
	dst = appendOffset(dst, `,"next_offset":`, g.Next)
	dst = appendOffset(dst, `,"start_offset":`, g.Start)
	dst = appendOffset(dst, `,"end_offset":`, g.End)
	dst = strconv.AppendUint(append(dst, `,"lag":`...), g.Lag, 10)
	dst = strconv.AppendInt(append(dst, `,"last_activity_ms":`...), g.LastMS, 10)
	return append(dst, '}')
}

func appendOffset(dst []byte, head string, off fact.Offset) []byte {
	return strconv.AppendUint(append(dst, head...), uint64(off), 10)
}
