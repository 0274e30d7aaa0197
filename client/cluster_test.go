package client

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// cluster is some nodes of which one leads, or none.
type cluster struct {
	nodes  []*fake
	leads  atomic.Int32 // -1: none
	points atomic.Int32 // where the others point to; -1: nowhere

	// set before a request can find that no node leads
	wish  string         // how many seconds to wait, say the nodes then
	unled func(node int) // the node calls it before it says so
}

func newCluster(t *testing.T, n int, answer func(w http.ResponseWriter, n int)) *cluster {
	c := &cluster{wish: "1", unled: func(int) {}}
	for i := range n {
		c.nodes = append(c.nodes, newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
			switch at := int(c.points.Load()); {
			case int(c.leads.Load()) == i:
				answer(w, n)
			case at == i || at < 0:
				c.unled(i)
				w.Header().Set("Retry-After", c.wish)
				say(w, 503, `{"code":"unavailable","message":"no node leads"}`)
			default:
				notLeader(w, c.nodes[at].URL+r.URL.Path)
			}
		}))
	}
	return c
}

func (c *cluster) asked() (n int) {
	for _, f := range c.nodes {
		n += len(f.got())
	}
	return n
}

func stored(w http.ResponseWriter, _ int) { say(w, 200, `{"offset":7}`) }

// checkPause checks the pause of a call that began since ago: while a leader is looked for it is short.
func checkPause(t *testing.T, since, pause time.Duration) {
	t.Helper()
	if since < quickFor && pause > quickPauseMax {
		t.Errorf("a pause of %v after %v", pause, since)
	}
}

// TestClusterTransfer: while the lead is handed over the client asks again and again, with the same request id, whatever
// the nodes say about how long to wait; so it loses little time.
func TestClusterTransfer(t *testing.T) {
	late := transfer(t)
	for tries := 1; late > 500*time.Millisecond && tries < 5; tries++ { // where this process got no time
		late = min(late, transfer(t))
	}
	if late > 500*time.Millisecond {
		t.Errorf("the new leader was found %v after it leads, at best", late)
	}
}

// transfer hands the lead over during a call, and returns how long after that the call ended.
func transfer(t *testing.T) (late time.Duration) {
	t.Helper()
	c := newCluster(t, 3, stored)
	c.leads.Store(0)
	c.points.Store(0)
	var began time.Time
	mq, err := New(Config{
		Nodes:    []string{c.nodes[0].URL, c.nodes[1].URL, c.nodes[2].URL},
		Retrying: func(_ *Error, _, pause time.Duration) { checkPause(t, time.Since(began), pause) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer mq.Close()
	if _, err := publish(mq, PublishOptions{}); err != nil || c.asked() != 1 {
		t.Fatalf("%v after %d requests", err, c.asked())
	}
	const gap = 150 * time.Millisecond
	began = time.Now()
	var handed time.Time
	c.unled = func(node int) { // node 2 still says that none leads: it takes another round
		if node == 2 && time.Since(began) > gap && c.asked() >= 6 && handed.IsZero() {
			handed = time.Now()
			c.points.Store(2)
			c.leads.Store(2)
		}
	}
	c.points.Store(-1)
	c.leads.Store(-1)
	if p, err := publish(mq, PublishOptions{}); err != nil || p.Offset != 7 {
		t.Fatalf("%+v, %v", p, err)
	}
	late = time.Since(handed)
	got := c.nodes[0].got()
	id := requestID(t, got[len(got)-1])
	for _, f := range c.nodes {
		for i, r := range f.got() {
			if f == c.nodes[0] && i == 0 {
				continue // the publish before
			}
			if requestID(t, r) != id {
				t.Error("another request id")
			}
		}
	}
	if n := c.asked(); n < 6 || n > 200 {
		t.Errorf("%d requests", n)
	}
	before := len(c.nodes[2].got())
	if _, err := publish(mq, PublishOptions{}); err != nil || len(c.nodes[2].got()) != before+1 {
		t.Errorf("%v: the leader was not remembered", err)
	}
	return late
}

// TestClusterPointsToTheDead: the followers still point to the leader that is gone, and the one that leads now is asked
// all the same, before any pause.
func TestClusterPointsToTheDead(t *testing.T) {
	for lead := 1; lead < 5; lead++ {
		c := newCluster(t, 5, stored)
		c.nodes[0].URL = noNode
		c.points.Store(0)
		c.leads.Store(int32(lead))
		mq := quick(t, Config{Retry: Retry{For: 10 * time.Second, Backoff: time.Hour, BackoffMax: time.Hour}}, c.nodes...)
		if _, err := publish(mq, PublishOptions{NoRequestID: true}); err != nil || c.asked() != lead {
			t.Errorf("node %d leads: %v after %d requests", lead, err, c.asked())
		}
	}
}

// TestClusterUnknownOutcome: what the old leader does not know is asked again, at the next one, only with a request id.
func TestClusterUnknownOutcome(t *testing.T) {
	for _, without := range []bool{false, true} {
		var c *cluster
		c = newCluster(t, 3, func(w http.ResponseWriter, _ int) {
			if c.leads.CompareAndSwap(0, 1) {
				c.points.Store(1)
				say(w, 503, unknownAnswer)
				return
			}
			say(w, 200, `{"offset":7,"duplicate":true}`)
		})
		p, err := publish(quick(t, Config{}, c.nodes...), PublishOptions{NoRequestID: without})
		if without {
			if e := asError(t, err); !e.Unknown || e.Code != ErrUnavailable || c.asked() != 1 {
				t.Errorf("got %+v after %d requests", e, c.asked())
			}
		} else if err != nil || !p.Duplicate || p.Offset != 7 {
			t.Errorf("got %+v, %v", p, err)
		}
	}
}

// TestClusterForeignLeader: a redirect to a node that is not configured is named, and gets no token.
func TestClusterForeignLeader(t *testing.T) {
	stranger := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { stored(w, n) })
	node := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { notLeader(w, stranger.URL+r.URL.Path) })
	_, err := publish(quick(t, Config{Token: "canary"}, node, node), PublishOptions{})
	e := asError(t, err)
	if e.Code != ErrForeignRedirect || e.Unknown || !strings.Contains(e.Message, stranger.URL) || len(stranger.got()) != 0 {
		t.Errorf("got %+v", e)
	}
}

// TestClusterBacksOff: when there is no leader for long, the nodes are given the time that they ask for.
func TestClusterBacksOff(t *testing.T) {
	t.Parallel()
	r := Retry{}.withDefaults()
	for round := 1; round < 100; round++ {
		full := min(quickPauseMax, quickPause<<min(round-1, 10))
		if d := r.quick(round); d < full/2 || d > full {
			t.Errorf("round %d: %v, want %v to %v", round, d, full/2, full)
		}
	}
	c := newCluster(t, 3, stored)
	c.wish = "20"
	c.leads.Store(-1)
	c.points.Store(-1)
	began := time.Now()
	mq, err := New(Config{
		Nodes: []string{c.nodes[0].URL, c.nodes[1].URL, c.nodes[2].URL},
		Retry: Retry{For: 10 * time.Second},
		Retrying: func(_ *Error, since, pause time.Duration) {
			checkPause(t, time.Since(began), pause)
			if since > quickFor+time.Second {
				t.Errorf("another round after %v", since)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer mq.Close()
	_, err = publish(mq, PublishOptions{})
	e := asError(t, err)
	if e.Code != ErrUnavailable || e.Unknown || e.RetryAfter != 20*time.Second {
		t.Errorf("got %+v", e)
	}
	if d := time.Since(began); d < quickFor || d > 8*time.Second { // the time that it is asked for then is beyond the end
		t.Errorf("it took %v", d)
	}
	// At least 25 ms a round, but for the first ones.
	if n, most := c.asked(), int(3*(quickFor/(quickPauseMax/2)+4)); n > most || n < 6 {
		t.Errorf("%d requests, want at most %d", n, most)
	}
}

// TestGatewayIsNoCluster: the short pauses are for nodes that say that they do not lead, not for what is in between.
func TestGatewayIsNoCluster(t *testing.T) {
	busy := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n < 2 {
			w.Header().Set("Retry-After", "1")
			say(w, 429, "")
			return
		}
		say(w, 200, `{"offset":1}`)
	})
	began := time.Now()
	if _, err := publish(quick(t, Config{}, busy, busy), PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 900*time.Millisecond {
		t.Errorf("the second round came after %v", d)
	}
}
