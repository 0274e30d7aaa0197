package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/node"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// snapshotFolder is where a data directory keeps its snapshots.
const snapshotFolder = "snapshots"

type logVerifyCmd struct {
	Dir string `arg:"" help:"Data directory."`
}

// verification is the outcome with -o json.
type verification struct {
	LogID     string            `json:"log_id"`
	First     uint64            `json:"first"`
	Last      uint64            `json:"last"`
	Commit    uint64            `json:"commit"` // what the log itself shows to be committed
	Records   uint64            `json:"records"`
	Topics    int               `json:"topics"`
	TornTail  bool              `json:"torn_tail"`
	Damage    int               `json:"damaged_places"`
	Segments  []verifiedSegment `json:"segments"`
	Snapshots []uint64          `json:"snapshots"` // the good ones, newest first
	Problems  []problem         `json:"problems"`
}

type verifiedSegment struct {
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Bytes  int64  `json:"bytes"`
	Sealed bool   `json:"sealed"`
}

// problem is a place that is not as it was written.
type problem struct {
	Place  string `json:"place"` // the same in two looks at the same problem
	Reason string `json:"reason"`
}

func (c *logVerifyCmd) Run(ctx context.Context, g *Global, std streams) error {
	fsys, err := vfs.Open(c.Dir)
	if err != nil {
		return err
	}
	defer fsys.Close()
	l, err := lookTwice(ctx, fsys)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	out := l.outcome()
	var rows [][]string
	for _, s := range out.Segments {
		kind := "active"
		if s.Sealed {
			kind = "sealed"
		}
		rows = append(rows, []string{
			fmt.Sprintf("%020d", s.First), strconv.FormatUint(s.Last, 10), strconv.FormatInt(s.Bytes, 10), kind,
		})
	}
	if err := writeRows(std.out, g.Output, []string{"SEGMENT", "LAST", "BYTES", "STATE"}, rows, []any{out}); err != nil {
		return err
	}
	reportTail(std.err, l.log)
	for _, p := range l.problems {
		fmt.Fprintf(std.err, "mq: damage: %s: %s\n", p.Place, p.Reason)
	}
	if n := len(l.problems); n > 0 {
		return fmt.Errorf("the data folder is damaged in %s", count(uint64(n), "place"))
	}
	fmt.Fprintf(std.err, "mq: log %s is good: entries %d to %d, %s in %s\n", out.LogID, out.First, out.Last,
		count(out.Records, "record"), count(uint64(out.Topics), "topic"))
	return nil
}

// looksMax bounds how often a folder is looked at whose files vanish meanwhile.
const looksMax = 5

// lookTwice looks once, and where something is wrong once more. A running broker makes files, drops segments
// and prunes snapshots while we read: what is a problem only once was such a change. Damage stays.
func lookTwice(ctx context.Context, fsys vfs.FS) (*look, error) {
	var before *look
	for looks := 1; ; looks++ {
		l, err := lookAt(ctx, fsys)
		switch {
		case errors.Is(err, fs.ErrNotExist) && looks < looksMax: // a segment was dropped before it was read
			continue
		case err != nil:
			return nil, err
		case len(l.problems) == 0:
			return l, nil
		case before == nil:
			before = l
			continue
		}
		l.problems = slices.DeleteFunc(l.problems, func(p problem) bool {
			return !slices.ContainsFunc(before.problems, func(q problem) bool { return q.Place == p.Place })
		})
		return l, nil
	}
}

// look is what one look at a data folder finds.
type look struct {
	fs       vfs.FS
	log      wal.Inspection
	entries  verifier
	problems []problem

	// Read before the log, so that it must hold all that they tell of, even if it is in use.
	clean     entry.Index
	snapshots snapshots
	indexed   *index.Index
	loaded    map[entry.Index]bool // segments with an index file; false once it is found to be bad
}

// snapshots are those of a data folder.
type snapshots struct {
	newest *state.State // nil without a good one
	good   []snapshot.Info
	bad    []snapshot.Bad
}

func lookAt(ctx context.Context, fsys vfs.FS) (*look, error) {
	id, idErr := node.ReadIdentity(fsys)
	l, err := lookInto(ctx, fsys, id)
	if err == nil && l.log.LogID != id {
		// The segments say whose log this is. The rest is measured by that.
		l, err = lookInto(ctx, fsys, l.log.LogID)
	}
	switch {
	case err != nil:
		return nil, err
	case errors.Is(idErr, fs.ErrNotExist):
		l.found("identity.json", "it is missing: restore it from a backup")
	case idErr != nil:
		l.found("identity.json", "%v", idErr)
	case l.log.LogID != id:
		l.found("identity.json", "it is of log %x, the segments are of log %x", id, l.log.LogID)
	}
	return l, nil
}

// lookInto looks at a folder that should hold the log of that id.
func lookInto(ctx context.Context, fsys vfs.FS, id entry.LogID) (*look, error) {
	l := &look{fs: fsys, entries: newVerifier()}
	var err error
	if l.clean, err = node.ReadClean(fsys); err != nil {
		l.found("the note of the last clean stop", "%v", err)
	}
	if l.snapshots, err = readSnapshots(fsys, id); err != nil {
		return nil, err
	}
	if err := l.loadIndex(id); err != nil {
		return nil, err
	}
	l.log, err = wal.Inspect(fsys, logFolder, func(e *entry.Entry, p entry.Position) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := l.entries.check(e); err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		l.checkIndex(e, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.judge()
	return l, nil
}

func (l *look) found(place, reason string, args ...any) {
	l.problems = append(l.problems, problem{place, fmt.Sprintf(reason, args...)})
}

func readSnapshots(fsys vfs.FS, id entry.LogID) (s snapshots, err error) {
	newest, info, bad, err := snapshot.Load(fsys, snapshotFolder, id)
	if err == nil {
		s.good, s.bad, err = snapshot.List(fsys, snapshotFolder, id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return snapshots{}, nil // no folder
	}
	if err != nil {
		return snapshots{}, err
	}
	if info.Index > 0 {
		s.newest = newest
	}
	// Load restores the state too, and finds bad what List finds good.
	for _, b := range bad {
		s.good = slices.DeleteFunc(s.good, func(i snapshot.Info) bool { return snapshotFolder+"/"+i.Name == b.Name })
		if !slices.ContainsFunc(s.bad, func(other snapshot.Bad) bool { return other.Name == b.Name }) {
			s.bad = append(s.bad, b)
		}
	}
	// Pruned before it was read.
	s.bad = slices.DeleteFunc(s.bad, func(b snapshot.Bad) bool { return errors.Is(b.Err, fs.ErrNotExist) })
	return s, nil
}

// loadIndex reads the index files that there are. One that is missing is no damage: it is derived, and the
// broker makes it again.
func (l *look) loadIndex(id entry.LogID) error {
	names, err := l.fs.List(logFolder)
	if err != nil {
		return fmt.Errorf("list the log: %w", err)
	}
	l.indexed, l.loaded = index.New(index.Config{FS: l.fs, Dir: logFolder, LogID: id}), map[entry.Index]bool{}
	for _, name := range names {
		var segment entry.Index
		if n, _ := fmt.Sscanf(name, "%020d.idx", &segment); n != 1 || index.FileName(segment) != name {
			continue
		}
		err := l.indexed.Load(segment)
		if errors.Is(err, fs.ErrNotExist) {
			continue // dropped
		}
		l.loaded[segment] = err == nil
		if err != nil {
			l.badIndex(segment, err)
		}
	}
	return nil
}

func (l *look) badIndex(segment entry.Index, err error) {
	l.loaded[segment] = false
	l.found(logFolder+"/"+index.FileName(segment), "%v; no data is lost with it, the broker makes it again", err)
}

// checkIndex looks an entry up in the index file of its segment.
func (l *look) checkIndex(e *entry.Entry, p entry.Position) {
	if e.Kind != fact.KindAppended || !l.loaded[p.Segment] {
		return
	}
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return // was reported
	}
	last := a.Base + fact.Offset(a.Count) - 1
	run, err := l.indexed.Find(a.Topic, a.Base)
	if err == nil && (run.Segment != p.Segment || run.First > a.Base || run.Last < last || run.Pos > p.Offset || run.End < p.Offset+p.Length) {
		err = fmt.Errorf("it does not say where the records %d to %d of topic %q are", a.Base, last, a.Topic)
	}
	if err != nil {
		l.badIndex(p.Segment, err)
	}
}

const endOfLog = "the end of the log"

// judge compares what the parts of the folder say of each other.
func (l *look) judge() {
	for _, d := range l.log.Damage {
		l.found(fmt.Sprintf("segment %020d, byte %d, entries %d to %d", d.Segment, d.Offset, d.First, d.Last), "%s", d.Reason)
	}
	for _, b := range l.snapshots.bad {
		l.found(b.Name, "%v", b.Err)
	}
	first, last := l.log.First, l.log.Last
	// What comes before the log's first entry was dropped, which happens only behind a snapshot.
	switch oldest := entry.Index(0); {
	case len(l.snapshots.good) > 0:
		if oldest = l.snapshots.good[len(l.snapshots.good)-1].Index; first > oldest+1 {
			l.found("the beginning of the log", "it begins with entry %d, but the oldest snapshot covers only the entries up to %d: segments are missing",
				first, oldest)
		}
	case first > 1:
		l.found("the beginning of the log", "it begins with entry %d, and there is no good snapshot that covers what comes before", first)
	}
	end := func(covered entry.Index, by string) {
		if last < covered {
			l.found(endOfLog, "it ends with entry %d, but %s tells of entry %d: what was acknowledged is missing", last, by, covered)
		}
	}
	if len(l.snapshots.good) > 0 {
		end(l.snapshots.good[0].Index, "snapshot "+l.snapshots.good[0].Name)
	}
	end(l.clean, "the note of the last clean stop")
	// A segment gets an index file after the name of its successor is durable.
	for _, segment := range slices.Sorted(maps.Keys(l.loaded)) {
		if active := l.log.Segments[len(l.log.Segments)-1].First; segment >= active {
			l.found(endOfLog, "%s was made when there was a segment after it, which is missing", index.FileName(segment))
			break
		}
	}
	// A log that is cut off no longer tells of all that was retained.
	if !slices.ContainsFunc(l.problems, func(p problem) bool { return p.Place == endOfLog }) {
		l.judgeRecords()
	}
}

// judgeRecords looks for each topic of the newest snapshot whether the log still holds it from its start on.
func (l *look) judgeRecords() {
	s := l.snapshots.newest
	if s == nil {
		return
	}
	for id := range s.Topics() {
		t := s.TopicByID(state.TopicID(id))
		start := max(t.Start, l.entries.retained[t.Name])
		first, found := l.entries.firsts[t.Name]
		if !found {
			first = t.End
		}
		if start < first {
			l.found(fmt.Sprintf("topic %q", t.Name), "the records %d to %d are missing: the log has none before %d", start, first-1, first)
		}
	}
}

func (l *look) outcome() verification {
	out := verification{
		LogID: hex.EncodeToString(l.log.LogID[:]), First: uint64(l.log.First), Last: uint64(l.log.Last), Commit: uint64(l.log.Commit),
		Records: l.entries.records, Topics: len(l.entries.firsts), TornTail: l.log.Torn != nil, Damage: len(l.problems),
		Segments: []verifiedSegment{}, Snapshots: []uint64{}, Problems: append([]problem{}, l.problems...),
	}
	for _, s := range l.log.Segments {
		out.Segments = append(out.Segments, verifiedSegment{uint64(s.First), uint64(s.Last), s.Bytes, s.Sealed})
	}
	for _, s := range l.snapshots.good {
		out.Snapshots = append(out.Snapshots, uint64(s.Index))
	}
	return out
}

// verifier checks what frames alone do not show: that each entry decodes, and fits those before it. It does
// not know what came before the log's first entry, or what stood in a damaged place.
type verifier struct {
	ends     map[string]fact.Offset // of the topics seen since the last gap
	firsts   map[string]fact.Offset // of the topics seen: the first record
	retained map[string]fact.Offset // starts that the log tells of
	records  uint64
	last     *entry.Entry // the one before, without payload
}

func newVerifier() verifier {
	return verifier{ends: map[string]fact.Offset{}, firsts: map[string]fact.Offset{}, retained: map[string]fact.Offset{}}
}

func (v *verifier) check(e *entry.Entry) error {
	gap := v.last == nil || e.Index != v.last.Index+1
	if !gap && (e.Term < v.last.Term || e.TimeMS < v.last.TimeMS || e.Commit < v.last.Commit) {
		return fmt.Errorf("term, time or commit goes backwards")
	}
	if gap {
		clear(v.ends)
	}
	v.last = &entry.Entry{Index: e.Index, Term: e.Term, Commit: e.Commit, TimeMS: e.TimeMS}
	if out := describe(e, entry.Position{}, false); out.Error != "" {
		return fmt.Errorf("%s", out.Error)
	}
	if e.Kind == fact.KindTopicRetained {
		r, err := fact.DecodeTopicRetained(e.Payload)
		if err == nil {
			v.retained[string(r.Topic)] = max(v.retained[string(r.Topic)], r.Start)
		}
		return err
	}
	if e.Kind != fact.KindAppended {
		return nil
	}
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return err
	}
	if end, known := v.ends[string(a.Topic)]; known && a.Base != end {
		return fmt.Errorf("topic %q goes on at offset %d instead of %d", a.Topic, a.Base, end)
	}
	v.ends[string(a.Topic)] = a.Base + fact.Offset(a.Count)
	if _, seen := v.firsts[string(a.Topic)]; !seen {
		v.firsts[string(a.Topic)] = a.Base
	}
	v.records += uint64(a.Count)
	var records []fact.Record
	for {
		r, ok, err := a.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		records = append(records, r)
	}
	if len(a.RequestID) > 0 && fact.DigestOf(records) != a.Digest {
		return fmt.Errorf("the digest of the records is not that of request id %q", a.RequestID)
	}
	return nil
}
