package node

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs/memfs"
)

// TestLongLife: whatever a node is asked to do in its life, and however often it is killed, loses its power, or is restored
// from a copy, it has what a model in memory has that never forgets. MQ_LIVES is the number of lives, MQ_LIFE the only one.
func TestLongLife(t *testing.T) {
	lives := 1500
	if testing.Short() {
		lives = 100
	}
	if n, err := strconv.Atoi(os.Getenv("MQ_LIVES")); err == nil {
		lives = n
	}
	first := 1
	if n, err := strconv.Atoi(os.Getenv("MQ_LIFE")); err == nil {
		first, lives = n, 1
	}
	const together = 50 // in one bubble
	var total lifeFigures
	for from := first; from < first+lives; from += together {
		onVirtualTime(t, func(t *testing.T) {
			for seed := from; seed < min(from+together, first+lives); seed++ {
				l := &life{t: t, rand: rand.New(rand.NewPCG(uint64(seed), 9)), figures: &total}
				if err := l.run(); err != nil {
					t.Fatalf("life %d (MQ_LIFE=%d): %v\n%s", seed, seed, err, l.story.String())
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d lives: %+v", lives, total)
	if lives >= 100 && (total.moved == 0 || total.dropped == 0 || total.byLimits == 0 || total.deleted == 0 || total.cut == 0 || total.restored == 0) {
		t.Errorf("something never happened: %+v", total)
	}
}

// lifeFigures count what the lives came to.
type lifeFigures struct{ calls, moved, dropped, byLimits, deleted, killed, cut, restored int }

// life is one node on one disk, and what it must have.
type life struct {
	t       *testing.T
	rand    *rand.Rand
	figures *lifeFigures

	telling sync.Mutex // guards the field below
	story   bytes.Buffer

	disk   *memfs.FS
	n      *Node
	world  almanac
	copied *memfs.FS // of the folder, while nothing ran
	then   almanac   // at that time
	floor  fact.Offset
	count  int // of records

	// A crash in the middle: the disk as it was left, and what was known before the call that it came in.
	mu     sync.Mutex // guards the two below
	armed  int        // the power fails at this operation, counted down; 0 for not
	image  *memfs.FS
	before almanac
}

// almanac is all that the node must know.
type almanac struct {
	topics map[string]*annals
}

// annals are those of a topic.
type annals struct {
	live       bool
	start, end fact.Offset
	entries    []annal // all there ever were, by offset
	gaps       []state.Gap
	retention  fact.Retention
	groups     map[string]fact.Offset
	ids        map[string]batchOf
}

type annal struct {
	offset     fact.Offset
	key, value string
	timeMS     int64
}

func (a almanac) clone() almanac {
	c := almanac{topics: map[string]*annals{}}
	for name, t := range a.topics {
		d := *t
		d.entries, d.gaps = slices.Clip(t.entries), slices.Clip(t.gaps)
		d.groups, d.ids = maps.Clone(t.groups), maps.Clone(t.ids)
		c.topics[name] = &d
	}
	return c
}

// kept are the records from the start on.
func (a *annals) kept() []annal {
	if !a.live {
		return nil
	}
	i, _ := slices.BinarySearchFunc(a.entries, a.start, func(e annal, start fact.Offset) int { return int(int64(e.offset) - int64(start)) })
	return a.entries[i:]
}

// next is where a reader at an offset goes on.
func (a *annals) next(off fact.Offset) fact.Offset {
	for _, g := range a.gaps {
		if off == g.From {
			off = g.To
		}
	}
	return off
}

// due is where the topic may start by its limits, if records that are older than a time are old.
func (a *annals) due(nowMS int64) fact.Offset {
	kept := a.kept()
	if len(kept) == 0 {
		return a.start
	}
	limits, size := a.retention, int64(0)
	for _, e := range kept {
		size += int64(len(e.key) + len(e.value))
	}
	for i, e := range kept {
		over := limits.Records > 0 && len(kept)-i > int(limits.Records) || limits.Bytes > 0 && size > int64(limits.Bytes) ||
			limits.MS > 0 && nowMS-e.timeMS > int64(limits.MS)
		if !over && i == 0 {
			return a.start // which may be in a gap before the first record
		}
		if !over {
			return e.offset
		}
		size -= int64(len(e.key) + len(e.value))
	}
	return a.end
}

func (l *life) note(format string, args ...any) {
	l.telling.Lock()
	defer l.telling.Unlock()
	fmt.Fprintf(&l.story, "\t%d: ", time.Now().UnixMilli())
	fmt.Fprintf(&l.story, format+"\n", args...)
}

func (l *life) run() error {
	l.disk, l.world = memfs.New(), almanac{topics: map[string]*annals{}}
	if err := l.open(); err != nil {
		return err
	}
	defer func() { l.n.Close() }()
	for range 20 + l.rand.IntN(60) {
		if err := l.step(); err != nil {
			return err
		}
	}
	l.disarm()
	if err := l.sleep(20 * time.Second); err != nil {
		return err
	}
	if err := l.check(l.world); err != nil {
		return err
	}
	l.figures.moved += int(l.n.cleaner.status().MovedRecords)
	var sealed, live int64
	for _, s := range l.n.log.Segments() {
		if s.Sealed {
			sealed += s.Bytes
		}
	}
	for _, s := range l.n.index.Live(l.n.cleaner.startOf) {
		live += s.Bytes
	}
	if sealed > 2*live+4*l.n.cfg.SegmentBytes { // their ends may be unused, and two of them needed by a snapshot
		return fmt.Errorf("%d bytes of sealed segments for %d that live: %+v", sealed, live, l.n.log.Segments())
	}
	return nil
}

func (l *life) open() error {
	cfg := testConfig(l.disk)
	cfg.Clock, cfg.Inline = clock.System{}, true
	cfg.SegmentBytes, cfg.SnapshotBytes = 4<<10, 6<<10
	l.disk.SetCapacity(10 << 20) // too little for the spare file, which would cost more time than all else
	n, err := Open(cfg)
	if err == nil {
		err = n.Recover()
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	l.n = n
	if l.rand.IntN(3) > 0 {
		return nil
	}
	disk, seed := l.disk, l.rand.Uint64()
	number := l.rand.IntN(8) // 0: nothing survives that was not synced; 1: all does
	l.armed = 1 + l.rand.IntN(120)
	disk.OnOp(func(op memfs.Op) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.armed == 0 {
			return
		}
		if l.armed--; l.armed == 0 {
			l.note("the power fails at %s %s, done: %v", op.Kind, op.Name, op.Done)
			l.image = disk.Crash(seed, number).FS
		}
	})
	return nil
}

// disarm takes back that the power fails. It returns the disk as that left it, if it was too late.
func (l *life) disarm() *memfs.FS {
	l.disk.OnOp(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	image := l.image
	l.armed, l.image = 0, nil
	return image
}

// failing reports whether the power has failed, or will.
func (l *life) failing() (has, will bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.image != nil, l.armed > 0
}

// step does something, and sees what came of it.
func (l *life) step() error {
	l.figures.calls++
	has, will := l.failing()
	if has || will {
		l.before = l.world.clone()
	}
	var err error
	switch k := l.rand.IntN(100); {
	case has:
	case k < 45:
		err = l.publish()
	case k < 50:
		err = l.retain()
	case k < 55:
		err = l.configure()
	case k < 58:
		err = l.delete()
	case k < 68:
		err = l.group()
	case k < 71:
		_, err = l.n.Snapshot()
	case k < 88:
		err = l.sleep(time.Duration(l.rand.IntN(3000)) * time.Millisecond)
	case k < 94:
		err = l.end()
	default:
		err = l.check(l.world)
	}
	if has, will := l.failing(); !has && err == nil {
		came := l.world
		if will {
			came = l.world.clone()
		}
		err = l.limits(l.world, 0)
		if has, _ := l.failing(); has {
			l.world = came // where starts have moved since is not known
		}
	}
	if has, _ := l.failing(); !has {
		return err
	}
	// Whatever came after the power had failed is not known; what came of the call is open.
	image := l.disarm()
	l.n.Close()
	l.disk = image
	l.figures.cut++
	if err := l.open(); err != nil {
		return err
	}
	first := l.check(l.before)
	if first == nil {
		l.world = l.before
		return nil
	}
	if second := l.check(l.world); second != nil {
		return fmt.Errorf("after a power cut neither what was before the call nor what came of it is there: %w; %w", first, second)
	}
	return nil
}

// end ends the process in some way, and starts it again.
func (l *life) end() error {
	l.disarm()
	switch k := l.rand.IntN(10); {
	case k < 3:
		l.note("stop")
		if err := l.n.Close(); err != nil {
			return err
		}
	case k < 8:
		l.note("kill")
		l.figures.killed++
		disk := l.disk.Clone()
		if k < 6 {
			disk = l.disk.Crash(l.rand.Uint64(), l.rand.IntN(8)).FS
		}
		l.n.Close()
		l.disk = disk
	default:
		if err := l.n.Close(); err != nil {
			return err
		}
		if l.copied == nil || l.rand.IntN(3) == 0 {
			l.note("copy the folder")
			l.copied, l.then = l.disk.Clone(), l.world.clone()
			break
		}
		l.note("restore the copy")
		l.figures.restored++
		l.disk, l.world = l.copied, l.then
		l.copied = nil
		if err := MarkRestored(l.disk, 0); err != nil {
			return err
		}
		l.restored()
	}
	if err := l.open(); err != nil {
		return err
	}
	return l.check(l.world)
}

// restored lets all topics go on at a floor.
func (l *life) restored() {
	var above fact.Offset
	for _, a := range l.world.topics {
		above = max(above, a.end)
	}
	l.floor = (max(above, l.floorOf())/fact.RestoreStep + 1) * fact.RestoreStep
	for _, a := range l.world.topics {
		if a.live {
			a.gaps = append(a.gaps, state.Gap{From: a.end, To: l.floor})
		}
		a.end = l.floor
		if !a.live {
			a.start = a.end
		}
	}
}

// floorOf is where the copy's topics began that were new: the highest end of a gap tells.
func (l *life) floorOf() (floor fact.Offset) {
	for _, a := range l.world.topics {
		floor = max(floor, a.end/fact.RestoreStep*fact.RestoreStep)
	}
	return floor
}

func (l *life) someTopic() (string, *annals) {
	name := fmt.Sprint("topic-", l.rand.IntN(3))
	return name, l.world.topics[name]
}

func (l *life) publish() error {
	name, a := l.someTopic()
	if a != nil && len(a.ids) > 0 && l.rand.IntN(6) == 0 {
		return l.again(name, a)
	}
	request := &broker.Publish{Topic: []byte(name)}
	if l.rand.IntN(3) == 0 {
		request.RequestID = fmt.Append(nil, "id-", l.count)
	}
	size := []int{20, 200, 1200}[l.rand.IntN(3)]
	for range 1 + l.rand.IntN(1+l.rand.IntN(6)) {
		l.count++
		request.Records = append(request.Records, fact.Record{
			Key: fmt.Append(nil, "key-", l.count), Value: bytes.Repeat([]byte{byte(l.count)}, l.rand.IntN(size)),
		})
	}
	done, err := l.n.Publish(request)
	l.note("publish %d of up to %d to %s: %+v %v", len(request.Records), size, name, done, err)
	if err != nil || done.Duplicate || a != nil && done.Base != a.end || a == nil && done.Base != 0 && done.Base%fact.RestoreStep != 0 {
		return fmt.Errorf("publish to %s: %+v %w", name, done, err)
	}
	if a == nil {
		a = &annals{start: done.Base, end: done.Base, ids: map[string]batchOf{}}
		l.world.topics[name] = a
	}
	if !a.live {
		a.live, a.start, a.groups, a.gaps, a.retention = true, a.end, map[string]fact.Offset{}, nil, fact.Retention{}
	}
	if len(request.RequestID) > 0 {
		a.ids[string(request.RequestID)] = batchOf{done.Base, len(request.Records)}
	}
	now := time.Now().UnixMilli()
	for _, r := range request.Records {
		a.entries = append(a.entries, annal{a.end, string(r.Key), string(r.Value), now})
		a.end++
	}
	return nil
}

// again tries a publish again, whether its records are there or not.
func (l *life) again(name string, a *annals) error {
	ids := slices.Sorted(maps.Keys(a.ids))
	id := ids[l.rand.IntN(len(ids))]
	batch := a.ids[id]
	request := &broker.Publish{Topic: []byte(name), RequestID: []byte(id)}
	for _, e := range a.entries {
		if e.offset >= batch.base && e.offset < batch.base+fact.Offset(batch.count) {
			request.Records = append(request.Records, fact.Record{Key: []byte(e.key), Value: []byte(e.value)})
		}
	}
	done, err := l.n.Publish(request)
	if err != nil || !done.Duplicate || done.Base != batch.base || done.Count != batch.count {
		return fmt.Errorf("retry of %s in %s: %+v %w, want a duplicate at %d", id, name, done, err, batch.base)
	}
	return nil
}

// somewhere is an offset of a topic that a group or the start may be moved to: where a record is, or the end.
func (l *life) somewhere(a *annals) fact.Offset {
	kept := a.kept()
	if i := l.rand.IntN(len(kept) + 1); i < len(kept) {
		return kept[i].offset
	}
	return a.end
}

func (l *life) retain() error {
	name, a := l.someTopic()
	if a == nil || !a.live {
		if _, err := l.n.Retain([]byte(name), 0); !errors.Is(err, broker.ErrTopicNotFound) {
			return fmt.Errorf("retain of %s, which is not there: %w", name, err)
		}
		return nil
	}
	to := l.somewhere(a)
	start, err := l.n.Retain([]byte(name), to)
	l.note("retain %s at %d: %d %v", name, to, start, err)
	if err != nil || start != to {
		return fmt.Errorf("retain of %s at %d: %d %w", name, to, start, err)
	}
	a.begin(to)
	return nil
}

// begin moves the start.
func (a *annals) begin(start fact.Offset) {
	a.start = start
	a.gaps = slices.DeleteFunc(slices.Clone(a.gaps), func(g state.Gap) bool { return g.To <= start })
}

func (l *life) configure() error {
	name, a := l.someTopic()
	c := &broker.Configure{Topic: []byte(name), Reset: true}
	var want fact.Retention
	set := func(to **fact.Limit, own *fact.Limit, most int64) {
		if l.rand.IntN(3) == 0 {
			*own = fact.Limit(1 + l.rand.Int64N(most))
			*to = own
		}
	}
	set(&c.RetentionMS, &want.MS, 8000)
	set(&c.RetentionBytes, &want.Bytes, 6000)
	set(&c.RetentionRecords, &want.Records, 20)
	settings, err := l.n.ConfigureTopic(c)
	l.note("configure %s as %+v: %v", name, want, err)
	if a == nil || !a.live {
		if !errors.Is(err, broker.ErrTopicNotFound) {
			return fmt.Errorf("configure %s, which is not there: %w", name, err)
		}
		return nil
	}
	if err != nil || settings.Own != want {
		return fmt.Errorf("configure %s: %+v %w, want %+v", name, settings, err, want)
	}
	a.retention = want
	return nil
}

func (l *life) delete() error {
	name, a := l.someTopic()
	end, err := l.n.DeleteTopic([]byte(name))
	l.note("delete %s: %d %v", name, end, err)
	if a == nil || !a.live {
		if !errors.Is(err, broker.ErrTopicNotFound) {
			return fmt.Errorf("delete %s, which is not there: %w", name, err)
		}
		return nil
	}
	if err != nil || end != a.end {
		return fmt.Errorf("delete %s: %d %w, want %d", name, end, err, a.end)
	}
	l.figures.deleted++
	a.live, a.start, a.groups, a.gaps, a.retention = false, a.end, nil, nil, fact.Retention{}
	return nil
}

// group commits, seeks, or deletes a group.
func (l *life) group() error {
	name, a := l.someTopic()
	if a == nil || !a.live {
		return nil
	}
	group := fmt.Sprint("group-", l.rand.IntN(2))
	to := l.somewhere(a)
	switch l.rand.IntN(4) {
	case 0:
		_, known := a.groups[group]
		next, err := l.n.DeleteGroup([]byte(name), []byte(group))
		l.note("delete %s of %s: %d %v", group, name, next, err)
		if known && err != nil || !known && !errors.Is(err, broker.ErrGroupNotFound) {
			return fmt.Errorf("delete %s of %s: %w; it is there: %v", group, name, err, known)
		}
		delete(a.groups, group)
		return nil
	case 1, 2:
		next, err := l.n.CommitGroup([]byte(name), []byte(group), to)
		l.note("commit %s of %s to %d: %d %v", group, name, to, next, err)
		if err != nil || next != to {
			return fmt.Errorf("commit %s of %s to %d: %d %w", group, name, to, next, err)
		}
	default:
		seek := &broker.Seek{Topic: []byte(name), Group: []byte(group), By: broker.SeekByTime, TimeMS: time.Now().UnixMilli() - l.rand.Int64N(10_000)}
		to = a.at(seek.TimeMS)
		sought, err := l.n.SeekGroup(seek)
		l.note("seek %s of %s to time %d: %+v %v", group, name, seek.TimeMS, sought, err)
		if err != nil || sought.Next != to {
			return fmt.Errorf("seek %s of %s to time %d: %+v %w, want %d", group, name, seek.TimeMS, sought, err, to)
		}
	}
	a.groups[group] = to
	return nil
}

// at is the first record of a time, or the end.
func (a *annals) at(timeMS int64) fact.Offset {
	for _, e := range a.kept() {
		if e.timeMS >= timeMS {
			return e.offset
		}
	}
	return a.end
}

// sleep lets time pass, in which starts may move by their limits.
func (l *life) sleep(d time.Duration) error {
	l.note("sleep for %v", d)
	segments := l.n.log.Segments()[0].First
	time.Sleep(d)
	synctest.Wait()
	if l.n.log.Segments()[0].First != segments {
		l.figures.dropped++
	}
	return l.limits(l.world, d)
}

// limits looks where the starts are, after a time in which they may have moved.
func (l *life) limits(world almanac, d time.Duration) error {
	synctest.Wait() // much that was published has topics held against their limits without a sleep
	now := time.Now().UnixMilli()
	for name, a := range world.topics {
		if !a.live || a.retention == (fact.Retention{}) {
			continue
		}
		info, err := l.n.DescribeTopic([]byte(name), 0)
		if err != nil {
			return fmt.Errorf("describe %s: %w", name, err)
		}
		if most := a.due(now); info.Start < a.start || info.Start > max(most, a.start) {
			return fmt.Errorf("%s starts at %d; its limits %+v allow %d to %d", name, info.Start, a.retention, a.start, most)
		}
		slack := 2100 + max(1000, int64(a.retention.MS)/100)
		if least := a.due(now - slack); d.Milliseconds() > slack && info.Start < least {
			return fmt.Errorf("%s starts at %d; its limits %+v want %d at least", name, info.Start, a.retention, least)
		}
		if info.Start > a.start {
			l.figures.byLimits++
			l.note("%s starts at %d", name, info.Start)
			a.begin(info.Start)
		}
	}
	return nil
}

// check compares all that the node tells with what it must.
func (l *life) check(world almanac) error {
	if err := l.limits(world, 0); err != nil {
		return err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(world.topics)) {
		a := world.topics[name]
		if a.live {
			names = append(names, name)
		}
		if err := l.checkTopic(name, a); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	list, more, err := l.n.ListTopics(&broker.List{Limit: 100})
	if err != nil || more || !slices.EqualFunc(list, names, func(t broker.TopicSummary, name string) bool { return t.Name == name }) {
		return fmt.Errorf("the topics are %+v, %w, want %v", list, err, names)
	}
	l.n.broker.Load().View(func(s *state.State) { err = s.Verify() })
	return err
}

func (l *life) checkTopic(name string, a *annals) error {
	topic := []byte(name)
	if !a.live {
		if _, err := l.n.Fetch(&broker.Fetch{Topic: topic, Limit: 1}, sinkFunc(func(fact.Offset, []byte, []byte, int64) {})); !errors.Is(err, broker.ErrTopicNotFound) {
			return fmt.Errorf("it was deleted, and a fetch says %w", err)
		}
		return nil
	}
	info, err := l.n.DescribeTopic(topic, 10)
	kept := a.kept()
	size := 0
	for _, e := range kept {
		size += len(e.key) + len(e.value)
	}
	if err != nil || info.Start != a.start || info.End != a.end || info.Records != uint64(len(kept)) || info.Bytes != uint64(size) ||
		info.Settings.Own != a.retention || info.GroupsTotal != len(a.groups) {
		return fmt.Errorf("it is %+v %w, want %d to %d with %d records of %d bytes, %+v, %d groups", info, err, a.start, a.end, len(kept), size, a.retention, len(a.groups))
	}
	if err := l.checkRecords(topic, a); err != nil {
		return err
	}
	for group, next := range a.groups {
		g, err := l.n.DescribeGroup(topic, []byte(group))
		if want := a.next(max(next, a.start)); err != nil || g.Next != want {
			return fmt.Errorf("group %s is %+v %w, want %d", group, g, err, want)
		}
	}
	if len(a.ids) > 0 {
		return l.again(name, a)
	}
	return nil
}

// checkRecords reads all that is kept, and looks for what is not.
func (l *life) checkRecords(topic []byte, a *annals) error {
	left := a.kept()
	next := a.start
	var wrong error
	var sink sinkFunc = func(offset fact.Offset, key, value []byte, timeMS int64) {
		if wrong != nil {
			return
		}
		got := annal{offset, string(key), string(value), timeMS}
		if len(left) == 0 || got != left[0] {
			wrong = fmt.Errorf("record %d with key %s, %d bytes and time %d is not what comes next, %.1v", offset, key, len(value), timeMS, left)
			return
		}
		left = left[1:]
	}
	for wrong == nil && next < a.end {
		page, err := l.n.Fetch(&broker.Fetch{Topic: topic, Offset: next, Limit: 1 + l.rand.IntN(50)}, sink)
		if err != nil || page.Next <= next || page.Start != a.start || page.End != a.end {
			return fmt.Errorf("fetch at %d: %+v %w, want %d to %d", next, page, err, a.start, a.end)
		}
		next = page.Next
	}
	if wrong != nil || len(left) > 0 {
		return fmt.Errorf("%d records are missing at the end; %w", len(left), wrong)
	}
	ask := func(off fact.Offset) (gone *broker.OffsetGoneError) {
		_, err := l.n.Fetch(&broker.Fetch{Topic: topic, Offset: off, Limit: 1}, sink)
		errors.As(err, &gone)
		return gone
	}
	if gone := ask(a.start - 1); a.start > 0 && (gone == nil || gone.Start != a.start) {
		return fmt.Errorf("a fetch below the start, %d, says %+v", a.start, gone)
	}
	for _, g := range a.gaps {
		if gone := ask(g.From + 1); g.From >= a.start && (gone == nil || gone.RestoredEnd == nil || *gone.RestoredEnd != g.From) {
			return fmt.Errorf("a fetch of what a restore has lost from %d on says %+v", g.From, gone)
		}
	}
	at := time.Now().UnixMilli() - l.rand.Int64N(10_000)
	left = a.kept()
	for len(left) > 0 && left[0].timeMS < at {
		left = left[1:]
	}
	if _, err := l.n.Fetch(&broker.Fetch{Topic: topic, ByTime: true, FromMS: at, Limit: 2}, sink); err != nil || wrong != nil {
		return fmt.Errorf("a fetch by time from %d on: %w %w", at, err, wrong)
	}
	return nil
}
