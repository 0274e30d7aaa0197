package httpapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/api"
)

// fill publishes n records of size bytes each.
func (r *running) fill(n, size int) {
	r.t.Helper()
	for n > 0 {
		k := min(n, api.BatchMax)
		path := api.PathPublishBatch
		if k == 1 {
			path = api.PathPublish
		}
		if a := r.post(path, string(benchBody(k, size))); a.status != 200 {
			r.t.Fatalf("publish: %d %.300s", a.status, a.body)
		}
		n -= k
	}
}

// TestSlowReadersAreBounded: clients that ask for much and read nothing take no more memory than the budget,
// and others are served, with shorter pages.
func TestSlowReadersAreBounded(t *testing.T) {
	const total = 8 << 20
	s := start(t, func(c *Config) { c.AnswerBudgetBytes = total })
	s.fill(64, 64<<10)
	ask := request1(api.PathFetch, `{"topic":"bench","offset":0,"limit":1000}`)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		c := s.dial()
		c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		c.send(ask)
	}
	waitUntil(t, "the budget is taken", func() bool { return s.answers.left.Load() < answerMin })
	waitUntil(t, "all asked", func() bool { return s.fake.callCount() >= 102 })
	runtime.GC()
	runtime.GC() // the second empties the pools
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapInuse) - int64(before.HeapInuse); used > total+100*(keepMax+32<<10)+8<<20 {
		t.Errorf("%d MiB in use", used>>20)
	}
	if left := s.answers.left.Load(); left < 0 {
		t.Errorf("%d bytes left", left)
	}
	// Small answers need no share.
	s.post(api.PathPublish, `{"topic":"small","value":"AA=="}`)
	if a := s.post(api.PathFetch, `{"topic":"small","offset":0}`); a.status != 200 || len(a.json["records"].([]any)) != 1 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestShortPages: with little memory a page ends early, says so, and reading on gets every record once.
func TestShortPages(t *testing.T) {
	s := start(t)
	s.fill(200, 2<<10)
	for _, left := range []int64{0, 100 << 10, 200 << 10, 1 << 20} {
		held := s.cfg.AnswerBudgetBytes - left
		if !s.answers.tryTake(held) {
			t.Fatal("the budget is not full")
		}
		pages := 0
		for next := 0; next < 200; pages++ {
			a := s.post(api.PathFetch, fmt.Sprintf(`{"topic":"bench","offset":%d,"limit":1000}`, next))
			if a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			records := a.json["records"].([]any)
			for i, r := range records {
				if got := r.(map[string]any)["offset"].(float64); got != float64(next+i) {
					t.Fatalf("record %v, want %d", got, next+i)
				}
			}
			if len(records) == 0 || a.json["next_offset"] != float64(next+len(records)) || a.json["end_offset"] != 200.0 {
				t.Fatalf("%d records from %d on, then %v of %v", len(records), next, a.json["next_offset"], a.json["end_offset"])
			}
			if size := int64(len(a.body)); size > left+keepMax {
				t.Fatalf("%d bytes, with %d left", size, left)
			}
			next += len(records)
		}
		if pages == 1 != (left == 1<<20) {
			t.Errorf("with %d left: %d pages", left, pages)
		}
		s.answers.give(held)
	}
	waitUntil(t, "all is given back", func() bool { return s.answers.left.Load() == s.cfg.AnswerBudgetBytes })
}

// TestAnswerWaitsForMemory: a record that finds no room waits for it.
func TestAnswerWaitsForMemory(t *testing.T) {
	s := start(t)
	s.fill(2, api.MessageMax)
	s.answers.tryTake(s.cfg.AnswerBudgetBytes)
	done := make(chan *answer)
	for range 2 {
		go func() { done <- s.post(api.PathFetch, `{"topic":"bench","offset":0}`) }()
	}
	waitUntil(t, "they wait", func() bool { return s.answers.waiting.Load() == 2 })
	s.answers.give(answerMin)
	for range 2 { // one after the other
		if a := <-done; a.status != 200 || len(a.json["records"].([]any)) != 1 || a.json["next_offset"] != 1.0 {
			t.Errorf("%d %.300s", a.status, a.body)
		}
	}
	waitUntil(t, "all is given back", func() bool { return s.answers.left.Load() == answerMin })
	s.answers.tryTake(answerMin)
	if a := s.post(api.PathFetch, `{"topic":"bench","offset":0}`); a.status != 503 || a.code() != "unavailable" || a.closed {
		t.Errorf("without memory: %d %.300s", a.status, a.body)
	}
	s.answers.give(s.cfg.AnswerBudgetBytes)
}

// TestLargeBatchesAtOnce: more large batches than the budget holds, sent slowly, all succeed.
func TestLargeBatchesAtOnce(t *testing.T) {
	s := start(t)
	body := string(benchBody(32, 256<<10))
	var wg sync.WaitGroup
	for i := range 12 {
		c := s.dial()
		wg.Go(func() {
			if i == 0 {
				c.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
					api.PathPublishBatch, len(body), body))
			} else {
				all := request1(api.PathPublishBatch, body)
				for len(all) > 0 {
					n := min(len(all), 1<<20)
					c.send(all[:n])
					all = all[n:]
					time.Sleep(20 * time.Millisecond) // how slow the client is
				}
			}
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("%d %.300s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	waitUntil(t, "all memory is given back", func() bool {
		return s.budget.left.Load() == s.cfg.BodyBudgetBytes && s.chunked.left.Load() == bodyCharge(bodyMax+1)
	})
}

// TestStalledBodyIsCut: who announces much and then stalls loses the memory soon.
func TestStalledBodyIsCut(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.TransferTimeout = 50 * time.Millisecond })
	began := time.Unix(1_700_000_000, 0)
	for _, n := range []int{0, 3 << 20, bodyMax - 1} {
		want := 50*time.Millisecond + timeFor(min(n+1<<20, bodyMax))
		if d := s.readDeadline(began, n, bodyMax).Sub(began); d != want {
			t.Errorf("with %d bytes read: %v, want %v", n, d, want)
		}
	}
	c := s.dial()
	c.send(fmt.Sprintf("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", bodyMax, strings.Repeat(" ", 60_000)))
	waitUntil(t, "it holds its share", func() bool { return s.budget.left.Load() == s.cfg.BodyBudgetBytes-bodyCharge(bodyMax) })
	if a := c.receive("POST"); a.status != 408 { // within 8 s, not 128: the connection of the test lives 20 s
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestSmallBodies: calls that carry no records have a small limit, and hold nothing of the body while waiting.
func TestSmallBodies(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	s.fake.seed()
	pad := func(body string, n int) string { return body + strings.Repeat(" ", n-len(body)) }
	for path, body := range goodBodies {
		large := shapes[path].records
		for _, row := range []struct {
			n  int
			ok bool
		}{{bodySmallMax, true}, {bodySmallMax + 1, large}, {1 << 20, large}} {
			c := s.dial()
			c.send(request1(path, pad(body, row.n), "Authorization", "Bearer root"))
			if a := c.receive("POST"); row.ok != (a.status == 200) || !row.ok && (a.status != 413 || a.code() != "too_large") {
				t.Errorf("%s, %d bytes: %d %s", path, row.n, a.status, a.body)
			}
			c = s.dial()
			c.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer root\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
				path, row.n, pad(body, row.n)))
			if a := c.receive("POST"); row.ok != (a.status == 200) || !row.ok && (a.status != 413 || a.code() != "too_large") {
				t.Errorf("%s, %d bytes in chunks: %d %s", path, row.n, a.status, a.body)
			}
		}
	}
	for _, body := range []string{`{"topic":"t","offset":9,"wait_ms":20000}`, `{"topic":"\u0074","group":"h","wait_ms":20000}`} {
		path := api.PathFetch
		if strings.Contains(body, "group") {
			path = api.PathGroupsFetch
			s.post(api.PathGroupsCommit, `{"group":"h","topic":"t","next_offset":`+fmt.Sprint(s.fake.size("t"))+`}`)
		} else {
			body = strings.Replace(body, "9", fmt.Sprint(s.fake.size("t")), 1)
		}
		// The answers to the calls before may have come sooner than their memory was given back.
		waitUntil(t, "all is given back", func() bool { return s.singles.left.Load() == s.cfg.SingleBudgetBytes })
		c := s.dial()
		c.send(request1(path, pad(body, 40_000)))
		waitUntil(t, "it waits", func() bool { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits == 1 })
		if left := s.singles.left.Load(); left != s.cfg.SingleBudgetBytes {
			t.Errorf("%s holds %d bytes while it waits", path, s.cfg.SingleBudgetBytes-left)
		}
		s.fill(1, 20_000) // takes the memory that was given back
		s.post(api.PathPublish, goodBodies[api.PathPublish])
		if a := c.receive("POST"); a.status != 200 || len(a.json["records"].([]any)) != 1 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

func (f *fakeBroker) size(topic string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.topics[topic].records)
}

// TestPipelinedAnswerIsNotHeldBack: an answer does not wait for the long poll behind it in the pipeline.
func TestPipelinedAnswerIsNotHeldBack(t *testing.T) {
	s := start(t)
	poll := request1(api.PathFetch, `{"topic":"t","offset":5,"wait_ms":20000}`)
	began := time.Now()
	for _, cut := range []int{len(poll), len(poll) - 1, len(poll) - 50, 20, 0} { // where the poll is cut in two
		c := s.dial()
		c.send(request1(api.PathPublish, goodBodies[api.PathPublish]) + poll[:cut])
		if cut < len(poll)-41 {
			// Its header is not complete: the answer is there before we go on.
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("cut at %d: %d %s", cut, a.status, a.body)
			}
			c.send(poll[cut:])
			waitUntil(t, "it waits", func() bool { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits == 1 })
			c.Close()
			waitUntil(t, "it is gone", func() bool { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits == 0 })
			continue
		}
		<-time.After(10 * time.Millisecond) // so that the two parts are not read at once
		c.send(poll[cut:])
		for i := range 2 {
			if a := c.receive("POST"); a.status != 200 {
				t.Errorf("cut at %d, answer %d: %d %s", cut, i, a.status, a.body)
			}
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestLingeringEndsWithServer: a client that goes on sending after its answer does not hold up Shutdown.
func TestLingeringEndsWithServer(t *testing.T) {
	took := func(name string, goOn bool) time.Duration {
		s := start(t)
		c := s.dial()
		c.send("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n ")
		if a := c.receive("POST"); a.status != 413 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		if goOn {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						if _, err := io.WriteString(c, "x"); err != nil {
							return
						}
					}
				}
			})
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		began := time.Now()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		d := time.Since(began)
		cancel()
		close(stop)
		wg.Wait()
		return d
	}
	if d := took("sends on", true); d > lingerTimeout/2 {
		t.Errorf("of one who sends on: Shutdown took %v", d)
	}
	const limit = lingerSilence / 2
	best := took("is silent", false)
	for tries := 1; best > limit && tries < 5; tries++ { // where this process got no time
		best = min(best, took("is silent", false))
	}
	if best > limit {
		t.Errorf("of one who is silent: Shutdown took %v, at best", best)
	}
}

// TestStrictDecoderIsBounded: what the strict decoder takes beyond the body is within what was charged for.
func TestStrictDecoderIsBounded(t *testing.T) {
	value := base64.StdEncoding.EncodeToString(make([]byte, 256<<10))
	legal := `{"topic":"\u0074","messages":[` + strings.Repeat(`{"value":"\u0041`+value[1:]+`"},`, 31) + `{"value":""}]}`
	for name, row := range map[string]struct {
		body   string
		status int
		shape  *shape
	}{
		"legal":        {legal, 0, &shapePublishBatch},
		"value":        {`{"topic":"t","value":"` + strings.Repeat(`\u0041`, bodyMax/6-10) + `"}`, 413, &shapePublish},
		"plain value":  {`{"topic":"t","value":"` + strings.Repeat(`A`, bodyMax-50) + `"}`, 413, &shapePublish},
		"slashes":      {`{"topic":"t","value":"` + strings.Repeat(`\/`, bodyMax/2-50) + `"}`, 413, &shapePublish},
		"topic":        {`{"topic":"` + strings.Repeat(`\n`, bodyMax/2-50) + `","value":""}`, 400, &shapePublish},
		"unknown name": {`{"` + strings.Repeat(`\n`, bodyMax/2-50) + `":""}`, 400, &shapePublish},
	} {
		body := []byte(row.body)
		s := &Server{}
		c := newCall(s)
		c.body = body
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		err := c.decode(row.shape)
		runtime.ReadMemStats(&after)
		switch {
		case err == nil && row.status != 0, err != nil && err.status != row.status:
			t.Errorf("%s: %v, want %d", name, err, row.status)
		case err == nil && len(c.req.records) != 32:
			t.Errorf("%s: %d records", name, len(c.req.records))
		}
		// The buffers of pools may be twice as large as what they hold.
		used := int64(after.TotalAlloc - before.TotalAlloc)
		if limit := 2*(bodyCharge(len(body))-int64(len(body))) + 256<<10; used > limit {
			t.Errorf("%s: %d KiB allocated for a body of %d, want at most %d", name, used>>10, len(body)>>10, limit>>10)
		}
	}
}
