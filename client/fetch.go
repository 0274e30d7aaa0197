package client

import (
	"context"
	"fmt"
	"time"

	"example.com/mq/api"
)

// fetchAnswerMax is more than a fetch answer can have: base64 and the other fields of a record included.
const fetchAnswerMax = 16 << 20

// FetchOptions are the choices of a fetch.
type FetchOptions struct {
	Limit int // most records; 1 to 1000; 0 for 100
	// Wait is how long the broker waits for a record when there is none to read; at most 20s; 0 for not at all.
	// Parts of a millisecond count as a whole one.
	Wait time.Duration
}

// Fetch reads records of topic from offset on. At the end of the topic it returns a page without records.
func (c *Client) Fetch(ctx context.Context, topic string, offset uint64, opts FetchOptions) (*Page, error) {
	call, err := fetchCall(topic, offset, opts)
	if err != nil {
		return nil, err
	}
	return c.fetch(ctx, call, offset, true)
}

// FetchFrom reads records of topic from the first one on that the broker took at that time or later. With none yet, it returns
// a page without records, and what comes next has the offset NextOffset; with a Wait, it waits for that one.
func (c *Client) FetchFrom(ctx context.Context, topic string, from time.Time, opts FetchOptions) (*Page, error) {
	call := &call{operation: "fetch", path: api.PathFetch, answerMax: fetchAnswerMax, wait: opts.Wait, again: true}
	if err := call.checkNames(topic); err != nil {
		return nil, err
	}
	ms := from.UnixMilli()
	if from.After(time.UnixMilli(ms)) {
		ms++ // what was taken within the millisecond before is older
	}
	ms = max(ms, 0) // no record is older
	if ms > api.TimeMSMax {
		return nil, call.refuse(fmt.Sprintf("%v is later than any record can be", from))
	}
	b := append(call.body, `{"topic":`...)
	b = appendString(b, topic)
	b = appendField(b, "from_ms", uint64(ms))
	if err := call.options(b, opts); err != nil {
		return nil, err
	}
	return c.fetch(ctx, call, 0, false)
}

// FetchGroup reads records of topic from the group's offset on. A new group begins at the topic's start.
// Reading does not move the group's offset: CommitGroup does.
func (c *Client) FetchGroup(ctx context.Context, topic, group string, opts FetchOptions) (*Page, error) {
	call, err := fetchGroupCall(topic, group, opts)
	if err != nil {
		return nil, err
	}
	return c.fetch(ctx, call, 0, false)
}

func (c *Client) fetch(ctx context.Context, call *call, offset uint64, exact bool) (*Page, error) {
	answer, err := c.do(ctx, call)
	if err != nil {
		return nil, err
	}
	page := new(Page)
	if err := page.Decode(answer); err != nil {
		return nil, call.badAnswer(err)
	}
	if err := page.check(offset, exact); err != nil {
		return nil, call.badAnswer(err)
	}
	return page, nil
}

func fetchCall(topic string, offset uint64, opts FetchOptions) (*call, error) {
	call := &call{operation: "fetch", path: api.PathFetch, answerMax: fetchAnswerMax, wait: opts.Wait, again: true}
	if err := call.checkNames(topic); err != nil {
		return nil, err
	}
	b := append(call.body, `{"topic":`...)
	b = appendString(b, topic)
	b = appendField(b, "offset", offset)
	return call, call.options(b, opts)
}

func fetchGroupCall(topic, group string, opts FetchOptions) (*call, error) {
	call := &call{operation: "group fetch", path: api.PathGroupsFetch, answerMax: fetchAnswerMax, wait: opts.Wait, again: true}
	if err := call.checkNames(topic, group); err != nil {
		return nil, err
	}
	b := append(call.body, `{"group":`...)
	b = appendString(b, group)
	b = append(b, `,"topic":`...)
	b = appendString(b, topic)
	return call, call.options(b, opts)
}

// options ends the body of a fetch.
func (call *call) options(b []byte, opts FetchOptions) error {
	if opts.Limit < 0 || opts.Limit > api.LimitMax {
		return call.refuse(fmt.Sprintf("limit is 1 to %d, not %d", api.LimitMax, opts.Limit))
	}
	if opts.Wait < 0 || opts.Wait > api.WaitMSMax*time.Millisecond {
		return call.refuse(fmt.Sprintf("wait is 0 to %v, not %v", api.WaitMSMax*time.Millisecond, opts.Wait))
	}
	if opts.Limit > 0 {
		b = appendField(b, "limit", uint64(opts.Limit))
	}
	if opts.Wait > 0 {
		ms := (opts.Wait + time.Millisecond - 1) / time.Millisecond
		b = appendField(b, "wait_ms", uint64(ms))
	}
	call.body = append(b, '}')
	return nil
}
