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

// smallState has three topics, one with settings and a gap and one that is deleted, two groups and three request ids.
func smallState(tb testing.TB) *State {
	tb.Helper()
	s := New()
	value := func(n int) []fact.Record { return []fact.Record{{Value: make([]byte, n)}} }
	two := []fact.Record{{Value: make([]byte, 5)}, {Key: make([]byte, 4)}}
	for _, e := range []entry.Entry{
		{TimeMS: 1000, Kind: fact.KindSettings, Payload: fact.AppendSettings(nil, 500)},
		{TimeMS: 1000, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("orders"), 0, 0, []byte("r1"), fact.Digest{1}, two)},
		{TimeMS: 1001, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("users"), 0, 0, []byte("r1"), fact.Digest{2}, value(1))},
		{TimeMS: 1001, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("gone"), 0, 0, nil, fact.Digest{}, value(7))},
		{TimeMS: 1200, Kind: fact.KindGroupMoved, Payload: fact.AppendGroupMoved(nil, []byte("orders"), []byte("g"), 1)},
		{TimeMS: 1201, Kind: fact.KindGroupMoved, Payload: fact.AppendGroupMoved(nil, []byte("users"), []byte("g"), 0)},
		{TimeMS: 1201, Kind: fact.KindTopicDeleted, Payload: fact.AppendTopicDeleted(nil, []byte("gone"))},
		{TimeMS: 1300, Kind: fact.KindTopicRetained, Payload: fact.AppendTopicRetained(nil, []byte("orders"), 1, 5)},
		{TimeMS: 1300, Kind: fact.KindTopicConfigured, Payload: fact.AppendTopicConfigured(nil, []byte("orders"), fact.Retention{MS: 99, Bytes: fact.LimitNone})},
		{TimeMS: 1300, Kind: fact.KindRestored, Payload: fact.AppendRestored(nil, fact.RestoreStep)},
		{TimeMS: 1400, Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("orders"), fact.RestoreStep, 9, []byte("r2"), fact.Digest{3}, value(3))},
		{TimeMS: 1400, Kind: fact.KindTopicRetained, Payload: fact.AppendTopicRetained(nil, []byte("users"), fact.RestoreStep, 1)},
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

// floor is the number RestoreStep in the encoding, and high the number 2^63.
const (
	floor = "\x80\xa0\x94\xa5\x8d\x1d"
	high  = "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
)

// What stands in the encoding of smallState. Flags and what follows from them are a topic's last bytes.
const (
	ordersTopic = "\x06orders" + "\x01\x81\xa0\x94\xa5\x8d\x1d" + "\x05\x0c" + "\x06" + "\x64\x01\x00" + "\x01\x02" + floor
	usersTopic  = "\x05users" + floor + floor + "\x01\x01" + "\x00"
	goneTopic   = "\x04gone" + floor + floor + "\x07\x07" + "\x01"
	ordersGroup = "\x00\x01g\x01\xb0\x09"
	usersGroup  = "\x01\x01g\x00\xb1\x09"
	topicsBytes = ordersTopic + usersTopic + goneTopic
	groupsBytes = ordersGroup + usersGroup

	atTopics = headerSize
	atGroups = atTopics + len(topicsBytes)
	atIDs    = atGroups + len(groupsBytes) // three
	atEnd    = atIDs + 3*idSize
	stampAt  = idSize - 8  // in an id
	baseAt   = idSize - 16 // in an id
)

func TestRestoreRefuses(t *testing.T) {
	good := encode(t, smallState(t))
	if string(good[atTopics:min(atIDs, len(good))]) != topicsBytes+groupsBytes || len(good) != atEnd {
		t.Fatalf("%d bytes, want %d:\n%s", len(good), atEnd, dump(good))
	}
	if _, err := Restore(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	u64 := func(at int, v uint64) func([]byte) []byte {
		return func(p []byte) []byte { binary.LittleEndian.PutUint64(p[at:], v); return p }
	}
	replace := func(old, with string) func([]byte) []byte {
		return func(p []byte) []byte {
			if bytes.Count(p, []byte(old)) != 1 {
				t.Fatalf("%q is not there once", old)
			}
			return bytes.Replace(p, []byte(old), []byte(with), 1)
		}
	}
	// in replaces in a part that stands there once.
	in := func(part, old, with string) func([]byte) []byte {
		if !strings.Contains(part, old) {
			t.Fatalf("%q is not in %q", old, part)
		}
		return replace(part, strings.Replace(part, old, with, 1))
	}
	stamp := func(ms, count uint64) uint64 { return ms<<8 | count }
	for _, tt := range []struct {
		name   string
		change func([]byte) []byte
		want   error
		says   string
	}{
		{"empty", func([]byte) []byte { return nil }, ErrCorrupt, "cut off"},
		{"magic", replace("mqstate", "mqsnaps"), ErrCorrupt, "begin"},
		{"version 1", func(p []byte) []byte { p[8] = 1; return p }, ErrVersion, "1"},
		{"version 3", func(p []byte) []byte { p[8] = 3; return p }, ErrVersion, "3"},
		{"reserved", func(p []byte) []byte { p[12] = 1; return p }, ErrCorrupt, "reserved"},
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
		{"floor between", u64(56, fact.RestoreStep-1), ErrCorrupt, "topics begin at"},
		{"floor too high", u64(56, 1<<63), ErrCorrupt, "topics begin at"},
		{"floor above the ends", u64(56, 2*fact.RestoreStep), ErrCorrupt, "holds"},
		{"floor lost", u64(56, 0), ErrCorrupt, "gap"},
		{"more topics", u64(64, 4), ErrCorrupt, ""},
		{"less topics", u64(64, 2), ErrCorrupt, ""},
		{"more groups", u64(72, 3), ErrCorrupt, ""},
		{"less groups", u64(72, 1), ErrCorrupt, ""},
		{"more ids", u64(80, 4), ErrCorrupt, "cut off"},
		{"less ids", u64(80, 2), ErrCorrupt, "follow"},
		{"topic without name", replace("\x06orders", "\x00"), ErrCorrupt, "name of 0"},
		{"topic twice", replace("\x05users", "\x06orders"), ErrCorrupt, "twice"},
		{"start after end", in(usersTopic, floor+floor, "\x81"+floor[1:]+floor), ErrCorrupt, "holds 1000000000001 to 1000000000000"},
		{"topic that never had records", in(goneTopic, floor+floor, "\x00\x00"), ErrCorrupt, "holds 0 to 0"},
		{"end too high", in(usersTopic, floor+floor, floor+high), ErrCorrupt, "holds"},
		{"end below the floor", in(usersTopic, floor+floor, "\x05\x05"), ErrCorrupt, "topics begin at"},
		{"number in a longer form", in(usersTopic, "\x01\x01", "\x01\x81\x00"), ErrCorrupt, "shortest"},
		{"number over 64 bits", in(usersTopic, "\x01\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), ErrCorrupt, "shortest"},
		{"number that does not end", in(usersTopic, "\x01\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ErrCorrupt, "shortest"},
		{"bytes of no records", in(usersTopic, "\x01\x01", "\x01\x02"), ErrCorrupt, "holds 0 records, after 1 to 2 bytes"},
		{"bytes fell", in(ordersTopic, "\x05\x0c", "\x0d\x0c"), ErrCorrupt, "after 13 to 12 bytes"},
		{"too many bytes", in(ordersTopic, "\x05\x0c", "\x05"+high), ErrCorrupt, "bytes"},
		{"unknown flag", in(usersTopic, "\x01\x01\x00", "\x01\x01\x08"), ErrCorrupt, "flags"},
		{"settings that are none", in(ordersTopic, "\x64\x01\x00", "\x00\x00\x00"), ErrCorrupt, "settings"},
		{"limit too high", in(ordersTopic, "\x64\x01\x00", "\x64\x01\x81"+high[1:]), ErrCorrupt, "limit"},
		{"gaps that are none", in(ordersTopic, "\x01\x02"+floor, "\x00"), ErrCorrupt, "gaps"},
		{"more gaps", in(ordersTopic, "\x01\x02"+floor, "\xff\xff\xff\xff\x7f\x02"+floor), ErrCorrupt, ""},
		{"gap lost", in(ordersTopic, "\x06\x64\x01\x00\x01\x02"+floor, "\x02\x64\x01\x00"), ErrCorrupt, "no gap"},
		{"gap before the start", in(ordersTopic, "\x01\x02"+floor, "\x01\x00"+floor), ErrCorrupt, "gap from 0"},
		{"gap of nothing", in(ordersTopic, "\x01\x02"+floor, "\x01"+floor+floor), ErrCorrupt, "gap from"},
		{"gap to no floor", in(ordersTopic, "\x01\x02"+floor, "\x01\x02\x03"), ErrCorrupt, "gap from 2 to 3"},
		{"gap past the end", in(ordersTopic, "\x01\x81\xa0\x94\xa5\x8d\x1d", "\x01"+floor), nil, ""},
		{"gaps that overlap", in(ordersTopic, "\x01\x02"+floor, "\x02\x02"+floor+"\x03"+floor), ErrCorrupt, "gap from 3"},
		{"deleted with records", in(ordersTopic, "\x06\x64", "\x07\x64"), ErrCorrupt, "something is left"},
		{"deleted with settings", in(goneTopic, "\x07\x07\x01", "\x07\x07\x03\x02\x00\x00"), ErrCorrupt, "something is left"},
		{"deleted with a group", in(usersTopic, "\x01\x01\x00", "\x01\x01\x01"), ErrCorrupt, "something is left"},
		{"group of a topic that is not there", in(groupsBytes, "\x00\x01g", "\x03\x01g"), ErrCorrupt, "topic 3"},
		{"group without name", in(groupsBytes, "\x00\x01g", "\x00\x00"), ErrCorrupt, "name of 0"},
		{"group twice", in(groupsBytes, "\x01\x01g", "\x00\x01g"), ErrCorrupt, "twice"},
		{"group past the end", in(groupsBytes, "g\x00", "g\x81"+floor[1:]), ErrCorrupt, "goes on at 1000000000001"},
		{"group in a gap", in(groupsBytes, "g\x01", "g\x03"), ErrCorrupt, "goes on at 3"},
		{"group where a gap begins", in(groupsBytes, "g\x01", "g\x02"), nil, ""},
		{"group of the future", in(groupsBytes, "\xb0\x09", "\xf9\x0a"), ErrCorrupt, "moved at 1401 ms"},
		{"group of the past", in(groupsBytes, "\xb0\x09", high), ErrCorrupt, "moved at"},
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
		if tt.want == nil {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
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
	for _, at := range []int{64, 72, 80} {
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
		"live topics":         func(s *State) { s.liveTopics++ },
		"live bytes":          func(s *State) { s.liveBytes-- },
		"live records":        func(s *State) { s.liveRecords++ },
		"count of groups":     func(s *State) { s.topics.edit(0).groups++ },
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
