package httpapi

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// fakeDefaults is what a topic of fakeBroker has where it has no settings of its own.
var fakeDefaults = fact.Retention{MS: 1000, Bytes: fact.LimitNone, Records: fact.LimitNone}

// seed makes what goodBodies needs: topic t with a record, and group g. Deletions answer and delete nothing from then on, so
// that all of goodBodies can be sent again and again.
func (f *fakeBroker) seed() {
	if _, err := f.Publish(&broker.Publish{Topic: []byte("t"), Records: make([]fact.Record, 1)}); err != nil {
		panic(err)
	}
	if _, err := f.CommitGroup([]byte("t"), []byte("g"), 0); err != nil {
		panic(err)
	}
	f.mu.Lock()
	f.calls, f.keeps = 0, true
	f.mu.Unlock()
}

// topic returns a topic that is there. f.mu is held.
func (f *fakeBroker) topic(name []byte) *fakeTopic {
	if t := f.topics[string(name)]; t != nil && !t.deleted {
		return t
	}
	return nil
}

func (t *fakeTopic) end() uint64 { return uint64(len(t.records)) }

// at is the offset of the first record of that time or later.
func (t *fakeTopic) at(ms int64) uint64 {
	for off := t.start; off < t.end(); off++ {
		if t.records[off].timeMS >= ms {
			return off
		}
	}
	return t.end()
}

func (t *fakeTopic) summary(name string) broker.TopicSummary {
	s := broker.TopicSummary{Name: name, Start: fact.Offset(t.start), End: fact.Offset(t.end()), Records: t.end() - t.start}
	for _, r := range t.records[t.start:] {
		s.Bytes += uint64(len(r.key) + len(r.value))
	}
	return s
}

func (t *fakeTopic) settings() broker.Settings {
	s := broker.Settings{Own: t.own, Effective: t.own}
	for _, l := range []struct{ own, to *fact.Limit }{
		{&fakeDefaults.MS, &s.Effective.MS}, {&fakeDefaults.Bytes, &s.Effective.Bytes}, {&fakeDefaults.Records, &s.Effective.Records},
	} {
		if *l.to == fact.LimitDefault {
			*l.to = *l.own
		}
	}
	return s
}

func (t *fakeTopic) group(topic, group string) broker.GroupState {
	next := max(t.groups[group], t.start)
	return broker.GroupState{Group: group, Topic: topic, Next: fact.Offset(next), Start: fact.Offset(t.start), End: fact.Offset(t.end()),
		Lag: t.end() - next, LastMS: 1700000000000 + int64(next)}
}

func (f *fakeBroker) ConfigureTopic(q *broker.Configure) (broker.Settings, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.Settings{}, err
	}
	t := f.topic(q.Topic)
	if t == nil {
		return broker.Settings{}, broker.ErrTopicNotFound
	}
	if q.Reset {
		t.own = fact.Retention{}
	}
	for to, from := range map[*fact.Limit]*fact.Limit{&t.own.MS: q.RetentionMS, &t.own.Bytes: q.RetentionBytes, &t.own.Records: q.RetentionRecords} {
		if from != nil {
			*to = *from
		}
	}
	return t.settings(), nil
}

func (f *fakeBroker) DeleteTopic(topic []byte) (fact.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return 0, err
	}
	t := f.topic(topic)
	if t == nil {
		return 0, broker.ErrTopicNotFound
	}
	if f.keeps {
		return fact.Offset(t.end()), nil
	}
	t.deleted, t.start, t.groups, t.own = true, t.end(), map[string]uint64{}, fact.Retention{}
	return fact.Offset(t.end()), nil
}

func (f *fakeBroker) ListTopics(q *broker.List) (page []broker.TopicSummary, more bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return nil, false, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.topics)) {
		switch {
		case f.topics[name].deleted || !strings.HasPrefix(name, string(q.Prefix)), q.After != nil && name <= string(q.After[0]):
		case len(page) == q.Limit:
			return page, true, nil
		default:
			page = append(page, f.topics[name].summary(name))
		}
	}
	return page, false, nil
}

func (f *fakeBroker) DescribeTopic(topic []byte, groups int) (broker.TopicDescription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.TopicDescription{}, err
	}
	t := f.topic(topic)
	if t == nil {
		return broker.TopicDescription{}, broker.ErrTopicNotFound
	}
	d := broker.TopicDescription{TopicSummary: t.summary(string(topic)), OldestMS: -1, NewestMS: -1, Settings: t.settings(), GroupsTotal: len(t.groups)}
	if t.start < t.end() {
		d.OldestMS, d.NewestMS = t.records[t.start].timeMS, t.records[t.end()-1].timeMS
	}
	for _, g := range slices.Sorted(maps.Keys(t.groups)) {
		if len(d.Groups) < groups {
			d.Groups = append(d.Groups, t.group(string(topic), g))
		}
	}
	return d, nil
}

func (f *fakeBroker) ListGroups(q *broker.List) (page []broker.GroupState, more bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return nil, false, err
	}
	if len(q.Topic) > 0 && f.topic(q.Topic) == nil {
		return nil, false, broker.ErrTopicNotFound
	}
	var all []broker.GroupState
	for name, t := range f.topics {
		for g := range t.groups {
			if !t.deleted && (len(q.Topic) == 0 || name == string(q.Topic)) && strings.HasPrefix(g, string(q.Prefix)) {
				all = append(all, t.group(name, g))
			}
		}
	}
	slices.SortFunc(all, func(a, b broker.GroupState) int {
		return slices.Compare([]string{a.Group, a.Topic}, []string{b.Group, b.Topic})
	})
	for _, g := range all {
		if q.After != nil && slices.CompareFunc([][]byte{[]byte(g.Group), []byte(g.Topic)}, q.After, bytes.Compare) <= 0 {
			continue
		}
		if len(page) == q.Limit {
			return page, true, nil
		}
		page = append(page, g)
	}
	return page, false, nil
}

// groupOf returns the topic of a group that has an offset. f.mu is held.
func (f *fakeBroker) groupOf(topic, group []byte) (*fakeTopic, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	t := f.topic(topic)
	if t == nil {
		return nil, broker.ErrTopicNotFound
	}
	if _, ok := t.groups[string(group)]; !ok {
		return nil, broker.ErrGroupNotFound
	}
	return t, nil
}

func (f *fakeBroker) DescribeGroup(topic, group []byte) (broker.GroupState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.groupOf(topic, group)
	if err != nil {
		return broker.GroupState{}, err
	}
	return t.group(string(topic), string(group)), nil
}

func (f *fakeBroker) DeleteGroup(topic, group []byte) (fact.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, err := f.groupOf(topic, group)
	if err != nil {
		return 0, err
	}
	next := t.groups[string(group)]
	if !f.keeps {
		delete(t.groups, string(group))
	}
	return fact.Offset(next), nil
}

func (f *fakeBroker) SeekGroup(q *broker.Seek) (broker.Sought, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.Sought{}, err
	}
	t := f.topic(q.Topic)
	if t == nil {
		return broker.Sought{}, broker.ErrTopicNotFound
	}
	before := max(t.groups[string(q.Group)], t.start)
	var next uint64
	switch q.By {
	case broker.SeekByOffset:
		next = uint64(q.Offset)
	case broker.SeekByTime:
		next = t.at(q.TimeMS)
	case broker.SeekToStart:
		next = t.start
	case broker.SeekToEnd:
		next = t.end()
	}
	if next < t.start || next > t.end() {
		return broker.Sought{}, &broker.OffsetRangeError{Start: fact.Offset(t.start), End: fact.Offset(t.end())}
	}
	if !q.DryRun {
		t.groups[string(q.Group)] = next
	}
	return broker.Sought{Next: fact.Offset(next), Previous: fact.Offset(before),
		Skipped: max(next, before) - before, Repeated: before - min(next, before)}, nil
}

var _ Backer = (*fakeBroker)(nil)

// fakeBackup is the one backup of fakeBroker, and fakeSegment the one file in it.
const (
	fakeBackup  = "b"
	fakeSegment = "the bytes of a segment"
)

func (f *fakeBroker) BackupBegin() (broker.BackupInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return broker.BackupInfo{}, err
	}
	return broker.BackupInfo{Backup: fakeBackup, Index: 9, TimeMS: 1700000000000,
		Segments: []broker.BackupSegment{{First: 1, Last: 9, Bytes: int64(len(fakeSegment))}}}, nil
}

func (f *fakeBroker) BackupRead(backup string, segment entry.Index, offset int64, p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch err := f.begin(); {
	case err != nil:
		return 0, err
	case backup != fakeBackup:
		return 0, broker.ErrBackupGone
	case segment != 1 || offset > int64(len(fakeSegment)):
		return 0, broker.ErrBackupRange
	}
	return copy(p, fakeSegment[offset:]), nil
}

func (f *fakeBroker) BackupEnd(backup string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(); err != nil {
		return err
	}
	if backup != fakeBackup {
		return broker.ErrBackupGone
	}
	return nil
}
