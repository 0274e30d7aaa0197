package index

import (
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
)

var (
	// ErrNone is returned by Find when the topic has no record at or after the offset.
	ErrNone = errors.New("no record at or after the offset")
	// ErrCorrupt: an index file is not what was written for this segment of this log. Rebuild replaces it.
	ErrCorrupt = errors.New("index file is damaged")
	// ErrVersion: an index file has a version that this program does not know. Rebuild replaces it.
	ErrVersion = errors.New("index file has an unknown version")
)

// SegmentError is returned when the index file of a segment cannot be used: it is missing (fs.ErrNotExist),
// cannot be read, or is wrong (ErrCorrupt, ErrVersion). No data is lost: Rebuild makes the index again from
// the segment.
type SegmentError struct {
	Segment entry.Index
	Err     error
}

func (e *SegmentError) Error() string {
	return fmt.Sprintf("index of segment %d: %v", e.Segment, e.Err)
}

func (e *SegmentError) Unwrap() error { return e.Err }

// corruptf says what is wrong with an index file, as an ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
