// Package soak lets a broker work for long, with topics that are retained, deleted and published to again, and looks whether
// it stays as it is: the disk that it takes, its memory, its goroutines and its files must not grow, and it must lose nothing.
package soak

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

func TestMain(m *testing.M) { os.Exit(process.Main(m)) }

const (
	segment = 1 << 20
	// window is how long request ids are remembered, so that their number is soon as high as it gets.
	window = 10 * time.Second
	// lastingRecords is how many records the topic keeps whose start is moved by hand.
	lastingRecords = 2000
	// memoryMax is what a node may take at most.
	memoryMax = 200e6
	// longMin is how long a run must be at least to say whether something grows.
	longMin = 90 * time.Second
	// patience is how long anything may take that must happen in the end.
	patience = 30 * time.Second
)

// TestSoak lets a standalone node, or with MQ_SOAK_ROLE=cluster three nodes, work for as long as MQ_SOAK says, and compares
// the last quarter with the second one. MQ_SOAK_SVG names a file for the plot of the first node.
func TestSoak(t *testing.T) {
	long := 5 * time.Second
	if text := os.Getenv("MQ_SOAK"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil || long < time.Second {
			t.Fatalf("MQ_SOAK=%q is not a duration of at least 1s", text)
		}
	}
	s := newSoak(t)
	s.start(os.Getenv("MQ_SOAK_ROLE"))
	s.run(long)
	s.finish()
	for i, samples := range s.samples {
		t.Logf("node %d:\n%s", i, table(samples, min(10, len(samples))))
		s.judge(i, samples, long)
	}
	if name := os.Getenv("MQ_SOAK_SVG"); name != "" {
		if err := os.WriteFile(name, []byte(plot(s.samples[0])), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// soak is one run.
type soak struct {
	t       *testing.T
	dir     string
	load    *load.Load
	cluster *process.Cluster // nil for a standalone node
	nodes   []*process.Process
	data    []string
	client  *load.Client
	samples [][]sample // of each node

	mu        sync.Mutex // guards took and publishes
	took      []time.Duration
	publishes float64 // that were done, or may have been

	backups int
	fetched int64
}

func newSoak(t *testing.T) *soak {
	return &soak{t: t, dir: process.KeptDir(t), load: load.New(load.Config{
		Seed: process.Seed(t), Churn: true, RepeatMax: window / 2, Consumers: 3, Readers: 2,
	})}
}

// start starts the nodes.
func (s *soak) start(role string) {
	s.t.Helper()
	flags := []string{"-segment-bytes", "1048576", "-snapshot-bytes", "2097152", "-request-id-window", window.String(), "-scrub-within", "1m"}
	options := load.Options{Heard: s.heard}
	switch role {
	case "cluster":
		s.cluster = process.NewCluster(s.t, s.dir, 3, flags...)
		s.cluster.Start()
		s.cluster.AwaitWhole(patience)
		s.load.Checker.Doubt(true)
		for _, m := range s.cluster.Nodes {
			s.nodes, s.data = append(s.nodes, m.Process), append(s.data, m.Data)
		}
		options.URLs, options.Cluster, options.Patient = s.cluster.URLs(), true, true
	case "", "standalone":
		data := filepath.Join(s.dir, "data")
		p := process.NewNode(s.t, process.Config{Binary: process.Binary(s.t), Data: data, Args: flags}).StartReady()
		s.nodes, s.data, options.URLs = append(s.nodes, p), append(s.data, data), []string{p.URL}
	default:
		s.t.Fatalf("MQ_SOAK_ROLE=%q: say standalone or cluster", role)
	}
	s.samples = make([][]sample, len(s.nodes))
	s.client = load.Open(options)
	s.t.Cleanup(s.client.Close)
}

// heard counts publishes, and notes how long they take.
func (s *soak) heard(_, path string, a load.Answer) {
	if a.Outcome == load.NotDone || !strings.HasPrefix(path, "/v1/publish") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publishes++
	if a.Outcome == load.Done {
		s.took = append(s.took, a.Took)
	}
}

// published returns how many publishes were heard of so far.
func (s *soak) published() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publishes
}

// run lets everything work for a while, and looks at it every second.
func (s *soak) run(long time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.load.RunBy(ctx, s.client) })
	work.Go(func() { s.backUp(ctx) })
	work.Go(func() { s.readBack(ctx) })
	began, every := time.Now(), time.NewTicker(time.Second)
	defer every.Stop()
	for time.Since(began) < long && !s.t.Failed() {
		<-every.C
		s.sample(began)
	}
	cancel()
	work.Wait()
	if err := s.load.Err(); err != nil {
		s.t.Fatalf("%v\n%s", err, s.said())
	}
}

func (s *soak) sample(began time.Time) {
	s.t.Helper()
	s.mu.Lock()
	took := s.took
	s.took = nil
	s.mu.Unlock()
	slices.Sort(took)
	if err := s.load.Err(); err != nil {
		s.t.Errorf("%v\n%s", err, s.said())
	}
	before := s.published()
	at := time.Since(began)
	quiet := at
	if last := s.load.LastAcknowledged(); !last.IsZero() {
		quiet = time.Since(last)
	}
	for i, p := range s.nodes {
		one, err := take(p, s.data[i])
		if err != nil {
			s.t.Errorf("node %d: %v\n%s", i, err, s.said())
			return
		}
		one.at, one.quiet, one.heard = at, quiet, [2]float64{before, s.published()}
		if len(took) > 0 {
			one.p50, one.p99 = took[len(took)/2], took[len(took)*99/100]
		}
		s.samples[i] = append(s.samples[i], one)
	}
}

// readBack reads what is new in all topics again and again, so that every record is looked at that is not dropped at once,
// and moves the start of the lasting topic.
func (s *soak) readBack(ctx context.Context) {
	dice := rand.New(rand.NewPCG(1, 1))
	for round := 1; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(500+dice.IntN(500)) * time.Millisecond):
		}
		if err := s.load.ReadBackBy(ctx, s.client, round%20 == 0); err != nil && ctx.Err() == nil && s.cluster == nil {
			s.t.Errorf("read back: %v", err)
			return
		}
		s.load.Lasting(ctx, s.client, lastingRecords)
	}
}

// backUp renews one backup every few seconds.
func (s *soak) backUp(ctx context.Context) {
	dir := filepath.Join(s.dir, "backup")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Error(err)
		return
	}
	var urls []string
	for _, p := range s.nodes {
		urls = append(urls, p.URL)
	}
	for {
		select {
		case <-ctx.Done():
			if s.backups > 0 {
				if _, err := load.VerifyBackup(context.WithoutCancel(ctx), dir); err != nil {
					s.t.Errorf("backup: %v", err)
				}
			}
			return
		case <-time.After(3 * time.Second):
		}
		taken, err := load.Backup(ctx, dir, urls...)
		if err == nil {
			s.backups++
			s.fetched += taken.Fetched
		} else if ctx.Err() == nil {
			s.t.Errorf("backup: %v", err)
			return
		}
	}
}

// finish reads everything back and stops.
func (s *soak) finish() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.load.SettleBy(ctx, s.client); err != nil {
		s.t.Errorf("%v\n%s", err, s.said())
	}
	if err := s.load.ReadBackBy(ctx, s.client, true); err != nil {
		s.t.Errorf("%v\n%s", err, s.said())
	}
	if err := s.load.Err(); err != nil {
		s.t.Errorf("%v\n%s", err, s.said())
	}
	if s.cluster != nil {
		s.cluster.Stop()
	} else if err := s.nodes[0].Stop(); err != nil {
		s.t.Error(err)
	}
	report.History(s.t, s.load.Checker.Report())
	report.Count(s.t, "topics deleted", int64(s.load.Deletes()))
	report.Count(s.t, "backups", int64(s.backups))
	s.t.Logf("%v, topics deleted %d, backups %d of %d bytes in all, answers by status %v",
		s.load.Checker.Report(), s.load.Deletes(), s.backups, s.fetched, s.load.Statuses())
}

func (s *soak) said() (text string) {
	for _, p := range s.nodes {
		text += "---\n" + p.Stderr()
	}
	return text
}

// judge looks whether a node stayed as it was.
func (s *soak) judge(node int, all []sample, long time.Duration) {
	s.t.Helper()
	if len(all) == 0 {
		s.t.Errorf("node %d: no samples", node)
		return
	}
	if m := most(all, memory); m > memoryMax {
		s.t.Errorf("node %d: %.0f MB of memory, want %.0f at most", node, m/1e6, memoryMax/1e6)
	}
	last := all[len(all)-1]
	if last.damage > 0 {
		s.t.Errorf("node %d: the scrubber found damage", node)
	}
	if long < longMin {
		return
	}
	if last.scrubs == 0 {
		s.t.Errorf("node %d: the scrubber did not come around", node)
	}
	s.judgeIDs(node, all)
	before, after := part(all, 0.25, 0.5), part(all, 0.75, 1)
	// Twice what lives, the segment that is written to and the next one, and what waits for the next snapshot to be dropped.
	// Of a record of these sizes a frame takes a little more than key and value.
	frames := func(x sample) float64 { return 1.25 * x.live }
	if log, bound := median(after, logBytes), 2*median(after, frames)+4*segment; log > bound {
		s.t.Errorf("node %d: the log takes %.1f MB, want %.1f MB at most with %.1f MB that live", node, log/1e6, bound/1e6, median(after, live)/1e6)
	}
	// The ids are most of what snapshots hold: of two that are kept and the next one. Backups hold more for a moment only.
	const idBytes = 3 * 48
	ids := most(all, func(x sample) float64 { return x.requestIDs })
	if is, bound := median(after, func(x sample) float64 { return float64(x.disk.snapshots) }), segment+idBytes*ids; is > bound {
		s.t.Errorf("node %d: the snapshots take %.2f MB, want %.2f MB at most with up to %.0f request ids", node, is/1e6, bound/1e6, ids)
	}
	for _, c := range []struct {
		what         string
		of           func(sample) float64
		share, slack float64
	}{
		{"bytes that live", live, 2, 4 * segment}, // they follow the rate, where limits are by age
		{"bytes of index files", func(x sample) float64 { return float64(x.disk.indexes) }, 1.2, segment / 4},
		{"bytes of other files", func(x sample) float64 { return float64(x.disk.other) }, 1.2, segment},
		{"bytes of memory", memory, 1.15, 8e6},
		{"goroutines", func(x sample) float64 { return x.goroutines }, 1.2, 20},
		{"open files", func(x sample) float64 { return x.files }, 1.2, 20},
	} {
		if was, is := median(before, c.of), median(after, c.of); is > c.share*was+c.slack {
			s.t.Errorf("node %d: %s grow: %.0f in the second quarter, %.0f in the last", node, c.what, was, is)
		}
	}
	if s.load.Deletes() == 0 || s.backups == 0 {
		s.t.Error("no topic was deleted, or no backup was taken: this run did not test what it is for")
	}
	moved := 0.0
	for _, samples := range s.samples {
		moved += most(samples, func(x sample) float64 { return x.moved })
	}
	if moved == 0 {
		s.t.Error("the cleaner moved nothing: this run did not test what it is for")
	}
}

// judgeIDs looks whether a node forgets request ids. How many it remembers follows how much is published, and this how fast the
// disk is. So each sample is judged by what was published before it.
func (s *soak) judgeIDs(node int, all []sample) {
	s.t.Helper()
	const (
		late       = 2 * time.Second // that an id may be forgotten
		idsMore    = 2000
		evictedMin = 8 // ids per publish, while there are expired ones; half of what the broker does
	)
	for i, x := range all {
		// What was heard of before this is expired by the time of the newest entry, as old as that may be.
		expired := x.at - x.quiet - window - late
		forgotten, fallen := 0.0, false
		for _, y := range all[:i] {
			if y.at <= expired {
				forgotten = y.heard[0]
			}
		}
		if i > 0 { // a rate that collapses leaves more than a few publishes remove at once
			fallen = x.requestIDs <= all[i-1].requestIDs-evictedMin*(x.heard[0]-all[i-1].heard[1])
		}
		if bound := 1.2*(x.heard[1]-forgotten) + idsMore; x.requestIDs > bound && !fallen {
			s.t.Errorf("node %d: after %v %.0f request ids are remembered, want %.0f at most with %.0f publishes since they can be",
				node, x.at.Round(time.Second), x.requestIDs, bound, x.heard[1]-forgotten)
			return
		}
	}
}
