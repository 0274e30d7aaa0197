package node

import (
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// ReadIdentity returns the log that a data folder says it holds. It needs no lock. The error says whether
// the note of it is missing (fs.ErrNotExist) or damaged.
func ReadIdentity(fsys vfs.FS) (entry.LogID, error) {
	id, err := readIdentity(fsys)
	if err != nil {
		return entry.LogID{}, err
	}
	return id.logID(), nil
}
