package state

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// bigState has many topics, groups and request ids.
func bigState(tb testing.TB, topics, groups, ids int) *State {
	tb.Helper()
	s := New()
	e := entry.Entry{Term: 1, TimeMS: 1_700_000_000_000}
	apply := func(kind entry.Kind, payload []byte) {
		e.Index++
		e.Kind, e.Payload = kind, payload
		if _, err := s.Apply(&e); err != nil {
			tb.Fatal(err)
		}
	}
	records := []fact.Record{{Value: []byte("v")}}
	var buf []byte
	for i := range topics {
		buf = fact.AppendAppended(buf[:0], fmt.Appendf(nil, "topic-%d", i), 0, 0, nil, fact.Digest{}, records)
		apply(fact.KindAppended, buf)
	}
	for i := range groups {
		buf = fact.AppendGroupMoved(buf[:0], fmt.Appendf(nil, "topic-%d", i%topics), fmt.Appendf(nil, "group-%d", i), 1)
		apply(fact.KindGroupMoved, buf)
	}
	var rid [16]byte
	for i := range ids {
		binary.LittleEndian.PutUint64(rid[:], uint64(i))
		buf = fact.AppendAppended(buf[:0], []byte("topic-0"), fact.Offset(i+1), uint64(i+1), rid[:], fact.Digest{1}, records)
		apply(fact.KindAppended, buf)
	}
	return s
}

func BenchmarkApply(b *testing.B) {
	for _, requestIDs := range []bool{false, true} {
		b.Run(fmt.Sprintf("request_ids=%v", requestIDs), func(b *testing.B) {
			s := New()
			e := entry.Entry{Term: 1, TimeMS: 1, Kind: fact.KindAppended}
			records := []fact.Record{{Value: make([]byte, 100)}}
			var id []byte
			if requestIDs {
				id = make([]byte, 16)
			}
			b.ReportAllocs()
			for i := range b.N {
				if requestIDs {
					binary.LittleEndian.PutUint64(id, uint64(i))
					e.TimeMS = 1 + int64(i)*36 // 100,000 in the window
				}
				e.Index++
				e.Payload = fact.AppendAppended(e.Payload[:0], []byte("orders"), fact.Offset(i), uint64(i)*100, id, fact.Digest{}, records)
				if _, err := s.Apply(&e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMillion(b *testing.B) {
	s := bigState(b, 100_000, 100_000, 1_000_000)
	var buf bytes.Buffer
	if _, err := s.Freeze().WriteTo(&buf); err != nil {
		b.Fatal(err)
	}
	b.Run("freeze", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			s.Freeze()
		}
	})
	b.Run("write", func(b *testing.B) {
		f := s.Freeze()
		for range b.N {
			f.WriteTo(&bytes.Buffer{})
		}
	})
	b.Run("hash", func(b *testing.B) {
		for range b.N {
			s.Hash()
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := Restore(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		for range b.N {
			if err := s.Verify(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A restart restores this before anything is served: 5 million request ids, and as many topics and groups as a node has.
func BenchmarkRestoreFiveMillion(b *testing.B) {
	var buf bytes.Buffer
	if _, err := bigState(b, 100_000, 100_000, 5_000_000).Freeze().WriteTo(&buf); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Restore(bytes.NewReader(buf.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}
