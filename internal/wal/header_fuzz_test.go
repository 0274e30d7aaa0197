package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
)

// FuzzHeader: a segment header that is taken is what its fields are written as, so no bit of it is left out of what is checked.
func FuzzHeader(f *testing.F) {
	for _, h := range []segmentHeader{{id: testID, first: 1, size: testSegment}, {id: testID, first: 1<<64 - 1, prev: 7, size: 1 << 62}} {
		f.Add(h.encode(), false)
		f.Add(h.encode()[:60], true)
		next := h.encode()
		next[8] = 2
		f.Add(next[:60], true)
		rest := h.encode()
		rest[100] = 1
		f.Add(rest, true)
	}
	f.Add([]byte(segmentMagic), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			b = append(bytes.Clone(b), make([]byte, max(0, headerSize-len(b)))...)
			copy(b, segmentMagic)
			withHeaderCRC(b)
		}
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		if again := h.encode(); !bytes.Equal(again, b[:headerSize]) {
			t.Errorf("%x is taken for %+v, which is written as\n%x", b[:64], h, again[:64])
		}
		if h.first == 0 || h.size < headerSize {
			t.Errorf("%+v is taken", h)
		}
		if _, ok := parseSegmentName(segmentName(h.first)); !ok {
			t.Errorf("segment %d has no name", h.first)
		}
	})
}

// FuzzMark: the mark counts only with its checksum, of this log, and in this version; damage and absence are told apart.
func FuzzMark(f *testing.F) {
	f.Add(encodeMark(testID, 5), false)
	f.Add(encodeMark(testID, 1<<63), true)
	f.Add(encodeMark(entry.LogID{9}, 5), true)
	f.Add(encodeMark(testID, 5)[:43], false)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			b = append(bytes.Clone(b), make([]byte, max(0, markSize-len(b)))...)
			copy(b, markMagic)
			binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
		}
		m := memfs.New()
		if err := m.Mkdir("log"); err != nil {
			t.Fatal(err)
		}
		file, err := m.Create("log/" + markName)
		if err == nil && len(b) > 0 {
			_, err = file.WriteAt(b, 0)
		}
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		mark, err := readMark(m, "log", testID)
		if err != nil {
			if mark.set || mark.proves(7) != 7 {
				t.Errorf("%+v in spite of %v", mark, err)
			}
			return
		}
		want := encodeMark(testID, mark.index)
		copy(want[12:16], b[12:16]) // not used, and under the checksum
		binary.LittleEndian.PutUint32(want[40:], crc32.Checksum(want[:40], castagnoli))
		if !mark.set || !bytes.Equal(want, b[:markSize]) {
			t.Errorf("%x is taken for %+v", b, mark)
		}
	})
}
