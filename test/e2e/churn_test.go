package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestChurnKill kills mqd at random instants while starts are moved by policies, topics are deleted and published to again,
// the cleaner moves what lives, and snapshots and backups are taken. After each start nothing acknowledged may be missing that
// no policy lets go of, nothing changed, and no offset given out twice. MQ_CHURN_CYCLES says how often.
func TestChurnKill(t *testing.T) {
	cycles := process.Count(t, "MQ_CHURN_CYCLES", 6)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 95))
	l := load.New(load.Config{Seed: seed, Churn: true})
	dir := process.KeptDir(t)
	node := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "data"), Args: small})
	b := newBackups(t, dir)
	began, slowest, moved := time.Now(), time.Duration(0), tally{}
	for cycle := range cycles {
		if cycle%8 == 7 {
			killEarly(t, node, time.Duration(dice.IntN(60_000))*time.Microsecond)
		}
		start := time.Now()
		p := node.StartReady()
		slowest = max(slowest, time.Since(start))
		if err := l.ReadBack(t.Context(), p.URL, cycle%20 == 19); err != nil {
			t.Fatalf("cycle %d: %v\n%s", cycle, err, p.Stderr())
		}
		// The cleaner and the policies look once a second. Some lives are longer than that.
		life := time.Duration(10_000+dice.IntN(300_000)) * time.Microsecond
		if cycle%6 == 1 {
			life += 1200 * time.Millisecond
		}
		stop := b.during(p)
		killAfter(t, l, p, life, &moved)
		stop()
		if err := l.Err(); err != nil {
			t.Fatalf("cycle %d of seed %d: %v\n%s", cycle, seed, err, p.Stderr())
		}
	}
	p := node.StartReady()
	linger(dice) // the policies have come around, and nobody publishes: starts are exactly where they must be
	linger(dice)
	if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	finish(t, l, node)
	b.verify()
	report.Count(t, "kills", int64(cycles))
	report.Count(t, "topics deleted", int64(l.Deletes()))
	report.Figure(t, "slowest start", slowest.Seconds(), "s")
	t.Logf("kill -9 with churn: cycles %d in %v, slowest start %v, %v, answers by status %v; %v, topics deleted %d, %v",
		cycles, time.Since(began).Round(time.Millisecond), slowest.Round(time.Millisecond), l.Checker.Report(), l.Statuses(),
		moved, l.Deletes(), b)
	if cycles >= 20 && (moved.records == 0 || l.Deletes() == 0 || b.taken == 0) {
		t.Error("this run did not test what it is for: nothing was cleaned, or deleted, or no backup was taken")
	}
}

// tally counts what the broker did by itself.
type tally struct{ records, bytes float64 }

func (s tally) String() string {
	return fmt.Sprintf("the cleaner moved %.0f records, %.0f bytes", s.records, s.bytes)
}

// add reads the figures of a process, as far as it answers.
func (s *tally) add(p *process.Process) {
	records, err := p.Metric("cleaner_moved_records_total")
	if err != nil {
		return
	}
	bytes, err := p.Metric("cleaner_moved_bytes_total")
	if err != nil {
		return
	}
	s.records, s.bytes = s.records+records, s.bytes+bytes
}

// churned counts in how many rounds the leader had cleaned something.
type churned struct{ rounds, cleaned int }

// linger waits until policies and the cleaner, which look once a second, have looked.
func linger(dice *rand.Rand) {
	<-time.After(1100 * time.Millisecond)
	wait(dice, 300)
}

// add counts a round. Until the first one in which something was cleaned, and a topic deleted, it waits for that.
func (c *churned) add(leader *process.Process, l *load.Load) {
	c.rounds++
	has := func() bool { return hasCleaned(leader) && l.Deletes() > 0 }
	if has() || c.cleaned == 0 && awaitChurn(has) {
		c.cleaned++
	}
}

// hasCleaned reports whether the cleaner of a process has moved anything.
func hasCleaned(p *process.Process) bool {
	n, err := p.Metric("cleaner_moved_records_total")
	return err == nil && n > 0
}

// awaitChurn waits until something has come about under load, for as long as a machine with much else to do may take.
func awaitChurn(has func() bool) bool {
	const churnMax = 20 * time.Second
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(churnMax); !has(); <-poll.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (c *churned) check(t *testing.T, l *load.Load) {
	t.Helper()
	t.Logf("the leader had cleaned something in %d of %d rounds; topics deleted %d", c.cleaned, c.rounds, l.Deletes())
	if c.rounds >= 3 && (c.cleaned == 0 || l.Deletes() == 0) {
		t.Error("this run did not test what it is for")
	}
}

// killAfter lets the load run for a while, and kills the process in the middle of it.
func killAfter(t *testing.T, l *load.Load, p *process.Process, life time.Duration, moved *tally) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killed := make(chan struct{})
	go func() { // ends with the timer
		defer close(killed)
		<-time.After(life)
		if life > time.Second && moved.records == 0 {
			awaitChurn(func() bool { return hasCleaned(p) })
		}
		moved.add(p)
		p.Kill()
	}()
	l.Run(ctx, p.URL)
	<-killed
	if ctx.Err() != nil {
		t.Errorf("clients did not notice within a minute that the process is dead")
	}
	l.Checker.Restarted()
}

// backups takes one backup after another into one folder.
type backups struct {
	t      *testing.T
	dir    string
	taken  int
	broken int // by the end of the process
	bytes  int64
}

func newBackups(t *testing.T, dir string) *backups {
	t.Helper()
	b := &backups{t: t, dir: filepath.Join(dir, "backup")}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// during takes backups of a process until the func that it returns is called, which may be when it is dead.
func (b *backups) during(p *process.Process) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { // ends with cancel
		defer close(done)
		for ctx.Err() == nil {
			taken, err := load.Backup(ctx, b.dir, p.URL)
			if err == nil {
				b.taken++
				b.bytes += taken.Fetched
				wait(rand.New(rand.NewPCG(uint64(b.taken), 0)), 100)
				continue
			}
			b.broken++
			select {
			case <-p.Ended():
			case <-ctx.Done():
			case <-time.After(patience):
				b.t.Errorf("backup: %v", err)
			}
			return
		}
	}()
	return func() {
		<-time.After(10 * time.Millisecond)
		cancel()
		<-done
	}
}

// verify reads the last backup that is complete.
func (b *backups) verify() {
	b.t.Helper()
	if b.taken == 0 {
		return
	}
	if _, err := load.VerifyBackup(b.t.Context(), b.dir); err != nil {
		b.t.Errorf("backup %s: %v", b.dir, err)
	}
}

func (b *backups) String() string {
	return fmt.Sprintf("backups %d of %d bytes in all, and %d broken off", b.taken, b.bytes, b.broken)
}
