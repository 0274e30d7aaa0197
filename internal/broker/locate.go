package broker

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// Where a record stands in time, and how many bytes of its topic stand before it, is in its frame and nowhere else. To find
// the first record of a time, or the start that keeps so many bytes, is a binary search over the records of a topic, which
// reads one run for each step.
//
// Damage is in the way like this. A record that cannot be read tells nothing, so the search goes by the next one that can.
// Its outcome is then the first of the records that may be the one it looks for: the damaged ones before the one it found
// are taken for later than asked for. So retention keeps more than it must, never less, and a fetch by time meets the damage
// and says so, instead of passing over records that may be those asked for.

const (
	// lookTries is how often a look begins anew because what it looks at has moved meanwhile.
	lookTries = 8
	// stepsMax is how many runs without a readable record are passed one by one. From then on the steps double, so that a
	// large damage costs few reads. What can be read amid such damage may be passed over, and counts as damaged.
	stepsMax = 16
)

// seen is a record as it stands in the log, without its key and value.
type seen struct {
	off    fact.Offset
	cum    uint64 // bytes of keys and values of all records of the topic before it
	size   uint64 // bytes of its own key and value
	timeMS int64
}

// found is the outcome of a search.
type found struct {
	off fact.Offset // the first record that may be the one searched for, or the end
	cum uint64      // bytes of keys and values of all records of the topic before off
	// exact says that off is the one. Else the records from off on are damaged, up to one that would do if it were the first.
	exact bool
}

// looker looks at single records of a topic as it was at one moment.
type looker struct {
	b      *Broker
	topic  state.Topic
	timeMS int64 // of the log at that moment: no record is later
	name   []byte
	buf    []byte
}

var lookers = sync.Pool{New: func() any { return new(looker) }}

// lookAt returns a looker for a topic as it is now, to be released, or ErrTopicNotFound.
func (b *Broker) lookAt(topic []byte) (*looker, error) {
	b.view.RLock()
	t, ok := b.state.Topic(topic)
	timeMS := b.state.TimeMS()
	b.view.RUnlock()
	if !ok {
		return nil, ErrTopicNotFound
	}
	return b.lookerOf(t, timeMS), nil
}

func (b *Broker) lookerOf(t state.Topic, timeMS int64) *looker {
	l := lookers.Get().(*looker)
	l.b, l.topic, l.timeMS, l.name = b, t, timeMS, append(l.name, t.Name...)
	return l
}

func (l *looker) release() {
	buf := l.buf[:0]
	if cap(buf) > readLarge {
		buf = nil
	}
	*l = looker{name: l.name[:0], buf: buf}
	lookers.Put(l)
}

// cumAt returns how many bytes of keys and values all records of a topic before off have, ever. off lies from start to end,
// else it returns an *OffsetRangeError. Where the records at off and before it are damaged it is the figure of the next one
// that can be read, or that of the end: too high, so that less seems to be kept.
func (b *Broker) cumAt(topic []byte, off fact.Offset) (uint64, error) {
	l, err := b.lookAt(topic)
	if err != nil {
		return 0, err
	}
	defer l.release()
	if off < l.topic.Start || off > l.topic.End {
		return 0, &OffsetRangeError{Start: l.topic.Start, End: l.topic.End}
	}
	return l.cum(off)
}

// offsetAt returns the offset of the first record of a topic that is of the time ms or later, or the topic's end if there is
// none. If records that may be it are damaged it is the first of those.
func (b *Broker) offsetAt(topic []byte, ms int64) (fact.Offset, error) {
	for try := 1; ; try++ {
		l, err := b.lookAt(topic)
		if err != nil {
			return 0, err
		}
		f, err := l.search(timeOf, uint64(max(ms, 0)))
		before := l.topic.Start
		l.release()
		if err != nil {
			return 0, err
		}
		// What was dropped meanwhile has looked like damage.
		b.view.RLock()
		now, ok := b.state.Topic(topic)
		b.view.RUnlock()
		if !ok {
			return 0, ErrTopicNotFound
		}
		if now.Start == before || try == lookTries {
			return max(f.off, now.Start), nil
		}
	}
}

// measure tells what a search goes by: a value that never falls from one record to the next, and what it is at least for the
// record after that one.
type measure func(*seen) (value, after uint64)

func timeOf(s *seen) (value, after uint64) { return uint64(s.timeMS), uint64(s.timeMS) }
func cumOf(s *seen) (value, after uint64)  { return s.cum, s.cum + s.size }

// startFor returns the lowest start that keeps at most so many bytes of keys and values.
func (l *looker) startFor(bytes uint64) (found, error) {
	if l.topic.EndCum-l.topic.StartCum <= bytes {
		return found{off: l.topic.Start, cum: l.topic.StartCum, exact: true}, nil
	}
	return l.search(cumOf, l.topic.EndCum-bytes)
}

// startOf returns the first record of the time ms or later, or the end.
func (l *looker) startOf(ms int64) (found, error) { return l.search(timeOf, uint64(max(ms, 0))) }

// cum is cumAt.
func (l *looker) cum(off fact.Offset) (uint64, error) {
	t := &l.topic
	switch next, _, _ := t.Normal(off); {
	case off <= t.Start:
		return t.StartCum, nil
	case next >= t.End:
		return t.EndCum, nil
	}
	s, ok, err := l.at(off)
	if err != nil {
		return 0, err
	}
	if !ok { // what stands before it tells as much
		if s, ok, err = l.at(t.Nth(t.Between(t.Start, off) - 1)); err != nil {
			return 0, err
		}
		s.cum += s.size
	}
	if !ok {
		if s, ok, err = l.first(off); err != nil {
			return 0, err
		}
	}
	if !ok {
		return t.EndCum, nil
	}
	return min(max(s.cum, t.StartCum), t.EndCum), nil
}

// at returns the record at off, if it can be read.
func (l *looker) at(off fact.Offset) (s seen, ok bool, err error) {
	_, err = l.look(off, off, func(at *seen) bool {
		s, ok = *at, at.off == off
		return false
	})
	return s, ok, err
}

// first returns the first record from off on that can be read, as far as the steps over damage find it.
func (l *looker) first(off fact.Offset) (s seen, ok bool, err error) {
	next := off
	for steps := (stepper{}); next < l.topic.End && !ok; {
		run, err := l.look(off, next, func(at *seen) bool {
			s, ok = *at, true
			return false
		})
		if err != nil {
			return seen{}, false, err
		}
		next = steps.behind(run)
	}
	return s, ok, nil
}

// stepper steps over damage.
type stepper struct {
	steps  int
	stride fact.Offset
}

// behind returns where to look on behind a run that holds nothing to be read.
func (s *stepper) behind(run index.Run) fact.Offset {
	if s.steps++; s.steps > stepsMax {
		s.stride = max(1, 2*s.stride)
	}
	return run.Last + 1 + s.stride
}

// search returns the first record whose measure is target or more, or the end. It reads at most about as many runs as a
// binary search over the records takes steps, a few more in a damaged topic.
func (l *looker) search(by measure, target uint64) (found, error) {
	s := searching{topic: &l.topic, by: by, target: target, hi: l.topic.Records(), cum: l.topic.StartCum, highest: uint64(l.timeMS)}
	if _, byCum := by(&seen{size: 1}); byCum > 0 {
		s.below, s.known, s.highest = l.topic.StartCum, true, l.topic.EndCum
	}
	for s.lo < s.hi && s.below < target {
		if err := l.narrow(&s); err != nil {
			return found{}, err
		}
	}
	return s.outcome(), nil
}

// searching is the state of a search. Records are counted from the start of the topic, without gaps.
type searching struct {
	topic  *state.Topic
	by     measure
	target uint64
	// Invariant: of the records that can be read all below lo are below the target, and none stands at hi or above and before
	// best, which is the first one known not to be below.
	lo, hi uint64
	best   seen
	any    bool   // there is a best; else the end stands for it
	cum    uint64 // of the record at lo
	below  uint64 // what the measure of the record at lo is at least: when that is the target, it is the one, damaged or not
	// What the measure of the best is at most. known says that below is not just a start.
	highest uint64
	known   bool
	looks   int
}

// middle returns the record to look at next: by turns the one that would have the target if the measure grew steadily, and
// the one in the middle. Where nothing is known of the first one that is the next: by time it is the right one, or near it,
// more often than not.
func (s *searching) middle() uint64 {
	if !s.known {
		s.known = true
		return s.lo
	}
	s.looks++
	span := s.hi - s.lo
	if s.looks%2 == 1 && s.highest > s.below && s.target > s.below {
		part := float64(s.target-s.below) / float64(s.highest-s.below)
		return s.lo + min(uint64(min(part, 1)*float64(span)), span-1)
	}
	return s.lo + span/2
}

// visit takes notice of the next record that can be read, and reports whether the one after it matters.
func (s *searching) visit(r *seen) (more bool) {
	value, after := s.by(r)
	if value >= s.target {
		if !s.any || r.off < s.best.off {
			s.best, s.any, s.highest = *r, true, value
		}
		return false
	}
	s.lo, s.cum, s.below = s.topic.Between(s.topic.Start, r.off)+1, r.cum+r.size, after
	return after < s.target
}

// narrow looks at one record from lo to hi, and at its neighbours in the log, and moves lo or hi past it.
func (l *looker) narrow(s *searching) error {
	t, mid := s.topic, s.middle()
	from, at, end := t.Nth(s.lo), t.Nth(mid), t.Nth(s.hi)
	low := at     // from here on nothing can be read before what is visited next
	whole := true // and no step has passed over what was not looked at
	hit := false
	next := at
	for steps := (stepper{}); next < end && !hit && s.lo <= mid; {
		whole = steps.stride == 0
		run, err := l.look(from, next, func(r *seen) bool {
			more := s.visit(r)
			hit = !more
			return more
		})
		if err != nil {
			return err
		}
		low = min(low, max(run.First, from))
		next = steps.behind(run)
	}
	switch {
	case s.below >= s.target: // that is all
	case hit && !whole && s.best.off < end:
		s.hi = t.Between(t.Start, s.best.off)
	case hit || s.lo <= mid:
		s.hi = min(s.hi, t.Between(t.Start, low))
	}
	s.hi = max(s.hi, s.lo)
	return nil
}

// outcome is what a search comes to once lo is hi, or the record at lo is known to be the one.
func (s *searching) outcome() found {
	f := found{off: s.topic.Nth(s.lo), cum: s.cum}
	f.exact = f.off == s.topic.End || s.any && s.best.off == f.off || s.below >= s.target
	return f
}

// look calls visit for the records from from on, below the topic's end, that can be read in the run that holds the record at
// off, or, if no run holds it, in the next one. It stops where visit returns false. It returns the run; that has no records,
// and lies at the end, if there is none.
func (l *looker) look(from, off fact.Offset, visit func(*seen) bool) (index.Run, error) {
	for try := 1; ; try++ {
		run, err := l.b.findRun(l.name, off)
		if errors.Is(err, index.ErrNone) {
			return index.Run{First: l.topic.End, Last: l.topic.End}, nil
		}
		if err == nil {
			invariant.Check(run.Last >= off, "index: the run of record %d ends at %d", off, run.Last)
			err = l.read(run)
		}
		switch {
		case err == nil:
			l.records(run, from, visit)
			return run, nil
		case damage(err):
			return run, nil
		case errors.Is(err, wal.ErrSegmentGone) && try < lookTries: // the records stand elsewhere by now, or are retained
		case errors.Is(err, wal.ErrSegmentGone):
			return run, nil
		default:
			return index.Run{}, &UnavailableError{Reason: "the log cannot be read now: " + err.Error()}
		}
	}
}

// read reads a run into the buffer.
func (l *looker) read(run index.Run) error {
	size := run.End - run.Pos
	if size > readLarge {
		l.b.large <- struct{}{}
		defer func() { <-l.b.large }()
	}
	l.buf = slices.Grow(l.buf[:0], int(size))[:size]
	n, err := l.b.log.ReadAt(l.buf, run.Segment, run.Pos)
	l.buf = l.buf[:n]
	if n > 0 {
		return nil // too short shows as a short frame
	}
	return err
}

// records calls visit for the records of the run in the buffer, in order, from from on, and passes over what is no sound frame
// of the topic.
func (l *looker) records(run index.Run, from fact.Offset, visit func(*seen) bool) {
	next := max(from, run.First)
	end := min(run.Last+1, l.topic.End)
	for buf := l.buf; len(buf) > 0 && next < end; {
		s, size := l.parse(buf)
		if size == 0 {
			buf = buf[min(frameAlign, len(buf)):]
			continue
		}
		buf = buf[min(size, len(buf)):]
		if s.Base > run.Last || s.Base+fact.Offset(s.Count) <= run.First { // a part of a frame may belong to another run
			continue
		}
		at := seen{off: s.Base, cum: s.Cum}
		for ; at.off < end; at.off++ {
			record, ok, err := s.Next()
			if err != nil || !ok {
				break
			}
			at.size, at.timeMS = uint64(len(record.Key)+len(record.Value)), record.TimeMS
			if at.off >= next {
				if !visit(&at) {
					return
				}
				next = at.off + 1
			}
			at.cum += at.size
		}
	}
}

// parse returns the records of the frame at the start of buf, and its length; 0 if no sound frame of the topic stands there.
func (l *looker) parse(buf []byte) (fact.Stretch, int) {
	e, n, err := l.b.log.Parse(buf)
	if err != nil {
		return fact.Stretch{}, 0
	}
	s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if err != nil || !ok || string(s.Topic) != string(l.name) {
		return fact.Stretch{}, 0
	}
	return s, n
}

// findRun is Find of the index. A broken index file is made again.
func (b *Broker) findRun(topic []byte, off fact.Offset) (index.Run, error) {
	run, err := b.index.Find(topic, off)
	if !brokenIndex(err) || b.reindex == nil {
		return run, err
	}
	b.reindexing.Lock()
	defer b.reindexing.Unlock()
	run, err = b.index.Find(topic, off)
	var broken *index.SegmentError
	if !brokenIndex(err) || !errors.As(err, &broken) {
		return run, err // another one has made it meanwhile
	}
	b.logger.Warn("an index file cannot be read and is made again", "segment", uint64(broken.Segment), "err", broken.Err)
	if err := b.reindex(broken.Segment); err != nil {
		return index.Run{}, fmt.Errorf("make the index of segment %d again: %w", broken.Segment, err)
	}
	return b.index.Find(topic, off)
}
