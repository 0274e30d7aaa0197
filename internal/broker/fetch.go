package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const (
	// pageBytesMax is how many bytes of keys and values a fetch returns at most, unless its first record
	// alone is larger.
	pageBytesMax = 4 << 20
	// readAhead is how much is read from the log at a time where runs are short.
	readAhead = 64 << 10
	// readKept bounds the buffers kept for later reads. A sync.Pool gives them back when they are not used.
	readKept = 8 << 20
	// readLarge is the size of a read from which on only few run at a time, to bound their memory: a batch can
	// be 8 MiB, and all of it must be read to check it.
	readLarge    = 256 << 10
	readLargeMax = 4
	// frameAlign is the step at which frames start.
	frameAlign = 8
	// aliveEvery is how often a waiting fetch asks whether its client is still there.
	aliveEvery = time.Second
)

// Fetch hands the records that q asks for to sink and says where it ended. With nothing to read it waits as
// long as q says; EndWaits and Close end the wait early. It returns an error only when it has handed out
// no record.
func (b *Broker) Fetch(q *Fetch, sink Sink) (Page, error) {
	page, id, err := b.read(q, sink)
	if err != nil || page.Records > 0 || q.Wait <= 0 {
		return page, err
	}
	return b.await(q, sink, id)
}

// await is Fetch once it is known that there is nothing to read yet.
func (b *Broker) await(q *Fetch, sink Sink, id state.TopicID) (Page, error) {
	woken := b.waiters.add(id)
	defer b.waiters.remove(id, woken)
	deadline := b.clock.Now().Add(q.Wait)
	timer := b.clock.NewTimer(min(q.Wait, aliveEvery))
	defer timer.Stop()
	for {
		page, _, err := b.read(q, sink)
		if err != nil || page.Records > 0 {
			return page, err
		}
		select {
		case <-woken:
			continue
		case <-b.ending:
			return page, nil
		case <-timer.C():
		}
		left := deadline.Sub(b.clock.Now())
		if left <= 0 || q.Alive != nil && !q.Alive() {
			return page, nil
		}
		timer.Reset(min(left, aliveEvery))
	}
}

// read hands out what there is.
func (b *Broker) read(q *Fetch, sink Sink) (Page, state.TopicID, error) {
	b.view.RLock()
	topic, ok := b.state.Topic(q.Topic)
	at := q.Offset
	if ok && len(q.Group) > 0 {
		at, _ = b.state.Group(topic.ID, q.Group) // a new group is at 0, which is at or below the start
		at = max(at, topic.Start)
	}
	b.view.RUnlock()
	page := Page{Next: at, Start: topic.Start, End: topic.End}
	switch {
	case !ok:
		return page, 0, ErrTopicNotFound
	case at < topic.Start:
		return page, 0, &OffsetGoneError{Start: topic.Start}
	case at >= topic.End:
		page.Next = topic.End
		return page, topic.ID, nil
	}
	r := readers.Get().(*reader)
	defer r.release()
	r.log, r.topic, r.sink, r.large = b.log, topic.Name, sink, b.large
	r.next, r.end, r.left, r.bytesMax = at, topic.End, q.Limit, pageBytesMax
	if q.MaxBytes > 0 {
		r.bytesMax = min(q.MaxBytes, pageBytesMax)
	}
	err := r.run(b.index)
	if brokenIndex(err) && r.records == 0 && b.reindex != nil {
		err = b.readAgain(r)
	}
	page.Next, page.Records = r.next, r.records
	b.observer.Read(r.records, r.bytes)
	if r.records > 0 {
		return page, topic.ID, nil // the error, if it stays, comes with the next fetch
	}
	if errors.Is(err, wal.ErrSegmentGone) || errors.Is(err, index.ErrNone) {
		// Retained while we read? Then say so; if not, the record is missing.
		b.view.RLock()
		start := b.state.TopicByID(topic.ID).Start
		b.view.RUnlock()
		if at < start && len(q.Group) == 0 {
			return page, topic.ID, &OffsetGoneError{Start: start}
		}
		if at < start {
			return b.read(q, sink)
		}
		err = &CorruptError{First: at, Last: topic.End - 1, Detail: err.Error()}
	}
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		b.observer.Corrupt()
		if b.mayLogDamage() {
			b.logger.Error("damaged records in the log", "topic", topic.Name, "first", corrupt.First, "last", corrupt.Last, "err", corrupt.Detail)
		}
		return page, topic.ID, err
	}
	return page, topic.ID, &UnavailableError{Reason: "the log cannot be read now: " + err.Error()}
}

// mayLogDamage lets one line a second through: a client that polls must not fill the disk with them.
func (b *Broker) mayLogDamage() bool {
	now := b.clock.Now().Unix()
	return b.damageLogged.Swap(now) != now
}

// brokenIndex reports whether err says that an index file is gone or damaged, so that it must be made again.
func brokenIndex(err error) bool {
	var broken *index.SegmentError
	return errors.As(err, &broken) &&
		(errors.Is(err, index.ErrCorrupt) || errors.Is(err, index.ErrVersion) || errors.Is(err, fs.ErrNotExist))
}

// readAgain makes a broken index file again and goes on reading. Many fetches may meet the same file: the
// first makes it, the others find it made.
func (b *Broker) readAgain(r *reader) error {
	b.reindexing.Lock()
	defer b.reindexing.Unlock()
	err := r.run(b.index)
	var broken *index.SegmentError
	if !brokenIndex(err) || !errors.As(err, &broken) || r.records > 0 {
		return err
	}
	b.logger.Warn("an index file cannot be read and is made again", "segment", uint64(broken.Segment), "err", broken.Err)
	if err := b.reindex(broken.Segment); err != nil {
		return err
	}
	return r.run(b.index)
}

// reader reads consecutive records of one topic from the log.
type reader struct {
	log   Log
	topic string
	sink  Sink

	next     fact.Offset // to hand out
	end      fact.Offset // where to stop
	left     int         // records that may still be handed out
	bytesMax int64       // of keys and values to hand out
	records  int         // handed out
	bytes    int64       // of their keys and values

	buf     []byte        // holds the segment's bytes from bufAt on
	segment entry.Index   // that buf is of
	large   chan struct{} // holds a value for each reader with a large buffer
	holds   bool          // one of them is this reader's
	bufAt   int64
}

var readers = sync.Pool{New: func() any { return new(reader) }}

func (r *reader) release() {
	buf := r.buf[:0]
	if cap(buf) > readKept {
		buf = nil
	}
	if r.holds {
		<-r.large
	}
	*r = reader{buf: buf}
	readers.Put(r)
}

// run hands out records until the end, the limits, or an error.
func (r *reader) run(x *index.Index) error {
	for r.next < r.end && r.left > 0 && r.bytes < r.bytesMax {
		run, err := x.Find([]byte(r.topic), r.next)
		if err != nil {
			return fmt.Errorf("find record %d: %w", r.next, err)
		}
		if run.First > r.next {
			return &CorruptError{First: r.next, Last: min(run.First, r.end) - 1,
				Detail: fmt.Sprintf("no frame holds them before position %d of segment %d", run.Pos, run.Segment)}
		}
		before := r.next
		if err := r.frames(run); err != nil {
			return err
		}
		if r.next == before && r.left > 0 {
			return r.damaged(run, run.Pos, min(run.Last, r.end-1), errors.New("the run does not hold what the index says"))
		}
	}
	return nil
}

// frames hands out the records of one run, from next on.
func (r *reader) frames(run index.Run) error {
	for at := run.Pos; at < run.End; {
		a, timeMS, n, err := r.frame(run, at)
		if err != nil {
			if at, err = r.skip(run, at, err); err != nil {
				return err
			}
			continue
		}
		if a.Base > r.next {
			return r.damaged(run, at, a.Base-1, errors.New("a frame is missing"))
		}
		if a.Base+fact.Offset(a.Count) > r.next {
			limit, err := r.appended(&a, timeMS)
			if err != nil {
				return r.damaged(run, at, run.Last, err)
			}
			if limit {
				return nil
			}
		}
		at += n
	}
	return nil
}

// skip is called where no sound frame of the topic stands. It returns where the next one does if that still
// holds what is to be handed out next, and else the error that names exactly the records that are lost.
func (r *reader) skip(run index.Run, at int64, cause error) (int64, error) {
	if !damage(cause) {
		return 0, cause
	}
	if err := r.fill(run.Segment, at, run.End-at); err != nil {
		return 0, err
	}
	for next := at + frameAlign; next-at < int64(len(r.buf)); next += frameAlign {
		a, _, _, err := r.parse(r.buf[next-at:])
		if err != nil {
			continue
		}
		if a.Base > r.next {
			return 0, r.damaged(run, at, a.Base-1, cause)
		}
		return next, nil
	}
	return 0, r.damaged(run, at, run.Last, cause)
}

// appended hands out the records of one frame from next on, and says whether a limit was reached.
func (r *reader) appended(a *fact.Appended, timeMS int64) (done bool, err error) {
	for at := a.Base; ; at++ {
		record, ok, err := a.Next()
		if err != nil || !ok {
			return false, err
		}
		if at < r.next {
			continue
		}
		size := int64(len(record.Key) + len(record.Value))
		if r.left == 0 || at >= r.end || r.records > 0 && r.bytes+size > r.bytesMax {
			r.left = 0
			return true, nil
		}
		r.sink.Record(at, record.Key, record.Value, timeMS)
		r.next++
		r.left--
		r.records++
		r.bytes += size
	}
}

// frame returns the verified frame at a position of a run, and its length. It tries a second time with
// fresh bytes, because what was read ahead may have been written since.
func (r *reader) frame(run index.Run, at int64) (fact.Appended, int64, int64, error) {
	if r.segment == run.Segment && at >= r.bufAt && at < r.bufAt+int64(len(r.buf)) {
		if a, timeMS, n, err := r.parse(r.buf[at-r.bufAt:]); err == nil {
			return a, timeMS, n, nil
		}
	}
	if err := r.fill(run.Segment, at, max(run.End-at, readAhead)); err != nil {
		return fact.Appended{}, 0, 0, err
	}
	return r.parse(r.buf)
}

// parse checks that buf starts with a sound frame that holds records of the topic.
func (r *reader) parse(buf []byte) (fact.Appended, int64, int64, error) {
	e, n, err := r.log.Parse(buf)
	if err != nil {
		return fact.Appended{}, 0, 0, err
	}
	if e.Kind != fact.KindAppended {
		return fact.Appended{}, 0, 0, errMisplaced
	}
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return fact.Appended{}, 0, 0, err
	}
	if string(a.Topic) != r.topic {
		return fact.Appended{}, 0, 0, errMisplaced
	}
	return a, e.TimeMS, int64(n), nil
}

// damage reports whether err says that bytes are wrong, rather than that they could not be read now.
func damage(err error) bool {
	var corrupt *wal.CorruptionError
	return errors.As(err, &corrupt) || errors.Is(err, wal.ErrShort) || errors.Is(err, fact.ErrMalformed) ||
		errors.Is(err, errMisplaced) || errors.Is(err, syscall.EIO)
}

var errMisplaced = errors.New("an entry of something else stands there")

// fill reads up to size bytes into the buffer.
func (r *reader) fill(segment entry.Index, at, size int64) error {
	if size > readLarge && !r.holds {
		r.large <- struct{}{}
		r.holds = true
	}
	if int64(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	n, err := r.log.ReadAt(r.buf[:size], segment, at)
	r.buf, r.segment, r.bufAt = r.buf[:n], segment, at
	if n > 0 {
		return nil // short at the end of the segment; too short shows as a short frame
	}
	return err
}

// damaged names the records from next to last that cannot be read because of what stands at a position.
func (r *reader) damaged(run index.Run, at int64, last fact.Offset, err error) error {
	return &CorruptError{First: r.next, Last: min(last, r.end-1),
		Detail: fmt.Sprintf("segment %d, position %d: %v", run.Segment, at, err)}
}
