package broker

import (
	"cmp"
	"errors"
	"io/fs"
	"time"

	"example.com/mq/internal/index"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const (
	// pageBytesMax is how many bytes of keys and values a fetch returns at most, unless its first record
	// alone is larger.
	pageBytesMax = 4 << 20
	// aliveEvery is how often a waiting fetch asks whether its client is still there.
	aliveEvery = time.Second
	// movedMost is how often one read looks for records again that were moved to another segment meanwhile.
	movedMost = 10
)

// Fetch hands the records that q asks for to sink and says where it ended. With nothing to read it waits as
// long as q says; EndWaits and Close end the wait early, and so does Follow, with an error. It returns an error only when
// it has handed out no record.
//
// What it says was true at a moment within the call, on whichever node led then, also where this node has been replaced and
// does not know it yet:
//
//   - A record that is here is committed, and never changes: it is handed out without asking anybody. Then Start and End of
//     the page may be old; they only ever rise, also where the topic is deleted and comes back. So is "gone", for the same
//     reason.
//   - "There is no more" and "there is no such topic" are said only by a fold that is read after the role has confirmed the
//     lead. The fold then holds all that was committed at the moment m that the role vouches for, and a little more, perhaps:
//     what was committed at m or at a moment between m and the read. That is within the call, since both are.
//   - The offset of a group is such an answer too, so a fetch by a group begins with a confirmed lead, and any fold that it
//     reads later in the call, after a wait also, will do. Offset and records come from one look at the fold. A fetch by
//     time begins so, too: which record is the first of that time depends on where the topic ends.
//
// The confirmation of a fetch by offset comes last, when its wait is over: who is woken by a record has nothing to confirm.
func (b *Broker) Fetch(q *Fetch, sink Sink) (Page, error) {
	if b.follower {
		return Page{}, &NotLeaderError{}
	}
	over, err := b.mayRead()
	if err != nil {
		return Page{}, err
	}
	confirmed := len(q.Group) > 0 || q.ByTime || !b.fresh()
	if confirmed {
		if err := b.confirmRead(); err != nil {
			return Page{}, err
		}
	}
	if q.ByTime {
		return b.fetchByTime(q, sink, over)
	}
	page, id, err := b.read(q, sink)
	if errors.Is(err, ErrTopicNotFound) && !confirmed {
		if err := b.confirmRead(); err != nil {
			return Page{}, err
		}
		confirmed = true
		page, id, err = b.read(q, sink)
	}
	if err != nil || page.Records > 0 {
		return page, err
	}
	if q.Wait > 0 {
		page, err = b.await(q, sink, id, over)
		if err != nil && !errors.Is(err, ErrTopicNotFound) || page.Records > 0 {
			return page, err
		}
	}
	if confirmed {
		return page, err
	}
	if err := b.confirmRead(); err != nil {
		return Page{}, err
	}
	page, _, err = b.read(q, sink)
	return page, err
}

// fetchByTime is Fetch by time, once the lead is confirmed: by the offset of the first record of that time.
func (b *Broker) fetchByTime(q *Fetch, sink Sink, over <-chan struct{}) (Page, error) {
	at := *q
	at.ByTime = false
	for tries := 0; ; tries++ {
		tail := b.unsettled.Load() // before the fold, as in read
		b.view.RLock()
		before, _ := b.state.Topic(q.Topic)
		b.view.RUnlock()
		var err error
		if at.Offset, err = b.offsetAt(q.Topic, q.FromMS); err != nil {
			if errors.Is(err, ErrTopicNotFound) && tail != nil {
				err = cmp.Or(tail.doubt(q, true), err)
			}
			return Page{}, err
		}
		if tail != nil && at.Offset >= before.End {
			// What is not settled did not come after this call, and may be older than what is asked for.
			if err := tail.doubt(q, true); err != nil {
				return Page{}, err
			}
		}
		page, id, err := b.read(&at, sink)
		if errors.As(err, new(*OffsetGoneError)) && tries < movedMost {
			continue // the start has moved on meanwhile
		}
		if err != nil || page.Records > 0 || q.Wait == 0 {
			return page, err
		}
		return b.await(&at, sink, id, over)
	}
}

// fresh reports whether the role has no reason to doubt that this node leads. Else even a page of records would wait for it
// to be certain: the page also says where the topic ends.
func (b *Broker) fresh() bool {
	r, ok := b.role.(interface{ Fresh() bool })
	return !ok || r.Fresh()
}

// mayRead returns a channel that is closed when this node leads no more, nil where reads do not need the lead, or the
// error for who wants to read where this node does not lead.
func (b *Broker) mayRead() (over <-chan struct{}, err error) {
	if b.leader == nil {
		return nil, nil
	}
	if t := b.tenure.Load(); t != nil {
		return t.over, nil
	}
	return nil, b.notHere()
}

// notHere is the answer to a read that ends because this node does not lead.
func (b *Broker) notHere() error {
	b.mu.Lock()
	reason := b.notLeading
	b.mu.Unlock()
	return b.elsewhere(&UnavailableError{Reason: reason})
}

// await is Fetch once it is known that there is nothing to read yet. A page without records says only that nothing came.
func (b *Broker) await(q *Fetch, sink Sink, id state.TopicID, over <-chan struct{}) (Page, error) {
	woken := b.waiters.add(id)
	defer b.waiters.remove(id, woken)
	deadline := b.clock.Monotonic() + q.Wait
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
		case <-over:
			return page, b.notHere()
		case <-b.ending:
			return page, nil
		case <-timer.C():
		}
		left := deadline - b.clock.Monotonic()
		if left <= 0 || q.Alive != nil && !q.Alive() {
			return page, nil
		}
		timer.Reset(min(left, aliveEvery))
	}
}

// read hands out what there is.
func (b *Broker) read(q *Fetch, sink Sink) (Page, state.TopicID, error) {
	tail := b.unsettled.Load() // before the fold, which holds the tail from the moment this is cleared
	b.view.RLock()
	topic, ok := b.state.Topic(q.Topic)
	at := q.Offset
	if ok && len(q.Group) > 0 {
		group, _ := b.state.Group(topic.ID, q.Group) // a new group is at 0, which is at or below the start
		at = max(group.Next, topic.Start)
	}
	b.view.RUnlock()
	page := Page{Next: at, Start: topic.Start, End: topic.End}
	if tail != nil {
		if err := tail.doubt(q, !ok || at >= topic.End); err != nil {
			return page, 0, err
		}
	}
	switch {
	case !ok:
		return page, 0, ErrTopicNotFound
	case at < topic.Start:
		return page, 0, &OffsetGoneError{Start: topic.Start}
	}
	next, gap, ok := topic.Normal(at)
	if !ok {
		return page, 0, &OffsetGoneError{Start: next, RestoredEnd: &gap.From}
	}
	if at = next; at >= topic.End {
		page.Next = topic.End
		return page, topic.ID, nil
	}
	r := readers.Get().(*reader)
	defer r.release()
	r.log, r.topic, r.gaps, r.sink, r.large = b.log, topic.Name, topic.Gaps, sink, b.large
	r.next, r.end, r.left, r.bytesMax = at, topic.End, q.Limit, pageBytesMax
	if q.MaxBytes > 0 {
		r.bytesMax = min(q.MaxBytes, pageBytesMax)
	}
	err := b.runReader(r)
	page.Next, page.Records = r.next, r.records
	b.observer.Read(r.records, r.bytes)
	if r.records > 0 {
		return page, topic.ID, nil // the error, if it stays, comes with the next fetch
	}
	var corrupt *CorruptError
	lost := errors.As(err, &corrupt)
	if lost || missing(err) {
		// Retained or deleted while we read? Both move the start. Then say so; if not, the record is missing.
		b.view.RLock()
		now := b.state.TopicByID(topic.ID)
		b.view.RUnlock()
		if at < now.Start {
			return b.read(q, sink)
		}
		if tail.moved(q.Topic) {
			return page, topic.ID, errKeptUnsettled
		}
	}
	if !lost && missing(err) {
		corrupt = &CorruptError{First: at, Last: topic.End - 1, Detail: err.Error()}
		r.clip(corrupt)
		lost = true
	}
	if lost {
		b.observer.Corrupt()
		if b.mayLogDamage() {
			b.logger.Error("damaged records in the log", "topic", topic.Name, "first", corrupt.First, "last", corrupt.Last, "err", corrupt.Detail)
		}
		return page, topic.ID, corrupt
	}
	return page, topic.ID, &UnavailableError{Reason: "the log cannot be read now: " + err.Error()}
}

// missing reports whether err says that the segment that holds a record, or the record, is not there any more.
func missing(err error) bool {
	return errors.Is(err, wal.ErrSegmentGone) || errors.Is(err, index.ErrNone)
}

// runReader has a reader read. A broken index file is made again. A segment that is gone is no damage: the records that
// still live have been appended once more, and the index knows where.
func (b *Broker) runReader(r *reader) error {
	err := r.run(b.index)
	for tries := 0; r.records == 0 && tries < movedMost; tries++ {
		switch {
		case brokenIndex(err) && b.reindex != nil:
			err = b.readAgain(r)
			if brokenIndex(err) {
				return err
			}
		case errors.Is(err, wal.ErrSegmentGone):
			err = r.run(b.index)
		default:
			return err
		}
	}
	return err
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
