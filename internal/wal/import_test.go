package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// source of a full sync: a leader's log with some sealed segments, and their files.
type origin struct {
	*book
	log      *Log
	mem      *memfs.FS
	sealed   []Segment
	files    map[entry.Index][]byte
	liveFrom Place // of the active segment
}

func newOrigin(t testing.TB, seed uint64) *origin {
	t.Helper()
	o := &origin{book: newBook(seed), mem: newMem(t), files: make(map[entry.Index][]byte)}
	cfg := testConfig(o.mem)
	cfg.Inline = true
	o.log, _, _ = mustOpen(t, cfg, 0)
	for len(o.log.Segments()) < 4 {
		mustGrow(t, o.book, o.log, 1)
	}
	if err := o.log.Sync(); err != nil {
		t.Fatal(err)
	}
	list := o.log.Segments()
	o.sealed = list[:len(list)-1]
	for _, s := range o.sealed {
		o.files[s.First] = readFile(t, o.mem, segmentPath(s.First))
	}
	var err error
	if o.liveFrom, err = o.log.SegmentPlace(list[len(list)-1].First); err != nil {
		t.Fatal(err)
	}
	return o
}

// replica makes a log that begins where the origin's active segment does.
func (o *origin) replica(fsys vfs.FS) (*Log, error) {
	cfg := testConfig(fsys)
	cfg.Inline, cfg.Begin, cfg.From = true, &o.liveFrom, o.liveFrom.Segment
	l, _, err := Open(cfg, o.liveFrom.Segment-1, nil)
	return l, err
}

// live sends what the replica lacks of the active segment.
func (o *origin) live(l *Log) error {
	p := &pairOfLogs{book: o.book, leader: o.log, follower: l}
	return errors.Join(p.catchUp(), l.Sync())
}

// fetch imports one segment in pieces, and returns what visit saw.
func (o *origin) fetch(l *Log, s Segment, pieces *rand.Rand, visit func(*entry.Entry, entry.Position) error) (Point, error) {
	im, err := l.Import(s.First, s.Bytes)
	if err != nil {
		return Point{}, err
	}
	defer im.Close()
	for im.Have() < s.Bytes {
		n := min(1+pieces.Int64N(3000), s.Bytes-im.Have())
		if err := im.Write(o.files[s.First][im.Have() : im.Have()+n]); err != nil {
			return Point{}, err
		}
		if pieces.IntN(5) == 0 {
			if err := im.Sync(); err != nil {
				return Point{}, err
			}
		}
	}
	return im.Finish(s.Last, visit)
}

// TestImport builds a replica that gets live frames first, then history with power cuts in between at every
// operation, and ends with the same bytes.
func TestImport(t *testing.T) {
	for seed := range uint64(6) {
		o := newOrigin(t, seed)
		mem := newMem(t)
		l, err := o.replica(mem)
		if err != nil {
			t.Fatal(err)
		}
		if want := (Point{Index: o.liveFrom.Segment - 1, CRC: o.liveFrom.Prev}); l.Tip() != want {
			t.Errorf("tip of the new replica %+v, want %+v", l.Tip(), want)
		}
		if err := o.live(l); err != nil {
			t.Fatal(err)
		}
		tip := l.Tip()
		var points []*memfs.FS
		mem.OnOp(func(op memfs.Op) {
			if len(points) < 1000 {
				points = append(points, mem.Clone())
			}
		})
		for _, s := range o.sealed {
			saw := new(seen)
			p, err := o.fetch(l, s, o.rng, saw.visit)
			if want := o.frames[s.Last-1].point; err != nil || p != want {
				t.Fatalf("seed %d: import: %+v, %v, want %+v", seed, p, err, want)
			}
			for i, e := range saw.entries {
				one := o.frames[s.First-1+entry.Index(i)]
				if e.Index != one.point.Index || saw.at[i].Offset != one.place.Offset || saw.at[i].Segment != s.First {
					t.Fatalf("visited entry %d at %+v", e.Index, saw.at[i])
				}
			}
			for crash := range mem.CrashStates(seed, 6) {
				if got := readFile(t, crash.FS, segmentPath(s.First)); !bytes.Equal(got, o.files[s.First]) {
					t.Errorf("the segment is not durable after Finish:\n%v", crash)
				}
			}
			if saw.last() != s.Last {
				t.Errorf("visited up to %d of %d", saw.last(), s.Last)
			}
			if len(l.Segments()) != 1 {
				t.Error("the segment is known before Prepend")
			}
		}
		mem.OnOp(nil)
		if err := o.whole(l, mem); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		l.Close()
		for i, p := range points {
			if i%5 != int(seed)%5 {
				continue
			}
			crash := p.Crash(seed, i%20)
			l, err := o.replica(crash.FS)
			if err != nil {
				t.Fatalf("seed %d: open: %v\n%v", seed, err, crash)
			}
			if l.Tip() != tip {
				t.Errorf("tip %+v, want %+v", l.Tip(), tip)
			}
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for _, s := range o.sealed {
				// What a power cut left of a part file may be garbage. Then it is fetched again.
				p, err := o.fetch(l, s, rng, nil)
				if c := (*CorruptionError)(nil); errors.As(err, &c) {
					p, err = o.fetch(l, s, rng, nil)
				}
				if err != nil || p != o.frames[s.Last-1].point {
					t.Fatalf("seed %d: after a power cut: %+v, %v\n%v", seed, p, err, crash)
				}
			}
			if err := o.whole(l, crash.FS); err != nil {
				t.Fatalf("seed %d: after a power cut: %v\n%v", seed, err, crash)
			}
			l.Close()
		}
	}
}

// whole makes the history known, and compares all with the origin.
func (o *origin) whole(l *Log, fsys vfs.FS) error {
	if err := l.Prepend(); err != nil {
		return err
	}
	if got, want := len(l.Segments()), len(o.sealed)+1; got != want {
		return fmt.Errorf("%d segments, want %d", got, want)
	}
	if err := o.holds(l, 0); err != nil {
		return err
	}
	if c, err := Compare(o.mem, "log", fsys, "log"); err != nil || !c.Equal() || c.First != 1 {
		return fmt.Errorf("%+v, %w", c, err)
	}
	if names, err := fsys.List("log"); err != nil || strings.Contains(strings.Join(names, " "), partSuffix) {
		return fmt.Errorf("files %v, %w", names, err)
	}
	if err := l.Prepend(); err != nil {
		return fmt.Errorf("again: %w", err)
	}
	cfg := l.cfg
	cfg.From, cfg.Begin, cfg.Create = 0, nil, false
	l.Close()
	again, r, err := Open(cfg, 0, nil)
	if err != nil {
		return err
	}
	defer again.Close()
	if r.First != 1 || len(r.Damage) > 0 || again.Tip() != o.log.Tip() {
		return fmt.Errorf("opened whole: %+v", r)
	}
	return nil
}

// TestImportResume: an import goes on at any byte, with the same handle or another.
func TestImportResume(t *testing.T) {
	o := newOrigin(t, 1)
	s := o.sealed[0]
	file := o.files[s.First]
	for at := int64(0); at <= s.Bytes; at += 1 + s.Bytes/97 {
		mem := newMem(t)
		l, err := o.replica(mem)
		if err != nil {
			t.Fatal(err)
		}
		im, err := l.Import(s.First, s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Write(file[:at]); err != nil {
			t.Fatal(err)
		}
		if _, err := im.Finish(s.Last, nil); at < s.Bytes && !errors.Is(err, ErrMismatch) {
			t.Errorf("finish with %d bytes: %v", at, err)
		}
		im.Close()
		if err := im.Write(file[:1]); at < s.Bytes && !errors.Is(err, fs.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
		im, err = l.Import(s.First, s.Bytes)
		if err != nil || im.Have() != at {
			t.Fatalf("have %d, want %d, %v", im.Have(), at, err)
		}
		if err := im.Write(append(bytes.Clone(file[at:]), 0)); at < s.Bytes && !errors.Is(err, ErrMismatch) || im.Have() != at && at < s.Bytes {
			t.Errorf("write beyond the size: %v", err)
		}
		if at < s.Bytes {
			if err := im.Write(file[at:]); err != nil {
				t.Fatal(err)
			}
			stop := errors.New("stop")
			if _, err := im.Finish(s.Last, func(*entry.Entry, entry.Position) error { return stop }); err != stop {
				t.Errorf("error of visit: %v", err)
			}
			if _, err := im.Finish(s.Last, nil); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // it is there now, and the second time remembered
			if im, err = l.Import(s.First, s.Bytes); err != nil || im.Have() != s.Bytes {
				t.Fatalf("of a complete segment: %v", err)
			}
			visited := 0
			p, err := im.Finish(s.Last, func(*entry.Entry, entry.Position) error { visited++; return nil })
			if at < s.Bytes && (err != nil || p != o.frames[s.Last-1].point || visited > 0) {
				t.Errorf("finish of a complete segment: %+v, %v, visited %d", p, err, visited)
			}
		}
		l.Close()
		if open := mem.OpenFiles(); len(open) > 0 {
			t.Errorf("open: %v", open)
		}
	}
}

// TestImportDamage flips a bit of each kind of byte, and gives wrong ends. The file is refused and removed.
func TestImportDamage(t *testing.T) {
	o := newOrigin(t, 2)
	mem := newMem(t)
	l, err := o.replica(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := o.sealed[1]
	try := func(name string, s Segment, file []byte) {
		t.Helper()
		im, err := l.Import(s.First, s.Bytes)
		if err != nil || im.Have() != 0 {
			t.Fatalf("%s: have %d, %v", name, im.Have(), err)
		}
		if err := im.Write(file); err != nil {
			t.Fatal(err)
		}
		damage := (*CorruptionError)(nil)
		if _, err := im.Finish(s.Last, nil); !errors.As(err, &damage) && !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v", name, err)
		}
		im.Close()
		if names, _ := mem.List("log"); len(names) != 1 {
			t.Fatalf("%s: files %v", name, names)
		}
	}
	for at := 0; at < int(s.Bytes); at += 1 + at/100 {
		changed := bytes.Clone(o.files[s.First])
		changed[at] ^= 1 << (at % 8)
		try(fmt.Sprintf("byte %d", at), s, changed)
	}
	last := s
	last.Last++
	try("one entry more", last, o.files[s.First])
	last.Last -= 2
	try("one entry less", last, o.files[s.First])
	other := s
	other.First++
	try("another segment", other, o.files[s.First])
	other = s
	other.Bytes += 8
	try("longer", other, append(bytes.Clone(o.files[s.First]), make([]byte, 8)...))
	if l.Err() != nil {
		t.Errorf("the log failed: %v", l.Err())
	}
	for name, c := range map[string]struct {
		first entry.Index
		size  int64
	}{
		"entry 0":         {0, s.Bytes},
		"no header":       {s.First, headerSize - 1},
		"negative":        {s.First, -1},
		"too large":       {s.First, 1 << 62},
		"active segment":  {o.liveFrom.Segment, o.liveFrom.Size},
		"behind the head": {o.liveFrom.Segment + 1, s.Bytes},
	} {
		if _, err := l.Import(c.first, c.size); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestImportRot: a segment that was complete when the process before ended, and is damaged now, is removed, so that it
// can be fetched anew.
func TestImportRot(t *testing.T) {
	o := newOrigin(t, 2)
	mem := newMem(t)
	l, err := o.replica(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := o.sealed[0]
	rotten := bytes.Clone(o.files[s.First])
	rotten[headerSize+50] ^= 1
	f, err := mem.Create(l.pathOf(s.First))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(rotten, 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	im, err := l.Import(s.First, s.Bytes)
	if err != nil || im.Have() != s.Bytes {
		t.Fatalf("have %d of %d, %v", im.Have(), s.Bytes, err)
	}
	if _, err := im.Finish(s.Last, nil); !errors.As(err, new(*CorruptionError)) {
		t.Fatalf("finish a damaged segment: %v", err)
	}
	im.Close()
	if im, err = l.Import(s.First, s.Bytes); err != nil || im.Have() != 0 {
		t.Fatalf("it is still there: have %d, %v", im.Have(), err)
	}
	if err := im.Write(o.files[s.First]); err != nil {
		t.Fatal(err)
	}
	if _, err := im.Finish(s.Last, nil); err != nil {
		t.Fatal(err)
	}
}

// TestPrepend: a history that does not fit is refused, and nothing is changed.
func TestPrepend(t *testing.T) {
	o := newOrigin(t, 3)
	other := newOrigin(t, 4)
	put := func(m *memfs.FS, first entry.Index, b []byte) { writeFile(t, m, segmentPath(first), b) }
	// forged makes a segment with the same indexes and another history: the frames are good, the chain is not.
	forged := func(m *memfs.FS, s Segment) {
		h := segmentHeader{id: testID, first: s.First, prev: 5}
		var f Frames
		gather(&f, s.First, int(s.Last-s.First)+1)
		f.finish(seedOf(testID), 5, s.First, 1, 0)
		h.size = headerSize + int64(f.Bytes())
		put(m, s.First, append(h.encode(), f.Raw()...))
	}
	for name, c := range map[string]struct {
		files func(m *memfs.FS)
		ok    bool
	}{
		"nothing":    {func(m *memfs.FS) {}, true},
		"the newest": {func(m *memfs.FS) { s := o.sealed[2].First; put(m, s, o.files[s]) }, true},
		"the two": {func(m *memfs.FS) {
			put(m, o.sealed[1].First, o.files[o.sealed[1].First])
			put(m, o.sealed[2].First, o.files[o.sealed[2].First])
		}, true},
		"a hole":      {func(m *memfs.FS) { put(m, 1, o.files[1]); put(m, o.sealed[2].First, o.files[o.sealed[2].First]) }, false},
		"no newest":   {func(m *memfs.FS) { put(m, 1, o.files[1]) }, false},
		"another log": {func(m *memfs.FS) { put(m, o.sealed[2].First, other.files[other.sealed[2].First]) }, false},
		"damage": {func(m *memfs.FS) {
			b := bytes.Clone(o.files[o.sealed[2].First])
			b[700]++
			put(m, o.sealed[2].First, b)
		}, false},
		"another chain": {func(m *memfs.FS) { forged(m, o.sealed[2]) }, false},
		"another chain before": {func(m *memfs.FS) {
			forged(m, o.sealed[1])
			put(m, o.sealed[2].First, o.files[o.sealed[2].First])
		}, false},
	} {
		mem := newMem(t)
		l, err := o.replica(mem)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.live(l); err != nil {
			t.Fatal(err)
		}
		c.files(mem)
		before := len(l.Segments())
		err = l.Prepend()
		if (err == nil) != c.ok || l.Err() != nil {
			t.Errorf("%s: %v, the log %v", name, err, l.Err())
		}
		if damage := (*CorruptionError)(nil); !c.ok && (!errors.As(err, &damage) || len(l.Segments()) != before) {
			t.Errorf("%s: %v, %d segments, had %d", name, err, len(l.Segments()), before)
		}
		if err := l.DropImports(); err != nil {
			t.Errorf("%s: drop: %v", name, err)
		}
		if names, _ := mem.List("log"); len(names) != len(l.Segments()) {
			t.Errorf("%s: left after DropImports: %v", name, names)
		}
		l.Close()
	}
}

// TestFrom: segments before From are not looked at, whatever they hold.
func TestFrom(t *testing.T) {
	o := newOrigin(t, 5)
	mem := newMem(t)
	l, err := o.replica(mem)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.live(l); err != nil {
		t.Fatal(err)
	}
	tip := l.Tip()
	l.Close()
	writeFile(t, mem, segmentPath(1), []byte("not even a header"))
	writeFile(t, mem, segmentPath(2)+partSuffix, []byte("a part"))
	cfg := testConfig(mem)
	cfg.From, cfg.Create = o.liveFrom.Segment, false
	l, r, _ := mustOpen(t, cfg, cfg.From-1)
	if l.Tip() != tip || r.First != cfg.From || len(r.Damage) > 0 {
		t.Errorf("tip %+v, recovered %+v", l.Tip(), r)
	}
	if err := l.DropImports(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, _, err := Open(cfg, cfg.From-2, nil); !errors.Is(err, ErrMismatch) {
		t.Errorf("entries before From are needed: %v", err)
	}
	cfg.From++
	if _, _, err := Open(cfg, cfg.From-1, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("nothing from From on: %v", err)
	}
	bad := testConfig(newMem(t))
	for _, begin := range []Place{{}, {Segment: 5}, {Segment: 5, Size: 1 << 60}, {Segment: 5, Size: -1}} {
		bad.Begin = &begin
		if _, _, err := Open(bad, 0, nil); err == nil {
			t.Errorf("begins at %+v", begin)
		}
	}
	bad.Begin = &Place{Segment: 5, Size: testSegment}
	if _, _, err := Open(bad, 5, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("a new log after the snapshot: %v", err)
	}
}

// TestImportErrors lets each operation of an import fail. A full disk is waited out; all else ends the log.
func TestImportErrors(t *testing.T) {
	o := newOrigin(t, 1)
	hits := 0
	for _, kind := range faultfs.Changes() {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
			for k := 1; ; k++ {
				mem := newMem(t)
				f := faultfs.New(mem)
				l, err := o.replica(f)
				if err != nil {
					t.Fatal(err)
				}
				injected := f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: errno, Short: 100})
				run := func() error {
					for _, s := range o.sealed {
						if _, err := o.fetch(l, s, rand.New(rand.NewPCG(1, 1)), nil); err != nil {
							return err
						}
					}
					return l.Prepend()
				}
				err = run()
				if len(injected.Hits()) == 0 {
					l.Close()
					break
				}
				hits++
				what := fmt.Sprintf("%v: %v", injected.Hits(), err)
				switch {
				case err == nil:
					t.Errorf("%s: no error", what)
				case errors.Is(err, ErrFull) && l.Err() == nil:
					if err := run(); err != nil {
						t.Errorf("%s: again: %v", what, err)
					}
				case !errors.Is(err, ErrFailed) || l.Err() == nil:
					t.Errorf("%s: the log: %v", what, l.Err())
				}
				if errno == syscall.ENOSPC && (kind == faultfs.Write || kind == faultfs.Create) && !errors.Is(err, ErrFull) {
					t.Errorf("%s: want ErrFull", what)
				}
				l.Close()
				if l, err = o.replica(mem); err != nil {
					t.Fatalf("%s: open again: %v", what, err)
				}
				if err := run(); err != nil {
					t.Errorf("%s: again after a restart: %v", what, err)
				}
				l.Close()
			}
		}
	}
	if hits < 20 {
		t.Errorf("%d faults", hits)
	}
}
