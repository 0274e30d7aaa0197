package fact

import "encoding/binary"

// Kept is the decoded head of a KindKept fact, and an iterator over its records: records of a topic that stand in an
// older segment, once more and unchanged, so that the segment can go. It aliases the payload that it was decoded from.
type Kept struct {
	Topic []byte // 1 to NameMax bytes
	Base  Offset // of the first record
	Cum   uint64 // bytes of keys and values of all records of the topic before Base, ever
	Count int    // of records, 1 to BatchMax; their offsets follow each other

	records records
}

// AppendKept appends the encoding of a KindKept fact to dst. Times of the records never fall. The arguments are
// within the limits of this package; others are a mistake of the caller.
func AppendKept(dst, topic []byte, base Offset, cum uint64, records []KeptRecord) []byte {
	if len(records) == 0 || len(records) > BatchMax {
		panic("BUG: a Kept with a wrong number of records reached the encoder")
	}
	dst = appendName(dst, topic)
	dst = binary.AppendUvarint(dst, uint64(base))
	dst = binary.AppendUvarint(dst, cum)
	dst = binary.AppendUvarint(dst, uint64(len(records)))
	var lastMS int64
	for i := range records {
		r := &records[i]
		if r.TimeMS < lastMS || r.TimeMS > TimeMaxMS {
			panic("BUG: a Kept with a wrong time reached the encoder")
		}
		dst = binary.AppendUvarint(dst, uint64(r.TimeMS-lastMS))
		dst = appendRecord(dst, &r.Record)
		lastMS = r.TimeMS
	}
	return dst
}

// DecodeKept decodes the head of a KindKept fact in constant time and without allocation. It does not look at the
// records: Next checks each as it comes, Validate all at once.
func DecodeKept(p []byte) (Kept, error) {
	c := cursor{rest: p}
	var k Kept
	k.Topic = c.name("topic")
	k.Base, k.Cum, k.Count = c.stretch()
	if c.bad != "" {
		return Kept{}, c.err("kept")
	}
	k.records = records{rest: c.rest, left: k.Count, timed: true}
	return k, nil
}

// Next returns the next record, and false after the last one. The slices of the record alias the payload. An error is
// final: it comes again at each further call.
func (k *Kept) Next() (KeptRecord, bool, error) { return k.records.next() }

// Validate checks the records that Next has not returned yet, and leaves Next where it is.
func (k *Kept) Validate() error {
	_, _, err := k.records.walk()
	return err
}

// LastMS checks the records that Next has not returned yet, and returns the time of the last one: none is later.
func (k *Kept) LastMS() (int64, error) {
	_, lastMS, err := k.records.walk()
	return lastMS, err
}
