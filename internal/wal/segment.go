package wal

import (
	"sync"
	"sync/atomic"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Segment describes one segment file.
type Segment struct {
	First  entry.Index
	Last   entry.Index // of the active segment: the last durable entry; First-1 when it holds none
	Bytes  int64       // of the file
	Sealed bool        // no longer written to
}

// segment is an open log's view of one segment file. The file is opened when it is first read and stays
// open; it is closed when it was dropped and the last reader has left.
type segment struct {
	first entry.Index
	path  string
	size  int64
	prev  uint32       // as in its header; of the active segment only
	end   atomic.Int64 // of what is durable in it; kept up while the segment is active

	dropping atomic.Bool // the file is being removed, or was

	mu    sync.Mutex
	file  vfs.File // nil while not open
	users int      // reads that run; Invariant: users > 0 implies file != nil
	used  uint64   // when it was last acquired, in ticks of Log.tick
	gone  bool     // dropped, or the log is closed
}

// acquire returns the open file, which stays open until release.
func (s *segment) acquire(fs vfs.FS, tick uint64) (f vfs.File, opened bool, err error) {
	if f, err := s.grab(nil, tick); f != nil || err != nil {
		return f, false, err
	}
	// Two readers may open the file at the same time; grab keeps one handle.
	mine, err := fs.OpenRead(s.path)
	if err != nil {
		return nil, false, err
	}
	f, err = s.grab(mine, tick)
	if f != mine {
		mine.Close() // opened for reading only, nothing can be lost
	}
	return f, f == mine, err
}

// grab counts a user of the open file. If it is not open, it becomes mine, if that is not nil.
func (s *segment) grab(mine vfs.File, tick uint64) (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, ErrSegmentGone
	}
	if s.file == nil {
		s.file = mine
	}
	if s.file != nil {
		s.users++
		s.used = tick
	}
	return s.file, nil
}

// release ends one use. It closes the file when the segment is gone and this was the last use.
func (s *segment) release() {
	s.mu.Lock()
	s.users--
	f := s.takeIdle(s.gone)
	s.mu.Unlock()
	closeFile(f)
}

// discard marks the segment as gone: no new use begins, and the last one that runs closes the file. It
// reports whether the file was open.
func (s *segment) discard() bool {
	s.mu.Lock()
	s.gone = true
	open := s.file != nil
	f := s.takeIdle(true)
	s.mu.Unlock()
	closeFile(f)
	return open
}

// closeIdle closes the file if nobody uses it; the next read opens it again.
func (s *segment) closeIdle() bool {
	s.mu.Lock()
	f := s.takeIdle(true)
	s.mu.Unlock()
	closeFile(f)
	return f != nil
}

// idle reports whether the file is open and unused, and when it was last used.
func (s *segment) idle() (bool, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file != nil && s.users == 0, s.used
}

// takeIdle takes the file for closing, outside of mu. Called with mu held.
func (s *segment) takeIdle(want bool) vfs.File {
	if !want || s.users > 0 {
		return nil
	}
	f := s.file
	s.file = nil
	return f
}

// closeFile ignores the error: what must survive was synced before, and a read-only handle has nothing to lose.
func closeFile(f vfs.File) {
	if f != nil {
		f.Close()
	}
}
