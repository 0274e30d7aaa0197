package replicationtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

// Losable is a role that can lose its lead to another node, with the means to make it.
type Losable struct {
	replication.Role
	// Lose makes another node lead, that this one is in touch with, and returns once it does.
	Lose func(t *testing.T)
	// Regain makes this node lead again, and returns once the role has heard of it; Lead may come later.
	Regain func(t *testing.T)
}

// MakeLosable is Make for a role that can lose its lead.
type MakeLosable func(t *testing.T, log *wal.Log, applier replication.Applier) Losable

// RunLosable runs what a role must do that can lose its lead, besides Run. The applier checks that no entry is reported
// twice or left out, however it is reported, and that Lead comes when all that is in the log has been.
func RunLosable(t *testing.T, makeRole MakeLosable) {
	var made Losable
	simple := func(t *testing.T, log *wal.Log, applier replication.Applier) replication.Role {
		made = makeRole(t, log, applier)
		return made.Role
	}
	t.Run("NoConfirmBeforeLead", func(t *testing.T) {
		r := newRig(t, simple, 0)
		if err := r.Confirm(t.Context()); !errors.Is(err, replication.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("LosesAndRegains", func(t *testing.T) {
		r := start(t, simple)
		for round := range 3 {
			for n := range 10 {
				if err := r.Propose(frames(fmt.Sprint(round, "-", n), 1+n%3)); err != nil {
					t.Fatal(err)
				}
			}
			made.Lose(t)
			r.await(t, "told to follow", func() bool { return r.follows == round+1 && !r.leads })
			if err := r.propose(1); !errors.Is(err, replication.ErrUnavailable) {
				t.Fatalf("a proposal while another node leads: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if err := r.Confirm(ctx); !errors.Is(err, replication.ErrUnavailable) {
				t.Fatalf("confirmed while another node leads: %v", err)
			}
			cancel()
			if err := r.Status().Err; err != nil {
				t.Fatal(err)
			}
			made.Regain(t)
			r.await(t, "told to lead again", func() bool { return r.leads })
			r.base = r.log.Last()
		}
		if err := r.propose(2); err != nil {
			t.Fatal(err)
		}
		r.awaitCommitted(t, r.base+2)
		if err := r.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("CloseWhileFollowing", func(t *testing.T) {
		r := start(t, simple)
		made.Lose(t)
		r.await(t, "told to follow", func() bool { return !r.leads })
		if err := r.Role.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.propose(1); !errors.Is(err, replication.ErrStopped) {
			t.Fatalf("got %v", err)
		}
	})
}
