package load

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/history"
)

// broker is a small broker in memory with one bug, or none: load and checker together must find each bug.
type broker struct {
	mu       sync.Mutex
	topics   map[string]*brokerTopic
	groups   map[[2]string]uint64
	bug      string
	rand     *rand.Rand
	requests int
	mortal   bool // dies at random
	dead     bool // until the next restart
}

type brokerTopic struct {
	records []wireRecord
	times   []int64
	start   uint64
	ids     map[string][2]int // base, count
	bodies  map[string]string
	batches map[int]int // base to count, of batches
}

func newBroker(bug string) *broker {
	return &broker{topics: map[string]*brokerTopic{}, groups: map[[2]string]uint64{}, bug: bug, mortal: true, rand: rand.New(rand.NewPCG(1, 2))}
}

// restart is a kill and a start. Bugs of recovery strike here.
func (b *broker) restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = false
	for _, t := range b.topics {
		n := len(t.records)
		if uint64(n) < t.start+8 {
			continue
		}
		switch b.bug {
		case "lose the tail":
			t.cut(n - 3)
		case "forget request ids":
			t.ids = map[string][2]int{}
		case "damage":
			t.records[n-2].Value = append([]byte{1}, t.records[n-2].Value...)
		case "swap":
			t.records[n-2], t.records[n-1] = t.records[n-1], t.records[n-2]
		case "lose the middle":
			t.records = append(t.records[:n-5], t.records[n-4:]...)
			t.times = append(t.times[:n-5], t.times[n-4:]...)
		case "new times":
			t.times[n-1]++
		case "start back":
			t.start /= 2
		}
	}
	if b.bug == "group back" {
		for k, next := range b.groups {
			b.groups[k] = next / 2
		}
	}
}

func (t *brokerTopic) cut(n int) {
	t.records, t.times = t.records[:n], t.times[:n]
}

func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Topic, Group string
		Key, Value   []byte
		RequestID    string `json:"request_id"`
		Messages     []wireRecord
		Offset       uint64
		Limit        int
		Next         uint64 `json:"next_offset"`
		Start        uint64 `json:"start_offset"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		panic(http.ErrAbortHandler) // the client gave up while it sent
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
	if b.dead {
		panic(http.ErrAbortHandler)
	}
	t := b.topics[in.Topic]
	if t == nil && r.URL.Path != "/v1/snapshot" {
		if in.Messages == nil && in.Value == nil {
			fail(w, 404, "topic_not_found")
			return
		}
		t = &brokerTopic{ids: map[string][2]int{}, bodies: map[string]string{}, batches: map[int]int{}}
		defer func() { // the first record makes the topic
			if len(t.records) > 0 {
				b.topics[in.Topic] = t
			}
		}()
	}
	var answer map[string]any
	switch r.URL.Path {
	case "/v1/publish":
		base, _, duplicate, ok := b.publish(w, t, in.RequestID, []wireRecord{{in.Key, in.Value}})
		if !ok {
			return
		}
		answer = map[string]any{"offset": base, "duplicate": duplicate}
	case "/v1/publish-batch":
		base, n, duplicate, ok := b.publish(w, t, in.RequestID, in.Messages)
		if !ok {
			return
		}
		answer = map[string]any{"offsets": numbers(base, n), "duplicate": duplicate}
	case "/v1/fetch":
		if in.Offset < t.start {
			fail(w, 410, "offset_gone", "start_offset", t.start)
			return
		}
		answer = b.fetch(t, in.Offset, in.Limit)
	case "/v1/groups/fetch":
		answer = b.fetch(t, max(t.start, b.groups[[2]string{in.Group, in.Topic}]), in.Limit)
	case "/v1/groups/commit":
		if in.Next < t.start || in.Next > uint64(len(t.records)) {
			fail(w, 400, "offset_out_of_range")
			return
		}
		b.groups[[2]string{in.Group, in.Topic}] = in.Next
		if b.bug == "commit, then call it not done" && b.rand.IntN(20) == 0 {
			fail(w, 503, "unavailable")
			return
		}
		answer = map[string]any{"next_offset": in.Next}
	case "/v1/topics/retain":
		if in.Start < t.start || in.Start > uint64(len(t.records)) {
			fail(w, 400, "offset_out_of_range")
			return
		}
		t.start = in.Start
		answer = map[string]any{"start_offset": t.start}
	case "/v1/snapshot":
		answer = map[string]any{"index": b.requests}
	}
	if b.mortal && b.rand.IntN(200) == 0 {
		b.dead = true // done, but nobody is told
		panic(http.ErrAbortHandler)
	}
	json.NewEncoder(w).Encode(answer)
}

func (b *broker) publish(w http.ResponseWriter, t *brokerTopic, id string, records []wireRecord) (base, n int, duplicate, ok bool) {
	body, _ := json.Marshal(records)
	if p, found := t.ids[id]; found && id != "" {
		if string(body) != t.bodies[id] && b.bug != "no conflicts" {
			fail(w, 409, "request_id_conflict")
			return 0, 0, false, false
		}
		return p[0], p[1], true, true
	}
	ok = true
	switch dice := b.rand.IntN(100); {
	case b.bug == "store, then refuse" && dice < 2:
		defer fail(w, 507, "storage_full")
		ok = false
	case b.bug == "store, then call it not done" && dice < 2:
		defer fail(w, 503, "unavailable")
		ok = false
	case dice == 2 && b.mortal: // stored, and nothing promised
		defer fail(w, 503, "unavailable", "outcome_unknown", true)
		ok = false
	case dice == 3 && b.mortal:
		fail(w, 503, "unavailable", "outcome_unknown", true)
		return 0, 0, false, false
	case dice == 4 && b.mortal:
		fail(w, 503, "unavailable")
		return 0, 0, false, false
	}
	base, n = len(t.records), len(records)
	t.batches[base] = n
	t.records = append(t.records, records...)
	for range records {
		t.times = append(t.times, int64(1000+base))
	}
	if b.bug != "no request ids" {
		t.ids[id], t.bodies[id] = [2]int{base, n}, string(body)
	}
	return base, n, false, ok
}

func (b *broker) fetch(t *brokerTopic, from uint64, limit int) map[string]any {
	end := uint64(len(t.records))
	if n := t.batches[int(from)]; b.bug == "show half batches" && n > 1 && b.rand.IntN(3) == 0 {
		end = from + 1
	}
	if b.bug == "old end" && from+1 == end && b.rand.IntN(3) == 0 {
		end--
	}
	from = min(from, end)
	next := min(end, from+uint64(limit))
	records := []map[string]any{}
	for o := from; o < next; o++ {
		records = append(records, map[string]any{
			"offset": o, "key": t.records[o].Key, "value": t.records[o].Value, "timestamp_ms": t.times[o],
		})
	}
	return map[string]any{"records": records, "next_offset": next, "start_offset": t.start, "end_offset": end}
}

func numbers(from, n int) []int {
	var all []int
	for i := range n {
		all = append(all, from+i)
	}
	return all
}

func fail(w http.ResponseWriter, status int, code string, more ...any) {
	e := map[string]any{"code": code, "message": code}
	if len(more) == 2 {
		e[more[0].(string)] = more[1]
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(e)
}

// TestOutcomes: which answers are promises.
func TestOutcomes(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		want   Outcome
	}{
		{503, `{"code":"unavailable","message":"m"}`, NotDone},
		{503, `{"code":"unavailable","message":"m","outcome_unknown":false}`, NotDone},
		{503, `{"code":"unavailable","message":"m","outcome_unknown":true}`, Unknown},
		{503, `{"code":"not_leader","message":"m"}`, NotDone},
		{503, `{"code":"other","message":"m"}`, Unknown},
		{503, `<html>`, Unknown},
		{500, `{"code":"internal","message":"m"}`, Unknown},
		{507, `{"code":"storage_full","message":"m"}`, NotDone},
		{409, `{"code":"request_id_conflict","message":"m"}`, NotDone},
		{200, `{"offset":0}`, Done},
		{200, `{"offset":`, Unknown},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(test.status)
			io.WriteString(w, test.body)
		}))
		c := NewClient(server.URL)
		if _, _, a := c.publish(t.Context(), "t", "", []history.Record{{}}, false); a.Outcome != test.want {
			t.Errorf("%d %s: %d, want %d", test.status, test.body, a.Outcome, test.want)
		}
		c.Close()
		server.Close()
	}
}

func TestLoadFindsBugs(t *testing.T) {
	tests := []struct {
		bug  string
		want []history.Kind // one of these must be found; none: an answer that is strange, if there is a bug
	}{
		{"", nil},
		{"lose the tail", []history.Kind{history.Lost, history.Changed}},
		{"lose the middle", []history.Kind{history.Duplicated, history.Changed}},
		{"swap", []history.Kind{history.Changed}},
		{"damage", []history.Kind{history.Foreign}},
		{"new times", []history.Kind{history.Changed}},
		{"no request ids", []history.Kind{history.Duplicated}},
		{"forget request ids", []history.Kind{history.Duplicated}},
		{"show half batches", []history.Kind{history.Torn}},
		{"store, then refuse", []history.Kind{history.Refused}},
		{"store, then call it not done", []history.Kind{history.Refused}},
		{"commit, then call it not done", []history.Kind{history.Group}},
		{"group back", []history.Kind{history.Group}},
		{"old end", []history.Kind{history.Lost}},
		{"start back", []history.Kind{history.Start}},
		{"no conflicts", nil},
	}
	for _, test := range tests {
		t.Run(test.bug, func(t *testing.T) {
			t.Parallel()
			b := newBroker(test.bug)
			l := New(Config{Seed: 7, ValueMax: 1000})
			found := func() bool {
				if len(test.want) == 0 {
					return l.Err() != nil
				}
				r := l.Checker.Report()
				return slices.ContainsFunc(test.want, func(k history.Kind) bool { return r.Counts[k] > 0 })
			}
			cycles(t, l, b, test.bug != "", found)
			r := l.Checker.Report()
			t.Log(r, l.Statuses())
			switch {
			case test.bug == "":
				if err := l.Err(); err != nil {
					t.Error(err)
				}
				if r.Acknowledged == 0 || r.Read == 0 {
					t.Error("nothing happened")
				}
			case !found():
				t.Errorf("the bug was not found: %v", r)
			}
		})
	}
}

// cycles runs some lives of the broker; if it is wrong, as many as it takes to find that.
func cycles(t *testing.T, l *Load, b *broker, wrong bool, found func() bool) {
	server := httptest.NewServer(b)
	defer server.Close()
	most := 12
	if wrong {
		most = 200
	}
	for range most {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		l.Run(ctx, server.URL)
		cancel()
		b.restart()
		l.Checker.Restarted()
		err := readBackPatiently(t, l, b, server.URL)
		if found() {
			return
		}
		if err != nil && !wrong {
			t.Fatal(err)
		}
	}
	b.mu.Lock()
	b.mortal = false
	b.mu.Unlock()
	b.restart()
	l.Checker.Restarted()
	if err := l.Settle(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	if err := l.ReadBack(t.Context(), server.URL, true); err != nil {
		t.Fatal(err)
	}
}

// readBackPatiently tries again when the broker dies meanwhile, as it may at any call.
func readBackPatiently(t *testing.T, l *Load, b *broker, url string) error {
	var err error
	for range 20 {
		if err = l.ReadBack(t.Context(), url, true); err == nil {
			return nil
		}
		b.restart()
		l.Checker.Restarted()
	}
	return err
}
