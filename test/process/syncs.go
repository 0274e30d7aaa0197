package process

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Syncs times syncs beside a test: how long something may take that waits for the disk depends on how long the disk takes.
type Syncs struct {
	t    testing.TB
	file *os.File
	stop func() // ends run and waits for it

	mu      sync.Mutex    // guards the fields below
	began   time.Time     // of the sync that is under way; zero: none is
	slowest time.Duration // of those that have ended
}

// TimeSyncs begins to overwrite and sync a small file in a folder, again and again. That ends with Stop, or with the test.
func TimeSyncs(t testing.TB, dir string) *Syncs {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err == nil {
		err = f.Sync() // what follows changes data only, as a log does
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &Syncs{t: t, file: f}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		s.run(stop)
	}()
	s.stop = sync.OnceFunc(func() {
		close(stop)
		<-done
		f.Close()
	})
	t.Cleanup(s.stop)
	return s
}

func (s *Syncs) run(stop <-chan struct{}) {
	const pause = 50 * time.Millisecond // a stall that matters is much longer, and the test has the disk for itself between
	for {
		s.note(true)
		_, err := s.file.WriteAt(make([]byte, 4096), 0)
		if err == nil {
			err = unix.Fdatasync(int(s.file.Fd()))
		}
		if err != nil {
			s.t.Errorf("time syncs: %v", err)
			return
		}
		s.note(false)
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}

// note notes that a sync begins or has ended.
func (s *Syncs) note(begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if begins {
		s.began = now
		return
	}
	s.slowest, s.began = max(s.slowest, now.Sub(s.began)), time.Time{}
}

// Forget begins to look for the slowest sync anew. One that is under way still counts.
func (s *Syncs) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = 0
}

// Slowest returns how long the slowest sync took since Forget, or has taken so far.
func (s *Syncs) Slowest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return s.slowest
	}
	return max(s.slowest, time.Since(s.began))
}

// Stop ends the syncs and returns how long the slowest took since Forget.
func (s *Syncs) Stop() time.Duration {
	s.stop()
	return s.Slowest()
}
