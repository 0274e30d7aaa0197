package broker

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

func TestPublishAndFetch(t *testing.T) {
	r := newRig(t, nil)
	if got := r.publish("a", "", "one"); got != (Published{Base: 0, Count: 1}) {
		t.Fatalf("got %+v", got)
	}
	if got := r.publish("b", "", "x"); got.Base != 0 {
		t.Fatalf("offsets of another topic: %+v", got)
	}
	if got := r.publish("a", "", "two", "three"); got != (Published{Base: 1, Count: 2}) {
		t.Fatalf("got %+v", got)
	}
	for round := range 2 {
		got, page := r.fetch("a", 0, 10)
		if want := []string{"0:one", "1:two", "2:three"}; !slices.Equal(got, want) {
			t.Fatalf("round %d: got %v, want %v", round, got, want)
		}
		if page != (Page{Next: 3, Start: 0, End: 3, Records: 3}) {
			t.Fatalf("page %+v", page)
		}
		got, page = r.fetch("a", 1, 1)
		if !slices.Equal(got, []string{"1:two"}) || page.Next != 2 {
			t.Fatalf("from the middle of a batch: %v %+v", got, page)
		}
		if got, page = r.fetch("a", 9, 1); len(got) != 0 || page.Next != 3 {
			t.Fatalf("past the end: %v %+v", got, page)
		}
		r.reopen()
	}
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "zero")
	first := r.publish("a", "id", "one", "two")
	for range 2 {
		again := r.publish("a", "id", "one", "two")
		if want := (Published{Base: first.Base, Count: 2, Duplicate: true}); again != want {
			t.Fatalf("got %+v, want %+v", again, want)
		}
		for _, other := range []*Publish{publishOf("a", "id", "one"), publishOf("a", "id", "one", "TWO"), publishOf("a", "id", "onet", "wo")} {
			if _, err := r.Publish(other); !errors.Is(err, ErrRequestIDConflict) {
				t.Fatalf("other records: %v", err)
			}
		}
		if got := r.publish("b", "id", "of another topic"); got.Base != 0 {
			t.Fatalf("got %+v", got)
		}
		r.reopen()
	}
	if got, _ := r.fetch("a", 0, 10); len(got) != 3 {
		t.Fatalf("got %v", got)
	}
	r.clock.Advance(time.Hour + time.Second)
	if got := r.publish("a", "id", "much later"); got != (Published{Base: 3, Count: 1}) {
		t.Fatalf("after the window: %+v", got)
	}
}

// A request id is forgotten by the time in the log, which goes on where the clock of a node is set back: another node, whose
// clock is right, forgets it at the same entry.
func TestRequestIDsGoByTheTimeOfTheLog(t *testing.T) {
	r := newRig(t, nil)
	const ids = 40 // more than leave the memory with one entry
	for i := range ids {
		r.publish("a", fmt.Sprint(i), "old")
	}
	r.clock.Advance(time.Hour + time.Second)
	r.publish("a", "", "late")
	if n := r.state.RequestIDs(); n == 0 {
		t.Fatal("no request id is in memory: this tests nothing")
	}
	r.clock.Step(-time.Hour)
	last := fmt.Sprint(ids - 1)
	if got := r.publish("a", last, "new"); got != (Published{Base: ids + 1, Count: 1}) {
		t.Fatalf("after the window, with a clock that was set back: %+v", got)
	}
	if got, want := r.publish("a", last, "new"), (Published{Base: ids + 1, Count: 1, Duplicate: true}); got != want {
		t.Fatalf("a retry: got %+v, want %+v", got, want)
	}
}

// Where the index leads to a good frame of another topic, that is damage, and nothing of it is handed out.
func TestFrameOfAnotherTopicIsDamage(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "of a")
	r.publish("b", "", "of b")
	var f wal.Frames
	c := r.log.NewCursor(1)
	defer c.Close()
	if _, err := c.Next(&f, r.log.Last(), 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"b", "a"} {
		var run index.Run
		for i := range f.Len() {
			e := f.Entry(i)
			if s, ok, _ := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload); ok && string(s.Topic) == topic {
				p := f.Position(i)
				run = index.Run{Segment: p.Segment, Pos: p.Offset, End: p.Offset + p.Length}
			}
		}
		var l list
		one := &reader{log: r.log, topic: "a", sink: &l, end: 1, left: 10, bytesMax: 1 << 20, large: r.large}
		err := one.frames(run)
		if damaged := errors.As(err, new(*CorruptError)); damaged != (topic != "a") || len(l.records) > 0 == damaged {
			t.Errorf("a frame of topic %s is read for topic a: %v, %v", topic, l.records, err)
		}
	}
}

func TestGroupsAndRetain(t *testing.T) {
	r := newRig(t, nil)
	topic, group := []byte("a"), []byte("g")
	if _, err := r.CommitGroup(topic, group, 0); !errors.Is(err, ErrTopicNotFound) {
		t.Fatal(err)
	}
	for i := range 10 {
		r.publish("a", "", fmt.Sprint(i))
	}
	read := func(want string, next fact.Offset) {
		t.Helper()
		var l list
		page, err := r.Fetch(&Fetch{Topic: topic, Group: group, Limit: 1}, &l)
		if err != nil || !slices.Equal(l.records, []string{want}) || page.Next != next {
			t.Fatalf("got %v %+v %v, want %s", l.records, page, err, want)
		}
	}
	read("0:0", 1)
	read("0:0", 1)
	if next, err := r.CommitGroup(topic, group, 4); err != nil || next != 4 {
		t.Fatal(next, err)
	}
	read("4:4", 5)
	var out *OffsetRangeError
	if _, err := r.CommitGroup(topic, group, 11); !errors.As(err, &out) || *out != (OffsetRangeError{0, 10}) {
		t.Fatal(err)
	}
	if start, err := r.Retain(topic, 6); err != nil || start != 6 {
		t.Fatal(start, err)
	}
	read("6:6", 7)
	var gone *OffsetGoneError
	if _, err := r.Fetch(&Fetch{Topic: topic, Offset: 5, Limit: 1}, &list{}); !errors.As(err, &gone) || gone.Start != 6 {
		t.Fatal(err)
	}
	if _, err := r.Retain(topic, 5); !errors.As(err, &out) {
		t.Fatal(err)
	}
	if _, err := r.Retain(topic, 6); err != nil {
		t.Fatalf("the current start is allowed: %v", err)
	}
	if _, err := r.CommitGroup(topic, group, 5); !errors.As(err, &out) {
		t.Fatal(err)
	}
	r.reopen()
	read("6:6", 7)
}

// Many publishers at once: dense offsets, each publisher's records in its order, one outcome per request id.
func TestConcurrentPublishers(t *testing.T) {
	r := newRig(t, nil)
	const publishers, each = 32, 50
	var wg sync.WaitGroup
	offsets := make([][]fact.Offset, publishers)
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				req := publishOf("a", fmt.Sprintf("%d-%d", p, i), fmt.Sprintf("%d-%d", p, i))
				done, err := r.Publish(req)
				again, err2 := r.Publish(req)
				if err != nil || err2 != nil || again.Base != done.Base || !again.Duplicate {
					t.Errorf("%+v %v, again %+v %v", done, err, again, err2)
					return
				}
				offsets[p] = append(offsets[p], done.Base)
			}
		})
	}
	wg.Wait()
	seen := map[fact.Offset]bool{}
	for p := range offsets {
		if !slices.IsSorted(offsets[p]) {
			t.Fatalf("publisher %d out of order: %v", p, offsets[p])
		}
		for i, o := range offsets[p] {
			got, _ := r.fetch("a", o, 1)
			if want := fmt.Sprintf("%d:%d-%d", o, p, i); seen[o] || !slices.Equal(got, []string{want}) {
				t.Fatalf("got %v, want %s", got, want)
			}
			seen[o] = true
		}
	}
	if _, page := r.fetch("a", 0, 1); page.End != publishers*each {
		t.Fatalf("end is %d", page.End)
	}
}

// G2: nothing is visible before it is committed, and a retry waits for the outcome of what it repeats.
func TestNothingVisibleBeforeCommit(t *testing.T) {
	r, role := newHeldRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	at := role.next(t)
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Limit: 1}, &list{}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("visible before it is committed: %v", err)
	}
	second := r.start(publishOf("a", "", "two")) // decided on top of the first
	at2 := role.next(t)
	conflict := r.start(publishOf("a", "id", "other"))
	retry := r.start(publishOf("a", "id", "one"))
	select {
	case o := <-retry:
		t.Fatalf("a retry was answered before the outcome is known: %+v", o)
	case o := <-second:
		t.Fatalf("answered before it is committed: %+v", o)
	case <-time.After(20 * time.Millisecond): // time for a wrong answer to show
	}
	r.Committed(at)
	if o := <-first; o.err != nil || o.done.Base != 0 {
		t.Fatalf("%+v", o)
	}
	if _, page := r.fetch("a", 0, 10); page.End != 1 {
		t.Fatalf("%+v", page)
	}
	r.Committed(at2)
	if o := <-second; o.err != nil || o.done.Base != 1 {
		t.Fatalf("%+v", o)
	}
	if o := <-retry; o.err != nil || o.done != (Published{Base: 0, Count: 1, Duplicate: true}) {
		t.Fatalf("%+v", o)
	}
	if o := <-conflict; !errors.Is(o.err, ErrRequestIDConflict) {
		t.Fatalf("%+v", o)
	}
	// A role that fails later: what is in flight is unknown, what comes after is refused.
	third := r.start(publishOf("a", "", "three"))
	role.next(t)
	r.Failed(errors.New("cut off"))
	var un *UnavailableError
	if o := <-third; !errors.As(o.err, &un) || !un.Unknown {
		t.Fatalf("%+v", o)
	}
	if _, err := r.Publish(publishOf("a", "", "four")); !errors.As(err, &un) || un.Unknown {
		t.Fatal(err)
	}
	// What the third attempt would have done may be in the log: a retry of it, or of any request, is in doubt.
	if _, err := r.Publish(publishOf("a", "an id", "five")); !errors.As(err, &un) || !un.Unknown {
		t.Fatal(err)
	}
	if got, _ := r.fetch("a", 0, 10); len(got) != 2 {
		t.Fatalf("reads go on: %v", got)
	}
}

// errRole fails once, after n good proposals.
type errRole struct {
	replication.Role
	good int
	err  error
}

func (e *errRole) Propose(f *wal.Frames) error {
	if e.good--; e.good < 0 {
		return e.err
	}
	return e.Role.Propose(f)
}

func TestFailedProposeIsUnknownAndFinal(t *testing.T) {
	var role *errRole
	r := newRig(t, func(r *rig) replication.Role {
		role = &errRole{Role: newStandalone(r), good: 2, err: syscall.EIO}
		return role
	})
	r.publish("a", "", "one")
	var un *UnavailableError
	if _, err := r.Publish(publishOf("a", "", "two")); !errors.As(err, &un) || !un.Unknown {
		t.Fatalf("got %v", err)
	}
	role.good = 100 // the disk seems to work again: that must not matter
	if _, err := r.Publish(publishOf("a", "", "three")); !errors.As(err, &un) || un.Unknown {
		t.Fatalf("got %v", err)
	}
	if _, err := r.CommitGroup([]byte("a"), []byte("g"), 1); !errors.As(err, &un) {
		t.Fatalf("got %v", err)
	}
	if r.Err() == nil {
		t.Fatal("no error is kept")
	}
	if got, page := r.fetch("a", 0, 10); len(got) != 1 || page.End != 1 {
		t.Fatalf("reads go on: %v", got)
	}
}

// What comes while Failed is at work has not been proposed, and is told so: all but a request id, of which an attempt before
// may have been.
func TestWhileItFails(t *testing.T) {
	for id, unknown := range map[string]bool{"": false, "an id": true} {
		r := newRig(t, nil)
		before := r.log.Last()
		r.flightMu.Lock()
		r.dead = syscall.EIO
		r.flightMu.Unlock()
		var un *UnavailableError
		if _, err := r.Publish(publishOf("a", id, "one")); !errors.As(err, &un) || un.Unknown != unknown {
			t.Errorf("id %q: %v", id, err)
		}
		if r.Err() == nil {
			t.Errorf("id %q: no error is kept", id)
		}
		if r.log.Last() != before {
			t.Errorf("id %q: it is in the log", id)
		}
	}
}

// failing is a role that has failed: what it is asked meanwhile is not proposed. fails is called within Propose.
type failing struct {
	replication.Role
	fails func()
}

func (f *failing) Propose(frames *wal.Frames) error {
	if f.fails == nil {
		return f.Role.Propose(frames)
	}
	f.fails()
	return fmt.Errorf("%w: %w", replication.ErrFailedBefore, syscall.EIO)
}

// A batch is with the role, which has failed by itself, when another part of the node fails: nothing of it is proposed, and that
// is what it is told, whether Failed has settled it then or has only taken it out.
func TestFailsTwice(t *testing.T) {
	for name, settled := range map[string]bool{"settled": true, "taken out": false} {
		for id, unknown := range map[string]bool{"": false, "an id": true} {
			var role *failing
			r := newRig(t, func(r *rig) replication.Role {
				role = &failing{Role: newStandalone(r)}
				return role
			})
			before := r.log.Last()
			late := make(chan struct{})
			role.fails = func() {
				if settled {
					r.Failed(syscall.ENOENT)
					close(late)
					return
				}
				r.flightMu.Lock() // as Failed does first
				flight := r.flight
				r.flight, r.dead = nil, syscall.ENOENT
				r.flightMu.Unlock()
				go func() { // awaited below
					defer close(late)
					for handedOn := false; !handedOn; runtime.Gosched() {
						r.flightMu.Lock()
						handedOn = flight[0].handedOn
						r.flightMu.Unlock()
					}
					for _, t := range flight {
						r.settle(t, &UnavailableError{Reason: syscall.ENOENT.Error(), Unknown: true})
					}
				}()
			}
			var un *UnavailableError
			if _, err := r.Publish(publishOf("a", id, "one")); !errors.As(err, &un) || un.Unknown != unknown {
				t.Errorf("%s, id %q: %v", name, id, err)
			}
			<-late
			if r.log.Last() != before {
				t.Errorf("%s, id %q: it is in the log", name, id)
			}
		}
	}
}

// fullRole answers ErrFull to whatever may not use the reserve, or only the last of it.
type fullRole struct {
	replication.Role
	full, last bool
}

func (f *fullRole) Propose(frames *wal.Frames) error {
	if f.full && !frames.Reserve || f.last && !frames.Frees {
		return wal.ErrFull
	}
	return f.Role.Propose(frames)
}

func TestFullDisk(t *testing.T) {
	var role *fullRole
	r := newRig(t, func(r *rig) replication.Role {
		role = &fullRole{Role: newStandalone(r)}
		return role
	})
	r.publish("a", "id", "one")
	role.full = true
	if _, err := r.Publish(publishOf("a", "", "two")); !errors.Is(err, ErrStorageFull) {
		t.Fatalf("got %v", err)
	}
	if again := r.publish("a", "id", "one"); !again.Duplicate {
		t.Fatalf("a retry needs no room: %+v", again)
	}
	if _, err := r.CommitGroup([]byte("a"), []byte("g"), 1); err != nil {
		t.Fatalf("small facts use the reserve: %v", err)
	}
	if _, err := r.Retain([]byte("a"), 1); err != nil {
		t.Fatal(err)
	}
	role.full = false
	if got := r.publish("a", "", "three"); got.Base != 1 {
		t.Fatalf("a refused publish took an offset: %+v", got)
	}
}

func TestLongPoll(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "one")
	type outcome struct {
		records []string
		page    Page
		err     error
	}
	wait := func(q *Fetch) chan outcome {
		c := make(chan outcome, 1)
		go func() {
			var l list
			page, err := r.Fetch(q, &l)
			c <- outcome{l.records, page, err}
		}()
		for r.waiters.count.Load() == 0 {
			if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
				t.Error(err)
				return c
			}
		}
		return c
	}
	c := wait(&Fetch{Topic: []byte("a"), Offset: 1, Limit: 10, Wait: time.Minute})
	r.publish("b", "", "of another topic")
	r.publish("a", "", "two")
	if o := <-c; o.err != nil || !slices.Equal(o.records, []string{"1:two"}) {
		t.Fatalf("%+v", o)
	}
	gone := make(chan struct{})
	alive := func() bool {
		select {
		case <-gone:
			return false
		default:
			return true
		}
	}
	c = wait(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 10, Wait: time.Hour, Alive: alive})
	close(gone)
	for done := false; !done; {
		r.clock.Advance(aliveEvery)
		select {
		case o := <-c:
			done = true
			if o.err != nil || len(o.records) > 0 || o.page.Next != 2 {
				t.Fatalf("%+v", o)
			}
		case <-time.After(time.Millisecond):
		}
	}
	c = wait(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 10, Wait: time.Hour})
	r.EndWaits()
	if o := <-c; o.err != nil || o.page.Next != 2 {
		t.Fatalf("%+v", o)
	}
	if n := r.waiters.count.Load(); n != 0 {
		t.Fatalf("%d waiters left", n)
	}
}

// gatedRole lets a test decide when and how a proposal ends.
type gatedRole struct {
	replication.Role
	enter chan struct{} // sent to when Propose begins; nil lets everything pass
	leave chan error
}

func (g *gatedRole) Propose(f *wal.Frames) error {
	if g.enter == nil {
		return g.Role.Propose(f)
	}
	g.enter <- struct{}{}
	if err := <-g.leave; err != nil {
		return err
	}
	return g.Role.Propose(f)
}

// Somebody else reports a failure of the disk while a proposal fails, too. One of them answers. (The race
// detector is what makes this test sharp.)
func TestFailureReportedWhileProposing(t *testing.T) {
	for range 50 {
		var role *gatedRole
		r := newRig(t, func(r *rig) replication.Role {
			role = &gatedRole{Role: newStandalone(r)}
			return role
		})
		role.enter, role.leave = make(chan struct{}), make(chan error)
		var wg sync.WaitGroup
		for p := range 8 {
			wg.Go(func() {
				var un *UnavailableError
				if _, err := r.Publish(publishOf("a", "", fmt.Sprint(p))); !errors.As(err, &un) {
					t.Errorf("got %v", err)
				}
			})
		}
		<-role.enter
		wg.Go(func() { r.Failed(errors.New("the keeper met an error")) })
		wg.Go(func() { role.leave <- syscall.EIO })
		wg.Wait()
		role.enter = nil
	}
}

// A log that cannot be read now is not a damaged one: no client may be told to skip records for it.
func TestReadErrorIsNotDamage(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "one", "two")
	if err := r.log.Close(); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	var un *UnavailableError
	_, err := r.Fetch(&Fetch{Topic: []byte("a"), Limit: 1}, &list{})
	if errors.As(err, &corrupt) || !errors.As(err, &un) {
		t.Fatalf("got %v", err)
	}
}

// Groups in the last of the reserve are refused before retains are.
func TestLastOfTheReserveIsForRetains(t *testing.T) {
	var role *fullRole
	r := newRig(t, func(r *rig) replication.Role {
		role = &fullRole{Role: newStandalone(r)}
		return role
	})
	r.publish("a", "", "one", "two")
	role.full, role.last = true, true
	if _, err := r.CommitGroup([]byte("a"), []byte("g"), 1); !errors.Is(err, ErrStorageFull) {
		t.Fatalf("got %v", err)
	}
	if _, err := r.Retain([]byte("a"), 1); err != nil {
		t.Fatal(err)
	}
}
