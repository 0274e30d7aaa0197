package broker

import (
	"errors"

	"example.com/mq/internal/entry"
)

// BackupInfo tells what a backup has to hold to be as the log was at entry Index.
type BackupInfo struct {
	Backup   string // names the backup
	LogID    entry.LogID
	Index    entry.Index // the last entry
	TimeMS   int64       // of that entry
	Snapshot BackupSnapshot
	Segments []BackupSegment // in log order
}

// BackupSnapshot is the state at an entry; Index 0 says that none is needed, because the log begins with entry 1.
type BackupSnapshot struct {
	Index entry.Index
	Bytes int64
}

// BackupSegment is a segment of the log. One that is not sealed is the last one, and ends behind the last entry.
type BackupSegment struct {
	First, Last entry.Index
	Bytes       int64
	Sealed      bool
}

var (
	// ErrBackupGone: there is no such backup any more, or never was. What was read of it stays good.
	ErrBackupGone = errors.New("there is no such backup any more")
	// ErrBackupRange: the backup has no such file, or the file has no such bytes.
	ErrBackupRange = errors.New("the backup has no such bytes")
)

// Settled returns the last entry that is committed and applied, and its time. It is not older than the call, whoever leads:
// while acknowledged entries may follow of which this node cannot know, it returns an *UnavailableError.
func (b *Broker) Settled() (index entry.Index, timeMS int64, err error) {
	if err := b.mayTell(); err != nil {
		return 0, 0, err
	}
	b.view.RLock()
	defer b.view.RUnlock()
	return b.state.Applied(), b.state.TimeMS(), nil
}
