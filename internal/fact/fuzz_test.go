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
		if again := AppendAppended(nil, a.Topic, a.Base, a.RequestID, a.Digest, records); !bytes.Equal(again, p) {
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
			if again := AppendTopicRetained(nil, r.Topic, r.Start); !bytes.Equal(again, p) {
				t.Fatalf("topic retained encodes to\n%x, was\n%x", again, p)
			}
		}
		if s, err := DecodeSettings(p); err == nil {
			if again := AppendSettings(nil, s); !bytes.Equal(again, p) {
				t.Fatalf("settings encode to\n%x, was\n%x", again, p)
			}
		}
		if err := DecodeMarker(p); (err == nil) != (len(p) == 0) {
			t.Fatalf("marker of %d bytes: %v", len(p), err)
		}
	})
}
