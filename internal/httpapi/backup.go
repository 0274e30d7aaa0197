package httpapi

import (
	"encoding/hex"
	"errors"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
)

// Backer is a Broker of which backups can be taken. The rules for the methods of Broker hold for its own, too.
type Backer interface {
	// BackupBegin says what a backup has to hold, and keeps that until BackupEnd, or until nothing was read for a while.
	BackupBegin() (broker.BackupInfo, error)
	// BackupRead reads bytes of the segment that begins with an entry, of the snapshot for 0; fewer than len(p) only at
	// its end. broker.ErrBackupGone says that the backup is over.
	BackupRead(backup string, segment entry.Index, offset int64, p []byte) (int, error)
	// BackupEnd lets go of what a backup holds.
	BackupEnd(backup string) error
}

var contentBytes = []byte("application/octet-stream")

var (
	errBackupNone = &apiError{status: 404, code: api.CodeNotFound,
		message: "no backups can be taken here"}
	errBackupRange = &apiError{status: 400, code: api.CodeInvalidArgument, field: "offset",
		message: "the backup has no such file, or the file ends before offset"}
)

// backer returns the broker as one of which backups can be taken.
func (c *call) backer() (Backer, *apiError) {
	b, ok := c.s.cfg.Broker.(Backer)
	if !ok {
		return nil, errBackupNone
	}
	return b, nil
}

func (c *call) backupBegin() *apiError {
	b, none := c.backer()
	if none != nil {
		return none
	}
	c.inBroker = true
	info, err := b.BackupBegin()
	c.inBroker = false
	if err != nil {
		return c.failedBackup(err)
	}
	begun := api.BackupBegun{
		Backup: info.Backup, LogID: hex.EncodeToString(info.LogID[:]), Index: uint64(info.Index), TimeMS: info.TimeMS,
		Snapshot: api.BackupSnapshot{Index: uint64(info.Snapshot.Index), Bytes: info.Snapshot.Bytes},
		Segments: make([]api.BackupSegment, len(info.Segments)),
	}
	for i, g := range info.Segments {
		begun.Segments[i] = api.BackupSegment{First: uint64(g.First), Last: uint64(g.Last), Bytes: g.Bytes, Sealed: g.Sealed}
	}
	c.answer(appendJSON(c.out[:0], begun))
	return nil
}

// backupRead answers bytes. Its memory is charged before the Broker runs.
func (c *call) backupRead() *apiError {
	b, none := c.backer()
	if none != nil {
		return none
	}
	n := int(c.req.rare.bytes)
	c.out = c.out[:0]
	if size := bufferSize(bufferClass(n)); n > keepMax {
		if !c.s.answers.take(int64(size), budgetTimeout) {
			return errAnswersBusy
		}
		c.outBooked = int64(size)
		c.moveOut(size)
	} else if cap(c.out) < n {
		c.out = make([]byte, 0, n)
	}
	c.inBroker = true
	got, err := b.BackupRead(string(c.req.rare.backup), entry.Index(c.req.rare.segment), int64(c.req.offset), c.out[:n])
	c.inBroker = false
	if err != nil {
		return c.failedBackup(err)
	}
	c.answer(c.out[:got])
	c.ctx.Response.Header.SetContentTypeBytes(contentBytes)
	return nil
}

func (c *call) backupEnd() *apiError {
	b, none := c.backer()
	if none != nil {
		return none
	}
	c.inBroker = true
	err := b.BackupEnd(string(c.req.rare.backup))
	c.inBroker = false
	if err != nil {
		return c.failedBackup(err)
	}
	c.answer(append(c.out[:0], `{}`...))
	return nil
}

// failedBackup is failed, for the errors that only these calls have.
func (c *call) failedBackup(err error) *apiError {
	switch {
	case errors.Is(err, broker.ErrBackupGone):
		return &apiError{status: 404, code: api.CodeNotFound, field: "backup", message: err.Error() + ": begin a new one; what was read stays good"}
	case errors.Is(err, broker.ErrBackupRange):
		return errBackupRange
	}
	return c.failed(err)
}
