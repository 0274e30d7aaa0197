package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const elsewhere = "another node leads"

// electedRole is the role of a node of a cluster, whose other nodes are the test: they take the lead and give it back.
type electedRole struct {
	log     *wal.Log
	applier replication.Applier

	mu       sync.Mutex // guards the fields below and the log's tail
	term     entry.Term
	leads    bool // as this node knows
	resumed  bool
	deposed  bool // another node leads, which this node may not know yet
	last     entry.Index
	confirms int // calls of Confirm

	enter chan struct{} // if not nil, Propose sends here first, and then
	leave chan struct{} // receives here
}

func (e *electedRole) Start() error { return nil }

func (e *electedRole) Propose(f *wal.Frames) error {
	if e.enter != nil {
		e.enter <- struct{}{}
		<-e.leave
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads || !e.resumed {
		return &replication.UnavailableError{Reason: elsewhere}
	}
	first, err := e.log.Append(f, e.term, 0)
	if err != nil {
		return err
	}
	e.last = first + entry.Index(f.Len()) - 1
	return e.log.Sync()
}

func (e *electedRole) Resume() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads {
		return &replication.UnavailableError{Reason: elsewhere}
	}
	e.resumed = true
	return nil
}

func (e *electedRole) MayAnswer() bool { return true }

func (e *electedRole) Confirm(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.confirms++
	if !e.leads || e.deposed {
		return &replication.UnavailableError{Reason: elsewhere}
	}
	return nil
}

func (e *electedRole) Status() replication.Status { return replication.Status{Term: e.term} }
func (e *electedRole) Close() error               { return nil }

// add appends entries of the term, decided by whoever leads. Callers hold mu.
func (e *electedRole) add(t testing.TB, f *wal.Frames) {
	if _, err := e.log.Append(f, e.term, 0); err != nil {
		t.Error(err)
	}
	if err := e.log.Sync(); err != nil {
		t.Error(err)
	}
	e.last = e.log.Last()
}

// marker adds the first entry of a term. Callers hold mu.
func (e *electedRole) marker(t testing.TB, atMS int64) {
	f := new(wal.Frames)
	f.End(f.Begin(fact.KindMarker, atMS))
	e.add(t, f)
}

// elect makes the node lead a new term.
func (e *electedRole) elect(t testing.TB, r *rig) {
	e.mu.Lock()
	e.term++
	e.deposed = false
	e.marker(t, r.clock.Now().UnixMilli())
	e.mu.Unlock()
	e.catchUp(t, r)
	e.mu.Lock()
	e.leads = true
	e.mu.Unlock()
	e.applier.Lead()
}

// lose takes the lead away: what is behind entry last is cut, and f, if not nil, is what the next leader decided.
func (e *electedRole) lose(t testing.TB, last entry.Index, f *wal.Frames) {
	e.mu.Lock()
	e.leads, e.resumed, e.deposed = false, false, true
	e.mu.Unlock()
	e.applier.Follow(elsewhere)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.log.Truncate(last); err != nil {
		t.Error(err)
	}
	e.term++
	if f != nil {
		e.add(t, f)
	}
}

// catchUp applies all that is in the log.
func (e *electedRole) catchUp(t testing.TB, r *rig) {
	c := e.log.NewCursor(r.Applied() + 1)
	defer c.Close()
	f := new(wal.Frames)
	for {
		if _, err := c.Next(f, e.log.Last(), 1<<10); err != nil {
			return
		}
		if err := e.applier.Apply(f); err != nil {
			t.Error(err)
			return
		}
	}
}

// newElectedRig makes a broker of a node that leads, and has recorded its settings.
func newElectedRig(t *testing.T, leader func() string) (*rig, *electedRole) {
	t.Helper()
	r := &rig{t: t, segmentBytes: 1 << 20}
	return r, r.createElected(leader)
}

// createElected is create with a node that leads, and has recorded its settings.
func (r *rig) createElected(leader func() string) *electedRole {
	r.t.Helper()
	role := new(electedRole)
	r.create(func(r *rig) replication.Role {
		r.Broker.leader, r.Broker.window = leader, 2*time.Hour // other than what the fold begins with, so that it is recorded
		role.log, role.applier, role.term = r.log, r.Broker, 1
		return role
	})
	r.t.Cleanup(func() { r.Follow("the test is over") }) // or the last marker waits for ever
	role.elect(r.t, r)
	role.settle(r.t, r, 2)
	return role
}

// settle waits until the log ends with an entry, and commits it.
func (e *electedRole) settle(t *testing.T, r *rig, last entry.Index) {
	t.Helper()
	e.reach(t, last)
	r.Committed(last)
}

// reach waits until the log ends with an entry.
func (e *electedRole) reach(t *testing.T, last entry.Index) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		e.mu.Lock()
		got := e.last
		e.mu.Unlock()
		if got == last {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log ends at %d, want %d", got, last)
		}
	}
}

// appended is an entry that another node decided.
func appended(f *wal.Frames, base fact.Offset, cum uint64, id, value string) {
	records := []fact.Record{{Key: []byte("k"), Value: []byte(value)}}
	f.End(fact.AppendAppended(f.Begin(fact.KindAppended, testStart.UnixMilli()), []byte("a"), base, cum, []byte(id), fact.DigestOf(records), records))
}

// What is in flight when the lead is lost is unknown to those who wait. It may be committed all the same, and then a retry
// gets its offsets; or it is cut, and a retry is done anew, on top of what the next leader did.
func TestFollow(t *testing.T) {
	for _, survives := range []bool{true, false} {
		t.Run(fmt.Sprintf("survives=%v", survives), func(t *testing.T) {
			r, role := newElectedRig(t, nil)
			first := r.start(publishOf("a", "id", "one"))
			role.reach(t, 3)
			group := r.startGroup("a", "g", 1)
			role.reach(t, 4)
			late := r.startGroup("a", "g", 9) // refused on top of what is in flight
			r.inFlight(3)

			f := new(wal.Frames)
			kept := entry.Index(2)
			if survives {
				kept = 4
				appended(f, 1, 4, "", "other")
			} else {
				appended(f, 0, 0, "", "other")
			}
			role.lose(t, kept, f)
			wantUnavailable(t, answer(t, first).err, elsewhere, true)
			wantUnavailable(t, answer(t, group).err, elsewhere, true)
			wantUnavailable(t, answer(t, late).err, elsewhere, false)
			r.inFlight(0)
			_, err := r.Publish(publishOf("a", "id", "one"))
			wantUnavailable(t, err, elsewhere, true)
			_, err = r.Publish(publishOf("a", "", "one"))
			wantUnavailable(t, err, elsewhere, false)
			role.catchUp(t, r)
			role.elect(t, r)

			at := role.log.Last() + 1
			again := r.start(publishOf("a", "id", "one"))
			if survives {
				wantDone(t, answer(t, again), Published{Base: 0, Count: 1, Duplicate: true})
			} else {
				role.settle(t, r, at)
				wantDone(t, answer(t, again), Published{Base: 1, Count: 1})
			}
			got, _ := r.fetch("a", 0, 10)
			want := []string{"0:other", "1:one"}
			if survives {
				want = []string{"0:one", "1:other"}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		})
	}
}

// A proposal that is on its way while the lead is lost and got again must not be taken: it was decided on top of what is cut.
// The log has as many entries again, so its place does not tell.
func TestFollowDuringPropose(t *testing.T) {
	r, role := newElectedRig(t, nil)
	first := r.start(publishOf("a", "", "one", "two"))
	role.reach(t, 3)
	r.inFlight(1)
	role.enter, role.leave = make(chan struct{}), make(chan struct{})
	second := r.start(publishOf("a", "id", "three")) // at offset 2
	<-role.enter
	role.lose(t, 2, nil)
	role.elect(t, r)
	if role.log.Last() != 3 {
		t.Fatalf("the log ends at %d: the test is not what it says", role.log.Last())
	}
	role.leave <- struct{}{}
	wantUnavailable(t, answer(t, first).err, elsewhere, true)
	wantUnavailable(t, answer(t, second).err, elsewhere, true)
	again := r.start(publishOf("a", "id", "three"))
	<-role.enter
	role.leave <- struct{}{}
	role.settle(t, r, 4)
	wantDone(t, answer(t, again), Published{Base: 0, Count: 1})
	role.enter, role.leave = nil, nil
}

// hookedClock calls a function when it is asked for the time, once.
type hookedClock struct {
	*clock.Manual
	hook func()
}

func (c *hookedClock) Now() time.Time {
	if hook := c.hook; hook != nil {
		c.hook = nil
		hook()
	}
	return c.Manual.Now()
}

// The lead is lost, and won again or not, while a batch is being decided, on top of what is in flight.
func TestFollowDuringDecide(t *testing.T) {
	for _, again := range []bool{false, true} {
		hooked := new(hookedClock)
		r := &rig{t: t, segmentBytes: 1 << 20, ticks: func(c *clock.Manual) clock.Clock {
			hooked.Manual = c
			return hooked
		}}
		role := r.createElected(nil)
		first := r.start(publishOf("a", "id", "one"))
		role.reach(t, 3)
		r.inFlight(1)
		for _, call := range []struct {
			do      func() error
			unknown bool
		}{
			{func() error { _, err := r.Publish(publishOf("a", "id", "one")); return err }, true}, // in flight, as it sees it
			{func() error { _, err := r.CommitGroup([]byte("a"), []byte("g"), 9); return err }, false},
			{func() error { _, err := r.Publish(publishOf("a", "", "two")); return err }, false},
		} {
			hooked.hook = func() {
				role.lose(t, 2, nil)
				if again {
					role.elect(t, r)
				}
			}
			wantUnavailable(t, call.do(), "this node has lost the lead", call.unknown)
			if !again {
				role.elect(t, r)
			}
			r.inFlight(0)
		}
		wantUnavailable(t, answer(t, first).err, elsewhere, true)
	}
}

// The role may go on reading the frames of a batch that Follow has answered: they must not be used for another.
func TestFramesAreTheRolesAfterFollow(t *testing.T) {
	r, role := newElectedRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	role.reach(t, 3)
	r.inFlight(1)
	f := &r.flight[0].frames
	want := slices.Clone(f.Payload(0))
	role.lose(t, 2, nil)
	wantUnavailable(t, answer(t, first).err, elsewhere, true)
	if f.Len() != 1 || !slices.Equal(f.Payload(0), want) {
		t.Fatal("the frames were reset")
	}
}

// election is a cluster as its clients see it: what is certainly committed, and what they were told.
type election struct {
	*storm
	role *electedRole

	end   atomic.Uint64 // records of topic a that are committed, wherever
	group atomic.Uint64 // a commit of group "clerk" to here was acknowledged
	other chan string   // request ids that are published at another node, when one leads
	ended chan struct{} // closed when the writers are done
}

// Writers and readers at a node that loses the lead and gets it again: to nodes that keep what was in flight, or a part of
// it, and decide other things, among them retries. No acknowledged record is lost, none has two offsets, a request id is
// used once, "not done" stays so, and no read is older than what was committed before it began, also while the node does not
// know yet that it has been replaced.
func TestElections(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r, role := newElectedRig(t, nil)
	e := &election{role: role, other: make(chan string), ended: make(chan struct{}), storm: &storm{r: r,
		done: map[string]fact.Offset{}, notDone: map[string]bool{}, unknown: map[string]bool{}, groups: map[string]fact.Offset{}}}
	var writers, readers sync.WaitGroup
	for w := range 40 {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(w)))
		writers.Go(func() { e.write(t, rnd, fmt.Sprintf("w%d", w)) })
	}
	for range 4 {
		readers.Go(func() { e.read(t) })
	}
	readers.Go(func() { e.clerk(t) })
	over := make(chan struct{})
	go func() {
		writers.Wait()
		close(e.ended)
		readers.Wait()
		close(over)
	}()
	elections := e.play(t, rnd, over)
	r.inFlight(0)
	e.check(t, false)
	for value := range e.unknown {
		if _, ok := e.done[value]; !ok && strings.Contains(value, "+") {
			t.Errorf("%s has a request id, was tried to the end, and is not done", value)
		}
	}
	if got := fact.Offset(e.end.Load()); got != e.fold() {
		t.Errorf("%d records are committed, %d are there", got, e.fold())
	}
	t.Logf("%d elections, %d reads confirmed", elections, role.confirms)
}

func (e *election) fold() (end fact.Offset) {
	end, _ = e.folded()
	return end
}

// folded returns where topic a ends in the fold, and how many bytes it has had by then.
func (e *election) folded() (end fact.Offset, cum uint64) {
	e.r.View(func(s *state.State) { end, cum, _, _ = s.Ended([]byte("a")) })
	return end, cum
}

// tail returns where topic a ends with entry last of the log, and the request ids in what is not applied.
func (e *election) tail(t *testing.T, last entry.Index) (fact.Offset, uint64, map[string]bool) {
	end, cum := e.folded()
	ids := map[string]bool{}
	c := e.role.log.NewCursor(e.r.Applied() + 1)
	defer c.Close()
	for f := new(wal.Frames); ; {
		if _, err := c.Next(f, last, 1<<20); err != nil {
			return end, cum, ids
		}
		for i := range f.Len() {
			if f.Entry(i).Kind != fact.KindAppended {
				continue
			}
			a, err := fact.DecodeAppended(f.Payload(i))
			if err != nil {
				t.Error(err)
			}
			if string(a.Topic) == "a" {
				end += fact.Offset(a.Count)
				size, err := a.Size()
				if err != nil {
					t.Error(err)
				}
				cum += size
				ids[string(a.RequestID)] = true
			}
		}
	}
}

// play is the other nodes' part, until nobody asks any more.
func (e *election) play(t *testing.T, rnd *rand.Rand, over chan struct{}) (elections int) {
	deadline := time.Now().Add(60 * time.Second)
	for n := 0; ; n++ {
		select {
		case <-over:
			e.commit(t, e.role.log.Last())
			return elections
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("a writer hangs")
		}
		for range rnd.IntN(8) {
			runtime.Gosched()
		}
		if rnd.IntN(6) > 0 {
			e.role.mu.Lock()
			last := e.role.log.Last()
			e.role.mu.Unlock()
			applied := e.r.Applied()
			e.commit(t, applied+entry.Index(rnd.Uint64N(uint64(last-applied)+1)))
			continue
		}
		elections++
		e.elect(t, rnd)
	}
}

// commit commits what is in flight up to an entry, if a batch ends there.
func (e *election) commit(t *testing.T, last entry.Index) {
	e.role.applier.Committed(last)
	e.end.Store(uint64(e.fold()))
}

// elect has another node lead, and then this one again.
func (e *election) elect(t *testing.T, rnd *rand.Rand) {
	// The other one is elected, with a part of what was in flight, and commits, while this one does not know.
	e.role.mu.Lock()
	e.role.deposed = true
	applied := e.r.Applied()
	kept := applied + entry.Index(rnd.Uint64N(uint64(e.role.log.Last()-applied)+1))
	end, cum, ids := e.tail(t, kept)
	e.role.mu.Unlock()
	f := new(wal.Frames)
	f.End(f.Begin(fact.KindMarker, testStart.UnixMilli()))
	for range rnd.IntN(4) {
		select {
		case id := <-e.other:
			var known bool
			e.r.View(func(s *state.State) {
				topic, _ := s.Topic([]byte("a"))
				_, known = s.RequestID(topic.ID, []byte(id), testStart.UnixMilli())
			})
			if known || ids[id] {
				continue
			}
			ids[id] = true
			appended(f, end, cum, id, id)
			cum += uint64(1 + len(id))
		default:
			value := fmt.Sprintf("other-%d", rnd.Uint64())
			appended(f, end, cum, "", value)
			cum += uint64(1 + len(value))
		}
		end++
	}
	e.end.Store(uint64(end))
	for range rnd.IntN(50) {
		runtime.Gosched()
	}
	e.role.lose(t, kept, f)
	if rnd.IntN(2) == 0 {
		e.role.catchUp(t, e.r)
		runtime.Gosched()
	}
	e.role.elect(t, e.r)
}

// write publishes some records one after the other, those with a request id until they are done.
func (e *election) write(t *testing.T, rnd *rand.Rand, name string) {
	for i := range 20 {
		value, id := fmt.Sprintf("%s-%d", name, i), ""
		if rnd.IntN(3) > 0 {
			value += "+"
			id = value
		}
		for {
			done, err := e.r.Publish(publishOf("a", id, value))
			if e.note(t, value, done, err) || id == "" {
				break
			}
			if rnd.IntN(4) == 0 {
				e.note(t, value, Published{}, &UnavailableError{Reason: "sent to another node", Unknown: true})
				select {
				case e.other <- id:
				default:
				}
			}
			runtime.Gosched()
		}
		if rnd.IntN(4) == 0 {
			e.storm.group(t, name, fact.Offset(rnd.IntN(20)))
		}
	}
}

// note keeps the last answer, and reports whether it was "done". An "unknown" may become "not done" here: once the node has
// been elected again it knows that the attempt before came to nothing.
func (e *election) note(t *testing.T, value string, done Published, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.notDone, value)
	delete(e.unknown, value)
	var un *UnavailableError
	switch {
	case err == nil:
		e.done[value] = done.Base
		return true
	case !errors.As(err, &un):
		t.Errorf("%s: %v", value, err)
	case un.Unknown:
		e.unknown[value] = true
	default:
		e.notDone[value] = true
	}
	return false
}

// read reads the end, and the offset of a group.
func (e *election) read(t *testing.T) {
	for {
		select {
		case <-e.ended:
			return
		default:
		}
		var un *UnavailableError
		end := e.end.Load()
		page, err := e.r.Fetch(&Fetch{Topic: []byte("a"), Offset: 1 << 40, Limit: 1}, &list{})
		if err == nil && uint64(page.End) < end || errors.Is(err, ErrTopicNotFound) && end > 0 {
			t.Errorf("the end is %d (%v), and was %d before", page.End, err, end)
		} else if err != nil && !errors.As(err, &un) && !errors.Is(err, ErrTopicNotFound) {
			t.Error(err)
		}
		group := e.group.Load()
		var l list
		page, err = e.r.Fetch(&Fetch{Topic: []byte("a"), Group: []byte("clerk"), Limit: 1}, &l)
		if err == nil && uint64(page.Next) < group+uint64(page.Records) {
			t.Errorf("the group goes on before %d, and had been at %d", page.Next, group)
		}
		runtime.Gosched()
	}
}

// clerk moves a group to the end, again and again.
func (e *election) clerk(t *testing.T) {
	for {
		select {
		case <-e.ended:
			return
		default:
		}
		end := e.end.Load()
		next, err := e.r.CommitGroup([]byte("a"), []byte("clerk"), fact.Offset(end))
		var outside *OffsetRangeError
		switch {
		case err == nil:
			e.group.Store(uint64(next))
		case errors.As(err, &outside), errors.Is(err, ErrTopicNotFound) && end > 0:
			t.Errorf("refused to move to %d: %v", end, err)
		}
		runtime.Gosched()
	}
}
