package wal

import (
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Inspection is what Inspect found.
type Inspection struct {
	LogID    entry.LogID
	Segments []Segment
	Recovered
}

// Inspect reads the log in dir from end to end, and calls visit for each good frame in order. It skips what
// is damaged, and reports it. It writes nothing and needs no lock: of a log that is in use it sees what was
// written so far, and may see the last write as torn. The log id is that of the first good segment header.
func Inspect(fsys vfs.FS, dir string, visit func(*entry.Entry, entry.Position) error) (Inspection, error) {
	list, err := listSegments(fsys, dir)
	if err != nil {
		return Inspection{}, err
	}
	if len(list) == 0 {
		return Inspection{}, fmt.Errorf("inspect the log in %s: %w", dir, ErrEmpty)
	}
	id, err := findLogID(fsys, list)
	if err != nil {
		return Inspection{}, err
	}
	m, err := readMark(fsys, dir, id)
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect the log in %s: %w", dir, err)
	}
	r := &recovery{walker: walker{seed: seedOf(id)}, fs: fsys, id: id, segments: list, mark: m, report: true, visit: visit}
	in := Inspection{LogID: id}
	err = r.run()
	in.Recovered = r.found
	for i, s := range list {
		one := Segment{First: s.first, Last: r.found.Last, Bytes: s.size}
		if i+1 < len(list) {
			one.Last, one.Sealed = list[i+1].first-1, true
		}
		in.Segments = append(in.Segments, one)
	}
	return in, err
}

// findLogID reads segment headers until one is good.
func findLogID(fsys vfs.FS, list []segmentFile) (entry.LogID, error) {
	var why error
	for _, s := range list {
		f, err := fsys.OpenRead(s.path)
		if err != nil {
			return entry.LogID{}, fmt.Errorf("open a segment: %w", err)
		}
		b := make([]byte, min(headerSize, s.size))
		_, err = f.ReadAt(b, 0)
		closeFile(f)
		if err == nil {
			var h segmentHeader
			if h, err = decodeHeader(b); err == nil {
				return h.id, nil
			}
		}
		if why == nil {
			why = fmt.Errorf("segment %s: %w", s.path, err)
		}
	}
	return entry.LogID{}, fmt.Errorf("no segment header is good: %w", why)
}
