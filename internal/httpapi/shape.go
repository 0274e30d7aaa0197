package httpapi

import (
	"math/bits"
	"unicode"
	"unicode/utf8"

	"example.com/mq/api"
	"example.com/mq/internal/fact"
)

// field numbers the fields that requests may have. Two may have one name, in different calls.
type field uint8

const (
	fieldTopic field = iota
	fieldGroup
	fieldRequestID
	fieldKey
	fieldValue
	fieldMessages
	fieldOffset
	fieldFromMS
	fieldNextOffset
	fieldStartOffset
	fieldLimit
	fieldWaitMS
	fieldTo // of a transfer: a number

	// The fast decoder does not know those from here on: the calls that have them are rare.
	fieldPrefix
	fieldCursor
	fieldBackup
	fieldSeekTo // of a seek: a word
	fieldTimeMS
	fieldSegment
	fieldBytes
	fieldRetentionMS
	fieldRetentionBytes
	fieldRetentionRecords
	fieldReset
	fieldDryRun
	fieldCount
)

var fieldNames = [fieldCount]string{
	"topic", "group", "request_id", "key", "value", "messages", "offset", "from_ms", "next_offset", "start_offset", "limit",
	"wait_ms", "to", "prefix", "cursor", "backup", "to", "time_ms", "segment", "bytes", "retention_ms", "retention_bytes",
	"retention_records", "reset", "dry_run",
}

// fields is a set of fields.
type fields uint32

func setOf(list ...field) (s fields) {
	for _, f := range list {
		s |= 1 << f
	}
	return s
}

func (s fields) has(f field) bool { return s>>f&1 == 1 }

func (s fields) count() int { return bits.OnesCount32(uint32(s)) }

// shape says which fields a request may and must have. Both decoders follow it.
type shape struct {
	allowed, required fields
	oneOf             fields // if there are any: a request has exactly one of them
	emptyBody         bool   // an empty body stands for {}
	records           bool   // it carries records: the body may be large
}

var (
	shapePublish = shape{
		allowed:  setOf(fieldTopic, fieldKey, fieldValue, fieldRequestID),
		required: setOf(fieldTopic, fieldValue),
		records:  true,
	}
	shapePublishBatch = shape{
		allowed:  setOf(fieldTopic, fieldMessages, fieldRequestID),
		required: setOf(fieldTopic, fieldMessages),
		records:  true,
	}
	shapeFetch = shape{
		allowed:  setOf(fieldTopic, fieldOffset, fieldFromMS, fieldLimit, fieldWaitMS),
		required: setOf(fieldTopic),
		oneOf:    setOf(fieldOffset, fieldFromMS),
	}
	shapeGroupsFetch = shape{
		allowed:  setOf(fieldGroup, fieldTopic, fieldLimit, fieldWaitMS),
		required: setOf(fieldGroup, fieldTopic),
	}
	shapeGroupsCommit = shape{
		allowed:  setOf(fieldGroup, fieldTopic, fieldNextOffset),
		required: setOf(fieldGroup, fieldTopic, fieldNextOffset),
	}
	shapeTopicsRetain = shape{
		allowed:  setOf(fieldTopic, fieldStartOffset),
		required: setOf(fieldTopic, fieldStartOffset),
	}
	shapeTopicsConfigure = shape{
		allowed:  setOf(fieldTopic, fieldRetentionMS, fieldRetentionBytes, fieldRetentionRecords, fieldReset),
		required: setOf(fieldTopic),
	}
	shapeTopicsList = shape{allowed: setOf(fieldPrefix, fieldLimit, fieldCursor), emptyBody: true}
	shapeTopic      = shape{allowed: setOf(fieldTopic), required: setOf(fieldTopic)}
	shapeGroupsList = shape{allowed: setOf(fieldTopic, fieldPrefix, fieldLimit, fieldCursor), emptyBody: true}
	shapeGroup      = shape{allowed: setOf(fieldGroup, fieldTopic), required: setOf(fieldGroup, fieldTopic)}
	shapeGroupsSeek = shape{
		allowed:  setOf(fieldGroup, fieldTopic, fieldOffset, fieldTimeMS, fieldSeekTo, fieldDryRun),
		required: setOf(fieldGroup, fieldTopic),
		oneOf:    setOf(fieldOffset, fieldTimeMS, fieldSeekTo),
	}
	shapeSnapshot    = shape{emptyBody: true}
	shapeTransfer    = shape{allowed: setOf(fieldTo), emptyBody: true}
	shapeBackupBegin = shape{emptyBody: true}
	shapeBackupRead  = shape{
		allowed:  setOf(fieldBackup, fieldSegment, fieldOffset, fieldBytes),
		required: setOf(fieldBackup, fieldOffset, fieldBytes),
	}
	shapeBackupEnd = shape{allowed: setOf(fieldBackup), required: setOf(fieldBackup)}

	// shapeMessage is that of one element of messages.
	shapeMessage = shape{allowed: setOf(fieldKey, fieldValue), required: setOf(fieldValue)}
)

// bodyMax is how long the body may be.
func (sh *shape) bodyMax() int {
	if sh.records {
		return bodyMax
	}
	return bodySmallMax
}

// request is a decoded body. Its slices lie in the body or in the call's memory.
type request struct {
	given                           fields // that the body has
	topic, group, requestID         []byte
	records                         []fact.Record
	offset, nextOffset, startOffset uint64
	fromMS, limit, waitMS, to       uint64
	rare                            rareFields

	store [api.BatchMax]fact.Record // backs records
}

// rareFields are those that only the strict decoder knows.
type rareFields struct {
	prefix, cursor, backup, seekTo                []byte
	timeMS, segment, bytes                        uint64
	retentionMS, retentionBytes, retentionRecords uint64 // 0 for null
	reset, dryRun                                 bool
}

func (r *request) reset() {
	clear(r.store[:len(r.records)])
	r.topic, r.group, r.requestID, r.records = nil, nil, nil, nil
	r.offset, r.nextOffset, r.startOffset, r.fromMS, r.limit, r.waitMS, r.to = 0, 0, 0, 0, 0, 0, 0
	if r.given >= 1<<fieldPrefix {
		r.rare = rareFields{}
	}
	r.given = 0
}

// number returns where the number of f goes, and its range.
func (r *request) number(f field) (dst *uint64, low, high uint64) {
	switch f {
	case fieldOffset:
		return &r.offset, 0, api.OffsetMax
	case fieldNextOffset:
		return &r.nextOffset, 0, api.OffsetMax
	case fieldStartOffset:
		return &r.startOffset, 0, api.OffsetMax
	case fieldLimit:
		return &r.limit, 1, api.LimitMax
	case fieldWaitMS:
		return &r.waitMS, 0, api.WaitMSMax
	case fieldTo:
		return &r.to, 0, nodeMax
	case fieldFromMS:
		return &r.fromMS, 0, api.TimeMSMax
	case fieldTimeMS:
		return &r.rare.timeMS, 0, api.TimeMSMax
	case fieldSegment:
		return &r.rare.segment, 0, api.OffsetMax
	case fieldBytes:
		return &r.rare.bytes, 1, api.BackupReadMax
	case fieldRetentionMS:
		return &r.rare.retentionMS, 1, api.OffsetMax
	case fieldRetentionBytes:
		return &r.rare.retentionBytes, 1, api.OffsetMax
	case fieldRetentionRecords:
		return &r.rare.retentionRecords, 1, api.OffsetMax
	}
	return nil, 0, 0
}

// nullable tells the numbers that may be null, for no limit.
func (f field) nullable() bool {
	return f == fieldRetentionMS || f == fieldRetentionBytes || f == fieldRetentionRecords
}

// name returns where the name of f goes.
func (r *request) name(f field) *[]byte {
	switch f {
	case fieldTopic:
		return &r.topic
	case fieldGroup:
		return &r.group
	case fieldRequestID:
		return &r.requestID
	case fieldPrefix:
		return &r.rare.prefix
	case fieldCursor:
		return &r.rare.cursor
	case fieldBackup:
		return &r.rare.backup
	case fieldSeekTo:
		return &r.rare.seekTo
	}
	return nil
}

// flag returns where the boolean of f goes.
func (r *request) flag(f field) *bool {
	switch f {
	case fieldReset:
		return &r.rare.reset
	case fieldDryRun:
		return &r.rare.dryRun
	}
	return nil
}

// hasControl reports whether the UTF-8 string has a control character.
func hasControl(s []byte) bool {
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		if unicode.IsControl(r) {
			return true
		}
		s = s[n:]
	}
	return false
}
