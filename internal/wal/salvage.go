package wal

import (
	"encoding/binary"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Salvage returns what stands in a frame that is damaged, as far as its header says how long it is: a hint for who looks for
// what is lost, and never to be taken for what was written. ok is false when there is no header to be made out.
func Salvage(fsys vfs.FS, dir string, segment entry.Index, off int64) (e entry.Entry, ok bool) {
	f, err := fsys.OpenRead(path.Join(dir, segmentName(segment)))
	if err != nil {
		return entry.Entry{}, false
	}
	defer closeFile(f)
	var h [frameHeader]byte
	if n, _ := f.ReadAt(h[:], off); n < len(h) {
		return entry.Entry{}, false
	}
	length := binary.LittleEndian.Uint32(h[4:])
	if length > PayloadMax || h[38] == 0 || h[39] != 0 {
		return entry.Entry{}, false
	}
	e.Payload = make([]byte, length)
	if n, _ := f.ReadAt(e.Payload, off+frameHeader); n < len(e.Payload) {
		return entry.Entry{}, false
	}
	e.Index, e.Term = entry.Index(binary.LittleEndian.Uint64(h[8:])), entry.Term(binary.LittleEndian.Uint64(h[16:]))
	e.TimeMS, e.Kind = int64(binary.LittleEndian.Uint64(h[32:])&timeMax), entry.Kind(h[38])
	return e, true
}
