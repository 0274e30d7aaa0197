package broker

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const (
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
)

// reader reads consecutive records of one topic from the log.
type reader struct {
	log   Log
	topic string
	gaps  []state.Gap // of the topic: there are no records in them
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
	for r.jump(); r.next < r.end && r.left > 0 && r.bytes < r.bytesMax; r.jump() {
		run, err := x.Find([]byte(r.topic), r.next)
		if err != nil {
			return fmt.Errorf("find record %d: %w", r.next, err)
		}
		if run.First > r.next {
			return r.clip(&CorruptError{First: r.next, Last: run.First - 1,
				Detail: fmt.Sprintf("no frame holds them before position %d of segment %d", run.Pos, run.Segment)})
		}
		before := r.next
		if err := r.frames(run); err != nil {
			return err
		}
		if r.next == before && r.left > 0 {
			return r.damaged(run, run.Pos, run.Last, errors.New("the run does not hold what the index says"))
		}
	}
	return nil
}

// jump moves next out of a gap. Only at its beginning can it be in one.
func (r *reader) jump() {
	for len(r.gaps) > 0 && r.gaps[0].From <= r.next {
		r.next = max(r.next, r.gaps[0].To)
		r.gaps = r.gaps[1:]
	}
}

// clip takes from damage what was not to be read, or lies behind the next gap.
func (r *reader) clip(e *CorruptError) *CorruptError {
	e.Last = min(e.Last, r.end-1)
	if len(r.gaps) > 0 {
		e.Last = min(e.Last, r.gaps[0].From-1)
	}
	return e
}

// frames hands out the records of one run, from next on. What it holds behind its last record stands in another run, too,
// and in this one it may be damaged.
func (r *reader) frames(run index.Run) error {
	for at := run.Pos; at < run.End && r.next <= run.Last; {
		r.jump()
		s, n, err := r.frame(run, at)
		if err != nil {
			if at, err = r.skip(run, at, err); err != nil {
				return err
			}
			continue
		}
		if s.Base > r.next {
			return r.damaged(run, at, s.Base-1, errors.New("a frame is missing"))
		}
		if s.Base+fact.Offset(s.Count) > r.next {
			limit, err := r.stretch(&s)
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
		s, _, err := r.parse(r.buf[next-at:])
		if err != nil {
			continue
		}
		if s.Base > r.next {
			return 0, r.damaged(run, at, s.Base-1, cause)
		}
		return next, nil
	}
	return 0, r.damaged(run, at, run.Last, cause)
}

// stretch hands out the records of one frame from next on, and says whether a limit was reached.
func (r *reader) stretch(s *fact.Stretch) (done bool, err error) {
	for at := s.Base; ; at++ {
		record, ok, err := s.Next()
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
		r.sink.Record(at, record.Key, record.Value, record.TimeMS)
		r.next++
		r.left--
		r.records++
		r.bytes += size
	}
}

// frame returns what the verified frame at a position of a run holds, and its length. It tries a second time with
// fresh bytes, because what was read ahead may have been written since.
func (r *reader) frame(run index.Run, at int64) (fact.Stretch, int64, error) {
	if r.segment == run.Segment && at >= r.bufAt && at < r.bufAt+int64(len(r.buf)) {
		if s, n, err := r.parse(r.buf[at-r.bufAt:]); err == nil {
			return s, n, nil
		}
	}
	if err := r.fill(run.Segment, at, max(run.End-at, readAhead)); err != nil {
		return fact.Stretch{}, 0, err
	}
	return r.parse(r.buf)
}

// parse checks that buf starts with a sound frame that holds records of the topic.
func (r *reader) parse(buf []byte) (fact.Stretch, int64, error) {
	e, n, err := r.log.Parse(buf)
	if err != nil {
		return fact.Stretch{}, 0, err
	}
	s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	switch {
	case err != nil:
		return fact.Stretch{}, 0, err
	case !ok || string(s.Topic) != r.topic:
		return fact.Stretch{}, 0, errMisplaced
	}
	return s, int64(n), nil
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
	return r.clip(&CorruptError{First: r.next, Last: min(last, run.Last),
		Detail: fmt.Sprintf("segment %d, position %d: %v", run.Segment, at, err)})
}
