package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

// G8: an error at the k-th operation of a kind. From the first failed call on nothing is acknowledged, reads go
// on, and after a kill -9 or a power cut everything acknowledged is there.
func TestDiskErrorAtAnyOperation(t *testing.T) {
	last := 200
	if testing.Short() {
		last = 40
	}
	// A run has at least so many operations of each kind; with fewer the test would test nothing.
	for kind, floor := range map[faultfs.Kind]int{faultfs.Sync: 100, faultfs.Write: 100, faultfs.Rename: 15, faultfs.SyncDir: 15,
		faultfs.Create: 10, faultfs.Remove: 5} {
		t.Run(string(kind), func(t *testing.T) {
			for k := 1; k <= last; k++ {
				short := 0
				if kind == faultfs.Write && k%2 == 0 {
					short = 100
				}
				hit := diskError(t, uint64(k), faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO, Short: short, Always: k%3 == 0})
				if t.Failed() {
					t.Fatalf("with an error at %s %d", kind, k)
				}
				if !hit {
					if k <= floor {
						t.Fatalf("only %d operations of kind %s in a run, want %d", k-1, kind, floor)
					}
					t.Logf("%d operations failed, one in each run", k-1)
					break
				}
				report.Count(t, "operations that fail", 1)
			}
		})
	}
}

// diskError runs a script on a disk with a fault and reports whether the fault was met.
func diskError(t *testing.T, seed uint64, fault faultfs.Fault) bool {
	t.Helper()
	mem := memfs.New()
	disk := faultfs.New(mem)
	injected := disk.Inject(fault)
	s := newScript(seed)
	n, err := Open(testConfig(disk))
	if err == nil {
		err = n.Recover()
	}
	if err == nil {
		for i := 0; i < 150 && err == nil; i++ {
			err = s.step(n, i)
		}
		if err != nil && !n.Status().Ready { // else one of its own goroutines is about to tell it, and a write on its way may be unknown
			refusesWrites(t, n)
		}
		if len(injected.Hits()) > 0 {
			awaitNotReady(t, n)
			refusesWrites(t, n)
			for i := range s.topics {
				if s.unknown != nil && s.unknown.kind == "retain" && s.unknown.topic == i {
					continue // it may have been done
				}
				if got, _, err := readAll(n, i); len(got) < len(s.topics[i].records)-int(s.topics[i].start) {
					t.Errorf("reads do not go on: %d of %d records of topic %d: %v", len(got), len(s.topics[i].records), i, err)
				}
			}
		}
	}
	hit := len(injected.Hits()) > 0
	if err != nil && !hit {
		t.Errorf("without a fault: %v", err)
	}
	if n != nil {
		n.Close()
	}
	s.now().verify(t, mem.Clone())
	for number := range 3 {
		s.now().verify(t, mem.Crash(seed, number).FS)
	}
	return hit
}

func refusesWrites(t *testing.T, n *Node) {
	t.Helper()
	var un *broker.UnavailableError
	if _, err := n.Publish((&call{values: []string{"x"}}).request()); !errors.As(err, &un) || un.Unknown {
		t.Errorf("a publish after the failure: %v", err)
	}
	if _, err := n.CommitGroup(topicName(0), []byte("g"), 0); !errors.As(err, &un) || un.Unknown {
		t.Errorf("a group commit after the failure: %v", err)
	}
	if _, err := n.Snapshot(); err == nil {
		t.Error("a snapshot after the failure")
	}
}

// awaitNotReady waits until the node has noticed an error that one of its own goroutines met.
func awaitNotReady(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i := 0; n.Status().Ready; i++ {
		if ctx.Err() != nil {
			t.Error("the node met an error and is still ready")
			return
		}
		n.Publish((&call{topic: 9, values: []string{"probe"}}).request()) // it may take a write to meet it
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// G9: a full disk refuses publishes whole, lets small facts through, and goes on when there is room; a start
// with no room works.
func TestFullDisk(t *testing.T) {
	mem := memfs.New()
	cfg := testConfig(mem)
	now := cfg.Clock.(*clock.Manual)
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	publish := func(n *Node, i int) error {
		_, err := n.Publish((&call{values: []string{fmt.Sprintf("%d.%01000d", i, i)}, id: fmt.Sprint(i)}).request())
		return err
	}
	count := 0
	for ; count < 100; count++ {
		if err := publish(n, count); err != nil {
			t.Fatal(err)
		}
	}
	usage, err := mem.Usage()
	if err != nil {
		t.Fatal(err)
	}
	mem.SetCapacity(usage.TotalBytes - usage.FreeBytes + 4096)
	// small makes small writes and reads, and tells whether the disk was full all the time.
	small := func(n *Node) bool {
		t.Helper()
		if _, err := n.CommitGroup(topicName(0), []byte("g"), 50); err != nil {
			t.Fatalf("group commit on a full disk: %v", err)
		}
		if _, err := n.Retain(topicName(0), 1); err != nil {
			t.Fatalf("retain on a full disk: %v", err)
		}
		if got, page, err := readAll(n, 0); err != nil || int(page.End) != count || len(got) != count-1 {
			t.Fatalf("reads on a full disk: %d records, %+v %v, want %d", len(got), page, err, count)
		}
		s := n.Status()
		if !s.Ready {
			t.Fatalf("%+v", s)
		}
		return s.StorageFull
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// fill publishes until the disk is full and stays so for a while. What a snapshot, or a start, tidies up may give a little
	// room first.
	fill := func(n *Node) {
		t.Helper()
		for full := false; !full; {
			var err error
			for err = publish(n, count); err == nil; err = publish(n, count) {
				count++
				if ctx.Err() != nil {
					t.Fatal("publishes go on without room")
				}
			}
			if !errors.Is(err, broker.ErrStorageFull) {
				t.Fatal(err)
			}
			if full = small(n); !full && ctx.Err() != nil {
				t.Fatalf("%+v", n.Status())
			}
		}
	}
	fill(n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		t.Fatalf("start on a full disk: %v", err)
	}
	defer func() { n.Close() }()
	fill(n)
	mem.SetCapacity(1 << 30)
	for ctx.Err() == nil {
		now.Advance(300 * time.Millisecond)
		if err = publish(n, count); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("publishes do not come back: %v", err)
	}
}

// Dropped segments: a retain gives disk space back, once snapshots cover it.
func TestRetainGivesSpaceBack(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem)
	defer n.Close()
	for i := range 400 {
		if _, err := n.Publish((&call{topic: i % 2, values: []string{fmt.Sprintf("%01000d", i)}}).request()); err != nil {
			t.Fatal(err)
		}
	}
	before, lastPublish := len(n.log.Segments()), n.log.Last()
	if _, err := n.Retain(topicName(0), 200); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Snapshot(); err != nil {
		t.Fatal(err)
	}
	// The cleaner may have begun to move the other topic, which lives in all of them: it loses nothing.
	got, page, err := readAll(n, 1)
	if err != nil || len(got) != 200 || page.Start != 0 {
		t.Fatalf("the other topic: %d records, %+v, %v", len(got), page, err)
	}
	for i, value := range got {
		if want := fmt.Sprintf("%01000d", 2*i+1); value != want {
			t.Fatalf("record %d of the other topic is %s, want %s", i, value, want)
		}
	}
	if _, err := n.Retain(topicName(1), 199); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n.log.Segments()[0].Last < lastPublish { // the last record lives
		if ctx.Err() != nil {
			t.Fatalf("the log still begins with %+v, of %d segments", n.log.Segments()[0], before)
		}
		if _, err := n.CommitGroup(topicName(1), []byte("g"), 200); err != nil { // any write lets the keeper go on
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil { // what the keeper began is complete then
		t.Fatal(err)
	}
	names, err := mem.List("log")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if first, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSuffix(name, ".seg"), ".idx"), 10, 64); err == nil && entry.Index(first) < lastPublish/2 {
			t.Errorf("%s is still there", name)
		}
	}
	n = openNode(t, mem)
	defer n.Close()
	if got, page, err = readAll(n, 1); err != nil || len(got) != 1 || page.Start != 199 {
		t.Fatalf("%d records, %+v, %v", len(got), page, err)
	}
}

// The log reaches back to what the oldest of the kept snapshots needs, so that it starts without the newest one.
func TestDropLeavesWhatTheOlderSnapshotNeeds(t *testing.T) {
	mem := memfs.New()
	dropped := entry.Index(1)
	for round := range 4 {
		n := openNode(t, mem)
		for i := range 200 {
			if _, err := n.Publish((&call{values: []string{fmt.Sprintf("%01000d", i)}}).request()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Retain(topicName(0), fact.Offset(200*(round+1))); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil { // what the keeper began is complete then
			t.Fatal(err)
		}
		files, err := snapshot.Files(mem, snapshotDir)
		if err != nil || len(files) == 0 {
			t.Fatalf("round %d: snapshots %v, %v", round, files, err)
		}
		needed := entry.Index(1)
		if len(files) >= snapshotsKept {
			needed = files[snapshotsKept-1].Index + 1
		}
		names, err := mem.List(logDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names { // sorted
			first, ok := segmentOf(name)
			if !ok {
				continue
			}
			if dropped = first; first > needed {
				t.Errorf("round %d: the log begins with entry %d, and the older snapshot needs it from entry %d on", round, first, needed)
			}
			break
		}
	}
	if dropped == 1 {
		t.Error("nothing was dropped: this tests nothing")
	}
}

// G10: a folder that lost something does not start empty, and is not changed.
func TestLostFilesAreRefused(t *testing.T) {
	build := func() *memfs.FS {
		mem := memfs.New()
		s := newScript(3)
		n := openNode(t, mem)
		for i := range 100 {
			if err := s.step(n, i); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		return mem
	}
	list := func(mem *memfs.FS, dir string) []string {
		names, err := mem.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	remove := func(mem *memfs.FS, names ...string) {
		for _, name := range names {
			if err := mem.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	in := func(mem *memfs.FS, dir string) (names []string) {
		for _, name := range list(mem, dir) {
			names = append(names, dir+"/"+name)
		}
		return names
	}
	for _, c := range []struct {
		name string
		harm func(mem *memfs.FS)
	}{
		{"identity lost", func(m *memfs.FS) { remove(m, identityFile) }},
		{"identity empty", func(m *memfs.FS) {
			remove(m, identityFile)
			f, _ := m.Create(identityFile)
			f.Close()
		}},
		{"log lost", func(m *memfs.FS) { remove(m, in(m, "log")...) }},
		{"log and snapshots lost", func(m *memfs.FS) { remove(m, in(m, "log")...); remove(m, in(m, "snapshots")...) }},
		{"snapshots lost, and the log's head was dropped", func(m *memfs.FS) {
			remove(m, in(m, "snapshots")...)
			for _, name := range in(m, "log") {
				if strings.HasSuffix(name, ".seg") {
					remove(m, name)
					return
				}
			}
		}},
		{"last segment lost", func(m *memfs.FS) {
			var last string
			for _, name := range in(m, "log") {
				if len(name) == len("log/00000000000000000001.seg") && name[len(name)-4:] == ".seg" {
					last = name
				}
			}
			remove(m, last)
		}},
		{"identity of another log", func(m *memfs.FS) {
			other := memfs.New()
			cfg := testConfig(other)
			cfg.Random = otherRandom{}
			n, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			n.Close()
			f, err := other.OpenRead(identityFile)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(io.NewSectionReader(f, 0, 4096))
			if err := replaceText(m, identityTmp, identityFile, text); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := build()
			c.harm(mem)
			before := fmt.Sprint(list(mem, "."), list(mem, "log"), list(mem, "snapshots"))
			n, err := Open(testConfig(mem))
			if err == nil {
				err = n.Recover()
				n.Close()
			}
			if err == nil {
				t.Fatal("the node started")
			}
			t.Log(err)
			if after := fmt.Sprint(list(mem, "."), list(mem, "log"), list(mem, "snapshots")); after != before {
				t.Fatalf("files changed:\n%s\n%s", before, after)
			}
		})
	}
}

// Without a snapshot behind it only the index file of the segment before tells that the last one is missing.
func TestLostLastSegmentIsRefused(t *testing.T) {
	mem := memfs.New()
	cfg := testConfig(mem)
	cfg.SnapshotBytes = 1 << 40
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := n.Publish((&call{values: []string{fmt.Sprintf("%01000d", i)}}).request()); err != nil {
			t.Fatal(err)
		}
	}
	segments := n.log.Segments()
	if err := n.index.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mem.Remove(cleanFile); err != nil { // it would tell, too
		t.Fatal(err)
	}
	if err := mem.Remove(fmt.Sprintf("log/%020d.seg", segments[len(segments)-1].First)); err != nil {
		t.Fatal(err)
	}
	if n, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Recover(); err == nil {
		t.Fatalf("started without its last segment: %v", err)
	}
}

type otherRandom struct{}

func (otherRandom) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 0xee
	}
	return len(p), nil
}

func TestSecondProcessIsRefused(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem)
	defer n.Close()
	if _, err := Open(testConfig(mem)); err == nil {
		t.Fatal("the folder was opened twice")
	}
	if _, err := n.Publish((&call{values: []string{"x"}}).request()); err != nil {
		t.Fatalf("the first is harmed: %v", err)
	}
}

// A crash between the naming of a segment and its first frame leaves an empty active segment. A group that is
// larger replaces its file; both are one segment then.
func TestGroupLargerThanAnEmptySegment(t *testing.T) {
	mem := memfs.New()
	disk := faultfs.New(mem)
	n := openNode(t, disk)
	disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.SyncDir}, Name: logDir, Err: syscall.EIO, Done: true})
	small := call{topic: 1, values: []string{strings.Repeat("a", 500)}}
	for {
		if _, err := n.Publish(small.request()); err != nil {
			break // the second segment has its name, and no entry
		}
	}
	n.Close()
	n = openNode(t, mem)
	defer func() { n.Close() }()
	large := call{}
	for range fact.BatchMax {
		large.values = append(large.values, strings.Repeat("b", 2000))
	}
	if _, err := n.Publish(large.request()); err != nil {
		t.Fatal(err)
	}
	if got, _, err := readAll(n, 0); err != nil || len(got) != fact.BatchMax {
		t.Fatalf("read back %d records: %v", len(got), err)
	}
	first := map[entry.Index]bool{}
	for _, s := range n.log.Segments() {
		if first[s.First] {
			t.Fatalf("two segments have one name: %+v", n.log.Segments())
		}
		first[s.First] = true
	}
	// Drop all that can be dropped: the active segment must stay.
	for topic := range 2 {
		_, page, err := readAll(n, topic)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Retain(topicName(topic), page.End); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Publish((&call{topic: 2, values: []string{"c"}}).request()); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	n = openNode(t, mem.Clone())
	if got, _, err := readAll(n, 2); err != nil || len(got) != 3 {
		t.Fatalf("after the drop: %d records, %v", len(got), err)
	}
}

// What a start had to read counts towards the next snapshot: many short runs do not make starts ever slower.
func TestShortRunsTakeSnapshots(t *testing.T) {
	mem := memfs.New()
	for run := range 8 {
		n := openNode(t, mem)
		for range 80 {
			if _, err := n.Publish((&call{values: []string{strings.Repeat("x", 500)}}).request()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		for run > 1 && n.keeper.newest.Load() == 0 {
			if ctx.Err() != nil {
				t.Fatalf("no snapshot after %d runs", run)
			}
			runtime.Gosched()
		}
		cancel()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The log fails by itself, while it prepares a segment: /readyz says so before anybody writes, and the next
// write knows that it was not done.
func TestFailedPrepareShows(t *testing.T) {
	disk := faultfs.New(memfs.New())
	n := openNode(t, disk)
	defer n.Close()
	disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Create}, Name: "log/prepare.tmp", Err: syscall.EIO, Always: true})
	publish := func() error {
		_, err := n.Publish((&call{values: []string{strings.Repeat("x", 500)}}).request())
		return err
	}
	for len(n.log.Segments()) == 1 && publish() == nil {
	} // until the next segment is prepared; that may fail so soon that a publish meets it
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for n.Status().Ready {
		if ctx.Err() != nil {
			t.Fatal("the log has failed and the node is ready")
		}
		runtime.Gosched()
	}
	var un *broker.UnavailableError
	if err := publish(); !errors.As(err, &un) || un.Unknown {
		t.Fatalf("got %v, want that it was not done", err)
	}
}

// The reserve for a full disk grows with the state: a snapshot of many request ids must fit into it.
func TestBallastGrowsWithSnapshots(t *testing.T) {
	mem := memfs.New()
	cfg := testConfig(mem)
	cfg.SegmentBytes, cfg.SnapshotBytes = 8<<20, 1<<40
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var wg sync.WaitGroup
	for p := range 16 {
		wg.Go(func() {
			for i := range 8000 {
				c := call{values: []string{"v"}, id: fmt.Sprintf("%d-%d", p, i)}
				if _, err := n.Publish(c.request()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if _, err := n.Snapshot(); err != nil {
		t.Fatal(err)
	}
	n.keeper.mu.Lock()
	bytes := n.keeper.bytes
	n.keeper.mu.Unlock()
	if 2*bytes <= ballastMin {
		t.Fatalf("the snapshot has only %d bytes: the test tests nothing", bytes)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		if size, err := mem.Size(ballastFile); err == nil && size >= 2*bytes {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("the ballast does not grow")
		}
		n.keeper.wake()
		runtime.Gosched()
	}
}

// /readyz says how far recovery is, and requests are answered meanwhile.
func TestNotReadyWhileRecovering(t *testing.T) {
	mem := memfs.New()
	s := newScript(5)
	n := openNode(t, mem)
	for i := range 60 {
		if err := s.step(n, i); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	n, err := Open(testConfig(mem))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	asked := 0
	mem.OnOp(func(memfs.Op) {
		if n.broker.Load() != nil {
			return
		}
		asked++
		var un *broker.UnavailableError
		if _, err := n.Publish((&call{values: []string{"x"}}).request()); !errors.As(err, &un) || un.Unknown {
			t.Errorf("a publish while recovering: %v", err)
		}
		if s := n.Status(); s.Ready || s.Reason == "" {
			t.Errorf("%+v", s)
		}
	})
	if err := n.Recover(); err != nil {
		t.Fatal(err)
	}
	mem.OnOp(nil)
	if asked == 0 {
		t.Fatal("nothing was asked while recovering")
	}
	if done, total := n.progress.get(); total == 0 || done != total {
		t.Fatalf("progress %d of %d", done, total)
	}
	if !n.Status().Ready {
		t.Fatal("not ready")
	}
}
