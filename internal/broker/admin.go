package broker

import "example.com/mq/internal/fact"

// Configure asks to change how long records of a topic are kept.
type Configure struct {
	Topic []byte
	// Reset sets all back to the defaults first.
	Reset bool
	// What to set: a Limit for each, or nil to leave it as it is.
	RetentionMS, RetentionBytes, RetentionRecords *fact.Limit
}

// Settings are those of a topic: its own, and those in effect, the node's defaults included.
type Settings struct {
	Own       fact.Retention
	Effective fact.Retention // each a number or fact.LimitNone
}

// TopicSummary is a topic in a list.
type TopicSummary struct {
	Name       string
	Start, End fact.Offset
	Records    uint64 // that are kept
	Bytes      uint64 // of their keys and values
}

// TopicDescription is all about a topic.
type TopicDescription struct {
	TopicSummary
	// Of the first and the last record that is kept, in ms since the Unix epoch; -1 when there is none, or it cannot be read.
	OldestMS, NewestMS int64
	Settings           Settings
	Groups             []GroupState // the first ones, in the order of their names
	GroupsTotal        int
}

// GroupState is where a group stands in a topic.
type GroupState struct {
	Group, Topic string
	Next         fact.Offset // that it reads next; never below Start
	Start, End   fact.Offset // of the topic
	Lag          uint64      // records kept from Next on
	LastMS       int64       // when it was last moved
}

// List asks for a page of topics or groups.
type List struct {
	Topic  []byte // of groups: only those of this one; empty for all
	Prefix []byte // of the name of the topic or the group
	Limit  int    // at least 1
	// After is the last one of the page before, or nil: [topic], or [group, topic].
	After [][]byte
}

// Seek asks to set where a group reads next.
type Seek struct {
	Topic, Group []byte
	By           SeekBy
	Offset       fact.Offset // with SeekByOffset
	TimeMS       int64       // with SeekByTime
	DryRun       bool
}

// SeekBy says how Seek names the place.
type SeekBy uint8

// The ways to name it.
const (
	SeekByOffset SeekBy = iota
	SeekByTime          // the first record of that time or later, or the end
	SeekToStart
	SeekToEnd
)

// Sought is the outcome of a Seek.
type Sought struct {
	Next, Previous    fact.Offset
	Skipped, Repeated uint64 // records that are kept and will not be read, or will be read (again) though they were behind
}

// Keep asks to append records that stand in an old segment once more, so that the segment can go.
type Keep struct {
	Runs  []KeptRun
	Bytes int // of all their keys and values
}

// KeptRun is what one fact holds: consecutive records of a topic.
type KeptRun struct {
	Topic   []byte
	Base    fact.Offset
	Cum     uint64 // bytes of keys and values of all records of the topic before Base, ever
	Records []fact.KeptRecord
}
