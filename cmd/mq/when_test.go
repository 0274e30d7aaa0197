package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

func TestInstant(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-11-30T10:00:00Z":          "2026-11-30T10:00:00Z",
		"2026-11-30T10:00:00.5+02:00":   "2026-11-30T08:00:00.5Z",
		"0":                             "1970-01-01T00:00:00Z",
		"1700000000001":                 "2023-11-14T22:13:20.001Z",
		"1h":                            "2026-11-30T11:00:00Z",
		"-1h":                           "2026-11-30T11:00:00Z",
		"1h30m":                         "2026-11-30T10:30:00Z",
		"7d":                            "2026-11-23T12:00:00Z",
		"-2w":                           "2026-11-16T12:00:00Z",
		"1.5h":                          "2026-11-30T10:30:00Z",
		"":                              "",
		"-":                             "",
		"--1h":                          "",
		"-5":                            "",
		"0d":                            "",
		"0s":                            "",
		"1.5d":                          "",
		"d":                             "",
		"9999999999d":                   "",
		"106752d":                       "", // more than a duration can hold
		"281474976710656":               "",
		"2026-11-30":                    "",
		"2026-11-30T10:00:00":           "",
		"yesterday":                     "",
		"99999999999999999999999999999": "",
	} {
		var i instant
		err := i.parse(text)
		got := ""
		if err == nil {
			got = i.time(now).UTC().Format(time.RFC3339Nano)
		}
		if got != want {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}

// TestBefore: the last records are found also where a restore from a backup made offsets jump.
func TestBefore(t *testing.T) {
	const step = api.RestoreStep
	// The topic has the records 3 to 9, then two gaps with the records step to step+2 between them, then 2*step.
	records := []uint64{3, 4, 5, 6, 7, 8, 9, step, step + 1, step + 2, 2 * step}
	end := records[len(records)-1] + 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q api.FetchRequest
		json.NewDecoder(r.Body).Decode(&q)
		for i, off := range records {
			switch {
			case off == *q.Offset, i > 0 && *q.Offset == records[i-1]+1:
				fmt.Fprintf(w, `{"records":[{"offset":%d,"key":"","value":"","timestamp_ms":0}],"next_offset":%d,"start_offset":3,"end_offset":%d}`, off, off+1, end)
				return
			case i > 0 && records[i-1] < *q.Offset && *q.Offset < off:
				w.WriteHeader(410)
				fmt.Fprintf(w, `{"code":"offset_gone","message":"","start_offset":%d,"restored_end":%d}`, off, records[i-1]+1)
				return
			}
		}
		fmt.Fprintf(w, `{"records":[],"next_offset":%d,"start_offset":3,"end_offset":%d}`, end, end)
	}))
	defer server.Close()
	mq, err := client.New(client.Config{Nodes: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer mq.Close()
	for n := range uint64(len(records) + 3) {
		want := end
		if n > 0 {
			want = records[max(0, len(records)-int(n))]
		}
		got, err := before(t.Context(), mq, "t", &client.Page{StartOffset: 3, EndOffset: end}, n)
		// Where offsets jump, the record stands also where the ones before it end.
		if i := len(records) - int(n); err == nil && got != want && i > 0 && n > 0 && got == records[i-1]+1 {
			got = want
		}
		if err != nil || got != want {
			t.Errorf("the last %d begin at %d, %v; want %d", n, got, err, want)
		}
	}
	if got, err := before(t.Context(), mq, "t", &client.Page{StartOffset: 7, EndOffset: 7}, 5); got != 7 || err != nil {
		t.Errorf("an empty topic: %d, %v", got, err)
	}
}
