package pair

import (
	"fmt"
	"io"
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

const (
	// chunkBytes is how much of a file goes into one packet. Entries of publishers wait behind at most one.
	chunkBytes = 256 << 10
	// windowChunks is how much of the history may be on its way.
	windowChunks = 32
	// fileTries is how often a file is sent that arrives damaged.
	fileTries = 3
)

// file is one file of the history.
type file struct {
	id    entry.Index // first entry of the segment; 0 for the snapshot
	bytes int64
	from  int64 // sent up to here
	have  int64 // the follower has up to here
	done  bool
	bad   int // times that it arrived damaged
}

// history sends the files of a full sync, under a window, beside the entries.
type history struct {
	log      *wal.Log
	snapshot Snapshot
	held     func()

	mu    sync.Mutex
	moved *sync.Cond // have, done or bad of a file has changed, or the session has ended
	files []*file
	total int64
	over  bool
}

// plan says what a full sync must bring: everything before the segment in which the first entry lies that may not be
// committed. From there on entries are sent as they come, so that writes need not wait for the history.
func (s *session) plan(w *welcome, committed entry.Index) (*history, *plan, error) {
	snapshot, held, err := s.r.cfg.History.Hold()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare a full sync: %w", err)
	}
	h := &history{log: s.r.cfg.Log, snapshot: snapshot, held: held}
	h.moved = sync.NewCond(&h.mu)
	p, err := s.fill(h, w, committed)
	if err != nil {
		held()
		return nil, nil, err
	}
	return h, p, nil
}

// fill chooses where the log of the follower begins, and lists the files before that.
func (s *session) fill(h *history, w *welcome, committed entry.Index) (*plan, error) {
	segments := h.log.Segments()
	start := segments[0].First
	p := &plan{Fresh: true}
	for _, g := range segments {
		if g.First <= committed+1 {
			start = g.First
		}
		if w.First != 0 && entry.Index(w.First) == g.First {
			// The follower has begun a full sync before. Its entries count if they are ours.
			if same, err := s.same(w.Commit); err == nil && same && w.Commit.Index+1 >= w.First {
				p.Fresh = false
			}
		}
	}
	if !p.Fresh {
		start = entry.Index(w.First)
	}
	place, err := h.log.SegmentPlace(start)
	if err != nil {
		return nil, fmt.Errorf("prepare a full sync: %w", err)
	}
	p.Segment, p.Size, p.Prev = uint64(start), place.Size, place.Prev
	if h.snapshot.Bytes > 0 {
		p.Snapshot = planSnapshot{Index: uint64(h.snapshot.Index), Bytes: h.snapshot.Bytes}
		h.add(0, h.snapshot.Bytes)
	}
	if first := segments[0].First; first > h.snapshot.Index+1 {
		return nil, fmt.Errorf("the log begins with entry %d and the newest snapshot ends at %d: nothing to sync a follower from", first, h.snapshot.Index)
	}
	for _, g := range segments {
		if g.First >= start {
			break
		}
		p.Segments = append(p.Segments, planSegment{First: uint64(g.First), Last: uint64(g.Last), Bytes: g.Bytes})
		h.add(g.First, g.Bytes)
	}
	return p, nil
}

func (h *history) add(id entry.Index, bytes int64) {
	h.files = append(h.files, &file{id: id, bytes: bytes})
	h.total += bytes
}

// begin notes what the follower has already.
func (h *history) begin(ready *begun) error {
	have := ready.Segments
	if h.snapshot.Bytes > 0 {
		have = append([]int64{ready.Snapshot}, have...)
	}
	if len(have) != len(h.files) {
		return malformed("%d files of a full sync of %d", len(have), len(h.files))
	}
	for i, n := range have {
		if n < 0 || n > h.files[i].bytes {
			return malformed("%d bytes of a file of %d", n, h.files[i].bytes)
		}
		h.files[i].from, h.files[i].have = n, n
	}
	return nil
}

func (h *history) progress() (done, total int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.files {
		done += f.have
	}
	return done, h.total
}

// next waits until something may be sent, and returns the file and the place. It returns nil when all has arrived, or the
// session is over.
func (h *history) next() (f *file, from int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.over {
		all, flying := true, int64(0) // chunks
		var due *file
		for _, g := range h.files {
			all = all && g.done
			flying += (g.from - g.have + chunkBytes - 1) / chunkBytes
			if due == nil && g.from < g.bytes {
				due = g
			}
		}
		if all {
			return nil, 0
		}
		if due != nil && flying < windowChunks {
			from = due.from
			due.from = min(due.from+chunkBytes, due.bytes)
			return due, from
		}
		h.moved.Wait()
	}
	return nil, 0
}

// send sends all files. It ends with the session.
func (h *history) send(s *session) {
	buf := make([]byte, chunkBytes)
	for {
		f, from := h.next()
		if f == nil {
			return
		}
		b := buf[:min(chunkBytes, f.bytes-from)]
		var n int
		var err error
		if f.id == 0 {
			n, err = h.snapshot.File.ReadAt(b, from)
		} else {
			n, err = h.log.ReadAt(b, f.id, from)
		}
		if n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			s.finish(fmt.Errorf("read the history for the follower: %w", err))
			return
		}
		m := chunk{file: f.id, offset: from, data: b}
		if s.write(b, func(e *encoder) []byte { return e.chunk(&m) }) != nil {
			return
		}
		s.r.cfg.Observer.Synced(int64(len(b)))
	}
}

// historyGot takes the follower's word on a file.
func (s *session) historyGot(b []byte) error {
	var m got
	if err := m.decode(b); err != nil {
		return err
	}
	if s.history == nil {
		return malformed("word of a full sync, and none runs")
	}
	if err := s.history.got(&m); err != nil {
		return err
	}
	done, total := s.history.progress()
	s.r.mu.Lock()
	s.r.peer.syncDone, s.r.peer.syncTotal = done, total
	s.r.mu.Unlock()
	return nil
}

func (h *history) got(m *got) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.moved.Broadcast()
	for _, f := range h.files {
		if f.id != m.file {
			continue
		}
		if m.bytes > f.from || m.bytes < f.have && m.state != gotBad || m.state == gotAll && m.bytes != f.bytes || f.done {
			return malformed("%d bytes of a file of which %d were sent", m.bytes, f.from)
		}
		f.have = m.bytes
		f.done = m.state == gotAll
		if m.state == gotBad {
			f.from, f.have, f.bad = 0, 0, f.bad+1
			if f.bad >= fileTries {
				return fmt.Errorf("file %d of the history arrived damaged %d times: is this leader's log damaged? see mq log verify", f.id, f.bad)
			}
		}
		return nil
	}
	return malformed("word of file %d, which is not in the full sync", m.file)
}

// historyWhole notes that the follower is complete.
func (s *session) historyWhole() error {
	if s.history == nil {
		return malformed("the end of a full sync, and none runs")
	}
	if !s.history.complete() {
		return malformed("the end of a full sync of which files are missing")
	}
	r := s.r
	r.mu.Lock()
	s.whole = true
	r.peer.syncDone, r.peer.syncTotal = 0, 0
	if r.state == StateFullSync && r.session == s {
		r.state = StateStreaming
	}
	r.mu.Unlock()
	r.cfg.Logger.Info("the full sync of the follower is complete", "bytes", s.history.total)
	s.history.release()
	return nil
}

// complete reports whether the follower has verified all files.
func (h *history) complete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.files {
		if !f.done {
			return false
		}
	}
	return true
}

// wake makes send end with the session.
func (h *history) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.moved.Broadcast()
}

// release lets the leader remove old segments and snapshots again.
func (h *history) release() {
	h.mu.Lock()
	held := h.held
	h.held = nil
	h.mu.Unlock()
	if held != nil {
		held()
	}
}
