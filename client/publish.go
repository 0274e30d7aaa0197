package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"example.com/mq/api"
)

// Record is what is published. Key and Value may be empty.
type Record struct {
	Key, Value []byte
}

// PublishOptions are the choices of a publish. The zero value means a generated request id.
type PublishOptions struct {
	// RequestID makes the publish happen once, however often it is sent: publish again with the same request id
	// and the same records, and you get the offsets of the first time. It belongs to the topic.
	// Empty for a generated one.
	RequestID string
	// NoRequestID sends none. Then a publish of which it is not certain that nothing was done is not sent
	// again, and the error says Unknown.
	NoRequestID bool
}

// Published says where the records are.
type Published struct {
	Offset    uint64 // of the first record; those after it follow without a gap
	Count     int
	Duplicate bool // an earlier publish with the same request id had already put them there
}

// Publish appends one record to topic, which is created if need be. When it returns without an error, the
// record is stored as durably as the broker's role promises.
func (c *Client) Publish(ctx context.Context, topic string, record Record, opts PublishOptions) (Published, error) {
	call := &call{operation: "publish", path: api.PathPublish, answerMax: smallAnswerMax}
	return c.publish(ctx, call, topic, []Record{record}, opts)
}

// PublishBatch appends 1 to 32 records to topic, all or none, at consecutive offsets.
func (c *Client) PublishBatch(ctx context.Context, topic string, records []Record, opts PublishOptions) (Published, error) {
	call := &call{operation: "publish batch", path: api.PathPublishBatch, answerMax: smallAnswerMax}
	if len(records) == 0 || len(records) > api.BatchMax {
		return Published{}, call.refuse(fmt.Sprintf("a batch has 1 to %d records, not %d", api.BatchMax, len(records)))
	}
	return c.publish(ctx, call, topic, records, opts)
}

// smallAnswerMax bounds all answers but those of fetches.
const smallAnswerMax = 64 << 10

func (c *Client) publish(ctx context.Context, call *call, topic string, records []Record, opts PublishOptions) (Published, error) {
	if opts.NoRequestID && opts.RequestID != "" {
		return Published{}, call.refuse("RequestID and NoRequestID exclude each other")
	}
	call.requestID = opts.RequestID
	if call.requestID == "" && !opts.NoRequestID {
		call.requestID = rand.Text()
	}
	call.writes, call.again = true, call.requestID != ""
	if err := call.checkNames(topic, call.requestID); err != nil {
		return Published{}, err
	}
	batch := call.path == api.PathPublishBatch
	buffer := make([]byte, 0, encodedSize(topic, records, call.requestID))
	if batch {
		call.body = appendPublishBatch(buffer, topic, records, call.requestID)
	} else {
		call.body = appendPublish(buffer, topic, records[0], call.requestID)
	}
	answer, err := c.do(ctx, call)
	if err != nil {
		return Published{}, err
	}
	return call.published(answer, len(records), batch)
}

// published decodes the answer to a publish of count records and checks it.
func (call *call) published(answer []byte, count int, batch bool) (Published, error) {
	var a struct {
		Offset    *uint64  `json:"offset"`
		Offsets   []uint64 `json:"offsets"`
		Duplicate bool     `json:"duplicate"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return Published{}, call.badAnswer(err)
	}
	if !batch {
		if a.Offset == nil {
			return Published{}, call.badAnswer(errors.New("no offset"))
		}
		if *a.Offset > api.OffsetMax {
			return Published{}, call.badAnswer(fmt.Errorf("an offset of %d", *a.Offset))
		}
		return Published{*a.Offset, 1, a.Duplicate}, nil
	}
	if len(a.Offsets) != count {
		return Published{}, call.badAnswer(fmt.Errorf("%d offsets for %d records", len(a.Offsets), count))
	}
	for i, offset := range a.Offsets {
		if offset > api.OffsetMax || offset != a.Offsets[0]+uint64(i) {
			return Published{}, call.badAnswer(errors.New("the offsets are not consecutive"))
		}
	}
	return Published{a.Offsets[0], count, a.Duplicate}, nil
}

// refuse is the error for a call that is not even sent.
func (call *call) refuse(message string) *Error {
	return &Error{Operation: call.operation, Code: ErrInvalidArgument, Message: message, RequestID: call.requestID}
}

// badAnswer is the error for an answer of status 200 that cannot be one.
func (call *call) badAnswer(err error) *Error {
	return &Error{
		Operation: call.operation, Code: ErrBadAnswer, Status: 200, Message: "the answer makes no sense",
		Unknown: call.writes, RequestID: call.requestID, cause: err,
	}
}
