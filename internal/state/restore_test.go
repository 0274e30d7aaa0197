package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// smallState has two topics, two groups and three request ids, one of them used twice.
func smallState(tb testing.TB) *State {
	tb.Helper()
	s := New()
	for _, e := range []entry.Entry{
		{TimeMS: 1000, Kind: fact.KindSettings, Payload: fact.AppendSettings(nil, 500)},
		{TimeMS: 1000, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("orders"), 0, []byte("r1"), fact.Digest{1}, make([]fact.Record, 2))},
		{TimeMS: 1001, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("users"), 0, []byte("r1"), fact.Digest{2}, make([]fact.Record, 1))},
		{TimeMS: 1200, Kind: fact.KindGroupMoved, Payload: fact.AppendGroupMoved(nil, []byte("orders"), []byte("g"), 1)},
		{TimeMS: 1200, Kind: fact.KindGroupMoved, Payload: fact.AppendGroupMoved(nil, []byte("users"), []byte("g"), 0)},
		{TimeMS: 1300, Kind: fact.KindTopicRetained, Payload: fact.AppendTopicRetained(nil, []byte("orders"), 2)},
		{TimeMS: 1400, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("orders"), 2, []byte("r2"), fact.Digest{3}, make([]fact.Record, 1))},
	} {
		e.Index, e.Term = s.Applied()+1, 3
		if _, err := s.Apply(&e); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

func encode(tb testing.TB, s *State) []byte {
	tb.Helper()
	var buf bytes.Buffer
	if _, err := s.Freeze().WriteTo(&buf); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// Offsets in the encoding of smallState.
const (
	atTopics = headerSize       // 6 orders 2 3, 5 users 0 1
	atGroups = atTopics + 9 + 8 // 0 1 g 1, 1 1 g 0
	atIDs    = atGroups + 4 + 4 // three
	atEnd    = atIDs + 3*idSize //
	stampAt  = idSize - 8       // in an id
	baseAt   = idSize - 16      // in an id
)

func TestRestoreRefuses(t *testing.T) {
	good := encode(t, smallState(t))
	if len(good) != atEnd {
		t.Fatalf("%d bytes, want %d:\n%s", len(good), atEnd, dump(good))
	}
	if _, err := Restore(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	u64 := func(at int, v uint64) func([]byte) []byte {
		return func(p []byte) []byte { binary.LittleEndian.PutUint64(p[at:], v); return p }
	}
	replace := func(at int, old, with string) func([]byte) []byte {
		return func(p []byte) []byte {
			if !bytes.HasPrefix(p[at:], []byte(old)) {
				t.Fatalf("at %d stands %q, not %q", at, p[at:at+len(old)], old)
			}
			return append(append(append([]byte(nil), p[:at]...), with...), p[at+len(old):]...)
		}
	}
	stamp := func(ms, count uint64) uint64 { return ms<<8 | count }
	for _, tt := range []struct {
		name   string
		change func([]byte) []byte
		want   error
		says   string
	}{
		{"empty", func([]byte) []byte { return nil }, ErrCorrupt, "cut off"},
		{"magic", replace(0, "mqstate", "mqsnaps"), ErrCorrupt, "begin"},
		{"version", replace(8, "\x01", "\x02"), ErrVersion, "2"},
		{"reserved", replace(12, "\x00", "\x01"), ErrCorrupt, "reserved"},
		{"no entry", u64(16, 0), ErrCorrupt, "before the first entry"},
		{"too few entries", u64(16, 1), ErrCorrupt, "more of something"},
		{"no term", u64(24, 0), ErrCorrupt, "no term"},
		{"time too late", u64(32, TimeMaxMS+1), ErrCorrupt, "time"},
		{"time negative", u64(32, 1<<63), ErrCorrupt, "time"},
		{"time before request ids", u64(32, 1399), ErrCorrupt, "1400"},
		{"window too long", u64(40, fact.WindowMaxMS+1), ErrCorrupt, "window"},
		{"window shorter than it forgot", u64(40, 400), ErrCorrupt, "forgotten"},
		{"horizon after time", u64(48, 1401), ErrCorrupt, "horizon"},
		{"horizon too early", u64(48, 899), ErrCorrupt, "forgotten"},
		{"more topics", u64(56, 3), ErrCorrupt, ""},
		{"less topics", u64(56, 1), ErrCorrupt, ""},
		{"more groups", u64(64, 3), ErrCorrupt, ""},
		{"less groups", u64(64, 1), ErrCorrupt, ""},
		{"more ids", u64(72, 4), ErrCorrupt, "cut off"},
		{"less ids", u64(72, 2), ErrCorrupt, "follow"},
		{"topic without name", replace(atTopics, "\x06orders", "\x00"), ErrCorrupt, "name of 0"},
		{"topic twice", replace(atTopics+9, "\x05users", "\x06orders"), ErrCorrupt, "twice"},
		{"start after end", replace(atTopics+7, "\x02\x03", "\x04\x03"), ErrCorrupt, "holds 4 to 3"},
		{"topic that never had records", replace(atTopics+15, "\x00\x01", "\x00\x00"), ErrCorrupt, "holds 0 to 0"},
		{"end too high", replace(atTopics+8, "\x03", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ErrCorrupt, "holds"},
		{"number in a longer form", replace(atTopics+8, "\x03", "\x83\x00"), ErrCorrupt, "shortest"},
		{"number over 64 bits", replace(atTopics+8, "\x03", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), ErrCorrupt, "shortest"},
		{"number that does not end", replace(atTopics+8, "\x03", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ErrCorrupt, "shortest"},
		{"group of a topic that is not there", replace(atGroups, "\x00", "\x02"), ErrCorrupt, "topic 2"},
		{"group without name", replace(atGroups, "\x00\x01g", "\x00\x00"), ErrCorrupt, "name of 0"},
		{"group twice", replace(atGroups+4, "\x01\x01g\x00", "\x00\x01g\x00"), ErrCorrupt, "twice"},
		{"group past the end", replace(atGroups+3, "\x01", "\x04"), ErrCorrupt, "goes on at 4"},
		{"id without records", u64(atIDs+stampAt, stamp(1000, 0)), ErrCorrupt, "0 records"},
		{"id with 33 records", u64(atIDs+stampAt, stamp(1000, 33)), ErrCorrupt, "33 records"},
		{"id with a base too high", u64(atIDs+baseAt, math.MaxUint64), ErrCorrupt, "records from"},
		{"ids not in order", u64(atIDs+stampAt, stamp(1002, 1)), ErrCorrupt, "comes after"},
		{"id used twice at once", func(p []byte) []byte {
			copy(p[atIDs+idSize:], p[atIDs:atIDs+16])
			return u64(atIDs+idSize+stampAt, stamp(1000, 1))(p)
		}, ErrCorrupt, "before it expired"},
		{"a byte follows", func(p []byte) []byte { return append(p, 0) }, ErrCorrupt, "follow"},
	} {
		s, err := Restore(bytes.NewReader(tt.change(bytes.Clone(good))))
		if s != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want %v that says %q", tt.name, err, tt.want, tt.says)
		}
	}
	for n := range good {
		if _, err := Restore(bytes.NewReader(good[:n])); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut off at %d: %v", n, err)
		}
	}
}

// Errors of the reader and the writer come through as they are.
func TestReaderAndWriterFail(t *testing.T) {
	good := encode(t, smallState(t))
	broken := errors.New("the disk is on fire")
	for n := range len(good) + 1 {
		_, err := Restore(io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
			t.Errorf("error after %d bytes: %v", n, err)
		}
	}
	big := bigState(t, 1000, 1000, 5000) // several writes
	for _, limit := range []int{0, 100, flushAt + 1000, 3 * flushAt} {
		n, err := big.Freeze().WriteTo(&failingWriter{left: limit, err: broken})
		if !errors.Is(err, broken) || n != int64(limit) {
			t.Errorf("error after %d bytes: WriteTo = %d, %v", limit, n, err)
		}
	}
}

type failingWriter struct {
	left int
	err  error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		n := w.left
		w.left = 0
		return n, w.err
	}
	w.left -= len(p)
	return len(p), nil
}

// Counts that promise more than there is cost no memory.
func TestRestoreBelievesNoCount(t *testing.T) {
	p := encode(t, New())
	p[16], p[24] = 1, 1
	for _, at := range []int{56, 64, 72} {
		binary.LittleEndian.PutUint64(p[at:], math.MaxUint64)
	}
	if spent := allocated(func() {
		if _, err := Restore(bytes.NewReader(p)); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	}); spent > 4*flushAt {
		t.Errorf("%d bytes were allocated", spent)
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Verify finds what went wrong in memory. Restore's test covers what can stand in a snapshot.
func TestVerifyFindsMistakes(t *testing.T) {
	for name, spoil := range map[string]func(*State){
		"topic lost":          func(s *State) { delete(s.topicIDs, "orders") },
		"topic swapped":       func(s *State) { s.topicIDs["orders"], s.topicIDs["users"] = 1, 0 },
		"topic too many":      func(s *State) { s.topicIDs["ghost"] = 0 },
		"group lost":          func(s *State) { delete(s.groupIDs, groupKey{0, "g"}) },
		"group swapped":       func(s *State) { s.groupIDs[groupKey{0, "g"}], s.groupIDs[groupKey{1, "g"}] = 1, 0 },
		"group too many":      func(s *State) { s.groupIDs[groupKey{1, "ghost"}] = 0 },
		"group of no topic":   func(s *State) { s.groups.edit(0).topic = 7 },
		"id lost":             func(s *State) { s.ids.index = idIndex{} },
		"id too many":         func(s *State) { s.ids.index.shards[7].insert(1, 1) },
		"start past the end":  func(s *State) { s.topics.edit(0).start = 99 },
		"end fell":            func(s *State) { *s.topics.edit(0) = topicRow{name: "orders"} },
		"time fell":           func(s *State) { s.timeMS = 1 },
		"forgets the future":  func(s *State) { s.horizonMS = s.timeMS + 1 },
		"forgot what it knew": func(s *State) { s.horizonMS = 0 },
	} {
		s := smallState(t)
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		spoil(s)
		if err := s.Verify(); err == nil {
			t.Errorf("%s: Verify found nothing", name)
		}
	}
}
