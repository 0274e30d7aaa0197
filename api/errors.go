package api

// Code says what went wrong, for programs. Codes are never renamed; new ones may be added.
type Code string

// The codes, with the HTTP status that each comes with.
const (
	CodeInvalidArgument   Code = "invalid_argument"    // 400: the request is wrong; field names what, where it can
	CodeOffsetOutOfRange  Code = "offset_out_of_range" // 400: start_offset and end_offset tell the range
	CodeUnauthenticated   Code = "unauthenticated"     // 401: the token is missing or wrong
	CodePermissionDenied  Code = "permission_denied"   // 403: the token does not allow it, or a browser page of another origin
	CodeNotFound          Code = "not_found"           // 404: no such path
	CodeTopicNotFound     Code = "topic_not_found"     // 404: nothing was ever published to the topic, or it was deleted
	CodeGroupNotFound     Code = "group_not_found"     // 404: the group has no offset in the topic
	CodeMethodNotAllowed  Code = "method_not_allowed"  // 405: header Allow names the methods
	CodeTimeout           Code = "timeout"             // 408: the request did not arrive in time; it was not executed
	CodeRequestIDConflict Code = "request_id_conflict" // 409: the request id was used for other records
	CodeOffsetGone        Code = "offset_gone"         // 410: start_offset tells where to go on; restored_end, why
	CodeTooLarge          Code = "too_large"           // 413: record or body above its limit; 431: request header above its limit
	CodeInternal          Code = "internal"            // 500: a bug in the server
	CodeDataCorrupt       Code = "data_corrupt"        // 500: records first_offset to last_offset are damaged on disk
	CodeUnavailable       Code = "unavailable"         // 503: not now; outcome_unknown tells if a write may have happened
	CodeNotLeader         Code = "not_leader"          // 503, or 307 where the leader is known: this node serves no clients now
	CodeStorageFull       Code = "storage_full"        // 507: nothing was done; reads go on
)

// Error is the answer of every call that did not succeed. Fields beyond Code and Message are set where the
// code's comment says so.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // says what to do, for people

	Field          string  `json:"field,omitempty"`        // "messages[3].value"
	StartOffset    *uint64 `json:"start_offset,omitempty"` // of the topic; with restored_end, behind what was lost
	RestoredEnd    *uint64 `json:"restored_end,omitempty"` // the broker was restored from a backup: from here on records were lost
	EndOffset      *uint64 `json:"end_offset,omitempty"`   // of the topic
	FirstOffset    *uint64 `json:"first_offset,omitempty"` // first damaged record
	LastOffset     *uint64 `json:"last_offset,omitempty"`  // last damaged record; reading can go on after it
	OutcomeUnknown bool    `json:"outcome_unknown,omitempty"`
	Leader         string  `json:"leader,omitempty"` // URL of the node to ask instead, with status 307
}
