package catchup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	// HoldTime is how long after the last request of a peer that is catching up nothing should be removed.
	HoldTime = 30 * time.Second
	// answersMax is how many answers that read files are made at once, and peerAnswersMax how many of them for one peer.
	answersMax     = 4
	peerAnswersMax = 2
)

// Source is what a node shows of itself. Its methods are called from several goroutines, at any time between NewServer
// and the end of Server.Close.
type Source interface {
	// Introduce says who this node is and what it thinks of the node from.
	Introduce(from int, in *Introduction) Introduced
	// Form takes what the founder says. It returns once that is durable, or an error that says why not, which the
	// founder gets to read.
	Form(from int, f *Formation) error
	// Standing tells how the node stands; the server fills in Last. It never waits for I/O.
	Standing() Standing
	// Log is the log that others may read, nil when there is none: it is not open, or not to be trusted. It may be closed
	// while it is read.
	Log() *wal.Log
	// Snapshots lists the snapshots that are complete, newest first, without reading all of them.
	Snapshots() ([]SnapshotInfo, error)
	// OpenSnapshot opens the file of one and says how long it is. An error that wraps fs.ErrNotExist says that it
	// was removed. The server closes the file.
	OpenSnapshot(at entry.Index) (f vfs.File, bytes int64, err error)
	// StateHash returns the hash of the fold at an index, and whether it is known.
	StateHash(at entry.Index) (hash [32]byte, known bool)
}

// ServerConfig says what a server works on. Source, Clock and Nodes are required.
type ServerConfig struct {
	Source Source
	Clock  clock.Clock
	Nodes  int // of the cluster; the numbers of those that ask are below it
	// Served, if not nil, is called with the bytes of each answer that read a file.
	Served func(bytes int)
	// Damaged, if not nil, is called when the log is found damaged while it is read for a peer.
	Damaged func(*wal.CorruptionError)
}

// Server answers the requests of other nodes.
type Server struct {
	cfg   ServerConfig
	slots chan struct{}   // one for each answer that reads files
	peer  []chan struct{} // the same, of one peer

	running sync.WaitGroup // answers

	mu       sync.Mutex // guards the fields below
	closed   bool
	readings []*reading      // by peer: where it reads frames; nil while an answer uses it
	last     []time.Duration // by peer: when it last read anything
	done     []bool          // by peer: it lacks nothing, as of its last request
}

// NewServer returns a server. Close ends it.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, slots: make(chan struct{}, answersMax), readings: make([]*reading, cfg.Nodes)}
	for range cfg.Nodes {
		s.last, s.done = append(s.last, cfg.Clock.Monotonic()-HoldTime), append(s.done, false)
		s.peer = append(s.peer, make(chan struct{}, peerAnswersMax))
	}
	return s
}

// Answer answers a request of node number from. It keeps nothing of the request. When many read files at once it waits
// for its turn; when ctx ends meanwhile the answer is a refusal.
func (s *Server) Answer(ctx context.Context, from int, b []byte) []byte {
	var r request
	if err := r.decode(b); err != nil {
		return s.refuse(r.kindOf(b), err)
	}
	if from < 0 || from >= s.cfg.Nodes {
		return s.refuse(r.kind, malformed("a request of node %d", from))
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return s.refuse(r.kind, fmt.Errorf("%w: it stops", ErrUnavailable))
	}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	out, err := s.answer(ctx, from, &r)
	if err != nil {
		return s.refuse(r.kind, err)
	}
	return seal(out)
}

// kindOf returns the kind that a request says to be of, even if it makes no sense otherwise.
func (r *request) kindOf(b []byte) kind {
	if len(b) > 5 {
		return kind(b[5])
	}
	return 0
}

func (s *Server) refuse(k kind, err error) []byte {
	a := answer{kind: k, code: codeOf(err), text: err.Error(), standing: s.standing(nil)}
	return seal(a.encode(nil))
}

// standing returns how the node stands; log may be nil.
func (s *Server) standing(log *wal.Log) Standing {
	now := s.cfg.Source.Standing()
	now.Last = wal.Point{}
	if log != nil {
		now.Last = log.Tip()
	}
	now.Commit = min(now.Commit, now.Last.Index)
	return now
}

func (s *Server) answer(ctx context.Context, from int, r *request) ([]byte, error) {
	src := s.cfg.Source
	a := answer{kind: r.kind}
	switch r.kind {
	case kindIntroduce:
		if r.introduction.Self != from {
			return nil, malformed("node %d introduces itself as node %d", from, r.introduction.Self)
		}
		a.introduced = src.Introduce(from, &r.introduction)
		m := &a.introduced
		m.Objection, m.Role, m.Phase = clip(m.Objection), clip(m.Role), clip(m.Phase)
		a.standing = s.standing(src.Log())
		return a.encode(nil), nil
	case kindForm:
		if err := src.Form(from, &r.formation); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		a.standing = s.standing(src.Log())
		return a.encode(nil), nil
	}
	log := src.Log()
	before := s.standing(log)
	switch {
	case r.logID != before.LogID && (r.kind != kindManifest || r.logID != entry.LogID{}):
		return nil, fmt.Errorf("%w: it has log %x", ErrForeign, before.LogID)
	case r.kind == kindHash:
		a.standing, a.at = before, r.file
		a.hash, a.known = src.StateHash(r.file)
		return a.encode(nil), nil
	case log == nil:
		return nil, fmt.Errorf("%w: it has no log to read", ErrUnavailable)
	}
	leave, err := s.enter(ctx, from)
	if err != nil {
		return nil, err
	}
	defer leave()
	b, err := s.read(from, log, before, r, &a)
	if err != nil {
		return nil, s.named(err, before)
	}
	if s.cfg.Served != nil {
		s.cfg.Served(len(b))
	}
	return b, nil
}

// enter waits for the turn of an answer that reads files.
func (s *Server) enter(ctx context.Context, from int) (leave func(), err error) {
	for i, slots := range []chan struct{}{s.peer[from], s.slots} {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-s.peer[from]
			}
			return nil, fmt.Errorf("%w: it answers others: %w", ErrUnavailable, ctx.Err())
		}
	}
	s.mu.Lock()
	s.last[from], s.done[from] = s.cfg.Clock.Monotonic(), false
	s.mu.Unlock()
	return func() {
		<-s.slots
		<-s.peer[from]
		s.mu.Lock()
		s.last[from] = s.cfg.Clock.Monotonic()
		if s.done[from] {
			s.last[from] -= HoldTime
		}
		s.mu.Unlock()
	}, nil
}

// read answers a request that reads files. before is how the node stood before anything was read: that it leads counts
// only if it led all the time, so that what was read is the log of that leader.
func (s *Server) read(from int, log *wal.Log, before Standing, r *request, a *answer) ([]byte, error) {
	stand := func() Standing {
		now := s.standing(log)
		now.Leader = now.Leader && before.Leader && now.Term == before.Term
		if now.Last.Index > before.Last.Index { // what was appended meanwhile may be missing in what was read
			now.Last = before.Last
		}
		// What was committed before cannot have been cut since, so what was read is right up to there.
		now.Commit = min(before.Commit, now.Last.Index)
		return now
	}
	switch r.kind {
	case kindManifest:
		if err := s.manifest(log, before, a); err != nil {
			return nil, err
		}
	case kindPoints:
		var err error
		if a.points, err = lookup(log, r.indexes, lookSegments); err != nil {
			return nil, err
		}
	case kindFrames:
		return s.frames(from, log, before, r, a, stand)
	case kindSegment:
		return s.segment(log, r, a, stand)
	case kindSnapshot:
		return s.snapshot(r, a, stand)
	}
	a.standing = stand()
	return a.encode(nil), nil
}

func (s *Server) manifest(log *wal.Log, before Standing, a *answer) error {
	list := log.Segments()
	if len(list) == 0 {
		return wal.ErrClosed
	}
	start := list[0].First
	for _, g := range list {
		if g.First <= before.Commit+1 {
			start = g.First
		}
		a.segments = append(a.segments, SegmentInfo{First: g.First, Last: g.Last, Bytes: g.Bytes})
	}
	var err error
	if a.start, err = log.SegmentPlace(start); err != nil {
		return err
	}
	all, err := s.cfg.Source.Snapshots()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for _, p := range all {
		if p.Index <= before.Commit {
			a.snapshots = append(a.snapshots, p)
		}
	}
	if n := answerHeader + 64 + 16*len(a.snapshots) + 24*len(a.segments); n > AnswerMax {
		return fmt.Errorf("%w: it has %d segments, which is more than an answer can list", ErrRefused, len(a.segments))
	}
	return nil
}

// segment reads bytes of a segment file.
func (s *Server) segment(log *wal.Log, r *request, a *answer, stand func() Standing) ([]byte, error) {
	for _, g := range log.Segments() {
		if g.First == r.file {
			a.size = g.Bytes
		}
	}
	if a.size == 0 {
		return nil, wal.ErrSegmentGone
	}
	return piecemeal(r, a, stand, func(p []byte) (int, error) {
		n, err := log.ReadSegmentAt(p, r.file, r.offset)
		if err == io.EOF { // what is durable of the active one ends here
			a.size, err = r.offset+int64(n), nil
		}
		return n, err
	})
}

// snapshot reads bytes of a snapshot file.
func (s *Server) snapshot(r *request, a *answer, stand func() Standing) ([]byte, error) {
	f, bytes, err := s.cfg.Source.OpenSnapshot(r.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a.size = bytes
	return piecemeal(r, a, stand, func(p []byte) (int, error) { return f.ReadAt(p, r.offset) })
}

// piecemeal answers with a piece of a file of a.size bytes, which it reads into its place in the packet.
func piecemeal(r *request, a *answer, stand func() Standing, read func(p []byte) (int, error)) ([]byte, error) {
	if r.offset > a.size {
		return nil, malformed("bytes at %d of a file of %d", r.offset, a.size)
	}
	const fields = answerHeader + 16
	n := min(r.limit, int(a.size-r.offset))
	b := make([]byte, fields+n)
	got, err := read(b[fields:])
	if err == nil && got < n && r.offset+int64(got) < a.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && (err != io.EOF || got < n) {
		return nil, fmt.Errorf("read a file: %w", err)
	}
	a.offset, a.standing = r.offset, stand()
	a.encode(b[:0])
	return b[:fields+got], nil
}

// named gives an error of the log the sentinel by which the other side knows it. before is how the node stood before it read.
func (s *Server) named(err error, before Standing) error {
	if codeOf(err) != codeUnavailable {
		return err
	}
	for _, n := range []struct{ is, as error }{
		{wal.ErrSegmentGone, ErrGone}, {fs.ErrNotExist, ErrGone}, {wal.ErrMismatch, ErrBehind}, {wal.ErrClosed, ErrUnavailable},
	} {
		if errors.Is(err, n.is) {
			return fmt.Errorf("%w: %w", n.as, err)
		}
	}
	c := (*wal.CorruptionError)(nil)
	if !errors.As(err, &c) {
		return err
	}
	now := s.cfg.Source.Standing()
	if led := before.Leader && now.Leader && now.Term == before.Term; !led && c.Index > before.Commit {
		// A follower's tail looks like that while it is being cut.
		return fmt.Errorf("%w: its tail cannot be read: %w", ErrUnavailable, err)
	}
	if s.cfg.Damaged != nil {
		s.cfg.Damaged(c)
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// Held reports whether a peer has read something within HoldTime. Old segments and snapshots should stay then, unless the
// disk is full: what goes while it is being read must be fetched again, from the beginning if need be.
func (s *Server) Held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := false
	for from := range s.last {
		held = held || s.reads(from)
	}
	return held
}

// letGo notes that a peer lacks nothing.
func (s *Server) letGo(from int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[from] = true
}

// reads reports whether a peer has read something within HoldTime, and lets go of what it has read if not. Called with mu
// held.
func (s *Server) reads(from int) bool {
	if s.cfg.Clock.Monotonic()-s.last[from] < HoldTime {
		return true
	}
	s.readings[from].close()
	s.readings[from] = nil
	return false
}

// Close refuses what is asked from now on, and returns when no answer is being made any more and no file is open.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, r := range s.readings {
		r.close()
		s.readings[from] = nil
	}
}
