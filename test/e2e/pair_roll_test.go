package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"example.com/mq/test/load"
)

// TestPairEmptySegment: a leader is killed after it has begun a segment, and before there is an entry in it. It comes back as
// the follower of one that goes on in the segment before.
func TestPairEmptySegment(t *testing.T) {
	p := newPair(t, small...)
	l := load.New(load.Config{})
	p.start()
	c := p.clientOf(0, nil)
	defer c.Close()
	const size = 100 << 10
	first := p.nodes[0].newestSegment(t)
	for p.nodes[0].newestSegment(t) == first {
		if a := l.Probe(t.Context(), c, size); a.Outcome != load.Done {
			t.Fatal(a)
		}
	}
	for range 7 { // with the one that began the segment, 8 of the 10 that fit
		if a := l.Probe(t.Context(), c, size); a.Outcome != load.Done {
			t.Fatal(a)
		}
	}
	if err := p.nodes[1].p.Pause(); err != nil {
		t.Fatal(err)
	}
	before := p.nodes[0].newestSegment(t)
	if a := l.Probe(t.Context(), c, 250_000); a.Outcome != load.Unknown {
		t.Fatalf("a publish without the follower: %v", a)
	}
	p.nodes[0].Kill()
	p.nodes[1].Kill()
	begun := p.nodes[0].newestSegment(t)
	if begun == before {
		t.Fatal("no segment was begun")
	}
	// What was written to it did not reach the disk.
	const header = 512
	f, err := os.OpenFile(filepath.Join(p.nodes[0].Data, "log", begun), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 1<<20-header), header); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	p.epoch++
	p.leader = 1
	p.start()
	p.publish(l)
	p.finish(l)
}

// newestSegment returns the name of the last file of the log.
func (n *pairNode) newestSegment(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(n.Data, "log", "0*.seg"))
	if err != nil || len(names) == 0 {
		t.Fatalf("segments: %v, %v", names, err)
	}
	return filepath.Base(slices.Max(names))
}
