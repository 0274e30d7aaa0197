// Package api is mq's contract in Go: the paths, the requests and answers as JSON, the error codes and the
// limits. It has no logic and imports nothing, so that any program may depend on it.
//
// Every call is a POST of one JSON object. Keys and values are base64 in JSON, which encoding/json does for
// a []byte by itself. The next stop of a publish: package httpapi decodes and checks the request.
package api

// The paths of the calls. A path is matched exactly as it was sent: no other spelling of it is accepted. A
// query string is ignored.
const (
	PathPublish      = "/v1/publish"
	PathPublishBatch = "/v1/publish-batch"
	PathFetch        = "/v1/fetch"
	PathGroupsFetch  = "/v1/groups/fetch"
	PathGroupsCommit = "/v1/groups/commit"
	PathTopicsRetain = "/v1/topics/retain" // admin token required

	PathTopicsConfigure = "/v1/topics/configure" // admin token required
	PathTopicsList      = "/v1/topics/list"
	PathTopicsDescribe  = "/v1/topics/describe"
	PathTopicsDelete    = "/v1/topics/delete" // admin token required
	PathGroupsList      = "/v1/groups/list"
	PathGroupsDescribe  = "/v1/groups/describe"
	PathGroupsDelete    = "/v1/groups/delete"
	PathGroupsSeek      = "/v1/groups/seek"

	PathSnapshot    = "/v1/snapshot"     // admin token required
	PathBackupBegin = "/v1/backup/begin" // admin token required, as for the next two
	PathBackupRead  = "/v1/backup/read"  // answers bytes, not JSON
	PathBackupEnd   = "/v1/backup/end"

	PathHealth  = "/healthz" // GET; needs no token
	PathReady   = "/readyz"  // GET; needs no token
	PathMetrics = "/metrics" // GET; needs a token when the server has a client token
)

// What the nodes of a pair say to each other. Both paths need HeaderReplicationToken, and no other token.
const (
	PathReplicationStream = "/replication/stream" // POST that switches to ProtocolReplication (header Upgrade)
	PathReplicationStatus = "/replication/status" // GET; answers PairStatus

	HeaderReplicationToken = "X-Replication-Token"
	ProtocolReplication    = "mq-replication/1"
)

// Limits of requests and answers.
const (
	NameMax        = 255       // bytes of a topic name, a group name or a request id; each at least 1
	MessageMax     = 256 << 10 // bytes of key plus value, as they are before base64
	BatchMax       = 32        // records in one publish-batch; at least 1
	BodyMax        = 16 << 20  // bytes of the body of publish and publish-batch; room for the largest legal batch
	BodySmallMax   = 64 << 10  // bytes of the body of any other call
	OffsetMax      = 1<<53 - 1 // the largest offset: every JSON reader can hold it exactly
	LimitDefault   = 100       // records of a fetch that names no limit
	LimitMax       = 1000      // records of a fetch
	WaitMSMax      = 20000     // milliseconds that a fetch may wait for a record
	TimeMSMax      = 1<<48 - 1 // the latest time, in milliseconds since the Unix epoch: the year 10889
	CursorMax      = 1024      // bytes of a cursor
	GroupsShown    = 1000      // groups that topics/describe shows at most; groups/list has all
	AnswerBytesMax = 4 << 20   // bytes of keys and values in one answer, about; at least one record is sent
)

// PublishRequest appends one record. Value must not be nil (nil is null in JSON, which is refused); an
// empty value is []byte{}.
type PublishRequest struct {
	Topic     string `json:"topic"`
	Key       []byte `json:"key,omitempty"`
	Value     []byte `json:"value"`
	RequestID string `json:"request_id,omitempty"`
}

// PublishAnswer tells where the record is. Duplicate says that the request id matched an earlier publish of
// the same record, whose offset this is.
type PublishAnswer struct {
	Offset    uint64 `json:"offset"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

// Message is one record of a batch. Value must not be nil, as in PublishRequest.
type Message struct {
	Key   []byte `json:"key,omitempty"`
	Value []byte `json:"value"`
}

// PublishBatchRequest appends up to BatchMax records, all or none. The request id covers the whole batch.
type PublishBatchRequest struct {
	Topic     string    `json:"topic"`
	Messages  []Message `json:"messages"`
	RequestID string    `json:"request_id,omitempty"`
}

// PublishBatchAnswer tells the offsets of the records, which are consecutive.
type PublishBatchAnswer struct {
	Offsets   []uint64 `json:"offsets"`
	Duplicate bool     `json:"duplicate,omitempty"`
}

// FetchRequest reads records from Offset on, or, with FromMS, from the first record of that time or later; where there is
// none yet, the next one is. With Limit 0 (left out) the server takes LimitDefault. With WaitMS the answer waits that long
// for a record when there is none to read.
type FetchRequest struct {
	Topic  string  `json:"topic"`
	Offset *uint64 `json:"offset,omitempty"`  // this
	FromMS *int64  `json:"from_ms,omitempty"` // or this, and not both: milliseconds since the Unix epoch, 0 to TimeMSMax
	Limit  int     `json:"limit,omitempty"`
	WaitMS int     `json:"wait_ms,omitempty"`
}

// GroupFetchRequest reads records from the group's committed offset on.
type GroupFetchRequest struct {
	Group  string `json:"group"`
	Topic  string `json:"topic"`
	Limit  int    `json:"limit,omitempty"`
	WaitMS int    `json:"wait_ms,omitempty"`
}

// Record is one record of an answer.
type Record struct {
	Offset      uint64 `json:"offset"`
	Key         []byte `json:"key"`
	Value       []byte `json:"value"`
	TimestampMS int64  `json:"timestamp_ms"`
}

// FetchAnswer answers FetchRequest and GroupFetchRequest. NextOffset is where to read, or what to commit,
// next. The topic holds the offsets StartOffset to EndOffset-1, without gaps, unless the broker was restored from a backup:
// then offsets jump there, to a multiple of RestoreStep.
type FetchAnswer struct {
	Records     []Record `json:"records"`
	NextOffset  uint64   `json:"next_offset"`
	StartOffset uint64   `json:"start_offset"`
	EndOffset   uint64   `json:"end_offset"`
}

// GroupCommitRequest sets the offset that the group reads next.
type GroupCommitRequest struct {
	Group      string `json:"group"`
	Topic      string `json:"topic"`
	NextOffset uint64 `json:"next_offset"`
}

// GroupCommitAnswer repeats the offset that the group reads next.
type GroupCommitAnswer struct {
	NextOffset uint64 `json:"next_offset"`
}

// RetainRequest moves the topic's start: records below StartOffset are gone.
type RetainRequest struct {
	Topic       string `json:"topic"`
	StartOffset uint64 `json:"start_offset"`
}

// RetainAnswer repeats the topic's start.
type RetainAnswer struct {
	StartOffset uint64 `json:"start_offset"`
}

// SnapshotAnswer tells the last log index that the snapshot covers. The request has an empty body or {}.
type SnapshotAnswer struct {
	Index uint64 `json:"index"`
}
