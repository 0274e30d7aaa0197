package process

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Syncs times syncs beside a test: how long something may take that waits for the disk depends on how long the disk takes. Where
// the whole machine stands still, that counts as a slow sync, too.
type Syncs struct {
	t    testing.TB
	file *os.File
	stop func() // ends run and waits for it

	mu      sync.Mutex    // guards the fields below
	due     time.Time     // from then on what is under way takes time: a sync from its beginning, a pause from when it is late
	slowest time.Duration // of what has ended
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
	s := &Syncs{t: t, file: f, due: time.Now()}
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
	const (
		pause = 50 * time.Millisecond // a stall that matters is much longer, and the test has the disk for itself between
		late  = pause + 500*time.Millisecond
		never = 100 * 365 * 24 * time.Hour
	)
	defer s.next(never)
	for {
		s.next(0)
		_, err := s.file.WriteAt(make([]byte, 4096), 0)
		if err == nil {
			err = unix.Fdatasync(int(s.file.Fd()))
		}
		if err != nil {
			s.t.Errorf("time syncs: %v", err)
			return
		}
		s.next(late)
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}

// next notes that something has ended, and that something begins that is late after so long.
func (s *Syncs) next(late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.slowest, s.due = max(s.slowest, now.Sub(s.due)), now.Add(late)
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
	return max(s.slowest, time.Since(s.due))
}

// Stop ends the syncs and returns how long the slowest took since Forget.
func (s *Syncs) Stop() time.Duration {
	s.stop()
	return s.Slowest()
}
