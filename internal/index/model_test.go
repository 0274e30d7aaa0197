package index

import (
	"errors"
	"fmt"
	"maps"
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

func (f frame) last() fact.Offset { return f.first + fact.Offset(f.count) - 1 }

// ownersOf tells for each record of a topic which of the frames, which are in log order, has its newest copy.
func ownersOf(topic string, frames []frame) map[fact.Offset]int {
	owners := make(map[fact.Offset]int)
	for i, f := range frames {
		for off := f.first; f.topic == topic && off <= f.last(); off++ {
			owners[off] = i
		}
	}
	return owners
}

// runsOf is the index as it is defined: the runs of one topic in a list of frames in log order, as far as they
// hold the newest copies of records, in order of the offsets.
func runsOf(topic string, frames []frame) []Run {
	// whole[i] is the run that frame i is in.
	whole := make([]*Run, len(frames))
	in := make(map[entry.Index]map[fact.Offset]bool) // records by segment
	for i, f := range frames {
		if f.topic != topic {
			continue
		}
		if in[f.p.Segment] == nil {
			in[f.p.Segment] = make(map[fact.Offset]bool)
		}
		again := false // in the same segment, which does not happen: a run of its own
		for off := f.first; off <= f.last(); off++ {
			again = again || in[f.p.Segment][off]
			in[f.p.Segment][off] = true
		}
		if i > 0 && whole[i-1] != nil && !again {
			r := whole[i-1]
			if r.Segment == f.p.Segment && r.End == f.p.Offset && r.Last+1 == f.first && f.p.End()-r.Pos <= runBytesMax {
				r.End, r.Last, whole[i] = f.p.End(), f.last(), r
				continue
			}
		}
		whole[i] = &Run{f.p.Segment, f.p.Offset, f.p.End(), f.first, f.last()}
	}
	owners := ownersOf(topic, frames)
	var runs []Run
	var of *Run // the run that the last of runs is of
	for _, off := range slices.Sorted(maps.Keys(owners)) {
		r := whole[owners[off]]
		if n := len(runs); n > 0 && r == of && runs[n-1].Last+1 == off {
			runs[n-1].Last = off
			continue
		}
		of = r
		runs = append(runs, Run{r.Segment, r.Pos, r.End, off, off})
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
	first := w.next[topic]
	w.next[topic] += fact.Offset(count)
	w.put(topic, first, count, length)
}

// put adds a frame with records that may be in the log already.
func (w *world) put(topic string, first fact.Offset, count int, length int64) {
	f := frame{topic, first, count, entry.Position{Segment: w.active(), Offset: w.pos, Length: length}}
	w.index++
	w.pos += length
	w.frames = append(w.frames, f)
	f.addTo(w.x.Add)
}

func (w *world) active() entry.Index { return w.segments[len(w.segments)-1] }

// keep adds what has its newest copy in a segment once more, as the cleaner does: in order, in frames of other
// sizes, and while others publish.
func (w *world) keep(segment entry.Index) {
	owners := make(map[string]map[fact.Offset]int)
	for _, topic := range testTopics {
		owners[topic] = ownersOf(topic, w.frames)
	}
	atMost := rapid.IntRange(1, fact.BatchMax).Draw(w.T, "records at a time")
	publish := rapid.IntRange(0, 4).Draw(w.T, "publish every")
	for i, f := range slices.Clone(w.frames) {
		if f.p.Segment != segment {
			continue
		}
		for off := f.first; off <= f.last(); {
			n := 0
			for n < atMost && off+fact.Offset(n) <= f.last() && owners[f.topic][off+fact.Offset(n)] == i {
				n++
			}
			if n > 0 {
				w.put(f.topic, off, n, 48+int64(n))
			}
			off += fact.Offset(max(n, 1))
		}
		if publish > 0 && i%publish == 0 {
			w.add(testTopics[i%len(testTopics)], 1, 64)
		}
	}
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
	addActive := func() {
		x.Begin(w.active())
		for _, f := range w.in(w.active()) {
			f.addTo(x.Add)
		}
	}
	activeFirst := rapid.Bool().Draw(w.T, "active first")
	if activeFirst {
		addActive()
	}
	sealed := slices.Clone(w.segments[:len(w.segments)-1])
	if rapid.Bool().Draw(w.T, "any order") {
		sealed = rapid.Permutation(sealed).Draw(w.T, "order")
	}
	for _, s := range sealed {
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
		for _, r := range want {
			for _, off := range []fact.Offset{r.First, r.Last} {
				if s, ok := w.x.SegmentOf([]byte(topic), off); s != r.Segment || !ok {
					w.Fatalf("SegmentOf(%q, %d) = %v, %v, want %v", topic, off, s, ok, r.Segment)
				}
			}
		}
	}
}

// checkInside checks what comments in the code call invariants, and that nothing is kept for long.
func (w *world) checkInside() {
	x := w.x
	perSegment := make(map[entry.Index]map[*topic]bool)
	for _, s := range x.segments {
		perSegment[s.number] = make(map[*topic]bool)
		for _, t := range s.topics {
			if x.topics[t.name] != t || perSegment[s.number][t] {
				w.Fatalf("segment %d lists topic %q, which is not known or listed twice", s.number, t.name)
			}
			perSegment[s.number][t] = true
		}
		if s.saved != (s.lists == nil) && len(s.topics) > 0 {
			w.Fatalf("segment %d: saved %v, %d lists in memory", s.number, s.saved, len(s.lists))
		}
	}
	for name, t := range x.topics {
		if t.name != name {
			w.Fatalf("topic %q is under the name %q", t.name, name)
		}
		live := 0
		for i, p := range t.places {
			if p.count == 0 || i > 0 && p.first <= t.places[i-1].last() {
				w.Fatalf("topic %q: place %v after %v", name, p, t.places[max(i-1, 0)])
			}
			if i > 0 && p.segment < t.places[i-1].segment && !t.mixed {
				w.Fatalf("topic %q is mixed, and does not say so", name)
			}
			if p.segment < x.oldest {
				continue
			}
			live++
			if !perSegment[p.segment][t] {
				w.Fatalf("topic %q has a place in segment %d, which does not list it", name, p.segment)
			}
			s := x.segment(p.segment)
			if s.saved != (p.size > 0) || !s.saved && (!hold(s.lists[p.at].runs, p) || s.topics[s.lists[p.at].slot] != t) {
				w.Fatalf("topic %q: place %v is not in a list or block", name, p)
			}
		}
		if live == 0 {
			w.Fatalf("topic %q: none of %d places is alive", name, len(t.places))
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

// checkTrimmed checks after a Drop that it has let go of most places.
func (w *world) checkTrimmed(gone map[string]bool) {
	for name := range gone {
		t := w.x.topics[name]
		if t == nil {
			continue
		}
		dead := 0
		for _, p := range t.places {
			if p.segment < w.x.oldest {
				dead++
			}
		}
		if 2*dead >= len(t.places) {
			w.Fatalf("topic %q: %d of %d places are in segments that were dropped", name, dead, len(t.places))
		}
	}
}

// checkLive compares Live with the log.
func (w *world) checkLive(starts map[string]fact.Offset) {
	bytes, rounding := make(map[entry.Index]int64), make(map[entry.Index]int64)
	alive, all := make(map[entry.Index]bool), make(map[entry.Index]bool)
	for _, s := range w.segments {
		all[s] = true // everything in it is alive
	}
	for _, topic := range testTopics {
		owners := ownersOf(topic, w.frames)
		for i, f := range w.frames {
			if f.topic != topic {
				continue
			}
			bytes[f.p.Segment] += f.p.Length
			rounding[f.p.Segment] += int64(f.count)
			for off := f.first; off <= f.last(); off++ {
				if owners[off] == i && off >= starts[topic] {
					alive[f.p.Segment] = true
				} else {
					all[f.p.Segment] = false
				}
			}
		}
	}
	got := w.x.Live(func(topic string) fact.Offset { return starts[topic] })
	if len(got) != len(w.segments) {
		w.Fatalf("Live tells of %d segments, want %d", len(got), len(w.segments))
	}
	for i, l := range got {
		s := w.segments[i]
		known := w.x.segment(s)
		if l.Segment != s || l.Sealed != (s != w.active()) || l.Saved != known.saved {
			w.Fatalf("Live: %+v, want segment %d, saved %v", l, s, known.saved)
		}
		if (l.Bytes > 0) != alive[s] || all[s] && l.Bytes != bytes[s] || l.Bytes > bytes[s]+rounding[s] {
			w.Fatalf("Live: %d of %d bytes in segment %d, something alive %v, all alive %v", l.Bytes, bytes[s], s, alive[s], all[s])
		}
		if alive := w.x.Alive(s, func(topic string) fact.Offset { return starts[topic] }); alive != (l.Bytes > 0) {
			w.Fatalf("Alive(%d) = %v, and Live says %d bytes", s, alive, l.Bytes)
		}
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
			"keep a segment": func(t *rapid.T) { w.keep(w.sealed()) },
			"keep anything": func(t *rapid.T) { // what is nowhere, or in this segment already
				topic := rapid.SampledFrom(testTopics).Draw(t, "topic")
				for range rapid.SampledFrom([]int{1, 2, 20}).Draw(t, "times") {
					first := w.next[topic] - min(w.next[topic], fact.Offset(rapid.IntRange(0, 100).Draw(t, "back")))
					count := rapid.IntRange(1, fact.BatchMax).Draw(t, "count")
					w.put(topic, first, count, 96)
					w.next[topic] = max(w.next[topic], first+fact.Offset(count))
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
				gone := make(map[string]bool)
				w.segments = slices.DeleteFunc(w.segments, func(s entry.Index) bool { return s < before })
				w.frames = slices.DeleteFunc(w.frames, func(f frame) bool {
					gone[f.topic] = gone[f.topic] || f.p.Segment < before
					return f.p.Segment < before
				})
				mustDo(t, func() error { return w.x.Drop(before) })
				w.checkTrimmed(gone)
				names, err := w.fs.List("log")
				if err != nil || len(names) > 0 && names[0] < FileName(before) {
					t.Fatalf("after Drop(%d): files %q, %v", before, names, err)
				}
			},
			"live": func(t *rapid.T) {
				starts := make(map[string]fact.Offset)
				for _, topic := range testTopics {
					back := rapid.SampledFrom([]int{0, 1, 3, 100, 1 << 62}).Draw(t, "records")
					starts[topic] = w.next[topic] - min(w.next[topic], fact.Offset(back))
				}
				w.checkLive(starts)
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
