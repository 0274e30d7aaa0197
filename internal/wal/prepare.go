package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"syscall"

	"example.com/mq/internal/vfs"
)

const (
	preparingName = "prepare.tmp" // while it is filled
	readyName     = "next.seg"    // filled with zeros and synced

	fillBytes = 1 << 20 // per write
	// fillSyncBytes bounds what waits for the disk in one sync, so that the syncs of publishers do not
	// queue behind a whole segment.
	fillSyncBytes = 4 << 20
)

// prepared is a file that is zero-filled and synced under readyName.
type prepared struct {
	file vfs.File
	size int64
}

type prepareState int

const (
	prepareWorking prepareState = iota
	prepareReady                // next is set
	prepareFull                 // the disk is full; tried again from time to time
	prepareIdle                 // next was taken, and begin not yet called
)

// preparer makes the next segment file ahead of its use. Its goroutine is started by start, ended and waited
// for by stop.
type preparer struct {
	log   *Log // for its config and sticky error
	tmp   string
	ready string

	inline  bool // see Config.Inline
	started bool // a goroutine runs; set before any concurrent use

	kick chan struct{} // wakes the goroutine; buffered, so that nobody waits to kick
	quit chan struct{}
	done chan struct{}

	workMu sync.Mutex // one work at a time; held across I/O, guards nothing else

	mu      sync.Mutex
	changed *sync.Cond // on any change of what follows, or of the log's sticky error
	state   prepareState
	next    prepared
	want    int64 // size of the file to make
	stopped bool
}

// newPreparer returns a preparer that does nothing before start.
func newPreparer(l *Log) *preparer {
	p := &preparer{
		log:   l,
		tmp:   path.Join(l.cfg.Dir, preparingName),
		ready: path.Join(l.cfg.Dir, readyName),
		kick:  make(chan struct{}, 1),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
		want:  l.cfg.SegmentBytes,

		inline: l.cfg.Inline,
	}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// start begins to prepare. A file that an earlier process made ready is used if it has the right size.
func (p *preparer) start() {
	if p.inline {
		return // wait does the work
	}
	p.started = true
	go p.run() // ended and waited for by stop
	p.retryNow()
}

// run makes a file whenever the state asks for one.
func (p *preparer) run() {
	defer close(p.done)
	timer := p.log.cfg.Clock.NewTimer(p.log.cfg.Retry)
	timer.Stop() // it runs only while the disk is full
	defer timer.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-p.kick:
		case <-timer.C():
		}
		if !p.work() {
			return
		}
		if p.current() == prepareFull {
			timer.Reset(p.log.cfg.Retry)
		}
	}
}

// work makes a file if one is wanted. It reports false when there is nothing more to do, ever.
func (p *preparer) work() bool {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	p.mu.Lock()
	size, wanted := p.want, p.state == prepareWorking || p.state == prepareFull
	p.mu.Unlock()
	if p.log.Err() != nil {
		return false
	}
	if !wanted {
		return true
	}
	start := p.log.cfg.Clock.Now()
	f, err := p.make(size)
	if err != nil && !passing(err) { // files are opened before anything is written, so EMFILE harms nothing
		if !errors.Is(err, ErrClosed) {
			p.log.fail(fmt.Errorf("prepare a segment: %w", err))
		}
		return false
	}
	p.mu.Lock()
	before := p.state
	if err != nil {
		p.state = prepareFull
	} else {
		p.state, p.next = prepareReady, prepared{f, size}
		p.log.refused.Store(false)
	}
	p.mu.Unlock()
	p.changed.Broadcast()
	switch {
	case err != nil && before != prepareFull:
		p.log.cfg.Logger.Warn("the disk is full: no room for the next log segment", "err", err)
	case err == nil && before == prepareFull:
		p.log.cfg.Logger.Info("there is room for the next log segment again")
	}
	if err == nil && p.log.cfg.Observer.Prepared != nil {
		p.log.cfg.Observer.Prepared(p.log.cfg.Clock.Now().Sub(start))
	}
	return true
}

// make returns a file of the given size that is zero-filled, synced and named readyName. When the disk is
// full it leaves nothing behind.
func (p *preparer) make(size int64) (vfs.File, error) {
	fsys := p.log.cfg.FS
	if n, err := fsys.Size(p.ready); err == nil && n == size {
		f, err := fsys.Open(p.ready)
		if err != nil {
			return nil, err
		}
		// An earlier process made it. What has rotted since would look like damage to what is written there.
		clean, err := p.allZero(f, size)
		if clean {
			return f, nil
		}
		closeFile(f)
		if errors.Is(err, ErrClosed) {
			return nil, err
		}
		p.log.cfg.Logger.Warn("the file prepared for the next segment is damaged, and is made again", "file", p.ready, "err", err)
		if err := fsys.Remove(p.ready); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{p.ready, p.tmp} { // of the wrong size, unfinished
		_, err := fsys.Size(name)
		if err == nil {
			err = fsys.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// Do not fill the last free space only to find out that it is not enough: others need it.
	if usage, err := fsys.Usage(); err == nil && usage.FreeBytes < size {
		return nil, fmt.Errorf("%d bytes are free, %d are needed: %w", usage.FreeBytes, size, syscall.ENOSPC)
	}
	f, err := fsys.Create(p.tmp)
	if err != nil {
		return nil, err
	}
	// The folder is not synced: should the new name be lost, the next start prepares again. The sync of the
	// folder after the final name covers it all.
	if err = p.fill(f, size); err == nil {
		err = fsys.Rename(p.tmp, p.ready)
	}
	if err == nil {
		return f, nil
	}
	closeFile(f)
	if noRoom(err) || errors.Is(err, ErrClosed) {
		if rmErr := fsys.Remove(p.tmp); rmErr != nil && !errors.Is(err, ErrClosed) {
			return nil, fmt.Errorf("remove the unfinished segment: %w", rmErr)
		}
	}
	return nil, err
}

// allZero reports whether a file of the given size holds nothing but zeros.
func (p *preparer) allZero(f vfs.File, size int64) (bool, error) {
	buf := make([]byte, min(size, fillBytes))
	for at := int64(0); at < size; at += int64(len(buf)) {
		select {
		case <-p.quit:
			return false, ErrClosed
		default:
		}
		buf = buf[:min(size-at, int64(len(buf)))]
		if _, err := f.ReadAt(buf, at); err != nil {
			return false, err
		}
		if !allZero(buf) {
			return false, nil
		}
	}
	return true, nil
}

// fill writes size zeros to f, and syncs as it goes.
func (p *preparer) fill(f vfs.File, size int64) error {
	for done := int64(0); done < size; {
		select {
		case <-p.quit:
			return ErrClosed
		default:
		}
		if err := p.log.Err(); err != nil {
			return ErrClosed // never sync again after a failure
		}
		n := min(size-done, fillBytes)
		if _, err := f.WriteAt(zeros[:n], done); err != nil {
			return err
		}
		done += n
		if done%fillSyncBytes == 0 || done == size {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

// take returns a prepared file of size bytes, exactly or at least. It waits for one that is being made.
func (p *preparer) take(l *Log, size int64, exactly bool) (prepared, error) {
	for {
		if err := p.wait(l); err != nil {
			return prepared{}, err
		}
		p.mu.Lock()
		next := p.next
		p.next = prepared{}
		p.state, p.want = prepareIdle, l.cfg.SegmentBytes
		p.mu.Unlock()
		if next.size == size || next.size > size && !exactly {
			return next, nil
		}
		// A batch larger than a segment, or a replica of another size: make one for it. A full disk in the
		// meantime ends in ErrFull, and the next file made has the usual size again.
		closeFile(next.file)
		p.mu.Lock()
		p.state, p.want = prepareWorking, size
		p.mu.Unlock()
		p.retryNow()
	}
}

// wait returns when a prepared file is ready, ErrFull when there is no room for one, or the error of the log.
func (p *preparer) wait(l *Log) error {
	if p.inline {
		p.work()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if err := l.Err(); err != nil {
			return err
		}
		switch {
		case p.stopped:
			return ErrClosed
		case p.state == prepareReady:
			return nil
		case p.state == prepareFull:
			if p.want != l.cfg.SegmentBytes { // there may be room for a file of the usual size
				p.want, p.state = l.cfg.SegmentBytes, prepareWorking
				p.retryNow()
			}
			return ErrFull
		case p.state == prepareIdle:
			panic("BUG: wal: waiting for a segment that nobody prepares")
		}
		p.changed.Wait()
	}
}

// giveBack returns a taken file that could not be used.
func (p *preparer) giveBack(next prepared) {
	p.mu.Lock()
	p.state, p.next = prepareReady, next
	p.mu.Unlock()
}

// begin starts making the next file, after the one before was taken.
func (p *preparer) begin() {
	p.mu.Lock()
	p.state = prepareWorking
	p.mu.Unlock()
	p.retryNow()
}

// retryNow makes the goroutine look at once whether there is something to do.
func (p *preparer) retryNow() {
	select {
	case p.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// wake makes waiters look at the log's sticky error.
func (p *preparer) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed.Broadcast()
}

// isFull reports whether there was no room at the last try. Without a goroutine that tries from time to time,
// it tries itself.
func (p *preparer) isFull() bool {
	full := p.current() == prepareFull
	if full && p.inline {
		p.work()
		full = p.current() == prepareFull
	}
	return full
}

// stop ends the goroutine and closes the prepared file, which stays for the next start.
func (p *preparer) stop() {
	p.mu.Lock()
	stopped := p.stopped
	p.stopped = true
	p.changed.Broadcast()
	p.mu.Unlock()
	if !stopped {
		close(p.quit)
	}
	if p.started {
		<-p.done
	}
	p.mu.Lock()
	f := p.next.file
	p.next = prepared{}
	p.state = prepareIdle
	p.mu.Unlock()
	closeFile(f)
}

func (p *preparer) current() prepareState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}
