package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"example.com/mq/api"
)

// serverAnswer is an answer in the exact form in which the server writes it.
func serverAnswer(t testing.TB, records []api.Record, next, start, end uint64) []byte {
	t.Helper()
	if records == nil {
		records = []api.Record{}
	}
	for i := range records {
		if records[i].Key == nil {
			records[i].Key = []byte{}
		}
		if records[i].Value == nil {
			records[i].Value = []byte{}
		}
	}
	b, err := json.Marshal(api.FetchAnswer{Records: records, NextOffset: next, StartOffset: start, EndOffset: end})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestDecodeServerForm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var page Page // used again and again, as Decode allows
	// Sizes around the blocks in which base64 is decoded, and around its padding.
	for size := range 200 {
		records := make([]api.Record, size%5)
		for i := range records {
			records[i] = api.Record{
				Offset: uint64(size + i), TimestampMS: 1790000000000 + int64(i),
				Key: randomBytes(r, size/2), Value: randomBytes(r, size),
			}
		}
		answer := serverAnswer(t, records, uint64(size+len(records)), 3, 1<<53-1)
		before := bytes.Clone(answer)
		if !page.decodeFast(answer) {
			t.Fatalf("the server's form was not recognized: %s", answer)
		}
		if !bytes.Equal(answer, before) {
			t.Fatal("Decode changed the answer")
		}
		wantRecords(t, &page, records)
		if page.NextOffset != uint64(size+len(records)) || page.StartOffset != 3 || page.EndOffset != 1<<53-1 {
			t.Fatalf("bounds are %d %d %d", page.NextOffset, page.StartOffset, page.EndOffset)
		}
		next, start, end, ok := Bounds(answer)
		if !ok || next != page.NextOffset || start != 3 || end != 1<<53-1 {
			t.Fatalf("Bounds: %d %d %d %v", next, start, end, ok)
		}
	}
}

func wantRecords(t *testing.T, page *Page, want []api.Record) {
	t.Helper()
	if len(page.Records) != len(want) {
		t.Fatalf("got %d records, want %d", len(page.Records), len(want))
	}
	for i, r := range page.Records {
		w := want[i]
		if r.Offset != w.Offset || r.TimestampMS != w.TimestampMS || !bytes.Equal(r.Key, w.Key) || !bytes.Equal(r.Value, w.Value) {
			t.Fatalf("record %d: got %+v, want %+v", i, r, w)
		}
	}
}

// TestDecodeRecordsAreApart appends to one record and looks at its neighbours: the records of a page share
// memory, which must not show.
func TestDecodeRecordsAreApart(t *testing.T) {
	var page Page
	want := []api.Record{{Offset: 0, Key: []byte("k"), Value: []byte("one")}, {Offset: 1, Key: []byte("l"), Value: []byte("two")}}
	if err := page.Decode(serverAnswer(t, want, 2, 0, 2)); err != nil {
		t.Fatal(err)
	}
	_ = append(page.Records[0].Key, "xxxxxxxx"...)
	_ = append(page.Records[0].Value, "xxxxxxxx"...)
	wantRecords(t, &page, want)
}

func TestDecodeOtherForms(t *testing.T) {
	want := []api.Record{{Offset: 7, TimestampMS: 5, Key: nil, Value: []byte("hi")}}
	for name, answer := range map[string]string{
		"spaces":        `{ "records": [ {"offset":7, "key":"", "value":"aGk=", "timestamp_ms":5} ], "next_offset":8, "start_offset":0, "end_offset":9 }`,
		"other order":   `{"end_offset":9,"start_offset":0,"next_offset":8,"records":[{"timestamp_ms":5,"value":"aGk=","offset":7}]}`,
		"new field":     `{"records":[{"offset":7,"key":"","value":"aGk=","timestamp_ms":5,"lease":"x"}],"next_offset":8,"start_offset":0,"end_offset":9,"more":true}`,
		"escaped":       `{"records":[{"offset":7,"key":"","value":"aG\u006b=","timestamp_ms":5}],"next_offset":8,"start_offset":0,"end_offset":9}`,
		"no key":        `{"records":[{"offset":7,"value":"aGk=","timestamp_ms":5}],"next_offset":8,"start_offset":0,"end_offset":9}`,
		"end of a line": `{"records":[{"offset":7,"key":"","value":"aGk=","timestamp_ms":5}],"next_offset":8,"start_offset":0,"end_offset":9}` + "\n",
	} {
		var page Page
		if err := page.Decode([]byte(answer)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantRecords(t, &page, want)
		if page.NextOffset != 8 || page.StartOffset != 0 || page.EndOffset != 9 {
			t.Errorf("%s: bounds %d %d %d", name, page.NextOffset, page.StartOffset, page.EndOffset)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	const good = `{"records":[{"offset":7,"key":"","value":"aGk=","timestamp_ms":5}],"next_offset":8,"start_offset":0,"end_offset":9}`
	for name, answer := range map[string]string{
		"nothing":           ``,
		"cut off":           good[:len(good)-1],
		"more after it":     good + `{}`,
		"no records":        `{"next_offset":8,"start_offset":0,"end_offset":9}`,
		"null records":      strings.Replace(good, `[{"offset":7,"key":"","value":"aGk=","timestamp_ms":5}]`, `null`, 1),
		"no next_offset":    strings.Replace(good, `"next_offset":8,`, ``, 1),
		"no end_offset":     strings.Replace(good, `,"end_offset":9`, ``, 1),
		"record w/o offset": strings.Replace(good, `"offset":7,`, ``, 1),
		"record w/o value":  strings.Replace(good, `"value":"aGk=",`, ``, 1),
		"null value":        strings.Replace(good, `"aGk="`, `null`, 1),
		"bad base64":        strings.Replace(good, `aGk=`, `aG.=`, 1),
		"short base64":      strings.Replace(good, `aGk=`, `aGk`, 1),
		"line end in value": strings.Replace(good, `aGk=`, "\naGk=\n\n\n", 1),
		"negative offset":   strings.Replace(good, `"offset":7`, `"offset":-7`, 1),
		"leading zero":      strings.Replace(good, `"offset":7`, `"offset":07`, 1),
		"huge offset":       strings.Replace(good, `"offset":7`, `"offset":99999999999999999999`, 1),
		"fraction":          strings.Replace(good, `"offset":7`, `"offset":7.5`, 1),
		"error answer":      `{"code":"internal","message":"x"}`,
	} {
		var page Page
		if err := page.Decode([]byte(answer)); err == nil {
			t.Errorf("%s: decoded to %+v", name, page)
		}
	}
}

func TestPageCheck(t *testing.T) {
	page := func(next, end uint64, offsets ...uint64) *Page {
		p := &Page{NextOffset: next, EndOffset: end}
		for _, o := range offsets {
			p.Records = append(p.Records, StoredRecord{Offset: o})
		}
		return p
	}
	const step = api.RestoreStep
	for _, test := range []struct {
		name  string
		page  *Page
		exact bool
		ok    bool
	}{
		{"as asked", page(7, 9, 5, 6), true, true},
		{"to the end", page(7, 7, 5, 6), true, true},
		{"nothing there", page(5, 5), true, true},
		{"asked past the end", page(3, 3), true, true},
		{"a group elsewhere", page(42, 50, 40, 41), false, true},
		{"begins late", page(8, 9, 6, 7), true, false},
		{"begins early", page(6, 9, 4, 5), true, false},
		{"a gap", page(8, 9, 5, 7), true, false},
		{"a repetition", page(6, 9, 5, 5), true, false},
		{"backwards", page(7, 9, 6, 5), true, false},
		{"next too low", page(5, 9, 5, 6), true, false},
		{"next too high", page(8, 9, 5, 6), true, false},
		{"end below next", page(7, 6, 5, 6), true, false},
		{"nothing, but there is more", page(5, 9), true, false},
		{"a restore in between", page(2*step+1, 2*step+1, 5, step, 2*step), true, true},
		{"begins behind a restore", page(step+1, step+1, step), true, true},
		{"ends before what a restore lost", page(step, step, 5), true, true},
		{"a jump to elsewhere", page(step+2, step+2, 5, step+1), true, false},
		{"begins elsewhere", page(step+2, step+2, step+1), true, false},
		{"next elsewhere", page(step+1, step+1, 5), true, false},
		{"back over a restore", page(step+1, step+1, 2*step, step), false, false},
		{"a step back", page(0, 9, 5), true, false},
	} {
		if err := test.page.check(5, test.exact); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// FuzzDecode holds the fast decoder against encoding/json: whatever the fast one accepts, the other one must
// accept and understand in the same way.
func FuzzDecode(f *testing.F) {
	f.Add(serverAnswer(f, nil, 0, 0, 0))
	f.Add(append(serverAnswer(f, []api.Record{{Offset: 1, Key: []byte("k"), Value: []byte("v")}}, 2, 0, 2), '\n'))
	f.Add(serverAnswer(f, []api.Record{
		{Offset: 1, Value: bytes.Repeat([]byte("x"), 100)}, {Offset: 2, Value: bytes.Repeat([]byte{0xff}, 47), TimestampMS: 1},
	}, 3, 0, 1<<53-1))
	f.Add([]byte(`{"records":[{"offset":0,"value":"","timestamp_ms":0}],"next_offset":1,"start_offset":0,"end_offset":1}`))
	f.Add([]byte(`{"records":[{"offset":0,"value":"QQ==QUFB","timestamp_ms":0}],"next_offset":1,"start_offset":0,"end_offset":1}`))
	f.Add([]byte(`{"records":[{"offset":0,"value":"QR==","timestamp_ms":01}],"next_offset":1,"start_offset":0,"end_offset":1}`))
	f.Add([]byte("{\"records\":[{\"offset\":0,\"value\":\"QU\n\n\n\nFB\",\"timestamp_ms\":0}],\"next_offset\":1,\"start_offset\":0,\"end_offset\":1}"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		var fast, slow Page
		Bounds(answer) // must not panic
		if !fast.decodeFast(answer) {
			return
		}
		if err := slow.decodeSlow(answer); err != nil {
			t.Fatalf("only the fast decoder accepts this: %v", err)
		}
		var want []api.Record
		for _, r := range slow.Records {
			want = append(want, api.Record{Offset: r.Offset, Key: r.Key, Value: r.Value, TimestampMS: r.TimestampMS})
		}
		wantRecords(t, &fast, want)
		next, start, end, ok := Bounds(answer)
		if fast.NextOffset != slow.NextOffset || fast.StartOffset != slow.StartOffset || fast.EndOffset != slow.EndOffset ||
			!ok || next != slow.NextOffset || start != slow.StartOffset || end != slow.EndOffset {
			t.Fatalf("bounds: fast %+v, slow %+v, Bounds %d %d %d %v", fast, slow, next, start, end, ok)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{100, 1024, 65536} {
		n := min(1000, (4<<20)/size)
		r := rand.New(rand.NewPCG(1, 2))
		records := make([]api.Record, n)
		for i := range records {
			records[i] = api.Record{Offset: uint64(1000000 + i), Value: randomBytes(r, size), TimestampMS: 1790000000000}
		}
		answer := serverAnswer(b, records, uint64(1000000+n), 0, 2000000)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var page Page
			b.SetBytes(int64(n * size))
			b.ReportAllocs()
			for b.Loop() {
				if err := page.Decode(answer); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
