// Package load puts a broker under the load of many clients and lets a history.Checker judge every answer:
// publishers that retry with the same request id until they know the outcome, group consumers, readers that
// poll all the time, and an administrator that moves topics' starts and asks for snapshots.
//
// A Load outlives the processes it is pointed at: what a publisher does not know when one dies, it finds
// out from the next.
package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/test/history"
)

// Config says what load to make. Zero means default.
type Config struct {
	Seed       uint64
	Topics     []string
	Publishers int  // default 8; less than 0: none
	Consumers  int  // groups, each with one consumer of all topics; default 4; less than 0: none
	Readers    int  // default 2; less than 0: none
	ValueMax   int  // of the large values, in bytes; default 64 KiB
	Large      int  // how many of 100 values are large; default 3
	Quiet      bool // no administrator
	// Churn adds topics with settings that move their starts, topics that are deleted and published to again, one that keeps
	// everything, and a client that does all that.
	Churn bool

	// RepeatMax is how old a publish may be that is sent again; 0 for any age. It must be less than how long the broker
	// remembers request ids.
	RepeatMax time.Duration

	// Checker and Prefix are for a Load that works beside another one on the same broker: they share the Checker, and
	// names, groups and request ids begin with a Prefix of their own.
	Checker *history.Checker
	Prefix  string
}

// Load is the state of all clients.
type Load struct {
	Checker *history.Checker
	cfg     Config

	publishers []*publisher
	consumers  []*consumer
	readers    []*reader
	admin      *rand.Rand
	churner    *churner     // nil for none
	deletes    atomic.Int64 // topics that were deleted

	mu       sync.Mutex        // guards what follows
	verified map[string]uint64 // per topic: all below was read back after a restart
	strange  []string          // answers that no client should get
	statuses map[int]int       // how many answers had which status; 0 stands for none
	probes   int
	failed   time.Time     // when the first publish of this Run was answered 5xx, except 507; zero: none was
	late     int           // publishes that were sent after failed and acknowledged all the same
	last     time.Time     // when the publish was sent that was sent last of all that were acknowledged
	acked    time.Time     // when a publish was acknowledged last, apart from repeats
	gap      time.Duration // the longest time between two such acknowledgements
}

// New returns a Load whose clients have not begun.
func New(cfg Config) *Load {
	if len(cfg.Topics) == 0 {
		// Names are names and never paths.
		cfg.Topics = []string{"orders", "../../etc/passwd", "Grüße/Σ", "audit log"}
	}
	if cfg.Churn {
		for _, s := range settings {
			cfg.Topics = append(cfg.Topics, cfg.Prefix+s.topic)
		}
		cfg.Topics = append(cfg.Topics[:len(cfg.Topics):len(cfg.Topics)], cfg.Prefix+lasting)
	}
	cfg.Publishers = otherwise(cfg.Publishers, 8)
	cfg.Consumers = otherwise(cfg.Consumers, 4)
	cfg.Readers = otherwise(cfg.Readers, 2)
	cfg.ValueMax = otherwise(cfg.ValueMax, 64<<10)
	cfg.Large = otherwise(cfg.Large, 3)
	if cfg.Checker == nil {
		cfg.Checker = history.New()
	}
	l := &Load{
		Checker: cfg.Checker, cfg: cfg, verified: map[string]uint64{}, statuses: map[int]int{},
		admin: rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
	for i := range cfg.Publishers {
		l.publishers = append(l.publishers, newPublisher(l, i))
	}
	for i := range cfg.Consumers {
		l.consumers = append(l.consumers, newConsumer(l, i))
	}
	for i := range cfg.Readers {
		l.readers = append(l.readers, newReader(l, i))
	}
	if cfg.Churn {
		l.churner = newChurner(l)
	}
	return l
}

// Deletes returns how often a topic was deleted.
func (l *Load) Deletes() int64 { return l.deletes.Load() }

func otherwise(n, standard int) int {
	if n == 0 {
		return standard
	}
	return max(0, n)
}

// Run lets all clients work with the process at url until ctx is done or the process is dead. It returns
// when all clients have stopped.
func (l *Load) Run(ctx context.Context, url string) {
	c := NewClient(url)
	defer c.Close()
	l.RunBy(ctx, c)
}

// RunBy is Run by way of a client.
func (l *Load) RunBy(ctx context.Context, c *Client) {
	l.mu.Lock()
	l.failed, l.late = time.Time{}, 0
	l.mu.Unlock()
	var clients sync.WaitGroup
	for _, p := range l.publishers {
		clients.Go(func() { p.run(ctx, c) })
	}
	for _, g := range l.consumers {
		clients.Go(func() { g.run(ctx, c) })
	}
	for _, r := range l.readers {
		clients.Go(func() { r.run(ctx, c) })
	}
	if l.churner != nil {
		clients.Go(func() { l.churner.run(ctx, c) })
	}
	if !l.cfg.Quiet {
		clients.Go(func() { l.administrate(ctx, c) })
	}
	clients.Wait()
}

// administrate moves starts and asks for snapshots. Starts are moved only over records that were read back,
// so that every acknowledged record is looked for at least once after a restart.
func (l *Load) administrate(ctx context.Context, c *Client) {
	for pause(ctx, time.Duration(2+l.admin.IntN(15))*time.Millisecond) {
		var a Answer
		moved := false // the start may be higher than it is known to be: a retain that was not answered may have been done
		if l.admin.IntN(4) == 0 {
			a = l.note(c.Snapshot(ctx))
		} else {
			topic := l.cfg.Topics[l.admin.IntN(len(l.cfg.Topics))]
			start, _ := l.Checker.Bounds(topic)
			verified := l.Verified(topic)
			if verified <= start || topic == l.cfg.Prefix+lasting {
				continue
			}
			// Mostly nearly all of it, so that segments die.
			to := verified - l.admin.Uint64N(min(verified-start, 50))
			if l.admin.IntN(4) == 0 {
				to = start + l.admin.Uint64N(verified-start)
			}
			moved = to < l.Checker.StartMost(topic)
			a = l.note(c.retain(ctx, l.Checker, topic, to))
		}
		switch {
		case a.Status == 0:
			if !c.goesOn(ctx) {
				return
			}
		case a.refused() && (!moved || a.Code != "offset_out_of_range"):
			l.strangeAnswer("admin call", a)
		}
	}
}

// Verified returns how far a topic was read back.
func (l *Load) Verified(topic string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.verified[topic]
}

// note counts an answer and hands it on. An answer of 500 is never right.
func (l *Load) note(a Answer) Answer {
	l.mu.Lock()
	l.statuses[a.Status]++
	l.mu.Unlock()
	if a.Status == http.StatusInternalServerError || a.Code == "unreadable" {
		l.strangeAnswer("call", a)
	}
	return a
}

// notePublish notes when publishes begin to fail, and what is acknowledged after that. A repeat that is
// answered from memory acknowledges nothing new.
func (l *Load) notePublish(began time.Time, a Answer, duplicate bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Outcome == Done && !duplicate {
		now := time.Now()
		l.gap, l.acked = max(l.gap, now.Sub(l.acked)), now
		if began.After(l.last) {
			l.last = began
		}
	}
	switch {
	case a.Outcome == Done && !duplicate && !l.failed.IsZero() && began.After(l.failed):
		l.late++
	case a.Status >= 500 && a.Status != http.StatusInsufficientStorage && l.failed.IsZero():
		l.failed = time.Now()
	}
}

// Failed reports whether a publish of this Run was answered 5xx, except 507, and how many publishes were
// acknowledged that were sent after that answer.
func (l *Load) Failed() (failed bool, late int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.failed.IsZero(), l.late
}

func (l *Load) strangeAnswer(what string, a Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 20
	if len(l.strange) < most {
		l.strange = append(l.strange, fmt.Sprintf("%s: %v", what, a))
	}
}

// Statuses returns how many answers had which status; 0 stands for no answer.
func (l *Load) Statuses() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := map[int]int{}
	for status, n := range l.statuses {
		m[status] = n
	}
	return m
}

// LastAcknowledged returns when the publish was sent that was sent last of all that were acknowledged, apart
// from repeats.
func (l *Load) LastAcknowledged() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// ForgetGap begins to measure LongestGap anew.
func (l *Load) ForgetGap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap, l.acked = 0, time.Now()
}

// LongestGap returns the longest time without an acknowledged publish since ForgetGap.
func (l *Load) LongestGap() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.gap, time.Since(l.acked))
}

// ForgetStatuses begins to count answers anew.
func (l *Load) ForgetStatuses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.statuses)
}

// Err returns an error that lists violations and strange answers, or nil.
func (l *Load) Err() error {
	if err := l.Checker.Report().Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.strange) > 0 {
		return fmt.Errorf("answers that no client should get: %q", l.strange)
	}
	return nil
}

// pause waits for d and reports whether ctx is still open.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
