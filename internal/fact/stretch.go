package fact

import "example.com/mq/internal/entry"

// Stretch is what Appended and Kept have in common: consecutive records of a topic. Who reads or indexes records sees
// this and does not care which of both it is. It aliases the payload.
type Stretch struct {
	Topic []byte // 1 to NameMax bytes
	Base  Offset // of the first record
	Cum   uint64 // bytes of keys and values of all records of the topic before Base, ever
	Count int    // of records, 1 to BatchMax

	records records
}

// DecodeStretch decodes the head of a fact that holds records, in constant time and without allocation. timeMS is the
// time of the entry. ok is false for an entry of any other kind. It does not look at the records: Next checks each as
// it comes, Validate all at once.
func DecodeStretch(kind entry.Kind, timeMS int64, payload []byte) (s Stretch, ok bool, err error) {
	switch kind {
	case KindAppended:
		a, err := DecodeAppended(payload)
		if err != nil {
			return Stretch{}, true, err
		}
		a.records.timeMS = timeMS
		return Stretch{Topic: a.Topic, Base: a.Base, Cum: a.Cum, Count: a.Count, records: a.records}, true, nil
	case KindKept:
		k, err := DecodeKept(payload)
		if err != nil {
			return Stretch{}, true, err
		}
		return Stretch(k), true, nil
	}
	return Stretch{}, false, nil
}

// Next returns the next record with its time: that of the entry that appended it, whether it was kept since or not. It
// returns false after the last one. The slices of the record alias the payload. An error is final: it comes again at
// each further call.
func (s *Stretch) Next() (KeptRecord, bool, error) { return s.records.next() }

// Validate checks the records that Next has not returned yet, and leaves Next where it is.
func (s *Stretch) Validate() error {
	_, _, err := s.records.walk()
	return err
}
