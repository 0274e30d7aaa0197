package state

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"github.com/cockroachdb/datadriven"
)

// script runs the commands of testdata/scripts/*.txt. Those that apply an entry take these arguments:
//
//	time=N   of the entry in ms; without it, that of the entry before
//	term=N   likewise
//	index=N  likewise; without it, one more
//
//	append topic=T [base=N] [cum=N] [count=N] [size=N] [id=I] [digest=D]   base, cum: without them, the topic's end
//	move topic=T group=G next=N
//	retain topic=T start=N [cum=N]                        cum: without it, as if all records were of one size
//	keep topic=T base=N [cum=N] [count=N] [size=N] [was=N]     was: the time of the records in ms
//	configure topic=T [ms=N] [bytes=N] [records=N]        -1 for none
//	delete topic=T [group=G]
//	restored floor=N
//	settings window=N
//	marker
//	raw kind=N hex=H                                      any payload
//
// And these look:
//
//	topics, group topic=T group=G, id topic=T id=I [now=N], show
//	freeze name=F, restore name=F       restore goes on from what was frozen, by way of its encoding
//	encode                              the bytes of the state
type script struct {
	s      *State
	frozen map[string]*Frozen
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		c := script{s: New(), frozen: map[string]*Frozen{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := c.run(t, d)
			if err := c.s.Verify(); err != nil {
				t.Errorf("%s: %v", d.Pos, err)
			}
			return strings.TrimRight(out, "\n") + "\n"
		})
	})
}

// args reads optional arguments.
type args struct {
	t *testing.T
	d *datadriven.TestData
}

func (a args) num(name string, without uint64) uint64 {
	a.d.MaybeScanArgs(a.t, name, &without)
	return without
}

func (a args) limit(name string) fact.Limit {
	var l int64
	a.d.MaybeScanArgs(a.t, name, &l)
	return fact.Limit(l)
}

func (a args) str(name string) []byte {
	var s string
	a.d.MaybeScanArgs(a.t, name, &s)
	return []byte(s)
}

func (c *script) run(t *testing.T, d *datadriven.TestData) string {
	a := args{t, d}
	topic := a.str("topic")
	known, _ := c.s.Topic(topic)
	switch d.Cmd {
	case "append":
		var digest fact.Digest
		copy(digest[:], a.str("digest"))
		end, cum, _, _ := c.s.Ended(topic)
		records := make([]fact.Record, a.num("count", 1))
		for i := range records {
			records[i].Value = make([]byte, a.num("size", 0))
		}
		base := fact.Offset(a.num("base", uint64(end)))
		return c.apply(a, fact.KindAppended, fact.AppendAppended(nil, topic, base, a.num("cum", cum), a.str("id"), digest, records))
	case "move":
		return c.apply(a, fact.KindGroupMoved, fact.AppendGroupMoved(nil, topic, a.str("group"), fact.Offset(a.num("next", 0))))
	case "retain":
		start, cum := fact.Offset(a.num("start", 0)), known.EndCum
		if rest, all := known.Between(start, known.End), known.Records(); rest > 0 {
			cum -= (known.EndCum - known.StartCum) / all * rest
		}
		return c.apply(a, fact.KindTopicRetained, fact.AppendTopicRetained(nil, topic, start, a.num("cum", cum)))
	case "keep":
		records := make([]fact.KeptRecord, a.num("count", 1))
		for i := range records {
			records[i].TimeMS, records[i].Value = int64(a.num("was", 0)), make([]byte, a.num("size", 0))
		}
		return c.apply(a, fact.KindKept, fact.AppendKept(nil, topic, fact.Offset(a.num("base", 0)), a.num("cum", 0), records))
	case "configure":
		return c.apply(a, fact.KindTopicConfigured, fact.AppendTopicConfigured(nil, topic,
			fact.Retention{MS: a.limit("ms"), Bytes: a.limit("bytes"), Records: a.limit("records")}))
	case "delete":
		if group := a.str("group"); len(group) > 0 {
			return c.apply(a, fact.KindGroupDeleted, fact.AppendGroupDeleted(nil, topic, group))
		}
		return c.apply(a, fact.KindTopicDeleted, fact.AppendTopicDeleted(nil, topic))
	case "restored":
		return c.apply(a, fact.KindRestored, fact.AppendRestored(nil, fact.Offset(a.num("floor", 0))))
	case "settings":
		return c.apply(a, fact.KindSettings, fact.AppendSettings(nil, int64(a.num("window", 0))))
	case "marker":
		return c.apply(a, fact.KindMarker, nil)
	case "raw":
		var payload []byte
		if hex := a.str("hex"); len(hex) > 0 {
			if _, err := fmt.Sscanf(string(hex), "%x", &payload); err != nil {
				t.Fatal(err)
			}
		}
		return c.apply(a, entry.Kind(a.num("kind", 0)), payload)
	case "topics":
		var b strings.Builder
		for id := range TopicID(c.s.Topics()) {
			t := c.s.TopicByID(id)
			fmt.Fprintf(&b, "%d %s: %d to %d", t.ID, t.Name, t.Start, t.End)
			if t.EndCum > 0 {
				fmt.Fprintf(&b, ", after %d to %d bytes", t.StartCum, t.EndCum)
			}
			if t.Retention != (fact.Retention{}) {
				fmt.Fprintf(&b, ", keeps %+v", t.Retention)
			}
			for _, g := range t.Gaps {
				fmt.Fprintf(&b, ", gap %d to %d", g.From, g.To)
			}
			if t.Deleted {
				b.WriteString(", deleted")
			}
			b.WriteByte('\n')
		}
		return b.String()
	case "group":
		g, ok := c.s.Group(known.ID, a.str("group"))
		if !ok {
			return "none"
		}
		return fmt.Sprintf("next %d, moved at %d ms", g.Next, g.TimeMS)
	case "id":
		_, _, id, _ := c.s.Ended(topic)
		r, ok := c.s.RequestID(id, a.str("id"), int64(a.num("now", uint64(c.s.TimeMS()))))
		if !ok {
			return "none"
		}
		return fmt.Sprintf("base %d, count %d, digest %q", r.Base, r.Count, bytes.TrimRight(r.Digest[:], "\x00"))
	case "show":
		return fmt.Sprintf("applied %d, term %d, time %d ms, window %d ms, %d topics, %d records of %d bytes, %d groups, %d request ids in memory",
			c.s.Applied(), c.s.Term(), c.s.TimeMS(), c.s.WindowMS(), c.s.LiveTopics(), c.s.LiveRecords(), c.s.LiveBytes(), c.s.Groups(), c.s.RequestIDs())
	case "freeze":
		f := c.s.Freeze()
		c.frozen[string(a.str("name"))] = f
		return fmt.Sprintf("at %d, hash %x", f.Index(), f.Hash())
	case "restore":
		var buf bytes.Buffer
		if _, err := c.frozen[string(a.str("name"))].WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		s, err := Restore(&buf)
		if err != nil {
			return err.Error()
		}
		c.s = s
		return fmt.Sprintf("at %d, hash %x", s.Applied(), s.Hash())
	case "encode":
		var buf bytes.Buffer
		if _, err := c.s.Freeze().WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		return dump(buf.Bytes())
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (c *script) apply(a args, kind entry.Kind, payload []byte) string {
	e := entry.Entry{
		Index:   entry.Index(a.num("index", uint64(c.s.Applied())+1)),
		Term:    entry.Term(a.num("term", uint64(max(c.s.Term(), 1)))),
		TimeMS:  int64(a.num("time", uint64(c.s.TimeMS()))),
		Kind:    kind,
		Payload: payload,
	}
	before := c.s.Hash()
	effect, err := c.s.Apply(&e)
	if err != nil {
		if c.s.Hash() != before {
			a.t.Errorf("%s: a refused entry changed the state", a.d.Pos)
		}
		return "error: " + err.Error()
	}
	switch kind {
	case fact.KindAppended, fact.KindKept:
		return fmt.Sprintf("%d: topic %d %s, %d from %d", e.Index, effect.Topic, effect.Name, effect.Count, effect.First)
	case fact.KindGroupMoved, fact.KindTopicRetained, fact.KindTopicDeleted:
		return fmt.Sprintf("%d: topic %d %s, at %d", e.Index, effect.Topic, effect.Name, effect.First)
	}
	return fmt.Sprintf("%d: ok", e.Index)
}

// dump prints bytes 16 to a line.
func dump(p []byte) string {
	var b strings.Builder
	for at := 0; at < len(p); at += 16 {
		fmt.Fprintf(&b, "%04x: % x\n", at, p[at:min(at+16, len(p))])
	}
	return b.String()
}
