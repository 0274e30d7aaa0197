package node

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// ran is a run of a script: what clients knew when the log ended with an entry.
type ran struct {
	mem   *memfs.FS
	marks []mark
}

type mark struct {
	last entry.Index
	history
}

func runScript(t *testing.T, seed uint64, steps int) *ran {
	t.Helper()
	r := &ran{mem: memfs.New()}
	s := newScript(seed)
	n := openNode(t, r.mem)
	for i := range steps {
		if err := s.step(n, i); err != nil {
			t.Fatal(err)
		}
		r.marks = append(r.marks, mark{n.log.Last(), s.now()})
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// around returns what clients knew at least and at most when the log ended with an entry.
func (r *ran) around(after entry.Index) (least, most history) {
	i := slices.IndexFunc(r.marks, func(m mark) bool { return m.last > after })
	if i < 0 {
		i = len(r.marks) - 1
	}
	most = r.marks[i].history
	if i > 0 {
		least = r.marks[i-1].history
	}
	if k := slices.IndexFunc(r.marks, func(m mark) bool { return m.last == after }); k >= 0 {
		least = r.marks[k].history
	}
	return least, most
}

// verifyCut starts a node on a log that was cut, and checks that it has all that was before, that what the plan does not name
// is there, and that no offset is given out twice.
func verifyCut(fsys vfs.FS, plan *CutPlan, least, most history) error {
	n, err := Open(testConfig(fsys))
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.Recover(); err != nil {
		return err
	}
	for i := range least.topics {
		if err := verifyCutTopic(n, plan, i, least.topics[i], most.topics[i]); err != nil {
			return fmt.Errorf("topic %d: %w", i, err)
		}
	}
	return n.Close()
}

func verifyCutTopic(n *Node, plan *CutPlan, i int, least, most topicHistory) error {
	lost := CutTopic{}
	for _, c := range plan.Topics {
		if c.Topic == string(topicName(i)) {
			lost = c
		}
	}
	next := least.start
	end := next
	for {
		var sink sinkFunc = func(offset fact.Offset, key, value []byte, _ int64) {
			if offset != next || int(offset) >= len(most.records) || string(value) != most.records[offset] {
				next = fact.OffsetMax / 2
			}
			next++
			end = next
		}
		page, err := n.Fetch(&broker.Fetch{Topic: topicName(i), Offset: next, Limit: 1000}, sink)
		corrupt, gone := (*broker.CorruptError)(nil), (*broker.OffsetGoneError)(nil)
		switch {
		case errors.Is(err, broker.ErrTopicNotFound) && len(least.records) == 0:
			return nil
		case errors.As(err, &gone) && gone.RestoredEnd == nil && gone.Start <= most.start:
			next = gone.Start
			continue
		case errors.As(err, &corrupt):
			for off := corrupt.First; off <= corrupt.Last; off++ {
				if len(lost.Older.Within(off, off+1)) == 0 {
					return fmt.Errorf("record %d cannot be read, and the plan does not say so: %v", off, err)
				}
			}
			next = corrupt.Last + 1
			end = next
			continue
		case err != nil:
			return fmt.Errorf("at %d: %w", next, err)
		}
		if next > fact.OffsetMax/2 {
			return errors.New("a wrong record")
		}
		if page.Next >= fact.RestoreStep {
			break
		}
		if page.Records == 0 {
			return fmt.Errorf("it ends at %d, and does not go on at a new offset", page.End)
		}
	}
	if int(end) < len(least.records) || int(end) > len(most.records) {
		return fmt.Errorf("it ends at %d, want %d to %d", end, len(least.records), len(most.records))
	}
	for _, missing := range lost.Records {
		if missing.From < end {
			return fmt.Errorf("the plan says that records from %d on go, but they are there to %d", missing.From, end)
		}
	}
	var sink sinkFunc = func(fact.Offset, []byte, []byte, int64) {}
	gone := (*broker.OffsetGoneError)(nil)
	if _, err := n.Fetch(&broker.Fetch{Topic: topicName(i), Offset: end + 1, Limit: 1}, sink); !errors.As(err, &gone) ||
		gone.RestoredEnd == nil || *gone.RestoredEnd != end || gone.Start != fact.RestoreStep {
		return fmt.Errorf("a fetch of what was cut off: %w", err)
	}
	for id, v := range least.ids {
		done, err := n.Publish((&call{topic: i, id: id, values: v.values}).request())
		if err != nil || !done.Duplicate || done.Base != v.base {
			return fmt.Errorf("retry of %s: %+v %w", id, done, err)
		}
	}
	done, err := n.Publish((&call{topic: i, values: []string{"on"}}).request())
	if err != nil || done.Base != fact.RestoreStep {
		return fmt.Errorf("publish after the cut: %+v %w", done, err)
	}
	return nil
}

// finishCut does what an operator does when a cut was interrupted.
func finishCut(fsys vfs.FS, after entry.Index) error {
	c, err := NewCutter(fsys)
	if err != nil {
		return err
	}
	defer c.Close()
	if at, begun := c.Unfinished(); begun {
		if at != after {
			return fmt.Errorf("it says that the cut is after %d, not %d", at, after)
		}
		if n, err := Open(testConfig(unlocked{fsys})); err == nil {
			n.Close()
			return errors.New("a node starts on a folder that is being cut")
		}
		return c.Finish()
	}
	plan, err := c.Plan(after)
	if err != nil {
		return err
	}
	return c.Do(plan)
}

// unlocked is a file system whose lock can be taken though it is.
type unlocked struct{ vfs.FS }

type noCloser struct{}

func (noCloser) Close() error { return nil }

func (unlocked) Lock(string) (io.Closer, error) { return noCloser{}, nil }

// hurt flips a bit in an entry.
func hurt(t *testing.T, fsys vfs.FS, index entry.Index, at int64) {
	t.Helper()
	found := false
	if _, err := wal.Inspect(fsys, logDir, func(e *entry.Entry, p entry.Position) error {
		if e.Index == index {
			found = true
			f, err := fsys.Open(segmentFile(p.Segment))
			if err != nil {
				return err
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, p.Offset+at%p.Length); err != nil {
				return err
			}
			b[0] ^= 0x10
			if _, err = f.WriteAt(b, p.Offset+at%p.Length); err != nil {
				return err
			}
			return f.Sync()
		}
		return nil
	}); err != nil || !found {
		t.Fatal(err, found)
	}
}

// A log that is cut has what was before, whatever interrupts the cut, and nothing of what was cut off is destroyed.
func TestCutLog(t *testing.T) {
	states, cuts, damages, faults := 0, 0, 0, 0
	for seed := uint64(1); seed <= 10; seed++ {
		random := rand.New(rand.NewPCG(seed, 3))
		r := runScript(t, seed, 90)
		last := r.marks[len(r.marks)-1].last
		oldest := r.snapshots(t)[min(1, len(r.snapshots(t))-1)]
		late := slices.DeleteFunc(slices.Clone(r.marks), func(m mark) bool { return m.last < oldest })
		if len(late) == 0 {
			continue
		}
		after := late[random.IntN(len(late))].last
		damaged := seed%2 == 0
		if damaged {
			snapshots := r.snapshots(t)
			if snapshots[len(snapshots)-1]+3 >= last {
				continue
			}
			bad := snapshots[len(snapshots)-1] + 1 + entry.Index(random.IntN(int(last-snapshots[len(snapshots)-1])-1))
			hurt(t, r.mem, bad, 9)
			if n, err := Open(testConfig(r.mem)); err != nil {
				t.Fatal(err)
			} else {
				if err := n.Recover(); err == nil {
					t.Fatalf("seed %d: the node starts with entry %d damaged", seed, bad)
				}
				n.Close()
			}
			damages++
		}
		c, err := NewCutter(r.mem)
		if err != nil {
			t.Fatal(err)
		}
		if damaged {
			found := false
			if after, found, err = c.DamagedStart(); err != nil || !found {
				t.Fatalf("seed %d: %v %v", seed, found, err)
			}
		}
		plan, err := c.Plan(after)
		if err != nil {
			t.Logf("seed %d: cut after %d: %v", seed, after, err)
			c.Close()
			continue
		}
		cuts++
		least, most := r.around(after)
		before := filesOf(t, r.mem)
		whole := r.mem.Clone()
		check := func(mem vfs.FS) error {
			if err := finishCut(mem, after); err != nil {
				return fmt.Errorf("finish: %w", err)
			}
			return errors.Join(keptAside(t, mem, before), verifyCut(mem, plan, least, most))
		}
		ops := 0
		r.mem.OnOp(func(op memfs.Op) {
			if ops++; ops%11 != int(seed) && op.Kind != "rename" && op.Kind != "remove" {
				return
			}
			for _, number := range []int{0, 1, 2 + ops} {
				states++
				crash := r.mem.Crash(seed, number)
				if err := check(crash.FS); err != nil {
					t.Fatalf("seed %d: cut after %d of %d: power cut at %+v, state %d: %v\n%v", seed, after, last, op, number, err, crash)
				}
			}
		})
		err = c.Do(plan)
		r.mem.OnOp(nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		c.Close()
		if _, err := r.mem.Size(plan.SideFile()); err != nil && plan.Entries > 0 {
			t.Errorf("seed %d: no side file: %v", seed, err)
		}
		if err := errors.Join(keptAside(t, r.mem, before), verifyCut(r.mem, plan, least, most)); err != nil {
			t.Fatalf("seed %d: cut after %d of %d: %v", seed, after, last, err)
		}
		for k := 1 + int(seed)%2; ; k += 2 {
			mem := whole.Clone()
			f := faultfs.New(mem)
			c, err := NewCutter(f)
			if err != nil {
				t.Fatal(err)
			}
			p, err := c.Plan(after)
			if err != nil {
				t.Fatal(err)
			}
			injected := f.Inject(faultfs.Fault{Kinds: faultfs.Changes(), At: k, Err: []error{syscall.EIO, syscall.ENOSPC}[k/2%2], Done: k%3 == 0})
			c.Do(p) // its outcome is what check finds
			c.Close()
			if len(injected.Hits()) == 0 {
				break
			}
			faults++
			if err := check(mem); err != nil {
				t.Fatalf("seed %d: cut after %d: operation %d failed: %v", seed, after, k, err)
			}
		}
	}
	t.Logf("%d cuts, %d of damage, %d crash states, %d faults", cuts, damages, states, faults)
	if cuts < 4 || damages < 1 || states < 100 || faults < 50 {
		t.Errorf("%d cuts, %d of damage, %d crash states, %d faults: too few", cuts, damages, states, faults)
	}
}

// snapshots returns the snapshots, oldest first.
func (r *ran) snapshots(t *testing.T) []entry.Index {
	t.Helper()
	names, err := r.mem.List(snapshotDir)
	if err != nil {
		t.Fatal(err)
	}
	list := []entry.Index{0}
	for _, name := range names {
		if at := snapshotAt(name); at > 0 {
			list = append(list, at)
		}
	}
	return list
}

// filesOf returns the segments and snapshots of a folder.
func filesOf(t *testing.T, fsys vfs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, dir := range []string{logDir, snapshotDir} {
		names, err := fsys.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if segmentAt(name) > 0 || snapshotAt(name) > 0 || strings.Contains(name, asideWord) {
				files[path.Join(dir, name)] = contentOf(fsys, path.Join(dir, name))
			}
		}
	}
	return files
}

func contentOf(fsys vfs.FS, name string) string {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	size, err := f.Size()
	b := make([]byte, size)
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	if err != nil && err != io.EOF {
		return err.Error()
	}
	return string(b)
}

// keptAside returns an error unless the content of each file is still there.
func keptAside(t *testing.T, fsys vfs.FS, before map[string]string) error {
	t.Helper()
	now := filesOf(t, fsys)
	for name, want := range before {
		if now[name] != want && now[name+asideWord+"1"] != want {
			return fmt.Errorf("what was in %s is nowhere", name)
		}
	}
	return nil
}

// Who must not be cut is refused, and nothing is changed.
func TestCutRefused(t *testing.T) {
	r := runScript(t, 5, 60)
	n := openNode(t, r.mem)
	if _, err := NewCutter(r.mem); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("while a node runs: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewCutter(memfs.New()); err == nil || !strings.Contains(err.Error(), "no data folder") {
		t.Errorf("an empty folder: %v", err)
	}
	restoring := r.mem.Clone()
	if f, err := restoring.Create(RestoringFile); err != nil {
		t.Fatal(err)
	} else {
		f.Close()
	}
	if _, err := NewCutter(restoring); !errors.Is(err, ErrRestoring) {
		t.Errorf("a restore that was not finished: %v", err)
	}
	for name, file := range map[string]string{"cluster": stateFile, "pair": promiseFile} {
		mem := r.mem.Clone()
		f, err := mem.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		p := promiseText{Format: promiseFormat, Epoch: 3}
		text, err := p.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(text, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := NewCutter(mem); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a node of a %s: %v", name, err)
		}
	}
	c, err := NewCutter(r.mem)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o, err := c.overview()
	if err != nil {
		t.Fatal(err)
	}
	last := o.in.Last
	if _, found, err := c.DamagedStart(); found || err != nil {
		t.Errorf("damage in a good log: %v %v", found, err)
	}
	if _, err := c.Plan(last + 10); err == nil {
		t.Error("a cut behind the end of the log")
	}
	if plan, err := c.Plan(last); err != nil || !plan.Nothing() {
		t.Errorf("a cut at the end of the log: %+v", plan)
	}
}

// A restored log is said to be one exactly once, whenever the power is cut.
func TestRestoredOnce(t *testing.T) {
	r := runScript(t, 3, 40)
	want := r.marks[len(r.marks)-1].history
	if err := MarkRestored(r.mem, 0); err != nil {
		t.Fatal(err)
	}
	for _, role := range []Role{Leader, Follower} {
		cfg := testConfig(r.mem.Clone())
		cfg.Role, cfg.Epoch = role, 1
		if n, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "standalone") {
			t.Errorf("a restored folder as %s: %v", role, err)
			if err == nil {
				n.Close()
			}
		}
	}
	check := func(fsys vfs.FS) error {
		if err := verifyCut(fsys, &CutPlan{}, want, want); err != nil {
			return err
		}
		count := 0
		if _, err := wal.Inspect(fsys, logDir, func(e *entry.Entry, _ entry.Position) error {
			if e.Kind == fact.KindRestored {
				count++
			}
			return nil
		}); err != nil {
			return err
		}
		if _, noted, err := readRestored(fsys); count != 1 || noted || err != nil {
			return fmt.Errorf("%d facts, the note is left: %v, %w", count, noted, err)
		}
		return nil
	}
	whole := r.mem.Clone()
	states := 0
	r.mem.OnOp(func(op memfs.Op) {
		for _, number := range []int{0, 1, 7} {
			states++
			if err := check(r.mem.Crash(1, number).FS); err != nil {
				t.Fatalf("power cut at %+v, state %d: %v", op, number, err)
			}
		}
	})
	n := openNode(t, r.mem)
	r.mem.OnOp(nil)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := check(r.mem); err != nil {
		t.Fatal(err)
	}
	faults := 0
	for k := 1; k < 60; k++ {
		mem := whole.Clone()
		f := faultfs.New(mem)
		n, err := Open(testConfig(f))
		if err != nil {
			t.Fatal(err)
		}
		f.Inject(faultfs.Fault{Kinds: faultfs.Changes(), At: k, Err: syscall.EIO})
		if n.Recover() != nil {
			faults++
		}
		n.Close()
		if err := check(mem); err != nil {
			t.Fatalf("operation %d failed: %v", k, err)
		}
	}
	t.Logf("%d states, %d faults", states, faults)
	if states < 20 || faults < 5 {
		t.Errorf("%d states, %d faults: too few", states, faults)
	}
}

// A second cut does not give out an offset that was given out after the first one, though that is cut off, too.
func TestCutTwice(t *testing.T) {
	r := runScript(t, 3, 40)
	after := r.marks[20].last
	for i, floor := range []fact.Offset{fact.RestoreStep, 2 * fact.RestoreStep} {
		if err := finishCut(r.mem, after); err != nil {
			t.Fatal(err)
		}
		n := openNode(t, r.mem)
		done, err := n.Publish((&call{values: []string{"on"}}).request())
		if err != nil || done.Base != floor {
			t.Errorf("cut %d: %+v %v, want %d", i+1, done, err, floor)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.mem.Size(fmt.Sprintf("log/%020d.seg%s%d", 1, asideWord, i+1)); err != nil && r.marks[20].last < 30 {
			t.Error(err)
		}
	}
}

// Whatever bit of the log is flipped: when a node does not start, a cut makes it start, or says why none does.
func TestCutHelps(t *testing.T) {
	outcomes := map[string]int{}
	const cuts = 5 // at least; what a flip hits depends on how far the cleaner has come
	for seed := uint64(20); seed < 24 || outcomes["cut"] < cuts && seed < 40; seed++ {
		r := runScript(t, seed, 80)
		random := rand.New(rand.NewPCG(seed, 9))
		names, err := r.mem.List(logDir)
		if err != nil {
			t.Fatal(err)
		}
		for range states(t, 400) / 4 {
			mem := r.mem.Clone()
			name := names[random.IntN(len(names))]
			if segmentAt(name) == 0 {
				continue
			}
			at := flip(t, mem, path.Join(logDir, name), random)
			start := func() error {
				n, err := Open(testConfig(mem))
				if err != nil {
					return err
				}
				defer n.Close()
				return n.Recover()
			}
			refused := start()
			if refused == nil {
				outcomes["starts"]++
				continue
			}
			c, err := NewCutter(mem)
			if err != nil {
				t.Fatal(err)
			}
			after, found, err := c.DamagedStart()
			var plan *CutPlan
			if err == nil && found {
				plan, err = c.Plan(after)
			}
			if err != nil {
				outcomes["cannot be cut"]++
				c.Close()
				continue
			}
			if !found {
				t.Fatalf("seed %d: byte %d of %s flipped: nothing is to be cut, and the node says: %v", seed, at, name, refused)
			}
			err = c.Do(plan)
			c.Close()
			if err != nil {
				t.Fatalf("seed %d: byte %d of %s flipped: %v", seed, at, name, err)
			}
			if err := start(); err != nil {
				t.Fatalf("seed %d: byte %d of %s flipped: cut after %d, and it still says: %v\nbefore: %v", seed, at, name, after, err, refused)
			}
			outcomes["cut"]++
		}
	}
	t.Log(outcomes)
	if outcomes["cut"] < cuts {
		t.Errorf("only %d cuts", outcomes["cut"])
	}
}

// A cut that takes a retain back says which records do not come back with it.
func TestCutOlder(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 1)
		for range 60 {
			g.publish(0, 1, 1500)
		}
		var after entry.Index
		for range 2 {
			g.publish(0, 1, 10)
			var err error
			if after, err = g.n.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		g.retain(0, 61)
		g.settle(time.Minute)
		first, gone := g.n.log.Segments()[0].First, fact.Offset(0)
		if run, err := g.n.index.Find([]byte("topic-0"), 0); err == nil {
			gone = run.First
		}
		g.close()
		c, err := NewCutter(g.disk)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		plan, err := c.Plan(after)
		if err != nil {
			t.Fatal(err)
		}
		if first == 1 || len(plan.Topics) != 1 {
			t.Fatalf("the log begins with entry %d; %+v", first, plan)
		}
		got := plan.Topics[0]
		if len(got.Older) != 1 || got.Older[0].From != 0 || got.Older[0].To < 20 || got.Older[0].To > gone || got.Back != 0 || got.StartWas != 61 || len(got.Records) != 0 {
			t.Errorf("%+v, and the index has records from %d on", got, gone)
		}
	})
}

// The records in the damaged entry itself cannot be read: that they go is told by what comes before and behind. Offsets that a
// restore has jumped over were never there.
func TestCutTellsOfDamagedRecords(t *testing.T) {
	for _, test := range []struct {
		bad  int // which publish is damaged; 0 for none: the log is cut behind the first
		want Spans
	}{
		{0, Spans{{1, 3}, {fact.RestoreStep, fact.RestoreStep + 2}}},
		{2, Spans{{1, 3}, {fact.RestoreStep, fact.RestoreStep + 2}}},
		{4, Spans{{fact.RestoreStep, fact.RestoreStep + 2}}},
	} {
		fsys, ends := memfs.New(), []entry.Index{}
		publish := func(n *Node, values ...string) {
			for _, v := range values {
				if _, err := n.Publish((&call{values: []string{v}}).request()); err != nil {
					t.Fatal(err)
				}
				ends = append(ends, n.log.Last())
			}
		}
		n := openNode(t, fsys)
		publish(n, "a", "b", "c")
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if err := MarkRestored(fsys, 0); err != nil {
			t.Fatal(err)
		}
		n = openNode(t, fsys)
		publish(n, "d", "e")
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		after := ends[0]
		if test.bad > 0 {
			after = ends[test.bad-1] - 1
			hurt(t, fsys, ends[test.bad-1], 9)
		}
		c, err := NewCutter(fsys)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := c.Plan(after)
		if c.Close(); err != nil {
			t.Fatal(err)
		}
		if len(plan.Topics) != 1 || !slices.Equal(plan.Topics[0].Records, test.want) {
			t.Errorf("publish %d damaged, cut after entry %d: %+v, want records %v", test.bad, after, plan.Topics, test.want)
		}
	}
}

// TestCutTellsMovedRecordsThatAreDamaged: a cut names records of a topic whose only copy was in the entry that is damaged,
// though no entry that can be read behind the cut is of that topic.
func TestCutTellsMovedRecordsThatAreDamaged(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 1, 2)
		g.close()
		g.config.SnapshotBytes = 1 << 40 // those that are asked for, and no other
		g.open()
		g.publish(1, 3, 300)
		for len(g.n.log.Segments()) < 10 { // the last of them has just begun: it stays, and no snapshot of it is needed
			g.publish(0, 1, 1000)
		}
		first := g.n.log.Segments()[0].First
		for range 2 { // segments go when both of the kept ones are beyond them
			if _, err := g.n.Snapshot(); err != nil {
				t.Fatal(err)
			}
			g.publish(0, 1, 1000)
		}
		g.retain(0, g.topics[0].end()-1)
		g.settle(30 * time.Second)
		frames := framesOf(t, g.n, g.topics[1].name)
		if head := g.n.log.Segments()[0].First; head == first || len(frames) != 1 || frames[0].kind != fact.KindKept || frames[0].last != 2 {
			t.Fatalf("the log begins with %d, the records stand in %+v", head, frames)
		}
		g.publish(0, 1, 1000) // an entry behind proves the damage
		g.close()
		hurt(t, g.disk, frames[0].index, 9)
		c, err := NewCutter(g.disk)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		after, found, err := c.DamagedStart()
		if err != nil || !found || after != frames[0].index-1 {
			t.Fatalf("%d %v %v, entry %d is damaged", after, found, err, frames[0].index)
		}
		plan, err := c.Plan(after)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(plan.Topics, func(c CutTopic) bool { return c.Topic == g.topics[1].name })
		if want := (Spans{{From: 0, To: 3}}); i < 0 || !slices.Equal(plan.Topics[i].Older, want) || len(plan.Topics[i].Records) != 0 {
			t.Fatalf("%s loses %+v, the plan tells %+v", g.topics[1].name, want, plan.Topics)
		}
	})
}
