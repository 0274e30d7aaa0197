package fact

import (
	"encoding/binary"
	"fmt"
)

// The encoding is canonical: a fact has exactly one, and a decoder refuses every other (a padded varint, a
// byte that follows). So replicas that hold equal facts hold equal bytes. docs/format/facts.md draws it.

// OffsetMax is the highest value of an offset or of an end. It leaves the highest bit of 64 unused, so that
// sums of an offset and a count cannot wrap.
const OffsetMax = 1<<63 - 1

// CumMax is the highest sum of bytes of all records of a topic. An Appended or a Kept begins so far below it that
// adding its records cannot exceed it.
const CumMax = 1<<63 - 1

// TimeMaxMS is the latest time that an entry or a record can have: 48 bits of milliseconds, the year 10889.
const TimeMaxMS = 1<<48 - 1

// LimitCodeMax is the highest code of a Limit.
const LimitCodeMax = OffsetMax + 1

// WindowMaxMS is the longest window of request ids in milliseconds: 100 years.
const WindowMaxMS = 100 * 365 * 24 * 3600 * 1000

// cursor reads a payload from the front. The first thing that is wrong sets bad, and everything after reads
// as zero, so that a decoder checks once, at its end.
type cursor struct {
	rest []byte
	bad  string // what is wrong; empty while all is well
}

func (c *cursor) fail(what string) {
	if c.bad == "" {
		c.bad = what
	}
	c.rest = nil
}

// err returns nil, or what was wrong in a fact of the given name.
func (c *cursor) err(name string) error {
	if c.bad == "" {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrMalformed, name, c.bad)
}

// end demands that nothing follows.
func (c *cursor) end() {
	if len(c.rest) != 0 {
		c.fail("bytes follow its end")
	}
}

// bytes takes n bytes without copying them.
func (c *cursor) bytes(n uint64, what string) []byte {
	if n > uint64(len(c.rest)) {
		c.fail(what)
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

// short takes bytes that a length of one byte precedes.
func (c *cursor) short(what string) []byte {
	if len(c.rest) == 0 {
		c.fail(what)
		return nil
	}
	n := uint64(c.rest[0])
	c.rest = c.rest[1:]
	return c.bytes(n, what)
}

// name takes a name, which is never empty.
func (c *cursor) name(what string) []byte {
	b := c.short(what)
	if len(b) == 0 {
		c.fail(what)
	}
	return b
}

// uvarint takes a number of at most limit in its shortest form.
func (c *cursor) uvarint(limit uint64, what string) uint64 {
	if len(c.rest) > 0 && c.rest[0] < 0x80 && uint64(c.rest[0]) <= limit { // nearly all of them
		v := uint64(c.rest[0])
		c.rest = c.rest[1:]
		return v
	}
	v, n := binary.Uvarint(c.rest)
	// A last byte of zero adds nothing: a shorter form exists.
	if n <= 0 || v > limit || (n > 1 && c.rest[n-1] == 0) {
		c.fail(what)
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

// stretch takes what stands before the records of an Appended and of a Kept.
func (c *cursor) stretch() (base Offset, cum uint64, count int) {
	base = Offset(c.uvarint(OffsetMax-BatchMax, "base offset"))
	cum = c.uvarint(CumMax-BatchMax*MessageMax, "bytes before it")
	count = int(c.uvarint(BatchMax, "count of records"))
	if count == 0 {
		c.fail("count of records")
	}
	return base, cum, count
}

// appendName appends a name, which is never empty.
func appendName(dst, name []byte) []byte {
	if len(name) == 0 {
		panic("BUG: an empty name reached the encoder")
	}
	return appendShort(dst, name)
}

// appendShort appends a name or a request id behind its length of one byte.
func appendShort(dst, b []byte) []byte {
	if len(b) > NameMax {
		panic(fmt.Sprintf("BUG: a name of %d bytes reached the encoder", len(b)))
	}
	dst = append(dst, byte(len(b)))
	return append(dst, b...)
}
