package index

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// The bytes of an index file; docs/format/index.md has the diagram. Integers are little-endian.
const (
	magic      = "mqidx\x00\x00\x00"
	version    = 2
	headerSize = 80

	// blockRuns is the most runs in a block: what one read of a cold place decodes. Small enough to read and
	// decode in microseconds, large enough that the place which memory keeps for it does not count.
	blockRuns = 512
	// blockSizeMax is what blockRuns runs take at most: offset and count, three varints each, the checksum.
	blockSizeMax = binary.MaxVarintLen64*(2+3*blockRuns) + 4
	// posMax is the highest position of a run: one behind which its length fits.
	posMax = math.MaxInt64 - math.MaxUint32
	// fileSizeMax is where places cannot tell the position of a block any more. The index of a segment is
	// smaller than the segment.
	fileSizeMax = math.MaxUint32
	nameMax     = fact.NameMax
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity is what every checksum in an index file starts with.
type identity struct {
	log     entry.LogID
	segment entry.Index
}

func (id identity) crc() uint32 {
	var b [24]byte
	copy(b[:], id.log[:])
	binary.LittleEndian.PutUint64(b[16:], uint64(id.segment))
	return crc32.Checksum(b[:], castagnoli)
}

// blockCRC covers where a block is and whose it is, so that a block in a wrong place does not pass.
func (id identity) blockCRC(topic string, at uint32, body []byte) uint32 {
	b := make([]byte, 0, 4+nameMax)
	b = binary.LittleEndian.AppendUint32(b, at)
	b = append(b, topic...)
	return crc32.Update(crc32.Update(id.crc(), castagnoli, b), castagnoli, body)
}

func (id identity) dirCRC(b []byte) uint32 { return crc32.Update(id.crc(), castagnoli, b) }

// header is the decoded start of an index file.
type header struct {
	topics, blocks int
	dirAt, dirSize int64
	dirCRC         uint32
}

func (h header) append(dst []byte, id identity) []byte {
	start := len(dst)
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, version)
	dst = binary.LittleEndian.AppendUint32(dst, headerSize)
	dst = append(dst, id.log[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(id.segment))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.topics))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.blocks))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.dirAt))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.dirSize))
	dst = binary.LittleEndian.AppendUint32(dst, h.dirCRC)
	dst = binary.LittleEndian.AppendUint64(dst, 0) // reserved
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// decodeHeader reads the header of a file of the given size and checks that it belongs to id.
func decodeHeader(b []byte, id identity, fileSize int64) (header, error) {
	if len(b) < headerSize || string(b[:8]) != magic {
		return header{}, corruptf("it does not start with an index header")
	}
	if binary.LittleEndian.Uint32(b[8:]) != version {
		// Another version may have its checksum elsewhere.
		return header{}, ErrVersion
	}
	if crc32.Checksum(b[:headerSize-4], castagnoli) != binary.LittleEndian.Uint32(b[headerSize-4:]) {
		return header{}, corruptf("wrong checksum of the header")
	}
	if entry.LogID(b[16:32]) != id.log {
		return header{}, corruptf("it belongs to another log")
	}
	if s := entry.Index(binary.LittleEndian.Uint64(b[32:])); s != id.segment {
		return header{}, corruptf("it belongs to segment %d", s)
	}
	h := header{
		topics:  int(binary.LittleEndian.Uint32(b[40:])),
		blocks:  int(binary.LittleEndian.Uint32(b[44:])),
		dirAt:   int64(binary.LittleEndian.Uint64(b[48:])),
		dirSize: int64(binary.LittleEndian.Uint64(b[56:])),
		dirCRC:  binary.LittleEndian.Uint32(b[64:]),
	}
	if h.dirAt < headerSize || h.dirAt > fileSize || h.dirSize != fileSize-h.dirAt {
		return header{}, corruptf("the file has %d bytes, its header says otherwise", fileSize)
	}
	return h, nil
}

// appendBlock encodes runs of a topic, with consecutive offsets and rising positions, for position at of the file.
func appendBlock(dst []byte, id identity, topic string, at uint32, runs []run) []byte {
	start := len(dst)
	dst = binary.AppendUvarint(dst, uint64(runs[0].first))
	dst = binary.AppendUvarint(dst, uint64(len(runs)))
	pos := int64(0)
	for _, r := range runs {
		dst = binary.AppendUvarint(dst, uint64(r.pos-pos))
		dst = binary.AppendUvarint(dst, uint64(r.size))
		dst = binary.AppendUvarint(dst, uint64(r.count))
		pos = r.end()
	}
	return binary.LittleEndian.AppendUint32(dst, id.blockCRC(topic, at, dst[start:]))
}

// decodeBlock decodes and checks the block b, which p points to: the records of p are all in it, and others may be.
func decodeBlock(b []byte, id identity, topic string, p place) ([]run, error) {
	if len(b) < 4 {
		return nil, corruptf("the block at %d of topic %q is too short", p.at, topic)
	}
	body := b[:len(b)-4]
	if id.blockCRC(topic, p.at, body) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, corruptf("wrong checksum of the block at %d of topic %q", p.at, topic)
	}
	d := decoder{b: body}
	next := d.uvarint(0, fact.OffsetMax)
	n := d.uvarint(1, blockRuns)
	if d.bad {
		return nil, corruptf("the block at %d of topic %q has an impossible number of runs", p.at, topic)
	}
	runs := make([]run, 0, n)
	pos := int64(0)
	for range n {
		r := run{
			pos:   pos + int64(d.uvarint(0, uint64(posMax-pos))),
			first: fact.Offset(next),
			size:  uint32(d.uvarint(1, math.MaxUint32)),
			// At 0 records are left, which is below the lower bound, no run fits.
			count: uint32(d.uvarint(1, min(fact.OffsetMax+1-next, math.MaxUint32))),
		}
		runs = append(runs, r)
		pos, next = min(r.end(), posMax), next+uint64(r.count)
	}
	if d.bad || len(d.b) > 0 || !hold(runs, p) {
		return nil, corruptf("the block at %d of topic %q contradicts the directory", p.at, topic)
	}
	return runs, nil
}

// decoder reads bounded integers and names; after the first that is not within its bounds, bad is set and
// all that follow are their lower bound.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint(low, high uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 || v < low || v > high {
		d.bad = true
		return low
	}
	d.b = d.b[n:]
	return v
}

// name reads a length byte, 1 to nameMax, and so many bytes.
func (d *decoder) name() []byte {
	if d.bad || len(d.b) == 0 || d.b[0] == 0 || len(d.b)-1 < int(d.b[0]) {
		d.bad = true
		return nil
	}
	n := 1 + int(d.b[0])
	name := d.b[1:n]
	d.b = d.b[n:]
	return name
}

// listed is one topic of a directory with its blocks.
type listed struct {
	name   []byte
	places []place
}

// appendDirectory encodes the topics, which are sorted by name. Blocks lie in the file in the order in which
// the directory names them, so their positions follow from their sizes.
func appendDirectory(dst []byte, topics []listed) []byte {
	for _, t := range topics {
		dst = append(dst, byte(len(t.name)))
		dst = append(dst, t.name...)
		dst = binary.AppendUvarint(dst, uint64(len(t.places)))
		next := fact.Offset(0)
		for _, p := range t.places {
			dst = binary.AppendUvarint(dst, uint64(p.first-next))
			dst = binary.AppendUvarint(dst, uint64(p.count))
			dst = binary.AppendUvarint(dst, uint64(p.bytes))
			dst = binary.AppendUvarint(dst, uint64(p.size))
			next = p.next()
		}
	}
	return dst
}

// decodeDirectory decodes and checks the directory b. The names it returns alias b.
func decodeDirectory(b []byte, id identity, h header) ([]listed, error) {
	if id.dirCRC(b) != h.dirCRC {
		return nil, corruptf("wrong checksum of the directory")
	}
	if h.topics > len(b)/7 || h.blocks > len(b)/4 { // the least that each takes
		return nil, corruptf("the directory is too short for its %d topics and %d blocks", h.topics, h.blocks)
	}
	d := decoder{b: b}
	topics := make([]listed, 0, h.topics)
	all := make([]place, 0, h.blocks) // one allocation for the places of all topics
	at := int64(headerSize)
	for range h.topics {
		name := d.name()
		if n := len(topics); n > 0 && string(name) <= string(topics[n-1].name) {
			d.bad = true
		}
		start, next := len(all), fact.Offset(0)
		for range d.uvarint(1, uint64(h.blocks-len(all))) {
			p := place{segment: id.segment, at: uint32(at)}
			p.first = next + fact.Offset(d.uvarint(0, fact.OffsetMax-uint64(min(next, fact.OffsetMax))))
			p.count = uint32(d.uvarint(1, min(fact.OffsetMax+1-uint64(p.first), math.MaxUint32)))
			p.bytes = uint32(d.uvarint(1, math.MaxUint32))
			p.size = uint32(d.uvarint(1, min(blockSizeMax, uint64(h.dirAt-at))))
			if d.bad {
				return nil, corruptf("the directory has an impossible entry")
			}
			all = append(all, p)
			at, next = at+int64(p.size), p.next()
		}
		topics = append(topics, listed{name: name, places: all[start:len(all):len(all)]})
	}
	if d.bad || len(d.b) > 0 || len(all) != h.blocks || at != h.dirAt || at > fileSizeMax {
		return nil, corruptf("the directory contradicts the header")
	}
	return topics, nil
}
