package fact

import (
	"bytes"
	"testing"
)

// Whatever decodes is the encoding of what was decoded: there is no second one. And decoding allocates
// nothing, so no length in the input can make it allocate.

func FuzzDecodeAppended(f *testing.F) {
	for _, g := range golden {
		f.Add(g.got)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		a, err := DecodeAppended(p)
		if err != nil {
			return
		}
		valid := a.Validate()
		var records []Record
		var nextErr error
		for iter := a; ; {
			r, ok, err := iter.Next()
			if nextErr = err; !ok {
				break
			}
			records = append(records, r)
		}
		if (valid == nil) != (nextErr == nil) {
			t.Fatalf("Validate says %v, Next says %v", valid, nextErr)
		}
		if nextErr != nil {
			return
		}
		if len(records) != a.Count {
			t.Fatalf("%d records, head says %d", len(records), a.Count)
		}
		if again := AppendAppended(nil, a.Topic, a.Base, a.Cum, a.RequestID, a.Digest, records); !bytes.Equal(again, p) {
			t.Fatalf("encodes to\n%x, was\n%x", again, p)
		}
	})
}

func FuzzDecodeKept(f *testing.F) {
	for _, g := range golden {
		f.Add(g.got)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		k, err := DecodeKept(p)
		s, ok, stretchErr := DecodeStretch(KindKept, 0, p)
		if !ok || (err == nil) != (stretchErr == nil) {
			t.Fatalf("DecodeKept says %v, DecodeStretch %v, %v", err, ok, stretchErr)
		}
		if err != nil {
			return
		}
		lastMS, valid := k.LastMS()
		var records []KeptRecord
		var nextErr error
		for {
			r, ok, err := s.Next()
			if nextErr = err; !ok {
				break
			}
			records = append(records, r)
		}
		if (valid == nil) != (nextErr == nil) || (k.Validate() == nil) != (nextErr == nil) {
			t.Fatalf("Validate says %v, Next says %v", valid, nextErr)
		}
		if nextErr != nil {
			return
		}
		if len(records) != k.Count || records[k.Count-1].TimeMS != lastMS {
			t.Fatalf("%d records, head says %d; the last has not the time %d", len(records), k.Count, lastMS)
		}
		if again := AppendKept(nil, k.Topic, k.Base, k.Cum, records); !bytes.Equal(again, p) {
			t.Fatalf("encodes to\n%x, was\n%x", again, p)
		}
	})
}

func FuzzDecodeSmallFacts(f *testing.F) {
	for _, g := range golden {
		f.Add(g.got)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if m, err := DecodeGroupMoved(p); err == nil {
			if again := AppendGroupMoved(nil, m.Topic, m.Group, m.Next); !bytes.Equal(again, p) {
				t.Fatalf("group moved encodes to\n%x, was\n%x", again, p)
			}
		}
		if r, err := DecodeTopicRetained(p); err == nil {
			if again := AppendTopicRetained(nil, r.Topic, r.Start, r.Cum); !bytes.Equal(again, p) {
				t.Fatalf("topic retained encodes to\n%x, was\n%x", again, p)
			}
		}
		if c, err := DecodeTopicConfigured(p); err == nil {
			if again := AppendTopicConfigured(nil, c.Topic, c.Retention); !bytes.Equal(again, p) {
				t.Fatalf("topic configured encodes to\n%x, was\n%x", again, p)
			}
		}
		if d, err := DecodeTopicDeleted(p); err == nil {
			if again := AppendTopicDeleted(nil, d.Topic); !bytes.Equal(again, p) {
				t.Fatalf("topic deleted encodes to\n%x, was\n%x", again, p)
			}
		}
		if d, err := DecodeGroupDeleted(p); err == nil {
			if again := AppendGroupDeleted(nil, d.Topic, d.Group); !bytes.Equal(again, p) {
				t.Fatalf("group deleted encodes to\n%x, was\n%x", again, p)
			}
		}
		if floor, err := DecodeRestored(p); err == nil {
			if again := AppendRestored(nil, floor); !bytes.Equal(again, p) {
				t.Fatalf("restored encodes to\n%x, was\n%x", again, p)
			}
		}
		if s, err := DecodeSettings(p); err == nil {
			if again := AppendSettings(nil, s); !bytes.Equal(again, p) {
				t.Fatalf("settings encode to\n%x, was\n%x", again, p)
			}
		}
		if err := DecodeChecked(p); (err == nil) != (len(p) == 0) {
			t.Fatal(err)
		}
		if err := DecodeMarker(p); (err == nil) != (len(p) == 0) {
			t.Fatalf("marker of %d bytes: %v", len(p), err)
		}
	})
}
