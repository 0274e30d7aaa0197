package fact

import "encoding/binary"

// Record is what a client publishes.
type Record struct {
	Key, Value []byte
}

// KeptRecord is a record with the time of the entry that appended it, in ms since the Unix epoch, 0 to TimeMaxMS.
type KeptRecord struct {
	TimeMS int64
	Record
}

// records iterates over the encoded records of an Appended or a Kept, which differ in the time: a Kept has one with
// each record, in an Appended it is that of the entry.
type records struct {
	rest   []byte
	left   int
	timed  bool  // each record begins with how much later it is than the one before
	timeMS int64 // of the record before; without timed, of all records
}

// next returns the next record, and false after the last one. Its slices alias the payload. An error is final: it
// comes again at each further call.
func (r *records) next() (KeptRecord, bool, error) {
	if r.left == 0 {
		return KeptRecord{}, false, nil
	}
	c := cursor{rest: r.rest}
	timeMS := r.timeMS
	if r.timed {
		timeMS += int64(c.uvarint(uint64(TimeMaxMS-timeMS), "time"))
	}
	keyLen := c.uvarint(MessageMax, "length of a key")
	valueLen := c.uvarint(MessageMax-keyLen, "length of a value")
	key := c.bytes(keyLen, "key")
	value := c.bytes(valueLen, "value")
	if r.left == 1 {
		c.end()
	}
	if c.bad != "" {
		return KeptRecord{}, false, c.err(r.fact())
	}
	r.rest, r.timeMS = c.rest, timeMS
	r.left--
	return KeptRecord{TimeMS: timeMS, Record: Record{Key: key, Value: value}}, true, nil
}

// walk checks the records that next has not returned yet, and returns the bytes of their keys and values, and the
// time of the last one. It leaves next where it is.
func (r *records) walk() (size uint64, lastMS int64, err error) {
	rest := *r
	for {
		record, ok, err := rest.next()
		if err != nil {
			return 0, 0, err
		}
		if !ok {
			return size, rest.timeMS, nil
		}
		size += uint64(len(record.Key) + len(record.Value))
	}
}

// fact is the name of the fact that holds the records, for errors.
func (r *records) fact() string {
	if r.timed {
		return "kept"
	}
	return "appended"
}

// appendRecord appends lengths, key and value.
func appendRecord(dst []byte, r *Record) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
	dst = binary.AppendUvarint(dst, uint64(len(r.Value)))
	dst = append(dst, r.Key...)
	return append(dst, r.Value...)
}
