package httpapi

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
)

func TestCalls(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	admin := []string{"Authorization", "Bearer root"}
	for _, step := range []struct {
		path, body string
		headers    []string
		status     int
		want       string
	}{
		{api.PathPublish, `{"topic":"t","key":"a2V5","value":"dmFsdWU="}`, nil, 200, `{"offset":0}`},
		{api.PathPublish, `{"topic":"t","value":"","request_id":"r1"}`, nil, 200, `{"offset":1}`},
		{api.PathPublish, `{"topic":"t","value":"","request_id":"r1"}`, nil, 200, `{"offset":1,"duplicate":true}`},
		{api.PathPublish, `{"topic":"t","value":"AA==","request_id":"r1"}`, nil, 409, ""},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":"AQ=="},{"key":"Ag==","value":"Aw=="}],"request_id":"r2"}`, nil, 200, `{"offsets":[2,3]}`},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":"AQ=="},{"key":"Ag==","value":"Aw=="}],"request_id":"r2"}`, nil, 200, `{"offsets":[2,3],"duplicate":true}`},
		{api.PathFetch, `{"topic":"t","offset":0,"limit":2}`, nil, 200,
			`{"records":[{"offset":0,"key":"a2V5","value":"dmFsdWU=","timestamp_ms":1700000000000},` +
				`{"offset":1,"key":"","value":"","timestamp_ms":1700000000001}],"next_offset":2,"start_offset":0,"end_offset":4}`},
		{api.PathFetch, `{"topic":"t","offset":9}`, nil, 200, `{"records":[],"next_offset":4,"start_offset":0,"end_offset":4}`},
		{api.PathFetch, `{"topic":"none","offset":0}`, nil, 404, ""},
		{api.PathGroupsCommit, `{"group":"g","topic":"t","next_offset":3}`, nil, 200, `{"next_offset":3}`},
		{api.PathGroupsCommit, `{"group":"g","topic":"t","next_offset":5}`, nil, 400, ""},
		{api.PathGroupsFetch, `{"group":"g","topic":"t"}`, nil, 200,
			`{"records":[{"offset":3,"key":"Ag==","value":"Aw==","timestamp_ms":1700000000003}],"next_offset":4,"start_offset":0,"end_offset":4}`},
		{api.PathTopicsRetain, `{"topic":"t","start_offset":4}`, admin, 200, `{"start_offset":4}`},
		{api.PathFetch, `{"topic":"t","offset":0}`, nil, 410, ""},
		{api.PathSnapshot, ``, admin, 200, `{"index":42}`},
		{api.PathSnapshot, `{}`, admin, 200, `{"index":42}`},
		{api.PathSnapshot, ` { } `, admin, 200, `{"index":42}`},
	} {
		a := s.post(step.path, step.body, step.headers...)
		if a.status != step.status || step.want != "" && a.body != step.want {
			t.Errorf("%s %s: %d %s, want %d %s", step.path, step.body, a.status, a.body, step.status, step.want)
		}
		if got := a.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: Content-Type %q", step.path, got)
		}
		if a.status != 200 && (a.code() == "" || a.json["message"] == "") {
			t.Errorf("%s: error without code or message: %s", step.path, a.body)
		}
	}
}

// TestAnswersDoNotMix: memory of one answer is not used for another before it was sent.
func TestAnswersDoNotMix(t *testing.T) {
	s := start(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			c := s.dial()
			topic, letter := fmt.Sprintf("topic-%d", w), strings.Repeat(string(rune('A'+w)), 4)
			for i, n := range []int{1, 50, 3000, 9000} {
				c.send(request1(api.PathPublish, fmt.Sprintf(`{"topic":"%s","value":"%s"}`, topic, strings.Repeat(letter, n))))
				if a := c.receive("POST"); a.body != fmt.Sprintf(`{"offset":%d}`, i) {
					t.Errorf("%s: %d %s", topic, a.status, a.body)
				}
			}
			for i := range 40 {
				c.send(request1(api.PathFetch, fmt.Sprintf(`{"topic":"%s","offset":%d}`, topic, i%4)))
				a := c.receive("POST")
				records, _ := a.json["records"].([]any)
				if len(records) != 4-i%4 {
					t.Errorf("%s: %d records", topic, len(records))
				}
				for _, r := range records {
					if v := r.(map[string]any)["value"].(string); strings.Trim(v, letter[:1]) != "" {
						t.Errorf("%s got %.20s", topic, v)
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestBrokerErrors checks the one table from the broker's errors to answers.
func TestBrokerErrors(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	restored := fact.Offset(8)
	for _, row := range []struct {
		err    error
		status int
		want   string // part of the body
	}{
		{broker.ErrTopicNotFound, 404, `"code":"topic_not_found"`},
		{broker.ErrGroupNotFound, 404, `{"code":"group_not_found","message":"the group has no offset in this topic; its first commit or seek there sets one","field":"group"}`},
		{broker.ErrStorageFull, 507, `"code":"storage_full"`},
		{broker.ErrRequestIDConflict, 409, `"code":"request_id_conflict"`},
		{&broker.UnavailableError{Reason: "no majority"}, 503, `"message":"no majority: nothing was done; try again later"`},
		{&broker.UnavailableError{Reason: "no majority", Unknown: true}, 503, `"outcome_unknown":true`},
		{&broker.NotLeaderError{}, 503, `{"code":"not_leader","message":"this node does not lead`},
		{&broker.OffsetGoneError{Start: 7}, 410, `"start_offset":7}`},
		{&broker.OffsetGoneError{Start: 1e12, RestoredEnd: &restored}, 410,
			`{"code":"offset_gone","message":"the broker was restored from a backup, or its log was cut: records from offset 8 on, ` +
				`of which a client may have seen some, are lost; go on at 1000000000000","field":"offset","start_offset":1000000000000,"restored_end":8}`},
		{&broker.OffsetRangeError{Start: 3, End: 9}, 400, `"start_offset":3,"end_offset":9`},
		{&broker.CorruptError{First: 4, Last: 5, Detail: "segment 1 at 512"}, 500, `"first_offset":4,"last_offset":5`},
		{errTest, 500, `"code":"internal"`},
	} {
		s.fake.setFail(row.err)
		for path, body := range goodBodies {
			a := s.post(path, body, "Authorization", "Bearer root")
			if a.status != row.status || !strings.Contains(a.body, row.want) {
				t.Errorf("%s with %v: %d %s, want %d and %s", path, row.err, a.status, a.body, row.status, row.want)
			}
			if retry := a.header.Get("Retry-After") != ""; retry != (row.status == 503) {
				t.Errorf("%s with %v: Retry-After is there: %v", path, row.err, retry)
			}
			if strings.Contains(a.body, "segment 1") || strings.Contains(a.body, errTest.Error()) {
				t.Errorf("%s with %v: the answer tells what only the operator needs: %s", path, row.err, a.body)
			}
		}
	}
	// A query is ignored, and may hold what should not be there.
	s.post(api.PathFetch+"?token=canary", goodBodies[api.PathFetch], "Authorization", "Bearer root")
	if log := s.log.String(); !strings.Contains(log, errTest.Error()) || !strings.Contains(log, "route="+api.PathFetch+" ") || strings.Contains(log, "canary") {
		t.Errorf("an unknown error was not logged, or with the query: %s", log)
	}
}

// TestPanicCostsOneConnection: a panic in our own code is answered and logged, and others do not notice.
func TestPanicCostsOneConnection(t *testing.T) {
	panics := true
	s := start(t, func(c *Config) {
		c.Fatal = func(any) { t.Error("a panic outside of the broker must not end the process") }
		c.Ready = func() (bool, any) {
			if panics {
				panic("test panic")
			}
			return true, nil
		}
	})
	c := s.dial()
	c.send("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if a := c.receive("GET"); a.status != 500 || a.code() != "internal" || !a.closed {
		t.Errorf("panic: %d %s, closed %v", a.status, a.body, a.closed)
	}
	c.atEnd()
	if log := s.log.String(); !strings.Contains(log, "test panic") || !strings.Contains(log, "goroutine") {
		t.Errorf("the log does not tell of the panic: %s", log)
	}
	panics = false
	if a := s.do("GET", api.PathReady, ""); a.status != 200 {
		t.Errorf("after the panic: %d %s", a.status, a.body)
	}
}

// TestPanicOfBrokerIsFatal: a panic that comes out of the broker is logged and ends the process.
func TestPanicOfBrokerIsFatal(t *testing.T) {
	fatal := make(chan any, 1)
	var s *running
	s = start(t, func(c *Config) {
		c.AdminToken = "root"
		c.Fatal = func(p any) {
			if log := s.log.String(); !strings.Contains(log, "fake panic") || !strings.Contains(log, "goroutine") {
				t.Errorf("it was not logged before: %s", log)
			}
			fatal <- p
		}
	})
	s.fake.mu.Lock()
	s.fake.panics = true
	s.fake.mu.Unlock()
	for path, body := range goodBodies {
		if a := s.post(path, body, "Authorization", "Bearer root"); a.status != 500 || !a.closed {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		select {
		case p := <-fatal:
			if p != "fake panic" {
				t.Errorf("%s: Fatal got %v", path, p)
			}
		default:
			t.Errorf("%s: Fatal was not called", path)
		}
	}

	cfg := Config{Broker: s.fake, Logger: startLogger()}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if p := recover(); p != "BUG: the broker panicked: again" {
			t.Errorf("the default of Fatal does not panic again, recovered %v", p)
		}
	}()
	cfg.Fatal("again")
}
