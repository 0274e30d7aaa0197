package api

// BackupBegun answers backup/begin: everything that a backup has to hold to be as the log was at entry Index, and nothing of
// it goes away before backup/end, or before BackupIdleMS without a request for it.
type BackupBegun struct {
	Backup   string          `json:"backup"` // names this backup in the requests for it
	LogID    string          `json:"log_id"`
	Index    uint64          `json:"index"`    // the last entry
	TimeMS   int64           `json:"time_ms"`  // of that entry
	Snapshot BackupSnapshot  `json:"snapshot"` // Index 0: none is needed
	Segments []BackupSegment `json:"segments"` // in log order
}

// BackupSnapshot is the state at an entry.
type BackupSnapshot struct {
	Index uint64 `json:"index"`
	Bytes int64  `json:"bytes"`
}

// BackupSegment is a segment of the log, or, of the last one, its beginning. A sealed one never changes.
type BackupSegment struct {
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Bytes  int64  `json:"bytes"`
	Sealed bool   `json:"sealed"`
}

// BackupReadRequest asks for bytes of the snapshot, or of the segment that begins with entry Segment: from Offset on, at
// most Bytes (1 to BackupReadMax). The answer has fewer only at the end.
type BackupReadRequest struct {
	Backup  string `json:"backup"`
	Segment uint64 `json:"segment,omitempty"` // 0 for the snapshot
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
}

// BackupEndRequest lets go of what a backup holds.
type BackupEndRequest struct {
	Backup string `json:"backup"`
}

// BackupEnded answers backup/end.
type BackupEnded struct{}

// Limits of backups.
const (
	BackupReadMax = 4 << 20
	BackupIdleMS  = 60000
	BackupsMax    = 4 // at once
)
