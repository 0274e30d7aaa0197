package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// newReadRig makes a broker of a node that leads, with two records in topic a, which have request id "id", and group g at 1.
func newReadRig(t *testing.T, leader func() string) (*rig, *electedRole) {
	t.Helper()
	r, role := newElectedRig(t, leader)
	first := r.start(publishOf("a", "id", "one", "two"))
	role.settle(t, r, 3)
	wantDone(t, answer(t, first), Published{Count: 2})
	group := r.startGroup("a", "g", 1)
	role.settle(t, r, 4)
	wantDone(t, answer(t, group), Published{})
	role.confirms = 0
	return r, role
}

// read fetches, and returns what it got and how often the lead was confirmed for it.
func (e *electedRole) read(r *rig, q Fetch) ([]string, int, error) {
	e.mu.Lock()
	before := e.confirms
	e.mu.Unlock()
	var l list
	q.Limit = 10
	_, err := r.Fetch(&q, &l)
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.records, e.confirms - before, err
}

func TestReadsConfirm(t *testing.T) {
	nowhere := func() string { return "" }
	r, role := newReadRig(t, nowhere)
	a, g := []byte("a"), []byte("g")
	retain := make(chan outcome, 1)
	go func() {
		_, err := r.Retain(a, 1)
		retain <- outcome{err: err}
	}()
	role.settle(t, r, 5)
	wantDone(t, answer(t, retain), Published{})
	var gone *OffsetGoneError
	check := func(deposed bool) {
		t.Helper()
		for name, test := range map[string]struct {
			q        Fetch
			want     []string
			confirms int
			ok       func(error) bool
		}{
			"records":        {Fetch{Topic: a, Offset: 1}, []string{"1:two"}, 0, nil},
			"gone":           {Fetch{Topic: a, Offset: 0}, nil, 0, func(err error) bool { return errors.As(err, &gone) }},
			"the end":        {Fetch{Topic: a, Offset: 2}, nil, 1, nil},
			"behind the end": {Fetch{Topic: a, Offset: 7}, nil, 1, nil},
			"no topic":       {Fetch{Topic: []byte("b")}, nil, 1, func(err error) bool { return errors.Is(err, ErrTopicNotFound) }},
			"group":          {Fetch{Topic: a, Group: g}, []string{"1:two"}, 1, nil},
			"group, no topic": {Fetch{Topic: []byte("b"), Group: g}, nil, 1,
				func(err error) bool { return errors.Is(err, ErrTopicNotFound) }},
		} {
			got, confirms, err := role.read(r, test.q)
			var un *UnavailableError
			switch {
			case confirms != test.confirms:
				t.Errorf("%s: confirmed %d times, want %d", name, confirms, test.confirms)
			case deposed && confirms > 0:
				if !errors.As(err, &un) || un.Reason != elsewhere || un.Unknown || len(got) > 0 {
					t.Errorf("%s, deposed: %v %v", name, got, err)
				}
			case test.ok != nil && !test.ok(err), test.ok == nil && err != nil, !slices.Equal(got, test.want):
				t.Errorf("%s: %v %v", name, got, err)
			}
		}
	}
	check(false)
	role.mu.Lock()
	role.deposed = true
	role.mu.Unlock()
	check(true)
}

// A record that is committed while the lead is being confirmed is served: the fold is read after.
func TestReadAfterConfirm(t *testing.T) {
	for name, q := range map[string]Fetch{
		"the end":  {Topic: []byte("a"), Offset: 2},
		"no topic": {Topic: []byte("b")},
		"group":    {Topic: []byte("a"), Group: []byte("g")},
	} {
		r, role := newReadRig(t, nil)
		r.role = confirming{role, func() {
			role.lose(t, 4, nil)
			f := new(wal.Frames)
			appended(f, 2, 8, "", "three")
			f.End(fact.AppendGroupMoved(f.Begin(fact.KindGroupMoved, testStart.UnixMilli()), []byte("a"), []byte("g"), 2))
			f.End(fact.AppendAppended(f.Begin(fact.KindAppended, testStart.UnixMilli()), []byte("b"), 0, 0, nil, fact.Digest{}, []fact.Record{{Value: []byte("three")}}))
			role.mu.Lock()
			role.add(t, f)
			role.mu.Unlock()
			role.catchUp(t, r)
			role.elect(t, r)
		}}
		var l list
		q.Limit = 10
		_, err := r.Fetch(&q, &l)
		want := "2:three"
		if name == "no topic" {
			want = "0:three"
		}
		if err != nil || !slices.Equal(l.records, []string{want}) {
			t.Errorf("%s: %v %v", name, l.records, err)
		}
	}
}

// confirming does something during each Confirm.
type confirming struct {
	*electedRole
	during func()
}

func (c confirming) Confirm(context.Context) error {
	c.during()
	return nil
}

// A long poll confirms when its time is over, and not when a record wakes it. One by a group has confirmed before.
func TestLongPollConfirms(t *testing.T) {
	r, role := newReadRig(t, nil)
	poll := func(q Fetch) chan []string {
		c := make(chan []string, 1)
		go func() {
			got, confirms, err := role.read(r, q)
			if want := min(len(q.Group), 1); err != nil || len(got) > 0 && confirms != want || len(got) == 0 && confirms != 1 {
				t.Errorf("%v after %d confirmations: %v", got, confirms, err)
			}
			c <- got
		}()
		for deadline := time.Now().Add(10 * time.Second); r.waiters.count.Load() == 0; {
			if time.Now().After(deadline) {
				t.Fatal("it does not wait")
			}
			if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	woken := poll(Fetch{Topic: []byte("a"), Offset: 2, Wait: time.Hour})
	at := role.log.Last() + 1
	r.start(publishOf("a", "", "three"))
	role.settle(t, r, at)
	if got := <-woken; !slices.Equal(got, []string{"2:three"}) {
		t.Fatalf("got %v", got)
	}
	at = role.log.Last() + 1
	group := r.startGroup("a", "g", 3)
	role.settle(t, r, at)
	wantDone(t, answer(t, group), Published{})
	for _, q := range []Fetch{{Topic: []byte("a"), Offset: 3, Wait: time.Hour}, {Topic: []byte("a"), Group: []byte("g"), Wait: time.Hour}} {
		ended := poll(q)
		for len(ended) == 0 {
			r.clock.Advance(time.Hour)
		}
		if got := <-ended; len(got) > 0 {
			t.Fatalf("got %v", got)
		}
	}
}

// Who waits for a record at a node that loses the lead is told so, at once.
func TestFollowEndsWaits(t *testing.T) {
	var leader string
	r, role := newReadRig(t, func() string { return leader })
	for _, url := range []string{"", "http://b:1"} {
		fetched := make(chan error, 1)
		go func() {
			_, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 2, Limit: 1, Wait: time.Hour}, &list{})
			fetched <- err
		}()
		for r.waiters.count.Load() == 0 {
			if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		leader = url
		role.lose(t, role.log.Last(), nil)
		wantElsewhere(t, <-fetched, url, false)
		leader = ""
		role.elect(t, r)
	}
}

// wantElsewhere checks that a call was sent to the leader, or refused where that is not known.
func wantElsewhere(t *testing.T, err error, url string, unknown bool) {
	t.Helper()
	if url == "" {
		wantUnavailable(t, err, elsewhere, unknown)
		return
	}
	var not *NotLeaderError
	if !errors.As(err, &not) || not.Leader != url {
		t.Fatalf("got %v, want %s", err, url)
	}
}

// While the node does not lead it serves nobody, before its first lead and between two.
func TestElsewhere(t *testing.T) {
	var leader string
	r, role := newReadRig(t, func() string { return leader })
	a := []byte("a")
	check := func() {
		t.Helper()
		for _, leader = range []string{"", "https://b"} {
			_, err := r.Publish(publishOf("a", "id", "one", "two"))
			wantElsewhere(t, err, leader, true)
			_, err = r.Publish(publishOf("a", "", "one"))
			wantElsewhere(t, err, leader, false)
			_, err = r.CommitGroup(a, []byte("g"), 9)
			wantElsewhere(t, err, leader, false)
			_, err = r.Retain(a, 9)
			wantElsewhere(t, err, leader, false)
			for _, q := range []Fetch{{Topic: a}, {Topic: a, Offset: 9, Wait: time.Hour}, {Topic: []byte("b")}, {Topic: a, Group: a}} {
				_, _, err = role.read(r, q)
				wantElsewhere(t, err, leader, false)
			}
		}
		leader = ""
	}
	role.lose(t, 4, nil)
	check()
	role.elect(t, r)
	if again := r.publish("a", "id", "one", "two"); !again.Duplicate {
		t.Fatalf("got %+v", again)
	}
	// The role refuses before the broker is told.
	role.mu.Lock()
	role.leads = false
	role.mu.Unlock()
	leader = "http://c"
	_, err := r.Publish(publishOf("a", "", "one"))
	wantUnavailable(t, err, elsewhere, false)
	_, err = r.CommitGroup(a, []byte("g"), 9) // a refusal that cannot be confirmed
	wantElsewhere(t, err, leader, false)
	_, _, err = role.read(r, Fetch{Topic: a, Offset: 9})
	wantElsewhere(t, err, leader, false)
	r.Follow(elsewhere)
	leader = ""
	check()
}

// A refusal rests on the fold, so it needs a lead that is certain, and the same as when it was decided.
func TestRefusalsConfirm(t *testing.T) {
	r, role := newReadRig(t, nil)
	a := []byte("a")
	refusals := map[string]struct {
		call    func() error
		is      func(error) bool
		unknown bool
	}{
		"no topic, group":  {func() error { _, err := r.CommitGroup([]byte("b"), a, 0); return err }, isNotFound, false},
		"no topic, retain": {func() error { _, err := r.Retain([]byte("b"), 0); return err }, isNotFound, false},
		"group range":      {func() error { _, err := r.CommitGroup(a, a, 3); return err }, isRange, false},
		"retain range":     {func() error { _, err := r.Retain(a, 3); return err }, isRange, false},
		"conflict": {func() error { _, err := r.Publish(publishOf("a", "id", "x")); return err },
			func(err error) bool { return errors.Is(err, ErrRequestIDConflict) }, true},
	}
	for name, test := range refusals {
		before := role.confirms
		if err := test.call(); !test.is(err) || role.confirms != before+1 {
			t.Errorf("%s: %v after %d confirmations", name, err, role.confirms-before)
		}
	}
	before := role.confirms
	if again := r.publish("a", "id", "one", "two"); !again.Duplicate || role.confirms != before {
		t.Fatalf("a repeat: %+v after %d confirmations", again, role.confirms-before)
	}
	role.deposed = true
	for _, test := range refusals {
		wantUnavailable(t, test.call(), elsewhere, test.unknown)
	}
	role.deposed = false
	r.role = confirming{role, func() {
		role.lose(t, role.log.Last(), nil)
		role.elect(t, r)
	}}
	for _, test := range refusals {
		wantUnavailable(t, test.call(), errLostMeanwhile.reason, test.unknown)
	}
}

func isNotFound(err error) bool { return errors.Is(err, ErrTopicNotFound) }

func isRange(err error) bool {
	var outside *OffsetRangeError
	return errors.As(err, &outside)
}

// Close ends what waits for the lead to be confirmed.
func TestCloseEndsConfirm(t *testing.T) {
	r, role := newReadRig(t, nil)
	waits := make(chan struct{})
	r.role = endless{role, waits}
	fetched := make(chan error, 1)
	go func() {
		_, _, err := role.read(r, Fetch{Topic: []byte("a"), Offset: 2})
		fetched <- err
	}()
	<-waits
	r.Follow(elsewhere)
	r.Broker.Close()
	wantUnavailable(t, <-fetched, errClosed.Error(), false)
}

// endless is a role whose Confirm ends only with its context.
type endless struct {
	*electedRole
	waits chan struct{}
}

func (e endless) Confirm(ctx context.Context) error {
	close(e.waits)
	<-ctx.Done()
	return ctx.Err()
}

var _ replication.Role = endless{}

// Every CheckEvery the leader logs a check, if there was anything; every node is told of the fold exactly there.
func TestChecked(t *testing.T) {
	type check struct {
		at   entry.Index
		hash [32]byte
	}
	var checks []check
	note := func(at entry.Index, fold *state.Frozen) { checks = append(checks, check{at, fold.Hash()}) }
	r := newRig(t, func(r *rig) replication.Role {
		r.Broker.checkEvery, r.Broker.checked, r.Broker.idle = time.Minute, note, time.Hour
		return newStandalone(r)
	})
	pass := func(d time.Duration) { // and until its effects are over: checks, markers and policies have a timer each
		t.Helper()
		if err := r.clock.WaitTimers(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		r.clock.Advance(d)
		if err := r.clock.WaitTimers(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
	}
	pass(time.Minute) // after the settings
	pass(time.Minute) // nothing to check
	r.publish("a", "id", "one")
	pass(time.Minute)
	pass(time.Minute)
	if r.log.Last() != 4 || len(checks) != 2 || checks[0].at != 2 || checks[1].at != 4 {
		t.Fatalf("checks %v of %d entries", checks, r.log.Last())
	}
	if r.Applied() != entry.Index(r.marked.Load()) {
		t.Error("a marker is due, though a check says as much")
	}

	// Another node applies the same entries in one go, and an entry that follows.
	leaders := checks
	checks = nil
	r.publish("a", "", "two")
	other, _ := newLateRig(t)
	other.Broker.checked = note
	c := r.log.NewCursor(1)
	defer c.Close()
	f := new(wal.Frames)
	if _, err := c.Next(f, r.log.Last(), 1<<20); err != nil || f.Len() != 5 {
		t.Fatal(err, f.Len())
	}
	if err := other.Apply(f); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(checks, leaders) {
		t.Errorf("the other node has checked %v, this one %v", checks, leaders)
	}
	if !other.unchecked.Load() {
		t.Error("nothing to check, though a record was committed since")
	}
}

// refusing is a role that takes nothing.
type refusing struct {
	*electedRole
	err error
}

func (r refusing) Propose(*wal.Frames) error { return r.err }

// A node that has been replaced and does not know it must not say of a request id that it was not used: the next leader may
// have committed the attempt before.
func TestDeposedSaysNothingOfRequestIDs(t *testing.T) {
	for name, err := range map[string]error{
		"full":        wal.ErrFull,
		"unavailable": &replication.UnavailableError{Reason: "the lead is being handed over to node 1"},
		"failed":      fmt.Errorf("%w: %w", replication.ErrFailedBefore, syscall.EIO),
	} {
		r, role := newElectedRig(t, nil)
		role.mu.Lock()
		role.deposed = true // and the new leader has done "id"
		role.mu.Unlock()
		r.role = refusing{role, err}
		_, got := r.Publish(publishOf("a", "id", "one"))
		var un *UnavailableError
		if errors.Is(got, ErrStorageFull) || !errors.As(got, &un) || !un.Unknown {
			t.Errorf("%s: %v", name, got)
		}
		_, got = r.Publish(publishOf("a", "", "one"))
		if errors.As(got, &un) && un.Unknown {
			t.Errorf("%s: without an id: %v", name, got)
		}
	}
}
