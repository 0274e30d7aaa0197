package node

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	cutFile   = "cut.json"
	cutTmp    = "cut.json.tmp"
	asideWord = ".cut-" // what a cut removes gets this and the number of the cut behind its name
)

// cutNote is the note that the log of a folder is being cut. While it is there no node starts on the folder.
type cutNote struct {
	After  entry.Index `json:"after"`
	Number int         `json:"number"`
	Above  fact.Offset `json:"above"` // the highest offset that is known to have been given out
	Check  string      `json:"check"` // CRC-32C of the fields above, 8 hex digits
}

func (c cutNote) check() string {
	sum := crc32.Checksum(fmt.Appendf(nil, "%d %d %d", c.After, c.Number, c.Above), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Sprintf("%08x", sum)
}

// readCut reads the note; cutting is false if there is none.
func readCut(fsys vfs.FS) (c cutNote, cutting bool, err error) {
	cutting, err = readNote(fsys, cutFile, &c)
	if err == nil && cutting && c.Check != c.check() {
		err = fmt.Errorf("%s is damaged (its checksum is wrong): restore it from a backup; nothing was changed", cutFile)
	}
	return c, cutting, err
}

// Cutter cuts the end off the log of a data folder that no node runs on: what an operator does when the log is damaged, no
// other node and no backup has what is lost, and the records before are worth more than the ones behind. It holds the
// folder's lock until Close.
//
// What was acknowledged goes with it. Nothing is destroyed: each file that goes stays under another name. Clients may know
// offsets that were cut off: so the next start logs that all topics go on at a new floor, see MarkRestored.
type Cutter struct {
	fs    vfs.FS
	lock  io.Closer
	id    entry.LogID
	note  cutNote
	begun bool // an earlier cut was not finished: note tells
}

// NewCutter locks a folder. It refuses those of pairs and clusters, whose nodes get what is lost from each other, and those
// that hold no log.
func NewCutter(fsys vfs.FS) (*Cutter, error) {
	if restoring, err := isRestoring(fsys); err != nil {
		return nil, fmt.Errorf("look for a restore: %w", err)
	} else if restoring {
		return nil, ErrRestoring
	}
	if _, err := readIdentity(fsys); errors.Is(err, fs.ErrNotExist) { // before LOCK is made in a folder that is none of ours
		return nil, fmt.Errorf("this is no data folder of mqd: it has no %s", identityFile)
	} else if err != nil {
		return nil, err
	}
	lock, err := fsys.Lock(lockFile)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("mqd runs on this folder: stop it first: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	c := &Cutter{fs: fsys, lock: lock}
	if err := c.check(); err != nil {
		lock.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cutter) check() error {
	id, err := readIdentity(c.fs)
	if err != nil {
		return err
	}
	if !id.Ready || id.LogID == "" {
		return errors.New("this data folder holds no log yet")
	}
	c.id = id.logID()
	if _, err := c.fs.Size(stateFile); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, errors.New("this data folder is that of a node of a cluster: start it, and it gets back from the others what is damaged; see \"Damage in a cluster\" in docs/operations.md"))
	}
	p, err := loadPromises(c.fs)
	if err != nil {
		return err
	}
	if promise := p.Promise(); promise.Epoch != 0 && !promise.Alone {
		return errors.New("this data folder is that of a node of a pair: let the other node lead, empty this folder, and let it follow; see \"Damage\" in docs/operations.md")
	}
	c.note, c.begun, err = readCut(c.fs)
	return err
}

// Close lets go of the folder.
func (c *Cutter) Close() error { return c.lock.Close() }

// Unfinished tells the last entry that stays in a cut that was begun and not finished.
func (c *Cutter) Unfinished() (after entry.Index, begun bool) { return c.note.After, c.begun }

// CutPlan is what a cut does.
type CutPlan struct {
	After    entry.Index // the last entry that stays
	Snapshot entry.Index // the newest that stays; 0 for none
	Last     entry.Index // the last entry that can be read now
	Entries  uint64      // that go and can be read
	Damage   []wal.Damage
	Files    []CutFile
	Topics   []CutTopic // that lose something, by name
	Groups   []CutGroup // that lose something, by topic and name
	Settings bool       // the window of request ids goes back
	Number   int        // of the cut: the names of what goes end in it
	above    fact.Offset
}

// CutFile is a file that changes.
type CutFile struct {
	Name  string
	Aside string // its name afterwards, or that of its copy; empty if it is only removed, because it is derived
	From  int64  // what lies before this byte stays; 0 if all goes
	Bytes int64  // that go
}

// CutTopic is what a topic loses.
type CutTopic struct {
	Topic      string
	Records    Spans // appended behind After: acknowledged, and gone; also those that cannot be read, if more follow
	Older      Spans // before After, and nothing there holds them any more: they were moved behind it, retained, or are damaged
	RequestIDs []string
	Back       fact.Offset // what is retained goes back to this start; only with StartWas above it
	StartWas   fact.Offset
	Deleted    bool // it was deleted behind After, and comes back
	Configured bool // its settings go back
}

// CutGroup is what a group loses.
type CutGroup struct {
	Topic, Group string
	Was          fact.Offset // where it would have gone on; meaningless if Deleted
	Next         fact.Offset // where it goes on now
	Known        bool        // false: there is no such group any more
	Deleted      bool        // it was deleted behind After, and comes back
}

// DamagedStart returns the last entry before the first damage that keeps a node from starting; found is false when nothing
// keeps it.
func (c *Cutter) DamagedStart() (after entry.Index, found bool, err error) {
	o, err := c.overview()
	if err != nil {
		return 0, false, err
	}
	if o.in.First > o.newest()+1 {
		return 0, false, fmt.Errorf("what comes before entry %d is missing, and no snapshot holds it: cutting the end off does not help; start from a backup", o.in.First)
	}
	after, found = o.in.Last, o.in.Last < o.newest() || o.clean > o.in.Last || o.indexed
	if bad := o.firstBad(o.newest()); bad != 0 {
		after, found = bad-1, true
	}
	if !found {
		return 0, false, nil
	}
	for {
		lower, err := o.check(after)
		if err == nil {
			return after, true, nil
		}
		if lower >= after {
			return 0, false, err
		}
		after = lower
	}
}

// overview is what a folder holds.
type overview struct {
	in      wal.Inspection
	good    Spans         // the indexes of entries that can be read
	snaps   []entry.Index // good ones, newest first
	clean   entry.Index
	indexed bool // the last segment has an index file, so there was one behind it
}

func (c *Cutter) overview() (*overview, error) {
	o := &overview{}
	var err error
	o.in, err = wal.Inspect(c.fs, logDir, func(e *entry.Entry, _ entry.Position) error {
		o.good.Add(fact.Offset(e.Index), fact.Offset(e.Index)+1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if o.in.LogID != c.id {
		return nil, fmt.Errorf("%s says that the log is %x, and the segments that it is %x: restore it from a backup", identityFile, c.id, o.in.LogID)
	}
	good, _, err := snapshot.List(c.fs, snapshotDir, c.id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, s := range good {
		o.snaps = append(o.snaps, s.Index)
	}
	o.clean, _ = ReadClean(c.fs) // if it cannot be read, a node starts without it
	active := o.in.Segments[len(o.in.Segments)-1].First
	_, err = c.fs.Size(path.Join(logDir, index.FileName(active)))
	o.indexed = err == nil
	return o, nil
}

func (o *overview) newest() entry.Index { return o.snapshotFor(1<<64 - 1) }

// snapshotFor returns the newest snapshot that a log which ends with an entry can use; 0 for none.
func (o *overview) snapshotFor(after entry.Index) entry.Index {
	for _, s := range o.snaps {
		if s <= after {
			return s
		}
	}
	return 0
}

// firstBad returns the first damaged entry that is not covered by a snapshot; 0 for none.
func (o *overview) firstBad(covered entry.Index) (bad entry.Index) {
	for _, d := range o.in.Damage {
		if hit := max(d.First, d.Last); d.First > 0 && hit > covered {
			if first := max(d.First, covered+1); bad == 0 || first < bad {
				bad = first
			}
		}
	}
	return bad
}

// check returns why the log cannot be cut behind an entry, and a lower one that may be tried instead; the same one if there
// is none.
func (o *overview) check(after entry.Index) (lower entry.Index, err error) {
	base := o.snapshotFor(after)
	switch {
	case after+1 < o.in.First:
		return after, fmt.Errorf("the log begins with entry %d: it cannot be cut after %d", o.in.First, after)
	case o.in.First > base+1:
		return after, fmt.Errorf("the log begins with entry %d, and no good snapshot from %d to %d is left: a node could not start; start from a backup", o.in.First, o.in.First-1, after)
	}
	if bad := o.firstBad(base); bad != 0 && bad <= after {
		return bad - 1, fmt.Errorf("entry %d is damaged, and no snapshot that would stay covers it: a node could not start; cut after %d at the latest", bad, bad-1)
	}
	if after+1 == o.in.First || len(o.good.Within(fact.Offset(after), fact.Offset(after)+1)) > 0 {
		return after, nil
	}
	if after > o.in.Last {
		return o.in.Last, fmt.Errorf("the log ends with entry %d", o.in.Last)
	}
	lower = o.in.First - 1
	for _, s := range o.good {
		if s.To <= fact.Offset(after) {
			lower = entry.Index(s.To) - 1
		}
	}
	return lower, fmt.Errorf("entry %d cannot be read, and the log cannot end with it: cut after %d", after, lower)
}

// Plan finds out what a cut after an entry does. It changes nothing.
func (c *Cutter) Plan(after entry.Index) (*CutPlan, error) {
	o, err := c.overview()
	if err != nil {
		return nil, err
	}
	if _, err := o.check(after); err != nil {
		return nil, err
	}
	p := &planner{c: c, o: o, plan: &CutPlan{After: after, Snapshot: o.snapshotFor(after), Last: o.in.Last}}
	if err := p.make(); err != nil {
		return nil, err
	}
	return p.plan, nil
}

// planner gathers a CutPlan.
type planner struct {
	c    *Cutter
	o    *overview
	plan *CutPlan
	fold *state.State   // as it is at After
	end  entry.Position // of After; zero if nothing stays
	last entry.Index    // the segment that will be the last one

	there  map[string]*Spans // records that stand at or before After
	topics map[string]*CutTopic
	groups map[[2]string]*CutGroup
}

func (p *planner) make() error {
	p.there, p.topics, p.groups = map[string]*Spans{}, map[string]*CutTopic{}, map[[2]string]*CutGroup{}
	var err error
	var info snapshot.Info
	if p.fold, info, _, err = snapshot.Load(only{p.c.fs, p.plan.After}, snapshotDir, p.c.id); errors.Is(err, fs.ErrNotExist) {
		p.fold, err = state.New(), nil
	}
	if err != nil {
		return err
	}
	p.plan.Snapshot = info.Index
	if _, err := wal.Inspect(p.c.fs, logDir, p.entry); err != nil {
		return err
	}
	if p.fold.Applied() != p.plan.After {
		return fmt.Errorf("the state at entry %d cannot be told from the log: it can be followed to entry %d only", p.plan.After, p.fold.Applied())
	}
	for _, d := range p.o.in.Damage {
		if d.Last > p.plan.After || d.First > p.plan.After {
			p.plan.Damage = append(p.plan.Damage, d)
		}
	}
	if err := p.snapshots(); err != nil {
		return err
	}
	p.judge()
	return p.files()
}

// only is a file system without the snapshots behind an entry.
type only struct {
	vfs.FS
	upTo entry.Index
}

// List implements vfs.FS.
func (o only) List(dir string) ([]string, error) {
	names, err := o.FS.List(dir)
	return slices.DeleteFunc(names, func(name string) bool { return dir == snapshotDir && snapshotAt(name) > o.upTo }), err
}

// snapshotAt returns the index of a snapshot file, indexAt and segmentAt the first entry of the segment of an index file and
// of a segment; 0 for other names.
func snapshotAt(name string) entry.Index { return numberOf(name, ".snap") }
func indexAt(name string) entry.Index    { return numberOf(name, ".idx") }
func segmentAt(name string) entry.Index  { return numberOf(name, ".seg") }

func numberOf(name, suffix string) entry.Index {
	digits, ok := strings.CutSuffix(name, suffix)
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || fmt.Sprintf("%020d", n) != digits {
		return 0
	}
	return entry.Index(n)
}

// entry looks at one entry of the log, in order.
func (p *planner) entry(e *entry.Entry, at entry.Position) error {
	if e.Index <= p.plan.After {
		if e.Index == p.plan.After {
			p.end = at
		}
		if e.Index == p.fold.Applied()+1 {
			if _, err := p.fold.Apply(e); err != nil {
				return fmt.Errorf("apply entry %d: %w", e.Index, err)
			}
		}
		if s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload); ok && err == nil {
			there := p.there[string(s.Topic)]
			if there == nil {
				there = new(Spans)
				p.there[string(s.Topic)] = there
			}
			there.Add(s.Base, s.Base+fact.Offset(s.Count))
		}
		return nil
	}
	p.plan.Entries++
	return p.goes(e)
}

func (p *planner) topic(name []byte) *CutTopic {
	t := p.topics[string(name)]
	if t == nil {
		t = &CutTopic{Topic: string(name)}
		p.topics[t.Topic] = t
	}
	return t
}

func (p *planner) group(topic, group []byte) *CutGroup {
	key := [2]string{string(topic), string(group)}
	g := p.groups[key]
	if g == nil {
		g = &CutGroup{Topic: key[0], Group: key[1]}
		p.groups[key] = g
	}
	return g
}

// goes notes what an entry did that is cut off. One that does not decode is a mistake of the program that wrote it, which
// a cut is a way out of.
func (p *planner) goes(e *entry.Entry) error {
	switch e.Kind {
	case fact.KindAppended:
		if a, err := fact.DecodeAppended(e.Payload); err == nil {
			t := p.topic(a.Topic)
			t.Records.Add(a.Base, a.Base+fact.Offset(a.Count))
			if len(a.RequestID) > 0 {
				t.RequestIDs = append(t.RequestIDs, string(a.RequestID))
			}
			p.saw(a.Base + fact.Offset(a.Count))
		}
	case fact.KindKept:
		if k, err := fact.DecodeKept(e.Payload); err == nil {
			p.topic(k.Topic) // judge finds out whether they stand elsewhere, too
		}
	case fact.KindTopicRetained:
		if r, err := fact.DecodeTopicRetained(e.Payload); err == nil {
			p.topic(r.Topic).StartWas = r.Start
		}
	case fact.KindTopicConfigured:
		if t, err := fact.DecodeTopicConfigured(e.Payload); err == nil {
			p.topic(t.Topic).Configured = true
		}
	case fact.KindTopicDeleted:
		if t, err := fact.DecodeTopicDeleted(e.Payload); err == nil {
			p.topic(t.Topic).Deleted = true
		}
	case fact.KindGroupMoved:
		if m, err := fact.DecodeGroupMoved(e.Payload); err == nil {
			g := p.group(m.Topic, m.Group)
			g.Was, g.Deleted = m.Next, false
		}
	case fact.KindGroupDeleted:
		if m, err := fact.DecodeGroupDeleted(e.Payload); err == nil {
			p.group(m.Topic, m.Group).Deleted = true
		}
	case fact.KindSettings:
		p.plan.Settings = true
	case fact.KindRestored:
		if floor, err := fact.DecodeRestored(e.Payload); err == nil {
			p.saw(floor)
		}
	}
	return nil
}

// saw notes that offsets up to one were given out.
func (p *planner) saw(end fact.Offset) { p.plan.above = max(p.plan.above, end) }

// snapshots looks into the newest one: it knows what stood in entries that cannot be read.
func (p *planner) snapshots() error {
	newest, info, _, err := snapshot.Load(p.c.fs, snapshotDir, p.c.id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Index <= p.plan.After {
		return nil
	}
	if err != nil {
		return err
	}
	p.saw(newest.Floor())
	for id := range newest.Topics() {
		t := newest.TopicByID(state.TopicID(id))
		p.saw(t.End)
		from, _, _, _ := p.fold.Ended([]byte(t.Name))
		for at := from; at < t.End; {
			next, gap, _ := t.Normal(at)
			if gap != nil {
				at = next
				continue
			}
			to := t.End
			for _, g := range t.Gaps {
				if g.From > at {
					to = min(to, g.From)
				}
			}
			p.topic([]byte(t.Name)).Records.Add(at, to)
			at = to
		}
	}
	return nil
}

// judge compares what goes with what stays. It looks at all topics: what goes and cannot be read may be the only copy of
// records of any.
func (p *planner) judge() {
	for id := range p.fold.Topics() {
		p.topic([]byte(p.fold.TopicByID(state.TopicID(id)).Name))
	}
	for name, t := range p.topics {
		end, _, _, _ := p.fold.Ended([]byte(name))
		t.Records.fill(end)
		was, known := p.fold.Topic([]byte(name))
		if known { // what was deleted or not there yet has nothing to lose but what was appended
			var there Spans
			if stands := p.there[name]; stands != nil {
				there = slices.Clone(*stands)
			}
			for _, g := range was.Gaps {
				there.Add(g.From, g.To)
			}
			t.Older = there.Missing(was.Start, was.End)
		}
		t.Back = was.Start
		if t.StartWas = min(t.StartWas, was.End); t.StartWas < t.Back {
			t.StartWas = t.Back
		}
		t.Deleted, t.Configured = t.Deleted && known, t.Configured && known
		if len(t.Records) == 0 && len(t.Older) == 0 && t.StartWas == t.Back && !t.Deleted && !t.Configured {
			continue
		}
		p.plan.Topics = append(p.plan.Topics, *t)
	}
	slices.SortFunc(p.plan.Topics, func(a, b CutTopic) int { return cmp.Compare(a.Topic, b.Topic) })
	for _, g := range p.groups {
		if t, known := p.fold.Topic([]byte(g.Topic)); known {
			var was state.Group
			if was, g.Known = p.fold.Group(t.ID, []byte(g.Group)); g.Known {
				g.Next = was.Next
			}
		}
		if g.Known && !g.Deleted && g.Was == g.Next || !g.Known && g.Deleted {
			continue
		}
		p.plan.Groups = append(p.plan.Groups, *g)
	}
	slices.SortFunc(p.plan.Groups, func(a, b CutGroup) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group))
	})
}

// files lists the files that change, and finds the number of this cut.
func (p *planner) files() error {
	plan := p.plan
	var names []string
	for _, dir := range []string{".", logDir, snapshotDir} {
		list, err := p.c.fs.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, name := range list {
			names = append(names, path.Join(dir, name))
		}
	}
	taken := func(n int) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, aside(n)) })
	}
	for plan.Number = 1; taken(plan.Number); plan.Number++ {
	}
	list := p.o.in.Segments
	for i, s := range list {
		name := segmentFile(s.First)
		f := CutFile{Name: name, Aside: name + aside(plan.Number), Bytes: s.Bytes}
		last := i+1 == len(list) || list[i+1].First > plan.After
		switch {
		case s.First > plan.After && !(i == 0 && plan.After+1 == s.First):
		case !last:
			continue
		default:
			end := max(segmentHead, p.end.Offset+p.end.Length)
			used, err := p.used(s, end)
			if err != nil {
				return err
			}
			p.last = s.First
			if used == end {
				continue
			}
			f.From, f.Bytes = end, used-end
		}
		plan.Files = append(plan.Files, f)
	}
	for _, name := range names {
		f := CutFile{Name: name}
		switch at := snapshotAt(path.Base(name)); {
		case path.Dir(name) == snapshotDir && at > plan.After:
			f.Aside = name + aside(plan.Number)
		case path.Dir(name) == logDir && indexAt(path.Base(name)) >= p.last && indexAt(path.Base(name)) > 0:
		case name == cleanFile && p.o.clean > plan.After:
		default:
			continue
		}
		size, err := p.c.fs.Size(name)
		if err != nil {
			return err
		}
		f.Bytes = size
		plan.Files = append(plan.Files, f)
	}
	return nil
}

// used returns where the last byte is, from one on, that is not zero.
func (p *planner) used(s wal.Segment, end int64) (int64, error) {
	f, err := p.c.fs.OpenRead(segmentFile(s.First))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	for at := s.Bytes; at > end; {
		n := min(int64(len(b)), at-end)
		if _, err := f.ReadAt(b[:n], at-n); err != nil && err != io.EOF {
			return 0, fmt.Errorf("read %s: %w", segmentFile(s.First), err)
		}
		for i := n - 1; i >= 0; i-- {
			if b[i] != 0 {
				return at - n + i + 1, nil
			}
		}
		at -= n
	}
	return end, nil
}

func segmentFile(first entry.Index) string {
	return path.Join(logDir, fmt.Sprintf("%020d.seg", uint64(first)))
}

// segmentHead is how long the header of a segment is.
const segmentHead = 512

func aside(number int) string { return fmt.Sprintf("%s%d", asideWord, number) }

// Nothing tells whether the cut would change nothing.
func (p *CutPlan) Nothing() bool { return len(p.Files) == 0 }

// Do cuts as planned. Killed at any moment, it leaves a folder on which no node starts, and Finish goes on; or one that is
// as it was.
func (c *Cutter) Do(p *CutPlan) error {
	if err := c.writeEntries(p); err != nil {
		return err
	}
	c.note = cutNote{After: p.After, Number: p.Number, Above: p.above}
	c.note.Check = c.note.check()
	text, err := json.Marshal(c.note)
	if err == nil {
		err = replaceText(c.fs, cutTmp, cutFile, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", cutFile, err)
	}
	c.begun = true
	return c.Finish()
}

// Finish goes on with a cut that was begun. Each step may be done again.
//
//  1. Snapshots that know of more than the log will get another name, and the note of the last clean stop tells how far the
//     log will reach.
//  2. Index files from the segment on that will be the last one go: they are derived, and the last segment has none.
//  3. The log is cut.
//  4. A note makes the next start log that all topics go on at a new floor. Then the note of the cut goes.
func (c *Cutter) Finish() error {
	if err := c.snapshotsAside(); err != nil {
		return err
	}
	if clean, err := ReadClean(c.fs); err != nil || clean > c.note.After {
		if err := writeCleanAt(c.fs, c.note.After); err != nil {
			return err
		}
	}
	if err := c.removeIndexes(); err != nil {
		return err
	}
	if err := wal.CutAside(c.fs, logDir, c.id, c.note.After, aside(c.note.Number)); err != nil {
		return err
	}
	if err := MarkRestored(c.fs, c.note.Above); err != nil {
		return err
	}
	if err := removeNote(c.fs, cutFile); err != nil {
		return err
	}
	c.begun = false
	return nil
}

func (c *Cutter) snapshotsAside() error {
	names, err := c.fs.List(snapshotDir)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for _, name := range names {
		if snapshotAt(name) <= c.note.After {
			continue
		}
		name = path.Join(snapshotDir, name)
		if err := c.fs.Rename(name, name+aside(c.note.Number)); err != nil {
			return fmt.Errorf("set a snapshot aside: %w", err)
		}
	}
	if err := c.fs.SyncDir(snapshotDir); err != nil {
		return fmt.Errorf("sync folder %s: %w", snapshotDir, err)
	}
	return nil
}

func (c *Cutter) removeIndexes() error {
	names, err := c.fs.List(logDir)
	if err != nil {
		return fmt.Errorf("list the log: %w", err)
	}
	var last entry.Index // the segment that will be the last one; 0 if that is the first one, of which nothing stays
	for _, name := range names {
		if first := segmentAt(name); first <= c.note.After {
			last = max(last, first)
		}
	}
	for _, name := range names {
		if first := indexAt(name); first > 0 && first >= last {
			if err := c.fs.Remove(path.Join(logDir, name)); err != nil {
				return fmt.Errorf("remove an index file: %w", err)
			}
		}
	}
	if err := c.fs.SyncDir(logDir); err != nil {
		return fmt.Errorf("sync folder %s: %w", logDir, err)
	}
	return nil
}

// writeEntries writes what goes, as far as it can be read, to a side file, a line each, as saveCut does.
func (c *Cutter) writeEntries(p *CutPlan) error {
	if p.Entries == 0 {
		return nil
	}
	if err := c.fs.Mkdir(cutDir); err != nil {
		return fmt.Errorf("make folder %s: %w", cutDir, err)
	}
	if err := c.fs.SyncDir("."); err != nil {
		return fmt.Errorf("sync the data folder: %w", err)
	}
	name := p.SideFile()
	err := replaceFile(c.fs, name+".tmp", name, func(f vfs.File) error {
		w := bufio.NewWriterSize(&fileWriter{f: f}, 64<<10)
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		if _, err := wal.Inspect(c.fs, logDir, func(e *entry.Entry, _ entry.Position) error {
			if e.Index <= p.After {
				return nil
			}
			return writeEntry(lines, e)
		}); err != nil {
			return err
		}
		return w.Flush()
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// SideFile is the name of the file that gets the entries that go.
func (p *CutPlan) SideFile() string {
	return path.Join(cutDir, fmt.Sprintf("%d-%d%s.jsonl", uint64(p.After+1), uint64(p.Last), strings.Replace(aside(p.Number), ".", "-", 1)))
}
