package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/mq/api"
)

// FuzzEncode holds the hand-written requests against what encoding/json understands.
func FuzzEncode(f *testing.F) {
	f.Add("orders", "id-1", []byte("k"), []byte("v"))
	f.Add("a\"b\\c\u0001\u2028é", "", []byte(nil), make([]byte, 100))
	f.Add("<&>", "\x7f", make([]byte, 47), []byte{})
	f.Fuzz(func(t *testing.T, topic, id string, key, value []byte) {
		if !utf8.ValidString(topic) || !utf8.ValidString(id) {
			t.Skip()
		}
		record := Record{key, value}
		want := api.Message{Key: append([]byte{}, key...), Value: append([]byte{}, value...)}
		if len(key) == 0 {
			want.Key = nil
		}
		var one api.PublishRequest
		decodeStrict(t, appendPublish(nil, topic, record, id), &one)
		if !reflect.DeepEqual(one, api.PublishRequest{Topic: topic, Key: want.Key, Value: want.Value, RequestID: id}) {
			t.Errorf("publish: %+v", one)
		}
		var batch api.PublishBatchRequest
		records := []Record{record, {}, record}
		body := appendPublishBatch(nil, topic, records, id)
		decodeStrict(t, body, &batch)
		if !reflect.DeepEqual(batch, api.PublishBatchRequest{Topic: topic, Messages: []api.Message{want, {Value: []byte{}}, want}, RequestID: id}) {
			t.Errorf("publish batch: %+v", batch)
		}
		// It knows nothing of what must be escaped.
		if estimate := encodedSize(topic, records, id); topic == "orders" && id == "id-1" && len(body) > estimate {
			t.Errorf("a body of %d bytes was estimated at %d", len(body), estimate)
		}
	})
}

func decodeStrict(t *testing.T, body []byte, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
}

// TestRequests says what each call sends, and what it makes of the answer.
func TestRequests(t *testing.T) {
	ctx := context.Background()
	var answer string
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, answer) })
	c := quick(t, Config{}, f)
	const page = `{"records":[{"offset":5,"key":"","value":"aGk=","timestamp_ms":1500}],"next_offset":6,"start_offset":2,"end_offset":6}`
	wantPage := func(p *Page, err error) bool {
		return err == nil && len(p.Records) == 1 && string(p.Records[0].Value) == "hi" && p.Records[0].Time().Equal(time.Unix(1, 500e6)) &&
			p.NextOffset == 6 && p.StartOffset == 2 && p.EndOffset == 6
	}
	for _, test := range []struct {
		path, body, answer string
		call               func() bool
	}{
		{"/v1/publish-batch", `{"topic":"t","messages":[{"key":"aw==","value":"dg=="},{"value":""}],"request_id":"r"}`, `{"offsets":[8,9]}`, func() bool {
			p, err := c.PublishBatch(ctx, "t", []Record{{[]byte("k"), []byte("v")}, {}}, PublishOptions{RequestID: "r"})
			return err == nil && p == Published{8, 2, false}
		}},
		{"/v1/fetch", `{"topic":"t","offset":5}`, page, func() bool { return wantPage(c.Fetch(ctx, "t", 5, FetchOptions{})) }},
		{"/v1/fetch", `{"topic":"t","offset":5,"limit":7,"wait_ms":1501}`, page, func() bool {
			return wantPage(c.Fetch(ctx, "t", 5, FetchOptions{Limit: 7, Wait: 1500*time.Millisecond + 1}))
		}},
		{"/v1/groups/fetch", `{"group":"g\"","topic":"t","limit":1000,"wait_ms":20000}`, page, func() bool {
			return wantPage(c.FetchGroup(ctx, "t", "g\"", FetchOptions{Limit: 1000, Wait: 20 * time.Second}))
		}},
		{"/v1/groups/commit", `{"group":"g","topic":"t","next_offset":6}`, `{"next_offset":6}`, func() bool {
			n, err := c.CommitGroup(ctx, "t", "g", 6)
			return n == 6 && err == nil
		}},
		{"/v1/topics/retain", `{"topic":"t","start_offset":3}`, `{"start_offset":3,"more":"text"}`, func() bool {
			n, err := c.Retain(ctx, "t", 3)
			return n == 3 && err == nil
		}},
		{"/v1/snapshot", ``, `{"index":77}`, func() bool {
			n, err := c.Snapshot(ctx)
			return n == 77 && err == nil
		}},
	} {
		answer = test.answer
		if !test.call() {
			t.Errorf("%s %s: the answer was not understood", test.path, test.body)
		}
		if got := f.got()[len(f.got())-1]; got.path != test.path || got.body != test.body {
			t.Errorf("got %+v, want %s %s", got, test.path, test.body)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	ctx := context.Background()
	var answer string
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, answer) })
	c := quick(t, Config{}, f)
	batch := func() error {
		_, err := c.PublishBatch(ctx, "t", make([]Record, 2), PublishOptions{})
		return err
	}
	fetch := func() error { _, err := c.Fetch(ctx, "t", 5, FetchOptions{}); return err }
	snapshot := func() error { _, err := c.Snapshot(ctx); return err }
	for _, test := range []struct {
		answer  string
		call    func() error
		unknown bool
	}{
		{`{"offsets":[8]}`, batch, true},
		{`{"offsets":[8,10]}`, batch, true},
		{`{"offset":8}`, batch, true},
		{`{"records":[],"next_offset":0}`, fetch, false},
		{`{"records":[{"offset":6,"key":"","value":"","timestamp_ms":1}],"next_offset":7,"start_offset":0,"end_offset":7}`, fetch, false},
		{`{}`, snapshot, true},
		{`{"index":null}`, snapshot, true},
		{`{"index":"1"}`, snapshot, true},
		{`[]`, snapshot, true},
	} {
		answer = test.answer
		err := test.call()
		if e := asError(t, err); e.Code != ErrBadAnswer || e.Unknown != test.unknown {
			t.Errorf("%s: %+v", test.answer, e)
		}
	}
}

// TestNotEvenSent: what JSON or the API cannot carry is refused here.
func TestNotEvenSent(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, `{}`) })
	c := quick(t, Config{}, f)
	for name, call := range map[string]func() error{
		"topic": func() error { _, err := c.Publish(ctx, "a\xff", Record{}, PublishOptions{}); return err },
		"request id": func() error {
			_, err := c.Publish(ctx, "a", Record{}, PublishOptions{RequestID: "\xff"})
			return err
		},
		"both": func() error {
			_, err := c.Publish(ctx, "a", Record{}, PublishOptions{RequestID: "x", NoRequestID: true})
			return err
		},
		"fetch":       func() error { _, err := c.Fetch(ctx, "\xff", 0, FetchOptions{}); return err },
		"group":       func() error { _, err := c.FetchGroup(ctx, "t", "\xff", FetchOptions{}); return err },
		"commit":      func() error { _, err := c.CommitGroup(ctx, "t", "\xff", 0); return err },
		"retain":      func() error { _, err := c.Retain(ctx, "\xff", 0); return err },
		"empty batch": func() error { _, err := c.PublishBatch(ctx, "t", nil, PublishOptions{}); return err },
		"large batch": func() error { _, err := c.PublishBatch(ctx, "t", make([]Record, 33), PublishOptions{}); return err },
		"limit":       func() error { _, err := c.Fetch(ctx, "t", 0, FetchOptions{Limit: 1001}); return err },
		"wait":        func() error { _, err := c.Fetch(ctx, "t", 0, FetchOptions{Wait: 21 * time.Second}); return err },
		"past":        func() error { _, err := c.Fetch(ctx, "t", 0, FetchOptions{Wait: -1}); return err },
		"consumer":    func() error { _, err := c.Consume(ConsumerConfig{Topic: "t", Group: "g", Offset: 1}); return err },
		"page":        func() error { _, err := c.Consume(ConsumerConfig{Topic: "t", Limit: 2000}); return err },
	} {
		if err := call(); !errors.Is(err, ErrInvalidArgument) || asError(t, err).Unknown {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(f.got()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{
		Operation: "publish", Code: ErrUnavailable, Status: 503, Message: "no leader", Node: "http://127.0.0.1:1",
		Attempts: 3, Unknown: true, RequestID: "R", cause: errors.New("cut off"),
	}
	const want = "publish: unavailable: no leader: cut off (http://127.0.0.1:1, after 3 attempts); the outcome is unknown: retry with request id R"
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
}

// TestErrorFields: what a broker adds to an error is there for programs.
func TestErrorFields(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		say(w, 400, `{"code":"offset_out_of_range","message":"m","field":"next_offset","start_offset":3,"end_offset":9,"first_offset":4,"last_offset":5,"new":1}`)
	})
	_, err := quick(t, Config{}, f).CommitGroup(context.Background(), "t", "g", 1)
	e := asError(t, err)
	if e.Code != ErrOffsetOutOfRange || e.Status != 400 || e.Field != "next_offset" || *e.StartOffset != 3 || *e.EndOffset != 9 || *e.FirstOffset != 4 || *e.LastOffset != 5 {
		t.Errorf("got %+v", e)
	}
}
