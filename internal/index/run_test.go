package index

import (
	"slices"
	"testing"
	"unsafe"

	"example.com/mq/internal/entry"
)

// TestRuns: where a run goes on and where a new one begins.
func TestRuns(t *testing.T) {
	at := func(offset, length int64) entry.Position {
		return entry.Position{Segment: 1, Offset: offset, Length: length}
	}
	for _, c := range []struct {
		name   string
		frames []frame
		runs   int
	}{
		{"consecutive", []frame{{"t", 5, 2, at(512, 64)}, {"t", 7, 1, at(576, 64)}}, 1},
		{"up to the limit", []frame{{"t", 5, 2, at(512, 64)}, {"t", 7, 1, at(576, runBytesMax-64)}}, 1},
		{"past the limit", []frame{{"t", 5, 2, at(512, 64)}, {"t", 7, 1, at(576, runBytesMax-56)}}, 2},
		{"a long frame, a short one", []frame{{"t", 5, 2, at(512, runBytesMax)}, {"t", 7, 1, at(512+runBytesMax, 8)}}, 2},
		{"bytes between", []frame{{"t", 5, 2, at(512, 64)}, {"t", 7, 1, at(584, 64)}}, 2},
		{"records between", []frame{{"t", 5, 2, at(512, 64)}, {"t", 8, 1, at(576, 64)}}, 2},
		{"another topic between", []frame{{"t", 5, 2, at(512, 64)}, {"u", 0, 1, at(576, 64)}, {"t", 7, 1, at(640, 64)}}, 2},
	} {
		x := New(Config{FS: newFS(t), LogID: testLog})
		for _, f := range c.frames {
			f.addTo(x.Add)
		}
		got, err := dump(x, "t")
		if err != nil || len(got) != c.runs || !slices.Equal(got, runsOf("t", c.frames)) {
			t.Errorf("%s: runs %v, %v, want %d: %v", c.name, got, err, c.runs, runsOf("t", c.frames))
		}
	}
}

// TestSizes: what there are many of stays small.
func TestSizes(t *testing.T) {
	if p, r := unsafe.Sizeof(place{}), unsafe.Sizeof(run{}); p != 32 || r != 24 {
		t.Errorf("a place takes %d bytes and a run %d, want 32 and 24", p, r)
	}
}

// TestCache: a block that two readers put is counted once; those used longest ago go first.
func TestCache(t *testing.T) {
	runs := make([]run, 10)
	one := (&block{runs: runs}).cost()
	c := newCache(3 * one)
	s := &segment{number: 1}
	key := func(n int) blockKey { return blockKey{segment: s, at: uint32(n)} }
	for _, n := range []int{1, 1, 2, 3} {
		c.put(key(n), runs)
	}
	if c.bytes != 3*one || len(c.blocks) != 3 {
		t.Errorf("%d blocks of %d bytes, want 3 of %d", len(c.blocks), c.bytes, 3*one)
	}
	c.get(key(1))
	c.put(key(4), runs)
	for n, want := range map[int]bool{1: true, 2: false, 3: true, 4: true} {
		if got := c.get(key(n)) != nil; got != want {
			t.Errorf("block %d is in the cache: %v, want %v", n, got, want)
		}
	}
	c.put(key(5), make([]run, 1000)) // larger than the cache
	if c.bytes != 0 || len(c.blocks) != 0 || c.ring.next != &c.ring {
		t.Errorf("%d blocks of %d bytes after a block that does not fit", len(c.blocks), c.bytes)
	}
}
