package api

// RestoreStep: the offsets of a log that was restored from a backup go on at the next multiple of it, so that none is given
// out that the log before may have given to another record.
const RestoreStep = 1_000_000_000_000

// Settings are how long records of a topic are kept: at most so long, so many bytes of keys and values, so many records.
// nil (null in JSON) is no limit.
type Settings struct {
	RetentionMS      *int64 `json:"retention_ms"`
	RetentionBytes   *int64 `json:"retention_bytes"`
	RetentionRecords *int64 `json:"retention_records"`
}

// ConfigureTopicRequest changes the settings of a topic. In JSON each of retention_ms, retention_bytes and
// retention_records is a number from 1 to OffsetMax, or null for no limit, or left out: then it stays as it is. With
// "reset": true all go back to the broker's defaults first. A request that says nothing more than the topic changes nothing.
type ConfigureTopicRequest struct {
	Topic            string `json:"topic"`
	RetentionMS      *Limit `json:"retention_ms,omitempty"`
	RetentionBytes   *Limit `json:"retention_bytes,omitempty"`
	RetentionRecords *Limit `json:"retention_records,omitempty"`
	Reset            bool   `json:"reset,omitempty"`
}

// Limit is a number from 1 to OffsetMax, or NoLimit, which is null in JSON.
type Limit int64

// NoLimit keeps records whatever their age, bytes or number.
const NoLimit Limit = 0

// MarshalJSON implements json.Marshaler.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == NoLimit {
		return []byte("null"), nil
	}
	return appendInt(nil, int64(l)), nil
}

func appendInt(dst []byte, v int64) []byte {
	if v < 0 {
		return append(appendInt(append(dst, '-'), -(v/10)), byte('0'-v%10))
	}
	if v >= 10 {
		dst = appendInt(dst, v/10)
	}
	return append(dst, byte('0'+v%10))
}

// ConfigureTopicAnswer tells what holds now.
type ConfigureTopicAnswer struct {
	Settings Settings `json:"settings"` // in effect, the broker's defaults included
	Own      []string `json:"own"`      // the names of those that the topic has itself
}

// ListTopicsRequest asks for topics in the order of their names, as bytes. Cursor is that of the page before: an opaque text,
// which stays good whatever happens to topics meanwhile.
type ListTopicsRequest struct {
	Prefix string `json:"prefix,omitempty"`
	Limit  int    `json:"limit,omitempty"` // 1 to LimitMax, default LimitDefault
	Cursor string `json:"cursor,omitempty"`
}

// TopicSummary is a topic in a list. Records and Bytes (of keys and values) are what it keeps now.
type TopicSummary struct {
	Topic       string `json:"topic"`
	StartOffset uint64 `json:"start_offset"`
	EndOffset   uint64 `json:"end_offset"`
	Records     uint64 `json:"records"`
	Bytes       uint64 `json:"bytes"`
}

// ListTopicsAnswer is a page. It may have fewer than Limit topics; Cursor is left out on the last one.
type ListTopicsAnswer struct {
	Topics []TopicSummary `json:"topics"`
	Cursor string         `json:"cursor,omitempty"`
}

// TopicRequest names a topic: topics/describe and topics/delete.
type TopicRequest struct {
	Topic string `json:"topic"`
}

// DescribeTopicAnswer tells all about a topic. OldestMS and NewestMS are null when it keeps no record, or when that record
// cannot be read. The lines of Groups are there to look at: GroupsShown at most, fewer when the server is short of memory
// for answers.
type DescribeTopicAnswer struct {
	TopicSummary
	OldestMS *int64       `json:"oldest_ms"`
	NewestMS *int64       `json:"newest_ms"`
	Settings Settings     `json:"settings"`
	Own      []string     `json:"own"`
	Groups   []GroupState `json:"groups"`       // the first ones, in the order of their names
	GroupsN  int          `json:"groups_total"` // all of them
}

// DeleteTopicAnswer tells where the offsets of the topic go on if it is published to again.
type DeleteTopicAnswer struct {
	EndOffset uint64 `json:"end_offset"`
}

// GroupState is where a group stands in a topic. Lag is how many records are kept that it has not committed. NextOffset is
// never below StartOffset: what the group had not read and is gone does not count.
type GroupState struct {
	Group          string `json:"group"`
	Topic          string `json:"topic"`
	NextOffset     uint64 `json:"next_offset"`
	StartOffset    uint64 `json:"start_offset"`
	EndOffset      uint64 `json:"end_offset"`
	Lag            uint64 `json:"lag"`
	LastActivityMS int64  `json:"last_activity_ms"` // of the last commit or seek, in milliseconds since the Unix epoch
}

// ListGroupsRequest asks for groups in the order of their names, and then of the topics'; with Topic, only those of one.
// Cursor is as in ListTopicsRequest.
type ListGroupsRequest struct {
	Topic  string `json:"topic,omitempty"`
	Prefix string `json:"prefix,omitempty"` // of the group's name
	Limit  int    `json:"limit,omitempty"`  // 1 to LimitMax, default LimitDefault
	Cursor string `json:"cursor,omitempty"`
}

// ListGroupsAnswer is a page. It may have fewer than Limit groups; Cursor is left out on the last one.
type ListGroupsAnswer struct {
	Groups []GroupState `json:"groups"`
	Cursor string       `json:"cursor,omitempty"`
}

// GroupRequest names a group of a topic: groups/describe, which answers GroupState, and groups/delete, which answers
// GroupDeleted.
type GroupRequest struct {
	Group string `json:"group"`
	Topic string `json:"topic"`
}

// GroupDeleted tells where the group stood.
type GroupDeleted struct {
	NextOffset uint64 `json:"next_offset"`
}

// SeekRequest sets where a group reads next, by exactly one of Offset, TimeMS and To. With DryRun nothing is changed.
type SeekRequest struct {
	Group  string  `json:"group"`
	Topic  string  `json:"topic"`
	Offset *uint64 `json:"offset,omitempty"`
	TimeMS *int64  `json:"time_ms,omitempty"` // the first record of that time or later, the end if there is none; 0 to TimeMSMax
	To     string  `json:"to,omitempty"`      // SeekStart or SeekEnd
	DryRun bool    `json:"dry_run,omitempty"`
}

// What SeekRequest.To can be.
const (
	SeekStart = "start"
	SeekEnd   = "end"
)

// SeekAnswer tells where the group reads next (with DryRun: would), and where it did before; how many records that are kept
// it will not get at all, and how many it will get that were behind it.
type SeekAnswer struct {
	NextOffset     uint64 `json:"next_offset"`
	PreviousOffset uint64 `json:"previous_offset"`
	Skipped        uint64 `json:"skipped"`
	Repeated       uint64 `json:"repeated"`
	DryRun         bool   `json:"dry_run,omitempty"`
}
