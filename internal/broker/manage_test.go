package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

func TestConfigure(t *testing.T) {
	r := newRig(t, nil)
	r.Broker.retention = fact.Retention{MS: 1000, Records: 1 << 40}
	if _, err := r.ConfigureTopic(&Configure{Topic: []byte("a")}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatal(err)
	}
	r.publish("a", "", "one")
	for _, step := range []struct {
		c              Configure
		own, effective fact.Retention
	}{
		{Configure{}, fact.Retention{}, fact.Retention{MS: 1000, Bytes: -1, Records: 1 << 40}},
		{Configure{RetentionMS: limit(5e9), RetentionBytes: limit(7000)}, fact.Retention{MS: 5e9, Bytes: 7000}, fact.Retention{MS: 5e9, Bytes: 7000, Records: 1 << 40}},
		{Configure{RetentionMS: limit(fact.LimitNone)}, fact.Retention{MS: -1, Bytes: 7000}, fact.Retention{MS: -1, Bytes: 7000, Records: 1 << 40}},
		{Configure{RetentionMS: limit(fact.LimitDefault)}, fact.Retention{Bytes: 7000}, fact.Retention{MS: 1000, Bytes: 7000, Records: 1 << 40}},
		{Configure{Reset: true, RetentionRecords: limit(9)}, fact.Retention{Records: 9}, fact.Retention{MS: 1000, Bytes: -1, Records: 9}},
	} {
		step.c.Topic = []byte("a")
		got, err := r.ConfigureTopic(&step.c)
		if err != nil || got != (Settings{Own: step.own, Effective: step.effective}) {
			t.Fatalf("got %+v %v, want %+v", got, err, step)
		}
	}
	r.reopen()
	r.View(func(s *state.State) {
		if topic, _ := s.Topic([]byte("a")); topic.Retention != (fact.Retention{Records: 9}) {
			t.Errorf("got %+v", topic)
		}
	})
}

// A topic that was deleted is as if it had never been, but for its offsets and request ids.
func TestDeleteTopic(t *testing.T) {
	observer := &countingObserver{}
	r := newRig(t, nil)
	r.Broker.observer = observer
	a, g := []byte("a"), []byte("g")
	if _, err := r.DeleteTopic(a); !errors.Is(err, ErrTopicNotFound) {
		t.Fatal(err)
	}
	r.publish("a", "id", "one", "two")
	if _, err := r.CommitGroup(a, g, 1); err != nil {
		t.Fatal(err)
	}
	woken := make(chan error)
	go func() {
		_, err := r.Fetch(&Fetch{Topic: a, Offset: 2, Limit: 1, Wait: time.Hour}, &list{})
		woken <- err
	}()
	for r.waiters.count.Load() == 0 {
		if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if end, err := r.DeleteTopic(a); err != nil || end != 2 || !observer.retained {
		t.Fatal(end, err, observer.retained)
	}
	if err := <-woken; !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("who waits is told %v", err)
	}
	for range 2 {
		var fetched, grouped error
		_, fetched = r.Fetch(&Fetch{Topic: a, Limit: 1}, &list{})
		_, grouped = r.Fetch(&Fetch{Topic: a, Group: g, Limit: 1}, &list{})
		_, moved := r.CommitGroup(a, g, 2)
		_, retained := r.Retain(a, 2)
		_, deleted := r.DeleteTopic(a)
		_, group := r.DeleteGroup(a, g)
		_, configured := r.ConfigureTopic(&Configure{Topic: a})
		for i, err := range []error{fetched, grouped, moved, retained, deleted, group, configured} {
			if !errors.Is(err, ErrTopicNotFound) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		r.reopen()
	}
	// A late retry of what was deleted is one, and brings nothing back.
	if got := r.publish("a", "id", "one", "two"); got != (Published{Count: 2, Duplicate: true}) {
		t.Fatalf("got %+v", got)
	}
	if _, err := r.Publish(publishOf("a", "id", "other")); !errors.Is(err, ErrRequestIDConflict) {
		t.Fatal(err)
	}
	if got := r.publish("a", "", "three"); got.Base != 2 {
		t.Fatalf("an offset was used again: %+v", got)
	}
	var l list
	if page, err := r.Fetch(&Fetch{Topic: a, Group: g, Limit: 9}, &l); err != nil || !slices.Equal(l.records, []string{"2:three"}) || page.Start != 2 {
		t.Fatal(l.records, page, err)
	}
	var gone *OffsetGoneError
	if _, err := r.Fetch(&Fetch{Topic: a, Offset: 1, Limit: 1}, &l); !errors.As(err, &gone) || *gone != (OffsetGoneError{Start: 2}) {
		t.Fatal(err)
	}
}

func TestDeleteGroup(t *testing.T) {
	r := newRig(t, nil)
	a, g := []byte("a"), []byte("g")
	r.publish("a", "", "one", "two", "three")
	if _, err := r.DeleteGroup(a, g); !errors.Is(err, ErrGroupNotFound) {
		t.Fatal(err)
	}
	for _, at := range []fact.Offset{2, 0} {
		if _, err := r.CommitGroup(a, g, at); err != nil {
			t.Fatal(err)
		}
		if next, err := r.DeleteGroup(a, g); err != nil || next != max(at, 0) {
			t.Fatal(next, err)
		}
	}
	if _, err := r.CommitGroup(a, g, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Retain(a, 2); err != nil {
		t.Fatal(err)
	}
	if next, err := r.DeleteGroup(a, g); err != nil || next != 2 {
		t.Fatalf("it stood below the start: %d, %v", next, err)
	}
	if _, err := r.DeleteGroup(a, g); !errors.Is(err, ErrGroupNotFound) {
		t.Fatal(err)
	}
}

// startRetain retains in another goroutine.
func (r *rig) startRetain(topic string, start fact.Offset) chan outcome {
	c := make(chan outcome, 1)
	go func() {
		got, err := r.Retain([]byte(topic), start)
		c <- outcome{Published{Base: got}, err}
	}()
	return c
}

// A retain into what is in flight needs a look at a record that nobody can see yet. It waits, looks, and is exact.
func TestRetainLooksAgain(t *testing.T) {
	for _, fate := range []string{"committed", "lost", "suspended"} {
		t.Run(fate, func(t *testing.T) {
			r, role := newElectedRig(t, nil)
			first := r.start(publishOf("a", "", "one", "twenty", "three", "four"))
			role.reach(t, 3)
			r.inFlight(1)
			retain := r.startRetain("a", 2)
			r.inFlight(2)
			switch fate {
			case "lost":
				role.lose(t, 2, nil)
				wantUnavailable(t, answer(t, first).err, elsewhere, true)
				wantUnavailable(t, answer(t, retain).err, elsewhere, false)
				return
			case "suspended":
				r.Suspend(away)
				wantUnavailable(t, answer(t, first).err, away, true)
				wantUnavailable(t, answer(t, retain).err, away, false)
				return
			}
			r.Committed(3)
			wantDone(t, answer(t, first), Published{Count: 4})
			role.settle(t, r, 4)
			wantDone(t, answer(t, retain), Published{Base: 2})
			r.View(func(s *state.State) {
				if topic, _ := s.Topic([]byte("a")); topic.Start != 2 || topic.StartCum != 11 || topic.EndCum != 22 {
					t.Errorf("got %+v", topic)
				}
			})
		})
	}
}

// What one batch makes of a topic: deleted, back, with a group, without it, kept, configured, retained.
func TestManageInOneBatch(t *testing.T) {
	r, role, gate := gatedHeldRig(t)
	gate.enter, gate.leave = make(chan struct{}), make(chan error)
	first := r.start(publishOf("a", "", "one"))
	<-gate.enter
	gate.enter = nil
	calls := []struct {
		call func() (fact.Offset, error)
		want fact.Offset
		err  error
	}{
		{func() (fact.Offset, error) { return r.CommitGroup([]byte("a"), []byte("g"), 1) }, 1, nil},
		{func() (fact.Offset, error) { return r.DeleteTopic([]byte("a")) }, 1, nil},
		{func() (fact.Offset, error) { return r.CommitGroup([]byte("a"), []byte("g"), 1) }, 0, ErrTopicNotFound},
		{func() (fact.Offset, error) { return r.DeleteTopic([]byte("a")) }, 0, ErrTopicNotFound},
		{func() (fact.Offset, error) {
			done, err := r.Publish(publishOf("a", "", "two", "three"))
			return done.Base, err
		}, 1, nil},
		{func() (fact.Offset, error) { return r.DeleteGroup([]byte("a"), []byte("g")) }, 0, ErrGroupNotFound},
		{func() (fact.Offset, error) { return r.CommitGroup([]byte("a"), []byte("g"), 2) }, 2, nil},
		{func() (fact.Offset, error) { return r.Retain([]byte("a"), 3) }, 3, nil},
		{func() (fact.Offset, error) { return r.DeleteGroup([]byte("a"), []byte("g")) }, 3, nil},
	}
	var got []chan outcome
	for i, c := range calls {
		o := make(chan outcome, 1)
		got = append(got, o)
		go func() {
			n, err := c.call()
			o <- outcome{Published{Base: n}, err}
		}()
		r.queued(i + 1)
	}
	gate.leave <- nil
	role.next(t)
	last := role.next(t)
	r.Committed(last)
	if o := answer(t, first); o.err != nil {
		t.Fatal(o.err)
	}
	for i, c := range calls {
		if o := answer(t, got[i]); !errors.Is(o.err, c.err) || c.err == nil && o.done.Base != c.want {
			t.Errorf("call %d: %v %v, want %v %v", i, o.done.Base, o.err, c.want, c.err)
		}
	}
}

// A topic that is still in flight may have been applied, in part, since it was new, or deleted: what the fold has by then
// counts.
func TestFoldBelowWhatIsInFlight(t *testing.T) {
	r, role := newElectedRig(t, nil)
	do := func(call func() (fact.Offset, error)) chan outcome { // one entry, in flight
		t.Helper()
		last := role.log.Last() + 1
		c := make(chan outcome, 1)
		go func() {
			n, err := call()
			c <- outcome{Published{Base: n}, err}
		}()
		role.reach(t, last)
		r.queued(0)
		return c
	}
	a, g := []byte("a"), []byte("g")
	publish := func(id, value string) chan outcome {
		return do(func() (fact.Offset, error) {
			done, err := r.Publish(publishOf("a", id, value))
			return done.Base, err
		})
	}
	group := func(next fact.Offset) chan outcome {
		return do(func() (fact.Offset, error) { return r.CommitGroup(a, g, next) })
	}
	deleteGroup := func() chan outcome { return do(func() (fact.Offset, error) { return r.DeleteGroup(a, g) }) }
	want := func(c chan outcome, base fact.Offset) {
		t.Helper()
		wantDone(t, answer(t, c), Published{Base: base})
	}

	first, moved := publish("id", "one"), group(1) // entries 3 and 4
	second := publish("", "two")
	r.Committed(4)
	want(first, 0)
	want(moved, 1)
	again := r.start(publishOf("a", "id", "one"))
	r.inFlight(2)
	forgotten := deleteGroup()
	r.Committed(6)
	want(second, 1)
	wantDone(t, answer(t, again), Published{Count: 1, Duplicate: true})
	want(forgotten, 1)

	deleted := do(func() (fact.Offset, error) { return r.DeleteTopic(a) }) // entry 7
	back, moved := publish("", "three"), group(3)
	more := publish("", "four")
	r.Committed(9)
	want(deleted, 2)
	want(back, 2)
	want(moved, 3)
	forgotten = deleteGroup()
	r.Committed(11)
	want(more, 3)
	want(forgotten, 3)

	// Groups that are in the fold, or in flight, are gone with a topic that is deleted in flight.
	for _, applied := range []bool{true, false} {
		moved := group(4)
		if applied {
			r.Committed(role.log.Last())
			want(moved, 4)
		}
		deleted, back := do(func() (fact.Offset, error) { return r.DeleteTopic(a) }), publish("", "x")
		gone := make(chan outcome, 1)
		go func() {
			_, err := r.DeleteGroup(a, g)
			gone <- outcome{err: err}
		}()
		flying := 3
		if !applied {
			flying = 4
		}
		r.inFlight(flying)
		r.Committed(role.log.Last())
		if o := answer(t, gone); !errors.Is(o.err, ErrGroupNotFound) {
			t.Fatalf("applied: %v: got %v", applied, o.err)
		}
		if answer(t, deleted); !applied {
			want(moved, 4)
		}
		answer(t, back)
		moved = group(5)
		r.Committed(role.log.Last())
		want(moved, 5)
		forgotten = deleteGroup()
		r.Committed(role.log.Last())
		want(forgotten, 5)
	}
}

// Who frees room goes on to the last, other small facts while there is some, and large ones not at all.
func TestManageOnAFullDisk(t *testing.T) {
	for _, last := range []bool{false, true} {
		var role *fullRole
		r := newRig(t, func(r *rig) replication.Role {
			role = &fullRole{Role: newStandalone(r)}
			return role
		})
		keep := func(size int) error {
			var k Keep
			k.add("a", 0, 0, fact.KeptRecord{TimeMS: testStart.UnixMilli(), Record: fact.Record{Value: []byte("one")}})
			k.Bytes = size
			return r.Keep(&k)
		}
		a, g := []byte("a"), []byte("g")
		r.publish("a", "", "one", "two")
		if _, err := r.CommitGroup(a, g, 1); err != nil {
			t.Fatal(err)
		}
		role.full, role.last = true, last
		var small error
		if last {
			small = ErrStorageFull
		}
		check := func(name string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("the last of it: %v: %s: %v, want %v", last, name, err, want)
			}
		}
		check("publish", func() error { _, err := r.Publish(publishOf("a", "", "x")); return err }(), ErrStorageFull)
		check("small keep", keep(keepSmallMax), small)
		check("large keep", keep(keepSmallMax+1), ErrStorageFull)
		check("configure", func() error { _, err := r.ConfigureTopic(&Configure{Topic: a, Reset: true}); return err }(), small)
		check("delete group", func() error { _, err := r.DeleteGroup(a, g); return err }(), small)
		check("delete topic", func() error { _, err := r.DeleteTopic(a); return err }(), nil)
		role.full, role.last = false, false
		if done := r.publish("a", "", "three"); done.Base != 2 {
			t.Fatalf("got %+v", done)
		}
		before := r.Applied()
		if err := keep(1); err != nil || r.Applied() != before {
			t.Fatalf("below the start nothing is kept: %v", err)
		}
	}
}

// Of what is to be kept once more only what is still kept is logged, with the right count of bytes before it, and nothing of
// a topic that is gone.
func TestKeepClips(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "one", "twenty", "three")
	r.publish("b", "", "gone")
	if _, err := r.DeleteTopic([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Retain([]byte("a"), 1); err != nil {
		t.Fatal(err)
	}
	var k Keep
	for i, v := range []string{"one", "twenty", "three"} {
		k.add("a", fact.Offset(i), 0, fact.KeptRecord{TimeMS: testStart.UnixMilli(), Record: fact.Record{Key: []byte("k"), Value: []byte(v)}})
	}
	k.add("b", 0, 0, fact.KeptRecord{Record: fact.Record{Value: []byte("gone")}})
	k.add("never", 0, 0, fact.KeptRecord{Record: fact.Record{Value: []byte("there")}})
	before := r.log.Last()
	if err := r.Keep(&k); err != nil {
		t.Fatal(err)
	}
	c := r.log.NewCursor(before + 1)
	defer c.Close()
	f := new(wal.Frames)
	if _, err := c.Next(f, r.log.Last(), 1<<20); err != nil || f.Len() != 1 {
		t.Fatalf("%d entries, %v", f.Len(), err)
	}
	got, err := fact.DecodeKept(f.Payload(0))
	if err != nil || string(got.Topic) != "a" || got.Base != 1 || got.Cum != 4 || got.Count != 2 || len(k.Runs[0].Records) != 3 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// A small piece that is in one batch with a publish need not wait for room as that does.
func TestKeepBesideAPublishOnAFullDisk(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "one")
	publish, keep := r.ops.get(opPublish), r.ops.get(opKeep)
	publish.publish = publishOf("a", "", "two")
	keep.keep = new(Keep)
	keep.keep.add("a", 0, 0, fact.KeptRecord{Record: fact.Record{Value: []byte("one")}})
	for _, c := range []struct {
		take take
		want error
	}{{takeSmall, nil}, {takeFreeing, ErrStorageFull}} {
		b := &batch{ops: []*op{publish, keep}}
		r.decide(b, c.take) // nobody else decides
		if !errors.Is(publish.err, ErrStorageFull) || !errors.Is(keep.err, c.want) || c.want == nil && (b.frames.Len() != 1 || !b.frames.Reserve) {
			t.Errorf("%v, %v, %d entries", publish.err, keep.err, b.frames.Len())
		}
	}
}

// keptRig makes a rig with some segments, and returns what topic "a" holds: record i has the value values[i].
func keptRig(t *testing.T) (r *rig, values []string) {
	r = &rig{t: t, segmentBytes: 64 << 10, idle: 1e6 * time.Hour}
	var hooked *hookedLog
	r.reads = func(l Log) Log {
		hooked = &hookedLog{Log: l}
		return hooked
	}
	r.create(nil)
	for i := range 40 {
		v := fmt.Sprintf("%d%s", i, strings.Repeat("-", 5000))
		values = append(values, v)
		r.clock.Advance(time.Millisecond)
		r.publish("a", fmt.Sprint(i), v)
	}
	r.hooked = hooked
	return r, values
}

// hookedLog calls a function before a read, once.
type hookedLog struct {
	Log
	before func(segment entry.Index)
}

func (h *hookedLog) ReadAt(p []byte, segment entry.Index, off int64) (int, error) {
	if before := h.before; before != nil {
		h.before = nil
		before(segment)
	}
	return h.Log.ReadAt(p, segment, off)
}

// moveHead keeps the records of the oldest segment once more, and drops it.
func (r *rig) moveHead() {
	r.t.Helper()
	head := r.log.Segments()[0]
	k := &Keep{}
	if _, err := r.log.ScanSegment(head.First, func(e *entry.Entry, _ entry.Position) error {
		s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
		for off := s.Base; ok && err == nil; off++ {
			var record fact.KeptRecord
			if record, ok, err = s.Next(); ok {
				k.add(string(s.Topic), off, s.Cum, record) // one record in each
			}
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Keep(k); err != nil {
		r.t.Fatal(err)
	}
	if n, err := r.log.DropBefore(head.Last + 1); n != 1 || err != nil {
		r.t.Fatal(n, err)
	}
	if err := r.index.Drop(head.Last + 1); err != nil {
		r.t.Fatal(err)
	}
}

// Records that are moved to the end of the log stay what they are, also for a reader that looks at where they were.
func TestReadWhatWasKept(t *testing.T) {
	for _, during := range []bool{false, true} {
		r, values := keptRig(t)
		move := func() {
			for range 2 {
				r.moveHead()
			}
		}
		if during {
			r.hooked.before = func(entry.Index) { move() }
		} else {
			move()
		}
		var got timed
		for from := fact.Offset(0); int(from) < len(values); {
			page, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: from, Limit: 7}, &got)
			if err != nil || page.Start != 0 {
				t.Fatalf("from %d: %+v, %v", from, page, err)
			}
			from = page.Next
		}
		for i, v := range values {
			if want := fmt.Sprintf("%d:%s@%d", i, v, testStart.UnixMilli()+int64(i)+1); got.records[i] != want {
				t.Fatalf("got %.30s, want %.30s", got.records[i], want)
			}
			if done := r.publish("a", fmt.Sprint(i), v); done != (Published{Base: fact.Offset(i), Count: 1, Duplicate: true}) {
				t.Fatalf("got %+v", done)
			}
		}
		if end := r.log.Segments()[0].First; end == 1 {
			t.Fatal("nothing was dropped")
		}
	}
}

// A topic that is retained or deleted while it is read, and its segments dropped, is not damaged.
func TestDroppedWhileReading(t *testing.T) {
	for name, drop := range map[string]func(*rig) error{
		"retained": func(r *rig) error { _, err := r.Retain([]byte("a"), 35); return err },
		"deleted":  func(r *rig) error { _, err := r.DeleteTopic([]byte("a")); return err },
	} {
		for _, indexed := range []bool{false, true} {
			r, _ := keptRig(t)
			r.hooked.before = func(entry.Index) {
				if err := drop(r); err != nil {
					t.Error(err)
				}
				active := r.log.Segments()[len(r.log.Segments())-1].First
				if _, err := r.log.DropBefore(active); err != nil {
					t.Error(err)
				}
				if indexed {
					if err := r.index.Drop(active); err != nil {
						t.Error(err)
					}
				}
			}
			_, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 3, Limit: 7}, &list{})
			var gone *OffsetGoneError
			if name == "retained" && (!errors.As(err, &gone) || gone.Start != 35) || name == "deleted" && !errors.Is(err, ErrTopicNotFound) {
				t.Errorf("%s, %v: %v", name, indexed, err)
			}
		}
	}
}

// Where a restore jumped over offsets there is no damage, and nothing that was never there is served.
func TestGap(t *testing.T) {
	r, role := newElectedRig(t, nil)
	const floor = fact.RestoreStep
	f := new(wal.Frames)
	at := testStart.UnixMilli()
	for i := range fact.Offset(3) {
		appended(f, i, uint64(4*i), "", fmt.Sprintf("%03d", i))
	}
	f.End(fact.AppendGroupMoved(f.Begin(fact.KindGroupMoved, at), []byte("a"), []byte("g"), 3))
	f.End(fact.AppendRestored(f.Begin(fact.KindRestored, at), floor))
	role.lose(t, 2, f)
	role.elect(t, r)
	a, g := []byte("a"), []byte("g")
	var l list
	read := func(q Fetch, want []string, next fact.Offset) {
		t.Helper()
		l.records, q.Topic, q.Limit = nil, a, 10
		page, err := r.Fetch(&q, &l)
		if err != nil || !slices.Equal(l.records, want) || page.Next != next {
			t.Fatalf("got %q %+v %v, want %q", l.records, page, err, want)
		}
	}
	read(Fetch{Offset: 3}, nil, floor)
	read(Fetch{Offset: 1}, []string{"1:001", "2:002"}, floor)
	next := role.log.Last() + 1
	publish := r.start(publishOf("a", "", "new"))
	role.settle(t, r, next)
	wantDone(t, answer(t, publish), Published{Base: floor, Count: 1})
	added := fmt.Sprintf("%d:new", floor)
	read(Fetch{Offset: 3}, []string{added}, floor+1)
	read(Fetch{Offset: 2}, []string{"2:002", added}, floor+1)
	read(Fetch{Group: g}, []string{added}, floor+1)
	for _, off := range []fact.Offset{4, floor - 1} {
		var gone *OffsetGoneError
		var outside *OffsetRangeError
		if _, err := r.Fetch(&Fetch{Topic: a, Offset: off, Limit: 1}, &l); !errors.As(err, &gone) || gone.Start != floor || gone.RestoredEnd == nil || *gone.RestoredEnd != 3 {
			t.Errorf("fetch at %d: %v", off, err)
		}
		if _, err := r.CommitGroup(a, g, off); !errors.As(err, &outside) {
			t.Errorf("commit at %d: %v", off, err)
		}
		if _, err := r.Retain(a, off); !errors.As(err, &outside) {
			t.Errorf("retain at %d: %v", off, err)
		}
	}
	next = role.log.Last() + 1
	group := r.startGroup("a", "g", 3)
	role.settle(t, r, next)
	wantDone(t, answer(t, group), Published{})
	r.View(func(s *state.State) {
		topic, _ := s.Topic(a)
		if got, _ := s.Group(topic.ID, g); got.Next != floor {
			t.Errorf("the group is at %d", got.Next)
		}
	})
	next = role.log.Last() + 1
	retain := r.startRetain("a", 3)
	role.settle(t, r, next)
	wantDone(t, answer(t, retain), Published{Base: floor})
	r.View(func(s *state.State) {
		if topic, _ := s.Topic(a); topic.Start != floor || topic.StartCum != 12 || topic.EndCum != 16 || len(topic.Gaps) != 0 {
			t.Errorf("got %+v", topic)
		}
	})
}

// Damage before a gap is named up to the gap, and reading goes on behind it.
func TestDamageAtAGap(t *testing.T) {
	r, role := newElectedRig(t, nil)
	const floor = fact.RestoreStep
	f := new(wal.Frames)
	for i := range fact.Offset(3) {
		appended(f, i, uint64(4*i), "", fmt.Sprintf("%03d", i))
	}
	f.End(fact.AppendRestored(f.Begin(fact.KindRestored, testStart.UnixMilli()), floor))
	appended(f, floor, 12, "", "new")
	role.lose(t, 2, f)
	role.elect(t, r)
	run, err := r.index.Find([]byte("a"), 2)
	if err != nil {
		t.Fatal(err)
	}
	damaged := &damagedLog{Log: r.Broker.log, from: run.End - 8, to: run.End}
	r.Broker.log = damaged
	var corrupt *CorruptError
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 9}, &list{}); !errors.As(err, &corrupt) || corrupt.First != 2 || corrupt.Last != 2 {
		t.Fatalf("got %v", err)
	}
	if got, _ := r.fetch("a", corrupt.Last+1, 9); !slices.Equal(got, []string{fmt.Sprintf("%d:new", floor)}) {
		t.Fatalf("got %q", got)
	}

	// Where a scan of the segment has not found the frame, the index does not have it.
	x := index.New(index.Config{FS: r.fs, LogID: entry.LogID{1}})
	x.Add("a", 0, 1, f.Position(0))
	x.Add("a", floor, 1, f.Position(4))
	r.Broker.index = x
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 1, Limit: 9}, &list{}); !errors.As(err, &corrupt) || corrupt.First != 1 || corrupt.Last != 2 {
		t.Fatalf("got %v", err)
	}
}

// Damage to what has been kept once more elsewhere hides nothing, and is not named.
func TestDamageToWhatWasKept(t *testing.T) {
	for _, first := range []fact.Offset{2, 3} { // damaged, up to record 5
		r, values := keptRig(t)
		head := r.log.Segments()[0].First
		var at []int64 // of each record
		var k Keep
		if _, err := r.log.ScanSegment(head, func(e *entry.Entry, p entry.Position) error {
			if s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload); ok && err == nil {
				at = append(at, p.Offset)
				if record, _, _ := s.Next(); s.Base >= 3 && s.Base <= 5 {
					k.add("a", s.Base, s.Cum, record)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.Keep(&k); err != nil {
			t.Fatal(err)
		}
		if run, err := r.index.Find([]byte("a"), 1); err != nil || run.First != 0 || run.Last != 2 || run.End <= at[4] {
			t.Fatalf("the test is not what it says: %+v, %v", run, err)
		}
		r.Broker.log = &damagedLog{Log: r.Broker.log, segment: head, from: at[first], to: at[6]}
		var corrupt *CorruptError
		if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 1}, &list{}); first == 2 && (!errors.As(err, &corrupt) || corrupt.First != 2 || corrupt.Last != 2) {
			t.Fatalf("got %v", err)
		}
		from := fact.Offset(0)
		if first == 2 {
			from = 3
		}
		if got, _ := r.fetch("a", from, 8); len(got) != 8 || got[5] != fmt.Sprintf("%d:%s", from+5, values[from+5]) {
			t.Fatalf("got %d records", len(got))
		}
	}
}

// damagedLog has wrong bytes at some positions, of one segment or of all.
type damagedLog struct {
	Log
	segment  entry.Index // 0 for all
	from, to int64
}

func (d *damagedLog) ReadAt(p []byte, segment entry.Index, off int64) (int, error) {
	n, err := d.Log.ReadAt(p, segment, off)
	if d.segment != 0 && d.segment != segment {
		return n, err
	}
	for i := max(d.from, off); i < min(d.to, off+int64(n)); i++ {
		p[i-off] ^= 0xff
	}
	return n, err
}

func TestFetchByTime(t *testing.T) {
	r := newRig(t, nil)
	at := testStart.UnixMilli()
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), ByTime: true, Limit: 1}, &list{}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatal(err)
	}
	for i := range 5 {
		r.publish("a", "", fmt.Sprint(i))
		r.clock.Advance(10 * time.Millisecond)
	}
	for ms, want := range map[int64]string{-1: "0:0", 0: "0:0", at: "0:0", at + 1: "1:1", at + 10: "1:1", at + 39: "4:4", at + 40: "4:4"} {
		var l list
		page, err := r.Fetch(&Fetch{Topic: []byte("a"), ByTime: true, FromMS: ms, Limit: 1}, &l)
		if err != nil || !slices.Equal(l.records, []string{want}) || page.End != 5 {
			t.Errorf("from %d: %q %+v %v, want %q", ms-at, l.records, page, err, want)
		}
	}
	var l list
	later := Fetch{Topic: []byte("a"), ByTime: true, FromMS: at + 41, Limit: 1}
	if page, err := r.Fetch(&later, &l); err != nil || page.Records != 0 || page.Next != 5 {
		t.Fatal(page, err)
	}
	woken := make(chan error)
	later.Wait, later.FromMS = time.Hour, at+1e6
	go func() {
		_, err := r.Fetch(&later, &l)
		woken <- err
	}()
	for r.waiters.count.Load() == 0 {
		if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	r.publish("a", "", "next")
	if err := <-woken; err != nil || !slices.Equal(l.records, []string{"5:next"}) {
		t.Fatal(l.records, err)
	}
}

// Who waits for a record of a topic that is deleted is told that there is none once the lead is confirmed: the topic may have
// come back elsewhere.
func TestDeletedWhileWaitingIsConfirmed(t *testing.T) {
	r, role := newReadRig(t, nil)
	told := make(chan error, 1)
	go func() {
		_, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 1, Wait: time.Hour}, &list{})
		told <- err
	}()
	for r.waiters.count.Load() == 0 {
		if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := r.DeleteTopic([]byte("a"))
		deleted <- err
	}()
	role.settle(t, r, 5)
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	if err := <-told; !errors.Is(err, ErrTopicNotFound) {
		t.Fatal(err)
	}
	role.mu.Lock()
	defer role.mu.Unlock()
	if role.confirms != 1 {
		t.Fatalf("confirmed %d times", role.confirms)
	}
}
