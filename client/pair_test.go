package client

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// follower answers as the follower of a pair does.
func follower(w http.ResponseWriter, _ *http.Request, _ int) {
	w.Header().Set("Retry-After", "60")
	say(w, 503, `{"code":"not_leader","message":"this node is the follower"}`)
}

// TestPair: a call that meets the follower goes on to the leader at once, and later calls begin there.
func TestPair(t *testing.T) {
	backup := newFake(t, follower)
	leader := newFake(t, func(w http.ResponseWriter, _ *http.Request, n int) { say(w, 200, `{"offset":7}`) })
	c := quick(t, Config{Retrying: func(failed *Error, _, pause time.Duration) {
		t.Errorf("a pause of %v after %v", pause, failed)
	}}, backup, leader)
	began := time.Now()
	for range 3 {
		// Even what may not be sent twice: the follower has certainly done nothing.
		if p, err := publish(c, PublishOptions{NoRequestID: true}); err != nil || p.Offset != 7 {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v: the pause that the follower asks for is not for the leader", d)
	}
	if n, m := len(backup.got()), len(leader.got()); n != 1 || m != 3 {
		t.Errorf("the follower was asked %d times, the leader %d times; want 1 and 3", n, m)
	}
}

// TestPairPromoted: the leader is gone; the client finds the new one within its budget.
func TestPairPromoted(t *testing.T) {
	gone := newFake(t, func(http.ResponseWriter, *http.Request, int) { hangUp() })
	promoted := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n < 3 {
			say(w, 503, `{"code":"not_leader","message":"m"}`)
			return
		}
		say(w, 200, `{"offset":7}`)
	})
	c := quick(t, Config{}, gone, promoted)
	if p, err := publish(c, PublishOptions{}); err != nil || p.Offset != 7 {
		t.Fatalf("%+v, %v", p, err)
	}
	if n := len(promoted.got()); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}

// TestPairTellsWhatTheLeaderSaid: when the budget is used up, the error is that of the node that leads, or should.
func TestPairTellsWhatTheLeaderSaid(t *testing.T) {
	t.Parallel()
	away := func(w http.ResponseWriter, _ *http.Request, n int) {
		w.Header().Set("Retry-After", "60")
		say(w, 503, `{"code":"unavailable","message":"the follower is away","outcome_unknown":true}`)
	}
	// There is time to ask the second node, however late the first one answers. Once the short pauses are over, the nodes
	// ask for more time than is left. The calls are made at once, because each takes that long.
	said := func(nodes ...*fake) chan error {
		c := quick(t, Config{Retry: Retry{For: 20 * time.Second, Backoff: time.Millisecond}}, nodes...)
		ended := make(chan error, 1)
		go func() {
			_, err := publish(c, PublishOptions{})
			ended <- err
		}()
		return ended
	}
	var leaders, backups [2]*fake
	for i := range leaders {
		leaders[i], backups[i] = newFake(t, away), newFake(t, follower)
	}
	gone, backup := newFake(t, func(http.ResponseWriter, *http.Request, int) { hangUp() }), newFake(t, follower)
	byLeaders := [2]chan error{said(leaders[0], backups[0]), said(backups[1], leaders[1])}
	byGone, byFollowers := said(gone, backup), said(backup, backup)
	for i, leader := range leaders {
		e := asError(t, <-byLeaders[i])
		if sent := len(leader.got()) + len(backups[i].got()); e.Attempts != sent {
			t.Errorf("%d attempts, but %d requests", e.Attempts, sent)
		}
		if e.Code != ErrUnavailable || e.Node != leader.URL || !strings.Contains(e.Message, "away") || !e.Unknown || e.Attempts < 2 {
			t.Errorf("%+v", e)
		}
	}
	if e := asError(t, <-byGone); e.Code != ErrTransport || e.Node != gone.URL || !e.Unknown || e.Attempts < 2 {
		t.Errorf("%+v", e)
	}
	// Of two followers there is nothing else to say.
	err := <-byFollowers
	if e := asError(t, err); !errors.Is(err, ErrNotLeader) || e.Unknown || e.Attempts < 2 {
		t.Errorf("%+v", e)
	}
}
