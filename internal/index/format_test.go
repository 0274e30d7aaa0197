package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"hash/crc32"
	"math"
	"os"
	"path"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

const goldenSegment = 1000

// goldenFrames is a small segment: a topic with three runs, of which older records are kept while it goes on, one
// with a gap, one with a record at a high offset.
var goldenFrames = []frame{
	{"orders", 7, 1, entry.Position{Segment: goldenSegment, Offset: 512, Length: 96}},
	{"orders", 8, 32, entry.Position{Segment: goldenSegment, Offset: 608, Length: 4096}},
	{"payments", 0, 1, entry.Position{Segment: goldenSegment, Offset: 4704, Length: 64}},
	{"orders", 40, 1, entry.Position{Segment: goldenSegment, Offset: 4768, Length: runBytesMax}},
	{"orders", 41, 1, entry.Position{Segment: goldenSegment, Offset: 4768 + runBytesMax, Length: 64}},
	{"payments", 3, 2, entry.Position{Segment: goldenSegment, Offset: 40000, Length: 128}},
	{"orders", 1, 1, entry.Position{Segment: goldenSegment, Offset: 40128, Length: 72}},
	{"orders", 2, 3, entry.Position{Segment: goldenSegment, Offset: 40200, Length: 104}},
	{"orders", 42, 1, entry.Position{Segment: goldenSegment, Offset: 40304, Length: 64}},
	{"orders", 5, 2, entry.Position{Segment: goldenSegment, Offset: 40368, Length: 80}},
	{"é/..", 1 << 60, 1, entry.Position{Segment: goldenSegment, Offset: 1 << 33, Length: 1 << 20}},
}

// fileOf returns the index file of a sealed segment with these frames.
func fileOf(t testing.TB, frames []frame) []byte {
	t.Helper()
	m := newFS(t)
	x := New(Config{FS: m, LogID: testLog})
	for _, f := range frames {
		f.addTo(x.Add)
	}
	x.Begin(frames[len(frames)-1].p.Segment + 1000)
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	return readFile(t, m, path.Join("log", FileName(frames[0].p.Segment)))
}

func newFS(t testing.TB) *memfs.FS {
	t.Helper()
	m := memfs.New()
	if err := m.Mkdir("log"); err != nil {
		t.Fatal(err)
	}
	return m
}

func readFile(t testing.TB, m vfs.FS, name string) []byte {
	t.Helper()
	f, err := m.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if err := readFull(f, b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// writeFile replaces a file.
func writeFile(t testing.TB, m vfs.FS, name string, b []byte) {
	t.Helper()
	_ = m.Remove(name)
	f, err := m.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// loadBytes loads an index file with this content in a new index.
func loadBytes(t testing.TB, log entry.LogID, segment entry.Index, b []byte) (*Index, error) {
	t.Helper()
	m := newFS(t)
	writeFile(t, m, path.Join("log", FileName(segment)), b)
	x := New(Config{FS: m, LogID: log})
	return x, x.Load(segment)
}

// TestGolden: the format does not change by accident, in either direction.
func TestGolden(t *testing.T) {
	const name = "testdata/v2.idx"
	got := fileOf(t, goldenFrames)
	if *rewrite {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("index file differs from %s; if that is intended, the version must change\n got %x\nwant %x", name, got, want)
	}
	x, err := loadBytes(t, testLog, goldenSegment, want)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"orders", "payments", "é/.."} {
		if got, err := dump(x, topic); err != nil || !slices.Equal(got, runsOf(topic, goldenFrames)) {
			t.Errorf("topic %q: runs %v, %v, want %v", topic, got, err, runsOf(topic, goldenFrames))
		}
	}
}

// served tells what an index serves of the frames' topics: an error, or runs that are not those of the frames.
func served(x *Index, frames []frame) (wrong bool, err error) {
	for _, topic := range []string{"orders", "payments", "é/.."} {
		got, e := dump(x, topic)
		if e != nil {
			err = e
		} else if !slices.Equal(got, runsOf(topic, frames)) {
			wrong = true
		}
	}
	return wrong, err
}

// TestEveryBit: a file with one bit flipped is refused by Load, or by Find of what the bit belongs to; none
// of it is ever taken for right.
func TestEveryBit(t *testing.T) {
	file := fileOf(t, goldenFrames)
	for bit := range len(file) * 8 {
		bad := bytes.Clone(file)
		bad[bit/8] ^= 1 << (bit % 8)
		x, err := loadBytes(t, testLog, goldenSegment, bad)
		if err == nil {
			var wrong bool
			if wrong, err = served(x, goldenFrames); wrong {
				t.Errorf("bit %d: wrong runs", bit)
			}
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Errorf("bit %d: error %v, want ErrCorrupt or ErrVersion", bit, err)
		}
		var se *SegmentError
		if !errors.As(err, &se) || se.Segment != goldenSegment {
			t.Errorf("bit %d: error %v does not name the segment", bit, err)
		}
	}
}

// TestEveryLength: a file that lacks bytes at its end, or has more, is refused by Load.
func TestEveryLength(t *testing.T) {
	file := fileOf(t, goldenFrames)
	for n := range len(file) {
		if _, err := loadBytes(t, testLog, goldenSegment, file[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d of %d bytes: error %v, want ErrCorrupt", n, len(file), err)
		}
	}
	if _, err := loadBytes(t, testLog, goldenSegment, append(bytes.Clone(file), 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("one byte too many: error %v, want ErrCorrupt", err)
	}
}

// TestForeign: a good file that belongs elsewhere is refused, and so is one of another version.
func TestForeign(t *testing.T) {
	file := fileOf(t, goldenFrames)
	if _, err := loadBytes(t, entry.LogID{9}, goldenSegment, file); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another log's file: error %v, want ErrCorrupt", err)
	}
	if _, err := loadBytes(t, testLog, goldenSegment+1, file); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another segment's file: error %v, want ErrCorrupt", err)
	}
	for _, v := range []uint32{0, version - 1, version + 1} {
		binary.LittleEndian.PutUint32(file[8:], v)
		reseal(file)
		if _, err := loadBytes(t, testLog, goldenSegment, file); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("version %d: error %v, want ErrVersion", v, err)
		}
	}
}

// TestFirstVersion: a file of version 1, as it was written then, is refused as such, and made again.
func TestFirstVersion(t *testing.T) {
	old, err := os.ReadFile("testdata/v1.idx")
	if err != nil {
		t.Fatal(err)
	}
	x, err := loadBytes(t, testLog, goldenSegment, old)
	if !errors.Is(err, ErrVersion) {
		t.Fatalf("Load: %v, want ErrVersion", err)
	}
	err = x.Rebuild(goldenSegment, func(add func(string, fact.Offset, int, entry.Position)) error {
		for _, f := range goldenFrames {
			f.addTo(add)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, x.Flush)
	if got := readFile(t, x.cfg.FS, x.path(goldenSegment)); !bytes.Equal(got, fileOf(t, goldenFrames)) {
		t.Errorf("the file made again differs from one made by Add:\n%x", got)
	}
}

// TestSwappedBlocks: two blocks of equal size in each other's place are noticed by their checksums, although
// each is whole.
func TestSwappedBlocks(t *testing.T) {
	frames := []frame{
		{"a", 0, 1, entry.Position{Segment: 1, Offset: 512, Length: 64}},
		{"b", 0, 1, entry.Position{Segment: 1, Offset: 576, Length: 64}},
	}
	file := fileOf(t, frames)
	const size = 10
	a, b := file[headerSize:headerSize+size], file[headerSize+size:headerSize+2*size]
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
	x, err := loadBytes(t, testLog, 1, file)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"a", "b"} {
		if r, err := x.Find([]byte(topic), 0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("topic %s: %v, %v, want ErrCorrupt", topic, r, err)
		}
	}
}

// reseal corrects the checksums of the directory and of the header, where the file has them.
func reseal(file []byte) {
	if len(file) < headerSize {
		return
	}
	id := identity{entry.LogID(file[16:32]), entry.Index(binary.LittleEndian.Uint64(file[32:]))}
	if at := binary.LittleEndian.Uint64(file[48:]); at <= uint64(len(file)) {
		binary.LittleEndian.PutUint32(file[64:], id.dirCRC(file[at:]))
	}
	binary.LittleEndian.PutUint32(file[headerSize-4:], crc32.Checksum(file[:headerSize-4], castagnoli))
}

// TestContradictions: files whose checksums are right but whose content cannot be.
func TestContradictions(t *testing.T) {
	id := identity{testLog, 1}
	uv := func(vs ...uint64) []byte {
		var b []byte
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	// build makes a file of one block for topic t, whose body and directory entry are given.
	build := func(topics, blocks int, body, directory []byte) []byte {
		data := make([]byte, headerSize)
		data = append(data, body...)
		data = binary.LittleEndian.AppendUint32(data, id.blockCRC("t", headerSize, body))
		h := header{topics: topics, blocks: blocks, dirAt: int64(len(data)), dirSize: int64(len(directory))}
		data = append(data, directory...)
		h.append(data[:0], id)
		reseal(data)
		return data
	}
	body := uv(10, 1, 512, 64, 5)                                                     // from record 10, one run: at 512, 64 bytes, 5 records
	dir := func(vs ...uint64) []byte { return append([]byte("\x01t"), uv(vs...)...) } // blocks; first, count, bytes, size
	size := uint64(len(body) + 4)
	if x, err := loadBytes(t, testLog, 1, build(1, 1, body, dir(1, 10, 5, 64, size))); err != nil {
		t.Fatalf("the file that the others vary: %v", err)
	} else if r, err := x.Find([]byte("t"), 12); err != nil || r != (Run{1, 512, 576, 10, 14}) {
		t.Fatalf("the file that the others vary: %v, %v", r, err)
	} else if l := x.Live(func(string) fact.Offset { return 0 }); len(l) != 1 || l[0].Bytes != 64 {
		t.Fatalf("the file that the others vary: %+v", l)
	}
	for name, file := range map[string][]byte{
		"empty name":               build(1, 1, body, append([]byte{0}, uv(1, 10, 5, 64, size, 1, 1)...)),
		"name past the end":        build(1, 1, body, append([]byte{200}, uv(1, 10, 5, 64, size, 1, 1)...)),
		"no block":                 build(1, 0, body, dir(0, 10, 5, 64, size)),
		"more blocks than said":    build(1, 1, body, dir(2, 10, 5, 64, size)),
		"fewer topics than said":   build(2, 2, body, append(dir(1, 10, 5, 64, size), 0, 0, 0, 0, 0, 0, 0)),
		"topics out of order":      build(2, 2, body, append(dir(1, 10, 5, 64, size-1), dir(1, 10, 5, 64, 1)...)),
		"more topics than fit":     build(math.MaxUint32, math.MaxUint32, body, dir(1, 10, 5, 64, size)),
		"block too short":          build(1, 1, body, dir(1, 10, 5, 64, size-1)),
		"block past the directory": build(1, 1, body, dir(1, 10, 5, 64, size+1)),
		"bytes after the last":     build(1, 1, body, append(dir(1, 10, 5, 64, size), 0)),
		"offset overflow":          build(1, 1, body, dir(1, fact.OffsetMax+1, 1, 64, size)),
		"count overflow":           build(1, 1, body, dir(1, fact.OffsetMax, 2, 64, size)),
		"count too large":          build(1, 1, body, dir(1, 10, math.MaxUint32+1, 64, size)),
		"second block overflows":   build(1, 2, body, dir(2, fact.OffsetMax, 1, 64, size-1, 0, 1, 64, 1)),
		"no records":               build(1, 1, body, dir(1, 10, 0, 64, size)),
		"no bytes":                 build(1, 1, body, dir(1, 10, 5, 0, size)),
		"bytes too large":          build(1, 1, body, dir(1, 10, 5, math.MaxUint32+1, size)),
		"long varint":              build(1, 1, body, append([]byte("\x01t"), bytes.Repeat([]byte{0xff}, 11)...)),
	} {
		if _, err := loadBytes(t, testLog, 1, file); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: error %v, want ErrCorrupt", name, err)
		}
	}
	for name, body := range map[string][]byte{
		"empty":                uv(),
		"no runs":              uv(10, 0),
		"too many runs":        uv(10, blockRuns+1, 512, 64, 5),
		"fewer runs than said": uv(10, 2, 512, 64, 5),
		"more runs than said":  uv(10, 1, 512, 64, 5, 0, 64, 1),
		"run without bytes":    uv(10, 1, 512, 0, 5),
		"run without records":  uv(10, 1, 512, 64, 0),
		"first too high":       uv(11, 1, 512, 64, 4),
		"last too low":         uv(10, 1, 512, 64, 4),
		"before the first":     uv(5, 1, 512, 64, 5),
		"after the last":       uv(15, 1, 512, 64, 5),
		"size overflow":        uv(10, 1, 512, math.MaxUint32+1, 5),
		"position overflow":    uv(10, 1, math.MaxInt64, 64, 5),
		"position wraps":       uv(10, 2, 512, 64, 1, math.MaxUint64-100, 64, 4),
		"offset overflow":      uv(fact.OffsetMax+1, 1, 512, 64, 5),
		"count overflow":       uv(10, 3, 512, 64, 5, 0, 64, math.MaxUint32, 0, 64, math.MaxUint32+1),
		"a half varint":        append(uv(10, 1, 512, 64), 0x80),
	} {
		x, err := loadBytes(t, testLog, 1, build(1, 1, body, dir(1, 10, 5, 64, uint64(len(body)+4))))
		if err != nil {
			t.Errorf("%s: Load: %v", name, err)
			continue
		}
		if r, err := x.Find([]byte("t"), 10); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, %v, want ErrCorrupt", name, r, err)
		}
	}
}

// FuzzLoad: no bytes make Load or Find panic, take much memory, or return a run that cannot be.
func FuzzLoad(f *testing.F) {
	file := fileOf(f, goldenFrames)
	f.Add(file, true)
	f.Add(file[:len(file)-3], false)
	f.Add([]byte(magic), false)
	f.Fuzz(func(t *testing.T, file []byte, sealed bool) {
		if sealed { // with correct checksums, so that the rest of the decoder is reached
			if len(file) >= headerSize {
				copy(file[16:], testLog[:])
				binary.LittleEndian.PutUint64(file[32:], goldenSegment)
			}
			reseal(file)
		}
		x, err := loadBytes(t, testLog, goldenSegment, file)
		if err != nil {
			return
		}
		for name, topic := range x.topics {
			if cap(topic.places) > len(file) {
				t.Fatalf("%d places for a file of %d bytes", cap(topic.places), len(file))
			}
			for _, p := range topic.places {
				if sealed && int64(p.at)+int64(p.size) <= int64(len(file)) && p.size >= 4 {
					body := file[p.at : p.at+p.size-4]
					binary.LittleEndian.PutUint32(file[p.at+p.size-4:], identity{testLog, goldenSegment}.blockCRC(name, p.at, body))
				}
			}
		}
		writeFile(t, x.cfg.FS, x.path(goldenSegment), file)
		check := func(name string, topic *topic) {
			for _, p := range topic.places {
				for _, off := range []fact.Offset{p.first, p.first + (p.last()-p.first)/2, p.last()} {
					r, err := x.Find([]byte(name), off)
					if err == nil && (r.Last < off || r.First > off || r.First < p.first || r.Last > p.last() || r.Pos < 0 || r.End <= r.Pos || r.Segment != p.segment) {
						t.Fatalf("Find(%q, %d) = %+v in %+v", name, off, r, p)
					}
				}
			}
		}
		at := entry.Position{Segment: goldenSegment + 1, Offset: 512, Length: 64}
		for name, topic := range x.topics {
			check(name, topic)
			// Its blocks are cut in two, or shortened.
			for _, p := range slices.Clone(topic.places) {
				x.Add(name, p.first+(p.last()-p.first)/2, 1, at)
				at.Offset += 128
			}
			check(name, topic)
		}
		x.Live(func(string) fact.Offset { return 3 })
	})
}
