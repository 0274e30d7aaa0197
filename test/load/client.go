package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
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
	NotDone                // 4xx, 507, 307, 503 without outcome_unknown: it did not happen and will not
	Unknown                // no answer, 503 with outcome_unknown, any other 5xx
)

// Answer is the end of one call.
type Answer struct {
	Outcome
	Status  int    // 0: no answer
	Code    string // of an error
	Message string // of an error
	Leader  string // of a redirect: the URL of the node that leads
	Start   uint64 // start_offset of an error, where there is one
	First   uint64 // first_offset and last_offset of an error: the records that are damaged
	Last    uint64
	Began   time.Time     // before anything was sent
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

// elsewhere reports whether the answer says that this node cannot take the call, and nothing about the call.
func (a Answer) elsewhere() bool {
	return a.Status == http.StatusServiceUnavailable || a.Status == http.StatusTemporaryRedirect
}

// Client speaks to one process, or to the nodes of a pair or a cluster: the one that leads is found by asking.
type Client struct {
	urls    []string
	at      atomic.Int64 // counts how often the next of urls was taken
	patient bool
	cluster bool
	nodes   []string
	heard   func(url, path string, a Answer)
	http    *http.Client
}

// Options say how a Client finds its broker. Zero means default.
type Options struct {
	URLs []string // one for each node that may lead
	// Patient makes the clients of a Load go on when there is no answer, and lets calls finish that are under way when
	// the Load shall stop: what becomes of them is known then, if anybody knows.
	Patient bool
	// Cluster makes the client follow redirects to any other of URLs, turn to the next of them when one cannot serve, and
	// begin one call in ten at any of them.
	Cluster bool
	// Nodes are all nodes of the cluster, if those of URLs are not: a redirect to one of the others is not followed.
	Nodes []string
	// Heard is called after each answer, or its absence, by many goroutines.
	Heard func(url, path string, a Answer)
	// Timeout is how long a call may take; what becomes of it then is not known, and it may happen much later. Default:
	// 20 s, which is more than any call needs.
	Timeout time.Duration
	// Dial and TLS reach a broker in another network. Default: http on this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	TLS  *tls.Config
}

// callMax is far above what any call may take; the contract has tighter limits where they matter.
const callMax = 20 * time.Second

// NewClient returns a client for a process that listens at url. Close it.
func NewClient(url string) *Client { return Open(Options{URLs: []string{url}}) }

// Open returns a client. Close it.
func Open(o Options) *Client {
	if o.Timeout == 0 {
		o.Timeout = callMax
	}
	return &Client{urls: o.URLs, patient: o.Patient, cluster: o.Cluster, nodes: o.Nodes, heard: o.Heard, http: &http.Client{
		Timeout:       o.Timeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DialContext: o.Dial, TLSClientConfig: o.TLS},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// goesOn pauses after a call without an answer, and reports whether there may be another.
func (c *Client) goesOn(ctx context.Context) bool { return c.patient && pause(ctx, 5*time.Millisecond) }

// call sends one request; out is filled when the answer is 200.
func (c *Client) call(ctx context.Context, path string, in, out any) Answer {
	if c.patient {
		ctx = context.WithoutCancel(ctx)
	}
	at := c.at.Load()
	if c.cluster {
		return c.callCluster(ctx, at, path, in, out)
	}
	a := c.ask(ctx, at, path, in, out)
	if a.Status == 0 || a.Code == "not_leader" {
		c.at.CompareAndSwap(at, at+1) // of all that learn it at once, one moves on
	}
	return a
}

// hopsMax is how many redirects a call follows. Nodes that change their leader may send it around.
const hopsMax = 4

// callCluster sends one request to the node where the last one was answered, or to any other, and follows redirects.
func (c *Client) callCluster(ctx context.Context, at int64, path string, in, out any) Answer {
	to := at
	if rand.IntN(10) == 0 {
		to = rand.Int64N(int64(len(c.urls)))
	}
	for hop := 0; ; hop++ {
		a := c.ask(ctx, to, path, in, out)
		switch {
		case a.Status == http.StatusTemporaryRedirect:
			leader := slices.Index(c.urls, a.Leader)
			switch {
			case leader < 0 && slices.Contains(c.nodes, a.Leader):
				c.at.CompareAndSwap(to, to+1)
				return a
			case leader < 0:
				a.Code, a.Message = "unreadable", fmt.Sprintf("redirected to %q, which is no node of the cluster", a.Leader)
				return a
			}
			to = int64(leader)
			c.at.CompareAndSwap(at, to)
			at = to
			if hop < hopsMax {
				continue
			}
		case a.Status == 0 || a.Status == http.StatusServiceUnavailable:
			c.at.CompareAndSwap(to, to+1)
		}
		return a
	}
}

// ask sends one request to one node.
func (c *Client) ask(ctx context.Context, to int64, path string, in, out any) Answer {
	url := c.urls[to%int64(len(c.urls))]
	a := c.post(ctx, url, path, in, out)
	if c.heard != nil {
		c.heard(url, path, a)
	}
	return a
}

func (c *Client) post(ctx context.Context, url, path string, in, out any) Answer {
	body, err := json.Marshal(in)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(body))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	r.Header.Set("Authorization", "Bearer "+process.AdminToken)
	answer, err := c.http.Do(r)
	if err != nil {
		return Answer{Outcome: Unknown, Began: began, Took: time.Since(began), Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	a := Answer{Status: answer.StatusCode, Began: began, Took: time.Since(began)}
	if err != nil {
		// A status without its whole answer is no answer.
		return Answer{Outcome: Unknown, Began: began, Took: a.Took, Err: err}
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
	a.First, a.Last = e.First, e.Last
	a.Outcome, a.Leader = e.outcome(a.Status), e.Leader
	if location := answer.Header.Get("Location"); a.Status == http.StatusTemporaryRedirect && location != e.Leader+path {
		a.Code, a.Message = "unreadable", fmt.Sprintf("Location %q, but the leader is %q", location, e.Leader)
	}
	return a
}

// failure is the body of an answer other than 200.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Start   uint64 `json:"start_offset"`
	First   uint64 `json:"first_offset"`
	Last    uint64 `json:"last_offset"`
	Unknown bool   `json:"outcome_unknown"`
	Leader  string `json:"leader"`
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
	case status == http.StatusTemporaryRedirect && e.Code == "not_leader":
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
