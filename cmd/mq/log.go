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
}

func (logCmd) Help() string {
	return `DIR is a data directory. Nothing in it is written or locked, so a broker may be running on it: then the last
entries may be missing, or look like a torn write.`
}

// logFolder is where a data directory keeps the log.
const logFolder = "log"

// inspect opens a data directory and reads its log.
func inspect(dir string, visit func(*entry.Entry, entry.Position) error) (wal.Inspection, error) {
	fsys, err := vfs.Open(dir)
	if err != nil {
		return wal.Inspection{}, err
	}
	defer fsys.Close()
	in, err := wal.Inspect(fsys, logFolder, visit)
	if err != nil {
		return in, fmt.Errorf("%s: %w", dir, err)
	}
	return in, nil
}

type logDumpCmd struct {
	Dir     string `arg:"" help:"Data directory."`
	From    uint64 `default:"1" help:"First index to print."`
	To      uint64 `default:"0" help:"Last index to print; 0 for all."`
	Records bool   `help:"Print the records too."`
}

func (c *logDumpCmd) Run(ctx context.Context, g *Global, std streams) error {
	d := &dumper{w: bufio.NewWriterSize(std.out, 64<<10), cmd: c, json: g.Output == "json"}
	in, err := inspect(c.Dir, func(e *entry.Entry, p entry.Position) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if uint64(e.Index) < c.From || (c.To > 0 && uint64(e.Index) > c.To) {
			return nil
		}
		return d.entry(e, p)
	})
	if err != nil {
		return err
	}
	if err := d.w.Flush(); err != nil {
		return err
	}
	reportTail(std.err, in)
	return reportDamage(std.err, in)
}

// reportTail mentions a torn tail: it is nothing wrong, but it explains why the log ends where it ends.
func reportTail(w io.Writer, in wal.Inspection) {
	if t := in.Torn; t != nil {
		fmt.Fprintf(w, "mq: a torn write at the end (%d bytes): normal after a power cut; it was not acknowledged if the power was cut (segment %020d, byte %d)\n",
			t.Bytes, t.Segment, t.Offset)
	}
}

func reportDamage(w io.Writer, in wal.Inspection) error {
	for _, d := range in.Damage {
		fmt.Fprintf(w, "mq: damage: segment %020d, byte %d, entries %d to %d: %s\n", d.Segment, d.Offset, d.First, d.Last, d.Reason)
	}
	if n := len(in.Damage); n > 0 {
		return fmt.Errorf("the log is damaged in %s", count(uint64(n), "place"))
	}
	return nil
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
	WindowMS  *int64         `json:"request_id_window_ms,omitempty"`
	Records   []dumpedRecord `json:"records,omitempty"`
	Error     string         `json:"error,omitempty"`
}

type dumpedRecord struct {
	Offset uint64 `json:"offset"`
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
		fmt.Fprintf(d.w, "%10s  %4s  %10s  %-24s  %-8s  %s\n", "INDEX", "TERM", "COMMIT", "TIME", "KIND", "WHAT")
	}
	fmt.Fprintf(d.w, "%10d  %4d  %10d  %-24s  %-8s  %s\n", out.Index, out.Term, out.Commit,
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
		err = out.appended(e.Payload, records)
	case fact.KindGroupMoved:
		out.Kind = "group"
		var m fact.GroupMoved
		m, err = fact.DecodeGroupMoved(e.Payload)
		out.Topic, out.Group, out.Offset = string(m.Topic), string(m.Group), (*uint64)(&m.Next)
	case fact.KindTopicRetained:
		out.Kind = "retain"
		var r fact.TopicRetained
		r, err = fact.DecodeTopicRetained(e.Payload)
		out.Topic, out.Offset = string(r.Topic), (*uint64)(&r.Start)
	case fact.KindSettings:
		out.Kind = "settings"
		var ms int64
		ms, err = fact.DecodeSettings(e.Payload)
		out.WindowMS = &ms
	default:
		out.Kind = fmt.Sprintf("kind %d", e.Kind)
		err = fmt.Errorf("kind %d is not known: written by a newer version?", e.Kind)
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func (out *dumpedEntry) appended(payload []byte, records bool) error {
	a, err := fact.DecodeAppended(payload)
	if err != nil {
		return err
	}
	out.Topic, out.Offset, out.Count = string(a.Topic), (*uint64)(&a.Base), a.Count
	out.RequestID = string(a.RequestID)
	if !records {
		return nil
	}
	for offset := uint64(a.Base); ; offset++ {
		r, ok, err := a.Next()
		if err != nil || !ok {
			return err
		}
		out.Records = append(out.Records, dumpedRecord{offset, append([]byte{}, r.Key...), append([]byte{}, r.Value...)})
	}
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
		b = append(b, "  ERROR: "+out.Error...)
	}
	return string(b)
}
