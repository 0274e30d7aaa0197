package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

// garden is a node with topics of which a naive model knows all records. It runs on virtual time.
type garden struct {
	t      *testing.T
	disk   *memfs.FS
	config Config
	n      *Node
	rand   *rand.Rand
	topics []plot
	count  int // records published
}

// plot is a topic.
type plot struct {
	name    string
	records []flower // by offset, less base
	base    fact.Offset
	start   fact.Offset
	policy  bool // the start moves by itself
	ids     map[string]batchOf
}

type flower struct {
	key, value []byte
	timeMS     int64
}

// batchOf is what was published with a request id.
type batchOf struct {
	base  fact.Offset
	count int
}

// onVirtualTime runs a test in a bubble of its own. What the bubbles before left in pools must not be used in another one.
func onVirtualTime(t *testing.T, test func(*testing.T)) {
	runtime.GC() // a pool forgets a value at the second collection
	runtime.GC()
	synctest.Test(t, test)
	runtime.GC()
	runtime.GC()
}

func newGarden(t *testing.T, seed uint64, topics int) *garden {
	g := &garden{t: t, disk: memfs.New(), rand: rand.New(rand.NewPCG(seed, 5))}
	g.config = testConfig(g.disk)
	g.config.Clock = clock.System{}
	for i := range topics {
		g.topics = append(g.topics, plot{name: fmt.Sprint("topic-", i), ids: map[string]batchOf{}})
	}
	g.open()
	return g
}

func (g *garden) open() {
	g.t.Helper()
	n, err := Open(g.config)
	if err == nil {
		err = n.Recover()
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.n = n
	g.t.Cleanup(func() { n.Close() }) // after a failure
}

func (g *garden) close() {
	g.t.Helper()
	g.n.broker.Load().View(func(s *state.State) {
		if err := s.Verify(); err != nil {
			g.t.Errorf("the fold: %v", err)
		}
	})
	if err := g.n.Close(); err != nil {
		g.t.Fatal(err)
	}
}

func (p *plot) end() fact.Offset { return p.base + fact.Offset(len(p.records)) }

// publish adds records of about the given size.
func (g *garden) publish(topic, records, size int) {
	g.t.Helper()
	p := &g.topics[topic]
	request := &broker.Publish{Topic: []byte(p.name)}
	id := ""
	if g.rand.IntN(4) == 0 {
		id = fmt.Sprint("id-", g.count)
		request.RequestID = []byte(id)
	}
	for range records {
		g.count++
		r := fact.Record{Key: fmt.Append(nil, "key-", g.count), Value: bytes.Repeat([]byte{byte(g.count)}, g.rand.IntN(2*size+1))}
		request.Records = append(request.Records, r)
	}
	done, err := g.n.Publish(request)
	if err != nil || done.Base != p.end() || done.Duplicate {
		g.t.Fatalf("publish to %s: %+v %v, want offset %d", p.name, done, err, p.end())
	}
	if id != "" {
		p.ids[id] = batchOf{done.Base, records}
	}
	now := time.Now().UnixMilli()
	for _, r := range request.Records {
		p.records = append(p.records, flower{r.Key, r.Value, now})
	}
}

func (g *garden) retain(topic int, start fact.Offset) {
	g.t.Helper()
	p := &g.topics[topic]
	if _, err := g.n.Retain([]byte(p.name), start); err != nil {
		g.t.Fatalf("retain of %s at %d: %v", p.name, start, err)
	}
	p.start = start
}

func (g *garden) delete(topic int) {
	g.t.Helper()
	p := &g.topics[topic]
	if _, err := g.n.DeleteTopic([]byte(p.name)); err != nil {
		g.t.Fatalf("delete %s: %v", p.name, err)
	}
	p.base, p.start, p.records, p.policy = p.end(), p.end(), nil, false
}

// configure makes the start of a topic move by itself.
func (g *garden) configure(topic int) {
	g.t.Helper()
	p := &g.topics[topic]
	c := &broker.Configure{Topic: []byte(p.name), Reset: true}
	switch g.rand.IntN(3) {
	case 0:
		c.RetentionMS = limit(1 + g.rand.Int64N(20_000))
	case 1:
		c.RetentionBytes = limit(1 + g.rand.Int64N(50_000))
	default:
		c.RetentionRecords = limit(1 + g.rand.Int64N(100))
	}
	if _, err := g.n.ConfigureTopic(c); err != nil {
		g.t.Fatalf("configure %s: %v", p.name, err)
	}
	p.policy = true
}

// settle lets everything come to rest.
func (g *garden) settle(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// check compares all that can be read with the model, and does every publish with a request id again.
func (g *garden) check() {
	g.t.Helper()
	for i := range g.topics {
		p := &g.topics[i]
		if len(p.records) == 0 {
			continue
		}
		g.checkTopic(p)
		for id, batch := range p.ids {
			if batch.base < p.base {
				continue // of records that were deleted since
			}
			request := &broker.Publish{Topic: []byte(p.name), RequestID: []byte(id)}
			for _, f := range p.records[batch.base-p.base:][:batch.count] {
				request.Records = append(request.Records, fact.Record{Key: f.key, Value: f.value})
			}
			done, err := g.n.Publish(request)
			if err != nil || !done.Duplicate || done.Base != batch.base {
				g.t.Fatalf("%s: retry of %s: %+v %v, want a duplicate at %d", p.name, id, done, err, batch.base)
			}
		}
	}
}

func (g *garden) checkTopic(p *plot) {
	g.t.Helper()
	next := p.start
	if p.policy {
		g.settle(2 * time.Second)
		d, err := g.n.DescribeTopic([]byte(p.name), 0)
		if err != nil || d.Start < p.start {
			g.t.Fatalf("%s: %+v %v, want a start of at least %d", p.name, d, err, p.start)
		}
		p.start, next = d.Start, d.Start
	}
	kept := uint64(0)
	for _, f := range p.records[p.start-p.base:] {
		kept += uint64(len(f.key) + len(f.value))
	}
	d, err := g.n.DescribeTopic([]byte(p.name), 0)
	if err != nil || d.Bytes != kept || d.Records != uint64(p.end()-p.start) {
		g.t.Fatalf("%s: %+v %v, want %d records with %d bytes", p.name, d, err, p.end()-p.start, kept)
	}
	var sink sinkFunc = func(offset fact.Offset, key, value []byte, timeMS int64) {
		if offset != next {
			g.t.Fatalf("%s: got offset %d, want %d", p.name, offset, next)
		}
		want := p.records[offset-p.base]
		if !bytes.Equal(key, want.key) || !bytes.Equal(value, want.value) || timeMS != want.timeMS {
			g.t.Fatalf("%s: record %d: key %q, %d bytes, time %d, want %q, %d, %d", p.name, offset, key, len(value), timeMS, want.key, len(want.value), want.timeMS)
		}
		next++
	}
	for next < p.end() {
		before := next
		page, err := g.n.Fetch(&broker.Fetch{Topic: []byte(p.name), Offset: next, Limit: 1000}, sink)
		if err != nil || page.Start != p.start || page.End != p.end() || next == before {
			g.t.Fatalf("%s: fetch at %d: %+v %v, want %d to %d", p.name, before, page, err, p.start, p.end())
		}
	}
}

// room returns the bytes of the sealed segments, and what lives in the log.
func (g *garden) room() (sealed, live int64) {
	for _, s := range g.n.log.Segments() {
		if s.Sealed {
			sealed += s.Bytes
		}
	}
	for _, l := range g.n.index.Live(g.n.cleaner.startOf) {
		live += l.Bytes
	}
	return sealed, live
}

// checkRoom checks what is promised of the disk: twice what lives and two segments, of which one is written to, and one
// prepared.
func (g *garden) checkRoom() {
	g.t.Helper()
	if sealed, live := g.room(); sealed > 2*live {
		g.t.Fatalf("%d bytes of sealed segments for %d that live (%+v, %+v)", sealed, live, g.n.cleaner.status(), g.n.log.Segments())
	}
}

// TestCleanerBoundsTheLog: whatever the mix of topics, and however their starts move, the log takes at most twice what lives
// once the cleaner has had its time, and every record that lives is as it was: offset, time, key, value, and its request id.
func TestCleanerBoundsTheLog(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	moved := uint64(0)
	for seed := range seeds {
		onVirtualTime(t, func(t *testing.T) {
			g := newGarden(t, seed, 1+int(seed*3))
			weights := [3]int{8, 1 + g.rand.IntN(3), g.rand.IntN(2)} // publish, retain, delete
			for round := range 5 {
				for range 250 {
					topic := g.rand.IntN(len(g.topics))
					if g.rand.IntN(3) > 0 {
						topic = min(topic, g.rand.IntN(len(g.topics))) // some are busier
					}
					p := &g.topics[topic]
					switch k := g.rand.IntN(weights[0] + weights[1] + weights[2]); {
					case k < weights[0] || len(p.records) == 0:
						g.publish(topic, 1+g.rand.IntN(4), 10+g.rand.IntN(800))
					case k < weights[0]+weights[1] && !p.policy:
						g.retain(topic, p.start+fact.Offset(g.rand.IntN(int(p.end()-p.start)+1)))
					case g.rand.IntN(20) == 0:
						g.delete(topic)
					case g.rand.IntN(20) == 0:
						g.configure(topic)
					}
					if g.rand.IntN(20) == 0 {
						<-time.After(time.Duration(g.rand.IntN(int(2 * time.Second))))
					}
				}
				if round%2 == 0 {
					g.settle(30 * time.Second)
					g.checkRoom()
				}
				g.check()
				moved += g.n.cleaner.status().MovedRecords
				g.close()
				g.open()
				g.check()
			}
			g.settle(30 * time.Second)
			g.checkRoom()
			g.check()
			moved += g.n.cleaner.status().MovedRecords
			g.close()
		})
	}
	if moved < 1000 {
		t.Errorf("%d records were moved: this tests nothing", moved)
	}
}

// TestCleanerMovesLittle: what is moved is not much more than what is freed: at the hard limit each byte that is freed
// costs about 1.25 that are moved.
func TestCleanerMovesLittle(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		// The two topics interleave; then all of the second goes.
		for range 600 {
			g.publish(0, 1, 500)
			g.publish(1, 1, 1000)
		}
		g.retain(1, g.topics[1].end())
		g.settle(time.Minute)
		g.checkRoom()
		status := g.n.cleaner.status()
		_, live := g.room()
		if status.MovedRecords == 0 || status.MovedBytes > uint64(live) {
			t.Errorf("%d records with %d bytes were moved where %d live", status.MovedRecords, status.MovedBytes, live)
		}
		g.settle(time.Hour) // nothing changes any more, so nothing is moved
		if again := g.n.cleaner.status(); again.MovedBytes != status.MovedBytes {
			t.Errorf("an idle log is moved on and on: %d bytes, then %d", status.MovedBytes, again.MovedBytes)
		}
		g.check()
		g.close()
	})
}

// TestIdleLogGivesRoomBack: when nothing is logged any more after a delete, the segments go all the same. They need a snapshot
// that nothing but a marker makes possible.
func TestIdleLogGivesRoomBack(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		g.config.SnapshotBytes = 1 << 30
		g.close()
		g.open()
		for range 600 {
			g.publish(0, 1, 500)
			g.publish(1, 4, 2000)
		}
		hold := func(by int) {
			g.n.keeper.mu.Lock()
			defer g.n.keeper.mu.Unlock()
			g.n.keeper.held += by
		}
		hold(1)
		g.delete(1)
		g.settle(time.Minute)
		if _, err := g.n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		files, err := snapshot.Files(g.disk, snapshotDir)
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files[1:] { // only one, which covers all that was logged
			if err := g.disk.Remove(path.Join(snapshotDir, fmt.Sprintf("%020d.snap", f.Index))); err != nil {
				t.Fatal(err)
			}
		}
		if files[0].Index != g.n.log.Last() {
			t.Fatalf("entries up to %d behind the snapshot at %d: this tests nothing", g.n.log.Last(), files[0].Index)
		}
		hold(-1)
		g.settle(time.Minute)
		g.checkRoom()
		last := g.n.log.Last()
		g.settle(time.Hour)
		if again := g.n.log.Last(); again != last {
			t.Errorf("an idle log grows from entry %d to %d", last, again)
		}
		g.check()
		g.close()
	})
}

// TestCleanerRests: where segments have unused ends because records are large, moving them frees nothing, and ends.
func TestCleanerRests(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 1)
		for range 40 { // one fits into a segment of 32 KiB, two do not
			p := &g.topics[0]
			g.count++
			value := bytes.Repeat([]byte{byte(g.count)}, 17<<10)
			if _, err := g.n.Publish(&broker.Publish{Topic: []byte(p.name), Records: []fact.Record{{Value: value}}}); err != nil {
				t.Fatal(err)
			}
			p.records = append(p.records, flower{nil, value, time.Now().UnixMilli()})
		}
		g.settle(10 * time.Minute)
		first := g.n.cleaner.status()
		g.settle(10 * time.Minute)
		if again := g.n.cleaner.status(); again.MovedBytes != first.MovedBytes {
			t.Errorf("%d bytes were moved, then %d: it never ends", first.MovedBytes, again.MovedBytes)
		}
		g.check()
		// Once records are freed it works again.
		g.retain(0, 30)
		g.settle(10 * time.Minute)
		if n := len(g.n.log.Segments()); n > 13 {
			t.Errorf("%d segments for 10 records", n)
		}
		g.check()
		g.close()
	})
}

// TestCleanerYields: while others publish, about as much is moved as they publish, at most; beyond the hard limit the log
// comes back below it.
func TestCleanerYields(t *testing.T) {
	b := budget{tokens: 0}
	now := time.Duration(0)
	for _, row := range []struct {
		published int64
		excess    float64
		want      float64
	}{
		{1 << 20, 0, 1 << 20}, // as much as was published
		{100 << 10, 0, 100 << 10},
		{100 << 10, 0.5, 250 << 10},
		{100 << 10, 1, 400 << 10},
		{100 << 10, 2, 400 << 10},
		{0, 0, 160 << 10}, // 16 MiB a second for 10 ms, about
		{5 << 10, 0, 5<<10 + (160<<10 - 80<<10)},
		{10 << 20, 1, cleanSaved}, // not more than may be saved
	} {
		b.tokens = 0
		now += 10 * time.Millisecond
		b.earn(now, row.published, row.excess)
		if b.tokens < 0.9*row.want || b.tokens > 1.1*row.want {
			t.Errorf("%d bytes published at %v: %.0f may be moved, want about %.0f", row.published, row.excess, b.tokens, row.want)
		}
	}
	// What was moved comes back as published, and must not count.
	b = budget{own: 100 << 10, at: now}
	b.earn(now, 100<<10, 0)
	if b.tokens != 0 || b.own != 0 {
		t.Errorf("what was moved counts as published: %+v", b)
	}
}

// TestCleanerSurvivesPowerCuts: at any moment of cleaning, dropping and snapshots, a power cut or kill -9 leaves every record
// that lives, once, as it was.
func TestCleanerSurvivesPowerCuts(t *testing.T) {
	want := states(t, 150)
	all := want
	type cut struct {
		name   string
		disk   *memfs.FS
		topics []plot
	}
	onVirtualTime(t, func(t *testing.T) {
		moved := uint64(0)
		for seed := uint64(1); want > 0; seed++ {
			g := newGarden(t, seed, 4)
			var mu sync.Mutex
			var cuts []cut
			var model []plot // when set, what is acknowledged does not change
			ops := 0
			g.disk.OnOp(func(op memfs.Op) {
				mu.Lock()
				defer mu.Unlock()
				ops++
				if model == nil || ops%11 != int(seed%11) && op.Kind != "rename" && op.Kind != "remove" && op.Kind != "create" {
					return
				}
				number := ops % 5
				name := fmt.Sprintf("seed %d, op %d %s %s done=%v, state %d", seed, ops, op.Kind, op.Name, op.Done, number)
				cuts = append(cuts, cut{name, g.disk.Crash(seed, number+5*(ops/5)*min(number/2, 1)).FS, model})
			})
			for range 4 {
				for range 100 {
					g.publish(g.rand.IntN(4), 1+g.rand.IntN(3), 600)
				}
				for topic := range g.topics[1:] { // the first one keeps all, and so has to be moved
					p := &g.topics[1+topic]
					if len(p.records) > 0 && g.rand.IntN(4) > 0 {
						g.retain(1+topic, p.end()-fact.Offset(g.rand.IntN(int(p.end()-p.start)/4+1)))
					}
				}
				mu.Lock()
				model = clonePlots(g.topics)
				mu.Unlock()
				g.settle(20 * time.Second) // it cleans
				mu.Lock()
				model = nil
				mu.Unlock()
			}
			moved += g.n.cleaner.status().MovedRecords
			g.close()
			g.disk.OnOp(nil)
			for i, c := range cuts {
				if i%7 != int(seed%7) {
					continue
				}
				if want--; want < 0 {
					break
				}
				again := &garden{t: t, disk: c.disk, config: g.config, rand: g.rand, topics: c.topics}
				again.config.FS = c.disk
				again.open()
				again.check()
				if t.Failed() {
					t.Fatal(c.name)
				}
				if want%8 == 0 { // and goes on to clean
					again.settle(30 * time.Second)
					again.checkRoom()
					again.check()
				}
				again.close()
			}
		}
		if moved < 100 {
			t.Errorf("%d records were moved: this tests nothing", moved)
		}
		report.Count(t, "crash states of a node that cleans", int64(all))
	})
}

func clonePlots(topics []plot) []plot {
	topics = slices.Clone(topics)
	for i := range topics {
		topics[i].records, topics[i].ids = slices.Clip(topics[i].records), maps.Clone(topics[i].ids)
	}
	return topics
}

// TestCleanerStopsAtDamage: damage in the oldest segment stops the cleaner, which says so once. Everything else is served.
// Once the damaged records are retained, it goes on.
func TestCleanerStopsAtDamage(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		said := &lines{}
		g.close()
		g.config.Logger = slog.New(slog.NewTextHandler(said, nil))
		g.open()
		for range 300 {
			g.publish(0, 1, 300)
			g.publish(1, 1, 1500)
		}
		head := g.n.log.Segments()[0]
		run, err := g.n.index.Find([]byte("topic-0"), 5)
		if err != nil || run.Segment != head.First {
			t.Fatalf("%+v, %v", run, err)
		}
		flipAt(t, g.disk, fmt.Sprintf("log/%020d.seg", uint64(head.First)), run.Pos+50)
		g.retain(1, g.topics[1].end()-1)
		g.settle(10 * time.Minute)
		status := g.n.cleaner.status()
		if status.State != cleanerBlocked || !strings.Contains(status.Blocked, `records 5 to 5 of topic "topic-0"`) || g.n.log.Segments()[0].First != head.First {
			t.Fatalf("%+v, the log begins with %d", status, g.n.log.Segments()[0].First)
		}
		if n := said.count("cannot be cleaned"); n != 1 {
			t.Errorf("%d lines about it", n)
		}
		// The records of the first topic can be read but for those that are damaged.
		if lost := g.readAround(0); lost != 1 {
			t.Errorf("%d records cannot be read, want the one of the damaged frame", lost)
		}
		// What is good behind the damage has been moved: nothing but that one record holds the segment.
		lost := g.n.lostIn(head.First, 0, math.MaxInt64)
		if len(lost) != 1 || lost[0] != (DamagedRecords{"topic-0", 5, 5}) {
			t.Errorf("%+v live there", lost)
		}
		retryAt := func() time.Duration {
			g.n.cleaner.mu.Lock()
			defer g.n.cleaner.mu.Unlock()
			return g.n.cleaner.retryAt
		}
		for retryAt()-g.n.cfg.Clock.Monotonic() < cleanRetry/2 {
			g.settle(time.Second) // it has been tried just now
		}
		g.retain(0, 6)
		g.settle(3 * time.Second)
		if status := g.n.cleaner.status(); status.State == cleanerBlocked || g.n.log.Segments()[0].First == head.First {
			t.Fatalf("%+v, the log begins with %d", status, g.n.log.Segments()[0].First)
		}
		g.checkRoom()
		g.check()
		g.close()
	})
}

// TestCleanerGoesOverDeadDamage: damage in records that are dead stops nothing, wherever it is: what lives in front of it and
// behind it is moved, and the segment goes.
func TestCleanerGoesOverDeadDamage(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		for range 300 {
			g.publish(0, 1, 300)
			g.publish(1, 1, 1500)
		}
		head := g.n.log.Segments()[0]
		for _, f := range framesOf(t, g.n, "topic-1") {
			if f.Segment == head.First && f.first%4 == 3 {
				flipAt(t, g.disk, segmentFile(head.First), f.Offset+50)
			}
		}
		g.retain(1, g.topics[1].end()-1)
		g.settle(10 * time.Second)
		if status := g.n.cleaner.status(); status.State == cleanerBlocked || status.MovedRecords == 0 || g.n.log.Segments()[0].First == head.First {
			t.Fatalf("%+v, the log begins with %d", status, g.n.log.Segments()[0].First)
		}
		g.checkRoom()
		g.check()
		g.close()
	})
}

// TestCleanerReports: what lives in the log is told before the cleaner has had anything to do, and as it is now.
func TestCleanerReports(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 1)
		for range 2 {
			for range 100 {
				g.publish(0, 1, 1000)
			}
			g.settle(10 * time.Second)
			sealed, live := g.room()
			if v := g.n.Verbose(); v.Cleaner.LiveBytes != live || v.Cleaner.SealedBytes != sealed || v.Cleaner.State != cleanerIdle || live == 0 {
				t.Errorf("%+v, want %d bytes that live, of %d", v.Cleaner, live, sealed)
			}
		}
		g.close()
	})
}

// readAround reads all of a topic, around what is damaged, and returns how many records are.
func (g *garden) readAround(topic int) (lost int) {
	g.t.Helper()
	p := &g.topics[topic]
	var sink sinkFunc = func(offset fact.Offset, key, _ []byte, _ int64) {
		if !bytes.Equal(key, p.records[offset-p.base].key) {
			g.t.Errorf("record %d has key %q", offset, key)
		}
	}
	for next := p.start; next < p.end(); {
		page, err := g.n.Fetch(&broker.Fetch{Topic: []byte(p.name), Offset: next, Limit: 1000}, sink)
		if corrupt := (*broker.CorruptError)(nil); errors.As(err, &corrupt) {
			lost += int(corrupt.Last - corrupt.First + 1)
			next = corrupt.Last + 1
			continue
		}
		if err != nil {
			g.t.Fatal(err)
		}
		next = page.Next
	}
	return lost
}

// flipAt changes a byte of a file.
func flipAt(t *testing.T, disk *memfs.FS, name string, at int64) {
	t.Helper()
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x55
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

var _ io.Writer = (*lines)(nil)

// TestCleanerOnAFullDisk: on a full disk, publishes are refused at once, cleaning goes on where that gives room, and then
// publishes go on without a restart. Before, the disk is low, which is said once.
func TestCleanerOnAFullDisk(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		said := &lines{}
		g.close()
		g.config.Logger = slog.New(slog.NewTextHandler(said, nil))
		g.open()
		for range 200 {
			g.publish(0, 1, 50)
			g.publish(1, 1, 1000)
		}
		g.settle(10 * time.Second)
		usage, err := g.disk.Usage()
		if err != nil {
			t.Fatal(err)
		}
		used := usage.TotalBytes - usage.FreeBytes
		g.disk.SetCapacity(used + 3*g.config.SegmentBytes)
		g.settle(2 * time.Second)
		if s := g.n.Status(); !s.StorageLow || s.StorageFull {
			t.Fatalf("%+v, want a disk that is low (%+v)", s, func() any { u, _ := g.disk.Usage(); return u }())
		}
		if n := said.count("nearly full"); n != 1 {
			t.Errorf("%d lines about a disk that is nearly full", n)
		}
		full := func() error {
			for range 1000 {
				before := time.Now()
				_, err := g.n.Publish(&broker.Publish{Topic: []byte("topic-1"), Records: []fact.Record{{Key: []byte("k"), Value: make([]byte, 1000)}}})
				if took := time.Since(before); took > 100*time.Millisecond {
					t.Fatalf("an answer took %v on a disk that is filling up", took)
				}
				if err != nil {
					return err
				}
				p := &g.topics[1]
				p.records = append(p.records, flower{[]byte("k"), make([]byte, 1000), time.Now().UnixMilli()})
			}
			return nil
		}
		if err := full(); !errors.Is(err, broker.ErrStorageFull) {
			t.Fatalf("a publish on a full disk: %v", err)
		}
		if s := g.n.Status(); !s.StorageLow || !s.StorageFull {
			t.Fatalf("%+v, want a disk that is full", s)
		}
		for i, f := range map[string]func() error{
			"commit": func() error { _, err := g.n.CommitGroup([]byte("topic-1"), []byte("g"), 10); return err },
			"configure": func() error {
				_, err := g.n.ConfigureTopic(&broker.Configure{Topic: []byte("topic-0"), RetentionMS: limit(1 << 40)})
				return err
			},
			"seek": func() error {
				_, err := g.n.SeekGroup(&broker.Seek{Topic: []byte("topic-1"), Group: []byte("g"), By: broker.SeekToEnd})
				return err
			},
			"delete": func() error { _, err := g.n.DeleteGroup([]byte("topic-1"), []byte("g")); return err },
		} {
			if i == "delete" || i == "seek" {
				if _, err := g.n.CommitGroup([]byte("topic-1"), []byte("g"), 10); err != nil {
					t.Fatal(err)
				}
			}
			if err := f(); err != nil {
				t.Errorf("%s on a full disk: %v", i, err)
			}
		}
		// The records of the first topic live between those of the second, so nothing can be dropped without cleaning.
		g.retain(1, g.topics[1].end()-1)
		g.settle(20 * time.Second)
		if s := g.n.Status(); s.StorageFull {
			t.Fatalf("%+v, want room again (%+v, %+v)", s, g.n.cleaner.status(), g.n.log.Segments())
		}
		g.publish(0, 1, 100)
		g.checkRoom()
		g.check()
		g.disk.SetCapacity(1 << 30)
		g.settle(2 * time.Second)
		if s := g.n.Status(); s.StorageLow {
			t.Errorf("%+v, want ample room", s)
		}
		if n := said.count("room on the disk again"); n != 1 {
			t.Errorf("%d lines about room again", n)
		}
		g.close()
	})
}

// TestCleanerMakesRoomAgain: a disk that is filled up, by the log or by others, gets room back whenever something is deleted,
// time and again: also when the oldest segments are full of what was moved before, and all of it lives.
func TestCleanerMakesRoomAgain(t *testing.T) {
	for _, large := range []int{3000, 30000} {
		onVirtualTime(t, func(t *testing.T) {
			g := newGarden(t, 1, 3)
			g.close()
			g.config.FS, g.config.SegmentBytes = memfs.New(), 1<<20
			g.disk = g.config.FS.(*memfs.FS)
			g.open()
			g.settle(10 * time.Second)
			usage, err := g.disk.Usage()
			if err != nil {
				t.Fatal(err)
			}
			g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes + 24*g.config.SegmentBytes)
			put := func(topic, size int) bool {
				p := &g.topics[topic]
				value := bytes.Repeat([]byte{byte(len(p.records))}, size)
				_, err := g.n.Publish(&broker.Publish{Topic: []byte(p.name), Records: []fact.Record{{Value: value}}})
				if errors.Is(err, broker.ErrStorageFull) {
					return false
				}
				if err != nil {
					t.Fatal(err)
				}
				p.records = append(p.records, flower{nil, value, time.Now().UnixMilli()})
				return true
			}
			for cycle := range 8 {
				for i := 0; put(1, large*4) && (i%8 > 0 || put(0, large)); i++ {
					if i > 10000 {
						t.Fatal("the disk never gets full")
					}
				}
				if cycle%2 == 1 { // somebody else takes the rest
					usage, err := g.disk.Usage()
					if err != nil {
						t.Fatal(err)
					}
					g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes)
					defer g.disk.SetCapacity(usage.TotalBytes)
				}
				g.delete(1)
				g.settle(time.Minute)
				if g.n.Status().StorageFull || !put(1, 100) {
					t.Fatalf("cycle %d: still full (%+v, %+v)", cycle, g.n.cleaner.status(), g.n.log.Segments())
				}
				g.checkRoom()
				if cycle%3 == 2 {
					g.close()
					g.open()
				}
				g.checkTopic(&g.topics[0])
				// What is kept is not to fill the disk by itself.
				if n := len(g.topics[0].records); n > 0 && cycle%4 == 3 {
					g.retain(0, g.topics[0].end()-fact.Offset(n/8))
				}
			}
			g.close()
		})
	}
}

// TestCleanerOnADiskThatOthersFill: with no room at all, what lives in the oldest segments is moved to what is kept back.
func TestCleanerOnADiskThatOthersFill(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		g.close()
		g.config.FS, g.config.SegmentBytes = memfs.New(), 1<<20 // so that a piece would fit into the reserve
		g.disk = g.config.FS.(*memfs.FS)
		g.open()
		for range 100 {
			g.publish(0, 20, 1000)
			g.publish(1, 20, 1500)
		}
		g.settle(10 * time.Second)
		usage, err := g.disk.Usage()
		if err != nil {
			t.Fatal(err)
		}
		g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes)
		for !g.n.Status().StorageFull {
			if _, err := g.n.Publish(&broker.Publish{Topic: []byte("x"), Records: []fact.Record{{Value: make([]byte, 1000)}}}); err != nil && !errors.Is(err, broker.ErrStorageFull) {
				t.Fatal(err)
			}
		}
		g.retain(1, g.topics[1].end())
		g.settle(20 * time.Second)
		if status := g.n.cleaner.status(); status.MovedRecords == 0 || g.n.Status().StorageFull {
			t.Fatalf("%+v: it gave no room", status)
		}
		g.checkRoom()
		g.retain(0, g.topics[0].end()-1)
		g.settle(20 * time.Second)
		if g.n.Status().StorageFull {
			t.Fatalf("%+v, want room again (%+v)", g.n.cleaner.status(), g.n.log.Segments())
		}
		g.publish(0, 1, 100)
		g.check()
		g.close()
	})
}

// TestCleanerMovesLargeRecordsOnAFullDisk: a piece that ends with a large record is small enough for the reserve.
func TestCleanerMovesLargeRecordsOnAFullDisk(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 1)
		g.close()
		g.config.FS, g.config.SegmentBytes = memfs.New(), 4<<20
		g.disk = g.config.FS.(*memfs.FS)
		g.open()
		publish := func(topic string, size int) error {
			_, err := g.n.Publish(&broker.Publish{Topic: []byte(topic), Records: []fact.Record{{Value: make([]byte, size)}}})
			return err
		}
		for range 6 {
			for range 15 {
				if err := publish("goes", 250_000); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(publish("stays", 100_000), publish("stays", 200_000)); err != nil {
				t.Fatal(err)
			}
		}
		g.settle(10 * time.Second)
		usage, err := g.disk.Usage()
		if err != nil {
			t.Fatal(err)
		}
		g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes)
		for err == nil {
			err = publish("x", 10_000)
		}
		if !errors.Is(err, broker.ErrStorageFull) {
			t.Fatal(err)
		}
		if _, err := g.n.Retain([]byte("goes"), 6*15); err != nil {
			t.Fatal(err)
		}
		g.settle(20 * time.Second)
		if g.n.Status().StorageFull {
			t.Errorf("%+v, want room again (%+v)", g.n.cleaner.status(), g.n.log.Segments())
		}
		g.close()
	})
}

// TestCleanerGoesOn: what another leader has moved, or this one before it lost the lead, is not moved once more.
func TestCleanerGoesOn(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 3)
		for range 200 {
			g.publish(g.rand.IntN(3), 1+g.rand.IntN(5), 100)
		}
		g.retain(0, 10) // in the middle of what the oldest segment holds
		head := g.n.log.Segments()[0]
		if !head.Sealed {
			t.Fatal("there is one segment only")
		}
		// The offsets that live in the oldest segment, from a cleaner that moves as much as limit at first.
		gather := func(limit int) (found []string, first broker.Keep) {
			j := newJob(g.n.log, head)
			defer j.cursor.Close()
			for {
				piece, err := j.next(g.n.cleaner, limit)
				if err != nil {
					t.Fatal(err)
				}
				if len(piece.Runs) == 0 {
					return found, first
				}
				for _, run := range piece.Runs {
					for i := range run.Records {
						found = append(found, fmt.Sprintf("%s/%d", run.Topic, run.Base+fact.Offset(i)))
					}
				}
				if limit > 0 && first.Bytes == 0 {
					first = piece
					if limit < 10000 {
						return found, first
					}
				}
			}
		}
		all, _ := gather(1 << 20)
		some, piece := gather(3000)
		if len(some) == 0 || len(some) >= len(all) || slices.Contains(all, "topic-0/9") || !slices.Contains(all, "topic-0/10") {
			t.Fatalf("%d of %d: %v", len(some), len(all), all)
		}
		if err := g.n.broker.Load().Keep(&piece); err != nil {
			t.Fatal(err)
		}
		rest, _ := gather(1 << 20)
		slices.Sort(all)
		both := append(rest, some...)
		slices.Sort(both)
		if !slices.Equal(both, all) {
			t.Errorf("%d records were moved, then %d, want %d in all, each once", len(some), len(rest), len(all))
		}
		g.check()
		g.close()
	})
}

// TestSnapshotOnAFullDisk: snapshots go on from the ballast, again and again, where the log could not take its room; and where
// it could, those that give room back.
func TestSnapshotOnAFullDisk(t *testing.T) {
	for _, segment := range []int64{16 << 20, 32 << 10} {
		onVirtualTime(t, func(t *testing.T) {
			g := newGarden(t, 1, 1)
			g.close()
			g.config.FS, g.config.SegmentBytes = memfs.New(), segment
			g.disk = g.config.FS.(*memfs.FS)
			g.topics[0].records = nil
			clear(g.topics[0].ids)
			g.open()
			g.settle(time.Second) // the ballast is there
			for range 50 {
				g.publish(0, 1, 2000)
			}
			usage, err := g.disk.Usage()
			if err != nil {
				t.Fatal(err)
			}
			g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes)
			snapshot := func() error {
				if _, err := g.n.CommitGroup([]byte("topic-0"), []byte("g"), g.topics[0].end()); err != nil {
					t.Fatal(err)
				}
				_, err := g.n.Snapshot()
				return err
			}
			small := segment < ballastMin
			for range 3 {
				if err := snapshot(); small != errors.Is(err, broker.ErrStorageFull) || !small && err != nil {
					t.Errorf("a snapshot on a full disk, with segments of %d bytes: %v", segment, err)
				}
			}
			g.retain(0, g.topics[0].end())
			if err := snapshot(); err != nil {
				t.Errorf("a snapshot that gives room back, with segments of %d bytes: %v", segment, err)
			}
			g.close()
		})
	}
}

func limit(n int64) *fact.Limit { l := fact.Limit(n); return &l }

// TestSpaceBack: a disk that is full takes publishes again within a second of getting room.
func TestSpaceBack(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 1)
		g.publish(0, 4, 1000)
		usage, err := g.disk.Usage()
		if err != nil {
			t.Fatal(err)
		}
		for cycle := range 20 {
			g.disk.SetCapacity(usage.TotalBytes - usage.FreeBytes + int64(cycle)<<10)
			for i := 0; ; i++ {
				_, err = g.n.Publish(&broker.Publish{Topic: []byte("x"), Records: []fact.Record{{Value: make([]byte, 2000)}}})
				if err != nil {
					break
				}
				if i > 10_000 { // it has room for as much as a ballast that was not finished gives back
					t.Fatal("a full disk takes publishes")
				}
			}
			if !errors.Is(err, broker.ErrStorageFull) {
				t.Fatal(err)
			}
			if cycle%3 == 0 { // a restart without room
				g.close()
				g.open()
			}
			g.disk.SetCapacity(1 << 30)
			g.settle(time.Second)
			g.publish(0, 1, 100)
			if usage, err = g.disk.Usage(); err != nil {
				t.Fatal(err)
			}
		}
		g.check()
		g.close()
	})
}

// TestCleanerMeetsDiskErrors: an error at any operation while it cleans loses nothing.
func TestCleanerMeetsDiskErrors(t *testing.T) {
	kinds := []faultfs.Kind{faultfs.Write, faultfs.Sync, faultfs.Rename, faultfs.Remove, faultfs.SyncDir, faultfs.Create}
	for _, kind := range kinds {
		hits := 0
		for at := 1; at <= 10; at++ {
			onVirtualTime(t, func(t *testing.T) {
				g := newGarden(t, uint64(at), 3)
				g.close()
				disk := faultfs.New(g.disk)
				g.config.FS = disk
				g.open()
				for range 300 {
					g.publish(g.rand.IntN(3), 1, 900)
				}
				g.settle(5 * time.Second)
				g.retain(0, g.topics[0].end())
				g.retain(1, g.topics[1].end())
				injected := disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: at, Err: errors.New("broken")})
				g.settle(30 * time.Second)
				hits += len(injected.Hits())
				g.n.Close()
				g.config.FS = g.disk.Clone()
				g.open()
				g.check()
				g.close()
				g.config.FS = g.disk.Crash(1, at).FS
				g.open()
				g.check()
				g.close()
			})
		}
		if hits == 0 {
			t.Errorf("no %s failed", kind)
		}
	}
}
