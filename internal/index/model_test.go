package index

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
	"pgregory.net/rapid"
)

var testLog = entry.LogID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// frame is one frame of the log that tests imagine.
type frame struct {
	topic string
	first fact.Offset
	count int
	p     entry.Position
}

// addTo adds the frame as the broker or Rebuild does.
func (f frame) addTo(add func(string, fact.Offset, int, entry.Position)) {
	add(f.topic, f.first, f.count, f.p)
}

// runsOf is the index as it is defined: the runs of one topic in a list of frames.
func runsOf(topic string, frames []frame) []Run {
	var runs []Run
	for _, f := range frames {
		if f.topic != topic {
			continue
		}
		last := f.first + fact.Offset(f.count) - 1
		if n := len(runs); n > 0 {
			r := &runs[n-1]
			if r.Segment == f.p.Segment && r.End == f.p.Offset && r.Last+1 == f.first && f.p.End()-r.Pos <= runBytesMax {
				r.End, r.Last = f.p.End(), last
				continue
			}
		}
		runs = append(runs, Run{f.p.Segment, f.p.Offset, f.p.End(), f.first, last})
	}
	return runs
}

// dump returns all runs of a topic, as Find tells them.
func dump(x *Index, topic string) ([]Run, error) {
	var runs []Run
	for off := fact.Offset(0); ; {
		r, err := x.Find([]byte(topic), off)
		if errors.Is(err, ErrNone) {
			return runs, nil
		}
		if err != nil {
			return nil, err
		}
		if r.Last < off {
			return nil, fmt.Errorf("Find(%q, %d) = %v, which is before", topic, off, r)
		}
		runs = append(runs, r)
		off = r.Last + 1
	}
}

// testTopics are all topics that tests use; one is as long as a name may be, one is no valid path.
var testTopics = []string{"a", "ab", "b/../c", "\xff", fmt.Sprintf("%0*d", nameMax, 7)}

// world is an index, the file system under it, and the log that it should know.
type world struct {
	*rapid.T
	fs     *memfs.FS
	x      *Index
	cache  int64
	frames []frame
	// segments of the log, the last of them active, those that were dropped left out.
	segments []entry.Index
	next     map[string]fact.Offset
	pos      int64 // where the next frame of the active segment begins
	index    entry.Index
}

func newWorld(t *rapid.T) *world {
	w := &world{T: t, fs: memfs.New(), next: make(map[string]fact.Offset), index: 1}
	if err := w.fs.Mkdir("log"); err != nil {
		t.Fatal(err)
	}
	w.cache = rapid.SampledFrom([]int64{0, 1, 1000, 30000}).Draw(t, "cache bytes")
	w.x = w.newIndex()
	w.roll()
	return w
}

func (w *world) newIndex() *Index {
	return New(Config{FS: w.fs, LogID: testLog, CacheBytes: w.cache})
}

func (w *world) roll() {
	w.segments = append(w.segments, w.index)
	w.pos = 512
	if rapid.Bool().Draw(w.T, "begin") {
		w.x.Begin(w.index)
	} else { // the segment gets a record at once
		w.add(testTopics[0], 1, 64)
	}
}

func (w *world) add(topic string, count int, length int64) {
	f := frame{topic, w.next[topic], count, entry.Position{Segment: w.segments[len(w.segments)-1], Offset: w.pos, Length: length}}
	w.index++
	w.pos += length
	w.next[topic] += fact.Offset(count)
	w.frames = append(w.frames, f)
	f.addTo(w.x.Add)
}

func (w *world) in(segment entry.Index) []frame {
	var frames []frame
	for _, f := range w.frames {
		if f.p.Segment == segment {
			frames = append(frames, f)
		}
	}
	return frames
}

func (w *world) rebuild(x *Index, segment entry.Index) {
	err := x.Rebuild(segment, func(add func(string, fact.Offset, int, entry.Position)) error {
		for _, f := range w.in(segment) {
			f.addTo(add)
		}
		return nil
	})
	if err != nil {
		w.Fatalf("Rebuild(%d): %v", segment, err)
	}
}

// restart makes a new index from the files, and from the log where there is none, as a node does at its start.
func (w *world) restart() {
	x := w.newIndex()
	active := w.segments[len(w.segments)-1]
	addActive := func() {
		x.Begin(active)
		for _, f := range w.in(active) {
			f.addTo(x.Add)
		}
	}
	activeFirst := rapid.Bool().Draw(w.T, "active first")
	if activeFirst {
		addActive()
	}
	for _, s := range w.segments[:len(w.segments)-1] {
		if err := x.Load(s); err != nil {
			w.rebuild(x, s)
		}
	}
	if !activeFirst {
		addActive()
	}
	w.x = x
}

// check compares the index with the log.
func (w *world) check() {
	for _, topic := range testTopics {
		want := runsOf(topic, w.frames)
		got, err := dump(w.x, topic)
		if err != nil {
			w.Fatalf("topic %q: %v", topic, err)
		}
		if !slices.Equal(got, want) {
			w.Fatalf("topic %q:\n got runs %v\nwant runs %v", topic, got, want)
		}
	}
}

// checkInside checks what comments in the code call invariants, and that nothing is kept for long.
func (w *world) checkInside() {
	x := w.x
	perSegment := make(map[entry.Index]map[string]bool)
	for name, t := range x.topics {
		if t.name != name {
			w.Fatalf("topic %q is under the name %q", t.name, name)
		}
		live := 0
		for i, p := range t.places {
			if i > 0 && (p.segment < t.places[i-1].segment || p.first <= t.places[i-1].last) {
				w.Fatalf("topic %q: place %v after %v", name, p, t.places[i-1])
			}
			if p.segment >= x.oldest {
				live++
				if perSegment[p.segment] == nil {
					perSegment[p.segment] = make(map[string]bool)
				}
				perSegment[p.segment][name] = true
			}
		}
		if 2*live < len(t.places) || live == 0 {
			w.Fatalf("topic %q: only %d of %d places are alive", name, live, len(t.places))
		}
	}
	for _, s := range x.segments {
		if len(s.topics) != len(perSegment[s.number]) {
			w.Fatalf("segment %d lists %d topics, %d have places in it", s.number, len(s.topics), len(perSegment[s.number]))
		}
		for _, t := range s.topics {
			if x.topics[t.name] != t || !perSegment[s.number][t.name] {
				w.Fatalf("segment %d lists topic %q, which has no place in it", s.number, t.name)
			}
		}
		if s.saved != (s.runs == nil) && len(s.topics) > 0 {
			w.Fatalf("segment %d: saved %v, runs of %d topics in memory", s.number, s.saved, len(s.runs))
		}
	}
	var bytes int64
	n := 0
	for b := x.cache.ring.next; b != &x.cache.ring; b = b.next {
		bytes += b.cost()
		n++
	}
	if bytes != x.cache.bytes || n != len(x.cache.blocks) || bytes > x.cfg.CacheBytes {
		w.Fatalf("cache: %d blocks of %d bytes in the ring; it says %d blocks of %d bytes; at most %d bytes",
			n, bytes, len(x.cache.blocks), x.cache.bytes, x.cfg.CacheBytes)
	}
}

// sealed draws one of the sealed segments.
func (w *world) sealed() entry.Index {
	if len(w.segments) == 1 {
		w.Skip("no sealed segment")
	}
	return rapid.SampledFrom(w.segments[:len(w.segments)-1]).Draw(w.T, "segment")
}

// TestModel runs random histories of a log against an index and against the definition.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				w.checkInside()
				if rapid.IntRange(0, 3).Draw(t, "compare") == 0 { // it takes longer than all the rest
					w.check()
				}
			},
			"add": func(t *rapid.T) {
				topic := rapid.SampledFrom(testTopics).Draw(t, "topic")
				w.add(topic, rapid.IntRange(1, fact.BatchMax).Draw(t, "count"),
					rapid.SampledFrom([]int64{48, 56, 4096, 16384, runBytesMax, runBytesMax + 8, 1 << 20}).Draw(t, "length"))
			},
			"alternate": func(t *rapid.T) { // many runs: more than one block
				for range rapid.SampledFrom([]int{1, 2, 300}).Draw(t, "rounds") {
					w.add("a", 1, 48)
					w.add("ab", 2, 56)
				}
			},
			"other frame": func(t *rapid.T) { w.pos += 48; w.index++ },
			"damage": func(t *rapid.T) { // frames that were not found again
				topic := rapid.SampledFrom(testTopics).Draw(t, "topic")
				w.next[topic] += fact.Offset(rapid.Uint64Range(1, 1<<40).Draw(t, "records lost"))
				if rapid.Bool().Draw(t, "bytes lost") {
					w.pos += 48
				}
			},
			"roll":  func(t *rapid.T) { w.index++; w.roll() },
			"flush": func(t *rapid.T) { mustDo(t, w.x.Flush) },
			"rebuild": func(t *rapid.T) {
				w.rebuild(w.x, w.sealed())
			},
			"load what is known": func(t *rapid.T) {
				s := w.sealed()
				mustDo(t, func() error { return w.x.Load(s) })
			},
			"restart": func(t *rapid.T) { w.restart() },
			"drop": func(t *rapid.T) {
				before := w.sealed() + 1
				w.segments = slices.DeleteFunc(w.segments, func(s entry.Index) bool { return s < before })
				w.frames = slices.DeleteFunc(w.frames, func(f frame) bool { return f.p.Segment < before })
				mustDo(t, func() error { return w.x.Drop(before) })
				names, err := w.fs.List("log")
				if err != nil || len(names) > 0 && names[0] < FileName(before) {
					t.Fatalf("after Drop(%d): files %q, %v", before, names, err)
				}
			},
			"alive": func(t *rapid.T) {
				s := rapid.SampledFrom(w.segments).Draw(t, "segment")
				starts := make(map[string]fact.Offset)
				want := false
				for _, topic := range testTopics {
					starts[topic] = w.next[topic] - min(w.next[topic], fact.Offset(rapid.IntRange(0, 3).Draw(t, "records")))
				}
				for _, f := range w.in(s) {
					want = want || f.first+fact.Offset(f.count) > starts[f.topic]
				}
				if got := w.x.Alive(s, func(topic string) fact.Offset { return starts[topic] }); got != want {
					t.Fatalf("Alive(%d) = %v, want %v", s, got, want)
				}
			},
			"find": func(t *rapid.T) {
				topic := rapid.SampledFrom(testTopics).Draw(t, "topic")
				off := fact.Offset(rapid.Uint64Range(0, uint64(w.next[topic])+2).Draw(t, "offset"))
				want, wantErr := Run{}, ErrNone
				for _, r := range runsOf(topic, w.frames) {
					if r.Last >= off {
						want, wantErr = r, nil
						break
					}
				}
				if got, err := w.x.Find([]byte(topic), off); got != want || err != wantErr {
					t.Fatalf("Find(%q, %d) = %v, %v, want %v, %v", topic, off, got, err, want, wantErr)
				}
			},
		})
		w.check()
	})
}

func mustDo(t interface{ Fatal(...any) }, f func() error) {
	if err := f(); err != nil {
		t.Fatal(err)
	}
}
