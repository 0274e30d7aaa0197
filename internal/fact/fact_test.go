package fact

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden holds one fact of each form. Their bytes are in testdata/golden.txt and may never change.
var golden = []struct {
	name string
	got  []byte
}{
	{"appended, smallest", AppendAppended(nil, []byte("t"), 0, 0, nil, Digest{}, []Record{{}})},
	{"appended, one record", AppendAppended(nil, []byte("orders"), 300, 1000, nil, Digest{}, []Record{{Key: []byte("k1"), Value: []byte("v1")}})},
	{"appended, request id, two records", func() []byte {
		records := []Record{{Key: []byte("a"), Value: []byte("one")}, {Value: bytes.Repeat([]byte("x"), 130)}}
		return AppendAppended(nil, []byte("orders"), 1<<40, 1<<47, []byte("req-7"), DigestOf(records), records)
	}()},
	{"group moved", AppendGroupMoved(nil, []byte("orders"), []byte("billing"), 301)},
	{"topic retained", AppendTopicRetained(nil, []byte("orders"), 128, 4096)},
	{"settings", AppendSettings(nil, 3_600_000)},
	{"settings, no window", AppendSettings(nil, 0)},
	{"kept, smallest", AppendKept(nil, []byte("t"), 0, 0, []KeptRecord{{}})},
	{"kept, three records", AppendKept(nil, []byte("orders"), 300, 1000, []KeptRecord{
		{TimeMS: 1_700_000_000_000, Record: Record{Key: []byte("k1"), Value: []byte("v1")}},
		{TimeMS: 1_700_000_000_000, Record: Record{Value: []byte("v2")}},
		{TimeMS: 1_700_000_000_200, Record: Record{Key: []byte("k3")}},
	})},
	{"topic configured", AppendTopicConfigured(nil, []byte("orders"), Retention{MS: 604_800_000, Bytes: LimitNone})},
	{"topic configured, all defaults", AppendTopicConfigured(nil, []byte("orders"), Retention{})},
	{"topic configured, least and most", AppendTopicConfigured(nil, []byte("orders"), Retention{MS: 1, Bytes: OffsetMax, Records: 126})},
	{"topic deleted", AppendTopicDeleted(nil, []byte("orders"))},
	{"group deleted", AppendGroupDeleted(nil, []byte("orders"), []byte("billing"))},
	{"restored", AppendRestored(nil, RestoreStep)},
	{"restored, often", AppendRestored(nil, 1000*RestoreStep)},
}

func TestGolden(t *testing.T) {
	var b strings.Builder
	for _, g := range golden {
		fmt.Fprintf(&b, "# %s\n%s", g.name, hex.Dump(g.got))
	}
	file := filepath.Join("testdata", "golden.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the bytes of a fact changed:\n%s", b.String())
	}
}

// Digests are in every log that has request ids: these may never change either. Another implementation of
// docs/format/facts.md computed them.
func TestDigestOf(t *testing.T) {
	for _, tt := range []struct {
		records []Record
		want    string
	}{
		{[]Record{{}}, "ca888f40c3caca805b37a5434c75de55"},
		{[]Record{{Key: []byte("a"), Value: []byte("bc")}}, "a80a904d09e7534ef57207b40ca8c11c"},
		{[]Record{{Key: []byte("k")}, {Value: bytes.Repeat([]byte("x"), 300)}}, "196d3052529368e9c351e13883f13bfa"},
	} {
		if got := DigestOf(tt.records); hex.EncodeToString(got[:]) != tt.want {
			t.Errorf("DigestOf(%.40q) = %x, want %s", tt.records, got, tt.want)
		}
	}
}

func TestDigestTellsRecordsApart(t *testing.T) {
	b := func(s string) []byte { return []byte(s) }
	lists := [][]Record{
		{{}},
		{{}, {}},
		{{Value: b("ab")}},
		{{Key: b("ab")}},
		{{Key: b("a"), Value: b("b")}},
		{{Key: b("a")}, {Value: b("b")}},
		{{Value: b("a")}, {Value: b("b")}},
		{{Value: b("b")}, {Value: b("a")}},
		{{Value: b("a\x00\x00\x00\x00\x01\x00\x00\x00b")}},
	}
	seen := map[Digest]int{}
	for i, records := range lists {
		d := DigestOf(records)
		if j, ok := seen[d]; ok {
			t.Errorf("lists %d and %d have the same digest", i, j)
		}
		seen[d] = i
	}
	if allocs := testing.AllocsPerRun(100, func() { DigestOf(lists[4]) }); allocs > 0 {
		t.Errorf("DigestOf allocates %v times", allocs)
	}
}

func genRecords(t *rapid.T) []Record {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Record {
		return Record{
			Key:   rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "key"),
			Value: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
		}
	}), 1, BatchMax).Draw(t, "records")
}

// genKept gives records times that do not fall.
func genKept(t *rapid.T, records []Record) []KeptRecord {
	kept := make([]KeptRecord, len(records))
	timeMS := rapid.SampledFrom([]int64{0, 1, 1_700_000_000_000, TimeMaxMS - 100*BatchMax}).Draw(t, "time")
	for i := range records {
		timeMS += rapid.SampledFrom([]int64{0, 0, 1, 100}).Draw(t, "step")
		kept[i] = KeptRecord{TimeMS: timeMS, Record: records[i]}
	}
	return kept
}

func genName(t *rapid.T, label string) []byte {
	return rapid.SliceOfN(rapid.Byte(), 1, NameMax).Draw(t, label)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic, group := genName(t, "topic"), genName(t, "group")
		requestID := rapid.SliceOfN(rapid.Byte(), 0, NameMax).Draw(t, "request id")
		base := Offset(rapid.Uint64Range(0, OffsetMax-BatchMax).Draw(t, "base"))
		records := genRecords(t)
		var digest Digest
		if len(requestID) > 0 {
			digest = DigestOf(records)
		}

		cum := rapid.Uint64Range(0, CumMax-BatchMax*MessageMax).Draw(t, "cum")
		var size uint64
		for _, r := range records {
			size += uint64(len(r.Key) + len(r.Value))
		}

		appended := AppendAppended(nil, topic, base, cum, requestID, digest, records)
		a, err := DecodeAppended(appended)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Topic, topic) || !bytes.Equal(a.RequestID, requestID) || a.Digest != digest || a.Base != base || a.Cum != cum || a.Count != len(records) {
			t.Fatalf("got %+v", a)
		}
		if err := a.Validate(); err != nil {
			t.Fatal(err)
		}
		if got, err := a.Size(); err != nil || got != size {
			t.Fatalf("%d bytes, %v; want %d", got, err, size)
		}
		for i := range records {
			r, ok, err := a.Next()
			if err != nil || !ok || !bytes.Equal(r.Key, records[i].Key) || !bytes.Equal(r.Value, records[i].Value) {
				t.Fatalf("record %d: %v, %v, %v", i, r, ok, err)
			}
		}
		if _, ok, err := a.Next(); ok || err != nil {
			t.Fatalf("after the last record: %v, %v", ok, err)
		}

		kept := genKept(t, records)
		k, err := DecodeKept(AppendKept(nil, topic, base, cum, kept))
		if err != nil || !bytes.Equal(k.Topic, topic) || k.Base != base || k.Cum != cum || k.Count != len(records) {
			t.Fatalf("got %+v, %v", k, err)
		}
		if lastMS, err := k.LastMS(); err != nil || lastMS != kept[len(kept)-1].TimeMS {
			t.Fatalf("the last record has the time %d, %v", lastMS, err)
		}
		equalKept(t, &k, kept)

		// Both read the same way.
		for i := range kept {
			kept[i].TimeMS = 77
		}
		for kind, payload := range map[entry.Kind][]byte{KindAppended: appended, KindKept: AppendKept(nil, topic, base, cum, kept)} {
			s, ok, err := DecodeStretch(kind, 77, payload)
			if !ok || err != nil || !bytes.Equal(s.Topic, topic) || s.Base != base || s.Cum != cum || s.Count != len(records) || s.Validate() != nil {
				t.Fatalf("got %+v, %v, %v", s, ok, err)
			}
			equalKept(t, &s, kept)
		}

		next := Offset(rapid.Uint64Range(0, OffsetMax).Draw(t, "next"))
		if m, err := DecodeGroupMoved(AppendGroupMoved(nil, topic, group, next)); err != nil || !bytes.Equal(m.Topic, topic) || !bytes.Equal(m.Group, group) || m.Next != next {
			t.Fatalf("got %+v, %v", m, err)
		}
		if r, err := DecodeTopicRetained(AppendTopicRetained(nil, topic, next, cum)); err != nil || !bytes.Equal(r.Topic, topic) || r.Start != next || r.Cum != cum {
			t.Fatalf("got %+v, %v", r, err)
		}
		limit := rapid.OneOf(rapid.SampledFrom([]int64{-1, 0, 1, 2, OffsetMax}), rapid.Int64Range(1, OffsetMax))
		retention := Retention{MS: Limit(limit.Draw(t, "ms")), Bytes: Limit(limit.Draw(t, "bytes")), Records: Limit(limit.Draw(t, "records"))}
		if c, err := DecodeTopicConfigured(AppendTopicConfigured(nil, topic, retention)); err != nil || !bytes.Equal(c.Topic, topic) || c.Retention != retention {
			t.Fatalf("got %+v, %v", c, err)
		}
		if d, err := DecodeTopicDeleted(AppendTopicDeleted(nil, topic)); err != nil || !bytes.Equal(d.Topic, topic) {
			t.Fatalf("got %+v, %v", d, err)
		}
		if d, err := DecodeGroupDeleted(AppendGroupDeleted(nil, topic, group)); err != nil || !bytes.Equal(d.Topic, topic) || !bytes.Equal(d.Group, group) {
			t.Fatalf("got %+v, %v", d, err)
		}
		floor := RestoreStep * Offset(rapid.Uint64Range(1, OffsetMax/RestoreStep).Draw(t, "steps"))
		if got, err := DecodeRestored(AppendRestored(nil, floor)); err != nil || got != floor {
			t.Fatalf("got %d, %v", got, err)
		}
		window := rapid.Int64Range(0, WindowMaxMS).Draw(t, "window")
		if got, err := DecodeSettings(AppendSettings(nil, window)); err != nil || got != window {
			t.Fatalf("got %d, %v", got, err)
		}
	})
}

// equalKept reads all records that next returns, and then once more.
func equalKept(t *rapid.T, iter interface {
	Next() (KeptRecord, bool, error)
}, want []KeptRecord) {
	for i, w := range want {
		r, ok, err := iter.Next()
		if err != nil || !ok || r.TimeMS != w.TimeMS || !bytes.Equal(r.Key, w.Key) || !bytes.Equal(r.Value, w.Value) {
			t.Fatalf("record %d: %v, %v, %v; want %v", i, r, ok, err, w)
		}
	}
	if _, ok, err := iter.Next(); ok || err != nil {
		t.Fatalf("after the last record: %v, %v", ok, err)
	}
}

// The largest legal fact: 32 records of 256 KiB each.
func TestLargest(t *testing.T) {
	name := bytes.Repeat([]byte("n"), NameMax)
	records := make([]Record, BatchMax)
	for i := range records {
		records[i] = Record{Key: make([]byte, MessageMax/2), Value: make([]byte, MessageMax/2)}
	}
	p := AppendAppended(nil, name, OffsetMax-BatchMax, CumMax-BatchMax*MessageMax, name, Digest{1}, records)
	a, err := DecodeAppended(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	if overhead := len(p) - BatchMax*MessageMax; overhead > 1<<10 {
		t.Errorf("the largest fact has %d bytes beside the records", overhead)
	}
	if size, err := a.Size(); err != nil || size != BatchMax*MessageMax || a.Cum+size != CumMax {
		t.Errorf("%d bytes after %d, %v", size, a.Cum, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	appended := func(p []byte) error {
		a, err := DecodeAppended(p)
		if err != nil {
			return err
		}
		return a.Validate()
	}
	moved := func(p []byte) error { _, err := DecodeGroupMoved(p); return err }
	retained := func(p []byte) error { _, err := DecodeTopicRetained(p); return err }
	kept := func(p []byte) error {
		k, err := DecodeKept(p)
		if err != nil {
			return err
		}
		return k.Validate()
	}
	configured := func(p []byte) error { _, err := DecodeTopicConfigured(p); return err }
	deleted := func(p []byte) error { _, err := DecodeTopicDeleted(p); return err }
	groupDeleted := func(p []byte) error { _, err := DecodeGroupDeleted(p); return err }
	restored := func(p []byte) error { _, err := DecodeRestored(p); return err }
	settings := func(p []byte) error { _, err := DecodeSettings(p); return err }

	for _, tt := range []struct {
		name   string
		decode func([]byte) error
		p      string
		want   string // in the message; empty: it decodes
	}{
		{"appended", appended, "\x01t\x00\x00\x00\x01\x00\x00", ""},
		{"appended, nothing", appended, "", "topic"},
		{"appended, no topic", appended, "\x00\x00\x00\x00\x01\x00\x00", "topic"},
		{"appended, topic cut", appended, "\x02t", "topic"},
		{"appended, request id cut", appended, "\x01t\x05abc", "request id"},
		{"appended, digest cut", appended, "\x01t\x01a123456789012345", "digest"},
		{"appended, no records", appended, "\x01t\x00\x00\x00\x00", "count"},
		{"appended, 33 records", appended, "\x01t\x00\x00\x00\x21" + strings.Repeat("\x00\x00", 33), "count"},
		{"appended, base too high", appended, "\x01t\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01\x00\x00", "base"},
		{"appended, base in a longer form", appended, "\x01t\x00\x80\x00\x00\x01\x00\x00", "base"},
		{"appended, no bytes before it", appended, "\x01t\x00\x00", "bytes before it"},
		{"appended, too many bytes before it", appended, "\x01t\x00\x00\x81\x80\x80\xfc\xff\xff\xff\xff\x7f\x01\x00\x00", "bytes before it"},
		{"appended, as many bytes before it as can be", appended, "\x01t\x00\x00\xff\xff\xff\xfb\xff\xff\xff\xff\x7f\x01\x00\x00", ""},
		{"appended, count in a longer form", appended, "\x01t\x00\x00\x00\x81\x00\x00\x00", "count"},
		{"appended, a record missing", appended, "\x01t\x00\x00\x00\x02\x00\x00", "length of a key"},
		{"appended, key cut", appended, "\x01t\x00\x00\x00\x01\x02\x00k", "key"},
		{"appended, value cut", appended, "\x01t\x00\x00\x00\x01\x01\x02kv", "value"},
		{"appended, key too long", appended, "\x01t\x00\x00\x00\x01\x81\x80\x10\x00", "length of a key"},
		{"appended, value too long", appended, "\x01t\x00\x00\x00\x01\x01\x80\x80\x10k", "length of a value"},
		{"appended, a byte follows", appended, "\x01t\x00\x00\x00\x01\x00\x00\x00", "follow"},
		{"kept", kept, "\x01t\x00\x00\x01\x05\x00\x00", ""},
		{"kept, nothing", kept, "", "topic"},
		{"kept, no topic", kept, "\x00\x00\x00\x01\x05\x00\x00", "topic"},
		{"kept, base too high", kept, "\x01t\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01\x05\x00\x00", "base"},
		{"kept, too many bytes before it", kept, "\x01t\x00\x81\x80\x80\xfc\xff\xff\xff\xff\x7f\x01\x05\x00\x00", "bytes before it"},
		{"kept, no records", kept, "\x01t\x00\x00\x00", "count"},
		{"kept, 33 records", kept, "\x01t\x00\x00\x21" + strings.Repeat("\x00\x00\x00", 33), "count"},
		{"kept, no time", kept, "\x01t\x00\x00\x01", "time"},
		{"kept, time too late", kept, "\x01t\x00\x00\x01\x80\x80\x80\x80\x80\x80\x40\x00\x00", "time"},
		{"kept, latest time", kept, "\x01t\x00\x00\x01\xff\xff\xff\xff\xff\xff\x3f\x00\x00", ""},
		{"kept, sum of times too late", kept, "\x01t\x00\x00\x02\xff\xff\xff\xff\xff\xff\x3f\x00\x00\x01\x00\x00", "time"},
		{"kept, time in a longer form", kept, "\x01t\x00\x00\x01\x85\x00\x00\x00", "time"},
		{"kept, a record missing", kept, "\x01t\x00\x00\x02\x05\x00\x00", "time"},
		{"kept, key cut", kept, "\x01t\x00\x00\x01\x05\x02\x00k", "key"},
		{"kept, a byte follows", kept, "\x01t\x00\x00\x01\x05\x00\x00\x00", "follow"},
		{"moved", moved, "\x01t\x01g\x00", ""},
		{"moved, no topic", moved, "\x00\x01g\x00", "topic"},
		{"moved, no group", moved, "\x01t\x00\x00", "group"},
		{"moved, no offset", moved, "\x01t\x01g", "next offset"},
		{"moved, offset too high", moved, "\x01t\x01g\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "next offset"},
		{"moved, offset over 64 bits", moved, "\x01t\x01g\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "next offset"},
		{"moved, a byte follows", moved, "\x01t\x01g\x00\x00", "follow"},
		{"retained", retained, "\x01t\x00\x00", ""},
		{"retained, no topic", retained, "\x00\x00\x00", "topic"},
		{"retained, no offset", retained, "\x01t", "start offset"},
		{"retained, offset cut", retained, "\x01t\x80", "start offset"},
		{"retained, no bytes before it", retained, "\x01t\x00", "bytes before it"},
		{"retained, too many bytes before it", retained, "\x01t\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "bytes before it"},
		{"retained, a byte follows", retained, "\x01t\x00\x00\x00", "follow"},
		{"configured", configured, "\x01t\x00\x01\x02", ""},
		{"configured, no topic", configured, "\x00\x00\x01\x02", "topic"},
		{"configured, no age", configured, "\x01t", "limit of age"},
		{"configured, no bytes", configured, "\x01t\x00", "limit of bytes"},
		{"configured, no records", configured, "\x01t\x00\x00", "limit of records"},
		{"configured, the highest limit", configured, "\x01t\x00\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", ""},
		{"configured, limit too high", configured, "\x01t\x00\x00\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01", "limit of records"},
		{"configured, limit in a longer form", configured, "\x01t\x80\x00\x00\x00", "limit of age"},
		{"configured, a byte follows", configured, "\x01t\x00\x00\x00\x00", "follow"},
		{"topic deleted", deleted, "\x01t", ""},
		{"topic deleted, no topic", deleted, "\x00", "topic"},
		{"topic deleted, a byte follows", deleted, "\x01t\x00", "follow"},
		{"group deleted", groupDeleted, "\x01t\x01g", ""},
		{"group deleted, no topic", groupDeleted, "\x00\x01g", "topic"},
		{"group deleted, no group", groupDeleted, "\x01t\x00", "group"},
		{"group deleted, a byte follows", groupDeleted, "\x01t\x01g\x00", "follow"},
		{"restored", restored, "\x01", ""},
		{"restored, nothing", restored, "", "floor"},
		{"restored, no step", restored, "\x00", "floor"},
		{"restored, the highest floor", restored, "\xcc\xf9\xb2\x04", ""},
		{"restored, floor too high", restored, "\xcd\xf9\xb2\x04", "floor"},
		{"restored, a byte follows", restored, "\x01\x00", "follow"},
		{"settings", settings, "\x00", ""},
		{"settings, nothing", settings, "", "window"},
		{"settings, window over 100 years", settings, "\xff\xff\xff\xff\xff\xff\x7f", "window"},
		{"settings, a byte follows", settings, "\x00\x00", "follow"},
		{"marker", DecodeMarker, "", ""},
		{"marker, a byte follows", DecodeMarker, "\x00", "follow"},
		{"checked", DecodeChecked, "", ""},
		{"checked, a byte follows", DecodeChecked, "\x00", "follow"},
	} {
		err := tt.decode([]byte(tt.p))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && err == nil:
			t.Errorf("%s: decoded", tt.name)
		case tt.want != "" && (!errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %q, want one that says %q", tt.name, err, tt.want)
		}
	}
}

// An error of Next is final, and Validate moves nothing.
func TestNextStaysAtError(t *testing.T) {
	a, err := DecodeAppended([]byte("\x01t\x00\x00\x00\x02\x00\x01v\x00\x09"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Validate(); err == nil {
		t.Error("Validate found nothing")
	}
	if r, ok, err := a.Next(); !ok || err != nil || string(r.Value) != "v" {
		t.Fatalf("first record: %v, %v, %v", r, ok, err)
	}
	for range 2 {
		if _, ok, err := a.Next(); ok || !errors.Is(err, ErrMalformed) {
			t.Errorf("second record: %v, %v", ok, err)
		}
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	p := golden[2].got
	buf := make([]byte, 0, 1<<10)
	records := []Record{{Value: []byte("v")}}
	kept := []KeptRecord{{TimeMS: 5, Record: records[0]}}
	topic := []byte("orders")
	if n := testing.AllocsPerRun(100, func() {
		a, err := DecodeAppended(p)
		if err != nil || a.Validate() != nil {
			t.Fatal(err)
		}
		buf = AppendAppended(buf[:0], topic, 7, 99, nil, Digest{}, records)
		buf = AppendKept(buf[:0], topic, 7, 99, kept)
		s, ok, err := DecodeStretch(KindKept, 0, buf)
		if err != nil || !ok || s.Validate() != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEncoderRefusesMistakes(t *testing.T) {
	long := make([]byte, NameMax+1)
	for name, encode := range map[string]func(){
		"no topic":         func() { AppendAppended(nil, nil, 0, 0, nil, Digest{}, make([]Record, 1)) },
		"no records":       func() { AppendAppended(nil, []byte("t"), 0, 0, nil, Digest{}, nil) },
		"33 records":       func() { AppendAppended(nil, []byte("t"), 0, 0, nil, Digest{}, make([]Record, BatchMax+1)) },
		"long request id":  func() { AppendAppended(nil, []byte("t"), 0, 0, long, Digest{}, make([]Record, 1)) },
		"long group":       func() { AppendGroupMoved(nil, []byte("t"), long, 0) },
		"empty group":      func() { AppendGroupMoved(nil, []byte("t"), nil, 0) },
		"no retained name": func() { AppendTopicRetained(nil, nil, 0, 0) },
		"negative window":  func() { AppendSettings(nil, -1) },
		"kept nothing":     func() { AppendKept(nil, []byte("t"), 0, 0, nil) },
		"kept 33 records":  func() { AppendKept(nil, []byte("t"), 0, 0, make([]KeptRecord, BatchMax+1)) },
		"kept time fell":   func() { AppendKept(nil, []byte("t"), 0, 0, []KeptRecord{{TimeMS: 2}, {TimeMS: 1}}) },
		"kept before 1970": func() { AppendKept(nil, []byte("t"), 0, 0, []KeptRecord{{TimeMS: -1}}) },
		"kept far future":  func() { AppendKept(nil, []byte("t"), 0, 0, []KeptRecord{{TimeMS: TimeMaxMS + 1}}) },
		"negative limit":   func() { AppendTopicConfigured(nil, []byte("t"), Retention{Bytes: -2}) },
		"deleted no topic": func() { AppendTopicDeleted(nil, nil) },
		"deleted no group": func() { AppendGroupDeleted(nil, []byte("t"), nil) },
		"restored to 0":    func() { AppendRestored(nil, 0) },
		"restored between": func() { AppendRestored(nil, RestoreStep+1) },
		"restored too far": func() { AppendRestored(nil, (OffsetMax/RestoreStep+1)*RestoreStep) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if s, ok := recover().(string); !ok || !strings.HasPrefix(s, "BUG: ") {
					t.Errorf("recovered %q", s)
				}
			}()
			encode()
		})
	}
}

// Only facts with records are stretches, and retired kinds are none.
func TestStretchOfOtherKinds(t *testing.T) {
	for kind := range entry.Kind(20) {
		s, ok, err := DecodeStretch(kind, 1, []byte("\x01t\x00"))
		if want := kind == KindAppended || kind == KindKept; ok != want || (err != nil) != want || s.Topic != nil {
			t.Errorf("kind %d: %v, %v", kind, ok, err)
		}
		if Retired(kind) != (kind == 2 || kind == 4) {
			t.Errorf("kind %d is retired", kind)
		}
	}
}
