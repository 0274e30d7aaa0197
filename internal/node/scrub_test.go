package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// framesOf returns where the entries of a topic stand that hold records, oldest first.
func framesOf(t *testing.T, n *Node, topic string) (list []frameAt) {
	t.Helper()
	for _, g := range n.log.Segments() {
		if _, err := n.log.ScanSegment(g.First, func(e *entry.Entry, p entry.Position) error {
			if s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload); ok && err == nil && string(s.Topic) == topic {
				list = append(list, frameAt{p, e.Index, s.Base, s.Base + fact.Offset(s.Count) - 1, e.Kind})
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

type frameAt struct {
	entry.Position
	index       entry.Index
	first, last fact.Offset
	kind        entry.Kind
}

// scrubbed is a node with some segments.
func scrubbed(t *testing.T, within time.Duration) (*garden, *lines) {
	g := newGarden(t, 1, 3)
	g.close()
	said := &lines{}
	g.config.Logger, g.config.ScrubWithin = slog.New(slog.NewTextHandler(said, nil)), within
	g.open()
	for range 60 {
		g.publish(0, 3, 300) // two frames in a row are one run of the index
		g.publish(0, 3, 300)
		g.publish(1, 1, 900)
	}
	return g, said
}

// The scrubber finds damage wherever it is, tells which records are lost with it, says each place once, and forgets what is
// good again.
func TestScrubFindsDamage(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, said := scrubbed(t, time.Hour)
		frames := framesOf(t, g.n, "topic-0")
		old, young := frames[3], frames[len(frames)-2]
		segments := g.n.log.Segments()
		if active := segments[len(segments)-1].First; len(segments) < 3 || old.Segment != 1 || young.Segment != active {
			t.Fatalf("%+v: %+v and %+v", segments, old, young)
		}
		if _, err := g.n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		newest := fmt.Sprintf("snapshots/%020d.snap", g.n.keeper.newest.Load())
		g.settle(30 * time.Second)
		if s, damage := g.n.scrubs.get(); s.Passes != 0 || len(damage) != 0 {
			t.Fatalf("before the first pass: %+v %v", s, damage)
		}
		flipAt(t, g.disk, segmentFile(old.Segment), old.Offset+60)
		flipAt(t, g.disk, segmentFile(young.Segment), young.Offset+41)
		flipAt(t, g.disk, newest, 50)
		find := func() []Damage {
			v := g.n.Verbose()
			for i := range v.Damage {
				if v.Damage[i].FoundMS == 0 || v.Damage[i].Reason == "" {
					t.Errorf("%+v", v.Damage[i])
				}
				v.Damage[i].FoundMS, v.Damage[i].Reason = 0, ""
			}
			return v.Damage
		}
		want := []Damage{
			{File: segmentFile(1), Position: old.Offset, Bytes: old.Length, First: old.index, Last: old.index,
				Records: []DamagedRecords{{"topic-0", old.first, old.last}}},
			{File: segmentFile(young.Segment), Position: young.Offset, Bytes: young.Length, First: young.index, Last: young.index,
				Records: []DamagedRecords{{"topic-0", young.first, young.last}}},
		}
		g.settle(time.Minute)
		if got := find(); !reflect.DeepEqual(got, want) {
			t.Errorf("found %+v\nwant  %+v", got, want)
		}
		// Each is said once, however often it is found; and a pass begins once an hour.
		g.settle(5 * time.Hour)
		s, _ := g.n.scrubs.get()
		if s.Passes != 6 || s.Found != 3 || s.LastMS == 0 || s.Running {
			t.Errorf("%+v", s)
		}
		if log, snap := said.count("has found damage"), said.count("a snapshot is damaged"); log != 2 || snap != 1 {
			t.Errorf("%d and %d lines", log, snap)
		}
		if n := said.count(fmt.Sprintf(`records %d to %d of topic`, old.first, old.last)); n != 1 {
			t.Errorf("%d lines about the records", n)
		}
		figures := map[string]float64{}
		g.n.Gauges(func(name string, value float64) { figures[name] = value })
		if figures["scrub_damage_total"] != 3 || figures["scrub_damaged_places"] != 2 || figures["scrub_last_pass_timestamp_seconds"] < 1e6 {
			t.Errorf("%v", figures)
		}
		// A fetch that meets damage begins a pass, but not over and over.
		for range 5 {
			if lost := g.readAround(0); lost != 6 {
				t.Errorf("%d records cannot be read", lost)
			}
			g.settle(time.Minute)
		}
		if s, _ := g.n.scrubs.get(); s.Passes != 7 {
			t.Errorf("%d passes after damage was met, want 7", s.Passes)
		}
		// Restored from a backup of the file: then it is good.
		flipAt(t, g.disk, segmentFile(old.Segment), old.Offset+60)
		g.settle(2 * time.Hour)
		if got := find(); !reflect.DeepEqual(got, want[1:]) {
			t.Errorf("after the repair: %+v", got)
		}
		// Records that are retained are not lost with it, and a segment that is dropped is not damaged.
		g.retain(0, young.last+1)
		g.settle(2 * time.Hour)
		if got := find(); len(got) != 1 || len(got[0].Records) != 0 {
			t.Errorf("after the retain: %+v", got)
		}
		g.close()
	})
}

// A snapshot that is damaged is replaced, whichever of the two it is, and also while nothing is logged: soon there are two good
// ones, and nothing of it is known as damaged any more.
func TestScrubReplacesSnapshots(t *testing.T) {
	for name, which := range map[string][]int{"the newest": {0}, "the second": {1}, "both": {0, 1}, "the newest, before a start": {0}} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T) {
				g, said := scrubbed(t, time.Hour)
				for range 2 {
					g.publish(0, 1, 10)
					g.settle(10 * time.Second) // for the marker
					if _, err := g.n.Snapshot(); err != nil {
						t.Fatal(err)
					}
				}
				id := g.n.identity.logID()
				before, bad, err := snapshot.List(g.disk, snapshotDir, id)
				if err != nil || len(before) != 2 || len(bad) != 0 || before[0].Index != g.n.log.Last() {
					t.Fatal(before, bad, err)
				}
				for _, i := range which {
					flipAt(t, g.disk, snapshotFile(before[i].Index), 50)
				}
				if strings.HasSuffix(name, "start") {
					g.close()
					g.open()
				}
				g.settle(75 * time.Second) // the first pass begins a minute after the start
				good, bad, err := snapshot.List(g.disk, snapshotDir, id)
				if err != nil || len(good) != 2 || len(bad) != 0 {
					t.Errorf("%+v are good, %+v bad: %v", good, bad, err)
				}
				if status, damage := g.n.scrubs.get(); len(damage) != 0 || status.Found != uint64(len(which)) || said.count("a snapshot is damaged; ") != len(which) {
					t.Errorf("%+v is known, %+v", damage, status)
				}
				last := g.n.log.Last()
				g.settle(30 * time.Minute)
				if now := g.n.log.Last(); now != last || last > before[0].Index+2 {
					t.Errorf("the log went on from entry %d to %d, and to %d", before[0].Index, last, now)
				}
				g.check()
				g.close()
			})
		})
	}
}

// Any node of a cluster gets a damaged segment back, and replaces a damaged snapshot, and then knows of no damage any more, before
// the next pass.
func TestScrubHealsInACluster(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	for i := range 60 {
		c.publish(fmt.Sprint(i, strings.Repeat(" ", 4<<10)))
	}
	c.awaitAll()
	for i := range 3 {
		n := c.node(i).life.Load()
		id := n.identity.logID()
		c.await("two snapshots", func() string {
			good, _, err := snapshot.List(n.fs, snapshotDir, id)
			if err == nil && len(good) == 2 {
				return ""
			}
			c.publish(fmt.Sprint("more ", time.Now().UnixNano()))
			_, snapErr := n.keeper.Snapshot()
			return fmt.Sprint(good, err, snapErr)
		})
		c.await("the first pass", func() string {
			if s, _ := n.scrubs.get(); s.Passes == 0 || s.Running {
				return "it runs"
			}
			return ""
		})
		n.keeper.mu.Lock()
		good, _, err := snapshot.List(n.fs, snapshotDir, id)
		if err == nil {
			flipAt(t, c.disks[i], snapshotFile(good[len(good)-1].Index), 50)
		}
		n.keeper.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		flipAt(t, c.disks[i], segmentFile(n.log.Segments()[0].First), 2000)
		c.node(i).metDamage()
		c.await("all is good again", func() string {
			s, damage := n.scrubs.get()
			good, bad, err := snapshot.List(n.fs, snapshotDir, id)
			if err == nil && s.Found > 0 && len(damage) == 0 && len(bad) == 0 && len(good) == 2 {
				if s.Passes > 2 {
					t.Errorf("node %d: it took %d passes", i, s.Passes)
				}
				return ""
			}
			return fmt.Sprintf("node %d: %+v, %+v, snapshots %v and %v, %v", i, s, damage, good, bad, err)
		})
	}
}

// Damage of what is dropped or pruned is forgotten at once, not at the next pass.
func TestScrubForgets(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, _ := scrubbed(t, 24*time.Hour)
		f := framesOf(t, g.n, "topic-0")[3]
		flipAt(t, g.disk, segmentFile(f.Segment), f.Offset+60)
		g.settle(5 * time.Minute)
		if _, damage := g.n.scrubs.get(); f.Segment != 1 || len(damage) != 1 {
			t.Fatalf("%+v: %+v", f, damage)
		}
		for topic := range 2 {
			g.retain(topic, g.topics[topic].end())
		}
		g.settle(time.Minute)
		if first := g.n.log.Segments()[0].First; first == 1 {
			t.Fatal("the damaged segment is still there")
		}
		if v := g.n.Verbose(); len(v.Damage) != 0 || v.Scrub.Passes != 1 {
			t.Errorf("after %d passes: %+v", v.Scrub.Passes, v.Damage)
		}
		g.close()
	})
}

// A segment whose file is missing is named by that, with its entries and the records that are lost with it: when the file goes
// while the node runs, and when the node starts without it.
func TestScrubMissingSegment(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, said := scrubbed(t, time.Hour)
		if _, err := g.n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		g.settle(time.Second)
		gone := g.n.log.Segments()[1]
		want := Damage{File: segmentFile(gone.First), First: gone.First, Last: gone.Last, Reason: "the file is missing"}
		for i := range g.topics {
			name := g.topics[i].name
			records, any := DamagedRecords{Topic: name}, false
			for _, f := range framesOf(t, g.n, name) {
				if f.Segment == gone.First {
					if !any {
						records.First, any = f.first, true
					}
					records.Last = f.last
				}
			}
			if any {
				want.Records = append(want.Records, records)
			}
		}
		check := func(when string) {
			t.Helper()
			_, damage := g.n.scrubs.get()
			if len(damage) != 1 {
				t.Fatalf("%s: %+v", when, damage)
			}
			damage[0].FoundMS = 0
			slices.SortFunc(damage[0].Records, func(a, b DamagedRecords) int { return strings.Compare(a.Topic, b.Topic) })
			if !reflect.DeepEqual(damage[0], want) {
				t.Errorf("%s: found %+v\nwant %+v", when, damage[0], want)
			}
		}
		if err := g.disk.Remove(segmentFile(gone.First)); err != nil || len(want.Records) == 0 {
			t.Fatal(err, want)
		}
		g.settle(3 * time.Hour)
		check("while it runs")
		if n := said.count("has found damage"); n != 1 {
			t.Errorf("%d lines about it", n)
		}
		g.close()
		g.open()
		g.settle(10 * time.Minute)
		check("after a start")
		g.close()
	})
}

// A pass takes as long as its rate says: 4 MiB a second, or more where the log would not be read in time.
func TestScrubRate(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, _ := scrubbed(t, time.Hour)
		s := &scrubber{n: g.n, report: new(scrubReport), rate: 100 << 10, within: time.Hour}
		pass := func(haste int64) time.Duration {
			begun := time.Now()
			s.pass(context.Background(), haste)
			return time.Since(begun)
		}
		total := s.total(g.n.log.Segments())
		atRate := func(rate int64) time.Duration { return time.Duration(total * int64(time.Second) / rate) }
		for _, test := range []struct {
			haste  int64
			within time.Duration
			want   time.Duration
		}{
			{1, time.Hour, atRate(100 << 10)},
			{8, time.Hour, atRate(800 << 10)},
			{1, time.Second, time.Second},
		} {
			s.within = test.within
			took := pass(test.haste)
			if took < test.want*6/10 || took > test.want*11/10 { // not all of the active segment is read
				t.Errorf("a pass over %d bytes at %+v took %v", total, test, took)
			}
		}
		status, _ := s.report.get()
		if status.Passes != 3 || status.ReadBytes > status.PassBytes || status.ReadBytes < status.PassBytes/2 {
			t.Errorf("%+v", status)
		}
		// It ends at once when the node does, in the middle of a pass.
		s.rate, s.within = 1, 0
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begun := time.Now()
		s.pass(ctx, 1)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
		g.close()
	})
}

// A segment that cannot be read is damaged, too.
func TestScrubUnreadable(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, _ := scrubbed(t, time.Hour)
		g.close()
		bad := faultfs.New(g.disk)
		g.config.FS = bad
		g.open()
		bad.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Read}, Name: segmentFile(1), Always: true, Err: syscall.EIO})
		g.settle(10 * time.Minute)
		_, damage := g.n.scrubs.get()
		if len(damage) != 1 || damage[0].File != segmentFile(1) || !strings.Contains(damage[0].Reason, syscall.EIO.Error()) {
			t.Errorf("%+v", damage)
		}
		bad.Heal()
		g.settle(time.Hour)
		if _, damage := g.n.scrubs.get(); len(damage) != 0 {
			t.Errorf("%+v", damage)
		}
		g.close()
	})
}

// What is known is bounded, and what is not new is not told again.
func TestScrubReport(t *testing.T) {
	r := &scrubReport{}
	place := func(file string, at int64) Damage { return Damage{File: file, Position: at} }
	if fresh := r.found("a", []Damage{place("a", 1), place("a", 2)}); len(fresh) != 2 {
		t.Errorf("%v", fresh)
	}
	if fresh := r.found("a", []Damage{place("a", 2), place("a", 3)}); len(fresh) != 1 || fresh[0].Position != 3 {
		t.Errorf("%v", fresh)
	}
	var many []Damage
	for i := range 2 * damagesMax {
		many = append(many, place("b", int64(i)))
	}
	r.found("b", many)
	s, all := r.get()
	if len(all) != damagesMax || s.Found != 3+2*damagesMax || all[damagesMax-1].Position != 2*damagesMax-1 {
		t.Errorf("%+v, %d places", s, len(all))
	}
	r.tell(func(file string) bool { return file == "a" })
	if _, all := r.get(); len(all) != 0 {
		t.Errorf("%d places of files that are gone", len(all))
	}
}

// G7: every byte of a frame is flipped, of one with a batch and of one that was kept. Exactly its records answer
// data_corrupt, all others are served, before and after a start.
func TestEveryByteOfAFrame(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem)
	var keep []fact.KeptRecord
	for i := range 12 {
		for topic := range 2 {
			c := call{topic: topic, values: []string{fmt.Sprint("record ", i), "and its twin"}}
			if _, err := n.Publish(c.request()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var cum uint64
	next := fact.Offset(0)
	var sink sinkFunc = func(offset fact.Offset, key, value []byte, timeMS int64) {
		if offset < 6 {
			cum += uint64(len(key) + len(value))
		} else if offset < 9 {
			keep = append(keep, fact.KeptRecord{TimeMS: timeMS, Record: fact.Record{Key: append([]byte{}, key...), Value: append([]byte{}, value...)}})
		}
		next++
	}
	if _, err := n.Fetch(&broker.Fetch{Topic: topicName(0), Limit: 9}, sink); err != nil {
		t.Fatal(err)
	}
	if err := n.broker.Load().Keep(&broker.Keep{Runs: []broker.KeptRun{{Topic: topicName(0), Base: 6, Cum: cum, Records: keep}}}); err != nil {
		t.Fatal(err)
	}
	c := call{topic: 1, values: []string{"the end"}}
	if _, err := n.Publish(c.request()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Snapshot(); err != nil {
		t.Fatal(err)
	}
	frames := framesOf(t, n, string(topicName(0)))
	kept := frames[len(frames)-1]
	if kept.kind != fact.KindKept {
		t.Fatalf("%+v", frames)
	}
	hit := 0
	for _, f := range []frameAt{frames[8], kept} {
		for at := range f.Length {
			flipAt(t, mem, segmentFile(f.Segment), f.Offset+at)
			lost := map[fact.Offset]bool{}
			for off := f.first; off <= f.last; off++ {
				lost[off] = true
			}
			check := func(n *Node, when string) {
				t.Helper()
				for topic, end := range []fact.Offset{24, 25} {
					for off := fact.Offset(0); off < end; off++ {
						got := fact.Offset(0)
						var sink sinkFunc = func(offset fact.Offset, _, _ []byte, _ int64) { got = offset + 1 }
						_, err := n.Fetch(&broker.Fetch{Topic: topicName(topic), Offset: off, Limit: 1}, sink)
						corrupt := (*broker.CorruptError)(nil)
						bad := errors.As(err, &corrupt)
						if want := topic == 0 && lost[off]; bad != want || !bad && (err != nil || got != off+1) {
							t.Fatalf("%s, byte %d of %+v flipped: record %d of topic %d: %v", when, at, f, off, topic, err)
						} else if bad {
							hit++
							if corrupt.First != off || corrupt.Last != f.last {
								t.Fatalf("%s, byte %d of %+v flipped: record %d: %v", when, at, f, off, err)
							}
						}
					}
				}
			}
			check(n, "running")
			if at%16 == 0 {
				again := mem.Clone()
				m := openNode(t, again)
				if f.kind == fact.KindKept { // the index is made anew, and knows the older copy
					clear(lost)
				}
				check(m, "started again")
				m.Close()
			}
			flipAt(t, mem, segmentFile(f.Segment), f.Offset+at)
		}
	}
	if hit < 300 {
		t.Errorf("only %d answers of damage", hit)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
