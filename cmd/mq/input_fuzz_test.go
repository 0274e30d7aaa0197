package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/mq/api"
)

// FuzzSource reads any input as JSON lines. A line that is taken for a record is a JSON object with the same texts for encoding/json, each
// given once; one that is not taken is named by its number; and a line is never passed over without being counted.
func FuzzSource(f *testing.F) {
	for _, s := range []string{
		`{"topic":"t","key":"k","value":"v"}`, "\n\n" + `{"value":""}` + "\r\n" + `{"topic":"u","value":"\u00e9\ud83d\ude00"}`,
		`{"index":7,"term":1,"offset":3,"timestamp_ms":4,"topic":"t","key":"a2V5","value":"dmFsdWU=","request_id":"r"}`,
		`{"kind":"group_moved","index":7,"topic":"t","group":"g","next_offset":1}`, `{"topic":"t","topic":"t","value":""}`, `{"Topic":"t","value":""}`,
		`null`, `[]`, `{"topic":1,"value":""}`, `{"topic":"t","value":"\ud800"}`, `{"topic":"t"`, "{\"topic\":\"\xff\",\"value\":\"\"}", `{"topic":"t","value":"A"}`,
		`{"topic":"t","value":"","request_id":"r","index":1e3}`, `{"topic":"t","value":"","x":1}`, `{"topic":"t","value":""} {}`, strings.Repeat(`{"topic":`, 100),
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, isBase64 bool) {
		s := newSource(bytes.NewReader(text), &pubCmd{Topic: "given", JSONL: "-", Base64: isBase64})
		lines := bytes.Split(text, []byte("\n"))
		records := uint64(0)
		for {
			in, err := s.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400+6*len(lines[s.number-1]) {
					t.Errorf("%q: %q", text, err)
				}
				return
			}
			records++
			line := lines[s.number-1]
			var want map[string]json.RawMessage
			if err := json.Unmarshal(line, &want); err != nil || !utf8.Valid(line) {
				t.Fatalf("%q is taken: %v", line, err)
			}
			for name, got := range map[string]string{"topic": in.topic, "key": string(in.record.Key), "value": string(in.record.Value), "request_id": in.requestID} {
				raw, given := want[name]
				var text string
				if given && json.Unmarshal(raw, &text) != nil {
					t.Fatalf("%q is taken, and %s is %s", line, name, raw)
				}
				if isBase64 && (name == "key" || name == "value") {
					b, err := base64.StdEncoding.DecodeString(text)
					if err != nil {
						t.Fatalf("%q is taken, and %s is %s", line, name, raw)
					}
					text = string(b)
				}
				if name == "topic" && !given {
					text = "given"
				}
				if got != text || name == "value" && !given {
					t.Fatalf("%q: %s is %q", line, name, got)
				}
			}
		}
		skipped, blank := uint64(0), uint64(0)
		for _, n := range s.skipped {
			skipped += n
		}
		for _, line := range lines {
			if len(bytes.TrimSpace(line)) == 0 {
				blank++
			}
		}
		if all := uint64(len(lines)); records+skipped+blank != all {
			t.Errorf("%q: %d records, %d passed over, %d blank lines of %d", text, records, skipped, blank, all)
		}
	})
}

// FuzzFlagValues: times, spans and limits of flags are in their ranges, or refused; and what is written as the same is the same.
func FuzzFlagValues(f *testing.F) {
	for _, s := range []string{"90m", "7d", "2w", "-1h", "1700000000000", "2026-11-30T12:00:00Z", "none", "0", "-1", "15251w", "106751d", "9223372036854775807ns", "1.5h", "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59.999999999+14:00", "281474976710656", "9007199254740991", "1e3", "0x10", "1_000", "1µs", "−1h", "", "d", "w", "99999999999999999999d"} {
		f.Add(s)
	}
	now := time.UnixMilli(1_700_000_000_000)
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseSpan(text); err == nil && d <= 0 {
			t.Errorf("%q is a span of %v", text, d)
		}
		var i instant
		if err := i.parse(text); err == nil {
			if i.ago < 0 || i.ago > 0 && i.time(now).After(now) {
				t.Errorf("%q is %v, that is %v", text, i, i.time(now))
			}
		} else if i != (instant{}) {
			t.Errorf("%q is refused, and yet %v", text, i)
		}
		var l limitFlag
		if err := l.UnmarshalText([]byte(text)); err == nil && l != limitFlag(api.NoLimit) && (l < 1 || uint64(l) > api.OffsetMax) {
			t.Errorf("%q is the limit %d", text, l)
		}
		var a ageFlag
		if err := a.UnmarshalText([]byte(text)); err == nil && a != ageFlag(api.NoLimit) && (a < 1 || uint64(a) > api.OffsetMax) {
			t.Errorf("%q is the age %d", text, a)
		}
	})
}
