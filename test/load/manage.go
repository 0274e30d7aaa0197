package load

import (
	"context"
	"fmt"

	"example.com/mq/test/history"
)

// spare is the topic that Manage deletes.
const spare = "spare"

// Spare publishes a little to a topic that Manage can delete. Both are for tests that look at single answers.
func (l *Load) Spare(ctx context.Context, url string) error {
	c := NewClient(url)
	defer c.Close()
	for range 3 {
		l.mu.Lock()
		l.probes++
		name := fmt.Sprintf("%sspare-%d", l.cfg.Prefix, l.probes)
		l.mu.Unlock()
		records := []history.Record{{Value: []byte(name)}}
		sent := l.Checker.Send(history.Publish{Name: name, Topic: l.cfg.Prefix + spare, Records: records})
		offsets, duplicate, a := c.publish(ctx, l.cfg.Prefix+spare, "", records, false)
		if l.note(a).Outcome != Done {
			l.Checker.Unknown(sent)
			return fmt.Errorf("publish to %q: %v", spare, a)
		}
		l.Checker.Done(sent, offsets, duplicate)
	}
	return nil
}

// Manage does everything that needs little room: it commits, seeks and deletes a group, configures and deletes the spare
// topic, and looks at it. Every call must be answered 200.
func (l *Load) Manage(ctx context.Context, url string) error {
	c := NewClient(url)
	defer c.Close()
	topic, group := l.cfg.Prefix+spare, l.cfg.Prefix+"manager"
	start, end := l.Checker.Bounds(topic)
	want := func(path string, in map[string]any) error {
		in["topic"] = topic
		if a := l.note(c.call(ctx, path, in, &struct{}{})); a.Outcome != Done {
			return fmt.Errorf("%s: %v", path, a)
		}
		return nil
	}
	for _, call := range []struct {
		path string
		in   map[string]any
	}{
		{"/v1/groups/commit", map[string]any{"group": group, "next_offset": end}},
		{"/v1/groups/seek", map[string]any{"group": group, "offset": start}},
		{"/v1/groups/seek", map[string]any{"group": group, "to": "end"}},
		{"/v1/groups/describe", map[string]any{"group": group}},
		{"/v1/groups/delete", map[string]any{"group": group}},
		{"/v1/topics/configure", map[string]any{"retention_records": 1000}},
		{"/v1/topics/describe", map[string]any{}},
	} {
		if err := want(call.path, call.in); err != nil {
			return err
		}
	}
	l.Checker.Deleting(topic)
	var out struct {
		End uint64 `json:"end_offset"`
	}
	if a := l.note(c.call(ctx, "/v1/topics/delete", map[string]any{"topic": topic}, &out)); a.Outcome != Done {
		return fmt.Errorf("delete of %q: %v", topic, a)
	}
	l.Checker.Deleted(topic, out.End, true)
	return nil
}

// Configure sets how many records all topics keep.
func (l *Load) Configure(ctx context.Context, url string, records uint64) error {
	c := NewClient(url)
	defer c.Close()
	for _, topic := range l.cfg.Topics {
		l.Checker.Configuring(topic, history.Policy{Records: records})
		in := map[string]any{"topic": topic, "retention_records": records}
		if a := l.note(c.call(ctx, "/v1/topics/configure", in, &struct{}{})); a.Outcome != Done {
			return fmt.Errorf("configure %q: %v", topic, a)
		}
	}
	return nil
}
