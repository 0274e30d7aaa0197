package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// isWrite reports whether a path is that of a call that a leader must not acknowledge alone.
func isWrite(path string) bool {
	return path != "/v1/fetch" && path != "/v1/groups/fetch" && path != "/v1/snapshot"
}

const (
	// replicaTimeout is the default of -replica-timeout.
	replicaTimeout = 2 * time.Second
	// slack is what a busy machine may add, and slackSyncs how many syncs a busy disk: a publish waits for two, and for what was
	// under way before them.
	slack      = time.Second
	slackSyncs = 4
	// backMax is how long writes may take to come back by themselves when the follower is back.
	backMax = 8 * time.Second
)

// wantRefusals checks what a leader answers whose follower has been silent since an instant: what is in flight is called
// unknown in time, what comes later is refused at once, and reads go on. It returns how many writes are unknown, and how
// long the slowest took.
func (p *pair) wantRefusals(l *load.Load, c *load.Client, a *answers, since time.Time) (unknown int, slowest time.Duration) {
	p.t.Helper()
	syncs := process.TimeSyncs(p.t, p.dir)
	p.await("writes are refused at once", func() string {
		if _, _, refused := a.writes(since); refused > 20 {
			return ""
		}
		return fmt.Sprint(l.Statuses())
	})
	refusing := time.Now()
	unknown, slowest, _ = a.writes(since)
	if unknown == 0 {
		p.t.Error("no write was in flight")
	}
	slowestSync := syncs.Slowest()
	if most := replicaTimeout + slack + slackSyncs*slowestSync; slowest > most {
		p.t.Errorf("a write was answered after %v, want at most %v, with syncs of %v", slowest, most, slowestSync)
	}
	fastest := patience
	for range 20 { // new writes; what the load sends again may still be in flight
		syncs.Forget()
		a, slowestSync := l.Probe(p.t.Context(), c, 0), syncs.Slowest()
		fastest = min(fastest, a.Took)
		if a.Outcome != load.NotDone || a.Status != http.StatusServiceUnavailable || a.Took > slack+slackSyncs*slowestSync {
			p.t.Errorf("a publish with the follower known to be silent: %v, with syncs of %v; want 503 and nothing done, at once", a, slowestSync)
		}
	}
	syncs.Stop()
	if fastest > slack {
		p.t.Errorf("no publish is refused before %v", fastest)
	}
	p.await("reads go on", func() string {
		if a.reads(refusing) > 20 {
			return ""
		}
		return fmt.Sprint(l.Statuses())
	})
	return unknown, slowest
}

// answers keeps what clients heard.
type answers struct {
	mu   sync.Mutex
	list []heard
}

type heard struct {
	load.Answer
	url  string
	path string
	at   time.Time // when it came
}

func (a *answers) hear(url, path string, answer load.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, heard{answer, url, path, time.Now()})
}

func (a *answers) all() []heard {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list
}

// writes counts the answers to writes since an instant that are 503: unknown or refused. slowest is how long any
// answer took of a write that was sent after it.
func (a *answers) writes(since time.Time) (unknown int, slowest time.Duration, refused int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.list {
		if !isWrite(h.path) || h.at.Before(since) {
			continue
		}
		slowest = max(slowest, min(h.Took, h.at.Sub(since)))
		switch {
		case h.Status != http.StatusServiceUnavailable:
		case h.Outcome == load.Unknown && strings.Contains(h.Message, "unknown"):
			unknown++
		case h.Outcome == load.NotDone && strings.Contains(h.Message, "nothing was done"):
			refused++
		}
	}
	return unknown, slowest, refused
}

// reads counts the reads that were answered 200 since an instant.
func (a *answers) reads(since time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.list {
		if !isWrite(h.path) && h.at.After(since) && h.Outcome == load.Done {
			n++
		}
	}
	return n
}
