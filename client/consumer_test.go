package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"example.com/mq/api"
)

// fakeTopic is a topic as the API shows it, one group included.
type fakeTopic struct {
	*fake
	mu      sync.Mutex
	exists  bool
	start   uint64
	values  []string // values[i] is at offset i
	group   uint64
	changed chan struct{} // closed and replaced when values are added
	limit   int           // most records of an answer, if not 0
	asked   chan uint64   // if not nil, receives the offset of each fetch
}

func newFakeTopic(t *testing.T, n int) *fakeTopic {
	topic := &fakeTopic{exists: true, changed: make(chan struct{})}
	for i := range n {
		topic.values = append(topic.values, fmt.Sprint("value ", i))
	}
	topic.fake = newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { topic.answer(t, w, r, topic.got()[n].body) })
	return topic
}

func (f *fakeTopic) add(values ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exists = true
	f.values = append(f.values, values...)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeTopic) answer(t *testing.T, w http.ResponseWriter, r *http.Request, body string) {
	var request struct {
		Offset     uint64 `json:"offset"`
		Limit      int    `json:"limit"`
		WaitMS     int    `json:"wait_ms"`
		NextOffset uint64 `json:"next_offset"`
	}
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.changed
	if f.asked != nil && r.URL.Path == api.PathFetch {
		f.mu.Unlock()
		f.asked <- request.Offset
		f.mu.Lock()
	}
	offset := request.Offset
	switch {
	case !f.exists:
		say(w, 404, `{"code":"topic_not_found","message":"m"}`)
		return
	case r.URL.Path == api.PathGroupsCommit:
		f.group = request.NextOffset
		fmt.Fprintf(w, `{"next_offset":%d}`, f.group)
		return
	case r.URL.Path == api.PathGroupsFetch:
		offset = max(f.group, f.start)
	case offset < f.start:
		say(w, 410, fmt.Sprintf(`{"code":"offset_gone","message":"m","start_offset":%d}`, f.start))
		return
	}
	if offset >= uint64(len(f.values)) && request.WaitMS > 0 {
		f.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		f.mu.Lock()
	}
	limit := request.Limit
	if f.limit > 0 {
		limit = f.limit
	}
	var records []api.Record
	end := uint64(len(f.values))
	for offset = min(offset, end); offset < end && len(records) < limit; offset++ {
		records = append(records, api.Record{Offset: offset, Value: []byte(f.values[offset]), TimestampMS: 1})
	}
	w.Write(serverAnswer(t, records, offset, f.start, end))
}

func consume(t *testing.T, f *fakeTopic, cfg ConsumerConfig) *Consumer {
	t.Helper()
	cfg.Topic = "t"
	k, err := quick(t, Config{}, f.fake).Consume(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func wantNext(t *testing.T, k *Consumer, offset uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := k.Next(ctx)
	if err != nil || r.Offset != offset || string(r.Value) != fmt.Sprint("value ", offset) {
		t.Fatalf("got %d %q, %v, want offset %d", r.Offset, r.Value, err, offset)
	}
	if p, ok := k.Position(); !ok || p != offset+1 {
		t.Fatalf("position %d %v after %d", p, ok, offset)
	}
}

func TestConsumeToTheEnd(t *testing.T) {
	for _, n := range []int{0, 1, 6, 7, 8, 50} {
		k := consume(t, newFakeTopic(t, n), ConsumerConfig{Limit: 7})
		for i := range n {
			wantNext(t, k, uint64(i))
		}
		for range 2 {
			if _, err := k.Next(context.Background()); err != io.EOF {
				t.Errorf("%d records: %v at the end", n, err)
			}
		}
	}
}

func TestConsumeFromAnOffset(t *testing.T) {
	k := consume(t, newFakeTopic(t, 20), ConsumerConfig{Offset: 13, Limit: 3})
	if p, ok := k.Position(); p != 13 || !ok {
		t.Errorf("position %d %v at the beginning", p, ok)
	}
	page, err := k.NextPage(context.Background())
	if err != nil || len(page.Records) != 3 || page.Records[0].Offset != 13 || page.NextOffset != 16 {
		t.Fatalf("got %+v, %v", page, err)
	}
	wantNext(t, k, 16)
	page, err = k.NextPage(context.Background()) // the rest of the page
	if err != nil || len(page.Records) != 2 || page.Records[0].Offset != 17 {
		t.Fatalf("got %+v, %v", page, err)
	}
	wantNext(t, k, 19)
}

func TestConsumeAll(t *testing.T) {
	k := consume(t, newFakeTopic(t, 10), ConsumerConfig{Limit: 4})
	var want uint64
	for r, err := range k.All(context.Background()) {
		if err != nil || r.Offset != want {
			t.Fatalf("got %d, %v, want %d", r.Offset, err, want)
		}
		if want++; want == 6 {
			break
		}
	}
	for r, err := range k.All(context.Background()) { // goes on where the other one stopped
		if err != nil || r.Offset != want {
			t.Fatalf("got %d, %v, want %d", r.Offset, err, want)
		}
		want++
	}
	if want != 10 {
		t.Errorf("%d records", want)
	}
}

// TestConsumeAhead: the next fetch is under way before the records of the last are taken.
func TestConsumeAhead(t *testing.T) {
	f := newFakeTopic(t, 100)
	f.asked = make(chan uint64)
	k := consume(t, f, ConsumerConfig{Limit: 10})
	for i := range uint64(2) { // two answers wait for us before we have taken any
		if got := <-f.asked; got != i*10 {
			t.Fatalf("fetch %d asks for %d", i, got)
		}
	}
	select {
	case got := <-f.asked:
		t.Fatalf("%d was asked for, though nobody has taken anything", got)
	case <-time.After(20 * time.Millisecond): // nothing to wait for: a fetch that does not come
	}
	wantNext(t, k, 0)
	if got := <-f.asked; got != 20 {
		t.Fatalf("%d was asked for", got)
	}
	go func() { // ended by Close of the consumer, which ends the requests
		for range f.asked {
		}
	}()
	for i := uint64(1); i < 100; i++ {
		wantNext(t, k, i)
	}
}

func TestFollow(t *testing.T) {
	f := newFakeTopic(t, 0)
	f.exists = false
	k := consume(t, f, ConsumerConfig{Follow: true})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := k.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrCanceled) {
		t.Fatalf("got %v while there is no topic", err)
	}
	// The end of a ctx is not the end of the consumer.
	f.add("value 0", "value 1")
	wantNext(t, k, 0)
	wantNext(t, k, 1)
	f.add("value 2")
	wantNext(t, k, 2)
}

func TestConsumeMissingTopic(t *testing.T) {
	f := newFakeTopic(t, 0)
	f.exists = false
	k := consume(t, f, ConsumerConfig{})
	for range 2 {
		if _, err := k.Next(context.Background()); !errors.Is(err, ErrTopicNotFound) {
			t.Errorf("got %v", err)
		}
	}
}

func TestConsumeGroup(t *testing.T) {
	f := newFakeTopic(t, 20)
	f.group = 5
	k := consume(t, f, ConsumerConfig{Group: "g", Limit: 4})
	wantNext(t, k, 5)
	wantNext(t, k, 6)
	if err := k.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if f.group != 7 {
		t.Errorf("committed %d", f.group)
	}
	wantNext(t, k, 7)
	k.Close()
	k = consume(t, f, ConsumerConfig{Group: "g"})
	wantNext(t, k, 7)
	// A group goes on from the start when its offset is gone, also in the middle of reading.
	f.start, f.group = 10, 3
	k = consume(t, f, ConsumerConfig{Group: "g"})
	wantNext(t, k, 10)
	f.group = 20
	k = consume(t, f, ConsumerConfig{Group: "g"})
	if _, err := k.Next(context.Background()); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if p, ok := k.Position(); p != 20 || !ok {
		t.Errorf("position %d %v", p, ok)
	}
	if err := consume(t, f, ConsumerConfig{}).Commit(context.Background()); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("commit without a group: %v", err)
	}
}

// TestConsumeGroupWhileRetained moves the start past a group that is reading: it goes on from the start.
func TestConsumeGroupWhileRetained(t *testing.T) {
	f := newFakeTopic(t, 20)
	f.asked = make(chan uint64, 10)
	k := consume(t, f, ConsumerConfig{Group: "g", Limit: 4})
	<-f.asked // the first answer is there, with the records 0 to 3
	f.mu.Lock()
	f.start = 15
	f.mu.Unlock()
	var got []uint64
	for r, err := range k.All(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 0 && r.Offset != got[len(got)-1]+1 && r.Offset != 15 {
			t.Fatalf("%d came after %v", r.Offset, got)
		}
		got = append(got, r.Offset)
	}
	if n := len(got); n < 9 || n > 13 || got[n-5] != 15 || got[n-1] != 19 {
		t.Errorf("got %v", got)
	}
}

func TestConsumeGone(t *testing.T) {
	f := newFakeTopic(t, 20)
	f.start = 10
	_, err := consume(t, f, ConsumerConfig{Offset: 3}).Next(context.Background())
	if e := asError(t, err); e.Code != ErrOffsetGone || *e.StartOffset != 10 {
		t.Errorf("got %v", err)
	}
	wantNext(t, consume(t, f, ConsumerConfig{Offset: 3, SkipGone: true}), 10)
}

// TestConsumePastTheEnd: a topic that is shorter than what was read of it is not the same topic.
func TestConsumePastTheEnd(t *testing.T) {
	for _, follow := range []bool{false, true} {
		f := newFakeTopic(t, 5)
		f.asked = make(chan uint64, 10)
		k := consume(t, f, ConsumerConfig{Offset: 6, Follow: follow})
		<-f.asked
		f.add() // ends the long poll without a record
		_, err := k.Next(context.Background())
		if e := asError(t, err); e.Code != ErrOffsetOutOfRange || *e.EndOffset != 5 {
			t.Errorf("got %v", err)
		}
		k = consume(t, f, ConsumerConfig{Offset: 5})
		if _, err := k.Next(context.Background()); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}

// TestConsumeLies: answers that contradict themselves or the question end the consumer.
func TestConsumeLies(t *testing.T) {
	record := func(offset uint64) api.Record { return api.Record{Offset: offset} }
	good := serverAnswer(t, []api.Record{record(0)}, 1, 0, 2)
	for name, second := range map[string][]byte{
		"not what was asked for": serverAnswer(t, []api.Record{record(0)}, 1, 0, 2),
		"a gap":                  serverAnswer(t, []api.Record{record(2)}, 3, 0, 3),
		"a next_offset too far":  []byte(`{"next_offset":2,"records":[{"offset":1,"key":"","value":"","timestamp_ms":1}],"next_offset":3,"start_offset":0,"end_offset":3}`),
		"no JSON":                []byte(`hello`),
	} {
		f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 0 {
				w.Write(good)
				return
			}
			w.Write(second)
		})
		k, err := quick(t, Config{}, f).Consume(ConsumerConfig{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if _, err := k.Next(context.Background()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r, err := k.Next(context.Background()); !errors.Is(err, ErrBadAnswer) && !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// TestConsumeOtherForm: an answer in another form is understood too, only without reading ahead of it.
func TestConsumeOtherForm(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		fmt.Fprintf(w, `{"end_offset":2,"start_offset":0,"next_offset":%d,"records":[{"offset":%d,"value":"","timestamp_ms":1}]}`, n+1, n)
	})
	k, err := quick(t, Config{}, f).Consume(ConsumerConfig{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for i := range uint64(2) {
		if r, err := k.Next(context.Background()); err != nil || r.Offset != i {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	if _, err := k.Next(context.Background()); err != io.EOF {
		t.Error(err)
	}
}

func TestConsumerClose(t *testing.T) {
	f := newFakeTopic(t, 1)
	k := consume(t, f, ConsumerConfig{Follow: true})
	wantNext(t, k, 0)
	k.Close() // while its goroutine waits in a long poll
	k.Close()
	if _, err := k.Next(context.Background()); err == nil {
		t.Error("a closed consumer goes on")
	}
}

// TestConsumeEmptyAnswersAtOnce: a broker that does not wait is not asked as fast as it can answer.
func TestConsumeEmptyAnswersAtOnce(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Write(serverAnswer(t, nil, 0, 0, 0))
	})
	k, err := quick(t, Config{}, f).Consume(ConsumerConfig{Topic: "t", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*pollTopic)
	defer cancel()
	if _, err := k.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	began := time.Now()
	k.Close()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("Close took %v", d)
	}
	if n := len(f.got()); n == 0 || n > 5 {
		t.Errorf("%d requests in %v", n, 3*pollTopic)
	}
}
