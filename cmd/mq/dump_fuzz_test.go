package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// FuzzDump: an entry of any kind with any payload is described: as JSON, and in a line that does nothing to a terminal.
func FuzzDump(f *testing.F) {
	name := []byte("t\u00e9\x1b[31m")
	for kind, p := range map[entry.Kind][]byte{
		fact.KindAppended:        fact.AppendAppended(nil, []byte("t"), 3, 9, []byte("r\x00\x1b]0;x\a"), fact.Digest{1}, []fact.Record{{Key: []byte("k"), Value: []byte("v")}, {}}),
		fact.KindKept:            fact.AppendKept(nil, []byte("t"), 3, 9, []fact.KeptRecord{{Record: fact.Record{Value: []byte("v")}, TimeMS: 5}}),
		fact.KindGroupMoved:      fact.AppendGroupMoved(nil, []byte("t"), []byte("g"), 4),
		fact.KindTopicRetained:   fact.AppendTopicRetained(nil, []byte("t"), 4, 8),
		fact.KindTopicConfigured: fact.AppendTopicConfigured(nil, []byte("t"), fact.Retention{MS: 5, Bytes: fact.LimitNone}),
		fact.KindTopicDeleted:    fact.AppendTopicDeleted(nil, name),
		fact.KindGroupDeleted:    fact.AppendGroupDeleted(nil, []byte("t"), name),
		fact.KindRestored:        fact.AppendRestored(nil, fact.RestoreStep),
		fact.KindSettings:        fact.AppendSettings(nil, 1000),
		fact.KindMarker:          nil, fact.KindChecked: nil, 0: []byte("x"), 255: nil,
	} {
		f.Add(uint8(kind), p)
		f.Add(uint8(kind), append(p[:len(p):len(p)], 0))
		f.Add(uint8(kind), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		e := &entry.Entry{Index: 7, Term: 1, TimeMS: 1_700_000_000_000, Kind: entry.Kind(kind), Payload: payload}
		for _, records := range []bool{false, true} {
			out := describe(e, entry.Position{Segment: 1, Offset: 512, Length: 64}, records)
			text, err := json.Marshal(out)
			if err != nil || !json.Valid(text) {
				t.Fatalf("kind %d, %x: %v", kind, payload, err)
			}
			if line := out.text(); strings.ContainsFunc(line, unicode.IsControl) {
				t.Errorf("kind %d, %x: the line is %q", kind, payload, line)
			}
			if records && out.Error == "" && len(out.Records) != out.Count {
				t.Errorf("kind %d, %x: %d records of %d", kind, payload, len(out.Records), out.Count)
			}
		}
	})
}
