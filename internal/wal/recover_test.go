package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
)

var errNotExist = fs.ErrNotExist

// TestRecovery runs the scripts in testdata/recovery. Commands:
//
//	new                         an empty log
//	put n=1 [times=1]           append and sync a group of n entries, several times
//	append n=1                  append without sync
//	mark                        append and sync an idle marker
//	drop before=N               drop segments
//	close                       close the log
//	layout                      show where the frames lie
//	flip segment=S offset=O [bit=B]         flip a bit
//	flip entry=N offset=O [bit=B]           likewise, counted from the entry's frame
//	zero segment=S|entry=N offset=O len=L   zero bytes
//	lose entry=N sector=K       zero what the frame, and all after it, has in its K-th sector (0 is the first)
//	stale entry=N from=M        overwrite the frame of N by that of M
//	restamp entry=N             give the frame another time and a right checksum, as if from another history
//	truncate segment=S size=B   cut or lengthen a file
//	remove segment=S, swap a=S b=T, foreign segment=S, version segment=S
//	open [after=N]              open the log, show what was found; it stays open
func TestRecovery(t *testing.T) {
	datadriven.Walk(t, "testdata/recovery", func(t *testing.T, path string) {
		s := &script{t: t}
		t.Cleanup(s.close)
		datadriven.RunTest(t, path, s.run)
	})
}

// script is the state of a recovery script.
type script struct {
	t   *testing.T
	mem *memfs.FS
	log *Log
	at  map[entry.Index]entry.Position // frames before they were damaged
}

func (s *script) close() {
	if s.log != nil {
		s.log.Close()
		s.log = nil
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	arg := func(key string, missing int64) int64 {
		if !d.HasArg(key) {
			return missing
		}
		var v int64
		d.ScanArgs(t, key, &v)
		return v
	}
	switch d.Cmd {
	case "new":
		s.close()
		s.mem, s.at = newMem(t), make(map[entry.Index]entry.Position)
		s.log, _, _ = mustOpen(t, testConfig(s.mem), 0)
	case "put":
		for range arg("times", 1) {
			mustPut(t, s.log, int(arg("n", 1)))
		}
	case "append":
		var f Frames
		gather(&f, s.log.Last()+1, int(arg("n", 1)))
		if _, err := s.log.Append(&f, 1, s.log.Durable()); err != nil {
			return err.Error()
		}
	case "mark":
		if err := mark(s.log); err != nil {
			return err.Error()
		}
	case "drop":
		n, err := s.log.DropBefore(entry.Index(arg("before", 0)))
		return fmt.Sprintf("dropped %d, err %v", n, err)
	case "close":
		s.close()
		s.remember()
	case "layout":
		return s.layout()
	case "open":
		return s.open(entry.Index(arg("after", 0)))
	default:
		return s.harm(d, arg)
	}
	return ""
}

// remember notes where the frames lie.
func (s *script) remember() {
	_, err := Inspect(s.mem, "log", func(e *entry.Entry, p entry.Position) error {
		s.at[e.Index] = p
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) layout() string {
	var out strings.Builder
	in, err := Inspect(s.mem, "log", func(e *entry.Entry, p entry.Position) error {
		fmt.Fprintf(&out, "segment %d [%d,%d) entry %d commit %d kind %d\n", p.Segment, p.Offset, p.End(), e.Index, e.Commit, e.Kind)
		return nil
	})
	fmt.Fprintf(&out, "segments %v err %v", in.Segments, err)
	return out.String()
}

// harm changes files behind the log's back.
func (s *script) harm(d *datadriven.TestData, arg func(string, int64) int64) string {
	segment, offset := entry.Index(arg("segment", 0)), arg("offset", 0)
	if p, ok := s.at[entry.Index(arg("entry", 0))]; ok {
		segment, offset = p.Segment, offset+p.Offset
	}
	name := segmentPath(segment)
	switch d.Cmd {
	case "swap":
		a, b := segmentPath(entry.Index(arg("a", 0))), segmentPath(entry.Index(arg("b", 0)))
		x, y := readFile(s.t, s.mem, a), readFile(s.t, s.mem, b)
		writeFile(s.t, s.mem, a, y)
		writeFile(s.t, s.mem, b, x)
		return ""
	case "remove":
		if err := s.mem.Remove(name); err != nil {
			return err.Error()
		}
		return ""
	}
	b := readFile(s.t, s.mem, name)
	switch d.Cmd {
	case "flip":
		b[offset] ^= 1 << arg("bit", 0)
	case "zero":
		clear(b[offset : offset+arg("len", 1)])
	case "lose":
		from := offset&^511 + 512*arg("sector", 0)
		clear(b[max(from, offset) : from+512])
	case "stale":
		from := s.at[entry.Index(arg("from", 0))]
		old := readFile(s.t, s.mem, segmentPath(from.Segment))[from.Offset:from.End()]
		copy(b[offset:], old)
	case "restamp":
		b[offset+32] ^= 1
		end := offset + frameHeader + int64(binary.LittleEndian.Uint32(b[offset+4:]))
		binary.LittleEndian.PutUint32(b[offset:], crc32.Update(seedOf(testID), castagnoli, b[offset+4:end]))
	case "truncate":
		size := arg("size", 0)
		b = append(b, make([]byte, max(0, size-int64(len(b))))...)[:size]
	case "foreign":
		h, err := decodeHeader(b)
		if err != nil {
			s.t.Fatal(err)
		}
		h.id[0]++
		copy(b, h.encode())
	case "version":
		h := bytes.Clone(b[:headerSize])
		h[8]++
		copy(b, withHeaderCRC(h))
	default:
		s.t.Fatalf("unknown command %s", d.Cmd)
	}
	writeFile(s.t, s.mem, name, b)
	return ""
}

// open opens the log and shows what was found. A log that refuses to open must be unchanged.
func (s *script) open(after entry.Index) string {
	s.close()
	before := s.files()
	saw := new(seen)
	cfg := testConfig(s.mem)
	cfg.Create = false
	l, r, err := Open(cfg, after, saw.visit)
	if err != nil {
		if s.files() != before {
			s.t.Error("Open returned an error and changed files")
		}
		var c *CorruptionError
		return fmt.Sprintf("error: %v\ncorruption: %t version: %t empty: %t", err,
			errors.As(err, &c), errors.Is(err, ErrVersion), errors.Is(err, ErrEmpty))
	}
	s.log = l
	var out strings.Builder
	fmt.Fprintf(&out, "log %d to %d, proven %d, visited %d", r.First, r.Last, r.Commit, r.Entries)
	if n := len(saw.entries); n > 0 {
		fmt.Fprintf(&out, ": %d to %d", saw.entries[0].Index, saw.entries[n-1].Index)
	}
	if r.Torn != nil {
		fmt.Fprintf(&out, "\ntorn: %+v", *r.Torn)
	}
	for _, d := range r.Damage {
		fmt.Fprintf(&out, "\ndamage: %v", d)
	}
	for _, e := range saw.entries {
		if e.Kind == 2 && !bytes.Equal(e.Payload, payloadOf(e.Index, sizeOf(e.Index))) {
			s.t.Errorf("entry %d has a wrong payload", e.Index)
		}
	}
	return out.String()
}

// files returns the content of the log folder without the preparer's files.
func (s *script) files() string {
	names, err := s.mem.List("log")
	if err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for _, name := range names {
		if _, ok := parseSegmentName(name); ok {
			fmt.Fprintf(&out, "%s %x\n", name, readFile(s.t, s.mem, "log/"+name))
		}
	}
	return out.String()
}
