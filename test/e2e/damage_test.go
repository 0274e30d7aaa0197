package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestDamage flips bits in frames of a log that was cleaned, in those with records that were moved and in others: exactly the
// records that stand there are answered data_corrupt, and all others are served. The scrubber must find all of it in its first
// pass.
func TestDamage(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 94))
	l := load.New(load.Config{Seed: seed, Churn: true, Quiet: true, Large: 20})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: process.KeptDir(t), Args: append([]string{"-scrub-within", "1m"}, small...),
	})
	p := node.StartReady()
	var moved tally
	for life := range 10 {
		killAfter(t, l, p, 2500*time.Millisecond, &moved)
		p = node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, false); err != nil {
			t.Fatal(err)
		}
		if moved.records > 0 && life > 0 {
			break
		}
	}
	cover(t, l, p)
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	p.Kill()

	topics := l.Kept()
	frames, want := pick(t, l, node.Data, topics, dice)
	for _, f := range frames {
		flipIn(t, filepath.Join(node.Data, "log", fmt.Sprintf("%020d.seg", f.at.Segment)), f.at.Offset, f.length, dice)
	}
	p = node.StartReady()
	c := load.NewClient(p.URL)
	defer c.Close()
	got, err := l.Damaged(t.Context(), c, topics...)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	if err := l.Err(); err != nil {
		t.Errorf("%v\n%s", err, p.Stderr())
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("damaged: %v, want %v\n%s", got, want, p.Stderr())
	}
	places := len(frames) // frames that touch are one place
	for _, f := range frames {
		for _, g := range frames {
			if f.at.Segment == g.at.Segment && f.at.Offset+f.at.Length == g.at.Offset {
				places--
			}
		}
	}
	awaitScrub(t, p, float64(places))
	report.Count(t, "frames damaged", int64(len(frames)))
	t.Logf("damaged %d frames: %v; %v", len(frames), want, moved)
}

// cover takes two snapshots, so that no start needs what is in sealed segments but for its records.
func cover(t *testing.T, l *load.Load, p *process.Process) {
	t.Helper()
	c := load.NewClient(p.URL)
	defer c.Close()
	for range 2 {
		for _, size := range []int{200 << 10, 200 << 10, 200 << 10, 200 << 10, 200 << 10, 200 << 10} {
			if a := l.Probe(t.Context(), c, size); a.Outcome != load.Done {
				t.Fatal(a)
			}
		}
		if a := c.Snapshot(t.Context()); a.Outcome != load.Done {
			t.Fatal(a)
		}
	}
}

// frameAt is a frame with records of a topic.
type frameAt struct {
	at     entry.Position
	kind   entry.Kind
	topic  string
	base   uint64
	count  int
	length int // of the bytes that count, without padding
}

// pick chooses frames of sealed segments in which records of some topics live, and returns them with the offsets of those
// records.
func pick(t *testing.T, l *load.Load, data string, topics []string, dice *rand.Rand) (chosen []frameAt, want map[string][]uint64) {
	t.Helper()
	folder, err := vfs.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	const header = 40
	var frames []frameAt
	newest := map[string]map[uint64]int{} // which frame holds a record
	in, err := wal.Inspect(folder, "log", func(e *entry.Entry, at entry.Position) error {
		s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
		if err != nil || !ok || !slices.Contains(topics, string(s.Topic)) {
			return err
		}
		f := frameAt{at: at, kind: e.Kind, topic: string(s.Topic), base: uint64(s.Base), count: s.Count, length: header + len(e.Payload)}
		if newest[f.topic] == nil {
			newest[f.topic] = map[uint64]int{}
		}
		start, _ := l.Checker.Bounds(f.topic)
		for off := f.base; off < f.base+uint64(f.count); off++ {
			if off >= start {
				newest[f.topic][off] = len(frames)
			}
		}
		frames = append(frames, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	active := in.Segments[len(in.Segments)-1].First
	living := map[int][]uint64{}
	for _, places := range newest {
		for off, i := range places {
			living[i] = append(living[i], off)
		}
	}
	want = map[string][]uint64{}
	of := map[entry.Kind]int{}
	const each = 4
	for _, i := range dice.Perm(len(frames)) {
		f := frames[i]
		if len(living[i]) == 0 || f.at.Segment == active || of[f.kind] == each {
			continue
		}
		of[f.kind]++
		chosen = append(chosen, f)
		want[f.topic] = append(want[f.topic], living[i]...)
	}
	for _, offsets := range want {
		slices.Sort(offsets)
	}
	if of[fact.KindKept] == 0 || of[fact.KindAppended] == 0 {
		t.Fatalf("nothing to damage: chosen by kind %v, of %d frames", of, len(frames))
	}
	return chosen, want
}

// flipIn flips one bit of a stretch of a file.
func flipIn(t *testing.T, name string, from int64, length int, dice *rand.Rand) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := from + dice.Int64N(int64(length))
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << dice.IntN(8)
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// awaitScrub waits until the scrubber has found so many damaged places. Its first pass begins a minute after the start, or when
// a read has met damage.
func awaitScrub(t *testing.T, p *process.Process, want float64) {
	t.Helper()
	const most = 2 * time.Minute
	var places, passed float64
	for began := time.Now(); time.Since(began) < most; <-time.After(100 * time.Millisecond) {
		m, err := p.Metrics()
		if err != nil {
			t.Fatal(err)
		}
		places, passed = m["mq_scrub_damaged_places"], m["mq_scrub_last_pass_timestamp_seconds"]
		if passed > 0 {
			break
		}
	}
	if places < want || passed == 0 {
		t.Errorf("the scrubber has found %v places, want %v at least; its last pass ended at %v\n%s", places, want, passed, p.Stderr())
	}
}
