package snapshot

import "errors"

// Why a snapshot file is bad. State's own errors, and those of the file system, come as well.
var (
	// ErrCorrupt: the file is cut off, longer than it says, or some of its bytes are not those written.
	ErrCorrupt = errors.New("corrupt snapshot")
	// ErrVersion: the file is of a version that this program does not know. A newer version wrote it.
	ErrVersion = errors.New("unknown version of a snapshot")
	// ErrForeign: the file is a snapshot of another log.
	ErrForeign = errors.New("snapshot of another log")
)
