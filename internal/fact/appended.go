package fact

import (
	"crypto/sha256"
	"encoding/binary"
)

// Appended is the decoded head of a KindAppended fact, and an iterator over its records. It aliases the
// payload that it was decoded from.
type Appended struct {
	Topic     []byte // 1 to NameMax bytes
	RequestID []byte // empty for none
	Digest    Digest // zero without a request id
	Base      Offset // of the first record
	// Cum is how many bytes keys and values of all records of the topic before Base have, of those that are gone, too.
	Cum   uint64
	Count int // of records, 1 to BatchMax

	records records
}

// AppendAppended appends the encoding of a KindAppended fact to dst. The digest is part of it only when
// there is a request id. The arguments are within the limits of this package; others are a mistake of the
// caller.
func AppendAppended(dst, topic []byte, base Offset, cum uint64, requestID []byte, digest Digest, records []Record) []byte {
	if len(records) == 0 || len(records) > BatchMax {
		panic("BUG: an Appended with a wrong number of records reached the encoder")
	}
	dst = appendName(dst, topic)
	dst = appendShort(dst, requestID)
	if len(requestID) > 0 {
		dst = append(dst, digest[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(base))
	dst = binary.AppendUvarint(dst, cum)
	dst = binary.AppendUvarint(dst, uint64(len(records)))
	for i := range records {
		dst = appendRecord(dst, &records[i])
	}
	return dst
}

// DecodeAppended decodes the head of a KindAppended fact in constant time and without allocation. It does
// not look at the records: Next checks each as it comes, Validate all at once.
func DecodeAppended(p []byte) (Appended, error) {
	c := cursor{rest: p}
	var a Appended
	a.Topic = c.name("topic")
	a.RequestID = c.short("request id")
	if len(a.RequestID) > 0 {
		copy(a.Digest[:], c.bytes(uint64(len(a.Digest)), "digest"))
	}
	a.Base, a.Cum, a.Count = c.stretch()
	if c.bad != "" {
		return Appended{}, c.err("appended")
	}
	a.records = records{rest: c.rest, left: a.Count}
	return a, nil
}

// Next returns the next record, and false after the last one. The slices of the record alias the payload.
// An error is final: it comes again at each further call.
func (a *Appended) Next() (Record, bool, error) {
	r, ok, err := a.records.next()
	return r.Record, ok, err
}

// Validate checks the records that Next has not returned yet, and leaves Next where it is.
func (a *Appended) Validate() error {
	_, _, err := a.records.walk()
	return err
}

// Size checks the records that Next has not returned yet, and returns the bytes of their keys and values.
func (a *Appended) Size() (uint64, error) {
	size, _, err := a.records.walk()
	return size, err
}

// DigestOf computes the digest of records. The lengths are part of it, so that no two different lists of
// records feed the same bytes to the hash.
func DigestOf(records []Record) Digest {
	h := sha256.New()
	var lengths [8]byte
	binary.LittleEndian.PutUint32(lengths[:], uint32(len(records)))
	h.Write(lengths[:4])
	for i := range records {
		r := &records[i]
		binary.LittleEndian.PutUint32(lengths[0:], uint32(len(r.Key)))
		binary.LittleEndian.PutUint32(lengths[4:], uint32(len(r.Value)))
		h.Write(lengths[:])
		h.Write(r.Key)
		h.Write(r.Value)
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return Digest(sum[:len(Digest{})])
}
