package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"example.com/mq/api"
)

// ConsumerConfig says what a Consumer reads.
type ConsumerConfig struct {
	Topic string
	// Group, if not empty, makes the consumer begin at the group's offset, and Commit move it.
	Group string
	// Offset is where to begin without a Group.
	Offset uint64
	// Follow waits for new records at the end of the topic, and for the topic itself. Without it, the
	// consumer ends with io.EOF once it has read all there is.
	Follow bool
	// SkipGone goes on from the topic's start when the offset has fallen below it, instead of ending with
	// ErrOffsetGone. With a Group that is always so. It also goes on behind what a restore of the broker from a backup has
	// lost; without it that is an error with a Group, too (see Error.RestoredEnd): a new consumer of the group begins where
	// the group was when the backup was taken.
	SkipGone bool
	// Limit is the most records of one fetch; 1 to 1000, 0 for 1000. Up to three answers of at most about 4
	// MiB of records each are in memory at a time.
	Limit int
}

// Consumer reads the records of a topic in order. While the caller works on the records of one answer, the
// next answer is on its way: it is asked for before the records of the last are even decoded.
//
// A consumer of a group delivers at least once: what was not committed is delivered again to the next one.
// A group shares no work: two consumers of one group each get all records.
//
// A Consumer is for one goroutine. It must be closed.
type Consumer struct {
	client *Client
	cfg    ConsumerConfig
	stop   context.CancelFunc
	// answers has no error while the topic can be read; its last element may be one, then it is closed.
	answers chan answered

	page     *Page // records that Next has not yet returned
	at       int   // index in page of the next one
	position uint64
	started  bool // position is known: at once without a group, else from the first answer on
	err      error
}

// answered is one answer that the consumer's goroutine has received.
type answered struct {
	call   *call
	offset uint64 // that was asked for
	exact  bool   // the records must begin there
	answer []byte // to be decoded, unless page is set
	page   *Page
	next   uint64 // what was asked for next, on the word of Bounds
	err    error
}

// Consume begins to read. It does not wait for the first answer; errors come from Next.
func (c *Client) Consume(cfg ConsumerConfig) (*Consumer, error) {
	call := &call{operation: "consume"}
	if err := call.checkNames(cfg.Topic, cfg.Group); err != nil {
		return nil, err
	}
	if cfg.Group != "" && cfg.Offset != 0 {
		return nil, call.refuse("Group and Offset exclude each other")
	}
	if cfg.Limit == 0 {
		cfg.Limit = api.LimitMax
	}
	if cfg.Limit < 0 || cfg.Limit > api.LimitMax {
		return nil, call.refuse(fmt.Sprintf("Limit is 1 to %d, not %d", api.LimitMax, cfg.Limit))
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &Consumer{
		client: c, cfg: cfg, stop: stop, answers: make(chan answered, 1),
		position: cfg.Offset, started: cfg.Group == "",
	}
	go k.run(ctx) // ended by Close, which waits for it
	return k, nil
}

// Close ends the consumer. It commits nothing.
func (k *Consumer) Close() {
	k.stop()
	for range k.answers {
	}
	k.page, k.at = nil, 0
	if k.err == nil {
		k.err = errClosed
	}
}

var errClosed = errors.New("client: the consumer is closed")

// Next returns the next record. It waits for one if the consumer follows the topic; otherwise it returns
// io.EOF at the end. After any error but that of ctx, all later calls return the same error.
//
// The record may be kept, but keeping it keeps all the records of its answer in memory.
func (k *Consumer) Next(ctx context.Context) (StoredRecord, error) {
	for k.page == nil || k.at == len(k.page.Records) {
		if err := k.turn(ctx); err != nil {
			return StoredRecord{}, err
		}
	}
	r := k.page.Records[k.at]
	k.at++
	k.position = r.Offset + 1
	return r, nil
}

// NextPage returns all records of the current answer that Next has not returned yet, at least one, as a
// page. Its Records may be kept.
func (k *Consumer) NextPage(ctx context.Context) (*Page, error) {
	for k.page == nil || k.at == len(k.page.Records) {
		if err := k.turn(ctx); err != nil {
			return nil, err
		}
	}
	page := *k.page
	page.Records = page.Records[k.at:]
	k.at = len(k.page.Records)
	k.position = page.NextOffset
	return &page, nil
}

// All ranges over the records; it ends at the end of the topic, or after the first error.
func (k *Consumer) All(ctx context.Context) iter.Seq2[StoredRecord, error] {
	return func(yield func(StoredRecord, error) bool) {
		for {
			r, err := k.Next(ctx)
			if err == io.EOF {
				return
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Position is the offset after the last record that was returned: what Commit commits. It is false before
// the first answer.
func (k *Consumer) Position() (uint64, bool) { return k.position, k.started }

// Commit sets the group's offset to Position: call it when all records returned so far are dealt with.
func (k *Consumer) Commit(ctx context.Context) error {
	if k.cfg.Group == "" {
		return (&call{operation: "group commit"}).refuse("the consumer has no group")
	}
	if !k.started {
		return nil
	}
	_, err := k.client.CommitGroup(ctx, k.cfg.Topic, k.cfg.Group, k.position)
	return err
}

// turn makes the next answer the current page.
func (k *Consumer) turn(ctx context.Context) error {
	if k.err != nil {
		return k.err
	}
	var a answered
	select {
	case got, ok := <-k.answers:
		if !ok {
			got.err = io.EOF
		}
		a = got
	case <-ctx.Done():
		return &Error{Operation: "consume", Code: ErrCanceled, cause: ctx.Err()}
	}
	if a.err == nil {
		a.err = a.decode()
	}
	if a.err != nil {
		k.err = a.err
		k.stop()
		return k.err
	}
	k.page, k.at = a.page, 0
	k.started = true
	k.position = k.page.NextOffset
	if len(k.page.Records) > 0 {
		k.position = k.page.Records[0].Offset
	}
	return nil
}

// decode decodes the answer and checks it, if that has not been done yet.
func (a *answered) decode() error {
	if a.page == nil {
		a.page = new(Page)
		if err := a.page.Decode(a.answer); err != nil {
			return a.call.badAnswer(err)
		}
		a.answer = nil
	}
	if err := a.page.check(a.offset, a.exact); err != nil {
		return a.call.badAnswer(err)
	}
	if a.page.NextOffset != a.next {
		return a.call.badAnswer(errors.New("it has two next_offset"))
	}
	return nil
}

// run fetches until the consumer is closed, an error comes, or the topic ends and the consumer does not
// follow it. It is one answer ahead of what the channel holds.
func (k *Consumer) run(ctx context.Context) {
	defer close(k.answers)
	offset, exact := k.cfg.Offset, k.cfg.Group == ""
	for {
		a, end := k.fetch(ctx, offset, exact)
		select {
		case k.answers <- a:
		case <-ctx.Done():
			return
		}
		if a.err != nil || (a.next == end && !k.cfg.Follow) {
			return
		}
		offset, exact = a.next, true
	}
}

// pollTopic is how often a consumer that follows looks whether its topic exists now.
const pollTopic = 200 * time.Millisecond

// fetch receives one answer that holds records, if it can, and the end of the topic as of then.
func (k *Consumer) fetch(ctx context.Context, offset uint64, exact bool) (a answered, end uint64) {
	opts := FetchOptions{Limit: k.cfg.Limit}
	if k.cfg.Follow {
		opts.Wait = api.WaitMSMax * time.Millisecond
	}
	for {
		a = answered{offset: offset, exact: exact}
		if exact {
			a.call, a.err = fetchCall(k.cfg.Topic, offset, opts)
		} else {
			a.call, a.err = fetchGroupCall(k.cfg.Topic, k.cfg.Group, opts)
		}
		if a.err != nil {
			return a, 0
		}
		asked := time.Now()
		a.answer, a.err = k.client.do(ctx, a.call)
		if a.err != nil {
			var e *Error
			switch errors.As(a.err, &e); {
			case e.Code == ErrTopicNotFound && k.cfg.Follow && sleep(ctx, pollTopic) == nil:
				continue
			case e.Code == ErrOffsetGone && (k.cfg.SkipGone || k.cfg.Group != "" && e.RestoredEnd == nil) &&
				e.StartOffset != nil && *e.StartOffset > offset:
				offset = *e.StartOffset
				continue
			}
			return a, 0
		}
		var (
			start uint64
			ok    bool
		)
		if a.next, start, end, ok = Bounds(a.answer); !ok {
			// Not the form that we know: what is asked for next has to wait until this is decoded.
			a.page = new(Page)
			if err := a.page.Decode(a.answer); err != nil {
				a.err = a.call.badAnswer(err)
				return a, 0
			}
			a.next, start, end = a.page.NextOffset, a.page.StartOffset, a.page.EndOffset
		}
		if exact && a.next < offset {
			// A topic that has shrunk under its reader is not the topic that it was.
			ends := end // not end itself, which the return sets
			a.err = &Error{
				Operation: "consume", Code: ErrOffsetOutOfRange, StartOffset: &start, EndOffset: &ends,
				Message: fmt.Sprintf("offset %d is past the end %d of the topic", offset, end),
			}
			return a, 0
		}
		if exact && a.next == offset && k.cfg.Follow {
			// Nothing came while the broker waited. One that is stopping does not wait: it must not be asked as
			// fast as it can answer. When ctx ends, the next call says so.
			if time.Since(asked) < opts.Wait/2 {
				sleep(ctx, pollTopic)
			}
			continue
		}
		return a, end
	}
}
