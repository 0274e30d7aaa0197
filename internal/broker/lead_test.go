package broker

import (
	"errors"
	"slices"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// newLateRig makes a broker whose role does not lead yet.
func newLateRig(t *testing.T) (*rig, *heldRole) {
	t.Helper()
	var role *heldRole
	r := newRig(t, func(r *rig) replication.Role {
		role = newHeldRole(r)
		role.late = true
		r.Broker.window = 2 * time.Hour // other than what the log says, so that settings are recorded
		return role
	})
	t.Cleanup(func() { role.away("the test is over") })
	return r, role
}

// tail appends entries to the log as another node decided them: three publishes, one of them with the request id
// "id", and a move of group g.
func (r *rig) tail() *wal.Frames {
	r.t.Helper()
	f := new(wal.Frames)
	at, cum := testStart.UnixMilli(), uint64(0)
	for i, v := range []string{"one", "two", "three"} {
		records := []fact.Record{{Key: []byte("k"), Value: []byte(v)}}
		var id []byte
		if v == "two" {
			id = []byte("id")
		}
		f.End(fact.AppendAppended(f.Begin(fact.KindAppended, at), []byte("a"), fact.Offset(i), cum, id, fact.DigestOf(records), records))
		cum += uint64(1 + len(v))
	}
	f.End(fact.AppendGroupMoved(f.Begin(fact.KindGroupMoved, at), []byte("a"), []byte("g"), 2))
	if _, err := r.log.Append(f, 1, 0); err != nil {
		r.t.Fatal(err)
	}
	if err := r.log.Sync(); err != nil {
		r.t.Fatal(err)
	}
	return f
}

// Before Lead nothing is decided: an earlier attempt may stand in what is not applied yet.
func TestNothingIsDecidedBeforeLead(t *testing.T) {
	r, role := newLateRig(t)
	refused := func(reason string) {
		t.Helper()
		_, err := r.Publish(publishOf("a", "", "x"))
		wantUnavailable(t, err, reason, false)
		_, err = r.Publish(publishOf("a", "id", "two"))
		wantUnavailable(t, err, reason, true)
		_, err = r.CommitGroup([]byte("a"), []byte("g"), 0)
		wantUnavailable(t, err, reason, false)
		_, err = r.Retain([]byte("a"), 0)
		wantUnavailable(t, err, reason, false)
	}
	refused("the node is not leading yet")
	r.Suspend("the follower has not come yet")
	refused("the follower has not come yet")
	r.Apply(r.tail())
	refused("the follower has not come yet")
	if r.log.Last() != 4 || len(role.proposed) > 0 {
		t.Fatal("something was proposed")
	}

	r.Lead()
	settings := role.next(t) // recorded now
	if settings != 5 {
		t.Fatalf("proposed up to %d", settings)
	}
	again := r.start(publishOf("a", "id", "two"))
	four := r.start(publishOf("a", "", "four"))
	at := role.next(t)
	r.Committed(settings)
	if _, page := r.fetch("a", 3, 1); page.End != 3 {
		t.Fatalf("committed up to %d, and entry %d is visible", settings, at)
	}
	r.Committed(at)
	wantDone(t, answer(t, again), Published{Base: 1, Count: 1, Duplicate: true})
	wantDone(t, answer(t, four), Published{Base: 3, Count: 1})
	r.View(func(s *state.State) {
		if s.WindowMS() != 2*time.Hour.Milliseconds() || s.Applied() != at {
			t.Errorf("window %d ms at entry %d", s.WindowMS(), s.Applied())
		}
	})
}

func TestApply(t *testing.T) {
	observer := &countingObserver{}
	r, _ := newLateRig(t)
	r.Broker.observer = observer
	f := r.tail()
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Limit: 10}, &list{}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("visible before it is applied: %v", err)
	}
	if err := r.Apply(f); err != nil {
		t.Fatal(err)
	}
	if got, page := r.fetch("a", 0, 10); !slices.Equal(got, []string{"0:one", "1:two", "2:three"}) || page.End != 3 {
		t.Fatalf("got %v %+v", got, page)
	}
	var l list
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Group: []byte("g"), Limit: 10}, &l); err != nil || !slices.Equal(l.records, []string{"2:three"}) {
		t.Fatalf("group: %v %v", l.records, err)
	}
	if got, want := *observer, (countingObserver{entries: 4, records: 3, bytes: int64(f.Bytes())}); got != want {
		t.Fatalf("observed %+v, want %+v", got, want)
	}

	// A reader that waits is woken, and a retained topic is reported.
	woken := make(chan []string)
	go func() {
		var l list
		_, err := r.Fetch(&Fetch{Topic: []byte("a"), Offset: 3, Limit: 10, Wait: time.Hour}, &l)
		if err != nil {
			t.Error(err)
		}
		woken <- l.records
	}()
	for r.waiters.count.Load() == 0 {
		if err := r.clock.WaitTimers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	records := []fact.Record{{Value: []byte("four")}}
	f.Reset()
	f.End(fact.AppendAppended(f.Begin(fact.KindAppended, testStart.UnixMilli()), []byte("a"), 3, 14, nil, fact.Digest{}, records))
	f.End(fact.AppendTopicRetained(f.Begin(fact.KindTopicRetained, testStart.UnixMilli()), []byte("a"), 1, 4))
	f.End(f.Begin(fact.KindMarker, testStart.UnixMilli()))
	if _, err := r.log.Append(f, 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(f); err != nil {
		t.Fatal(err)
	}
	if got := <-woken; !slices.Equal(got, []string{"3:four"}) {
		t.Fatalf("woken with %v", got)
	}
	if !observer.retained || r.Applied() != 7 || entry.Index(r.marked.Load()) != 7 {
		t.Fatalf("retained: %v, applied %d, marker %d", observer.retained, r.Applied(), r.marked.Load())
	}
}

// What a node that leads has not decided itself must not be applied: its overlay does not know of it.
func TestApplyWhileLeadingIsABug(t *testing.T) {
	r := newRig(t, nil)
	defer func() {
		if recover() == nil {
			t.Fatal("accepted")
		}
	}()
	r.Apply(new(wal.Frames))
}

// Until Lead, "there is no more" is no answer where the log may hold more, nor is a group offset that may have moved.
func TestUnsettled(t *testing.T) {
	r, role := newLateRig(t)
	f := r.tail()
	r.Unsettled(Tail{
		Topics: map[string]struct{}{"a": {}, "new": {}}, Groups: map[GroupName]struct{}{{"a", "moved"}: {}},
		Retained: map[string]struct{}{"retained": {}},
	})
	if err := r.Apply(f); err != nil { // what of the tail is committed meanwhile is served
		t.Fatal(err)
	}
	read := func(q Fetch) ([]string, error) {
		var l list
		q.Limit = 10
		_, err := r.Fetch(&q, &l)
		return l.records, err
	}
	a, group := []byte("a"), []byte("g")
	if got, err := read(Fetch{Topic: a}); err != nil || len(got) != 3 {
		t.Fatalf("below the end: %v %v", got, err)
	}
	_, err := read(Fetch{Topic: []byte("retained")})
	wantUnavailable(t, err, errStartUnsettled.Reason, false)
	if got, err := read(Fetch{Topic: a, Group: group}); err != nil || !slices.Equal(got, []string{"2:three"}) {
		t.Fatalf("by a group below the end: %v %v", got, err)
	}
	for _, q := range []Fetch{{Topic: a, Offset: 3}, {Topic: a, Offset: 9}, {Topic: a, Offset: 3, Wait: time.Hour}, {Topic: []byte("new")},
		{Topic: []byte("new"), Group: group, Wait: time.Hour}} {
		_, err := read(q)
		wantUnavailable(t, err, errUnsettled.Reason, false)
	}
	_, err = read(Fetch{Topic: a, Group: []byte("moved")})
	wantUnavailable(t, err, errGroupUnsettled.Reason, false)
	if _, err := read(Fetch{Topic: []byte("other")}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("another topic: %v", err)
	}
	r.Suspend("the follower is away")
	_, err = read(Fetch{Topic: a, Offset: 3})
	wantUnavailable(t, err, errUnsettled.Reason, false)

	r.Lead()
	r.Committed(role.next(t)) // the settings
	if got, err := read(Fetch{Topic: a, Offset: 3}); err != nil || len(got) != 0 {
		t.Fatalf("after Lead: %v %v", got, err)
	}
	if got, err := read(Fetch{Topic: a, Group: []byte("moved")}); err != nil || len(got) != 3 {
		t.Fatalf("after Lead, by a group: %v %v", got, err)
	}
	if _, err := read(Fetch{Topic: []byte("new")}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("after Lead: %v", err)
	}
	r.Suspend("the follower is away") // the end is known from now on
	if got, err := read(Fetch{Topic: a, Offset: 3}); err != nil || len(got) != 0 {
		t.Fatalf("suspended: %v %v", got, err)
	}
}

func TestFollowerServesNobody(t *testing.T) {
	r, _ := newLateRig(t)
	b := New(Config{Log: r.log, State: r.state, Index: r.index, Clock: r.clock, Window: time.Hour, Follower: true})
	role := newHeldRole(r)
	role.late = true
	if err := b.Start(role); err != nil {
		t.Fatal(err)
	}
	b.Apply(r.tail())
	_, published := b.Publish(publishOf("a", "id", "x"))
	_, fetched := b.Fetch(&Fetch{Topic: []byte("a"), Limit: 1, Wait: time.Hour}, &list{})
	_, moved := b.CommitGroup([]byte("a"), []byte("g"), 1)
	_, retained := b.Retain([]byte("a"), 1)
	_, configured := b.ConfigureTopic(&Configure{Topic: []byte("a")})
	_, deleted := b.DeleteTopic([]byte("a"))
	_, forgotten := b.DeleteGroup([]byte("a"), []byte("g"))
	kept := b.Keep(&Keep{})
	for i, err := range []error{published, fetched, moved, retained, configured, deleted, forgotten, kept} {
		var not *NotLeaderError
		if !errors.As(err, &not) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if b.Applied() != 4 || b.Freeze() == nil || b.Leads() {
		t.Fatalf("applied %d", b.Applied())
	}
	b.Close()
	if len(role.proposed) > 0 || r.log.Last() != 4 {
		t.Fatal("a follower proposed something")
	}
}

// countingObserver sums up what is committed.
type countingObserver struct {
	NoObserver
	entries, records int
	bytes            int64
	retained         bool
}

func (c *countingObserver) Committed(entries, records int, bytes int64, retained bool) {
	c.entries += entries
	c.records += records
	c.bytes += bytes
	c.retained = c.retained || retained
}
