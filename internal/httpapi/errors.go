package httpapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"
)

// apiError is an error as the contract has it.
type apiError struct {
	status  int
	code    api.Code
	message string
	field   string

	allow     string // for header Allow
	upgrade   string // for header Upgrade
	leader    string // URL of the node to ask instead; for header Location
	challenge string // for header WWW-Authenticate; empty: Bearer

	hasRange    bool // start, end
	hasStart    bool
	hasRestored bool // restored
	hasDamage   bool // first, last
	start, end  uint64
	restored    uint64
	first, last uint64
	unknown     bool
}

func (e *apiError) Error() string { return string(e.code) + ": " + e.message }

var errInternal = &apiError{status: 500, code: api.CodeInternal,
	message: "the server made a mistake and has logged it; if this was a write, its outcome is unknown: " +
		"retry, a publish with the same request id", unknown: true}

// invalid is a 400 that names the field. An empty field is left out.
func invalid(field, format string, args ...any) *apiError {
	return &apiError{status: 400, code: api.CodeInvalidArgument, field: field, message: fmt.Sprintf(format, args...)}
}

// fromBroker is the one table from the broker's errors to the contract's.
func fromBroker(err error) *apiError {
	var (
		gone        *broker.OffsetGoneError
		outside     *broker.OffsetRangeError
		corrupt     *broker.CorruptError
		unavailable *broker.UnavailableError
		notLeader   *broker.NotLeaderError
	)
	switch {
	case errors.As(err, &unavailable):
		message := unavailable.Reason + ": nothing was done; try again later"
		if unavailable.Unknown {
			message = unavailable.Reason + ": the outcome is unknown; retry, a publish with the same request id"
		}
		return &apiError{status: 503, code: api.CodeUnavailable, message: message, unknown: unavailable.Unknown}
	case errors.As(err, &notLeader) && notLeader.Leader != "":
		leader := strings.TrimSuffix(notLeader.Leader, "/")
		return &apiError{status: 307, code: api.CodeNotLeader, leader: leader,
			message: "this node does not lead its cluster: nothing was done; ask " + leader}
	case errors.As(err, &notLeader):
		return &apiError{status: 503, code: api.CodeNotLeader,
			message: "this node does not lead and serves no clients: ask the leader; to promote the follower of a pair see docs/operations.md"}
	case errors.Is(err, broker.ErrTopicNotFound):
		return &apiError{status: 404, code: api.CodeTopicNotFound, field: "topic",
			message: "the topic does not exist; the first publish to it creates it"}
	case errors.Is(err, broker.ErrGroupNotFound):
		return &apiError{status: 404, code: api.CodeGroupNotFound, field: "group",
			message: "the group has no offset in this topic; its first commit or seek there sets one"}
	case errors.Is(err, broker.ErrRequestIDConflict):
		return &apiError{status: 409, code: api.CodeRequestIDConflict, field: "request_id",
			message: "the request id was used in this topic for other records; nothing was done; take a new id for new records"}
	case errors.Is(err, broker.ErrStorageFull):
		return &apiError{status: 507, code: api.CodeStorageFull,
			message: "the disk is full; nothing was done; make room, or give up records with " + api.PathTopicsRetain + " or " + api.PathTopicsDelete}
	case errors.As(err, &gone) && gone.RestoredEnd != nil:
		return &apiError{status: 410, code: api.CodeOffsetGone, field: "offset", hasStart: true, start: uint64(gone.Start),
			hasRestored: true, restored: uint64(*gone.RestoredEnd),
			message: fmt.Sprintf("the broker was restored from a backup, or its log was cut: records from offset %d on, of which a client may "+
				"have seen some, are lost; go on at %d", *gone.RestoredEnd, gone.Start)}
	case errors.As(err, &gone):
		return &apiError{status: 410, code: api.CodeOffsetGone, field: "offset", hasStart: true, start: uint64(gone.Start),
			message: fmt.Sprintf("records below offset %d are gone; go on from there", gone.Start)}
	case errors.As(err, &outside):
		return &apiError{status: 400, code: api.CodeOffsetOutOfRange, hasStart: true, hasRange: true,
			start: uint64(outside.Start), end: uint64(outside.End),
			message: fmt.Sprintf("the offset must be from %d to %d", outside.Start, outside.End)}
	case errors.As(err, &corrupt):
		return &apiError{status: 500, code: api.CodeDataCorrupt, hasDamage: true,
			first: uint64(corrupt.First), last: uint64(corrupt.Last),
			message: fmt.Sprintf("records %d to %d are damaged on disk and cannot be served; reading can go on at %d",
				corrupt.First, corrupt.Last, corrupt.Last+1)}
	}
	return nil
}

// malformed maps what fasthttp reports about a request that it cannot read.
func malformed(err error) *apiError {
	var ne net.Error
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		return &apiError{status: 431, code: api.CodeTooLarge,
			message: "the request line and header must not exceed " + strconv.Itoa(headerMax) + " bytes"}
	case errors.As(err, &ne) && ne.Timeout():
		return errTimeout
	}
	return &apiError{status: 400, code: api.CodeInvalidArgument, message: "this is not a well-formed HTTP/1.1 request"}
}

var (
	errTimeout = &apiError{status: 408, code: api.CodeTimeout,
		message: "the request did not arrive in time and was not executed; send it again"}
	errTruncated = &apiError{status: 400, code: api.CodeInvalidArgument,
		message: "the body ended before its announced length, or its chunks are malformed; nothing was done"}
	errBodyTooLarge = &apiError{status: 413, code: api.CodeTooLarge,
		message: "the body must not exceed " + strconv.Itoa(bodyMax) + " bytes; send fewer messages at once"}
	errBodyNotSmall = &apiError{status: 413, code: api.CodeTooLarge,
		message: "the body of this call must not exceed " + strconv.Itoa(bodySmallMax) + " bytes"}
	errAnswersBusy = &apiError{status: 503, code: api.CodeUnavailable,
		message: "too many large answers wait for their clients to take them: try again later"}
	errBusy = &apiError{status: 503, code: api.CodeUnavailable,
		message: "too many large requests are being read: nothing was done; try again later"}
)

// writeError makes e the answer.
func writeError(ctx *fasthttp.RequestCtx, e *apiError) {
	h := &ctx.Response.Header
	ctx.Response.ResetBody()
	ctx.Response.SetStatusCode(e.status)
	h.SetContentTypeBytes(contentJSON)
	switch e.status {
	case 307:
		// Never the query: it means nothing here, and who knows what a client put into it.
		path, _, _ := bytes.Cut(ctx.Request.Header.RequestURI(), []byte("?"))
		h.Set("Location", e.leader+string(path))
	case 503:
		h.Set("Retry-After", "1")
	case 405:
		h.Set("Allow", e.allow)
	case 401:
		h.Set("WWW-Authenticate", cmp.Or(e.challenge, "Bearer"))
	case 426:
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", e.upgrade)
	}
	ctx.Response.SetBodyRaw(appendError(nil, e))
}

// appendError appends the JSON of e, which has the fields of api.Error.
func appendError(dst []byte, e *apiError) []byte {
	dst = append(dst, `{"code":"`...)
	dst = append(dst, e.code...)
	dst = append(dst, `","message":`...)
	dst = appendQuoted(dst, e.message)
	if e.field != "" {
		dst = append(dst, `,"field":`...)
		dst = appendQuoted(dst, e.field)
	}
	if e.hasStart {
		dst = strconv.AppendUint(append(dst, `,"start_offset":`...), e.start, 10)
	}
	if e.hasRestored {
		dst = strconv.AppendUint(append(dst, `,"restored_end":`...), e.restored, 10)
	}
	if e.hasRange {
		dst = strconv.AppendUint(append(dst, `,"end_offset":`...), e.end, 10)
	}
	if e.hasDamage {
		dst = strconv.AppendUint(append(dst, `,"first_offset":`...), e.first, 10)
		dst = strconv.AppendUint(append(dst, `,"last_offset":`...), e.last, 10)
	}
	if e.leader != "" {
		dst = appendQuoted(append(dst, `,"leader":`...), e.leader)
	}
	if e.unknown {
		dst = append(dst, `,"outcome_unknown":true`...)
	}
	return append(dst, '}')
}

// appendQuoted appends s as a JSON string. What is not UTF-8 in it is replaced.
func appendQuoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that something was replaced
	return dst
}
