package wal

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
)

// TestCatchUpCrash: frames that prove what stood before them arrive together with it, as when a replica catches up.
// Whatever a power cut leaves of them opens, as a log that was never acknowledged so far.
func TestCatchUpCrash(t *testing.T) {
	marks := 0
	for seed := range uint64(30) {
		p := newPairOfLogs(t, seed)
		for range 30 { // every frame proves the group before it
			if err := errors.Join(p.grow(p.leader), p.leader.Sync()); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.catchUp(); err != nil {
			t.Fatal(err)
		}
		if m, err := readMark(p.followerMem, "log", testID); err == nil && m.set {
			marks++
		}
		for crash := range p.followerMem.CrashStates(seed, 40) {
			l, r, err := Open(p.config(crash.FS), 0, nil)
			if err != nil || len(r.Damage) > 0 {
				t.Fatalf("seed %d: %+v, %v\n%v", seed, r, err, crash)
			}
			if err := p.holds(l, 0); err != nil || l.Last() < p.acked {
				t.Fatalf("seed %d: last %d, acknowledged %d, %v\n%v", seed, l.Last(), p.acked, err, crash)
			}
			if m, err := readMark(crash.FS, "log", testID); err != nil || m.set {
				t.Errorf("after recovery: %+v, %v", m, err)
			}
			l.Close()
		}
		// A restart without a power cut: what no frame proves is written again, for it may not be on the disk.
		if m, err := readMark(p.followerMem, "log", testID); err == nil && m.set && m.index < p.follower.Last() {
			first, killed := p.frames[m.index], p.followerMem.Clone()
			rewritten := int64(1 << 60)
			killed.OnOp(func(op memfs.Op) {
				if op.Kind == "write" && op.Done && op.Name == p.follower.active.path {
					rewritten = min(rewritten, op.Offset)
				}
			})
			l, _, _ := mustOpen(t, p.config(killed), 0)
			l.Close()
			want := int64(headerSize)
			if first.place.Segment == p.follower.active.first {
				want = first.place.Offset
			}
			if rewritten > want {
				t.Errorf("seed %d: written again from byte %d, entry %d at %d is not proven", seed, rewritten, m.index+1, want)
			}
		}
		// Cut, and catch up again: the mark goes back with the log.
		if err := p.follower.Truncate(p.follower.Last() * 9 / 10); err != nil {
			t.Fatal(err)
		}
		if err := p.catchUp(); err != nil {
			t.Fatal(err)
		}
		if err := p.follower.Truncate(p.follower.Last() / 2); err != nil {
			t.Fatal(err)
		}
		if err := p.catchUp(); err != nil {
			t.Fatal(err)
		}
		for crash := range p.followerMem.CrashStates(seed, 40) {
			l, _, err := Open(p.config(crash.FS), 0, nil)
			if err != nil {
				t.Fatalf("seed %d: cut and caught up: %v\n%v", seed, err, crash)
			}
			l.Close()
		}
		// In step, frames prove only what is durable on the replica: there is no mark, and damage is damage.
		if err := p.sync(); err != nil {
			t.Fatal(err)
		}
		p.f.Reset()
		p.f.End(append(p.f.Begin(2, testTime), "in step"...))
		if _, err := p.leader.Append(&p.f, p.term, p.acked); err != nil {
			t.Fatal(err)
		}
		p.note(p.leader, &p.f)
		if err := errors.Join(p.deliver(p.leader.Place(&p.f), p.f.Raw()), p.follower.Sync()); err != nil {
			t.Fatal(err)
		}
		if m, err := readMark(p.followerMem, "log", testID); err != nil || m.set {
			t.Errorf("in step: %+v, %v", m, err)
		}
		p.follower.Close()
		victim := p.frames[len(p.frames)-2]
		if victim.place.Segment != p.frames[len(p.frames)-1].place.Segment {
			continue
		}
		file, err := p.followerMem.Open(segmentPath(victim.place.Segment))
		if err != nil {
			t.Fatal(err)
		}
		if err := zeroRange(file, victim.place.Offset, victim.place.Offset+int64(len(victim.raw))); err != nil {
			t.Fatal(err)
		}
		file.Close()
		damage := (*CorruptionError)(nil)
		if _, _, err := Open(p.config(p.followerMem), 0, nil); !errors.As(err, &damage) || damage.Index != victim.point.Index {
			t.Errorf("seed %d: a proven entry is missing: %v", seed, err)
		}
	}
	// A replica that becomes a leader proves its entries again.
	p := newPairOfLogs(t, 1)
	for range 10 {
		if err := errors.Join(p.grow(p.leader), p.leader.Sync()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.catchUp(); err != nil {
		t.Fatal(err)
	}
	if !p.follower.mark.set {
		t.Error("there is no mark")
	}
	mustPut(t, p.follower, 1)
	if m, err := readMark(p.followerMem, "log", testID); err != nil || m.set {
		t.Errorf("after Append: %+v, %v", m, err)
	}
	if marks == 0 {
		t.Error("no replica had to mark anything")
	}
}

func TestMark(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 2)
	l.Close()
	good := encodeMark(testID, 1)
	name := "log/" + markName
	for bit := range 8 * len(good) {
		b := encodeMark(testID, 1)
		b[bit/8] ^= 1 << (bit % 8)
		writeFile(t, mem, name, b)
		if _, _, err := Open(testConfig(mem), 0, nil); err == nil {
			t.Fatalf("opened with bit %d of the mark flipped", bit)
		}
	}
	other := testID
	other[0]++
	writeFile(t, mem, name, encodeMark(other, 1))
	if _, _, err := Open(testConfig(mem), 0, nil); err == nil {
		t.Error("opened with the mark of another log")
	}
	writeFile(t, mem, name, good[:20])
	if _, _, err := Open(testConfig(mem), 0, nil); err == nil {
		t.Error("opened with half a mark")
	}
	writeFile(t, mem, name, good)
	l, _, _ = mustOpen(t, testConfig(mem), 0)
	if names, _ := mem.List("log"); strings.Contains(fmt.Sprint(names), markName) {
		t.Errorf("the mark is still there: %v", names)
	}
	mustPut(t, l, 1)
}

// TestMarkTruncate: a log that is cut below its mark, and catches up again, gets a lower mark.
func TestMarkTruncate(t *testing.T) {
	for seed := range uint64(10) {
		p := newPairOfLogs(t, seed)
		for range 40 {
			if err := errors.Join(p.grow(p.leader), p.leader.Sync()); err != nil {
				t.Fatal(err)
			}
		}
		last := p.leader.Last()
		follow := func(to entry.Index, maxBytes int, sync bool) {
			t.Helper()
			c := p.leader.NewCursor(p.follower.Last() + 1)
			defer c.Close()
			var f Frames
			for p.follower.Last() < to {
				place, err := c.Next(&f, to, maxBytes)
				if err != nil {
					t.Fatal(err)
				}
				if err := p.follower.AppendReplica(&f, place); err != nil {
					t.Fatal(err)
				}
				if sync {
					if err := p.follower.Sync(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		follow(last*3/4, 1, true) // one by one, each durable before the next
		if p.follower.mark.set {
			t.Errorf("seed %d: marked %d, and all was durable", seed, p.follower.mark.index)
		}
		follow(last, 1<<20, false)
		cut := last / 2
		if err := p.follower.Truncate(cut); err != nil {
			t.Fatal(err)
		}
		follow(min(last, cut+40), 1<<20, false)
		for crash := range p.followerMem.CrashStates(seed, 40) {
			l, _, err := Open(p.config(crash.FS), 0, nil)
			if err != nil {
				t.Fatalf("seed %d: %v\n%v", seed, err, crash)
			}
			if err := p.holds(l, 0); err != nil || l.Last() < cut {
				t.Errorf("seed %d: last %d, %v", seed, l.Last(), err)
			}
			l.Close()
		}
	}
}
