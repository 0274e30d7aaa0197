package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"example.com/mq/api"
)

// errorAnswerMax is how much of an answer that reports an error is read.
const errorAnswerMax = 64 << 10

// send makes one attempt at one node. Where it returns an error, target is the node that a redirect leads
// to, or -1.
func (c *Client) send(ctx context.Context, nodeIndex int, call *call) (answer []byte, target int, failed *Error) {
	n := &c.nodes[nodeIndex]
	failed = &Error{Operation: call.operation, Node: n.url, RequestID: call.requestID}
	attempt, cancel := context.WithTimeoutCause(ctx, c.timeout+call.wait, errAttemptTimeout)
	defer cancel()
	// Without a connection nothing was sent. With one, we cannot know how much of it arrived.
	var connected, fresh atomic.Bool
	attempt = httptrace.WithClientTrace(attempt, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			connected.Store(true)
			fresh.Store(!info.Reused)
		},
	})
	fail := func(code Code, err error) ([]byte, int, *Error) {
		failed.Code, failed.cause = code, err
		failed.Unknown = call.writes && connected.Load()
		if ctx.Err() != nil {
			failed.Code, failed.cause = ErrCanceled, ctx.Err()
		} else if attempt.Err() != nil {
			failed.Code, failed.cause = ErrTransport, errAttemptTimeout
		}
		return nil, -1, failed
	}

	request, err := http.NewRequestWithContext(attempt, http.MethodPost, n.url+call.path, bytes.NewReader(call.body))
	if err != nil {
		return fail(ErrTransport, err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "mq-client")
	token := c.token
	if call.admin {
		token = c.adminToken
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// Not http.Client, which follows redirects: those are ours to judge.
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return fail(ErrTransport, c.explainTLS(attempt, n, fresh.Load(), err))
	}
	defer response.Body.Close()
	failed.Status = response.StatusCode
	limit := call.answerMax
	if response.StatusCode != http.StatusOK {
		limit = errorAnswerMax
	}
	answer, err = readAnswer(response, limit)
	if err != nil {
		failed.Status = 0
		if errors.Is(err, errAnswerTooLarge) {
			return fail(ErrBadAnswer, err)
		}
		return fail(ErrTransport, err)
	}
	if response.StatusCode == http.StatusOK {
		return answer, -1, nil
	}
	return nil, c.explain(call, response, answer, failed), failed
}

var (
	errAttemptTimeout = errors.New("the node did not answer in time")
	errAnswerTooLarge = errors.New("the answer is larger than a broker's can be")
)

// readAnswer reads a whole body of at most limit bytes.
func readAnswer(response *http.Response, limit int64) ([]byte, error) {
	if response.ContentLength > limit {
		return nil, errAnswerTooLarge
	}
	if response.ContentLength >= 0 {
		answer := make([]byte, response.ContentLength)
		_, err := io.ReadFull(response.Body, answer)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return answer, err
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err == nil && int64(len(answer)) > limit {
		return nil, errAnswerTooLarge
	}
	return answer, err
}

// explain fills failed from an answer whose status is not 200, and returns where a redirect leads.
func (c *Client) explain(call *call, response *http.Response, answer []byte, failed *Error) (target int) {
	failed.RetryAfter = retryAfter(response.Header.Get("Retry-After"), time.Now())
	// What is shown is scrubbed, not the answer: a token may be a word of it, such as "leader", and may be escaped in it.
	e := parseError(answer)
	e.Message, e.Field = c.scrub(e.Message), c.scrub(e.Field)
	if !c.isNode(e.Leader) {
		e.Leader = c.scrub(e.Leader)
	}
	failed.Code, failed.Message, failed.Field, failed.Leader = Code(e.Code), e.Message, e.Field, e.Leader
	failed.StartOffset, failed.EndOffset = e.StartOffset, e.EndOffset
	failed.FirstOffset, failed.LastOffset, failed.RestoredEnd = e.FirstOffset, e.LastOffset, e.RestoredEnd
	if response.StatusCode == http.StatusTemporaryRedirect {
		return c.redirect(response, failed)
	}
	says := brokerSays[statusCode{response.StatusCode, failed.Code}]
	if says == saysNothing {
		// Something between us and the broker answered, or a broker newer than us. It may have passed the call on
		// before it gave up, whatever its status means elsewhere.
		*failed = Error{
			Operation: failed.Operation, Node: failed.Node, RequestID: failed.RequestID, Status: failed.Status,
			RetryAfter: failed.RetryAfter, Code: ErrBadAnswer, Message: notFromBroker(response, []byte(c.scrub(string(answer)))),
		}
	}
	failed.Unknown = call.writes && (says != saysNotDone || e.OutcomeUnknown)
	return -1
}

// answeredError is the body of an answer that reports an error.
type answeredError struct {
	api.Error
	Leader string
}

// parseError reads a body that a broker may have written; from any other it returns nothing. Names are matched
// exactly, which json.Unmarshal into a struct would not do: {"Code":"unavailable"} promises nothing.
func parseError(answer []byte) (e answeredError) {
	var members map[string]json.RawMessage
	if json.Unmarshal(answer, &members) != nil {
		return answeredError{}
	}
	for name, to := range map[string]any{
		"code": &e.Code, "message": &e.Message, "field": &e.Field, "leader": &e.Leader,
		"start_offset": &e.StartOffset, "end_offset": &e.EndOffset,
		"first_offset": &e.FirstOffset, "last_offset": &e.LastOffset, "restored_end": &e.RestoredEnd,
		"outcome_unknown": &e.OutcomeUnknown,
	} {
		if value, found := members[name]; found && json.Unmarshal(value, to) != nil {
			return answeredError{}
		}
	}
	return e
}

// said is what a status and a code say together about a write.
type said int

const (
	saysNothing said = iota // no broker answers this pair
	saysNotDone             // unless outcome_unknown is set
	saysUnknown
)

// brokerSays is the contract's table. A pair that is not in it is no word of a broker: gateways have codes of
// their own, and some of them read like ours.
var brokerSays = map[statusCode]said{
	{400, ErrInvalidArgument}:   saysNotDone,
	{400, ErrOffsetOutOfRange}:  saysNotDone,
	{401, ErrUnauthenticated}:   saysNotDone,
	{403, ErrPermissionDenied}:  saysNotDone,
	{404, ErrNotFound}:          saysNotDone,
	{404, ErrTopicNotFound}:     saysNotDone,
	{404, ErrGroupNotFound}:     saysNotDone,
	{405, ErrMethodNotAllowed}:  saysNotDone,
	{408, ErrTimeout}:           saysNotDone,
	{409, ErrRequestIDConflict}: saysNotDone,
	{410, ErrOffsetGone}:        saysNotDone,
	{413, ErrTooLarge}:          saysNotDone,
	{431, ErrTooLarge}:          saysNotDone,
	{503, ErrUnavailable}:       saysNotDone,
	{503, ErrNotLeader}:         saysNotDone,
	{507, ErrStorageFull}:       saysNotDone,
	// A bug may strike before or after the write. Damage is reported to reads, so after a write it is a bug.
	{500, ErrInternal}:    saysUnknown,
	{500, ErrDataCorrupt}: saysUnknown,
}

type statusCode struct {
	status int
	code   Code
}

// redirect returns the configured node that a redirect leads to. Only that: a Location elsewhere would be
// sent our token and our records.
func (c *Client) redirect(response *http.Response, failed *Error) (target int) {
	location := response.Header.Get("Location")
	if u, err := response.Request.URL.Parse(location); err == nil && location != "" && u.Path == response.Request.URL.Path {
		if target = c.find(u); target >= 0 {
			failed.Code = ErrNotLeader
			return target
		}
	}
	failed.Code = ErrForeignRedirect
	failed.Message = fmt.Sprintf("the node points to %q, which is not among the configured nodes: configure all nodes by the URLs that they have for each other", c.scrub(location))
	return -1
}

// secretMin is how many bytes a token has at least that scrub looks for: a shorter one is no secret, and may stand in any text.
const secretMin = 6

// scrub takes our tokens out of what somebody answered: a proxy may send back what it got, and errors are logged.
func (c *Client) scrub(text string) string {
	for _, token := range []string{c.token, c.adminToken} {
		if len(token) >= secretMin {
			text = strings.ReplaceAll(text, token, "[token]")
		}
	}
	return text
}

// isNode reports whether text is the URL of a configured node and nothing more: then a token in it is a coincidence.
func (c *Client) isNode(text string) bool {
	text = strings.TrimSuffix(text, "/")
	return slices.ContainsFunc(c.nodes, func(n node) bool { return n.url == text })
}

// notFromBroker describes an answer that is no error of the contract.
func notFromBroker(response *http.Response, answer []byte) string {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	const shown = 200
	text := answer
	if len(text) > shown {
		text = text[:shown]
	}
	return fmt.Sprintf("status %d with %s %q", response.StatusCode, kind, text)
}

// retryAfter reads the header of that name: seconds, or a date. It returns 0 for none.
func retryAfter(header string, now time.Time) time.Duration {
	if header == "" {
		return 0
	}
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, retryAfterMax)
	}
	if date, err := http.ParseTime(header); err == nil {
		return min(max(0, date.Sub(now)), retryAfterMax)
	}
	return 0
}
