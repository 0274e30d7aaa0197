package wal

import (
	"errors"
	"fmt"
	"syscall"

	"example.com/mq/internal/entry"
)

var (
	// ErrFull: the disk has no room for this. Nothing was done, nothing of it will ever be seen, and the
	// log goes on as soon as there is room.
	ErrFull = errors.New("the disk is full")
	// ErrFailed: an earlier write, sync, rename or folder sync failed. What was appended since the last
	// good Sync may or may not survive. The Log never appends or syncs again; reading goes on.
	ErrFailed = errors.New("the log failed and takes no more entries")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the log is closed")
	// ErrMismatch: this does not fit the log as it is: frames that do not follow its last entry, or stand at
	// another place; a segment of another size. Nothing was done.
	ErrMismatch = errors.New("it does not fit the log")
	// ErrSegmentGone: the segment was dropped, or never was.
	ErrSegmentGone = errors.New("no such segment")
	// ErrShort: the buffer ends before the frame does. It says nothing about the bytes that are there.
	ErrShort = errors.New("the buffer ends within a frame")
	// ErrVersion: a segment was written by a version of the program that this one does not know.
	ErrVersion = errors.New("unknown version of the segment format")
	// ErrEmpty: the folder holds no segment, and Config.Create does not allow to begin a new log.
	ErrEmpty = errors.New("the log folder holds no segment")
)

// errDropping is ErrSegmentGone of a segment that is still in the list: to look again would be to wait for the disk.
var errDropping = fmt.Errorf("it is being dropped: %w", ErrSegmentGone)

// CorruptionError says that bytes which must be there, and must be right, are not. It never stands for a
// torn tail.
type CorruptionError struct {
	Segment entry.Index // names the file; 0 when unknown
	Offset  int64       // in the file
	Index   entry.Index // the first entry that is hit; 0 when unknown
	Reason  string
}

func (e *CorruptionError) Error() string {
	if e.Segment == 0 {
		return "damaged log frame: " + e.Reason
	}
	return fmt.Sprintf("damaged log: %s at byte %d (entry %d): %s",
		segmentName(e.Segment), e.Offset, e.Index, e.Reason)
}

// failure is the sticky error of a Log.
type failure struct{ err error }

// passing reports whether err, met while a file was opened or made, says that it may be tried again later.
func passing(err error) bool {
	return noRoom(err) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// noRoom reports whether err only says that the disk, or the user's quota, is full.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
