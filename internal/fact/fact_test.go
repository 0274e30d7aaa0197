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

	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden holds one fact of each form. Their bytes are in testdata/golden.txt and may never change.
var golden = []struct {
	name string
	got  []byte
}{
	{"appended, smallest", AppendAppended(nil, []byte("t"), 0, nil, Digest{}, []Record{{}})},
	{"appended, one record", AppendAppended(nil, []byte("orders"), 300, nil, Digest{}, []Record{{Key: []byte("k1"), Value: []byte("v1")}})},
	{"appended, request id, two records", func() []byte {
		records := []Record{{Key: []byte("a"), Value: []byte("one")}, {Value: bytes.Repeat([]byte("x"), 130)}}
		return AppendAppended(nil, []byte("orders"), 1<<40, []byte("req-7"), DigestOf(records), records)
	}()},
	{"group moved", AppendGroupMoved(nil, []byte("orders"), []byte("billing"), 301)},
	{"topic retained", AppendTopicRetained(nil, []byte("orders"), 128)},
	{"settings", AppendSettings(nil, 3_600_000)},
	{"settings, no window", AppendSettings(nil, 0)},
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

		a, err := DecodeAppended(AppendAppended(nil, topic, base, requestID, digest, records))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Topic, topic) || !bytes.Equal(a.RequestID, requestID) || a.Digest != digest || a.Base != base || a.Count != len(records) {
			t.Fatalf("got %+v", a)
		}
		if err := a.Validate(); err != nil {
			t.Fatal(err)
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

		next := Offset(rapid.Uint64Range(0, OffsetMax).Draw(t, "next"))
		if m, err := DecodeGroupMoved(AppendGroupMoved(nil, topic, group, next)); err != nil || !bytes.Equal(m.Topic, topic) || !bytes.Equal(m.Group, group) || m.Next != next {
			t.Fatalf("got %+v, %v", m, err)
		}
		if r, err := DecodeTopicRetained(AppendTopicRetained(nil, topic, next)); err != nil || !bytes.Equal(r.Topic, topic) || r.Start != next {
			t.Fatalf("got %+v, %v", r, err)
		}
		window := rapid.Int64Range(0, WindowMaxMS).Draw(t, "window")
		if got, err := DecodeSettings(AppendSettings(nil, window)); err != nil || got != window {
			t.Fatalf("got %d, %v", got, err)
		}
	})
}

// The largest legal fact: 32 records of 256 KiB each.
func TestLargest(t *testing.T) {
	name := bytes.Repeat([]byte("n"), NameMax)
	records := make([]Record, BatchMax)
	for i := range records {
		records[i] = Record{Key: make([]byte, MessageMax/2), Value: make([]byte, MessageMax/2)}
	}
	p := AppendAppended(nil, name, OffsetMax-BatchMax, name, Digest{1}, records)
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
	settings := func(p []byte) error { _, err := DecodeSettings(p); return err }

	for _, tt := range []struct {
		name   string
		decode func([]byte) error
		p      string
		want   string // in the message; empty: it decodes
	}{
		{"appended", appended, "\x01t\x00\x00\x01\x00\x00", ""},
		{"appended, nothing", appended, "", "topic"},
		{"appended, no topic", appended, "\x00\x00\x00\x01\x00\x00", "topic"},
		{"appended, topic cut", appended, "\x02t", "topic"},
		{"appended, request id cut", appended, "\x01t\x05abc", "request id"},
		{"appended, digest cut", appended, "\x01t\x01a123456789012345", "digest"},
		{"appended, no records", appended, "\x01t\x00\x00\x00", "count"},
		{"appended, 33 records", appended, "\x01t\x00\x00\x21" + strings.Repeat("\x00\x00", 33), "count"},
		{"appended, base too high", appended, "\x01t\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01\x00\x00", "base"},
		{"appended, base in a longer form", appended, "\x01t\x00\x80\x00\x01\x00\x00", "base"},
		{"appended, count in a longer form", appended, "\x01t\x00\x00\x81\x00\x00\x00", "count"},
		{"appended, a record missing", appended, "\x01t\x00\x00\x02\x00\x00", "length of a key"},
		{"appended, key cut", appended, "\x01t\x00\x00\x01\x02\x00k", "key"},
		{"appended, value cut", appended, "\x01t\x00\x00\x01\x01\x02kv", "value"},
		{"appended, key too long", appended, "\x01t\x00\x00\x01\x81\x80\x10\x00", "length of a key"},
		{"appended, value too long", appended, "\x01t\x00\x00\x01\x01\x80\x80\x10k", "length of a value"},
		{"appended, a byte follows", appended, "\x01t\x00\x00\x01\x00\x00\x00", "follow"},
		{"moved", moved, "\x01t\x01g\x00", ""},
		{"moved, no topic", moved, "\x00\x01g\x00", "topic"},
		{"moved, no group", moved, "\x01t\x00\x00", "group"},
		{"moved, no offset", moved, "\x01t\x01g", "next offset"},
		{"moved, offset too high", moved, "\x01t\x01g\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "next offset"},
		{"moved, offset over 64 bits", moved, "\x01t\x01g\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "next offset"},
		{"moved, a byte follows", moved, "\x01t\x01g\x00\x00", "follow"},
		{"retained", retained, "\x01t\x00", ""},
		{"retained, no topic", retained, "\x00\x00", "topic"},
		{"retained, no offset", retained, "\x01t", "start offset"},
		{"retained, offset cut", retained, "\x01t\x80", "start offset"},
		{"retained, a byte follows", retained, "\x01t\x00\x00", "follow"},
		{"settings", settings, "\x00", ""},
		{"settings, nothing", settings, "", "window"},
		{"settings, window over 100 years", settings, "\xff\xff\xff\xff\xff\xff\x7f", "window"},
		{"settings, a byte follows", settings, "\x00\x00", "follow"},
		{"marker", DecodeMarker, "", ""},
		{"marker, a byte follows", DecodeMarker, "\x00", "follow"},
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
	a, err := DecodeAppended([]byte("\x01t\x00\x00\x02\x00\x01v\x00\x09"))
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
	topic := []byte("orders")
	if n := testing.AllocsPerRun(100, func() {
		a, err := DecodeAppended(p)
		if err != nil || a.Validate() != nil {
			t.Fatal(err)
		}
		buf = AppendAppended(buf[:0], topic, 7, nil, Digest{}, records)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEncoderRefusesMistakes(t *testing.T) {
	long := make([]byte, NameMax+1)
	for name, encode := range map[string]func(){
		"no topic":         func() { AppendAppended(nil, nil, 0, nil, Digest{}, make([]Record, 1)) },
		"no records":       func() { AppendAppended(nil, []byte("t"), 0, nil, Digest{}, nil) },
		"33 records":       func() { AppendAppended(nil, []byte("t"), 0, nil, Digest{}, make([]Record, BatchMax+1)) },
		"long request id":  func() { AppendAppended(nil, []byte("t"), 0, long, Digest{}, make([]Record, 1)) },
		"long group":       func() { AppendGroupMoved(nil, []byte("t"), long, 0) },
		"empty group":      func() { AppendGroupMoved(nil, []byte("t"), nil, 0) },
		"no retained name": func() { AppendTopicRetained(nil, nil, 0) },
		"negative window":  func() { AppendSettings(nil, -1) },
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
