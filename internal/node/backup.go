package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/wal"
)

const (
	// backupsMax is how many backups there may be at once, and backupIdle how long one lasts without a request for it.
	backupsMax = 4
	backupIdle = time.Minute
)

// backups are those that are being taken. While there is one, the head of the log and the snapshots stay, unless room is
// short: see keeper.holding. The zero value is ready to use.
type backups struct {
	mu    sync.Mutex // guards the fields below
	open  map[string]*backup
	short func() bool // there is no room for the next segment; set by add

	reading sync.Mutex // one read at a time: backups come after everybody else. Held across I/O, guards nothing.
}

// backup is one that is being taken.
type backup struct {
	info    broker.BackupInfo // does not change once it is there
	reads   int               // that are under way
	touched time.Duration     // when the last request ended
}

// held reports whether something must stay for a backup. Where there is no room for the next segment that is not so: nobody
// shall be refused for want of room that could be had.
func (s *backups) held(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	return len(s.open) > 0 && !s.short()
}

// expire forgets the backups that nobody has asked for in a while. Called with mu held.
func (s *backups) expire(now time.Duration) {
	for id, b := range s.open {
		if b.reads == 0 && now-b.touched >= backupIdle {
			delete(s.open, id)
		}
	}
}

// enter notes a request for a backup, until leave.
func (s *backups) enter(now time.Duration, id string) (*backup, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	b := s.open[id]
	if b == nil || b.info.Index == 0 {
		return nil, broker.ErrBackupGone
	}
	b.reads++
	return b, nil
}

func (s *backups) leave(now time.Duration, b *backup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.reads--
	b.touched = now
}

// add makes a backup of which nothing is known yet, so that from now on nothing goes away.
func (s *backups) add(now time.Duration, random io.Reader, short func() bool) (id string, b *backup, err error) {
	if random == nil {
		random = rand.Reader
	}
	var name [16]byte
	if _, err := io.ReadFull(random, name[:]); err != nil {
		return "", nil, fmt.Errorf("name a backup: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	if len(s.open) >= backupsMax {
		return "", nil, &broker.UnavailableError{Reason: fmt.Sprintf("%d backups are being taken, which is as many as there may be at once "+
			"(the place of one that was killed is free after %.0f s at most)", len(s.open), backupIdle.Seconds())}
	}
	if s.open == nil {
		s.open = map[string]*backup{}
	}
	s.short = short
	id, b = hex.EncodeToString(name[:]), &backup{reads: 1}
	s.open[id] = b
	return id, b, nil
}

// know sets what a backup has to hold.
func (s *backups) know(b *backup, info broker.BackupInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.info = info
}

func (s *backups) remove(id string) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known = s.open[id]
	delete(s.open, id)
	return known
}

// begin says what a backup of the log as it is now has to hold, and keeps that.
//
//  1. The backup comes into the list while the keeper does nothing. From then on nothing of the log's head goes away.
//  2. The snapshot is chosen, or taken. It is complete, so it stays.
//  3. Only then the last entry is taken: it is not before the snapshot, and all segments up to it are there.
func (s *backups) begin(n *Node, b *broker.Broker) (broker.BackupInfo, error) {
	if _, _, err := b.Settled(); err != nil {
		return broker.BackupInfo{}, err // before anything is held
	}
	now := n.cfg.Clock.Monotonic
	n.keeper.mu.Lock() // what the keeper does without knowing of the backup is over then
	id, open, err := s.add(now(), n.cfg.Random, n.log.NextFull)
	n.keeper.mu.Unlock()
	if err != nil {
		return broker.BackupInfo{}, err
	}
	info, err := s.contents(n, b)
	if err != nil {
		s.remove(id)
		n.keeper.lookAgain()
		return broker.BackupInfo{}, err
	}
	info.Backup = id
	s.know(open, info)
	s.leave(now(), open)
	n.logger.Info("a backup begins", "index", uint64(info.Index), "segments", len(info.Segments))
	return info, nil
}

// contents says what a backup of the log as it is now has to hold. Nothing of the head of the log goes away meanwhile.
func (s *backups) contents(n *Node, b *broker.Broker) (info broker.BackupInfo, err error) {
	info.LogID = n.identity.logID()
	if info.Snapshot, err = s.snapshot(n); err != nil {
		return info, err
	}
	if info.Index, info.TimeMS, err = b.Settled(); err != nil {
		return info, err
	}
	if info.Index == 0 {
		return info, &broker.UnavailableError{Reason: "the log is empty: there is nothing to back up"}
	}
	for _, g := range n.log.Segments() {
		if g.First > info.Index {
			break
		}
		one := broker.BackupSegment{First: g.First, Last: g.Last, Bytes: g.Bytes, Sealed: g.Sealed && g.Last <= info.Index}
		if !one.Sealed {
			one.Last = info.Index
			if one.Bytes, err = endOf(n.log, info.Index); err != nil {
				return info, fmt.Errorf("find the end of entry %d: %w", info.Index, err)
			}
		}
		info.Segments = append(info.Segments, one)
	}
	if len(info.Segments) == 0 || info.Segments[0].First > info.Snapshot.Index+1 {
		return info, &broker.UnavailableError{Reason: "the head of the log was dropped meanwhile, because room is short"}
	}
	return info, nil
}

// endOf returns the position behind an entry in its segment.
func endOf(log *wal.Log, i entry.Index) (int64, error) {
	c := log.NewCursor(i)
	defer c.Close()
	var f wal.Frames
	if _, err := c.Next(&f, i, 1); err != nil {
		return 0, err
	}
	p := f.Position(f.Len() - 1)
	return p.Offset + p.Length, nil
}

// snapshot returns the newest good snapshot. It takes one if there is none.
func (s *backups) snapshot(n *Node) (broker.BackupSnapshot, error) {
	for taken := false; ; taken = true {
		list, err := snapshot.Files(n.fs, snapshotDir)
		if err != nil {
			return broker.BackupSnapshot{}, err
		}
		for _, f := range list {
			if _, err := snapshot.Verify(n.fs, snapshotDir, n.identity.logID(), f.Index); err != nil {
				n.logger.Error("a snapshot is damaged: the backup takes the one before", "index", uint64(f.Index), "err", err)
				continue
			}
			return broker.BackupSnapshot{Index: f.Index, Bytes: f.Bytes}, nil
		}
		if taken {
			return broker.BackupSnapshot{}, &broker.UnavailableError{Reason: "there is no good snapshot"}
		}
		if _, err := n.Snapshot(); err != nil {
			return broker.BackupSnapshot{}, err
		}
	}
}

// read reads bytes of a file of a backup, fewer than len(p) only at its end.
func (s *backups) read(n *Node, id string, segment entry.Index, offset int64, p []byte) (int, error) {
	now := n.cfg.Clock.Monotonic
	b, err := s.enter(now(), id)
	if err != nil {
		return 0, err
	}
	defer func() { s.leave(now(), b) }()
	size := int64(-1)
	if segment == 0 && b.info.Snapshot.Index > 0 {
		size = b.info.Snapshot.Bytes
	}
	for _, g := range b.info.Segments {
		if g.First == segment {
			size = g.Bytes
		}
	}
	if size < 0 || offset < 0 || offset > size {
		return 0, broker.ErrBackupRange
	}
	p = p[:min(int64(len(p)), size-offset)]
	if len(p) == 0 {
		return 0, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	if segment == 0 {
		return s.gone(id, readSnapshot(n, b.info.Snapshot.Index, offset, p), len(p))
	}
	got, err := n.log.ReadAt(p, segment, offset)
	if err == io.EOF || err == nil && got < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return s.gone(id, err, got)
}

func readSnapshot(n *Node, at entry.Index, offset int64, p []byte) error {
	f, _, err := snapshot.Open(n.fs, snapshotDir, at)
	if err != nil {
		return err
	}
	defer f.Close()
	if got, err := f.ReadAt(p, offset); got < len(p) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read the snapshot at entry %d: %w", at, err)
	}
	return nil
}

// gone ends a backup that has lost a file: where room is short, it comes first.
func (s *backups) gone(id string, err error, got int) (int, error) {
	if errors.Is(err, wal.ErrSegmentGone) || errors.Is(err, fs.ErrNotExist) {
		s.remove(id)
		return 0, fmt.Errorf("%w: room was short on the disk of the broker, and what the backup needs was removed", broker.ErrBackupGone)
	}
	if err != nil {
		return 0, err
	}
	return got, nil
}

// end lets go of what a backup holds.
func (s *backups) end(n *Node, id string) error {
	if !s.remove(id) {
		return broker.ErrBackupGone
	}
	n.keeper.lookAgain()
	return nil
}
