package broker

import (
	"errors"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
)

// keepSmallMax is how many bytes of records that are kept once more may use the reserve of a full disk at a time: a piece of
// the cleaner, which may end with a record of fact.MessageMax, is no larger.
const keepSmallMax = 512 << 10

// take says which ops may be logged: all, or, on a full disk, ever fewer.
type take int

const (
	takeAll     take = iota
	takeSmall        // no publishes, and of what is kept once more only small pieces
	takeFreeing      // retains and deletes only
)

// decide turns the ops of a batch into facts, in order, each on top of those before it. It answers at once
// those that need no entry, and refuses with ErrStorageFull those that need one and may not have it. It may be
// called again for the same batch when nothing of it was done.
func (b *Broker) decide(t *batch, take take) {
	d := &b.deciding
	t.frames.Reset()
	t.frames.Reserve = true // small facts may always use it; a publish, much that is kept once more, and a marker may not
	t.frames.Frees = take == takeFreeing

	now := b.clock.Now().UnixMilli()
	b.view.RLock()
	defer b.view.RUnlock()
	d.begin(b.state.Applied())
	d.timeMS = max(d.timeMS, b.state.TimeMS(), now)
	for _, o := range t.ops {
		o.err, o.hangs, o.repeats, o.refusal, o.lead, o.published = nil, false, false, false, d.lead, Published{}
		b.decideOp(t, o, take)
	}
}

func (b *Broker) decideOp(t *batch, o *op, take take) {
	small := take < takeFreeing
	switch o.kind {
	case opPublish:
		b.decidePublish(t, o, take)
	case opKeep:
		b.decideKeep(t, o, take)
	case opGroup:
		if topic := b.live(o.topic); b.inRange(t, topic, o) && b.mayLog(o, small) {
			t.log(fact.AppendGroupMoved(b.begin(t, fact.KindGroupMoved), o.topic, o.group, o.next), o)
			b.deciding.batch.groups[pendingName{topic.Name, string(o.group)}] = pendingGroup{next: o.next}
		}
	case opRetain:
		b.decideRetain(t, o)
	case opConfigure:
		if topic := b.live(o.topic); b.exists(t, topic, o) && b.mayLog(o, small) {
			topic.Retention = o.configure.of(topic.Retention)
			o.retention = topic.Retention
			t.log(fact.AppendTopicConfigured(b.begin(t, fact.KindTopicConfigured), o.topic, topic.Retention), o)
		}
	case opDeleteTopic:
		if topic := b.live(o.topic); b.exists(t, topic, o) {
			t.log(fact.AppendTopicDeleted(b.begin(t, fact.KindTopicDeleted), o.topic), o)
			o.next = topic.End
			b.delete(topic)
		}
	case opDeleteGroup:
		if topic := b.live(o.topic); b.exists(t, topic, o) {
			b.decideDeleteGroup(t, o, topic, small)
		}
	case opSettings:
		if b.mayLog(o, small) {
			t.log(fact.AppendSettings(b.begin(t, fact.KindSettings), o.windowMS), o)
		}
	case opMarker:
		if b.mayLog(o, take == takeAll || o.freeing) {
			t.frames.Reserve = t.frames.Reserve && o.freeing
			t.log(b.begin(t, fact.KindMarker), o)
		}
	case opChecked:
		if b.mayLog(o, take == takeAll) {
			t.frames.Reserve = false
			t.log(b.begin(t, fact.KindChecked), o)
		}
	default:
		invariant.Check(false, "op of kind %d", o.kind)
	}
}

// begin starts an entry of the batch; log completes it, and the op waits for it.
func (b *Broker) begin(t *batch, kind entry.Kind) []byte {
	return t.frames.Begin(kind, b.deciding.timeMS)
}

func (t *batch) log(frame []byte, o *op) {
	t.frames.End(frame)
	o.hangs = true
}

// exists checks that the op's topic exists; if not, it answers.
func (b *Broker) exists(t *batch, topic *pendingTopic, o *op) bool {
	if topic == nil {
		b.refuse(t, o, ErrTopicNotFound)
	}
	return topic != nil
}

// inRange checks that the op's topic exists and its offset lies from start to end, and in no gap; if not, it answers. It
// sets o.next to the offset: where a gap begins, the one behind it.
func (b *Broker) inRange(t *batch, topic *pendingTopic, o *op) bool {
	if !b.exists(t, topic, o) {
		return false
	}
	if o.offset >= topic.Start && o.offset <= topic.End {
		if next, _, ok := topic.Normal(o.offset); ok {
			o.next = next
			return true
		}
	}
	b.refuse(t, o, &OffsetRangeError{Start: topic.Start, End: topic.End})
	return false
}

// refuse answers an op as the fold and what is pending on top of it demand. If there is anything pending the answer hangs
// on it: it may come from what is never committed.
func (b *Broker) refuse(t *batch, o *op, err error) {
	o.err, o.refusal = err, true
	o.hangs = b.deciding.ahead || t.frames.Len() > 0
}

// mayLog answers an op that must not be logged on a full disk.
func (b *Broker) mayLog(o *op, may bool) bool {
	if !may {
		// Where the lead can be lost, another node may have done what a request id stands for.
		o.err, o.refusal = ErrStorageFull, o.hasID()
	}
	return may
}

func (b *Broker) decidePublish(t *batch, o *op, take take) {
	d, p := &b.deciding, o.publish
	topic := b.pending(p.Topic)
	if len(p.RequestID) > 0 {
		if before, ok := b.remembered(topic, p.RequestID); ok {
			if before.digest != o.digest || before.count != len(p.Records) {
				b.refuse(t, o, ErrRequestIDConflict)
				o.repeats = before.ahead
				return
			}
			o.published = Published{Base: before.base, Count: before.count, Duplicate: true}
			o.hangs, o.repeats = before.hangs, before.ahead
			return
		}
	}
	if !b.mayLog(o, take == takeAll) {
		return
	}
	topic = b.create(topic, p.Topic)
	t.log(fact.AppendAppended(b.begin(t, fact.KindAppended), p.Topic, topic.End, topic.EndCum, p.RequestID, o.digest, p.Records), o)
	t.frames.Reserve = false
	o.published = Published{Base: topic.End, Count: len(p.Records)}
	if len(p.RequestID) > 0 {
		d.batch.ids[pendingName{topic.Name, string(p.RequestID)}] = pendingPublish{base: topic.End, count: len(p.Records), digest: o.digest, hangs: true}
	}
	topic.End += fact.Offset(len(p.Records))
	topic.EndCum += uint64(o.bytes)
}

// decideRetain moves a topic's start. The fact tells how many bytes of the topic lie before it: at the end and at the start
// as they will be, that is known here; else whoever asks has looked at the record, unless it was not visible then.
func (b *Broker) decideRetain(t *batch, o *op) {
	topic := b.live(o.topic)
	if !b.inRange(t, topic, o) {
		return
	}
	if o.byPolicy && o.retention != topic.Retention { // who changed the settings was told that they hold
		b.refuse(t, o, errLookAgain)
		return
	}
	cum := o.cum
	switch {
	case o.next == topic.End:
		cum = topic.EndCum
	case o.next == topic.Start:
		cum = topic.StartCum
	case !o.cumKnown:
		b.refuse(t, o, errLookAgain)
		return
	}
	cum = min(max(cum, topic.StartCum), topic.EndCum) // past damage it is a guess
	t.log(fact.AppendTopicRetained(b.begin(t, fact.KindTopicRetained), o.topic, o.next, cum), o)
	topic.Start, topic.StartCum = o.next, cum // gaps below it do no harm
}

// errLookAgain answers a retain to a record that was not visible yet when the caller looked: it is now, or will be.
var errLookAgain = errors.New("the record must be looked at again")

func (b *Broker) decideDeleteGroup(t *batch, o *op, topic *pendingTopic, may bool) {
	next, ok := b.group(topic, o.group)
	if !ok {
		b.refuse(t, o, ErrGroupNotFound)
		return
	}
	if !b.mayLog(o, may) {
		return
	}
	t.log(fact.AppendGroupDeleted(b.begin(t, fact.KindGroupDeleted), o.topic, o.group), o)
	b.deciding.batch.groups[pendingName{topic.Name, string(o.group)}] = pendingGroup{deleted: true}
	o.next = max(next, topic.Start)
}

// decideKeep logs records once more, so far as they are still to be kept. Small pieces may use the reserve of a full disk,
// since they are what frees whole segments.
func (b *Broker) decideKeep(t *batch, o *op, take take) {
	small := o.bytes <= keepSmallMax
	if !b.mayLog(o, take == takeAll || take == takeSmall && small) {
		return
	}
	for i := range o.keep.Runs {
		run := o.keep.Runs[i] // a copy: this may be decided again
		topic := b.live(run.Topic)
		if topic == nil || !run.clip(topic.Start) {
			continue
		}
		end := run.Base + fact.Offset(len(run.Records))
		invariant.Check(end <= topic.End, "records %d to %d of topic %q are kept, which ends at %d", run.Base, end-1, topic.Name, topic.End)
		t.frames.End(fact.AppendKept(b.begin(t, fact.KindKept), run.Topic, run.Base, run.Cum, run.Records))
		t.frames.Reserve = t.frames.Reserve && small
	}
	o.hangs = b.deciding.ahead || t.frames.Len() > 0
}

// clip drops the records below a start, and reports whether any are left.
func (r *KeptRun) clip(start fact.Offset) bool {
	for len(r.Records) > 0 && r.Base < start {
		r.Cum += uint64(len(r.Records[0].Key) + len(r.Records[0].Value))
		r.Records = r.Records[1:]
		r.Base++
	}
	return len(r.Records) > 0
}

// of returns the settings that follow from what they were.
func (c *Configure) of(r fact.Retention) fact.Retention {
	if c.Reset {
		r = fact.Retention{}
	}
	for _, set := range []struct {
		to   *fact.Limit
		from *fact.Limit
	}{{&r.MS, c.RetentionMS}, {&r.Bytes, c.RetentionBytes}, {&r.Records, c.RetentionRecords}} {
		if set.from != nil {
			*set.to = *set.from
		}
	}
	return r
}
