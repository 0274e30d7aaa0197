package index

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
)

// framesAt returns frames of 64 bytes and one record each, of topic t, one after the other in a segment, for the
// given offsets.
func framesAt(segment entry.Index, pos int64, offsets ...fact.Offset) []frame {
	var frames []frame
	for _, off := range offsets {
		frames = append(frames, frame{"t", off, 1, entry.Position{Segment: segment, Offset: pos, Length: 64}})
		pos += 64
	}
	return frames
}

func upTo(from, to fact.Offset) []fact.Offset {
	var list []fact.Offset
	for off := from; off < to; off++ {
		list = append(list, off)
	}
	return list
}

func scanOf(frames []frame) func(func(string, fact.Offset, int, entry.Position)) error {
	return func(add func(string, fact.Offset, int, entry.Position)) error {
		for _, f := range frames {
			f.addTo(add)
		}
		return nil
	}
}

// TestKept takes records from a run in every place: what is left of it is found there, the rest where it is kept,
// whether the runs are in memory, in a file, or in both.
func TestKept(t *testing.T) {
	old := framesAt(1, 512, upTo(10, 20)...)
	for name, c := range map[string]struct {
		kept []fact.Offset
		want string // segment and first to last record of each run
	}{
		"none":          {nil, "1:10-19"},
		"first":         {upTo(10, 12), "100:10-11 1:12-19"},
		"last":          {upTo(17, 20), "1:10-16 100:17-19"},
		"middle":        {upTo(13, 15), "1:10-12 100:13-14 1:15-19"},
		"two":           {[]fact.Offset{11, 17}, "1:10 100:11 1:12-16 100:17 1:18-19"},
		"all":           {upTo(10, 20), "100:10-19"},
		"and before it": {upTo(5, 12), "100:5-11 1:12-19"},
		"and after it":  {upTo(18, 23), "1:10-17 100:18-22"},
		"and both":      {upTo(5, 23), "100:5-22"},
		"only before":   {upTo(5, 8), "100:5-7 1:10-19"},
		"only after":    {upTo(30, 33), "1:10-19 100:30-32"},
		"backwards":     {[]fact.Offset{13, 12, 11}, "1:10 100:11 100:12 100:13 1:14-19"},
		"again":         {[]fact.Offset{12, 13, 12}, "1:10-11 100:12 100:13 1:14-19"},
	} {
		for _, how := range []string{"memory", "file", "flushed after", "loaded", "loaded last", "rebuilt last"} {
			m := newFS(t)
			x := New(Config{FS: m, LogID: testLog})
			addOld := func() {
				for _, f := range old {
					f.addTo(x.Add)
				}
			}
			keep := func() {
				x.Begin(100)
				for _, f := range framesAt(100, 512, c.kept...) {
					f.addTo(x.Add)
				}
				x.Begin(200)
			}
			addOld()
			if how == "file" {
				x.Begin(100)
				mustDo(t, x.Flush)
			}
			keep()
			if how != "memory" {
				mustDo(t, x.Flush)
			}
			segments := []entry.Index{1, 100}
			switch how {
			case "loaded last":
				segments = []entry.Index{100, 1}
				fallthrough
			case "loaded":
				x = New(Config{FS: m, LogID: testLog})
				for _, s := range segments {
					mustDo(t, func() error { return x.Load(s) })
				}
			case "rebuilt last":
				mustDo(t, func() error { return x.Rebuild(1, scanOf(old)) })
			}
			runs, err := dump(x, "t")
			got := ""
			for _, r := range runs {
				got += fmt.Sprintf(" %d:%d", r.Segment, r.First)
				if r.Last > r.First {
					got += fmt.Sprintf("-%d", r.Last)
				}
				if r.Segment == 1 && (r.Pos != 512 || r.End != 512+10*64) {
					t.Errorf("%s, %s: run %+v, want all of its bytes", name, how, r)
				}
			}
			if err != nil || got != " "+c.want {
				t.Errorf("%s, %s: runs%s, %v, want %s", name, how, got, err, c.want)
			}
			if want := slices.Sorted(slices.Values(c.kept)); len(want) > 0 {
				mustDo(t, func() error { return x.Drop(100) })
				runs, err := dump(x, "t")
				if err != nil || runs[0].First != want[0] || runs[len(runs)-1].Last != want[len(want)-1] || runs[0].Segment != 100 {
					t.Errorf("%s, %s: after Drop runs %v, %v", name, how, runs, err)
				}
			}
		}
	}
}

// readsFS counts the files that are opened for reading.
type readsFS struct {
	vfs.FS
	n int
}

func (f *readsFS) OpenRead(name string) (vfs.File, error) {
	f.n++
	return f.FS.OpenRead(name)
}

// TestCutBlock: a block that is cut in many pieces is read once.
func TestCutBlock(t *testing.T) {
	f := &readsFS{FS: newFS(t)}
	x := New(Config{FS: f, LogID: testLog})
	for i, at := range upTo(0, 500) {
		frame{"t", at, 1, entry.Position{Segment: 1, Offset: 512 + 128*int64(i), Length: 64}}.addTo(x.Add)
	}
	x.Begin(1000)
	mustDo(t, x.Flush)
	for i, at := range upTo(0, 500) {
		if i%10 == 0 {
			framesAt(1000, 512+64*int64(i), at)[0].addTo(x.Add)
		}
	}
	if runs, err := dump(x, "t"); err != nil || len(runs) != 500 || f.n != 1 {
		t.Errorf("%d runs, %v, %d reads, want 500 and 1", len(runs), err, f.n)
	}
}

// TestLostCopy: where the later copy of a record is lost, the run of the next record is found, and after a start the
// copy before serves again.
func TestLostCopy(t *testing.T) {
	for _, inFile := range []bool{false, true} {
		m := newFS(t)
		x := New(Config{FS: m, LogID: testLog})
		for i, off := range upTo(0, 6) { // a run each
			framesAt(1, 512+128*int64(i), off)[0].addTo(x.Add)
		}
		for _, f := range framesAt(100, 512, upTo(2, 5)...) {
			f.addTo(x.Add)
		}
		if inFile {
			x.Begin(200)
			mustDo(t, x.Flush)
		}
		x.Begin(200)
		mustDo(t, func() error { return x.Rebuild(100, scanOf(framesAt(100, 512, 2))) })
		if r, err := x.Find([]byte("t"), 3); err != nil || r != (Run{1, 512 + 5*128, 512 + 5*128 + 64, 5, 5}) {
			t.Errorf("in a file %v: Find of a lost record = %v, %v, want the run of record 5", inFile, r, err)
		}
		if _, ok := x.SegmentOf([]byte("t"), 3); ok {
			t.Errorf("in a file %v: a lost record is in a segment", inFile)
		}
		mustDo(t, x.Flush)
		x = New(Config{FS: m, LogID: testLog})
		mustDo(t, func() error { return errors.Join(x.Load(1), x.Load(100)) })
		if r, err := x.Find([]byte("t"), 3); err != nil || r.Segment != 1 || r.First != 3 {
			t.Errorf("in a file %v: Find after a start = %v, %v, want a run of segment 1", inFile, r, err)
		}
	}
}

// TestLostTopic: a topic all of whose later copies are lost is gone, comes back, and the segments that listed the
// one before do not mind.
func TestLostTopic(t *testing.T) {
	x := New(Config{FS: newFS(t), LogID: testLog})
	for _, f := range slices.Concat(framesAt(1, 512, 0, 1), framesAt(100, 512, 0, 1)) {
		f.addTo(x.Add)
	}
	x.Begin(200)
	mustDo(t, func() error { return x.Rebuild(100, scanOf(nil)) })
	if _, err := x.Find([]byte("t"), 0); err != ErrNone || len(x.topics) != 0 {
		t.Errorf("Find in what is lost: %v, want ErrNone; %d topics", err, len(x.topics))
	}
	framesAt(200, 512, 7)[0].addTo(x.Add)
	mustDo(t, x.Flush)
	mustDo(t, func() error { return x.Rebuild(1, scanOf(framesAt(1, 512, 0, 1))) })
	mustDo(t, x.Flush)
	if x.Alive(1, func(string) fact.Offset { return 2 }) || !x.Alive(1, func(string) fact.Offset { return 1 }) {
		t.Errorf("segment 1 is alive below its last record, or dead at it")
	}
	mustDo(t, func() error { return x.Drop(100) })
	if r, err := x.Find([]byte("t"), 0); err != nil || r.First != 7 {
		t.Errorf("Find = %v, %v, want the run of record 7", r, err)
	}
}

// TestLive: what is taken or retained no longer counts, in shares where a stretch is cut; the lock is free while
// starts are asked for.
func TestLive(t *testing.T) {
	const topics, per = 3 * lockStep, 10
	x := New(Config{FS: newFS(t), LogID: testLog})
	segment, pos := entry.Index(1), int64(512)
	add := func(topic int, first fact.Offset, count int) {
		x.Add(fmt.Sprint("t", topic), first, count, entry.Position{Segment: segment, Offset: pos, Length: 100 * int64(count)})
		pos += 100 * int64(count)
	}
	for round := range per {
		for topic := range topics {
			add(topic, fact.Offset(round*2), 2)
		}
	}
	check := func(what string, start fact.Offset, want ...int64) {
		t.Helper()
		calls := 0
		live := x.Live(func(string) fact.Offset {
			if calls++; x.mu.TryLock() {
				x.mu.Unlock()
			} else {
				t.Fatalf("%s: start is called with the lock held", what)
			}
			return start
		})
		if calls != topics || len(live) != len(want) {
			t.Fatalf("%s: %d calls of start, %d segments, want %d and %d", what, calls, len(live), topics, len(want))
		}
		for i, l := range live {
			if l.Bytes != want[i] || l.Sealed != (i < len(live)-1) {
				t.Errorf("%s: %+v, want %d bytes", what, l, want[i])
			}
		}
	}
	check("one segment", 0, topics*2000)
	check("retained", 5, topics*1500)
	check("retained all", 20, 0)
	segment, pos = 1<<20, 512
	x.Begin(segment)
	check("an empty one", 0, topics*2000, 0)
	for topic := range topics {
		add(topic, 3, 4)
	}
	check("kept", 0, topics*1600, topics*400)
	check("kept and retained", 5, topics*1300, topics*200)
	mustDo(t, x.Flush)
	check("in a file", 5, topics*1300, topics*200)
	if live := x.Live(func(string) fact.Offset { return 0 }); !live[0].Saved || live[1].Saved {
		t.Errorf("%+v, want the first one saved", live)
	}
	mustDo(t, func() error { return x.Drop(1 << 20) })
	check("dropped", 0, topics*400)
}

// TestLiveWithinASegment: a run that lost records to a later list of its own segment counts with what is left of it, in
// memory, in a file, and after a start.
func TestLiveWithinASegment(t *testing.T) {
	f := newFS(t)
	x := New(Config{FS: f, LogID: testLog})
	for i := range fact.Offset(10) {
		x.Add("t", i, 1, entry.Position{Segment: 1, Offset: 512 + 100*int64(i), Length: 100})
	}
	x.Add("t", 3, 4, entry.Position{Segment: 1, Offset: 4096, Length: 400})
	check := func(what string, start fact.Offset, want int64) {
		t.Helper()
		if live := x.Live(func(string) fact.Offset { return start }); len(live) == 0 || live[0].Bytes != want {
			t.Errorf("%s: %+v, want %d bytes", what, live, want)
		}
	}
	check("in memory", 0, 1000)
	check("in memory, retained", 5, 500)
	x.Begin(1 << 20)
	check("sealed", 0, 1000)
	mustDo(t, x.Flush)
	check("in a file", 0, 1000)
	check("in a file, retained", 5, 500)
	x = New(Config{FS: f, LogID: testLog})
	mustDo(t, func() error { return x.Load(1) })
	check("after a start", 0, 1000)
	check("after a start, retained", 5, 500)
}

// TestLiveManyPlaces: a topic with more places than are counted at a time is counted once.
func TestLiveManyPlaces(t *testing.T) {
	const n = 3*placeStep + 7
	x := New(Config{FS: newFS(t), LogID: testLog})
	for i := range n {
		x.Add("t", fact.Offset(2*i), 1, entry.Position{Segment: 1, Offset: 512 + 64*int64(i), Length: 64})
	}
	for _, gone := range []int{0, 1, placeStep, placeStep + 1, n} {
		live := x.Live(func(string) fact.Offset { return fact.Offset(2 * gone) })
		if len(live) != 1 || live[0].Bytes != 64*int64(n-gone) {
			t.Errorf("%d of %d retained: %+v, want %d bytes", gone, n, live, 64*(n-gone))
		}
	}
}

// registry tells which frames stand where; they are entered before they are added.
type registry struct{ frames sync.Map } // of frame by segment and offset

type spot struct {
	segment entry.Index
	pos     int64
}

func (g *registry) put(f frame) { g.frames.Store(spot{f.p.Segment, f.p.Offset}, f) }

// check tells what is wrong with a run that Find returned for a record.
func (g *registry) check(topic string, off fact.Offset, r Run) error {
	if off < r.First || off > r.Last {
		return fmt.Errorf("record %d is not in run %+v", off, r)
	}
	found := false
	var next fact.Offset
	for pos := r.Pos; pos < r.End; {
		v, ok := g.frames.Load(spot{r.Segment, pos})
		if !ok {
			return fmt.Errorf("no frame at %d in run %+v", pos, r)
		}
		f := v.(frame)
		if f.topic != topic || pos > r.Pos && f.first != next {
			return fmt.Errorf("frame %+v in run %+v of topic %q", f, r, topic)
		}
		found = found || f.first <= off && off <= f.last()
		pos, next = f.p.End(), f.last()+1
	}
	if !found {
		return fmt.Errorf("no frame with record %d in run %+v", off, r)
	}
	return nil
}

// TestConcurrentKeep appends, keeps what the head of the log holds and drops it, flushes and rebuilds, while others
// look up records, all of which must be found. Run it with -race.
func TestConcurrentKeep(t *testing.T) {
	const topics, appends, segmentFrames, keptRecords = 3, 30_000, 200, 400
	x := New(Config{FS: newFS(t), LogID: testLog, CacheBytes: 8 << 10})
	var g registry
	var mu sync.Mutex // guards log
	log := map[entry.Index][]frame{}
	var ends, starts [topics]atomic.Uint64
	var sealed atomic.Pointer[[]entry.Index] // in order
	sealed.Store(&[]entry.Index{})
	name := func(topic int) string { return fmt.Sprint("t", topic) }
	done := make(chan struct{})
	var wg sync.WaitGroup

	cleaned := make(chan entry.Index, 1) // head segments that hold nothing any more
	wg.Go(func() {
		defer close(done)
		p := entry.Position{Segment: 1, Offset: 512}
		index, n := entry.Index(1), 0
		add := func(topic string, first fact.Offset, count int) {
			full := p.Segment
			if n++; n%segmentFrames == 0 {
				p.Segment, p.Offset = index, 512
			}
			p.Length = 48 + 8*int64(count)
			f := frame{topic, first, count, p}
			g.put(f)
			mu.Lock()
			log[p.Segment] = append(log[p.Segment], f)
			mu.Unlock()
			f.addTo(x.Add)
			if full != p.Segment {
				list := append(slices.Clone(*sealed.Load()), full)
				sealed.Store(&list)
			}
			p.Offset += p.Length
			index++
		}
		random := rand.New(rand.NewPCG(3, 3))
		for k := range appends {
			topic, count := random.IntN(topics), 1+random.IntN(4)
			end := ends[topic].Load()
			add(name(topic), fact.Offset(end), count)
			end += uint64(count)
			ends[topic].Store(end)
			if end > keptRecords {
				starts[topic].Store(end - keptRecords)
			}
			list := *sealed.Load()
			if k%500 != 499 || len(list) < 8 {
				continue
			}
			// Keep what lives in the head, as the index has it. Topic 0 keeps all that is not retained.
			head := list[0]
			mu.Lock()
			frames := log[head]
			mu.Unlock()
			for _, f := range frames {
				for off := f.first; off <= f.last(); off++ {
					var topic int
					if _, err := fmt.Sscanf(f.topic, "t%d", &topic); err != nil {
						t.Error(err)
					}
					if s, ok := x.SegmentOf([]byte(f.topic), off); ok && s == head && uint64(off) >= starts[topic].Load() {
						add(f.topic, off, 1)
					}
				}
			}
			select {
			case cleaned <- head:
				list = (*sealed.Load())[1:]
				sealed.Store(&list)
			case <-t.Context().Done():
				return
			}
		}
	})
	wg.Go(func() { // maintenance
		random := rand.New(rand.NewPCG(1, 1))
		start := func(topic string) fact.Offset { return fact.Offset(starts[topic[1]-'0'].Load()) }
		for {
			select {
			case <-done:
				return
			case head := <-cleaned:
				if x.Alive(head, start) {
					t.Errorf("segment %d is alive after cleaning", head)
				}
				if err := x.Drop(head + 1); err != nil {
					t.Error(err)
				}
			default:
			}
			if err := x.Flush(); err != nil {
				t.Error(err)
			}
			if list := *sealed.Load(); len(list) > 0 {
				s := list[random.IntN(len(list))]
				mu.Lock()
				frames := log[s]
				mu.Unlock()
				if err := x.Rebuild(s, scanOf(frames)); err != nil {
					t.Error(err)
				}
			}
			for i, l := range x.Live(start) {
				if l.Bytes < 0 || i == 0 && l.Bytes > 1<<20 {
					t.Errorf("Live: %+v", l)
				}
			}
		}
	})
	for seed := range 2 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(seed)))
			for {
				select {
				case <-done:
					return
				default:
				}
				topic := random.IntN(topics)
				low, high := starts[topic].Load(), ends[topic].Load()
				if low == high {
					continue
				}
				off := fact.Offset(low + random.Uint64N(high-low))
				r, err := x.Find([]byte(name(topic)), off)
				if err == nil {
					err = g.check(name(topic), off, r)
				}
				if err != nil && uint64(off) >= starts[topic].Load() {
					t.Errorf("Find(%q, %d): %v", name(topic), off, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestWithin: what the bytes of a segment hold, of which there is no later copy, whether its runs are in memory or in a
// file; a damaged block is left out, and reported.
func TestWithin(t *testing.T) {
	for _, inFile := range []bool{false, true} {
		x := New(Config{FS: newFS(t), LogID: testLog})
		for _, f := range []frame{
			{"a", 0, 4, entry.Position{Segment: 1, Offset: 512, Length: 100}},
			{"b", 7, 1, entry.Position{Segment: 1, Offset: 612, Length: 100}},
			{"a", 4, 4, entry.Position{Segment: 1, Offset: 712, Length: 100}},
			{"b", 8, 1, entry.Position{Segment: 1, Offset: 812, Length: 100}},
			{"a", 5, 2, entry.Position{Segment: 100, Offset: 512, Length: 100}},
			{"b", 8, 1, entry.Position{Segment: 100, Offset: 612, Length: 100}},
		} {
			f.addTo(x.Add)
		}
		x.Begin(200)
		if inFile {
			mustDo(t, x.Flush)
		}
		for _, c := range []struct {
			from, to int64
			want     []Held
		}{
			{0, 512, nil},
			{512, 513, []Held{{"a", Run{1, 512, 612, 0, 3}}}},
			{611, 713, []Held{{"a", Run{1, 512, 612, 0, 3}}, {"a", Run{1, 712, 812, 4, 4}}, {"a", Run{1, 712, 812, 7, 7}}, {"b", Run{1, 612, 712, 7, 7}}}},
			{811, 912, []Held{{"a", Run{1, 712, 812, 4, 4}}, {"a", Run{1, 712, 812, 7, 7}}}},
			{912, 1 << 40, nil},
		} {
			if got, err := x.Within(1, c.from, c.to); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("in a file %v: Within(1, %d, %d) = %v, %v, want %v", inFile, c.from, c.to, got, err, c.want)
			}
		}
		if got, err := x.Within(50, 0, 1<<40); err != nil || len(got) > 0 {
			t.Errorf("Within a segment that is not known: %v, %v", got, err)
		}
		if !inFile {
			continue
		}
		x.cache.dropSegments(func(entry.Index) bool { return true })
		b := readFile(t, x.cfg.FS, x.path(1))
		b[headerSize+1] ^= 1 // in the block of topic a
		writeFile(t, x.cfg.FS, x.path(1), b)
		var se *SegmentError
		if got, err := x.Within(1, 0, 1<<40); !errors.As(err, &se) || se.Segment != 1 || len(got) != 1 || got[0].Topic != "b" {
			t.Errorf("Within a segment whose index is damaged: %v, %v", got, err)
		}
	}
}
