package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"example.com/mq/internal/entry"
)

// The format on disk: docs/format/log.md. All integers are little-endian.
//
// Segment header, 512 bytes:
//
//	0        8         12        16       32       40     44   48     56    60    512
//	| magic  | version | hdrsize | log id | first  | prev | 0  | size | crc | 0 ... |
//
// Frame, a multiple of 8 bytes:
//
//	0     4        8       16     24     28    32        38     39  40
//	| crc | length | index | term | prev | lag | time_ms | kind | 0 | payload | 0 ... |
const (
	// PayloadMax is the largest payload of one entry in bytes. It bounds what a reader may allocate.
	PayloadMax = 12 << 20

	headerSize  = 512 // of a segment
	frameHeader = 40  // of a frame
	frameAlign  = 8   // frames begin at multiples of it
	sectorSize  = 512 // what a disk writes whole or not at all

	segmentMagic   = "mqseg\x00\x00\x00"
	segmentVersion = 1

	timeMax = 1<<48 - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seedOf returns the CRC of the log id, with which the CRC of every frame of the log begins.
func seedOf(id entry.LogID) uint32 { return crc32.Update(0, castagnoli, id[:]) }

// frameSize returns the length of a frame with a payload of n bytes.
func frameSize(n int) int { return (frameHeader + n + frameAlign - 1) &^ (frameAlign - 1) }

// segmentHeader is what the first sector of a segment says.
type segmentHeader struct {
	id    entry.LogID
	first entry.Index
	prev  uint32 // CRC of the last frame of the segment before; 0 when there is none
	size  int64  // of the file
}

func (h *segmentHeader) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	binary.LittleEndian.PutUint32(b[12:], headerSize)
	copy(b[16:32], h.id[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(h.first))
	binary.LittleEndian.PutUint32(b[40:], h.prev)
	binary.LittleEndian.PutUint64(b[48:], uint64(h.size))
	binary.LittleEndian.PutUint32(b[56:], crc32.Checksum(b[:56], castagnoli))
	return b
}

// decodeHeader reads a segment header. The error is ErrVersion, or says in a few words what is wrong.
func decodeHeader(b []byte) (segmentHeader, error) {
	var h segmentHeader
	if len(b) < headerSize {
		return h, fmt.Errorf("the segment header is cut off")
	}
	b = b[:headerSize]
	if string(b[:8]) != segmentMagic {
		return h, fmt.Errorf("the segment does not begin with its magic")
	}
	// The checksum comes first: a flipped bit in the version is damage, not another version. It stays in
	// this place, over these bytes, in all versions.
	if crc32.Checksum(b[:56], castagnoli) != binary.LittleEndian.Uint32(b[56:]) {
		return h, fmt.Errorf("the checksum of the segment header is wrong")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != segmentVersion {
		return h, fmt.Errorf("version %d: %w", v, ErrVersion)
	}
	h.id = entry.LogID(b[16:32])
	h.first = entry.Index(binary.LittleEndian.Uint64(b[32:]))
	h.prev = binary.LittleEndian.Uint32(b[40:])
	h.size = int64(binary.LittleEndian.Uint64(b[48:]))
	if binary.LittleEndian.Uint32(b[12:]) != headerSize || binary.LittleEndian.Uint32(b[44:]) != 0 ||
		h.first == 0 || h.size < headerSize || !allZero(b[60:]) {
		return h, fmt.Errorf("the segment header holds an impossible value")
	}
	return h, nil
}

// frame is one decoded frame.
type frame struct {
	entry.Entry
	crc, prev uint32
	size      int // of the frame in bytes, padding included
}

// What parse found. The values other than frameOK and frameShort double as reasons.
const (
	frameOK       = ""
	frameShort    = "the frame is cut off"
	frameZero     = "there is no frame"
	frameBadValue = "the frame header holds an impossible value"
	frameBadCRC   = "the checksum of the frame is wrong"
	frameBadPad   = "the padding of the frame is not zero"
)

// parse decodes the frame at the start of b into f and checks all that can be checked on a frame alone.
// Unless it returns frameOK, only f.size is meaningful: with frameShort it is how many bytes are needed.
func parse(seed uint32, b []byte, f *frame) string {
	f.size = frameHeader
	if len(b) < frameHeader {
		return frameShort
	}
	h := b[:frameHeader]
	length := binary.LittleEndian.Uint32(h[4:])
	index := binary.LittleEndian.Uint64(h[8:])
	lag := uint64(binary.LittleEndian.Uint32(h[28:]))
	last := binary.LittleEndian.Uint64(h[32:])
	if h[38] == 0 || h[39] != 0 || length > PayloadMax || lag == 0 || lag > index {
		if allZero(h) {
			return frameZero
		}
		return frameBadValue
	}
	end := frameHeader + int(length)
	f.size = frameSize(int(length))
	if len(b) < f.size {
		return frameShort
	}
	f.crc = binary.LittleEndian.Uint32(h)
	if crc32.Update(seed, castagnoli, b[4:end]) != f.crc {
		return frameBadCRC
	}
	for _, c := range b[end:f.size] {
		if c != 0 {
			return frameBadPad
		}
	}
	f.Index = entry.Index(index)
	f.Term = entry.Term(binary.LittleEndian.Uint64(h[16:]))
	f.prev = binary.LittleEndian.Uint32(h[24:])
	f.Commit = entry.Index(index - lag)
	f.TimeMS = int64(last & timeMax)
	f.Kind = entry.Kind(h[38])
	f.Payload = b[frameHeader:end:end]
	return frameOK
}

const segmentSuffix = ".seg"

// segmentName is the file name of the segment that begins with index first.
func segmentName(first entry.Index) string {
	return fmt.Sprintf("%020d%s", uint64(first), segmentSuffix)
}

// parseSegmentName is the inverse of segmentName.
func parseSegmentName(name string) (entry.Index, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || segmentName(entry.Index(n)) != name {
		return 0, false
	}
	return entry.Index(n), true
}

// zeros is written to fill segments and compared with to find what is not zero. It is never changed.
var zeros [1 << 20]byte

func allZero(b []byte) bool {
	for len(b) > len(zeros) {
		if string(b[:len(zeros)]) != string(zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return string(b) == string(zeros[:len(b)])
}
