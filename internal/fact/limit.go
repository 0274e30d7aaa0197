package fact

import "encoding/binary"

// Limit is how much of something a topic keeps: a number from 1 to OffsetMax, LimitDefault or LimitNone.
type Limit int64

// Limits that are no numbers.
const (
	LimitDefault Limit = 0  // what the node that leads has as its default
	LimitNone    Limit = -1 // no limit, whatever the default
)

// Retention says how long records of a topic are kept: as long as all of these allow. The zero value is all defaults.
type Retention struct {
	MS      Limit // age by the time of the log, in ms
	Bytes   Limit // of keys and values
	Records Limit
}

// Code is the number that stands for a limit in an encoding: 0 for the default, 1 for none, else the limit plus one.
// It is at most LimitCodeMax.
func (l Limit) Code() uint64 {
	switch {
	case l == LimitDefault:
		return 0
	case l == LimitNone:
		return 1
	case l < 0:
		panic("BUG: a negative limit reached the encoder")
	}
	return uint64(l) + 1
}

// LimitOf returns the limit that a code of at most LimitCodeMax stands for.
func LimitOf(code uint64) Limit {
	switch code {
	case 0:
		return LimitDefault
	case 1:
		return LimitNone
	}
	return Limit(code - 1)
}

// appendRetention appends the codes of the three limits.
func appendRetention(dst []byte, r Retention) []byte {
	dst = binary.AppendUvarint(dst, r.MS.Code())
	dst = binary.AppendUvarint(dst, r.Bytes.Code())
	return binary.AppendUvarint(dst, r.Records.Code())
}

// retention takes the codes of the three limits.
func (c *cursor) retention() Retention {
	return Retention{MS: c.limit("limit of age"), Bytes: c.limit("limit of bytes"), Records: c.limit("limit of records")}
}

func (c *cursor) limit(what string) Limit { return LimitOf(c.uvarint(LimitCodeMax, what)) }
