package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"example.com/mq/api"
	"example.com/mq/client"
)

// importIDMax leaves room in a request id for the position that follows the import id.
const importIDMax = 200

// Limits of what is gathered but not yet sent.
const (
	pendingBytesMax  = 32 << 20
	pendingTopicsMax = 10000
)

// importJob publishes all records of a source.
//
// The order within a topic is kept because each topic belongs to one worker, and a worker has one request
// under way. Which records form a batch depends on nothing but the input (unless prompt is set), and a
// batch's request id is made of the import id and of how many records of its topic come before it. So a
// second run over the same input sends the same requests, and the broker knows those that it has done.
//
// Records that come with the request id of the publish that they were part of are published
// as that again, whole or not at all: what got in after all, by a client that tried again, is known to the broker.
type importJob struct {
	mq     *client.Client
	src    *source
	batch  int
	jobs   int
	id     string // empty for generated request ids
	prompt bool   // send what there is when the input pauses

	published atomic.Uint64
	failed    atomic.Bool // after the first error nothing more is sent

	mu     sync.Mutex
	err    error // the first one
	topics map[string]*topicTotal
}

// topicTotal is what was acknowledged in one topic.
type topicTotal struct {
	Topic      string `json:"topic"`
	Records    uint64 `json:"records"`
	Duplicates uint64 `json:"duplicates"` // of Records: published by an earlier run
	First      uint64 `json:"first_offset"`
	Last       uint64 `json:"last_offset"`
}

// pendingTopic gathers the next batch of a topic.
type pendingTopic struct {
	origin  origin // of all its records; without a request id for those that have none of their own
	before  uint64 // records of the topic that come before it
	records []client.Record
	bytes   int
	lines   []uint64 // where the records stand in the input
}

// outgoing is a batch on its way to a worker.
type outgoing struct {
	topic string
	pendingTopic
}

func (j *importJob) run(ctx context.Context) error {
	workers := make([]chan outgoing, j.jobs)
	var group sync.WaitGroup
	for i := range workers {
		workers[i] = make(chan outgoing, 1)
		// An interrupt stops the reading; what is under way is finished, so that nobody has to wonder about it.
		// Ended by the closed channel below.
		group.Go(func() { j.work(context.WithoutCancel(ctx), workers[i]) })
	}
	err := j.read(ctx, workers)
	for _, w := range workers {
		close(w)
	}
	group.Wait()
	if j.err != nil {
		return j.err
	}
	if errors.Is(err, errInterrupted) { // said only now, when what was under way is counted
		return fmt.Errorf("interrupted after %s", count(j.published.Load(), "record"))
	}
	return err
}

// read reads the input and hands out the batches.
func (j *importJob) read(ctx context.Context, workers []chan outgoing) error {
	var (
		topics = map[string]*pendingTopic{} // all, for the count of what comes before
		bytes  int
		open   = map[string]*pendingTopic{} // those that hold records
		// The publish that is read. More of it may follow, and a part under the request id of the whole would be a
		// conflict for ever: so it is sent when a line follows that is not of it, or the end.
		whole origin
	)
	send := func(topic string) {
		p := open[topic]
		h := fnv.New32a()
		io.WriteString(h, topic)
		workers[h.Sum32()%uint32(len(workers))] <- outgoing{topic, *p}
		bytes -= p.bytes
		p.before += uint64(len(p.records))
		p.records, p.lines, p.bytes = nil, nil, 0
		delete(open, topic)
	}
	sendWhole := func() {
		if whole != (origin{}) {
			send(whole.topic)
			whole = origin{}
		}
	}
	sendAll := func() {
		for topic := range open {
			if topic != whole.topic {
				send(topic)
			}
		}
	}
	for !j.failed.Load() {
		if ctx.Err() != nil {
			return errInterrupted
		}
		if j.prompt && len(open) > 0 && !j.src.pending() {
			sendAll()
		}
		in, err := j.src.next()
		if err == io.EOF {
			sendWhole()
			sendAll()
			return nil
		}
		if err != nil {
			// With an import id, what is not yet a whole batch waits for the run over the repaired input, which
			// would cut it otherwise: a part of a batch under the request id of the whole is a conflict for ever.
			if j.id == "" {
				sendAll()
			}
			return err
		}
		if in.origin != whole {
			sendWhole()
		}
		p := topics[in.topic]
		if p == nil {
			p = new(pendingTopic)
			topics[in.topic] = p
		}
		if in.requestID != "" {
			if len(p.records) > 0 && p.origin != in.origin {
				send(in.topic)
			}
			if len(p.records) == api.BatchMax {
				sendAll()
				return fmt.Errorf("line %d: more than %d lines of request id %q: it cannot be one publish", j.src.number, api.BatchMax, in.requestID)
			}
			whole = in.origin
		}
		if len(p.records) == 0 {
			open[in.topic], p.origin = p, in.origin
		}
		p.records = append(p.records, in.record)
		p.lines = append(p.lines, j.src.number)
		p.bytes += len(in.record.Key) + len(in.record.Value)
		bytes += len(in.record.Key) + len(in.record.Value)
		switch {
		case len(p.records) == j.batch && whole.topic != in.topic:
			send(in.topic)
		case bytes > pendingBytesMax || len(open) > pendingTopicsMax:
			sendAll()
		}
	}
	return nil
}

// work publishes what comes, until the first error of any worker.
func (j *importJob) work(ctx context.Context, batches <-chan outgoing) {
	for b := range batches {
		if j.failed.Load() {
			continue
		}
		opts := client.PublishOptions{RequestID: b.origin.requestID}
		if j.id != "" && opts.RequestID == "" {
			opts.RequestID = j.id + "-" + strconv.FormatUint(b.before, 10)
		}
		p, err := j.mq.PublishBatch(ctx, b.topic, b.records, opts)
		if err != nil {
			switch conflict := errors.Is(err, client.ErrRequestIDConflict); {
			case conflict && j.id != "" && b.origin.requestID == "":
				err = fmt.Errorf("%w (the import id was used for other input, or with another --batch)", err)
			case conflict && b.origin.requestID != "":
				err = fmt.Errorf("%w (other records were published with request id %q of these lines: look at them and decide; "+
					"without the member request_id they are published all the same)", err, b.origin.requestID)
			}
			if line, ok := b.culprit(err); ok {
				err = fmt.Errorf("line %d: %w", line, err)
			}
			j.fail(fmt.Errorf("topic %q, %s from line %d on: %w", b.topic, count(uint64(len(b.records)), "record"), b.lines[0], err))
			continue
		}
		j.acknowledged(b.topic, p)
	}
}

// culprit returns the line of the record that the broker refused the batch for.
func (b *outgoing) culprit(err error) (line uint64, ok bool) {
	var e *client.Error
	var i int
	if !errors.As(err, &e) {
		return 0, false
	}
	if n, _ := fmt.Sscanf(e.Field, "messages[%d]", &i); n == 1 && i >= 0 && i < len(b.lines) {
		return b.lines[i], true
	}
	// A body that is too large as a whole is refused unread. With a record that no broker takes it is no wonder.
	for i, r := range b.records {
		if e.Code == client.ErrTooLarge && len(r.Key)+len(r.Value) > api.MessageMax {
			return b.lines[i], true
		}
	}
	return 0, false
}

func (j *importJob) fail(err error) {
	j.failed.Store(true)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
}

func (j *importJob) acknowledged(topic string, p client.Published) {
	j.published.Add(uint64(p.Count))
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.topics[topic]
	if t == nil {
		t = &topicTotal{Topic: topic, First: p.Offset}
		j.topics[topic] = t
	}
	t.Records += uint64(p.Count)
	if p.Duplicate {
		t.Duplicates += uint64(p.Count)
	}
	t.First = min(t.First, p.Offset)
	t.Last = max(t.Last, p.Offset+uint64(p.Count)-1)
}

// summarize prints what was acknowledged, by topic.
func (j *importJob) summarize(std streams, g *Global) error {
	var (
		rows    [][]string
		objects []any
	)
	for _, name := range slices.Sorted(maps.Keys(j.topics)) {
		t := j.topics[name]
		objects = append(objects, t)
		rows = append(rows, []string{
			string(appendVisible(nil, []byte(name))), strconv.FormatUint(t.Records, 10),
			strconv.FormatUint(t.Duplicates, 10), strconv.FormatUint(t.First, 10), strconv.FormatUint(t.Last, 10),
		})
	}
	return writeRows(std.out, g.Output, []string{"TOPIC", "RECORDS", "DUPLICATES", "FIRST", "LAST"}, rows, objects)
}
