package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, half histogram
	var all []time.Duration
	for i := range 20000 {
		d := time.Duration(r.ExpFloat64() * float64(time.Millisecond))
		if i%100 == 0 {
			d *= 1000
		}
		all = append(all, d)
		if i%2 == 0 {
			h.record(d)
		} else {
			half.record(d)
		}
	}
	h.add(&half)
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(len(all)-1, int(q*float64(len(all))))]
		got := h.quantile(q)
		if got < want || float64(got-want) > float64(want)/100+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if h.count != 20000 || h.largest != all[len(all)-1] {
		t.Errorf("count %d, largest %v", h.count, h.largest)
	}
	var empty histogram
	if empty.quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	empty.record(-1)
	empty.record(1 << 60)
	if empty.quantile(1) != 1<<60 {
		t.Errorf("the largest is %v", empty.quantile(1))
	}
}

func TestBuckets(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 127, 128, 255, 256, 257, 511, 512, 1000, 1e6, 1e9, 1e12} {
		b := bucketOf(d)
		if v := valueOf(b); v < d || float64(v-d) > float64(d)/127 {
			t.Errorf("%d is in bucket %d up to %d", d, b, v)
		}
		if d > 0 && valueOf(bucketOf(d)-1) >= d {
			t.Errorf("%d is in the bucket before too", d)
		}
	}
}

func TestParseHead(t *testing.T) {
	status, length, location, err := parseHead([]byte("HTTP/1.1 307 Temporary Redirect\r\nServer: x\r\ncontent-LENGTH:  12 \r\nLocation: http://a:1/v1/publish\r\n\r\n"))
	if status != 307 || length != 12 || location != "http://a:1/v1/publish" || err != nil {
		t.Errorf("got %d %d %q %v", status, length, location, err)
	}
	for _, head := range []string{
		"", "\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 2x0 OK\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 2000\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
	} {
		if _, _, _, err := parseHead([]byte(head)); err == nil {
			t.Errorf("%q is accepted", head)
		}
	}
}

// FuzzParseHead: no head makes the parser panic, and what it takes keeps its bounds.
func FuzzParseHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 12\r\nLocation: http://a:1/v1/publish\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\n:\r\n\r"))
	f.Fuzz(func(t *testing.T, head []byte) {
		status, length, _, err := parseHead(head)
		if err == nil && (status < 0 || status > 999 || length < 0 || length > answerMax) {
			t.Errorf("status %d, length %d", status, length)
		}
	})
}

// FuzzParseOffsets holds the fast parser against the slow one.
func FuzzParseOffsets(f *testing.F) {
	f.Add([]byte(`{"offset":7}`), 1)
	f.Add([]byte(`{"offsets":[7,8,9]}`), 3)
	f.Add([]byte(`{"offsets":[007,8]}`), 2)
	f.Fuzz(func(t *testing.T, answer []byte, count int) {
		if count < 1 || count > api.BatchMax {
			return
		}
		first, ok := parseOffsetsFast(answer, count)
		if !ok {
			parseOffsets(answer, count)
			return
		}
		var a struct {
			Offset  *uint64
			Offsets []uint64
		}
		if err := json.Unmarshal(answer, &a); err != nil {
			// Digits that JSON does not allow: a leading zero.
			if !bytes.Contains(answer, []byte("0")) {
				t.Fatalf("%q is taken: %v", answer, err)
			}
			return
		}
		if a.Offset != nil {
			a.Offsets = append(a.Offsets, *a.Offset)
		}
		if len(a.Offsets) != count || a.Offsets[0] != first || a.Offsets[count-1] != first+uint64(count-1) {
			t.Errorf("%q: %d for %d records", answer, first, count)
		}
	})
}

// TestParseOffsets: what the fast parser takes is what encoding/json understands, and what is no answer to
// the request is an error.
func TestParseOffsets(t *testing.T) {
	for _, test := range []struct {
		answer string
		count  int
		first  uint64
		ok     bool
	}{
		{`{"offset":7}`, 1, 7, true},
		{`{"offset":7}` + "\n", 1, 7, true},
		{`{"offset":7,"duplicate":true}`, 1, 7, true},
		{` { "offset" : 7 } `, 1, 7, true},
		{`{"offsets":[7,8,9]}`, 3, 7, true},
		{`{"offsets":[7]}`, 1, 7, true},
		{`{"offsets": [7, 8]}`, 2, 7, true},
		{`{"offset":}`, 1, 0, false},
		{`{"offset":-7}`, 1, 0, false},
		{`{"offset":7`, 1, 0, false},
		{`{}`, 1, 0, false},
		{`{"offsets":[7,8]}`, 3, 0, false},
		{`{"offsets":[7,8,9,10]}`, 3, 0, false},
		{`{"offsets":[7,9]}`, 2, 0, false},
		{`{"offsets":[7,8,]}`, 2, 0, false},
		{`{"offset":7}`, 2, 0, false},
		{`{"code":"internal"}`, 1, 0, false},
		{``, 1, 0, false},
	} {
		first, err := parseOffsets([]byte(test.answer), test.count)
		if first != test.first || (err == nil) != test.ok {
			t.Errorf("%s for %d records: %d, %v", test.answer, test.count, first, err)
		}
	}
}

func TestCheckDense(t *testing.T) {
	producers := func(ranges ...[2]uint64) (all []*producer) { // first and count
		for _, r := range ranges {
			p := &producer{}
			if r[1] > 0 {
				p.seen = offsets{count: r[1], first: r[0], next: r[0] + r[1]}
			}
			all = append(all, p)
		}
		return all
	}
	for name, test := range map[string]struct {
		all []*producer
		ok  bool
	}{
		"none":       {producers(), true},
		"one":        {producers([2]uint64{0, 5}), true},
		"two":        {producers([2]uint64{0, 5}, [2]uint64{5, 3}), true},
		"idle":       {producers([2]uint64{0, 5}, [2]uint64{0, 0}), true},
		"a gap":      {producers([2]uint64{0, 5}, [2]uint64{6, 3}), false},
		"given away": {producers([2]uint64{0, 5}, [2]uint64{4, 3}), false},
	} {
		if err := checkDense(test.all, true); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	var o offsets
	if o.add(5, 2) != nil || o.add(9, 1) != nil || o.add(9, 1) == nil {
		t.Error("an offset that was given before is accepted")
	}
}

// fakeBroker keeps one topic in memory, as the API shows it. After n requests it answers by wrong instead.
func fakeBroker(t *testing.T, n int64, wrong func(w http.ResponseWriter)) string {
	var (
		values   = make(chan [][]byte, 1) // the topic; taken out by who works on it
		requests atomic.Int64
	)
	values <- nil
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Value    []byte        `json:"value"`
			Messages []api.Message `json:"messages"`
			Offset   uint64        `json:"offset"`
			WaitMS   int           `json:"wait_ms"`
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // a measurement that has failed cuts the requests of the other producers
		}
		if err := json.Unmarshal(body, &request); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if wrong != nil && requests.Add(1) > n {
			wrong(w)
			return
		}
		topic := <-values
		defer func() { values <- topic }()
		answer := func(v any) {
			b, _ := json.Marshal(v)
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b)
		}
		switch r.URL.Path {
		case api.PathPublish:
			answer(api.PublishAnswer{Offset: uint64(len(topic))})
			topic = append(topic, request.Value)
		case api.PathPublishBatch:
			var a api.PublishBatchAnswer
			for _, m := range request.Messages {
				a.Offsets = append(a.Offsets, uint64(len(topic)))
				topic = append(topic, m.Value)
			}
			answer(a)
		case api.PathFetch:
			for request.WaitMS > 0 && request.Offset >= uint64(len(topic)) && r.Context().Err() == nil {
				values <- topic
				topic = <-values
			}
			a := api.FetchAnswer{Records: []api.Record{}, EndOffset: uint64(len(topic))}
			a.NextOffset = min(request.Offset, a.EndOffset)
			for ; a.NextOffset < a.EndOffset && len(a.Records) < 1000; a.NextOffset++ {
				a.Records = append(a.Records, api.Record{Offset: a.NextOffset, Key: []byte{}, Value: topic[a.NextOffset]})
			}
			answer(a)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func config(url string) Config {
	return Config{
		Target: Target{Nodes: []string{url}}, Topic: "t", FreshTopic: true, Size: 100,
		Warmup: 5 * time.Millisecond, Duration: 30 * time.Millisecond,
	}
}

func TestMeasurements(t *testing.T) {
	ctx := context.Background()
	for _, netHTTP := range []bool{false, true} {
		for name, measure := range map[string]func(cfg Config) (Result, error){
			"publish": func(cfg Config) (Result, error) { return Publish(ctx, cfg, 3, 1) },
			"batch":   func(cfg Config) (Result, error) { return Publish(ctx, cfg, 2, 5) },
			"fetch":   func(cfg Config) (Result, error) { return Fetch(ctx, cfg, 2345) },
			"latency": func(cfg Config) (Result, error) { return Latency(ctx, cfg) },
		} {
			cfg := config(fakeBroker(t, 0, nil))
			cfg.NetHTTP = netHTTP
			r, err := measure(cfg)
			for try := 1; try < 10 && err == nil && r.Records == 0; try++ { // the window has passed by
				r, err = measure(cfg)
			}
			if err != nil || r.Records == 0 || r.Rate <= 0 || r.Size != 100 || r.ClientCPU <= 0 {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if name != "fetch" && (r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P999) {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

// TestErrorsFail: a measurement with any wrong answer in it is none.
func TestErrorsFail(t *testing.T) {
	ctx := context.Background()
	answer := func(status int, body string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, wrong := range map[string]func(w http.ResponseWriter){
		"503":             answer(503, `{"code":"unavailable","message":"m"}`),
		"nonsense":        answer(200, `hello`),
		"the same offset": answer(200, `{"offset":0}`),
		"a gap":           answer(200, `{"offset":1000000}`),
		"hung up":         func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"elsewhere": func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/v1/publish")
			answer(307, "")(w)
		},
	} {
		for _, netHTTP := range []bool{false, true} {
			cfg := config(fakeBroker(t, 20, wrong))
			cfg.NetHTTP, cfg.Duration = netHTTP, time.Minute // the error ends it
			if r, err := Publish(ctx, cfg, 2, 1); err == nil {
				t.Errorf("publish, %s: %+v", name, r)
			}
			cfg = config(fakeBroker(t, 20, wrong))
			cfg.NetHTTP, cfg.Duration = netHTTP, time.Minute
			if r, err := Latency(ctx, cfg); err == nil {
				t.Errorf("latency, %s: %+v", name, r)
			}
			cfg = config(fakeBroker(t, 25, wrong))
			cfg.NetHTTP, cfg.Duration = netHTTP, 0
			if r, err := Fetch(ctx, cfg, 31*32); err == nil {
				t.Errorf("fetch, %s: %+v", name, r)
			}
		}
	}
}

// TestCancelEndsAll although the broker does not answer.
func TestCancelEndsAll(t *testing.T) {
	hung := make(chan struct{})
	defer close(hung)
	for _, netHTTP := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := errors.New("enough")
		cfg := config(fakeBroker(t, 5, func(w http.ResponseWriter) { cancel(cause); <-hung }))
		cfg.NetHTTP, cfg.Duration = netHTTP, time.Hour
		if _, err := Publish(ctx, cfg, 2, 1); !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

func TestRedirect(t *testing.T) {
	leader := fakeBroker(t, 0, nil)
	follower := fakeBroker(t, 0, func(w http.ResponseWriter) {
		w.Header().Set("Location", leader+"/v1/publish")
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(307)
	})
	cfg := config(follower)
	cfg.Nodes = append(cfg.Nodes, leader)
	if _, err := Publish(context.Background(), cfg, 2, 1); err != nil {
		t.Error(err)
	}
}

// TestLeanRequest shows what goes over the wire.
// TestRedirectToNobody: the node that the redirect leads to is down; the connection can be closed all the same.
func TestRedirectToNobody(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := "http://" + listener.Addr().String()
	listener.Close()
	follower := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", down+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	defer follower.Close()
	c, err := dial(t.Context(), &Target{Nodes: []string{follower.URL, down}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.send(api.PathPublish, append(c.body(), "{}"...)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.receive(t.Context()); err == nil {
		t.Error("an answer came from nobody")
	}
	c.close()
}

func TestLeanRequest(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Authorization"), " ", r.ContentLength, " ", string(body))
		w.Header().Set("Content-Length", "12")
		io.WriteString(w, `{"offset":3}`)
	}))
	defer server.Close()
	cfg := config(server.URL)
	cfg.Topic, cfg.Token = "a\"b", "secret"
	p, err := newLeanPublisher(context.Background(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, size := range []int{0, 1, 27, 28, 100, 5000, 100000, 3} { // small after large: buffers are used again
		value := bytes.Repeat([]byte("v"), size)
		if first, err := p.send([][]byte{value}); err != nil || first != 3 {
			t.Fatalf("%d, %v", first, err)
		}
		body := `{"topic":"a\"b","value":"` + base64.StdEncoding.EncodeToString(value) + `"}`
		if want := fmt.Sprint("POST /v1/publish Bearer secret ", len(body), " ", body); got != want {
			t.Fatalf("got  %.200s\nwant %.200s", got, want)
		}
	}
}

// TestPublishDoesNotAllocate: the client must not be what is measured.
func TestPublishDoesNotAllocate(t *testing.T) {
	server, c := pipe(t)
	defer server.Close()
	p := &leanPublisher{ctx: context.Background(), topic: []byte(`"t"`), conn: c}
	values := makeValues(1, 100)
	publish := func() {
		if first, err := p.send(values); err != nil || first != 12 {
			t.Fatalf("%d, %v", first, err)
		}
	}
	publish()
	if n := testing.AllocsPerRun(200, publish); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCheckPage(t *testing.T) {
	page := func(next uint64, offsets ...uint64) *client.Page {
		p := &client.Page{NextOffset: next}
		for _, o := range offsets {
			p.Records = append(p.Records, client.StoredRecord{Offset: o})
		}
		return p
	}
	for _, p := range []*client.Page{page(5), page(7, 5, 6)} {
		if err := checkPage(p, 5); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []*client.Page{page(6), page(7, 6, 5), page(7, 5, 5), page(8, 5, 6), page(6, 5, 6), page(8, 6, 7)} {
		if err := checkPage(p, 5); err == nil {
			t.Errorf("%+v is accepted from 5 on", p)
		}
	}
}

func TestFreshTopics(t *testing.T) {
	if a := FreshTopic(); !strings.HasPrefix(a, "bench-") {
		t.Error(a)
	}
}
