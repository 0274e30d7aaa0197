package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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
	Dir     string `arg:"" help:"Data directory."`
	Compare string `placeholder:"OTHER" help:"Verify data directory OTHER too, and compare its log with that of DIR byte by byte. Fails unless both are the same up to the same last entry."`
}

// verification is the outcome with -o json.
type verification struct {
	Dir       string            `json:"dir"`
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
	if c.Compare != "" {
		return c.compare(ctx, g, std)
	}
	fsys, err := vfs.Open(c.Dir)
	if err != nil {
		return err
	}
	defer fsys.Close()
	l, err := lookTwice(ctx, fsys)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	out := l.outcome(c.Dir)
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
	return l.report(std.err, "", &out)
}

// report says for people what was found. It returns an error when that is damage. of goes in front of each line.
func (l *look) report(w io.Writer, of string, out *verification) error {
	reportTail(w, of, l.log)
	for _, p := range l.problems {
		fmt.Fprintf(w, "mq: %sdamage: %s: %s\n", of, p.Place, plain(p.Reason))
	}
	if n := len(l.problems); n > 0 {
		return fmt.Errorf("%sthe data folder is damaged in %s", of, count(uint64(n), "place"))
	}
	fmt.Fprintf(w, "mq: %slog %s is good: entries %d to %d, %s in %s\n", of, out.LogID, out.First, out.Last,
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
	holes    frameHoles
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
		l.holes.frame(p)
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

// checkIndex looks the records of an entry up in the index file of its segment. Those that were kept since have a newer copy
// in a later segment, and the index tells of that.
func (l *look) checkIndex(e *entry.Entry, p entry.Position) {
	if !l.loaded[p.Segment] {
		return
	}
	r, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if !ok || err != nil {
		return // was reported
	}
	for next, end := r.Base, r.Base+fact.Offset(r.Count); next < end; {
		if segment, ok := l.indexed.SegmentOf(r.Topic, next); ok && segment > p.Segment {
			next++
			continue
		}
		run, err := l.indexed.Find(r.Topic, next)
		if err == nil && (run.Segment != p.Segment || run.First > next || run.Pos > p.Offset || run.End < p.Offset+p.Length) {
			err = fmt.Errorf("it does not say where the records %d to %d of topic %q are", r.Base, end-1, r.Topic)
		}
		if err != nil {
			l.badIndex(p.Segment, err)
			return
		}
		next = run.Last + 1
	}
}

const endOfLog = "the end of the log"

// judge compares what the parts of the folder say of each other.
func (l *look) judge() {
	texts, rest := l.entries.losses(l.fs, l.log, &l.holes, l.snapshots.newest, l.indexed)
	for i, d := range l.log.Damage {
		l.found(placeOf(d), "%s", withText(d.Reason, texts[i]))
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
		for _, name := range slices.Sorted(maps.Keys(rest)) {
			l.found(fmt.Sprintf("topic %q", name), "%s: the log does not have them", missingText(rest[name], name))
		}
	}
}

func (l *look) outcome(dir string) verification {
	out := verification{
		Dir: dir, LogID: hex.EncodeToString(l.log.LogID[:]), First: uint64(l.log.First), Last: uint64(l.log.Last), Commit: uint64(l.log.Commit),
		Records: l.entries.records(), Topics: l.entries.held(), TornTail: l.log.Torn != nil, Damage: len(l.problems),
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
	topics map[string]*seen
	first  entry.Index  // of the log
	floor  fact.Offset  // where new topics begin, if the log tells
	part   int          // of the log: damage begins another one
	last   *entry.Entry // the one before, without payload
}

func newVerifier() verifier { return verifier{topics: map[string]*seen{}} }

// records is how many records stand in the log; one that stands there twice counts once.
func (v *verifier) records() (n uint64) {
	for _, t := range v.topics {
		n += t.spans.Count()
	}
	return n
}

// held is of how many topics there are records in the log.
func (v *verifier) held() (n int) {
	for _, t := range v.topics {
		if len(t.spans) > 0 {
			n++
		}
	}
	return n
}

func (v *verifier) check(e *entry.Entry) error {
	gap := v.last != nil && e.Index != v.last.Index+1
	switch {
	case v.last == nil:
		v.first = e.Index
	case gap:
		v.part++
	case e.Term < v.last.Term || e.TimeMS < v.last.TimeMS || e.Commit < v.last.Commit:
		return errors.New("term, time or commit goes backwards")
	}
	v.last = &entry.Entry{Index: e.Index, Term: e.Term, Commit: e.Commit, TimeMS: e.TimeMS}
	if out := describe(e, entry.Position{}, false); out.Error != "" {
		return fmt.Errorf("%s", out.Error)
	}
	switch e.Kind {
	case fact.KindAppended:
		return v.checkAppended(e)
	case fact.KindKept:
		k, err := fact.DecodeKept(e.Payload)
		if err == nil {
			err = k.Validate()
		}
		if err != nil {
			return err
		}
		return v.kept(&k)
	case fact.KindTopicRetained:
		r, err := fact.DecodeTopicRetained(e.Payload)
		if err == nil {
			v.gone(r.Topic, r.Start)
		}
		return err
	case fact.KindTopicDeleted:
		d, err := fact.DecodeTopicDeleted(e.Payload)
		if err == nil {
			v.gone(d.Topic, 0)
		}
		return err
	case fact.KindRestored:
		floor, err := fact.DecodeRestored(e.Payload)
		if err == nil {
			v.restored(floor)
		}
		return err
	}
	return nil
}

func (v *verifier) checkAppended(e *entry.Entry) error {
	a, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return err
	}
	if err := v.appended(e, &a); err != nil {
		return err
	}
	t := v.topics[string(a.Topic)]
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
		t.cum += uint64(len(r.Key) + len(r.Value))
	}
	if len(a.RequestID) > 0 && fact.DigestOf(records) != a.Digest {
		return fmt.Errorf("the digest of the records is not that of request id %q", a.RequestID)
	}
	return nil
}
