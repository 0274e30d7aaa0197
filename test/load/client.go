package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/mq/test/history"
	"example.com/mq/test/process"
)

// The wire types are written here once more, apart from package api: a mistake there must show here.

type wireRecord struct {
	Key   []byte `json:"key,omitempty"`
	Value []byte `json:"value"`
}

type publishRequest struct {
	Topic string `json:"topic"`
	wireRecord
	RequestID string `json:"request_id,omitempty"`
}

type batchRequest struct {
	Topic     string       `json:"topic"`
	Messages  []wireRecord `json:"messages"`
	RequestID string       `json:"request_id,omitempty"`
}

type published struct {
	Offset    *uint64  `json:"offset"`
	Offsets   []uint64 `json:"offsets"`
	Duplicate bool     `json:"duplicate"`
}

type fetchRequest struct {
	Topic  string  `json:"topic"`
	Group  string  `json:"group,omitempty"`
	Offset *uint64 `json:"offset,omitempty"`
	Limit  int     `json:"limit"`
	WaitMS int     `json:"wait_ms,omitempty"`
}

type fetched struct {
	Records []struct {
		Offset uint64 `json:"offset"`
		Key    []byte `json:"key"`
		Value  []byte `json:"value"`
		TimeMS int64  `json:"timestamp_ms"`
	} `json:"records"`
	Next  uint64 `json:"next_offset"`
	Start uint64 `json:"start_offset"`
	End   uint64 `json:"end_offset"`
}

func (f *fetched) page() history.Page {
	p := history.Page{Next: f.Next, Start: f.Start, End: f.End}
	for _, r := range f.Records {
		p.Records = append(p.Records, history.Stored{Offset: r.Offset, Record: history.Record{Key: r.Key, Value: r.Value}, TimeMS: r.TimeMS})
	}
	return p
}

type commitRequest struct {
	Group string `json:"group"`
	Topic string `json:"topic"`
	Next  uint64 `json:"next_offset"`
}

type committed struct {
	Next uint64 `json:"next_offset"`
}

type retainRequest struct {
	Topic string `json:"topic"`
	Start uint64 `json:"start_offset"`
}

type retained struct {
	Start uint64 `json:"start_offset"`
}

// Outcome is what an answer, or its absence, says about a call.
type Outcome int

const (
	Done    Outcome = iota // 200
	NotDone                // 4xx, 507, 503 without outcome_unknown: it did not happen and will not
	Unknown                // no answer, 503 with outcome_unknown, any other 5xx
)

// Answer is the end of one call.
type Answer struct {
	Outcome
	Status  int           // 0: no answer
	Code    string        // of an error
	Message string        // of an error
	Start   uint64        // start_offset of an error, where there is one
	Took    time.Duration // until the answer was there
	Err     error         // why there is no answer
}

func (a Answer) String() string {
	if a.Status == 0 {
		return fmt.Sprintf("no answer after %v: %v", a.Took, a.Err)
	}
	return fmt.Sprintf("%d %s %q after %v", a.Status, a.Code, a.Message, a.Took)
}

// refused reports whether the answer blames the request, rather than asks for patience as 503 and 507 do.
func (a Answer) refused() bool { return a.Outcome == NotDone && a.Status/100 == 4 }

// Client speaks to one process.
type Client struct {
	url  string
	http *http.Client
}

// callMax is far above what any call may take; the contract has tighter limits where they matter.
const callMax = 20 * time.Second

// NewClient returns a client for a process that listens at url. Close it.
func NewClient(url string) *Client {
	return &Client{url: url, http: &http.Client{
		Timeout:       callMax,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call sends one request; out is filled when the answer is 200.
func (c *Client) call(ctx context.Context, path string, in, out any) Answer {
	body, err := json.Marshal(in)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	r.Header.Set("Authorization", "Bearer "+process.AdminToken)
	answer, err := c.http.Do(r)
	if err != nil {
		return Answer{Outcome: Unknown, Took: time.Since(began), Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	a := Answer{Status: answer.StatusCode, Took: time.Since(began)}
	if err != nil {
		// A status without its whole answer is no answer.
		return Answer{Outcome: Unknown, Took: a.Took, Err: err}
	}
	if a.Status == http.StatusOK {
		if err := json.Unmarshal(text, out); err != nil {
			a.Outcome, a.Code, a.Message = Unknown, "unreadable", err.Error()
		}
		return a
	}
	var e failure
	if err := json.Unmarshal(text, &e); err != nil {
		e = failure{Code: "unreadable", Message: string(text), Unknown: true}
	}
	a.Code, a.Message, a.Start = e.Code, e.Message, e.Start
	a.Outcome = e.outcome(a.Status)
	return a
}

// failure is the body of an answer other than 200.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Start   uint64 `json:"start_offset"`
	Unknown bool   `json:"outcome_unknown"`
}

// outcome takes the broker at its word: where it does not call the outcome unknown, it promises that nothing
// was done, and the checker holds it to that.
func (e failure) outcome(status int) Outcome {
	switch {
	case e.Unknown:
		return Unknown
	case status/100 == 4, status == http.StatusInsufficientStorage:
		return NotDone
	case status == http.StatusServiceUnavailable && (e.Code == "unavailable" || e.Code == "not_leader"):
		return NotDone
	}
	return Unknown
}

// publish sends records by the single or the batch endpoint.
func (c *Client) publish(ctx context.Context, topic, requestID string, records []history.Record, batch bool) ([]uint64, bool, Answer) {
	var out published
	if !batch {
		in := publishRequest{Topic: topic, wireRecord: wireRecord(records[0]), RequestID: requestID}
		a := c.call(ctx, "/v1/publish", in, &out)
		if a.Outcome != Done {
			return nil, false, a
		}
		if out.Offset == nil {
			return nil, out.Duplicate, a
		}
		return []uint64{*out.Offset}, out.Duplicate, a
	}
	in := batchRequest{Topic: topic, RequestID: requestID}
	for _, r := range records {
		in.Messages = append(in.Messages, wireRecord(r))
	}
	a := c.call(ctx, "/v1/publish-batch", in, &out)
	return out.Offsets, out.Duplicate, a
}

// fetch reads from an offset and lets the checker judge the answer.
func (c *Client) fetch(ctx context.Context, h *history.Checker, topic string, from uint64, limit, waitMS int) (history.Page, Answer) {
	r := h.Reading(topic, from, limit)
	var out fetched
	a := c.call(ctx, "/v1/fetch", fetchRequest{Topic: topic, Offset: &from, Limit: limit, WaitMS: waitMS}, &out)
	return judge(h, r, &out, a)
}

// groupFetch reads from a group's offset and lets the checker judge the answer.
func (c *Client) groupFetch(ctx context.Context, h *history.Checker, group, topic string, limit, waitMS int) (history.Page, Answer) {
	r := h.GroupReading(group, topic, limit)
	var out fetched
	a := c.call(ctx, "/v1/groups/fetch", fetchRequest{Topic: topic, Group: group, Limit: limit, WaitMS: waitMS}, &out)
	return judge(h, r, &out, a)
}

func judge(h *history.Checker, r history.Reading, out *fetched, a Answer) (history.Page, Answer) {
	switch {
	case a.Outcome == Done:
		p := out.page()
		h.Page(r, p)
		return p, a
	case a.Status == http.StatusNotFound:
		h.Missing(r)
	case a.Status == http.StatusGone:
		h.Gone(r, a.Start)
	}
	return history.Page{}, a
}

// commit moves a group's offset and tells the checker.
func (c *Client) commit(ctx context.Context, h *history.Checker, group, topic string, next uint64) Answer {
	h.Committing(group, topic, next)
	var out committed
	a := c.call(ctx, "/v1/groups/commit", commitRequest{Group: group, Topic: topic, Next: next}, &out)
	switch a.Outcome {
	case Done:
		h.Committed(group, topic, out.Next)
	case NotDone:
		h.NotCommitted(group, topic)
	}
	return a
}

// retain moves a topic's start and tells the checker.
func (c *Client) retain(ctx context.Context, h *history.Checker, topic string, start uint64) Answer {
	h.Retaining(topic, start)
	var out retained
	a := c.call(ctx, "/v1/topics/retain", retainRequest{Topic: topic, Start: start}, &out)
	if a.Outcome == Done {
		h.Retained(topic, out.Start)
	}
	return a
}

// Snapshot asks for a snapshot.
func (c *Client) Snapshot(ctx context.Context) Answer {
	var out struct {
		Index uint64 `json:"index"`
	}
	return c.call(ctx, "/v1/snapshot", struct{}{}, &out)
}
