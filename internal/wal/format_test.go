package wal

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"example.com/mq/internal/entry"
)

var update = flag.Bool("update", false, "write the golden files of the format")

// withHeaderCRC makes the checksum of a segment header right.
func withHeaderCRC(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[56:], crc32.Checksum(b[:56], castagnoli))
	return b
}

// TestGolden compares the bytes of a segment, up to the unused part, with a file that must never change:
// data directories of older versions look like it.
func TestGolden(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	var f Frames
	for i, payload := range []string{"one", "", "12345678", "the last of the first group"} {
		f.End(append(f.Begin(entry.Kind(i+1), testTime+int64(i)), payload...))
	}
	if _, err := l.Append(&f, 7, 0); err != nil {
		t.Fatal(err)
	}
	f.Reset()
	f.End(append(f.Begin(2, timeMax), bytes.Repeat([]byte{0xff}, 41)...))
	if _, err := l.Append(&f, 8, 4); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	end := f.Position(0).End()
	l.Close()
	data := readFile(t, mem, segmentPath(1))
	if len(data) != testSegment || !allZero(data[end:]) {
		t.Errorf("segment of %d bytes, want %d, with zeros after the last frame", len(data), testSegment)
	}
	golden(t, "segment.hex", data[:end])
}

// golden compares data with a file that holds it as a hex dump.
func golden(t *testing.T, name string, data []byte) {
	t.Helper()
	goldenText(t, name, hex.Dump(data))
}

// goldenText compares text with a file.
func goldenText(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("this differs from %s:\n%s", file, got)
	}
}

// TestGoldenReads reads the golden file.
func TestGoldenReads(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "segment.hex"))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, testSegment)
	copy(data, fromDump(t, text))
	saw := new(seen)
	found, err := recoverBytes(&bytesFS{files: map[string][]byte{segmentName(1): data}}, 0, saw.visit)
	if err != nil || found.Torn != nil || len(found.Damage) > 0 || found.Last != 5 || found.Commit != 4 {
		t.Fatalf("recovered %+v, %v", found, err)
	}
	want := []entry.Entry{
		{Index: 1, Term: 7, TimeMS: testTime, Kind: 1, Payload: []byte("one")},
		{Index: 2, Term: 7, TimeMS: testTime + 1, Kind: 2},
		{Index: 3, Term: 7, TimeMS: testTime + 2, Kind: 3, Payload: []byte("12345678")},
		{Index: 4, Term: 7, TimeMS: testTime + 3, Kind: 4, Payload: []byte("the last of the first group")},
		{Index: 5, Term: 8, Commit: 4, TimeMS: timeMax, Kind: 2, Payload: bytes.Repeat([]byte{0xff}, 41)},
	}
	for i, w := range want {
		g := saw.entries[i]
		if !bytes.Equal(g.Payload, w.Payload) {
			t.Errorf("entry %d has payload %q, want %q", i+1, g.Payload, w.Payload)
		}
		g.Payload, w.Payload = nil, nil
		if !equalEntry(g, w) {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
}

func equalEntry(a, b entry.Entry) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Commit == b.Commit && a.TimeMS == b.TimeMS && a.Kind == b.Kind
}

// fromDump is the inverse of hex.Dump.
func fromDump(t *testing.T, text []byte) []byte {
	t.Helper()
	var out []byte
	for line := range bytes.Lines(text) {
		line = bytes.ReplaceAll(line[10:58], []byte(" "), nil)
		b, err := hex.DecodeString(string(line))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

func TestSegmentNames(t *testing.T) {
	for _, first := range []entry.Index{1, 42, 1<<64 - 1} {
		if got, ok := parseSegmentName(segmentName(first)); !ok || got != first {
			t.Errorf("%s is parsed as %d, %t", segmentName(first), got, ok)
		}
	}
	for _, name := range []string{"", ".seg", "1.seg", "00000000000000000000.seg", "00000000000000000001.idx",
		"000000000000000000001.seg", "+0000000000000000001.seg", "99999999999999999999.seg", "next.seg", "prepare.tmp"} {
		if got, ok := parseSegmentName(name); ok {
			t.Errorf("%q is parsed as %d", name, got)
		}
	}
}

// FuzzParse feeds Parse any bytes, with a right and a wrong checksum.
func FuzzParse(f *testing.F) {
	var frames Frames
	frames.End(append(frames.Begin(2, testTime), "payload"...))
	frames.finish(seedOf(testID), 0, 1, 1, 0)
	f.Add(frames.buf)
	f.Add(make([]byte, 64))
	f.Add([]byte{})
	l := &Log{seed: seedOf(testID)}
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func() {
			e, n, err := l.Parse(b)
			switch {
			case err == nil && (n > len(b) || n%frameAlign != 0 || len(e.Payload) > n-frameHeader || e.Commit >= e.Index || e.Kind == 0):
				t.Fatalf("%d bytes parsed as %+v, length %d", len(b), e, n)
			case err == ErrShort && n <= len(b):
				t.Fatalf("%d bytes are too short for %d", len(b), n)
			}
		}
		check()
		if len(b) < frameHeader {
			return
		}
		end := frameHeader + int64(binary.LittleEndian.Uint32(b[4:]))
		if end <= int64(len(b)) {
			binary.LittleEndian.PutUint32(b, crc32.Update(l.seed, castagnoli, b[4:end]))
			check()
		}
	})
}

// FuzzRecover feeds recovery any bytes as the frames of a segment, or in the place of some.
func FuzzRecover(f *testing.F) {
	b, _ := smallLog(f)
	base := b.files[segmentName(1)]
	f.Add(uint16(0), []byte{1})
	f.Add(uint16(600), []byte("some bytes"))
	f.Add(uint16(512), base[512:1500])
	f.Add(uint16(0), base)
	f.Fuzz(func(t *testing.T, at uint16, data []byte) {
		for _, second := range []bool{false, true} {
			c := &bytesFS{files: map[string][]byte{segmentName(1): bytes.Clone(base)}}
			if second {
				maps := b.files
				for name, d := range maps {
					if name != segmentName(1) {
						c.files[name] = d
					}
				}
			}
			s := c.files[segmentName(1)]
			copy(s[min(int(at), len(s)):], data)
			next := entry.Index(0)
			visit := func(e *entry.Entry, _ entry.Position) error {
				if e.Index < next {
					t.Fatalf("entry %d after %d", e.Index, next-1)
				}
				next = e.Index + 1
				return nil
			}
			for _, after := range []entry.Index{0, 3, 1 << 60} {
				next = 0
				recoverBytes(c, after, visit)
			}
			next = 0
			Inspect(c, "log", visit)
		}
	})
}
