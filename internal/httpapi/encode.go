package httpapi

import (
	"encoding/base64"
	"encoding/json"
	"strconv"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	asm "github.com/segmentio/asm/base64"
)

// appendJSON appends v, a value that this process has made.
func appendJSON(dst []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer cannot be written as JSON: " + err.Error())
	}
	return append(dst, text...)
}

func appendNumber(dst []byte, head string, n uint64) []byte {
	return append(strconv.AppendUint(append(dst, head...), n, 10), '}')
}

func appendPublished(dst []byte, p broker.Published) []byte {
	dst = strconv.AppendUint(append(dst, `{"offset":`...), uint64(p.Base), 10)
	if p.Duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return append(dst, '}')
}

func appendBatchPublished(dst []byte, p broker.Published) []byte {
	dst = append(dst, `{"offsets":[`...)
	for i := range p.Count {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(p.Base)+uint64(i), 10)
	}
	dst = append(dst, ']')
	if p.Duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return append(dst, '}')
}

const recordsHead = `{"records":[`

// recordOverhead is more than what the answer has for a record besides its key and value in base64.
const recordOverhead = len(`,{"offset":,"key":"","value":"","timestamp_ms":}`) + 20 + 20

// beginRecords starts the answer to a fetch. A connection mostly asks again for what it got before, so the
// buffer will be as large as the last answer: but only when there is a record, because the wait for one may
// be long.
func (c *call) beginRecords() {
	if n := c.conn.answerSize; n > keepMax {
		c.outHint = n + n/8
	}
	if c.out == nil {
		c.out = c.outFirst[:0] // most answers end in a larger buffer, but this one must not be new each time
	}
	c.out = append(c.out[:0], recordsHead...)
	c.outFull = false
}

// Record implements broker.Sink: it appends one record to the answer, or drops it when there is no memory for
// it. It never waits, because the Broker holds memory meanwhile.
func (c *call) Record(offset fact.Offset, key, value []byte, timeMS int64) {
	if c.outFull {
		return
	}
	need := recordOverhead + base64.StdEncoding.EncodedLen(len(key)) + base64.StdEncoding.EncodedLen(len(value))
	if (cap(c.out)-len(c.out) < need+pageMax || c.outHint > 0) && !c.growOut(need+pageMax) {
		c.outFull = true
		return
	}
	out := c.out
	if len(out) > len(recordsHead) {
		out = append(out, ',')
	}
	out = strconv.AppendUint(append(out, `{"offset":`...), uint64(offset), 10)
	out = appendBase64(append(out, `,"key":"`...), key)
	out = appendBase64(append(out, `","value":"`...), value)
	out = strconv.AppendInt(append(out, `","timestamp_ms":`...), timeMS, 10)
	c.out = append(out, '}')
	c.outNext = offset + 1
}

// growOut makes room for n bytes more, in few steps: each copies what is there. What is larger than keepMax
// is charged to the budget, without waiting; with little left the steps are smaller. It reports whether there
// is room.
func (c *call) growOut(n int) bool {
	need := len(c.out) + n
	want := max(need, c.outHint, min(4*cap(c.out), answerMax))
	c.outHint = 0
	if want <= keepMax {
		c.out = append(make([]byte, 0, want), c.out...)
		return true
	}
	for size := bufferSize(bufferClass(want)); size >= need && size > cap(c.out); size /= 2 {
		if size <= keepMax {
			c.out = append(make([]byte, 0, size), c.out...)
			return true
		}
		if c.s.answers.tryTake(int64(size) - c.outBooked) {
			c.outBooked = int64(size)
			c.moveOut(size)
			return true
		}
	}
	return cap(c.out) >= need // it was only the hint that could not be followed
}

// moveOut moves the answer to a buffer from a pool.
func (c *call) moveOut(size int) {
	bigger := append(getBuffer(size), c.out...)
	if c.bigOut {
		putBuffer(c.out)
	}
	c.out, c.bigOut = bigger, true
}

// pageMax is more than what follows the records.
const pageMax = len(`],"next_offset":,"start_offset":,"end_offset":}`) + 3*20

func appendPage(dst []byte, p broker.Page) []byte {
	dst = strconv.AppendUint(append(dst, `],"next_offset":`...), uint64(p.Next), 10)
	dst = strconv.AppendUint(append(dst, `,"start_offset":`...), uint64(p.Start), 10)
	dst = strconv.AppendUint(append(dst, `,"end_offset":`...), uint64(p.End), 10)
	return append(dst, '}')
}

// encodeVectorMin is the length from which the vector code is faster. Below, the standard library is.
const encodeVectorMin = 256

// appendBase64 appends p in standard base64. dst has the room.
func appendBase64(dst, p []byte) []byte {
	if len(p) == 0 {
		return dst
	}
	n := len(dst)
	dst = dst[:n+base64.StdEncoding.EncodedLen(len(p))]
	if len(p) < encodeVectorMin {
		base64.StdEncoding.Encode(dst[n:], p)
	} else {
		asm.StdEncoding.Encode(dst[n:], p)
	}
	return dst
}
