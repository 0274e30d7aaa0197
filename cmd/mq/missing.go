package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/node"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// seen is what the good entries of a log tell of one topic.
type seen struct {
	spans node.Spans  // of records that stand in the log, where and how often does not matter
	gaps  node.Spans  // that a restore jumped over
	start fact.Offset // what was retained or deleted lies below
	end   fact.Offset // of what was appended last
	cum   uint64      // bytes before end
	part  int         // of the log, in which end was told; damage parts it
	last  entry.Index // that appended to the topic
	holes []hole
}

// hole is where what was appended does not go on at the end of what was before: entries between are damaged.
type hole struct {
	node.Span
	after, before entry.Index
}

// appended notes an Appended, and whether its records go on where they must, as far as that can be told.
func (v *verifier) appended(e *entry.Entry, a *fact.Appended) error {
	t := v.topics[string(a.Topic)]
	switch known := t != nil; {
	case !known:
		t = &seen{}
		v.topics[string(a.Topic)] = t
		if v.first == 1 && a.Base > v.floor { // a topic that is new begins at the floor
			t.holes = append(t.holes, hole{node.Span{From: v.floor, To: a.Base}, 0, e.Index})
		}
	case t.part == v.part && (a.Base != t.end || a.Cum != t.cum):
		return fmt.Errorf("topic %q goes on at offset %d with %d bytes before instead of %d with %d", a.Topic, a.Base, a.Cum, t.end, t.cum)
	case a.Base > t.end:
		t.holes = append(t.holes, hole{node.Span{From: t.end, To: a.Base}, t.last, e.Index})
	}
	t.end, t.cum, t.part, t.last = a.Base+fact.Offset(a.Count), a.Cum, v.part, e.Index
	t.spans.Add(a.Base, t.end)
	return nil
}

// kept notes a Kept: records that were appended before.
func (v *verifier) kept(k *fact.Kept) error {
	t := v.topics[string(k.Topic)]
	if t == nil { // all that told of it before is dropped
		t = &seen{part: -1, end: k.Base + fact.Offset(k.Count)}
		v.topics[string(k.Topic)] = t
	}
	if t.part == v.part && k.Base+fact.Offset(k.Count) > t.end {
		return fmt.Errorf("records %d to %d of topic %q are kept, which ends at %d", k.Base, k.Base+fact.Offset(k.Count)-1, k.Topic, t.end)
	}
	t.spans.Add(k.Base, k.Base+fact.Offset(k.Count))
	return nil
}

// restored notes that all topics go on at a floor.
func (v *verifier) restored(floor fact.Offset) {
	v.floor = floor
	for _, t := range v.topics {
		if t.end < floor {
			t.gaps.Add(t.end, floor)
			t.end = floor
		}
	}
}

// gone notes that the records of a topic below an offset are no longer wanted; 0 for all.
func (v *verifier) gone(topic []byte, start fact.Offset) {
	t := v.topics[string(topic)]
	if t == nil {
		t = &seen{part: -1, end: start}
		v.topics[string(topic)] = t
	}
	if start == 0 {
		start = t.end
	}
	t.start = max(t.start, start)
}

// missing returns the records that should be in the log, and are not. s is the newest snapshot, nil without one.
func (v *verifier) missing(s *state.State) map[string]node.Spans {
	out := map[string]node.Spans{}
	add := func(name string, from, to fact.Offset, have ...node.Spans) {
		var all node.Spans
		for _, h := range have {
			for _, span := range h {
				all.Add(span.From, span.To)
			}
		}
		if m := all.Missing(from, to); len(m) > 0 {
			out[name] = m
		}
	}
	for name, t := range v.topics {
		if s != nil {
			if _, _, _, known := s.Ended([]byte(name)); known {
				continue // below
			}
		}
		from := t.start
		switch {
		case v.first == 1 && len(t.holes) > 0:
			from = max(from, min(t.holes[0].From, firstOf(t.spans)))
		default:
			from = max(from, firstOf(t.spans))
		}
		add(name, from, t.end, t.spans, t.gaps)
	}
	if s == nil {
		return out
	}
	for id := range s.Topics() {
		known := s.TopicByID(state.TopicID(id))
		var gaps node.Spans
		for _, g := range known.Gaps {
			gaps.Add(g.From, g.To)
		}
		t := v.topics[known.Name]
		if t == nil {
			t = &seen{}
		}
		from, to := max(known.Start, t.start), max(known.End, t.end)
		if known.Deleted && t.end <= known.End {
			continue
		}
		add(known.Name, from, to, t.spans, t.gaps, gaps)
	}
	return out
}

func firstOf(s node.Spans) fact.Offset {
	if len(s) == 0 {
		return fact.OffsetMax
	}
	return s[0].From
}

// place is a byte of a segment.
type place struct {
	segment entry.Index
	offset  int64
}

// holes finds out how long what cannot be read is, from the good frames.
type frameHoles struct {
	ends map[place]int64 // by where they begin
	at   place           // behind the last good frame
}

func (h *frameHoles) frame(p entry.Position) {
	if h.ends == nil {
		h.ends = map[place]int64{}
	}
	if h.at.segment != p.Segment {
		h.at = place{p.Segment, segmentHeader}
	}
	if p.Offset > h.at.offset {
		h.ends[h.at] = p.Offset
	}
	h.at.offset = p.End()
}

// segmentHeader is how long the header of a segment is.
const segmentHeader = 512

// end returns where damage ends.
func (h *frameHoles) end(d wal.Damage, in wal.Inspection) int64 {
	if end, ok := h.ends[place{d.Segment, d.Offset}]; ok {
		return end
	}
	for _, s := range in.Segments {
		if s.First == d.Segment {
			return s.Bytes
		}
	}
	return d.Offset
}

// losses says for each damaged place which records are lost with it, and returns the records that are missing and were in
// none of them as far as can be told. indexed may be nil.
func (v *verifier) losses(fsys vfs.FS, in wal.Inspection, holes *frameHoles, s *state.State, indexed *index.Index) (texts []string, rest map[string]node.Spans) {
	rest = v.missing(s)
	lost := make([][]string, len(in.Damage))
	say := func(i int, name string, part node.Spans, where string) {
		lost[i] = append(lost[i], missingText(part, name)+where)
	}
	take := func(name string, part node.Spans) {
		var left node.Spans
		for _, m := range rest[name] {
			left = append(left, part.Missing(m.From, m.To)...)
		}
		if rest[name] = left; len(left) == 0 {
			delete(rest, name)
		}
	}
	// The index file tells it exactly.
	for i, d := range in.Damage {
		if indexed == nil || d.First == 0 || d.First > d.Last {
			continue
		}
		held, _ := indexed.Within(d.Segment, d.Offset, holes.end(d, in)) // what it cannot tell the neighbours may
		parts := map[string]node.Spans{}
		for _, h := range held {
			for _, m := range rest[h.Topic].Within(h.First, h.Last+1) {
				p := parts[h.Topic]
				p.Add(m.From, m.To)
				parts[h.Topic] = p
			}
		}
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			say(i, name, parts[name], "")
			take(name, parts[name])
		}
	}
	// The frames of the topic before and behind.
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		for _, h := range v.holesOf(name, s) {
			part := rest[name].Within(h.From, h.To)
			if len(part) == 0 {
				continue
			}
			var at []int
			for i, d := range in.Damage {
				if last := max(d.First, d.Last); d.First > 0 && last > h.after && d.First < h.before {
					at = append(at, i)
				}
			}
			for _, i := range at {
				where := ""
				if len(at) > 1 {
					where = ", here or in another damaged place"
				}
				say(i, name, part, where)
			}
			if len(at) > 0 {
				take(name, part)
			}
		}
	}
	for i, d := range in.Damage {
		if len(lost[i]) == 0 {
			lost[i] = salvaged(fsys, d)
		}
		texts = append(texts, strings.Join(lost[i], "; "))
	}
	return texts, rest
}

// missingText says which records of a topic are missing.
func missingText(part node.Spans, name string) string {
	if part.Count() == 1 {
		return fmt.Sprintf("record %d of topic %q is missing", part[0].From, name)
	}
	return fmt.Sprintf("records %s of topic %q are missing", spansText(offsetsOf(part)), name)
}

// holesOf returns the holes of a topic, the one between its last entry and what the newest snapshot knows included.
func (v *verifier) holesOf(name string, s *state.State) (list []hole) {
	t := v.topics[name]
	if t != nil {
		list = slices.Clone(t.holes)
	} else {
		t = &seen{}
	}
	if s != nil {
		if known, ok := s.Topic([]byte(name)); ok && known.End > t.end {
			list = append(list, hole{node.Span{From: t.end, To: known.End}, t.last, s.Applied() + 1})
		}
	}
	return list
}

// salvaged says what a damaged frame seems to have held.
func salvaged(fsys vfs.FS, d wal.Damage) []string {
	if d.First == 0 || d.First > d.Last {
		return nil
	}
	e, ok := wal.Salvage(fsys, logFolder, d.Segment, d.Offset)
	if !ok || e.Index != d.First {
		return nil
	}
	out := describe(&e, entry.Position{}, false)
	if out.Error != "" || e.Kind == fact.KindMarker || e.Kind == fact.KindChecked {
		return nil
	}
	return []string{fmt.Sprintf("entry %d seems to have been: %s %s", e.Index, out.Kind, out.text())}
}
