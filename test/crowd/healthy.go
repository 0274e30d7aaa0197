package crowd

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/mq/api"
)

// Healthy are clients that do nothing wrong: publishers with a fixed pace, readers that wait for what they publish, and
// one that reads what is there, page by page.
type Healthy struct {
	url  string
	stop context.CancelFunc
	all  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	times  []time.Duration
	reads  []time.Duration
	failed []string
}

const (
	publishersMax = 16
	publishEvery  = 25 * time.Millisecond // of each publisher
)

// sizes are those of the records, by the number of the publisher.
var sizes = [publishersMax]int{100, 100, 1000, 100, 1000, 100, 4000, 100, 100, 1000, 100, 100, 16 << 10, 100, 100, 64 << 10}

// NewHealthy starts 16 publishers and 4 readers.
func NewHealthy(ctx context.Context, url, topic string) *Healthy {
	h := &Healthy{url: url}
	ctx, h.stop = context.WithCancel(ctx)
	begin := func(work func(via *http.Client)) {
		// Each has a connection of its own, from before the crowd comes: who comes later may find no place.
		via := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}}
		h.all.Go(func() {
			defer via.CloseIdleConnections()
			work(via)
		})
	}
	for i, size := range sizes {
		begin(func(via *http.Client) { h.publish(ctx, via, i, size) })
	}
	for i := range 3 {
		begin(func(via *http.Client) { h.follow(ctx, via, i) })
	}
	begin(func(via *http.Client) { h.read(ctx, via, topic) })
	return h
}

// Stop ends them and waits until they have ended.
func (h *Healthy) Stop() {
	h.stop()
	h.all.Wait()
}

// Take returns how long publishes and other requests have taken, and what failed, since the last Take.
func (h *Healthy) Take() (publishes, reads []time.Duration, failed []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	publishes, reads, failed = h.times, h.reads, h.failed
	h.times, h.reads, h.failed = nil, nil, nil
	return publishes, reads, failed
}

// publish keeps a pace. A publish that is late because the one before took long counts from when it was due.
func (h *Healthy) publish(ctx context.Context, via *http.Client, number, size int) {
	topic := fmt.Sprintf("healthy-%d", number%4)
	body, err := json.Marshal(map[string]string{"topic": topic, "value": base64.StdEncoding.EncodeToString(make([]byte, size))})
	if err != nil {
		panic(err)
	}
	dice := rand.New(rand.NewPCG(uint64(number), 0))
	due := time.Now().Add(time.Duration(dice.Int64N(int64(publishEvery))))
	for {
		t := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if _, ok := h.call(ctx, via, api.PathPublish, body); ok {
			h.took(&h.times, time.Since(due))
		}
		if due = due.Add(publishEvery); time.Since(due) > time.Second {
			due = time.Now() // after a failure; it has been told
		}
	}
}

// follow reads what is published, as it comes.
func (h *Healthy) follow(ctx context.Context, via *http.Client, number int) {
	next := uint64(0)
	for ctx.Err() == nil {
		page, ok := h.fetch(ctx, via, fmt.Sprintf(`{"topic":"healthy-%d","offset":%d,"wait_ms":2000}`, number, next))
		if ok {
			next = page.NextOffset
		}
	}
}

// read reads what is there, from the beginning again and again, a page every 25 ms.
func (h *Healthy) read(ctx context.Context, via *http.Client, topic string) {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for next := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		page, ok := h.fetch(ctx, via, fmt.Sprintf(`{"topic":%q,"offset":%d,"limit":100}`, topic, next))
		if !ok {
			continue
		}
		h.took(&h.reads, time.Since(began))
		if next = page.NextOffset; next >= page.EndOffset {
			next = 0
		}
	}
}

type page struct {
	Records    []json.RawMessage `json:"records"`
	NextOffset uint64            `json:"next_offset"`
	EndOffset  uint64            `json:"end_offset"`
}

func (h *Healthy) fetch(ctx context.Context, via *http.Client, body string) (p page, ok bool) {
	answer, ok := h.call(ctx, via, api.PathFetch, []byte(body))
	if !ok {
		return p, false
	}
	if err := json.Unmarshal(answer, &p); err != nil {
		h.fail("%s: %v", body, err)
		return p, false
	}
	return p, true
}

// call sends one request, once.
func (h *Healthy) call(ctx context.Context, via *http.Client, path string, body []byte) ([]byte, bool) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	answer, err := via.Do(r)
	if err != nil {
		h.failUnless(ctx, "%s, %d bytes: %v", path, len(body), err)
		return nil, false
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		h.failUnless(ctx, "%s, %d bytes: %v", path, len(body), err)
		return nil, false
	}
	// Before the first publish there is nothing to follow.
	if answer.StatusCode != http.StatusOK && !bytes.Contains(text, []byte(api.CodeTopicNotFound)) {
		h.fail("%s, %d bytes: %d %.200s", path, len(body), answer.StatusCode, text)
	}
	return text, answer.StatusCode == http.StatusOK
}

func (h *Healthy) took(to *[]time.Duration, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*to = append(*to, d)
}

func (h *Healthy) failUnless(ctx context.Context, format string, args ...any) {
	if ctx.Err() == nil {
		h.fail(format, args...)
	}
}

func (h *Healthy) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = append(h.failed, fmt.Sprintf(format, args...))
}

// quantile returns the value below which a part of them lies; 0 if there are none.
func quantile(all []time.Duration, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}
