package broker

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/replication"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const away = "the follower is away"

// What is in flight when the role is suspended has an unknown outcome for those who wait, and goes on: it becomes
// visible when it is committed later. Meanwhile nothing waits.
func TestSuspend(t *testing.T) {
	r, role := newHeldRig(t, nil)
	committed := r.start(publishOf("a", "zero", "zero"))
	r.Committed(role.next(t))
	wantDone(t, answer(t, committed), Published{Count: 1})

	first := r.start(publishOf("a", "id", "one"))
	role.next(t)
	second := r.startGroup("a", "g", 2) // in range on top of what is in flight
	role.next(t)
	third := r.start(publishOf("b", "", "other"))
	last := role.next(t)
	retry := r.start(publishOf("a", "id", "one")) // without frames of its own
	r.inFlight(4)
	role.away(away)
	r.Suspend(away)
	for _, c := range []chan outcome{first, second, third, retry} {
		wantUnavailable(t, answer(t, c).err, away, true)
	}
	for range 3 {
		_, err := r.Publish(publishOf("a", "id", "one"))
		wantUnavailable(t, err, away, true) // it is in flight
		_, err = r.Publish(publishOf("a", "new", "new"))
		wantUnavailable(t, err, away, false)
		_, err = r.Publish(publishOf("a", "", "new"))
		wantUnavailable(t, err, away, false)
		_, err = r.CommitGroup([]byte("a"), []byte("g"), 1)
		wantUnavailable(t, err, away, false)
		_, err = r.Publish(publishOf("a", "id", "two"))
		wantUnavailable(t, err, away, true) // a conflict only if what is in flight is committed
		if again := r.publish("a", "zero", "zero"); !again.Duplicate {
			t.Fatalf("a retry of what is committed: %+v", again)
		}
		if got, page := r.fetch("a", 0, 10); !slices.Equal(got, []string{"0:zero"}) || page.End != 1 {
			t.Fatalf("visible though not committed: %v", got)
		}
	}
	r.inFlight(4) // retries leave nothing behind

	// The follower is back: first what was in flight, then new writes, on top of it.
	r.Committed(last)
	r.inFlight(0)
	if got, _ := r.fetch("a", 0, 10); !slices.Equal(got, []string{"0:zero", "1:one"}) {
		t.Fatalf("got %v", got)
	}
	role.away("")
	r.Lead()
	if again := r.publish("a", "id", "one"); again != (Published{Base: 1, Count: 1, Duplicate: true}) {
		t.Fatalf("got %+v", again)
	}
	more := r.start(publishOf("a", "", "more"))
	r.Committed(role.next(t))
	wantDone(t, answer(t, more), Published{Base: 2, Count: 1})
}

// Writes go on before what was in flight is committed: they are decided on top of it, and retries wait again.
func TestLeadWhileSomethingIsInFlight(t *testing.T) {
	r, role := newHeldRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	at := role.next(t)
	r.Suspend(away)
	wantUnavailable(t, answer(t, first).err, away, true)
	r.Lead()
	retry := r.start(publishOf("a", "id", "one"))
	r.inFlight(2)
	second := r.start(publishOf("a", "", "two"))
	at2 := role.next(t)
	r.Committed(at)
	wantDone(t, answer(t, retry), Published{Base: 0, Count: 1, Duplicate: true})
	r.Committed(at2)
	wantDone(t, answer(t, second), Published{Base: 1, Count: 1})
}

// inFlight waits until so many batches are.
func (r *rig) inFlight(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		r.flightMu.Lock()
		got, handedOn := len(r.flight), true
		for _, f := range r.flight {
			handedOn = handedOn && f.handedOn
		}
		r.flightMu.Unlock()
		if got == n && handedOn {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%d batches are in flight, want %d", got, n)
		}
	}
}

// gatedHeldRig is newHeldRig with a gate before the role, closed from the first publish on.
func gatedHeldRig(t *testing.T) (*rig, *heldRole, *gatedRole) {
	t.Helper()
	gate := new(gatedRole)
	r, role := newHeldRig(t, func(h *heldRole) replication.Role {
		gate.Role = h
		return gate
	})
	gate.enter, gate.leave = make(chan struct{}), make(chan error)
	t.Cleanup(func() { gate.enter = nil })
	return r, role, gate
}

// Suspend comes while a batch of several is being proposed. However the proposal ends, each gets its answer.
func TestSuspendDuringPropose(t *testing.T) {
	// proposing returns with a batch at the gate: a publish, a retry of it, a retry of what is in flight (id
	// "before", entry 2), and a group commit.
	proposing := func(t *testing.T) (r *rig, role *heldRole, gate *gatedRole, batch, repeats []chan outcome) {
		r, role, gate = gatedHeldRig(t)
		before := r.start(publishOf("a", "before", "before"))
		<-gate.enter
		batch = append(batch, r.start(publishOf("a", "id", "one")))
		r.queued(1)
		batch = append(batch, r.start(publishOf("a", "id", "one")))
		r.queued(2)
		repeats = append(repeats, r.start(publishOf("a", "before", "before")))
		r.queued(3)
		batch = append(batch, r.startGroup("a", "g", 1))
		r.queued(4)
		gate.leave <- nil
		role.next(t)
		<-gate.enter
		r.Suspend(away)
		wantUnavailable(t, answer(t, before).err, away, true)
		return r, role, gate, batch, repeats
	}
	t.Run("proposed", func(t *testing.T) {
		r, role, gate, batch, repeats := proposing(t)
		gate.leave <- nil
		last := role.next(t)
		for _, c := range append(batch, repeats...) {
			wantUnavailable(t, answer(t, c).err, away, true)
		}
		r.Committed(last)
		if got, _ := r.fetch("a", 0, 10); !slices.Equal(got, []string{"0:before", "1:one"}) {
			t.Fatalf("got %v", got)
		}
	})
	t.Run("committed before it returns", func(t *testing.T) {
		r, _, gate, batch, repeats := proposing(t)
		gate.Role = committing{gate.Role, r}
		gate.leave <- nil
		wantDone(t, answer(t, batch[0]), Published{Base: 1, Count: 1})
		wantDone(t, answer(t, batch[1]), Published{Base: 1, Count: 1, Duplicate: true})
		wantDone(t, answer(t, batch[2]), Published{})
		wantDone(t, answer(t, repeats[0]), Published{Base: 0, Count: 1, Duplicate: true})
	})
	t.Run("unavailable", func(t *testing.T) {
		r, _, gate, batch, repeats := proposing(t)
		gate.leave <- &replication.UnavailableError{Reason: away}
		for _, c := range batch {
			wantUnavailable(t, answer(t, c).err, away, false)
		}
		wantUnavailable(t, answer(t, repeats[0]).err, away, true)
		r.Committed(r.log.Last())
		if got, _ := r.fetch("a", 0, 10); !slices.Equal(got, []string{"0:before"}) {
			t.Fatalf("got %v", got)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		_, _, gate, batch, repeats := proposing(t)
		gate.leave <- replication.ErrStopped
		for _, c := range batch {
			wantUnavailable(t, answer(t, c).err, "the node is shutting down", false)
		}
		wantUnavailable(t, answer(t, repeats[0]).err, "the node is shutting down", true)
	})
	t.Run("fails", func(t *testing.T) {
		r, _, gate, batch, repeats := proposing(t)
		gate.leave <- syscall.EIO
		for _, c := range append(batch, repeats...) {
			wantUnavailable(t, answer(t, c).err, "the node failed: "+syscall.EIO.Error(), true)
		}
		if !errors.Is(r.Err(), syscall.EIO) {
			t.Fatalf("kept: %v", r.Err())
		}
	})
	t.Run("failed meanwhile", func(t *testing.T) {
		r, _, gate, batch, repeats := proposing(t)
		r.Failed(errors.New("fenced"))
		gate.leave <- syscall.EIO
		for _, c := range append(batch, repeats...) {
			wantUnavailable(t, answer(t, c).err, "fenced", true)
		}
	})
	t.Run("leads again", func(t *testing.T) {
		r, role, gate, batch, repeats := proposing(t)
		r.Lead()
		gate.leave <- nil
		r.Committed(role.next(t))
		wantDone(t, answer(t, batch[0]), Published{Base: 1, Count: 1})
		wantDone(t, answer(t, repeats[0]), Published{Base: 0, Count: 1, Duplicate: true})
	})
}

// committing commits what is proposed before Propose returns.
type committing struct {
	replication.Role
	r *rig
}

func (c committing) Propose(f *wal.Frames) error {
	err := c.Role.Propose(f)
	if err == nil {
		c.r.Committed(c.r.log.Last())
	}
	return err
}

// After a Suspend a failure finds batches in flight that nobody waits for.
func TestSuspendThenFailed(t *testing.T) {
	r, role := newHeldRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	at := role.next(t)
	r.inFlight(1)
	r.Suspend(away)
	wantUnavailable(t, answer(t, first).err, away, true)
	r.Failed(errors.New("fenced"))
	r.inFlight(0)
	_, err := r.Publish(publishOf("a", "id", "one"))
	wantUnavailable(t, err, "the node has failed and must be restarted: fenced", true)
	_, err = r.Publish(publishOf("a", "", "one"))
	wantUnavailable(t, err, "the node has failed and must be restarted: fenced", false)
	r.Committed(at) // too late: nothing of it may be shown any more
	if _, err := r.Fetch(&Fetch{Topic: []byte("a"), Limit: 1}, &list{}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("got %v", err)
	}
}

// The role goes on reading the frames of a batch that Failed has answered: they must not be used for another.
func TestFramesAreTheRolesAfterFailure(t *testing.T) {
	r, role := newHeldRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	role.next(t)
	r.inFlight(1)
	f := &r.flight[0].frames
	want := slices.Clone(f.Payload(0))
	r.Failed(errors.New("the keeper met an error"))
	wantUnavailable(t, answer(t, first).err, "the keeper met an error", true)
	if f.Len() != 1 || !slices.Equal(f.Payload(0), want) {
		t.Fatal("the frames were reset")
	}
}

// A full disk says "nothing was done" to those who asked for something new, and not to a retry of what is in flight.
func TestFullDiskWhileInFlight(t *testing.T) {
	r, role, gate := gatedHeldRig(t)
	first := r.start(publishOf("a", "id", "one"))
	<-gate.enter
	retry := r.start(publishOf("a", "id", "one"))
	r.queued(1)
	retain := make(chan outcome, 1)
	go func() {
		_, err := r.Retain([]byte("a"), 1)
		retain <- outcome{err: err}
	}()
	r.queued(2)
	gate.leave <- nil
	at := role.next(t)
	for range 3 {
		<-gate.enter
		gate.leave <- wal.ErrFull
	}
	if o := answer(t, retain); !errors.Is(o.err, ErrStorageFull) {
		t.Fatalf("got %+v", o)
	}
	wantUnavailable(t, answer(t, retry).err, ErrStorageFull.Error(), true)
	r.Committed(at)
	wantDone(t, answer(t, first), Published{Count: 1})
}

// Where the role may not lead any more, nobody is told "done".
func TestMayNotAnswer(t *testing.T) {
	observer := &duplicates{}
	r, role := newHeldRig(t, nil)
	r.Broker.observer = observer
	role.unsure.Store(true)
	first := r.start(publishOf("a", "id", "one"))
	r.Committed(role.next(t))
	wantUnavailable(t, answer(t, first).err, errNotSure.Reason, true)
	_, err := r.Publish(publishOf("a", "id", "one"))
	wantUnavailable(t, err, errNotSure.Reason, true)
	group := r.startGroup("a", "g", 1)
	r.Committed(role.next(t))
	wantUnavailable(t, answer(t, group).err, errNotSure.Reason, true)
	retain := make(chan outcome, 1)
	go func() {
		_, err := r.Retain([]byte("a"), 0)
		retain <- outcome{err: err}
	}()
	r.Committed(role.next(t))
	wantUnavailable(t, answer(t, retain).err, errNotSure.Reason, true)
	// A refusal rests on nothing that another node could have changed.
	if _, err := r.CommitGroup([]byte("b"), []byte("g"), 1); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("got %v", err)
	}
	if observer.n != 0 {
		t.Fatal("a duplicate was counted that was not answered")
	}
	role.unsure.Store(false)
	if again := r.publish("a", "id", "one"); !again.Duplicate || observer.n != 1 {
		t.Fatalf("got %+v, %d duplicates", again, observer.n)
	}
}

type duplicates struct {
	NoObserver
	n int
}

func (d *duplicates) Duplicate() { d.n++ }

// A follower that goes away while the settings are recorded does not stop the start; they are recorded later.
func TestSettingsWhileUnavailable(t *testing.T) {
	var role *heldRole
	r := newRig(t, func(r *rig) replication.Role {
		role = newHeldRole(r)
		role.away(away)
		return role
	})
	t.Cleanup(func() { role.away("the test is over") })
	if r.log.Last() != 0 {
		t.Fatal("something was proposed")
	}
	role.away("")
	r.Lead()
	r.Committed(role.next(t))
	if got := windowMS(r); got != time.Hour.Milliseconds() {
		t.Fatalf("window %d ms", got)
	}
}

func windowMS(r *rig) (ms int64) {
	r.View(func(s *state.State) { ms = s.WindowMS() })
	return ms
}

// Close ends though nothing can be committed and something is in flight.
func TestCloseWhileUnavailable(t *testing.T) {
	r, role := newHeldRig(t, nil)
	first := r.start(publishOf("a", "id", "one"))
	role.next(t)
	r.inFlight(1)
	role.away(away)
	r.Suspend(away)
	wantUnavailable(t, answer(t, first).err, away, true)
	r.Broker.Close()
	_, err := r.Publish(publishOf("a", "id", "one"))
	wantUnavailable(t, err, "the node is shutting down", true)
}

// Close ends when the role is suspended while the last marker is in flight.
func TestSuspendDuringClose(t *testing.T) {
	r, role := newHeldRig(t, nil)
	closed := make(chan struct{})
	go func() {
		r.Broker.Close()
		close(closed)
	}()
	role.next(t)
	r.Suspend(away)
	<-closed
}
