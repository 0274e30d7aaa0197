package node

import (
	"io"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/wal"
)

// job is the work at one segment: what of it has been read.
type job struct {
	segment wal.Segment
	cursor  *wal.Cursor
	frames  wal.Frames
	at      int          // the next frame of frames
	read    entry.Index  // the last entry that was taken up
	stretch fact.Stretch // the frame at work, if reading
	reading bool
	offset  fact.Offset // of the next record of stretch
	cum     uint64      // of that record
	moved   bool        // something was found to move
	ended   bool
	failed  error // why nothing more can be read, once what was read is done

	cost  int            // bytes of log that the piece at hand takes, about
	bytes []byte         // of its keys and values
	open  map[string]int // the last run of a topic in the piece
}

func newJob(log *wal.Log, s wal.Segment) *job {
	return &job{segment: s, cursor: log.NewCursor(s.First), bytes: make([]byte, 0, 2*cleanPiece), open: map[string]int{}}
}

// next gathers a piece: records of the segment that live there, which take about limit bytes of log. One without any says
// that there are no more.
func (j *job) next(c *cleaner, limit int) (broker.Keep, error) {
	if j.failed != nil {
		return broker.Keep{}, j.failed
	}
	piece := j.begin()
	for j.cost < limit && !j.ended {
		err := error(nil)
		if j.reading {
			err = j.gather(c, &piece, limit)
		} else {
			err = j.frame(c)
		}
		if err != nil && len(piece.Runs) > 0 {
			j.failed = err // what is good before it comes first
			break
		}
		if err != nil {
			return broker.Keep{}, err
		}
	}
	j.moved = j.moved || len(piece.Runs) > 0
	return piece, nil
}

// rest has all moved that lives in the frames behind those that were read, in pieces of about limit bytes of log. It skips
// what is damaged.
func (j *job) rest(c *cleaner, limit int, move func(*broker.Keep) error) error {
	piece := j.begin()
	flush := func() error {
		if len(piece.Runs) == 0 {
			return nil
		}
		j.moved = true
		if err := move(&piece); err != nil {
			return err
		}
		piece = j.begin()
		return nil
	}
	_, err := c.node.log.ScanSegment(j.segment.First, func(e *entry.Entry, _ entry.Position) error {
		if e.Index <= j.read {
			return nil
		}
		if err := j.take(c, e); err != nil {
			return err
		}
		for j.reading {
			if err := j.gather(c, &piece, limit); err != nil {
				return err
			}
			if j.cost < limit {
				continue
			}
			if err := flush(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// begin begins a piece. The one before is done.
func (j *job) begin() broker.Keep {
	j.bytes = j.bytes[:0]
	clear(j.open)
	j.cost = 0
	return broker.Keep{}
}

// gather adds records of the frame at work to a piece, until that is full or the frame at its end.
func (j *job) gather(c *cleaner, piece *broker.Keep, limit int) error {
	for j.cost < limit {
		r, ok, err := j.stretch.Next()
		if err != nil {
			return &wal.CorruptionError{Segment: j.segment.First, Index: j.read, Reason: err.Error()}
		}
		if !ok {
			j.reading = false
			return nil
		}
		offset, cum := j.offset, j.cum
		j.offset, j.cum = offset+1, cum+uint64(len(r.Key)+len(r.Value))
		if where, ok := c.node.index.SegmentOf(j.stretch.Topic, offset); ok && where == j.segment.First {
			j.add(piece, offset, cum, r)
		}
	}
	return nil
}

// frame goes on to the next frame with records that may live, or says that there is none.
func (j *job) frame(c *cleaner) error {
	for !j.reading {
		if j.at == j.frames.Len() {
			j.at = 0
			_, err := j.cursor.Next(&j.frames, j.segment.Last, cleanRead)
			if err == io.EOF {
				j.ended = true
				return nil
			}
			if err != nil {
				return err
			}
		}
		e := j.frames.Entry(j.at)
		j.at++
		if err := j.take(c, &e); err != nil {
			return err
		}
	}
	return nil
}

// take takes up a frame, if records in it may live.
func (j *job) take(c *cleaner, e *entry.Entry) error {
	j.read = e.Index
	s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if err != nil {
		return &wal.CorruptionError{Segment: j.segment.First, Index: e.Index, Reason: err.Error()}
	}
	if !ok {
		return nil
	}
	start := c.startOf(string(s.Topic))
	if s.Base+fact.Offset(s.Count) <= start {
		return nil
	}
	j.stretch, j.reading, j.offset, j.cum = s, true, s.Base, s.Cum
	for j.offset < start { // what does not live any more
		r, ok, err := j.stretch.Next()
		if err != nil || !ok {
			return &wal.CorruptionError{Segment: j.segment.First, Index: e.Index, Reason: "a frame has fewer records than it says"}
		}
		j.offset, j.cum = j.offset+1, j.cum+uint64(len(r.Key)+len(r.Value))
	}
	return nil
}

// add puts a copy of a record into the piece: into a run that it follows, or a new one.
func (j *job) add(piece *broker.Keep, offset fact.Offset, cum uint64, r fact.KeptRecord) {
	from := len(j.bytes)
	j.bytes = append(append(j.bytes, r.Key...), r.Value...)
	kept := j.bytes[from:]
	r.Key, r.Value = kept[:len(r.Key):len(r.Key)], kept[len(r.Key):]
	piece.Bytes += len(kept)
	j.cost += len(kept) + recordOverhead
	i, ok := j.open[string(j.stretch.Topic)]
	if ok {
		run := &piece.Runs[i]
		n := len(run.Records)
		if n < fact.BatchMax && run.Base+fact.Offset(n) == offset && run.Records[n-1].TimeMS <= r.TimeMS {
			run.Records = append(run.Records, r)
			return
		}
	}
	j.cost += frameOverhead + len(j.stretch.Topic)
	topic := append([]byte{}, j.stretch.Topic...)
	j.open[string(topic)] = len(piece.Runs)
	piece.Runs = append(piece.Runs, broker.KeptRun{Topic: topic, Base: offset, Cum: cum, Records: []fact.KeptRecord{r}})
}
