package broker

import (
	"fmt"
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
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/standalone"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// configure sets limits of a topic.
func (r *rig) configure(topic string, c Configure) Settings {
	r.t.Helper()
	c.Topic = []byte(topic)
	s, err := r.ConfigureTopic(&c)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func limit(n fact.Limit) *fact.Limit { return &n }

// wantStart checks where a topic starts, and that the fold knows how many bytes it keeps.
func (r *rig) wantStart(topic string, start fact.Offset) {
	r.t.Helper()
	t := r.topic(topic)
	if t.Start != start {
		r.t.Fatalf("topic %s starts at %d, want %d", topic, t.Start, start)
	}
	if t.Records() == 0 {
		return
	}
	l := r.lookerOf(t, 0)
	defer l.release()
	if s, ok, err := l.at(t.Nth(0)); err == nil && ok && s.cum != t.StartCum {
		r.t.Fatalf("topic %s starts at %d: the fold says that %d bytes are before, the log %d", topic, start, t.StartCum, s.cum)
	}
}

// publishTen publishes the records 0 to 9: record i is of i+1 bytes and of the time i*10 s after the first.
func (r *rig) publishTen(topic string) {
	r.t.Helper()
	for i := range 10 {
		if i > 0 {
			r.clock.Step(10 * time.Second)
		}
		r.publish(topic, "", strings.Repeat("x", i)) // and a key of one byte
	}
}

// Each limit keeps exactly what it allows, and all of them together what the strictest does.
func TestPolicyKeepsExactlyWhatLimitsAllow(t *testing.T) {
	const none = fact.LimitNone
	for _, c := range []struct {
		what          string
		own, defaults fact.Retention
		after         time.Duration // of the last record, which is 90 s after the first
		want          fact.Offset
	}{
		{"no limit", fact.Retention{}, fact.Retention{}, 1000 * time.Hour, 0},
		{"none, own", fact.Retention{MS: none, Bytes: none, Records: none}, fact.Retention{MS: 1, Bytes: 1, Records: 1}, time.Hour, 0},
		{"as many records", fact.Retention{Records: 10}, fact.Retention{}, 0, 0},
		{"one record more", fact.Retention{Records: 9}, fact.Retention{}, 0, 1},
		{"one record kept", fact.Retention{Records: 1}, fact.Retention{}, 0, 9},
		{"records by default", fact.Retention{}, fact.Retention{Records: 4}, 0, 6},
		{"own records", fact.Retention{Records: 5}, fact.Retention{Records: 4}, 0, 5},
		{"as many bytes", fact.Retention{Bytes: 55}, fact.Retention{}, 0, 0},
		{"one byte more", fact.Retention{Bytes: 54}, fact.Retention{}, 0, 1},
		{"bytes of two records", fact.Retention{Bytes: 19}, fact.Retention{}, 0, 8},
		{"not quite the bytes of two records", fact.Retention{Bytes: 18}, fact.Retention{}, 0, 9},
		{"the bytes of one record", fact.Retention{Bytes: 10}, fact.Retention{}, 0, 9},
		{"less than one record", fact.Retention{Bytes: 9}, fact.Retention{}, 0, 10},
		{"bytes by default", fact.Retention{}, fact.Retention{Bytes: 54}, 0, 1},
		{"just old enough to stay", fact.Retention{MS: 100_000}, fact.Retention{}, 10 * time.Second, 0},
		{"1 ms too old", fact.Retention{MS: 99_999}, fact.Retention{}, 10 * time.Second, 1},
		{"the last one stays", fact.Retention{MS: 10_000}, fact.Retention{}, 10 * time.Second, 9},
		{"all too old", fact.Retention{MS: 9_999}, fact.Retention{}, 10 * time.Second, 10},
		{"age by default", fact.Retention{}, fact.Retention{MS: 50_000}, 0, 4},
		{"none instead of the default", fact.Retention{MS: none}, fact.Retention{MS: 50_000, Records: 8}, 0, 2},
		{"records strictest", fact.Retention{MS: 50_000, Bytes: 54, Records: 3}, fact.Retention{}, 0, 7},
		{"bytes strictest", fact.Retention{MS: 50_000, Bytes: 19, Records: 9}, fact.Retention{}, 0, 8},
		{"age strictest", fact.Retention{MS: 50_000, Bytes: 54, Records: 9}, fact.Retention{}, 0, 4},
		{"longer than time is", fact.Retention{MS: fact.OffsetMax, Bytes: fact.OffsetMax, Records: fact.OffsetMax}, fact.Retention{}, time.Hour, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, nil)
			r.Broker.retention = c.defaults
			r.publishTen("a")
			r.configure("a", Configure{RetentionMS: &c.own.MS, RetentionBytes: &c.own.Bytes, RetentionRecords: &c.own.Records})
			r.clock.Step(c.after)
			p := &policy{b: r.Broker}
			p.pass()
			r.wantStart("a", c.want)
			before := r.Applied()
			p.pass()
			r.wantStart("a", c.want)
			if r.Applied() != before {
				t.Fatal("the second pass has logged something though nothing was left to do")
			}
		})
	}
}

// With a reset the defaults count again, and who is configured anew is looked at anew.
func TestPolicyFollowsSettings(t *testing.T) {
	r := newRig(t, nil)
	r.Broker.retention = fact.Retention{Records: 8}
	r.publishTen("a")
	p := &policy{b: r.Broker}
	r.configure("a", Configure{RetentionRecords: limit(fact.LimitNone), RetentionMS: limit(3600_000)})
	p.pass()
	r.wantStart("a", 0)
	r.configure("a", Configure{RetentionMS: limit(80_000)})
	p.pass()
	r.wantStart("a", 1)
	r.configure("a", Configure{Reset: true})
	p.pass()
	r.wantStart("a", 2)
	if got := r.configure("a", Configure{RetentionRecords: limit(fact.LimitNone)}); got.Effective.Records != fact.LimitNone {
		t.Fatalf("got %+v", got)
	}
	r.publishTen("a")
	p.pass()
	r.wantStart("a", 2)
}

// A start that a limit has found is not moved when a client has been told meanwhile that other limits hold.
func TestPolicyMeetsNewSettings(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.configure("a", Configure{RetentionRecords: limit(3)})
	before := r.topic("a")
	to := found{off: before.End, cum: before.EndCum}
	move := func() {
		m := mover{b: r.Broker, tenure: r.tenure.Load(), room: make(chan struct{}, policyFacts)}
		m.move(&before, to)
		m.sent.Wait()
		if m.failed.Load() {
			t.Error("it counts as a failure")
		}
	}
	r.configure("a", Configure{RetentionRecords: limit(fact.LimitNone)})
	move()
	r.wantStart("a", 0)
	r.configure("a", Configure{RetentionRecords: limit(3)}) // what the policy has seen
	move()
	r.wantStart("a", before.End)
}

// What arrives steadily is dropped in steps of a hundredth of the limit, each of which drops all that is too old by then.
func TestPolicyMovesByTimeInSteps(t *testing.T) {
	r := newRig(t, nil)
	p := &policy{b: r.Broker}
	r.publish("a", "", "first")
	r.configure("a", Configure{RetentionMS: limit(1000_000)})
	var moves []string
	var seen fact.Offset
	for s := 1; s <= 1040; s++ {
		r.clock.Step(time.Second)
		r.publish("a", "", "x")
		p.pass()
		if start := r.topic("a").Start; start != seen {
			moves, seen = append(moves, fmt.Sprintf("%d s: %d", s, start)), start
		}
	}
	want := []string{"1001 s: 1", "1011 s: 11", "1021 s: 21", "1031 s: 31"}
	if !slices.Equal(moves, want) {
		t.Fatalf("got %q, want %q", moves, want)
	}
}

// A topic with a limit of time is read once, and then not before it is due; one without is not read at all, nor is one that is
// within its limits of records and bytes.
func TestPolicyReadsOnlyWhatIsDue(t *testing.T) {
	r := newRig(t, nil)
	p := &policy{b: r.Broker}
	const n = 600
	for i := range n {
		name := fmt.Sprint("timed-", i)
		r.publish(name, "", "x")
		r.configure(name, Configure{RetentionMS: limit(60_000)})
		r.publish(fmt.Sprint("free-", i), "", "x")
		name = fmt.Sprint("within-", i)
		r.publish(name, "", "x")
		r.configure(name, Configure{RetentionBytes: limit(2), RetentionRecords: limit(1)})
	}
	log := r.sicken()
	pass := func(want int) {
		t.Helper()
		log.reads = 0
		p.pass()
		if log.reads != want {
			t.Fatalf("the pass has read %d times, want %d", log.reads, want)
		}
	}
	pass(n)
	pass(0)
	for range 59 {
		r.publish("free-0", "", "x")
		r.clock.Step(time.Second)
		pass(0)
	}
	if len(p.heads) != n {
		t.Fatalf("%d topics are remembered, want %d", len(p.heads), n)
	}
	r.clock.Step(time.Second)
	pass(0) // due only when it is older than the limit
	r.clock.Step(time.Millisecond)
	p.pass()
	for i := range n {
		r.wantStart(fmt.Sprint("timed-", i), 1)
		r.wantStart(fmt.Sprint("within-", i), 0)
	}
	for i := range n {
		r.publish(fmt.Sprint("timed-", i), "", "x")
		r.configure(fmt.Sprint("timed-", i), Configure{Reset: true})
	}
	p.pass()
	if len(p.heads) > listStep {
		t.Fatalf("%d topics are remembered that have no limit any more", len(p.heads))
	}
}

// A policy that was due when the node went down is carried out when it is back.
func TestPolicyAfterRestart(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.configure("a", Configure{RetentionMS: limit(60_000)})
	r.clock.Step(10 * time.Second)
	r.reopen()
	r.wantStart("a", 0)
	p := &policy{b: r.Broker}
	p.pass()
	r.wantStart("a", 4)
}

// Damage does not stop retention, and what it cannot tell about is kept rather than dropped.
func TestPolicyPassesDamage(t *testing.T) {
	for _, c := range []struct {
		what    string
		damaged []int
		set     Configure
		want    fact.Offset
		cum     uint64
	}{
		{"records, all damaged before", []int{0, 1, 2, 3}, Configure{RetentionRecords: limit(6)}, 4, 10},
		{"records, to a damaged one", []int{3, 4, 5}, Configure{RetentionRecords: limit(6)}, 4, 21},
		{"records, behind a damaged one", []int{3, 5}, Configure{RetentionRecords: limit(5)}, 5, 15},
		{"records, all damaged", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Configure{RetentionRecords: limit(6)}, 4, 55},
		{"bytes, all damaged before", []int{0, 1, 2, 3}, Configure{RetentionBytes: limit(40)}, 5, 15},
		{"bytes, the one to start at is damaged", []int{5}, Configure{RetentionBytes: limit(40)}, 5, 15},
		{"bytes, to start amid damage", []int{4, 5, 6}, Configure{RetentionBytes: limit(40)}, 4, 10},
		{"age, all damaged before", []int{0, 1, 2, 3}, Configure{RetentionMS: limit(40_000)}, 5, 15},
		{"age, amid damage", []int{4, 5, 6}, Configure{RetentionMS: limit(40_000)}, 4, 10},
		{"age, only the oldest damaged", []int{0}, Configure{RetentionMS: limit(90_000)}, 0, 0},
		{"age, all damaged", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Configure{RetentionMS: limit(10)}, 0, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, nil)
			r.publishTen("a")
			r.configure("a", c.set)
			frames, log := r.frames("a"), r.sicken()
			for _, i := range c.damaged {
				log.bad[frames[i].at] = true
			}
			p := &policy{b: r.Broker}
			p.pass()
			if topic := r.topic("a"); topic.Start != c.want || topic.StartCum != c.cum {
				t.Fatalf("it starts at %d with %d bytes before, want %d and %d", topic.Start, topic.StartCum, c.want, c.cum)
			}
			p.pass() // it may have to find out that it gets no further
			reads := log.reads
			for range 5 {
				r.publish("other", "", "x")
				p.pass()
			}
			if log.reads != reads {
				t.Fatalf("%d more reads of the same damage", log.reads-reads)
			}
			clear(log.bad) // another node had the records
			r.clock.Step(policyWait)
			p.pass()
			if c.set.RetentionBytes != nil {
				r.wantStart("a", 5)
			}
		})
	}
}

// What a restore has jumped over counts as nothing.
func TestPolicyAcrossGap(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.restore(fact.RestoreStep)
	r.publish("a", "", "xx", "xxx")
	p := &policy{b: r.Broker}
	r.configure("a", Configure{RetentionRecords: limit(4)})
	p.pass()
	r.wantStart("a", 8)
	r.configure("a", Configure{RetentionBytes: limit(17)})
	p.pass()
	r.wantStart("a", 9)
	r.configure("a", Configure{RetentionBytes: limit(8)})
	p.pass()
	r.wantStart("a", fact.RestoreStep)
	r.configure("a", Configure{RetentionBytes: limit(4)})
	p.pass()
	r.wantStart("a", fact.RestoreStep+1)
	r.clock.Step(time.Minute)
	r.configure("a", Configure{RetentionMS: limit(1000)})
	p.pass()
	r.wantStart("a", fact.RestoreStep+2)
}

// Time in the log does not go back, so a clock that was set back drops nothing too late, and nothing too early.
func TestPolicyGoesByTheTimeOfTheLog(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "x")
	r.configure("a", Configure{RetentionMS: limit(60_000)})
	r.clock.Step(61 * time.Second)
	r.publish("b", "", "x")
	r.clock.Step(-time.Hour)
	p := &policy{b: r.Broker}
	p.pass()
	r.wantStart("a", 1)
}

// Without the lead nothing is looked at; who has it again goes on. What has failed is done in the next pass, whatever the
// step of a limit of time.
func TestPolicyWithoutLead(t *testing.T) {
	r, role := newHeldRig(t, nil)
	done := make(chan struct{})
	defer func() { <-done }()
	commits := make(chan struct{})
	defer close(commits)
	go func() {
		defer close(done)
		for {
			select {
			case last := <-role.proposed:
				r.Committed(last)
			case <-commits:
				return
			}
		}
	}()
	r.publishTen("a")
	r.configure("a", Configure{RetentionMS: limit(80_000_000)})
	p := &policy{b: r.Broker}
	r.clock.Step(80_000 * time.Second)
	r.Broker.Follow("another node leads")
	p.pass()
	r.wantStart("a", 0)
	if len(p.heads) > 0 {
		t.Fatal("it has looked at topics without the lead")
	}
	r.Broker.Lead()
	role.away("nobody answers")
	p.pass()
	r.wantStart("a", 0)
	role.away("")
	p.pass()
	r.wantStart("a", 9)
}

// A full disk does not stop it, as long as the reserve lasts; then the pass ends and the next one tries again.
func TestPolicyOnFullDisk(t *testing.T) {
	var role *fullRole
	full := false
	r := newRig(t, func(r *rig) replication.Role {
		role = &fullRole{Role: &noRoom{Role: newStandalone(r), full: &full}}
		return role
	})
	for i := range 3 {
		r.publishTen(fmt.Sprint(i))
	}
	r.Broker.retention = fact.Retention{Records: 8}
	p := &policy{b: r.Broker}
	full = true
	p.pass()
	r.wantStart("0", 0)
	full, role.full, role.last = false, true, true
	p.pass()
	for i := range 3 {
		r.wantStart(fmt.Sprint(i), 2)
	}
}

// What is in the way of one topic ends the pass: the others are not tried one after the other.
func TestPolicyEndsPass(t *testing.T) {
	var role *noRoom
	full := false
	r := newRig(t, func(r *rig) replication.Role {
		role = &noRoom{Role: newStandalone(r), full: &full}
		return role
	})
	const n = 3000
	for i := range n {
		r.publish(fmt.Sprint(i), "", "x", "x")
	}
	r.Broker.retention = fact.Retention{Records: 1}
	full = true
	p := &policy{b: r.Broker}
	p.pass()
	if got := role.refused.Load(); got == 0 || got > n {
		t.Fatalf("%d proposals of %d starts on a full disk", got, n)
	}
	full = false
	p.pass()
	for i := range n {
		r.wantStart(fmt.Sprint(i), 1)
	}
}

// noRoom answers ErrFull to everything.
type noRoom struct {
	replication.Role
	full    *bool
	refused atomic.Int64
}

func (n *noRoom) Propose(f *wal.Frames) error {
	if *n.full {
		n.refused.Add(1)
		return wal.ErrFull
	}
	return n.Role.Propose(f)
}

// The goroutine that Start starts does it all by itself, once a second.
func TestPolicyLoop(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.configure("a", Configure{RetentionRecords: limit(3)})
	for deadline := time.Now().Add(10 * time.Second); r.topic("a").Start != 7; runtime.Gosched() {
		r.clock.Advance(policyEvery)
		if time.Now().After(deadline) {
			t.Fatal("nothing happens")
		}
	}
}

// Much that was published in less than a second is held against the limits sooner.
func TestPolicyIsHurried(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.configure("a", Configure{RetentionRecords: limit(3)})
	advanced := time.Duration(0) // never to when the next pass is due by itself
	for deadline := time.Now().Add(10 * time.Second); r.topic("a").Start != 7; runtime.Gosched() {
		if step := policyLeast / 10; advanced+step < policyEvery-policyLeast {
			r.clock.Advance(step)
			advanced += step
		}
		r.HoldToLimits()
		if time.Now().After(deadline) {
			t.Fatal("nothing happens")
		}
	}
}

// A topic that is deleted, or comes back, while a pass has it in hand is left alone.
func TestPolicyOfDeletedTopic(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	r.configure("a", Configure{RetentionRecords: limit(3)})
	p := &policy{b: r.Broker, tenure: r.Broker.tenure.Load(), heads: map[state.TopicID]head{}}
	due, _ := p.due(0, 1, r.clock.Now().UnixMilli())
	if len(due) != 1 {
		t.Fatalf("%d topics are due", len(due))
	}
	if _, err := r.DeleteTopic([]byte("a")); err != nil {
		t.Fatal(err)
	}
	m := mover{b: r.Broker, tenure: p.tenure, room: make(chan struct{}, 1)}
	p.move(&due[0], r.clock.Now().UnixMilli(), &m)
	m.sent.Wait()
	r.publish("a", "", "again")
	p.move(&due[0], r.clock.Now().UnixMilli(), &m)
	m.sent.Wait()
	if m.ended() {
		t.Fatal("that the topic is gone has ended the pass")
	}
	r.wantStart("a", 10)
	p.pass()
	r.wantStart("a", 10)
}

// What a pass costs with 100,000 topics that have a limit of time, when nothing is due, when all are new to it, and when each
// of them is due.
func BenchmarkPolicyPass(b *testing.B) {
	const topics = 100_000
	b.Run("nothing due", func(b *testing.B) { benchPasses(b, topics, false) })
	b.Run("first look", func(b *testing.B) { benchPasses(b, topics, true) })
	b.Run("all due", func(b *testing.B) {
		br := benchTopics(b, topics)
		for range b.N {
			b.StopTimer()
			br.retention = fact.Retention{}
			for i := range topics {
				if _, err := br.Publish(publishOf(fmt.Sprint("topic-", i), "", "x")); err != nil {
					b.Fatal(err)
				}
			}
			br.retention = fact.Retention{Bytes: 1}
			p := &policy{b: br}
			b.StartTimer()
			for br.state.LiveRecords() > 0 {
				p.pass()
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/topics, "ns/topic")
	})
}

func benchPasses(b *testing.B, topics int, anew bool) {
	br := benchTopics(b, topics)
	br.retention = fact.Retention{MS: 3600_000}
	p := &policy{b: br}
	p.pass()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if anew {
			clear(p.heads)
		}
		p.idle = false
		p.pass()
	}
}

// benchTopics is a broker whose clock stands still, so that it makes no passes of its own, with so many topics.
func benchTopics(b *testing.B, topics int) *Broker {
	b.Helper()
	br := stillBroker(b)
	for i := range topics {
		if _, err := br.Publish(publishOf(fmt.Sprint("topic-", i), "", "x")); err != nil {
			b.Fatal(err)
		}
	}
	return br
}

// What 8 publishers wait for at most, but for one in a hundred, while all of 100,000 topics are due, and while none is.
func BenchmarkPublishBesidePolicy(b *testing.B) {
	const topics, publishers = 100_000, 8
	for _, due := range []bool{false, true} {
		b.Run(fmt.Sprintf("due=%v", due), func(b *testing.B) {
			br := benchTopics(b, topics)
			if due {
				br.retention = fact.Retention{Bytes: 1}
			}
			var stop atomic.Bool
			var passes sync.WaitGroup
			passes.Go(func() {
				for p := (&policy{b: br}); !stop.Load(); {
					p.pass()
				}
			})
			took := make([][]time.Duration, publishers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range publishers {
				wg.Go(func() {
					p := publishOf(fmt.Sprint("other-", w), "", strings.Repeat("x", 100))
					for range b.N {
						began := time.Now()
						if _, err := br.Publish(p); err != nil {
							b.Error(err)
						}
						took[w] = append(took[w], time.Since(began))
					}
				})
			}
			wg.Wait()
			stop.Store(true)
			passes.Wait()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
		})
	}
}

// stillBroker is a broker whose syncs cost nothing and whose clock stands still.
func stillBroker(b *testing.B) *Broker {
	b.Helper()
	disk, err := vfs.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	still := clock.NewManual(testStart)
	fsys := noSyncFS{disk}
	if err := fsys.Mkdir("log"); err != nil {
		b.Fatal(err)
	}
	log, _, err := wal.Open(wal.Config{FS: fsys, Clock: still, LogID: entry.LogID{1}, Create: true}, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	br := New(Config{Log: log, State: state.New(), Index: index.New(index.Config{FS: fsys, LogID: entry.LogID{1}}),
		Clock: still, Window: time.Hour})
	if err := br.Start(standalone.New(log, entry.StandaloneTerm, br)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		br.Close()
		log.Close()
		disk.Close()
	})
	return br
}
