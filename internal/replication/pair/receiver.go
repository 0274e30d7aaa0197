package pair

import (
	"errors"
	"fmt"
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// receiver takes the history of a full sync, in a goroutine of its own, so that entries are acknowledged meanwhile.
type receiver struct {
	s     *following
	files []*incoming
	jobs  chan piece
	free  chan []byte // buffers for jobs; as many as the leader may have on its way
	ended sync.WaitGroup
	open  Import    // of a file that is being received, or nil
	whose *incoming // the file of open
}

// incoming is one file of the history.
type incoming struct {
	id    entry.Index // first entry of the segment; 0 for the snapshot
	last  entry.Index // of the segment; of the snapshot, the entry that it covers
	bytes int64
	have  int64
	done  bool
}

// piece is a chunk in a buffer of its own.
type piece struct {
	file   entry.Index
	offset int64
	data   []byte
}

// piecesMax is how many chunks may be waiting: the leader's window allows no more.
const piecesMax = windowChunks

// newReceiver looks what there is of each file of a plan, which was checked.
func newReceiver(s *following, p *plan) (*receiver, begun, error) {
	r := &receiver{s: s, jobs: make(chan piece, piecesMax), free: make(chan []byte, piecesMax)}
	var ready begun
	if p.Snapshot.Bytes > 0 {
		r.files = append(r.files, &incoming{last: entry.Index(p.Snapshot.Index), bytes: p.Snapshot.Bytes})
	}
	for _, g := range p.Segments {
		r.files = append(r.files, &incoming{id: entry.Index(g.First), last: entry.Index(g.Last), bytes: g.Bytes})
	}
	first := entry.Index(p.Segment)
	if len(p.Segments) > 0 {
		first = entry.Index(p.Segments[0].First)
	}
	if err := s.f.cfg.Replica.Forget(first); err != nil {
		return nil, ready, s.f.broken(fmt.Errorf("forget what is not needed any more: %w", err))
	}
	for _, f := range r.files {
		im, err := r.of(f)
		if err != nil {
			return nil, ready, err
		}
		f.have = im.Have()
		im.Close()
		if f.have > f.bytes {
			return nil, ready, fmt.Errorf("BUG: %d bytes of a file of %d", f.have, f.bytes)
		}
		if f.id == 0 {
			ready.Snapshot = f.have
		} else {
			ready.Segments = append(ready.Segments, f.have)
		}
	}
	r.progress()
	return r, ready, nil
}

// of opens the import of a file.
func (r *receiver) of(f *incoming) (im Import, err error) {
	if f.id == 0 {
		im, err = r.s.f.cfg.Replica.Snapshot(f.last, f.bytes)
	} else {
		im, err = r.s.f.cfg.Replica.Segment(f.id, f.last, f.bytes)
	}
	if errors.Is(err, wal.ErrMismatch) {
		return nil, malformed("file %d of the history: %v", f.id, err)
	}
	if err != nil {
		return nil, r.s.f.broken(fmt.Errorf("open a file of the history: %w", err))
	}
	return im, nil
}

// start begins to work; close ends it.
func (r *receiver) start() {
	r.ended.Go(func() {
		if err := r.run(); err != nil {
			r.s.explain(err)
			r.s.finish(err)
			for range r.jobs { // until close
			}
		}
	})
}

// close ends the work and waits for that. Only the goroutine that calls take may call it.
func (r *receiver) close() {
	close(r.jobs)
	r.ended.Wait()
	r.leave()
}

// take hands a chunk over. It does not wait.
func (r *receiver) take(m *chunk) error {
	if r == nil {
		return malformed("a piece of the history, and none was asked for")
	}
	if len(m.data) > chunkBytes {
		return malformed("a piece of %d bytes", len(m.data))
	}
	var buf []byte
	select {
	case buf = <-r.free:
	default:
	}
	select {
	case r.jobs <- piece{m.file, m.offset, append(buf[:0], m.data...)}:
		return nil
	default:
		return malformed("more of the history than fits into the window")
	}
}

// run writes what comes, and ends when all is there.
func (r *receiver) run() error {
	for _, f := range r.files { // that were complete before
		if f.have < f.bytes {
			continue
		}
		if err := r.enter(f); err != nil {
			return err
		}
		if err := r.finish(f); err != nil {
			return err
		}
	}
	for !r.all() {
		p, ok := <-r.jobs
		if !ok {
			return nil
		}
		if err := r.write(p); err != nil {
			return err
		}
		select {
		case r.free <- p.data:
		default:
		}
	}
	// The fold in the snapshot may be ahead of what has come of the log: what lies between would never be indexed, and a
	// crash would leave a log that ends before its snapshot.
	for r.s.f.durable.Load() < uint64(r.fold()) {
		select {
		case <-r.s.synced:
		case <-r.s.over:
			return nil
		}
	}
	return r.whole()
}

// fold is the entry that the snapshot covers, 0 without one.
func (r *receiver) fold() entry.Index {
	for _, f := range r.files {
		if f.id == 0 {
			return f.last
		}
	}
	return 0
}

func (r *receiver) all() bool {
	for _, f := range r.files {
		if !f.done {
			return false
		}
	}
	return true
}

// write writes one piece.
func (r *receiver) write(p piece) error {
	var f *incoming
	for _, g := range r.files {
		if g.id == p.file {
			f = g
		}
	}
	if f == nil || f.done || p.offset != f.have || p.offset+int64(len(p.data)) > f.bytes {
		return malformed("%d bytes at %d of file %d of the history", len(p.data), p.offset, p.file)
	}
	if err := r.enter(f); err != nil {
		return err
	}
	if err := r.open.Write(p.data); err != nil {
		return r.s.f.broken(fmt.Errorf("write the history: %w", err))
	}
	f.have += int64(len(p.data))
	r.s.f.cfg.Observer.Synced(int64(len(p.data)))
	r.progress()
	if f.have == f.bytes {
		return r.finish(f)
	}
	return r.tell(f, gotSome)
}

// enter goes on with a file. Another one may not be complete: a file that arrived damaged comes again in between.
func (r *receiver) enter(f *incoming) (err error) {
	if r.whose == f {
		return nil
	}
	r.leave()
	if r.open, err = r.of(f); err != nil {
		return err
	}
	r.whose = f
	if have := r.open.Have(); have != f.have {
		return fmt.Errorf("file %d of the history has %d bytes, and %d were written", f.id, have, f.have)
	}
	return nil
}

func (r *receiver) leave() {
	if r.open != nil {
		r.open.Close()
	}
	r.open, r.whose = nil, nil
}

// finish checks a file of which all bytes are there, and tells the leader.
func (r *receiver) finish(f *incoming) error {
	err := r.open.Finish()
	r.leave()
	if errors.As(err, new(*wal.CorruptionError)) || errors.Is(err, ErrDamaged) {
		r.s.f.cfg.Logger.Warn("a file of the history arrived damaged and is asked for again", "first", uint64(f.id), "err", err)
		f.have = 0
		return r.tell(f, gotBad)
	}
	if err != nil {
		return r.s.f.broken(fmt.Errorf("complete a file of the history: %w", err))
	}
	f.done = true
	return r.tell(f, gotAll)
}

func (r *receiver) tell(f *incoming, state gotState) error {
	m := got{file: f.id, bytes: f.have, state: state}
	return r.s.write(nil, func(e *encoder) []byte { return e.got(&m) })
}

// whole puts the history in its place.
func (r *receiver) whole() error {
	f := r.s.f
	if err := f.cfg.Replica.Whole(); err != nil {
		return f.broken(fmt.Errorf("complete the full sync: %w", err))
	}
	f.placed.Store(true)
	if err := f.complete(true); err != nil {
		return err
	}
	f.mu.Lock()
	f.leader.syncDone, f.leader.syncTotal = 0, 0
	if f.state == StateFullSync {
		f.state = StateStreaming
	}
	f.mu.Unlock()
	f.cfg.Logger.Info("the full sync is complete")
	return r.s.writeJSON(kindWhole, &whole{})
}

func (r *receiver) progress() {
	var done, total int64
	for _, f := range r.files {
		done, total = done+f.have, total+f.bytes
	}
	f := r.s.f
	f.mu.Lock()
	f.leader.syncDone, f.leader.syncTotal = done, total
	f.mu.Unlock()
}
