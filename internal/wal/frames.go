package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"example.com/mq/internal/entry"
)

// framesKeepMax is the largest buffer, in bytes, that a Frames keeps for the next group commit.
const framesKeepMax = 4 << 20

// Frames gathers the entries of one group commit as encoded frames, ready for a single write. It is used
// again and again and then allocates nothing. The zero value is ready to use; it is not safe for
// concurrent use.
//
// For each entry: buf := f.Begin(kind, timeMS); append the payload to buf; f.End(buf). A Begin without End
// leaves no trace.
type Frames struct {
	// Reserve says that these entries may use the room that is kept back on a full disk. It is for small
	// facts that help to get room again. Reset clears it.
	Reserve bool
	// Frees says, with Reserve, that they may use the last quarter of it as well, because they give room back.
	Frees bool

	buf    []byte
	starts []int // of each frame in buf
	end    int   // of the last frame in buf

	loaded bool  // buf is the caller's: it is never written to
	place  Place // of buf[0]; set by Append, AppendReplica, Load and Cursor.Next
}

// Reset empties f. What Payload and Entry returned is no longer valid.
func (f *Frames) Reset() {
	f.Reserve, f.Frees = false, false
	if f.loaded || cap(f.buf) > framesKeepMax {
		f.buf = nil
	}
	f.buf, f.starts, f.end = f.buf[:0], f.starts[:0], 0
	f.loaded, f.place = false, Place{}
}

// Len returns the number of entries.
func (f *Frames) Len() int { return len(f.starts) }

// Bytes returns the number of bytes that the entries take in the log.
func (f *Frames) Bytes() int { return f.end }

// Begin starts an entry and returns the buffer to append its payload to. The buffer holds the frames
// gathered so far: only append to it.
func (f *Frames) Begin(kind entry.Kind, timeMS int64) []byte {
	if kind == 0 || timeMS < 0 || timeMS > timeMax {
		panic(fmt.Sprintf("BUG: wal: entry of kind %d at %d ms", kind, timeMS))
	}
	var h [frameHeader]byte
	binary.LittleEndian.PutUint64(h[32:], uint64(timeMS)|uint64(kind)<<48)
	f.buf = append(f.buf[:f.end], h[:]...)
	return f.buf
}

// End completes the entry; buf is what Begin returned, with the payload appended.
func (f *Frames) End(buf []byte) {
	n := len(buf) - f.end - frameHeader
	if n < 0 || n > PayloadMax {
		panic(fmt.Sprintf("BUG: wal: payload of %d bytes", n))
	}
	binary.LittleEndian.PutUint32(buf[f.end+4:], uint32(n))
	f.starts = append(f.starts, f.end)
	size := frameSize(n)
	f.buf = append(buf, zeros[:size-frameHeader-n]...)
	f.end += size
}

// finish fills in what is known only when the place in the log is: it chains the frames to the one before,
// whose CRC is prev, and returns the CRC of the last.
func (f *Frames) finish(seed, prev uint32, first entry.Index, term entry.Term, commit entry.Index) uint32 {
	for i, start := range f.starts {
		b := f.buf[start:]
		index := uint64(first) + uint64(i)
		binary.LittleEndian.PutUint64(b[8:], index)
		binary.LittleEndian.PutUint64(b[16:], uint64(term))
		binary.LittleEndian.PutUint32(b[24:], prev)
		binary.LittleEndian.PutUint32(b[28:], uint32(index-uint64(commit)))
		length := int(binary.LittleEndian.Uint32(b[4:]))
		prev = crc32.Update(seed, castagnoli, b[4:frameHeader+length])
		binary.LittleEndian.PutUint32(b, prev)
	}
	return prev
}

// The methods from here on tell of entries that have their place in the log: after Append, AppendReplica, Load
// or Cursor.Next, until Reset.

// Raw returns the encoded frames, which must not be changed.
func (f *Frames) Raw() []byte { return f.buf[:f.end:f.end] }

// First returns the index of the first entry, Last that of the last one; 0 when there is none.
func (f *Frames) First() entry.Index { return f.index(0) }
func (f *Frames) Last() entry.Index  { return f.index(len(f.starts) - 1) }

func (f *Frames) index(i int) entry.Index {
	if len(f.starts) == 0 {
		return 0
	}
	return entry.Index(binary.LittleEndian.Uint64(f.buf[f.starts[i]+8:]))
}

// Term returns the term of the last entry; 0 when there is none. No other has a higher one.
func (f *Frames) Term() entry.Term { return f.term(len(f.starts) - 1) }

func (f *Frames) term(i int) entry.Term {
	if len(f.starts) == 0 {
		return 0
	}
	return entry.Term(binary.LittleEndian.Uint64(f.buf[f.starts[i]+16:]))
}

// commit returns the highest index that a frame says to be committed.
func (f *Frames) commit() entry.Index {
	highest := uint64(0)
	for _, start := range f.starts {
		h := f.buf[start:]
		highest = max(highest, binary.LittleEndian.Uint64(h[8:])-uint64(binary.LittleEndian.Uint32(h[28:])))
	}
	return entry.Index(highest)
}

// crc returns the CRC of the last frame, and prev the one that the first frame follows.
func (f *Frames) crc() uint32  { return binary.LittleEndian.Uint32(f.buf[f.starts[len(f.starts)-1]:]) }
func (f *Frames) prev() uint32 { return binary.LittleEndian.Uint32(f.buf[24:]) }

// Position says where entry i lies.
func (f *Frames) Position(i int) entry.Position {
	end := f.end
	if i+1 < len(f.starts) {
		end = f.starts[i+1]
	}
	start := f.starts[i]
	return entry.Position{Segment: f.place.Segment, Offset: f.place.Offset + int64(start), Length: int64(end - start)}
}

// Payload returns the payload of entry i. It is valid until Reset and must not be changed.
func (f *Frames) Payload(i int) []byte {
	b := f.buf[f.starts[i]:]
	end := frameHeader + int(binary.LittleEndian.Uint32(b[4:]))
	return b[frameHeader:end:end]
}

// Entry returns entry i. Its payload is valid until Reset and must not be changed.
func (f *Frames) Entry(i int) entry.Entry {
	b := f.buf[f.starts[i]:]
	index := binary.LittleEndian.Uint64(b[8:])
	last := binary.LittleEndian.Uint64(b[32:])
	return entry.Entry{
		Index:   entry.Index(index),
		Term:    entry.Term(binary.LittleEndian.Uint64(b[16:])),
		Commit:  entry.Index(index - uint64(binary.LittleEndian.Uint32(b[28:]))),
		TimeMS:  int64(last & timeMax),
		Kind:    entry.Kind(b[38]),
		Payload: f.Payload(i),
	}
}
