package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

type logCmd struct {
	Dump   logDumpCmd   `cmd:"" help:"Print the log's entries."`
	Verify logVerifyCmd `cmd:"" help:"Read the whole log and check everything that can be checked. Fails on damage."`
	Cut    logCutCmd    `cmd:"" help:"Cut the end off a log that is damaged so that the broker does not start."`
}

func (logCmd) Help() string {
	return `DIR is a data directory. dump and verify write and lock nothing in it, so a broker may be running on it: then the
last entries may be missing, or look like a torn write.`
}

// logFolder is where a data directory keeps the log.
const logFolder = "log"

type logDumpCmd struct {
	Dir     string `arg:"" help:"Data directory."`
	From    uint64 `default:"1" help:"First index to print."`
	To      uint64 `default:"0" help:"Last index to print; 0 for all."`
	Records bool   `help:"Print the records too."`
}

func (c *logDumpCmd) Run(ctx context.Context, g *Global, std streams) error {
	d := &dumper{w: bufio.NewWriterSize(std.out, 64<<10), cmd: c, json: g.Output == "json"}
	fsys, err := vfs.Open(c.Dir)
	if err != nil {
		return err
	}
	defer fsys.Close()
	v, holes := newVerifier(), &frameHoles{}
	in, err := wal.Inspect(fsys, logFolder, func(e *entry.Entry, p entry.Position) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		holes.frame(p)
		_ = v.check(e) // only to find out what is missing: what does not fit is for verify
		if uint64(e.Index) < c.From || (c.To > 0 && uint64(e.Index) > c.To) {
			return nil
		}
		return d.entry(e, p)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	if err := d.w.Flush(); err != nil {
		return err
	}
	reportTail(std.err, "", in)
	texts, _ := v.losses(fsys, in, holes, nil, nil)
	return reportDamage(std.err, in, texts)
}

// reportTail mentions a torn tail: it is nothing wrong, but it explains why the log ends where it ends. of goes in front.
func reportTail(w io.Writer, of string, in wal.Inspection) {
	if t := in.Torn; t != nil {
		fmt.Fprintf(w, "mq: %sa torn write at the end (%d bytes): normal after a power cut; it was not acknowledged if the power was cut (segment %020d, byte %d)\n",
			of, t.Bytes, t.Segment, t.Offset)
	}
}

// reportDamage says what is damaged, and what is lost with it.
func reportDamage(w io.Writer, in wal.Inspection, texts []string) error {
	for i, d := range in.Damage {
		fmt.Fprintf(w, "mq: damage: %s: %s\n", placeOf(d), plain(withText(d.Reason, texts[i])))
	}
	if n := len(in.Damage); n > 0 {
		return fmt.Errorf("the log is damaged in %s", count(uint64(n), "place"))
	}
	return nil
}

// placeOf names the place of damage.
func placeOf(d wal.Damage) string {
	place := fmt.Sprintf("segment %020d, byte %d", d.Segment, d.Offset)
	switch {
	case d.First == 0 || d.First > d.Last:
	case d.First == d.Last:
		place += fmt.Sprintf(", entry %d", d.First)
	default:
		place += fmt.Sprintf(", entries %d to %d", d.First, d.Last)
	}
	return place
}

// withText puts what is lost behind why.
func withText(reason, text string) string {
	if text == "" {
		return reason
	}
	return reason + "; " + text
}

// dumper prints entries.
type dumper struct {
	w    *bufio.Writer
	cmd  *logDumpCmd
	json bool
	head bool // was printed
}

// dumpedEntry is an entry with -o json.
type dumpedEntry struct {
	Index   uint64 `json:"index"`
	Term    uint64 `json:"term"`
	Commit  uint64 `json:"commit"`
	TimeMS  int64  `json:"time_ms"`
	Segment uint64 `json:"segment"`
	Byte    int64  `json:"byte"`
	Bytes   int64  `json:"bytes"`
	Kind    string `json:"kind"`

	Topic     string         `json:"topic,omitempty"`
	Group     string         `json:"group,omitempty"`
	RequestID string         `json:"request_id,omitempty"`
	Offset    *uint64        `json:"offset,omitempty"` // first, next or start offset, by kind
	Count     int            `json:"count,omitempty"`
	Cum       *uint64        `json:"bytes_before,omitempty"` // of keys and values of the topic
	WindowMS  *int64         `json:"request_id_window_ms,omitempty"`
	Retention *dumpedLimits  `json:"retention,omitempty"`
	Records   []dumpedRecord `json:"records,omitempty"`
	Error     string         `json:"error,omitempty"`
}

// dumpedLimits are the settings of a topic: 0 for the default, -1 for no limit.
type dumpedLimits struct {
	MS      fact.Limit `json:"ms"`
	Bytes   fact.Limit `json:"bytes"`
	Records fact.Limit `json:"records"`
}

type dumpedRecord struct {
	Offset uint64 `json:"offset"`
	TimeMS int64  `json:"time_ms"`
	Key    []byte `json:"key"`
	Value  []byte `json:"value"`
}

func (d *dumper) entry(e *entry.Entry, p entry.Position) error {
	out := describe(e, p, d.cmd.Records)
	if d.json {
		return writeJSON(d.w, out)
	}
	if !d.head {
		d.head = true
		fmt.Fprintf(d.w, "%10s  %4s  %10s  %-24s  %-9s  %s\n", "INDEX", "TERM", "COMMIT", "TIME", "KIND", "WHAT")
	}
	fmt.Fprintf(d.w, "%10d  %4d  %10d  %-24s  %-9s  %s\n", out.Index, out.Term, out.Commit,
		time.UnixMilli(out.TimeMS).UTC().Format("2006-01-02T15:04:05.000Z"), out.Kind, out.text())
	for _, r := range out.Records {
		line := appendVisible(fmt.Appendf(nil, "%14s%10d  ", "", r.Offset), r.Key)
		line = appendVisible(append(line, '\t'), r.Value)
		d.w.Write(append(line, '\n'))
	}
	// The first error of the writer stays, and ends the reading of the log here.
	_, err := d.w.Write(nil)
	return err
}

// describe decodes an entry. An entry that does not decode is described too, with its error.
func describe(e *entry.Entry, p entry.Position, records bool) *dumpedEntry {
	out := &dumpedEntry{
		Index: uint64(e.Index), Term: uint64(e.Term), Commit: uint64(e.Commit), TimeMS: e.TimeMS,
		Segment: uint64(p.Segment), Byte: p.Offset, Bytes: p.Length,
	}
	var err error
	switch e.Kind {
	case fact.KindMarker:
		out.Kind = "marker"
		err = fact.DecodeMarker(e.Payload)
	case fact.KindAppended:
		out.Kind = "appended"
		err = out.stretch(e, records)
	case fact.KindGroupMoved:
		out.Kind = "group"
		var m fact.GroupMoved
		m, err = fact.DecodeGroupMoved(e.Payload)
		out.Topic, out.Group, out.Offset = string(m.Topic), string(m.Group), (*uint64)(&m.Next)
	case fact.KindTopicRetained:
		out.Kind = "retain"
		var r fact.TopicRetained
		r, err = fact.DecodeTopicRetained(e.Payload)
		out.Topic, out.Offset, out.Cum = string(r.Topic), (*uint64)(&r.Start), &r.Cum
	case fact.KindKept:
		out.Kind = "kept"
		err = out.stretch(e, records)
	case fact.KindTopicConfigured:
		out.Kind = "configure"
		var t fact.TopicConfigured
		t, err = fact.DecodeTopicConfigured(e.Payload)
		out.Topic, out.Retention = string(t.Topic), &dumpedLimits{t.Retention.MS, t.Retention.Bytes, t.Retention.Records}
	case fact.KindTopicDeleted:
		out.Kind = "delete"
		var t fact.TopicDeleted
		t, err = fact.DecodeTopicDeleted(e.Payload)
		out.Topic = string(t.Topic)
	case fact.KindGroupDeleted:
		out.Kind = "delete"
		var t fact.GroupDeleted
		t, err = fact.DecodeGroupDeleted(e.Payload)
		out.Topic, out.Group = string(t.Topic), string(t.Group)
	case fact.KindRestored:
		out.Kind = "restored"
		var floor fact.Offset
		floor, err = fact.DecodeRestored(e.Payload)
		out.Offset = (*uint64)(&floor)
	case fact.KindSettings:
		out.Kind = "settings"
		var ms int64
		ms, err = fact.DecodeSettings(e.Payload)
		out.WindowMS = &ms
	case fact.KindChecked:
		out.Kind = "checked"
		err = fact.DecodeChecked(e.Payload)
	default:
		out.Kind = fmt.Sprintf("kind %d", e.Kind)
		if fact.Retired(e.Kind) {
			err = fmt.Errorf("kind %d was written by an unreleased version", e.Kind)
			break
		}
		err = fmt.Errorf("kind %d is not known: written by a newer version?", e.Kind)
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// stretch describes an entry with records.
func (out *dumpedEntry) stretch(e *entry.Entry, records bool) error {
	if e.Kind == fact.KindAppended {
		a, err := fact.DecodeAppended(e.Payload)
		if err != nil {
			return err
		}
		out.RequestID = string(a.RequestID)
	}
	s, _, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if err != nil {
		return err
	}
	out.Topic, out.Offset, out.Count, out.Cum = string(s.Topic), (*uint64)(&s.Base), s.Count, &s.Cum
	if !records {
		return nil
	}
	for offset := uint64(s.Base); ; offset++ {
		r, ok, err := s.Next()
		if err != nil || !ok {
			return err
		}
		out.Records = append(out.Records, dumpedRecord{offset, r.TimeMS, append([]byte{}, r.Key...), append([]byte{}, r.Value...)})
	}
}

// limitText is a limit for people.
func limitText(l fact.Limit) string {
	switch l {
	case fact.LimitDefault:
		return "default"
	case fact.LimitNone:
		return "any"
	}
	return fmt.Sprint(int64(l))
}

// text is the last column of the table.
func (out *dumpedEntry) text() string {
	b := appendVisible(nil, []byte(out.Topic))
	if out.Group != "" {
		b = append(b, "  group "...)
		b = appendVisible(b, []byte(out.Group))
	}
	switch {
	case out.Count > 0:
		b = fmt.Appendf(b, "  %d to %d", *out.Offset, *out.Offset+uint64(out.Count)-1)
	case out.Retention != nil:
		r := out.Retention
		b = fmt.Appendf(b, "  %s ms, %s bytes, %s records", limitText(r.MS), limitText(r.Bytes), limitText(r.Records))
	case out.Kind == "delete" || out.Kind == "marker":
	case out.Offset != nil:
		b = fmt.Appendf(b, "  to %d", *out.Offset)
	case out.WindowMS != nil:
		b = fmt.Appendf(b, "request id window %v", time.Duration(*out.WindowMS)*time.Millisecond)
	}
	if out.RequestID != "" {
		b = append(b, "  request id "...)
		b = appendVisible(b, []byte(out.RequestID))
	}
	if out.Error != "" {
		b = append(b, "  ERROR: "+plain(out.Error)...)
	}
	return string(b)
}
