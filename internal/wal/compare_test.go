package wal

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCompare changes a byte of one of two equal logs.
func TestCompare(t *testing.T) {
	p := newPairOfLogs(t, 3)
	mustGrow(t, p.book, p.leader, 40)
	if err := errors.Join(p.catchUp(), p.sync(), p.leader.Sync()); err != nil {
		t.Fatal(err)
	}
	c, err := p.compare()
	if err != nil || !c.Equal() || c.First != 1 || c.Last != p.leader.Last() || c.Bytes < testSegment {
		t.Fatalf("equal logs: %+v, %v", c, err)
	}
	segments := p.leader.Segments()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		s := segments[rng.IntN(len(segments))]
		at := rng.Int64N(s.Bytes)
		file, err := p.followerMem.Open(segmentPath(s.First))
		if err != nil {
			t.Fatal(err)
		}
		var was [1]byte
		if _, err := file.ReadAt(was[:], at); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte{was[0] ^ 4}, at); err != nil {
			t.Fatal(err)
		}
		c, err := p.compare()
		if err != nil || len(c.Differences) != 1 || c.Equal() {
			t.Fatalf("byte %d of %d: %+v, %v", at, s.First, c, err)
		}
		d := c.Differences[0]
		want := Difference{Segment: s.First, Offset: at, What: d.What}
		for _, one := range p.frames {
			if one.place.Segment == s.First && one.place.Offset <= at && at < one.place.Offset+int64(len(one.raw)) {
				want.Index = one.point.Index
				if !strings.Contains(d.What, "only the frame in the first log is good") {
					t.Errorf("%v", d)
				}
			}
		}
		if d != want {
			t.Errorf("difference %v, want %v", d, want)
		}
		if _, err := file.WriteAt(was[:], at); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	// A shorter log is the same as far as it goes.
	last := p.follower.Last() / 2
	if err := p.follower.Truncate(last); err != nil {
		t.Fatal(err)
	}
	if c, err = p.compare(); err != nil || len(c.Differences) > 0 || c.Equal() || c.Last != last || c.LastA != p.leader.Last() || c.LastB != last {
		t.Errorf("a shorter log: %+v, %v", c, err)
	}
	// Another history behind a common one.
	gather(&p.f, last+1, 1)
	if _, err := p.follower.Append(&p.f, p.leader.Tip().Term, 0); err != nil {
		t.Fatal(err)
	}
	if c, err = p.compare(); err != nil || len(c.Differences) != 1 || c.Differences[0].Segment > last+1 {
		t.Errorf("another history: %+v, %v", c, err)
	}
	other := newMem(t)
	cfg := testConfig(other)
	cfg.LogID[0]++
	mustOpen(t, cfg, 0)
	if _, err := Compare(p.leaderMem, "log", other, "log"); !errors.Is(err, ErrMismatch) {
		t.Errorf("different logs: %v", err)
	}
	if _, err := Compare(p.leaderMem, "log", newMem(t), "log"); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty folder: %v", err)
	}
}
