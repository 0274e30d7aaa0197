// Package audit follows the log of a simulated pair or cluster from its first entry on, and holds every fact in it against
// a model that is as simple as can be: all records that there ever were, in memory, for good. So what retention and the
// cleaner do to the files is judged by someone who never forgets: what is kept once more is what was appended, a start moves
// no further than a client asked for or the limits of the topic allow, offsets are never given out again, and what clients
// were told is in the log.
//
// It shares the decoder of facts with the code under test, and nothing else.
package audit

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// Book is what is known of one log. It is not safe for concurrent use.
type Book struct {
	defaults fact.Retention // of topics without settings of their own
	topics   map[string]*topic
	sums     []uint64 // of the entries, from 1 on
	timeMS   int64
	asked    map[string]int // by clients, whether it came to anything or not
	answered map[string]int // acknowledged
	logged   map[string]int
	seen     []seen
	searches []search
	Figures
}

// Figures tell what the log shows to have happened.
type Figures struct {
	Moved   int // starts that moved by the limits
	Kept    int // records that were appended once more
	Deleted int // topics
}

// topic is all that a topic ever was. Offsets are places in the slices.
type topic struct {
	name      string
	records   []record
	cums      []uint64      // bytes before each record, and before the next one
	copies    []entry.Index // where each record was appended last
	start     int
	starts    map[int]bool // all there were
	deleted   bool
	retention fact.Retention
	groups    map[string]fact.Offset
	ids       map[string]bool
}

type record struct {
	key, value string
	timeMS     int64
}

// seen is a record as a client saw it; search is what one that asked by time was told.
type seen struct {
	who, topic string
	offset     fact.Offset
	record
}

type search struct {
	who, topic         string
	fromMS             int64
	start, next, after fact.Offset // the topic began at start, next is the first record that was found, and after the end without any
}

// New returns a book of a log that begins. Topics without settings of their own have those defaults.
func New(defaults fact.Retention) *Book {
	return &Book{defaults: defaults, topics: map[string]*topic{}, asked: map[string]int{}, answered: map[string]int{}, logged: map[string]int{}}
}

// Next is the first entry that was not read.
func (b *Book) Next() entry.Index { return entry.Index(len(b.sums) + 1) }

// Asked notes that a client asks for something: see the functions that name it.
func (b *Book) Asked(what string) { b.asked[what]++ }

// Answered notes that it was acknowledged.
func (b *Book) Answered(what string) { b.answered[what]++ }

// Move names a commit or a seek of a group.
func Move(topic, group string) string { return fmt.Sprintf("a move of group %s of %s", group, topic) }

// Forget names the deletion of a group.
func Forget(topic, group string) string {
	return fmt.Sprintf("a deletion of group %s of %s", group, topic)
}

// Retain names a retain.
func Retain(topic string, start uint64) string {
	return fmt.Sprintf("a retain of %s at %d", topic, start)
}

// Configure names a change of settings.
func Configure(topic string) string { return "a configure of " + topic }

// Delete names the deletion of a topic.
func Delete(topic string) string { return "a deletion of " + topic }

// Saw notes a record that a client got.
func (b *Book) Saw(who, topic string, offset fact.Offset, key, value string, timeMS int64) {
	b.seen = append(b.seen, seen{who, topic, offset, record{key, value, timeMS}})
}

// Found notes what a fetch by time was told of a topic that began at start: its first record is next, or there is none before
// the end.
func (b *Book) Found(who, topic string, fromMS int64, start, next, end fact.Offset) {
	b.searches = append(b.searches, search{who, topic, fromMS, start, next, end})
}

// Violation is what is wrong with the log, or with what clients were told.
type Violation struct{ Invariant, Text string }

func (v *Violation) Error() string { return v.Invariant + ": " + v.Text }

func wrong(invariant, format string, args ...any) error {
	return &Violation{invariant, fmt.Sprintf(format, args...)}
}

var errEnough = errors.New("enough")

// Read reads the log in a folder up to an entry; all up to it are committed. What was read before, from whatever folder, must
// be the same. It stops without a word where entries are missing or damaged: Next tells.
func (b *Book) Read(fsys vfs.FS, upTo entry.Index) error {
	if upTo < b.Next() {
		return nil
	}
	_, err := wal.Inspect(fsys, "log", func(e *entry.Entry, _ entry.Position) error {
		switch next := b.Next(); {
		case e.Index > upTo || e.Index > next:
			return errEnough
		case e.Index < next:
			if sum := sumOf(e); sum != b.sums[e.Index-1] {
				return wrong("what is committed never changes", "entry %d is another one", e.Index)
			}
			return nil
		}
		if err := b.apply(e); err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		b.sums = append(b.sums, sumOf(e))
		return nil
	})
	if v := (*Violation)(nil); errors.As(err, &v) {
		return err
	}
	return nil // a folder that is being changed, or damaged: another one has it
}

func sumOf(e *entry.Entry) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %d ", e.Index, e.Term, e.TimeMS, e.Kind)
	h.Write(e.Payload)
	return h.Sum64()
}

func (b *Book) apply(e *entry.Entry) error {
	if e.TimeMS < b.timeMS {
		return wrong("time in the log never goes back", "%d after %d", e.TimeMS, b.timeMS)
	}
	b.timeMS = e.TimeMS
	switch e.Kind {
	case fact.KindAppended:
		return b.appended(e)
	case fact.KindKept:
		return b.kept(e)
	case fact.KindGroupMoved:
		f, err := fact.DecodeGroupMoved(e.Payload)
		if err != nil {
			return err
		}
		t, err := b.live(f.Topic)
		if err != nil {
			return err
		}
		if int(f.Next) < t.start || int(f.Next) > len(t.records) {
			return wrong("a group is within its topic", "group %s of %s moves to %d of %d to %d", f.Group, f.Topic, f.Next, t.start, len(t.records))
		}
		t.groups[string(f.Group)] = f.Next
		return b.log(Move(t.name, string(f.Group)))
	case fact.KindTopicRetained:
		f, err := fact.DecodeTopicRetained(e.Payload)
		if err != nil {
			return err
		}
		return b.retained(e, &f)
	case fact.KindTopicConfigured:
		f, err := fact.DecodeTopicConfigured(e.Payload)
		if err != nil {
			return err
		}
		t, err := b.live(f.Topic)
		if err != nil {
			return err
		}
		t.retention = f.Retention
		return b.log(Configure(t.name))
	case fact.KindTopicDeleted:
		f, err := fact.DecodeTopicDeleted(e.Payload)
		if err != nil {
			return err
		}
		t, err := b.live(f.Topic)
		if err != nil {
			return err
		}
		b.Deleted++
		t.begin(len(t.records))
		t.deleted, t.retention, t.groups = true, fact.Retention{}, map[string]fact.Offset{}
		return b.log(Delete(t.name))
	case fact.KindGroupDeleted:
		f, err := fact.DecodeGroupDeleted(e.Payload)
		if err != nil {
			return err
		}
		t, err := b.live(f.Topic)
		if err != nil {
			return err
		}
		if _, ok := t.groups[string(f.Group)]; !ok {
			return wrong("what is deleted was there", "group %s of %s", f.Group, f.Topic)
		}
		delete(t.groups, string(f.Group))
		return b.log(Forget(t.name, string(f.Group)))
	}
	return nil
}

// log notes that something which only clients do was done.
func (b *Book) log(what string) error {
	if b.logged[what]++; b.logged[what] > b.asked[what] {
		return wrong("nothing happens that nobody asked for", "%s, the %d. time, and it was asked for %d times", what, b.logged[what], b.asked[what])
	}
	return nil
}

// live is a topic that exists.
func (b *Book) live(name []byte) (*topic, error) {
	t := b.topics[string(name)]
	if t == nil || t.deleted {
		return nil, wrong("facts are about topics that there are", "%s", name)
	}
	return t, nil
}

func (t *topic) begin(start int) { t.start, t.starts[start] = start, true }

func (b *Book) appended(e *entry.Entry) error {
	f, err := fact.DecodeAppended(e.Payload)
	if err != nil {
		return err
	}
	name := string(f.Topic)
	t := b.topics[name]
	if t == nil {
		t = &topic{name: name, cums: []uint64{0}, starts: map[int]bool{0: true}, groups: map[string]fact.Offset{}, ids: map[string]bool{}}
		b.topics[name] = t
	}
	t.deleted = false
	if int(f.Base) != len(t.records) {
		return wrong("offsets are dense, and never given out again", "records of %s are appended at %d; it has had %d", name, f.Base, len(t.records))
	}
	if f.Cum != t.cums[f.Base] {
		return wrong("bytes are counted", "%d bytes of %s are before %d, and the fact says %d", t.cums[f.Base], name, f.Base, f.Cum)
	}
	if id := string(f.RequestID); id != "" {
		if t.ids[id] {
			return wrong("a request id is stored once", "%q of %s", id, name)
		}
		t.ids[id] = true
	}
	for {
		r, ok, err := f.Next()
		if err != nil || !ok {
			return err
		}
		t.records = append(t.records, record{string(r.Key), string(r.Value), e.TimeMS})
		t.cums = append(t.cums, t.cums[len(t.cums)-1]+uint64(len(r.Key)+len(r.Value)))
		t.copies = append(t.copies, e.Index)
	}
}

// kept checks that what is appended once more is what it was.
func (b *Book) kept(e *entry.Entry) error {
	s, _, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
	if err != nil {
		return err
	}
	t, err := b.live(s.Topic)
	if err != nil {
		return err
	}
	if int(s.Base) < t.start || int(s.Base)+s.Count > len(t.records) {
		return wrong("only what lives is kept", "records %d to %d of %s, which has %d to %d", s.Base, int(s.Base)+s.Count-1, t.name, t.start, len(t.records)-1)
	}
	if s.Cum != t.cums[s.Base] {
		return wrong("bytes are counted", "%d bytes of %s are before %d, and the fact says %d", t.cums[s.Base], t.name, s.Base, s.Cum)
	}
	b.Kept += s.Count
	for at := int(s.Base); ; at++ {
		r, ok, err := s.Next()
		if err != nil || !ok {
			return err
		}
		if got := (record{string(r.Key), string(r.Value), r.TimeMS}); got != t.records[at] {
			return wrong("what is kept is what was appended", "offset %d of %s was %.60v, and is %.60v", at, t.name, t.records[at], got)
		}
		t.copies[at] = e.Index
	}
}

// retained checks that a start moves no further than somebody asked for, or the limits allow.
func (b *Book) retained(e *entry.Entry, f *fact.TopicRetained) error {
	t, err := b.live(f.Topic)
	if err != nil {
		return err
	}
	start := int(f.Start)
	if start < t.start || start > len(t.records) {
		return wrong("a start only rises", "%s starts at %d, has %d records, and shall start at %d", t.name, t.start, len(t.records), start)
	}
	if f.Cum != t.cums[start] {
		return wrong("bytes are counted", "%d bytes of %s are before %d, and the fact says %d", t.cums[start], t.name, start, f.Cum)
	}
	what := Retain(t.name, uint64(start))
	if b.logged[what]++; b.logged[what] > b.asked[what] {
		b.Moved++
		if most := b.due(t, e.TimeMS); start > most {
			return wrong("limits are kept to", "%s moves its start from %d to %d of %d by itself; with %+v it may to %d", t.name, t.start, start,
				len(t.records), b.limits(t), most)
		}
	}
	t.begin(start)
	return nil
}

// limits are those in effect.
func (b *Book) limits(t *topic) fact.Retention {
	effective := func(own, otherwise fact.Limit) fact.Limit {
		if own == fact.LimitDefault {
			own = otherwise
		}
		if own <= 0 {
			return math.MaxInt64
		}
		return own
	}
	r := t.retention
	return fact.Retention{
		MS: effective(r.MS, b.defaults.MS), Bytes: effective(r.Bytes, b.defaults.Bytes), Records: effective(r.Records, b.defaults.Records),
	}
}

// due is where a topic may start by its limits at a time.
func (b *Book) due(t *topic, timeMS int64) int {
	limits, n := b.limits(t), len(t.records)
	most := t.start
	if kept := int64(n - t.start); kept > int64(limits.Records) {
		most = n - int(limits.Records)
	}
	bytes := sort.Search(n, func(at int) bool { return int64(t.cums[n]-t.cums[at]) <= int64(limits.Bytes) })
	old := sort.Search(n, func(at int) bool { return timeMS-t.records[at].timeMS <= int64(limits.MS) })
	return max(most, bytes, old)
}

// Behind returns the topic that keeps more than its limits allow at a time, and why, or "". Times are held to with a step of
// one part in a hundred, and slack.
func (b *Book) Behind(timeMS, slackMS int64) string {
	for _, t := range b.topics {
		slack := slackMS
		if ms := int64(b.limits(t).MS); ms < math.MaxInt64 {
			slack += ms / 100
		}
		if most := b.due(t, timeMS-slack); !t.deleted && t.start < most {
			return fmt.Sprintf("%s starts at %d of %d; with %+v it should at %d", t.name, t.start, len(t.records), b.limits(t), most)
		}
	}
	return ""
}

// Bounds tells where a topic starts and ends, and whether it exists.
func (b *Book) Bounds(name string) (start, end fact.Offset, exists bool) {
	t := b.topics[name]
	if t == nil {
		return 0, 0, false
	}
	return fact.Offset(t.start), fact.Offset(len(t.records)), !t.deleted
}

// Groups calls f for each group, in order, with what it was moved to last.
func (b *Book) Groups(f func(topic, group string, next fact.Offset)) {
	for _, name := range slices.Sorted(maps.Keys(b.topics)) {
		t := b.topics[name]
		for _, group := range slices.Sorted(maps.Keys(t.groups)) {
			f(name, group, t.groups[group])
		}
	}
}

// Began reports whether a topic has ever started at an offset.
func (b *Book) Began(name string, start fact.Offset) bool {
	t := b.topics[name]
	return t != nil && t.starts[int(start)]
}

// Judge checks what clients saw once all of the log was read.
func (b *Book) Judge() error {
	for what, n := range b.answered {
		if b.logged[what] < n {
			return wrong("what is acknowledged is in the log", "%s was acknowledged %d times, and done %d times", what, n, b.logged[what])
		}
	}
	for i := range b.seen {
		s := &b.seen[i]
		t := b.topics[s.topic]
		if t == nil || int(s.offset) >= len(t.records) {
			return wrong("what is read is in the log", "%s: offset %d of %s", s.who, s.offset, s.topic)
		}
		if s.record != t.records[s.offset] {
			return wrong("a record is read as it was appended", "%s: offset %d of %s is %.60v, and was appended as %.60v", s.who, s.offset, s.topic,
				s.record, t.records[s.offset])
		}
	}
	for i := range b.searches {
		if err := b.judge(&b.searches[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Book) judge(s *search) error {
	t := b.topics[s.topic]
	if t == nil || int(s.after) > len(t.records) {
		return wrong("what is read is in the log", "%s: %s ends at %d", s.who, s.topic, s.after)
	}
	if n := int(s.next); n > int(s.start) && t.records[n-1].timeMS >= s.fromMS {
		return wrong("a fetch by time leaves nothing out", "%s: asked from %d on, %s is read from %d on, and the record before is of %d", s.who,
			s.fromMS, s.topic, n, t.records[n-1].timeMS)
	}
	if s.next < s.after && t.records[s.next].timeMS < s.fromMS && s.next > s.start {
		return wrong("a fetch by time begins there", "%s: asked from %d on, %s is read from %d on, which is of %d", s.who, s.fromMS, s.topic, s.next,
			t.records[s.next].timeMS)
	}
	return nil
}

// Room sums up the frames of a log: those in sealed segments that could be dropped if nothing lived in them, because all
// snapshots cover them, and what of all lives. That a frame did not fit into the end of a segment is not counted: where segments
// are as small as here, that is much.
func (b *Book) Room(fsys vfs.FS) (sealed, live int64, err error) {
	used := map[entry.Index]int64{} // of each segment
	found, err := wal.Inspect(fsys, "log", func(e *entry.Entry, p entry.Position) error {
		used[p.Segment] = p.End()
		s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
		if !ok || err != nil {
			return err
		}
		t := b.topics[string(s.Topic)]
		if t == nil || t.deleted {
			return nil
		}
		n := 0
		for at := int(s.Base); at < int(s.Base)+s.Count && at < len(t.copies); at++ {
			if at >= t.start && t.copies[at] == e.Index {
				n++
			}
		}
		live += p.Length * int64(n) / int64(s.Count)
		return nil
	})
	_, covered := snapshots(fsys)
	for _, s := range found.Segments {
		if s.Sealed && s.Last <= covered {
			sealed += used[s.First]
		}
	}
	return sealed, live, err
}

// Covered is the last entry that the newest snapshot in a folder covers: all up to it is committed.
func Covered(fsys vfs.FS) entry.Index {
	newest, _ := snapshots(fsys)
	return newest
}

// snapshots tells what the newest snapshot of a folder covers, and what all do; 0 without any.
func snapshots(fsys vfs.FS) (newest, all entry.Index) {
	names, err := fsys.List("snapshots")
	if err != nil {
		return 0, 0
	}
	all = math.MaxUint64
	for _, name := range names {
		if number, ok := strings.CutSuffix(name, ".snap"); ok {
			index, _ := strconv.ParseUint(number, 10, 64) // 0 for a name of another kind
			newest, all = max(newest, entry.Index(index)), min(all, entry.Index(index))
		}
	}
	return newest, min(newest, all)
}
