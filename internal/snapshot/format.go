package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"example.com/mq/internal/entry"
)

// docs/format/snapshot.md draws the file.

const (
	formatVersion   = 1
	headerSize      = 64
	blockHeaderSize = 8
	blockMax        = 64 << 10 // bytes of data in a block; all blocks but the last have so many
	footerSize      = 16
)

var (
	formatMagic = [8]byte{'m', 'q', 's', 'n', 'a', 'p', 0, 0}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Info says what a snapshot covers.
type Info struct {
	Name   string      // of the file in its folder
	Index  entry.Index // of the last entry that it covers
	Term   entry.Term  // of that entry
	TimeMS int64       // of that entry
	Bytes  int64       // size of the file
}

func appendHeader(dst []byte, id entry.LogID, info *Info) []byte {
	start := len(dst)
	dst = append(dst, formatMagic[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, formatVersion)
	dst = binary.LittleEndian.AppendUint32(dst, headerSize)
	dst = append(dst, id[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(info.Index))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(info.Term))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(info.TimeMS))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}

// parseHeader checks a header. It looks at the version before anything that another version may have
// elsewhere.
func parseHeader(b []byte, id entry.LogID) (Info, error) {
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	switch {
	case !bytes.Equal(b[:8], formatMagic[:]):
		return Info{}, fmt.Errorf("%w: it does not begin with %q", ErrCorrupt, formatMagic[:6])
	case u32(8) != formatVersion:
		return Info{}, fmt.Errorf("%w: version %d", ErrVersion, u32(8))
	case u32(60) != checksum(b[:60]):
		return Info{}, fmt.Errorf("%w: the checksum of the header differs", ErrCorrupt)
	case u32(12) != headerSize || u32(56) != 0:
		return Info{}, fmt.Errorf("%w: header of %d bytes", ErrCorrupt, u32(12))
	case entry.LogID(b[16:32]) != id:
		return Info{}, fmt.Errorf("%w: log %x, this is %x", ErrForeign, b[16:32], id)
	}
	return Info{Index: entry.Index(u64(32)), Term: entry.Term(u64(40)), TimeMS: int64(u64(48))}, nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// headerSum returns the checksum that stands at the end of a header: the first of the chain.
func headerSum(header []byte) uint32 { return binary.LittleEndian.Uint32(header[headerSize-4:]) }

// chain computes the checksum of a block from the checksum before it, so that a block is good only where it
// was written: behind that block, in that snapshot of that log.
func chain(before uint32, length [4]byte, data []byte) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], before)
	copy(b[4:], length[:])
	return crc32.Update(checksum(b[:]), castagnoli, data)
}

// appendBlock appends a block and returns its checksum.
func appendBlock(dst []byte, before uint32, data []byte) ([]byte, uint32) {
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(data)))
	sum := chain(before, length, data)
	dst = append(dst, length[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	return append(dst, data...), sum
}

// appendFooter appends the footer: a block of length zero, and the size of the whole file.
func appendFooter(dst []byte, before uint32, size int64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(size))
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, chain(before, [4]byte{}, b))
	return append(dst, b...)
}

// bodyReader reads the data of the blocks behind a header. It returns io.EOF only after the footer was found
// to be good and to be the end of the file. Its errors are final.
type bodyReader struct {
	r      io.Reader
	size   int64  // of the file
	at     int64  // position in the file
	before uint32 // checksum of what comes before at
	short  bool   // the last block was not full: only the footer may follow
	buf    [blockMax]byte
	rest   []byte // of the data in buf
	err    error
}

func (d *bodyReader) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.err == nil {
			d.err = d.block()
		}
		if d.err != nil {
			return 0, d.err
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// block reads the next block, or the footer, after which it returns io.EOF.
func (d *bodyReader) block() error {
	at := d.at
	var head [blockHeaderSize]byte
	if err := d.full(head[:]); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length > blockMax || (d.short && length != 0) {
		return fmt.Errorf("%w: a block of %d bytes at %d", ErrCorrupt, length, at)
	}
	data := d.buf[:length]
	if length == 0 {
		data = d.buf[:footerSize-blockHeaderSize]
	}
	if err := d.full(data); err != nil {
		return err
	}
	sum := binary.LittleEndian.Uint32(head[4:])
	if sum != chain(d.before, [4]byte(head[:4]), data) {
		return fmt.Errorf("%w: the checksum of the block at %d differs", ErrCorrupt, at)
	}
	if length == 0 {
		if size := binary.LittleEndian.Uint64(data); size != uint64(d.at) || d.at != d.size {
			return fmt.Errorf("%w: it ends at %d, should have %d bytes, has %d", ErrCorrupt, d.at, size, d.size)
		}
		return io.EOF
	}
	d.before, d.short, d.rest = sum, length < blockMax, data
	return nil
}

func (d *bodyReader) full(p []byte) error {
	n, err := io.ReadFull(d.r, p)
	d.at += int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it is cut off at %d", ErrCorrupt, d.at)
	}
	return err
}
