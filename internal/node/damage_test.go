package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

// G7: a flipped bit anywhere in the data folder. Either the node refuses to start and names the place, or all
// that it serves is right, and what it cannot serve it names: no wrong byte, no silent gap.
func TestFlippedBitAnywhere(t *testing.T) {
	flips := states(t, 1500)
	mem := memfs.New()
	s := newScript(11)
	n := openNode(t, mem)
	for i := range 120 {
		if err := s.step(n, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	known := s.now()
	var files []string
	for _, dir := range []string{".", logDir, snapshotDir} {
		names, err := mem.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if name = strings.TrimPrefix(dir+"/"+name, "./"); name != lockFile && name != ballastFile {
				files = append(files, name)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	found := map[string]int{}
	for i := range flips {
		name := files[i%len(files)]
		broken := mem.Clone()
		at := flip(t, broken, name, random)
		if at < 0 {
			continue
		}
		what := servesOnlyTruth(t, broken, known)
		if t.Failed() {
			t.Fatalf("after a flipped bit in %s at byte %d", name, at)
		}
		found[what]++
	}
	report.Count(t, "bits flipped in a folder", int64(flips))
	t.Log(found)
	for _, what := range []string{"refused to start", "named damaged records", "served everything"} {
		if found[what] == 0 {
			t.Errorf("no flip led to %q: the test does not reach it", what)
		}
	}
}

// flip changes one bit of a file, mostly where it is not all zeros, and returns the byte's position, or -1
// for an empty file.
func flip(t *testing.T, fsys vfs.FS, name string, random *rand.Rand) int64 {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size == 0 {
		return -1
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	at := random.Int64N(size)
	for try := 0; b[at] == 0 && try < 20; try++ {
		at = random.Int64N(size)
	}
	b[at] ^= 1 << random.IntN(8)
	if _, err := f.WriteAt(b[at:at+1], at); err != nil {
		t.Fatal(err)
	}
	return at
}

// servesOnlyTruth opens a damaged folder, checks all that is served, and says how the node took it.
func servesOnlyTruth(t *testing.T, fsys vfs.FS, known history) string {
	t.Helper()
	n, err := Open(testConfig(fsys))
	if err != nil {
		return "refused to start"
	}
	defer n.Close()
	if err := n.Recover(); err != nil {
		return "refused to start"
	}
	result := "served everything"
	for i := range known.topics {
		want := known.topics[i]
		next := want.start
		for next < fact.Offset(len(want.records)) {
			var sink sinkFunc = func(offset fact.Offset, key, value []byte, _ int64) {
				if offset != next || string(key) != "key" || string(value) != want.records[offset] {
					t.Errorf("topic %d: wrong record at %d, want %d", i, offset, next)
				}
				next++
			}
			page, err := n.Fetch(&broker.Fetch{Topic: topicName(i), Offset: next, Limit: 7}, sink)
			var corrupt *broker.CorruptError
			switch {
			case errors.As(err, &corrupt):
				if corrupt.First != next || corrupt.Last < next {
					t.Errorf("topic %d: damage %d to %d at a fetch from %d", i, corrupt.First, corrupt.Last, next)
				}
				next = corrupt.Last + 1
				result = "named damaged records"
			case err != nil:
				t.Errorf("topic %d at %d: %v", i, next, err)
				return result
			case page.End != fact.Offset(len(want.records)) || page.Start != want.start:
				t.Errorf("topic %d: %+v, want %d to %d", i, page, want.start, len(want.records))
				return result
			}
		}
		for id, v := range want.ids {
			done, err := n.Publish((&call{topic: i, id: id, values: v.values}).request())
			if err != nil || !done.Duplicate || done.Base != v.base {
				t.Errorf("topic %d: retry of %s: %+v %v", i, id, done, err)
			}
		}
	}
	return result
}

// Damage names exactly the records of the frame that is hit.
func TestDamageIsNamedExactly(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem)
	for i := range 60 {
		c := call{values: []string{fmt.Sprintf("record %d", i), "its twin"}}
		if _, err := n.Publish(c.request()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Snapshot(); err != nil {
		t.Fatal(err)
	}
	run, err := n.index.Find(topicName(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	// Find the frame of records 20 and 21 and hit it while the node runs.
	b := make([]byte, run.End-run.Pos)
	if _, err := n.log.ReadAt(b, run.Segment, run.Pos); err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "record 10")
	f, err := mem.Open("log/00000000000000000001.seg")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), run.Pos+int64(at)); err != nil {
		t.Fatal(err)
	}
	check := func(n *Node) {
		t.Helper()
		var got int
		var sink sinkFunc = func(fact.Offset, []byte, []byte, int64) { got++ }
		page, err := n.Fetch(&broker.Fetch{Topic: topicName(0), Limit: 1000}, sink)
		if err != nil || got != 20 || page.Next != 20 {
			t.Fatalf("before the damage: %d records, %+v, %v", got, page, err)
		}
		var corrupt *broker.CorruptError
		for _, offset := range []fact.Offset{20, 21} {
			_, err = n.Fetch(&broker.Fetch{Topic: topicName(0), Offset: offset, Limit: 1000}, sink)
			if !errors.As(err, &corrupt) || corrupt.First != offset || corrupt.Last != 21 {
				t.Fatalf("at %d: %v", offset, err)
			}
		}
		got = 0
		page, err = n.Fetch(&broker.Fetch{Topic: topicName(0), Offset: 22, Limit: 1000}, sink)
		if err != nil || got != 98 || page.Next != 120 {
			t.Fatalf("after the damage: %d records, %+v, %v", got, page, err)
		}
	}
	check(n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	again := openNode(t, mem) // a snapshot covers the damage: it starts
	defer again.Close()
	check(again)
}

// Sectors that turn to zeros after a clean stop look like a torn write, and are not one.
func TestZeroedTailAfterCleanStop(t *testing.T) {
	for _, zeros := range []int64{200, 1000, 6000} {
		mem := memfs.New()
		n := openNode(t, mem)
		for i := range 20 {
			if _, err := n.Publish((&call{values: []string{fmt.Sprintf("%0400d", i)}}).request()); err != nil {
				t.Fatal(err)
			}
		}
		run, err := n.index.Find(topicName(0), 19)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := mem.Open("log/00000000000000000001.seg")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, zeros+200), run.End-zeros); err != nil {
			t.Fatal(err)
		}
		if n, err = Open(testConfig(mem)); err != nil {
			t.Fatal(err)
		}
		if err := n.Recover(); err == nil || !strings.Contains(err.Error(), "durable before") {
			t.Errorf("%d zeroed bytes: the node started: %v", zeros, err)
		}
		n.Close()
	}
}
