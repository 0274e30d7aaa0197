package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const logBytes = 256 << 20 // length of the zero-filled file

// groupLog appends records durably. There is no writer goroutine: who comes first holds the baton and
// writes for all who came while the sync before was running, so a lone publisher never waits for another
// goroutine to be scheduled.
type groupLog struct {
	mu        sync.Mutex // guards gathering
	gathering *round     // the round that new records join; nil when the next record begins one

	baton sync.Mutex // guards what follows; held across write and sync
	file  *os.File
	at    int64 // where the next write goes
}

// round is the records that share one write and one sync.
type round struct {
	data []byte        // guarded by groupLog.mu until the round is taken
	done chan struct{} // closed when err is set
	err  error
}

// createLog writes the file full of zeros, so that an append changes no metadata and fdatasync writes
// nothing but data.
func createLog(name string) (*groupLog, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < logBytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return nil, fmt.Errorf("fill %s: %w", name, err)
		}
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("sync %s: %w", name, err)
	}
	return &groupLog{file: f}, nil
}

// append returns when the record is durable.
func (l *groupLog) append(record []byte) error {
	l.mu.Lock()
	r := l.gathering
	if r != nil {
		r.data = append(r.data, record...)
		l.mu.Unlock()
		<-r.done
		return r.err
	}
	r = &round{data: record, done: make(chan struct{})}
	l.gathering = r
	l.mu.Unlock()

	l.baton.Lock() // until the round before is durable; meanwhile others join this one
	l.mu.Lock()
	l.gathering = nil
	l.mu.Unlock()
	r.err = l.write(r.data)
	l.baton.Unlock()
	close(r.done)
	return r.err
}

func (l *groupLog) write(data []byte) error {
	if l.at+int64(len(data)) > logBytes {
		l.at = 0
	}
	if _, err := l.file.WriteAt(data, l.at); err != nil {
		return err
	}
	l.at += int64(len(data))
	return unix.Fdatasync(int(l.file.Fd()))
}

func (l *groupLog) close() error { return l.file.Close() }
