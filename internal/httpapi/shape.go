package httpapi

import (
	"unicode"
	"unicode/utf8"

	"example.com/mq/api"
	"example.com/mq/internal/fact"
)

// field numbers the fields that requests may have.
type field uint8

const (
	fieldTopic field = iota
	fieldGroup
	fieldRequestID
	fieldKey
	fieldValue
	fieldMessages
	fieldOffset
	fieldNextOffset
	fieldStartOffset
	fieldLimit
	fieldWaitMS
	fieldCount
)

var fieldNames = [fieldCount]string{
	"topic", "group", "request_id", "key", "value", "messages", "offset", "next_offset", "start_offset", "limit", "wait_ms",
}

// fields is a set of fields.
type fields uint16

func setOf(list ...field) (s fields) {
	for _, f := range list {
		s |= 1 << f
	}
	return s
}

func (s fields) has(f field) bool { return s>>f&1 == 1 }

// shape says which fields a request may and must have. Both decoders follow it.
type shape struct {
	allowed, required fields
	emptyBody         bool // an empty body stands for {}
	records           bool // it carries records: the body may be large
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
		allowed:  setOf(fieldTopic, fieldOffset, fieldLimit, fieldWaitMS),
		required: setOf(fieldTopic, fieldOffset),
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
	shapeSnapshot = shape{emptyBody: true}

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
	topic, group, requestID         []byte
	records                         []fact.Record
	offset, nextOffset, startOffset uint64
	limit, waitMS                   uint64

	store [api.BatchMax]fact.Record // backs records
}

func (r *request) reset() {
	clear(r.store[:len(r.records)])
	r.topic, r.group, r.requestID, r.records = nil, nil, nil, nil
	r.offset, r.nextOffset, r.startOffset, r.limit, r.waitMS = 0, 0, 0, 0, 0
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
	}
	return nil, 0, 0
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
