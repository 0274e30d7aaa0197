package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"example.com/mq/test/history"
)

// setting is a topic of a Load with Churn, and the settings that it gets in turn.
type setting struct {
	topic    string
	policies []history.Policy
}

// settings are small, so that starts are moved all the time, and segments hold little that lives. Of a topic with one policy
// the checker knows exactly where it must begin.
var settings = []setting{
	{"churn records", []history.Policy{{Records: 300}}},
	{"churn bytes", []history.Policy{{Bytes: 200 << 10}}},
	{"churn time", []history.Policy{{MS: 1500}}},
	{"churn all", []history.Policy{{MS: 3000, Bytes: 1 << 20, Records: 1000}, {Records: 40}, {MS: 400}, {Bytes: 50_000, Records: 100_000}}},
}

// temporary are topics that are deleted and published to again.
var temporary = []string{"temporary 0", "temporary 1"}

// lasting is a topic that keeps all of the little that it gets: it is what the cleaner has to move.
const lasting = "lasting"

// churner configures topics, moves and deletes groups, deletes topics that it alone publishes to, and lists and describes
// what there is. It does one thing after another.
type churner struct {
	load *Load
	rand *rand.Rand
	own  []*temp
	// group is one that it alone moves.
	group string
}

// temp is a topic that only the churner publishes to, so that it knows what is in it when it deletes it.
type temp struct {
	topic    string
	writer   *publisher
	left     int  // publishes before it is deleted
	deleting bool // asked for, and the outcome is not known
}

func newChurner(l *Load) *churner {
	k := &churner{load: l, rand: rand.New(rand.NewPCG(l.cfg.Seed, 4000)), group: l.cfg.Prefix + "churner"}
	for i, topic := range temporary {
		w := newPublisher(l, 500+i)
		w.topics = []string{l.cfg.Prefix + topic}
		k.own = append(k.own, &temp{topic: l.cfg.Prefix + topic, writer: w})
	}
	return k
}

func (k *churner) run(ctx context.Context, c *Client) {
	k.configure(ctx, c, settings[k.rand.IntN(len(settings))])
	for pause(ctx, time.Duration(k.rand.IntN(3))*time.Millisecond) {
		var a Answer
		switch dice := k.rand.IntN(20); {
		case dice == 0:
			a = k.configure(ctx, c, settings[k.rand.IntN(len(settings))])
		case dice < 3:
			a = k.look(ctx, c)
		case dice < 5:
			a = k.byTime(ctx, c)
		case dice < 8:
			a = k.moveGroup(ctx, c)
		default:
			a = k.own[k.rand.IntN(len(k.own))].step(ctx, k, c)
		}
		if a.Status == 0 && !c.goesOn(ctx) {
			return
		}
	}
}

// odd reports an answer that blames the request, unless its code is one of those that may be.
func (k *churner) odd(what string, a Answer, codes ...string) {
	for _, code := range codes {
		if a.Code == code {
			return
		}
	}
	if a.refused() {
		k.load.strangeAnswer(what, a)
	}
}

func (k *churner) configure(ctx context.Context, c *Client, s setting) Answer {
	topic, p := k.load.cfg.Prefix+s.topic, s.policies[k.rand.IntN(len(s.policies))]
	k.load.Checker.Configuring(topic, p)
	in := map[string]any{"topic": topic, "retention_ms": nil, "retention_bytes": nil, "retention_records": nil}
	if p.MS > 0 {
		in["retention_ms"] = p.MS
	}
	if p.Bytes > 0 {
		in["retention_bytes"] = p.Bytes
	}
	if p.Records > 0 {
		in["retention_records"] = p.Records
	}
	var out struct {
		Settings struct {
			Records *uint64 `json:"retention_records"`
		} `json:"settings"`
	}
	a := k.load.note(c.call(ctx, "/v1/topics/configure", in, &out))
	k.odd("configure "+topic, a, "topic_not_found")
	if got := out.Settings.Records; a.Outcome == Done && (got == nil) != (p.Records == 0) {
		k.load.strangeAnswer(fmt.Sprintf("configure %q with %+v: it has %v records", topic, p, got), a)
	}
	return a
}

// look lists and describes.
func (k *churner) look(ctx context.Context, c *Client) Answer {
	topic := k.topic()
	var out struct {
		Start   uint64 `json:"start_offset"`
		End     uint64 `json:"end_offset"`
		Records uint64 `json:"records"`
		Topics  []struct {
			Start   uint64 `json:"start_offset"`
			End     uint64 `json:"end_offset"`
			Records uint64 `json:"records"`
		} `json:"topics"`
	}
	var a Answer
	switch k.rand.IntN(4) {
	case 0:
		a = c.call(ctx, "/v1/topics/list", map[string]any{"limit": 1 + k.rand.IntN(10)}, &out)
	case 1:
		a = c.call(ctx, "/v1/groups/list", map[string]any{"limit": 1 + k.rand.IntN(10)}, &out)
	case 2:
		a = c.call(ctx, "/v1/groups/describe", map[string]any{"topic": topic, "group": k.group}, &struct{}{})
	default:
		start, end := k.load.Checker.Bounds(topic)
		a = c.call(ctx, "/v1/topics/describe", map[string]any{"topic": topic}, &out)
		if a.Outcome == Done && (out.Start < start || out.End < end || out.Records != out.End-out.Start) {
			k.load.strangeAnswer(fmt.Sprintf("describe %q that was %d to %d before: %+v", topic, start, end, out), a)
		}
	}
	k.odd("list or describe", k.load.note(a), "topic_not_found", "group_not_found")
	for _, s := range out.Topics {
		if s.Records != s.End-s.Start {
			k.load.strangeAnswer(fmt.Sprintf("list: %+v", s), a)
		}
	}
	return a
}

func (k *churner) topic() string {
	topics := k.load.cfg.Topics
	return topics[k.rand.IntN(len(topics))]
}

// byTime reads from a time of the last seconds on.
func (k *churner) byTime(ctx context.Context, c *Client) Answer {
	topic, from := k.topic(), time.Now().UnixMilli()-k.rand.Int64N(3000)
	h := k.load.Checker
	r := h.ReadingByTime(topic, from, 100)
	var out fetched
	a := c.call(ctx, "/v1/fetch", map[string]any{"topic": topic, "from_ms": from, "limit": 100}, &out)
	judge(h, r, &out, a)
	k.odd("fetch by time", k.load.note(a), "topic_not_found")
	return a
}

// moveGroup reads by the churner's group, and then commits, seeks, or deletes it.
func (k *churner) moveGroup(ctx context.Context, c *Client) Answer {
	topic, h := k.topic(), k.load.Checker
	page, a := c.groupFetch(ctx, h, k.group, topic, 50, 0)
	if k.load.note(a); a.Outcome != Done {
		return a
	}
	in := map[string]any{"topic": topic, "group": k.group}
	path, to := "/v1/groups/seek", page.Next
	switch k.rand.IntN(5) {
	case 0:
		path, to = "/v1/groups/delete", 0 // it begins anew at the start
	case 1:
		in["to"], to = "start", 0 // as above: whatever the start is by then
	case 2: // a dry run changes nothing
		in["to"], in["dry_run"] = "end", true
		a = k.load.note(c.call(ctx, path, in, &struct{}{}))
		k.odd("dry run", a, "topic_not_found")
		return a
	case 3:
		in["offset"] = to
	default:
		return k.load.note(c.commit(ctx, h, k.group, topic, to))
	}
	h.Committing(k.group, topic, to)
	var out struct {
		Next uint64 `json:"next_offset"`
	}
	a = k.load.note(c.call(ctx, path, in, &out))
	k.odd(path, a, "topic_not_found", "group_not_found", "offset_out_of_range")
	switch {
	case a.Outcome == Done && to == 0:
		h.Committed(k.group, topic, 0)
	case a.Outcome == Done:
		h.Committed(k.group, topic, out.Next)
	case a.Outcome == NotDone:
		h.NotCommitted(k.group, topic)
	}
	return a
}

// step publishes to the topic, or deletes it, or finds out whether that was done.
func (t *temp) step(ctx context.Context, k *churner, c *Client) Answer {
	t.writer.forget()
	switch {
	case t.deleting || t.writer.pending == nil && t.left == 0:
		return t.delete(ctx, k, c)
	case t.writer.pending == nil && len(t.writer.old) > 0 && k.rand.IntN(8) == 0:
		return t.writer.repeat(ctx, c) // also of what is deleted: nothing is published twice
	}
	a := t.writer.step(ctx, c)
	if t.writer.pending == nil && t.left > 0 {
		t.left--
	}
	return a
}

func (t *temp) delete(ctx context.Context, k *churner, c *Client) Answer {
	h := k.load.Checker
	if !t.deleting {
		h.Deleting(t.topic)
	}
	again := t.deleting
	t.deleting = true
	var out struct {
		End uint64 `json:"end_offset"`
	}
	a := k.load.note(c.call(ctx, "/v1/topics/delete", map[string]any{"topic": t.topic}, &out))
	k.odd("delete", a, "topic_not_found")
	missing := a.Status == http.StatusNotFound
	switch {
	case missing && !again && t.holds(h):
		k.load.strangeAnswer(fmt.Sprintf("delete of %q, which was published to", t.topic), a)
	case a.Outcome == Done || missing:
		h.Deleted(t.topic, out.End, !missing)
		t.deleting, t.left = false, 3+k.rand.IntN(20)
		k.load.deletes.Add(1)
	}
	return a
}

// holds reports whether something is known to be in the topic.
func (t *temp) holds(h *history.Checker) bool {
	start, end := h.Bounds(t.topic)
	return end > start
}

// settle finds out what became of everything that was asked for.
func (k *churner) settle(ctx context.Context, c *Client) error {
	for _, t := range k.own {
		if err := t.writer.settle(ctx, c); err != nil {
			return err
		}
		for t.deleting {
			if a := t.delete(ctx, k, c); t.deleting && !pause(ctx, time.Millisecond) {
				return fmt.Errorf("the outcome of deleting %q is not known: %v", t.topic, a)
			}
		}
	}
	return nil
}
