package state

import (
	"bytes"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// reload writes a state and reads it back.
func reload(tb testing.TB, s *State) *State {
	tb.Helper()
	again, err := Restore(bytes.NewReader(encode(tb, s)))
	if err != nil {
		tb.Fatal(err)
	}
	return again
}

// Whatever can be restored is a state that verifies and has this encoding and no other. Restoring needs
// memory in proportion to the input.
func FuzzRestore(f *testing.F) {
	f.Add(encode(f, New()))
	f.Add(encode(f, smallState(f)))
	f.Fuzz(func(t *testing.T, p []byte) {
		var s *State
		var err error
		spent := allocated(func() { s, err = Restore(bytes.NewReader(p)) })
		if limit := uint64(1<<20 + 64*len(p)); spent > limit {
			t.Fatalf("%d bytes of input took %d bytes of memory", len(p), spent)
		}
		if err != nil {
			return
		}
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		if again := encode(t, s); !bytes.Equal(again, p) {
			t.Fatalf("encodes to\n%swas\n%s", dump(again), dump(p))
		}
	})
}

// No entry makes Apply panic or leave a state that does not verify. The input is a list of entries: kind,
// step of the time, length of the payload, payload.
func FuzzApply(f *testing.F) {
	join := func(entries ...[]byte) []byte {
		var p []byte
		for i, e := range entries {
			p = append(p, e[0], byte(i), byte(len(e)-1))
			p = append(p, e[1:]...)
		}
		return p
	}
	kind := func(k entry.Kind) []byte { return []byte{byte(k)} }
	seed := join(
		fact.AppendAppended(kind(fact.KindAppended), []byte("t"), 0, 0, []byte("r"), fact.Digest{}, []fact.Record{{Value: []byte("abc")}, {}}),
		fact.AppendGroupMoved(kind(fact.KindGroupMoved), []byte("t"), []byte("g"), 1),
		fact.AppendTopicRetained(kind(fact.KindTopicRetained), []byte("t"), 1, 3),
		fact.AppendKept(kind(fact.KindKept), []byte("t"), 1, 3, make([]fact.KeptRecord, 1)),
		fact.AppendTopicConfigured(kind(fact.KindTopicConfigured), []byte("t"), fact.Retention{Bytes: 5}),
		fact.AppendRestored(kind(fact.KindRestored), fact.RestoreStep),
		fact.AppendAppended(kind(fact.KindAppended), []byte("t"), fact.RestoreStep, 3, nil, fact.Digest{}, []fact.Record{{Value: []byte("d")}}),
		fact.AppendGroupDeleted(kind(fact.KindGroupDeleted), []byte("t"), []byte("g")),
		fact.AppendGroupMoved(kind(fact.KindGroupMoved), []byte("t"), []byte("h"), 2),
		fact.AppendTopicDeleted(kind(fact.KindTopicDeleted), []byte("t")),
		fact.AppendAppended(kind(fact.KindAppended), []byte("t"), fact.RestoreStep+1, 4, nil, fact.Digest{}, make([]fact.Record, 1)),
		fact.AppendSettings(kind(fact.KindSettings), 100),
		kind(fact.KindMarker),
		kind(fact.KindChecked),
	)
	if _, refused := applyList(f, seed); refused != nil {
		f.Fatalf("the seed is wrong: %v", refused)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, p []byte) {
		s, _ := applyList(t, p)
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		if again := reload(t, s); again.Hash() != s.Hash() {
			t.Fatal("another state after encoding and restoring")
		}
	})
}

// applyList applies the entries that FuzzApply describes, and returns the last error.
func applyList(tb testing.TB, p []byte) (s *State, refused error) {
	tb.Helper()
	s = New()
	e := entry.Entry{Term: 1}
	for len(p) >= 3 {
		n := min(int(p[2]), len(p)-3)
		e.Index, e.Kind, e.Payload = s.Applied()+1, entry.Kind(p[0]), p[3:3+n]
		e.TimeMS = s.TimeMS() + int64(p[1])
		p = p[3+n:]
		before := s.Hash()
		if _, err := s.Apply(&e); err != nil {
			if refused = err; s.Hash() != before {
				tb.Fatalf("the state changed by an entry that it refused: %v", err)
			}
		}
	}
	return s, refused
}
