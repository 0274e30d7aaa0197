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
	Count     int    // of records, 1 to BatchMax

	records []byte // the records that Next has not returned yet
	left    int    // how many they are
}

// AppendAppended appends the encoding of a KindAppended fact to dst. The digest is part of it only when
// there is a request id. The arguments are within the limits of this package; others are a mistake of the
// caller.
func AppendAppended(dst, topic []byte, base Offset, requestID []byte, digest Digest, records []Record) []byte {
	if len(records) == 0 || len(records) > BatchMax {
		panic("BUG: an Appended with a wrong number of records reached the encoder")
	}
	dst = appendName(dst, topic)
	dst = appendShort(dst, requestID)
	if len(requestID) > 0 {
		dst = append(dst, digest[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(base))
	dst = binary.AppendUvarint(dst, uint64(len(records)))
	for i := range records {
		r := &records[i]
		dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
		dst = binary.AppendUvarint(dst, uint64(len(r.Value)))
		dst = append(dst, r.Key...)
		dst = append(dst, r.Value...)
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
	a.Base = Offset(c.uvarint(OffsetMax-BatchMax, "base offset"))
	a.Count = int(c.uvarint(BatchMax, "count of records"))
	if a.Count == 0 {
		c.fail("count of records")
	}
	if c.bad != "" {
		return Appended{}, c.err("appended")
	}
	a.records, a.left = c.rest, a.Count
	return a, nil
}

// Next returns the next record, and false after the last one. The slices of the record alias the payload.
// An error is final: it comes again at each further call.
func (a *Appended) Next() (Record, bool, error) {
	if a.left == 0 {
		return Record{}, false, nil
	}
	c := cursor{rest: a.records}
	keyLen := c.uvarint(MessageMax, "length of a key")
	valueLen := c.uvarint(MessageMax-keyLen, "length of a value")
	key := c.bytes(keyLen, "key")
	value := c.bytes(valueLen, "value")
	if a.left == 1 {
		c.end()
	}
	if c.bad != "" {
		return Record{}, false, c.err("appended")
	}
	a.records = c.rest
	a.left--
	return Record{Key: key, Value: value}, true, nil
}

// Validate checks the records that Next has not returned yet, and leaves Next where it is.
func (a *Appended) Validate() error {
	rest := *a
	for {
		if _, ok, err := rest.Next(); err != nil || !ok {
			return err
		}
	}
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
