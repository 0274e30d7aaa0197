package fact

import (
	"bytes"
	"testing"

	"example.com/mq/internal/entry"
)

// FuzzDecodeStretch: what readers see of an entry with records is what its own decoder says, record for record, whichever kind it is;
// and of any other kind there is nothing to see. Nothing is allocated, whatever lengths the payload tells.
func FuzzDecodeStretch(f *testing.F) {
	for _, g := range golden {
		f.Add(uint8(KindAppended), int64(1_700_000_000_000), g.got)
		f.Add(uint8(KindKept), int64(0), g.got)
		f.Add(uint8(KindGroupMoved), int64(-1), g.got)
	}
	f.Fuzz(func(t *testing.T, kind uint8, timeMS int64, p []byte) {
		k := entry.Kind(kind)
		s, ok, err := DecodeStretch(k, timeMS, p)
		if ok != (k == KindAppended || k == KindKept) || !ok && err != nil {
			t.Fatalf("kind %d: %t, %v", k, ok, err)
		}
		if !ok || err != nil {
			return
		}
		if s.Count < 1 || s.Count > BatchMax || len(s.Topic) < 1 || len(s.Topic) > NameMax {
			t.Fatalf("%+v", s)
		}
		valid := s.Validate()
		appended, _ := DecodeAppended(p)
		n := 0
		for ; ; n++ {
			r, more, err := s.Next()
			if !more {
				if (err == nil) != (valid == nil) || err == nil && n != s.Count {
					t.Fatalf("%d of %d records, %v; Validate says %v", n, s.Count, err, valid)
				}
				break
			}
			if k == KindAppended {
				own, _, err := appended.Next()
				if err != nil || r.TimeMS != timeMS || !bytes.Equal(own.Key, r.Key) || !bytes.Equal(own.Value, r.Value) {
					t.Fatalf("record %d is %+v, and %+v, %v", n, r, own, err)
				}
			}
		}
		if spent := testing.AllocsPerRun(1, func() {
			s, _, _ := DecodeStretch(k, timeMS, p)
			s.Validate()
		}); spent > 0 && valid == nil {
			t.Errorf("%v allocations", spent)
		}
	})
}
