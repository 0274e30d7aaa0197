package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// patient is a log of which a peer has a good copy.
type patient struct {
	*book
	mem  *memfs.FS
	log  *Log
	peer *Log
	good *memfs.FS // the peer's
}

func newPatient(t testing.TB, seed uint64) *patient {
	t.Helper()
	p := &patient{book: newBook(seed), mem: newMem(t)}
	p.log, _, _ = mustOpen(t, p.config(), 0)
	for len(p.log.Segments()) < 5 {
		mustGrow(t, p.book, p.log, 1)
	}
	if err := p.log.Sync(); err != nil {
		t.Fatal(err)
	}
	p.good = p.mem.Clone()
	cfg := p.config()
	cfg.FS = p.good
	p.peer, _, _ = mustOpen(t, cfg, 0)
	return p
}

func (p *patient) config() Config {
	cfg := testConfig(p.mem)
	cfg.Inline = true
	return cfg
}

// feed gives r what the peer has of the segment, in pieces.
func (p *patient) feed(r *Repair) error {
	for {
		b := make([]byte, 1+p.rng.IntN(3000))
		n, err := p.peer.ReadSegmentAt(b, r.first, r.Have())
		if err == io.EOF && n == 0 {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		if err := r.Write(b[:n]); err != nil {
			return err
		}
	}
}

// heal repairs a segment of the log that is not open, to end with entry last.
func (p *patient) heal(mem vfs.FS, s Segment, last entry.Index) (Point, error) {
	r, err := NewRepair(mem, "log", testID, s.First, s.Bytes)
	if err != nil {
		return Point{}, err
	}
	defer r.Close()
	if err := p.feed(r); err != nil {
		return Point{}, err
	}
	return r.Finish(last)
}

// healOpen repairs a segment of the open log.
func (p *patient) healOpen(s Segment) (Point, error) {
	r, err := p.log.Repair(s.First, s.Bytes)
	if err != nil {
		return Point{}, err
	}
	defer r.Close()
	if err := p.feed(r); err != nil {
		return Point{}, err
	}
	return r.Finish(s.Last)
}

// harms are ways to damage a file of a segment.
var harms = []struct {
	name string
	do   func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand)
}{
	{"header", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) { flip(t, mem, name, rng.Int64N(60)) }},
	{"frame", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		flip(t, mem, name, headerSize+rng.Int64N(frameHeader-1))
	}},
	{"zeros", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { clear(b[headerSize:]); return b })
	}},
	{"all zeros", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { clear(b); return b })
	}},
	{"rubbish behind", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	}},
	{"short", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { return b[:rng.IntN(len(b)/8)] })
	}},
	{"empty", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { return nil })
	}},
	{"long", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte { return append(b, 1) })
	}},
	{"foreign", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		rewrite(t, mem, name, func(b []byte) []byte {
			b[16] ^= 1
			binary.LittleEndian.PutUint32(b[56:], crc32.Checksum(b[:56], castagnoli))
			return b
		})
	}},
	{"missing", func(t testing.TB, mem *memfs.FS, name string, rng *rand.Rand) {
		if err := errors.Join(mem.Remove(name), mem.SyncDir("log")); err != nil {
			t.Fatal(err)
		}
	}},
}

func flip(t testing.TB, mem vfs.FS, name string, at int64) {
	t.Helper()
	rewrite(t, mem, name, func(b []byte) []byte { b[at] ^= 1; return b })
}

// rewrite changes a file in place, durably.
func rewrite(t testing.TB, mem vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	b := change(readFile(t, mem, name))
	f, err := mem.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(len(b))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// same checks that the log's folder and the peer's hold the same segments.
func (p *patient) same(mem *memfs.FS) error {
	c, err := Compare(p.good, "log", mem, "log")
	if err == nil && !c.Equal() {
		err = fmt.Errorf("%+v", c)
	}
	return err
}

// TestRepairOpen damages sealed segments of an open log. The scrub finds each damage, also to a file that is open, and
// the segment is whole after a repair; a power cut at any moment of it leaves the old file or the new one.
func TestRepairOpen(t *testing.T) {
	for i, harm := range harms {
		p := newPatient(t, uint64(i))
		list := p.log.Segments()
		s := list[1+i%2]
		name := segmentPath(s.First)
		reader := p.log.NewCursor(s.First)
		defer reader.Close()
		var f Frames
		place, err := reader.Next(&f, s.First, 1)
		if err == nil {
			err = p.matches(p.log, &f, place)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.log.VerifySegment(context.Background(), s.First, nil); err != nil {
			t.Fatalf("%s: before the damage: %v", harm.name, err)
		}
		harm.do(t, p.mem, name, p.rng)
		damage := (*CorruptionError)(nil)
		if err := p.log.VerifySegment(context.Background(), s.First, nil); !errors.As(err, &damage) || damage.Segment != s.First {
			t.Errorf("%s: the scrub found %v", harm.name, err)
		}
		var old []byte
		if harm.name != "missing" {
			old = readFile(t, p.mem, name)
		}
		fresh := readFile(t, p.good, name)
		states := 0
		p.mem.OnOp(func(op memfs.Op) {
			for c := range p.mem.CrashStates(uint64(i), 6) {
				states++
				_, err := c.FS.Size(name)
				if errors.Is(err, errNotExist) && old == nil {
					continue
				}
				if b := readFile(t, c.FS, name); !bytes.Equal(b, old) && !bytes.Equal(b, fresh) {
					t.Fatalf("%s: neither old nor new after a power cut at %+v\n%v", harm.name, op, c)
				}
			}
		})
		tip, err := p.healOpen(s)
		p.mem.OnOp(nil)
		if err != nil || tip != p.frames[s.Last-1].point || states < 10 {
			t.Fatalf("%s: %+v, %v; %d states", harm.name, tip, err, states)
		}
		if err := p.log.VerifySegment(context.Background(), s.First, nil); err != nil {
			t.Errorf("%s: %v", harm.name, err)
		}
		if c := p.mem.Crash(1, 0); p.same(c.FS) != nil {
			t.Errorf("%s: not durable: %v", harm.name, p.same(c.FS))
		}
		// The cursor goes on, and everybody else reads the new file.
		for reader.next <= s.Last {
			if place, err = reader.Next(&f, s.Last, 500); err == nil {
				err = p.matches(p.log, &f, place)
			}
			if err != nil {
				t.Fatalf("%s: %v", harm.name, err)
			}
		}
		if err := p.holds(p.log, 0); err != nil {
			t.Errorf("%s: %v", harm.name, err)
		}
		evidence := name + damagedSuffix
		if len(old) > 0 && !bytes.Equal(readFile(t, p.mem, evidence), old[:min(len(old), len(fresh))]) {
			t.Errorf("%s: the damaged file is not kept", harm.name)
		}
		if _, err := p.log.DropBefore(s.Last + 1); err != nil {
			t.Error(err)
		}
		if _, err := p.mem.Size(evidence); err == nil {
			t.Errorf("%s: the damaged file outlives its segment", harm.name)
		}
		reader.Close()
		p.log.Close()
		if open := p.mem.OpenFiles(); len(open) > 0 {
			t.Errorf("%s: open after Close: %v", harm.name, open)
		}
	}
}

// TestRepairClosed damages one or more segments of a closed log, the last one among them. Survey says which, and after
// the repairs the log is the peer's, up to the entry that was chosen.
func TestRepairClosed(t *testing.T) {
	for seed := range uint64(60) {
		p := newPatient(t, seed)
		list := p.peer.Segments()
		final := list[len(list)-1]
		p.log.Close()
		hurt := make(map[entry.Index]string)
		for range 1 + p.rng.IntN(3) {
			s, harm := list[p.rng.IntN(len(list))], harms[p.rng.IntN(len(harms))]
			if hurt[s.First] != "" || s == final && (harm.name == "missing" || harm.name == "zeros") {
				continue // a log that only ends earlier is a good log, to all that can be seen in it
			}
			hurt[s.First] = harm.name
			harm.do(t, p.mem, segmentPath(s.First), p.rng)
		}
		found, err := TakeSurvey(p.mem, "log", testID, 0)
		if err != nil {
			t.Fatal(err)
		}
		last := final.Last
		for _, s := range list {
			if hurt[s.First] == "" {
				continue
			}
			if !found.names(s) {
				t.Errorf("seed %d: %s of %d: survey %+v", seed, hurt[s.First], s.First, found)
			}
			end := s.Last
			if s == final && p.rng.IntN(2) == 0 {
				end -= entry.Index(p.rng.IntN(int(s.Last-s.First) + 2))
				last = end
			}
			if _, err := p.heal(p.mem, s, end); err != nil {
				t.Fatalf("seed %d: %s of %d: %v", seed, hurt[s.First], s.First, err)
			}
		}
		l, r, _ := mustOpen(t, p.config(), 0)
		if l.Last() != last || len(r.Damage) > 0 || r.Torn != nil {
			t.Fatalf("seed %d: last %d, want %d; %+v, harm %v", seed, l.Last(), last, r, hurt)
		}
		if err := errors.Join(p.holds(l, 0), cleanBehind(l)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if again, err := TakeSurvey(p.mem, "log", testID, 0); err != nil || !again.Intact() || again.Whole != last || again.Last != last {
			t.Errorf("seed %d: %+v, %v", seed, again, err)
		}
		p.cut(last)
		mustGrow(t, p.book, l, 3)
		if err := errors.Join(l.Sync(), p.holds(l, 0)); err != nil {
			t.Fatalf("seed %d: goes on: %v", seed, err)
		}
	}
}

// names reports whether the survey says that something is wrong with s.
func (s *Survey) names(one Segment) bool {
	for i := range s.Segments {
		f := &s.Segments[i]
		if !f.Intact() && (f.First == one.First || f.First <= one.Last && f.Last >= one.First) {
			return true
		}
	}
	return s.Torn != nil && s.Torn.Segment == one.First
}

// TestRepairTolerated: what Open reports of damage that a snapshot covers is enough to repair it in the open log.
func TestRepairTolerated(t *testing.T) {
	for seed := range uint64(40) {
		p := newPatient(t, seed)
		list := p.peer.Segments()
		final := list[len(list)-1]
		after := min(final.First+1, final.Last)
		p.log.Close()
		hurt := make(map[entry.Index]bool)
		for range 1 + p.rng.IntN(3) {
			// Segments that end below after are not read by Open; so look at the header only.
			s := list[p.rng.IntN(len(list)-1)]
			if !hurt[s.First] {
				harm := harms[[]int{0, 3, 5, 6, 7, 8, 9}[p.rng.IntN(7)]]
				if harm.name == "missing" && s == list[0] {
					continue // that is for Import
				}
				hurt[s.First] = true
				harm.do(t, p.mem, segmentPath(s.First), p.rng)
			}
		}
		var r Recovered
		p.log, r, _ = mustOpen(t, p.config(), after)
		for _, s := range list[:len(list)-1] {
			bad := false
			for _, d := range r.Damage {
				bad = bad || d.Segment == s.First
			}
			err := p.log.VerifySegment(context.Background(), s.First, nil)
			if bad && err == nil {
				t.Errorf("seed %d: %v, and the scrub is content with %d", seed, r.Damage, s.First)
			}
			if !bad && err == nil {
				continue
			}
			if _, err := p.healOpen(s); err != nil {
				t.Fatalf("seed %d: %d: %v", seed, s.First, err)
			}
		}
		for _, s := range p.log.Segments()[:len(list)-1] {
			if err := p.log.VerifySegment(context.Background(), s.First, nil); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		if err := errors.Join(p.same(p.mem), p.holds(p.log, 0)); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if got := p.log.Segments(); len(got) != len(list) {
			t.Errorf("seed %d: segments %+v, want %+v", seed, got, list)
		}
	}
}

// TestRepairRefused: what is damaged, or does not fit, changes nothing, and is not kept.
func TestRepairRefused(t *testing.T) {
	p := newPatient(t, 1)
	list := p.peer.Segments()
	s := list[2]
	name := segmentPath(s.First)
	good := readFile(t, p.good, name)
	flip(t, p.mem, name, headerSize+60)
	before := readFile(t, p.mem, name)
	// another is a good segment with the same first entry in another history of the same log.
	other := newMem(t)
	cfg := p.config()
	cfg.FS, cfg.Begin = other, &Place{Segment: s.First, Size: s.Bytes, Prev: 77}
	rival, _, _ := mustOpen(t, cfg, s.First-1)
	for rival.Last() < s.Last {
		mustPut(t, rival, 1)
		if len(rival.Segments()) > 1 {
			t.Fatal("the rival rolled")
		}
	}
	branch := p.good.Clone() // has all that is before, and parts there
	cfg.FS, cfg.Begin = branch, nil
	parting, _, _ := mustOpen(t, cfg, 0)
	if err := parting.Truncate(s.First); err != nil {
		t.Fatal(err)
	}
	for parting.Last() < s.Last {
		var f Frames
		f.End(append(f.Begin(2, testTime), "x"...))
		if _, err := parting.Append(&f, p.term+1, 0); err != nil {
			t.Fatal(err)
		}
	}
	with := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	damage := new(*CorruptionError)
	for _, c := range []struct {
		name string
		b    []byte
		last entry.Index
		want func(error) bool
		gone bool
	}{
		{"damaged frame", with(func(b []byte) []byte { b[headerSize+50] ^= 4; return b }), s.Last, func(err error) bool { return errors.As(err, damage) }, true},
		{"damaged header", with(func(b []byte) []byte { b[33] ^= 4; return b }), s.Last, func(err error) bool { return errors.As(err, damage) }, true},
		{"rubbish behind", with(func(b []byte) []byte { b[len(b)-1] = 4; return b }), s.Last, func(err error) bool { return errors.As(err, damage) }, true},
		{"last is too low", good, s.Last - 1, func(err error) bool { return errors.As(err, damage) }, true},
		{"last is too high", good, s.Last + 1, func(err error) bool { return errors.Is(err, ErrMismatch) }, true},
		{"not complete", good[:len(good)-8], s.Last, func(err error) bool { return errors.Is(err, ErrMismatch) }, false},
		{"other history", readFile(t, other, name), s.Last, func(err error) bool { return errors.Is(err, ErrMismatch) }, true},
		{"other branch", readFile(t, branch, name), s.Last, func(err error) bool { return errors.Is(err, ErrMismatch) }, true},
		{"other segment", readFile(t, p.good, segmentPath(list[1].First)), s.Last, func(err error) bool { return errors.As(err, damage) }, true},
	} {
		for _, open := range []bool{true, false} {
			begin := func() (*Repair, error) {
				if open {
					return p.log.Repair(s.First, s.Bytes)
				}
				return NewRepair(p.mem, "log", testID, s.First, s.Bytes)
			}
			r, err := begin()
			if err == nil && r.Have() != 0 { // what was not complete
				if err = r.Discard(); err == nil {
					r, err = begin()
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Write(c.b[:min(int64(len(c.b)), s.Bytes)]); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Finish(c.last); !c.want(err) {
				t.Errorf("%s, open %t: %v", c.name, open, err)
			}
			r.Close()
			if !bytes.Equal(readFile(t, p.mem, name), before) || p.log.Err() != nil {
				t.Errorf("%s, open %t: something changed", c.name, open)
			}
			if _, err := p.mem.Size(r.part.name); (err != nil) != c.gone {
				t.Errorf("%s, open %t: part file: %v", c.name, open, err)
			}
		}
	}
	for range 400 {
		r, err := NewRepair(p.mem, "log", testID, s.First, s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		at, bit := p.rng.IntN(len(bad)), p.rng.IntN(8)
		bad[at] ^= 1 << bit
		if err := r.Write(bad); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Finish(s.Last); !errors.As(err, damage) {
			t.Errorf("bit %d of byte %d flipped: %v", bit, at, err)
		}
	}
	active := list[len(list)-1]
	for _, c := range []struct {
		first entry.Index
		want  error
	}{{active.First, ErrMismatch}, {active.First + 1, ErrMismatch}, {0, ErrSegmentGone}} {
		if _, err := p.log.Repair(c.first, active.Bytes); !errors.Is(err, c.want) {
			t.Errorf("repair of %d: %v, want %v", c.first, err, c.want)
		}
	}
	if _, err := NewRepair(p.mem, "log", testID, s.First, 100); !errors.Is(err, ErrMismatch) {
		t.Errorf("too small: %v", err)
	}
	if _, err := p.healOpen(s); err != nil {
		t.Error(err)
	}
	if err := p.same(p.mem); err != nil {
		t.Error(err)
	}
	// Where no segment comes behind, the one before tells.
	p.log.Close()
	for _, after := range list[3:] {
		if err := p.mem.Remove(segmentPath(after.First)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewRepair(p.mem, "log", testID, s.First, s.Bytes)
	if err == nil {
		err = r.Write(readFile(t, other, name)[:s.Bytes])
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Finish(s.Last); !errors.Is(err, ErrMismatch) {
		t.Errorf("other history at the end: %v", err)
	}
}

// TestRepairInserted: a missing segment of an open log comes back only behind one that ends where it begins.
func TestRepairInserted(t *testing.T) {
	p := newPatient(t, 8)
	list := p.peer.Segments()
	a, b := list[1], list[2]
	p.log.Close()
	if err := p.mem.Remove(segmentPath(b.First)); err != nil {
		t.Fatal(err)
	}
	flip(t, p.mem, segmentPath(a.First), headerSize+20)
	p.log, _, _ = mustOpen(t, p.config(), p.peer.Last())
	if _, err := p.healOpen(b); !errors.Is(err, ErrMismatch) || p.log.Err() != nil {
		t.Errorf("behind a damaged segment: %v", err)
	}
	for _, s := range []Segment{a, b} {
		if tip, err := p.healOpen(s); err != nil || tip != p.frames[s.Last-1].point {
			t.Errorf("%+v, %v", tip, err)
		}
	}
	if got := p.log.Segments(); !slices.Equal(got, list) {
		t.Errorf("segments %+v, want %+v", got, list)
	}
	if err := errors.Join(p.same(p.mem), p.holds(p.log, 0)); err != nil {
		t.Error(err)
	}
}

// openHook does something when a file is opened for reading.
type openHook struct {
	vfs.FS
	do func(name string)
}

func (h *openHook) OpenRead(name string) (vfs.File, error) {
	f, err := h.FS.OpenRead(name)
	h.do(name)
	return f, err
}

// TestRepairUnderReaders: a reader whose segment is replaced while it opens it reads the new one.
func TestRepairUnderReaders(t *testing.T) {
	p := newPatient(t, 9)
	list := p.peer.Segments()
	s := list[1]
	p.log.Close()
	hook := &openHook{FS: p.mem, do: func(string) {}}
	cfg := p.config()
	cfg.FS = hook
	b := make([]byte, 200)
	for name, read := range map[string]func() error{
		"ReadAt":        func() error { _, err := p.log.ReadAt(b, s.First, 0); return err },
		"ReadSegmentAt": func() error { _, err := p.log.ReadSegmentAt(b, s.First, 0); return err },
		"SegmentPlace":  func() error { _, err := p.log.SegmentPlace(s.First); return err },
		"PointAt":       func() error { _, err := p.log.PointAt(s.Last); return err },
		"ScanSegment": func() error {
			d, err := p.log.ScanSegment(s.First, nil)
			if len(d) > 0 {
				err = errors.New(d[0].String())
			}
			return err
		},
		"Cursor": func() error {
			var f Frames
			c := p.log.NewCursor(s.Last)
			defer c.Close()
			_, err := c.Next(&f, s.Last, 1000)
			return err
		},
	} {
		p.log, _, _ = mustOpen(t, cfg, p.peer.Last())
		flip(t, p.mem, segmentPath(s.First), 20)
		healed := false
		hook.do = func(name string) {
			if name == segmentPath(s.First) && !healed {
				healed = true
				if _, err := p.healOpen(s); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := read(); err != nil || !healed {
			t.Errorf("%s: %v", name, err)
		}
		hook.do = func(string) {}
		p.log.Close()
	}
	if open := p.mem.OpenFiles(); len(open) > 0 {
		t.Errorf("open: %v", open)
	}
}

// TestRepairReal repairs segments of a log in real files, open and not.
func TestRepairReal(t *testing.T) {
	p := newPatient(t, 10)
	p.log.Close()
	dir, err := os.MkdirTemp("/var/tmp", "wal-repair-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	disk, err := vfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	list := p.peer.Segments()
	if err := disk.Mkdir("log"); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		writeFile(t, disk, segmentPath(s.First), readFile(t, p.good, segmentPath(s.First)))
	}
	cfg := p.config()
	cfg.FS = disk
	p.log, _, _ = mustOpen(t, cfg, 0)
	s := list[1]
	reader := p.log.NewCursor(s.First)
	defer reader.Close()
	var f Frames
	if _, err := reader.Next(&f, s.First, 1); err != nil {
		t.Fatal(err)
	}
	flip(t, disk, segmentPath(s.First), headerSize+9)
	if err := p.log.VerifySegment(context.Background(), s.First, nil); !errors.As(err, new(*CorruptionError)) {
		t.Errorf("the scrub found %v", err)
	}
	if _, err := p.healOpen(s); err != nil {
		t.Fatal(err)
	}
	for reader.next <= s.Last {
		place, err := reader.Next(&f, s.Last, 500)
		if err == nil {
			err = p.matches(p.log, &f, place)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.log.VerifySegment(context.Background(), s.First, nil); err != nil {
		t.Error(err)
	}
	p.log.Close()
	active := list[len(list)-1]
	for _, s := range []Segment{list[2], active} {
		flip(t, disk, segmentPath(s.First), headerSize+9)
		if _, err := p.heal(disk, s, s.Last); err != nil {
			t.Fatal(err)
		}
	}
	p.log, _, _ = mustOpen(t, cfg, 0)
	if err := errors.Join(p.holds(p.log, 0), cleanBehind(p.log)); err != nil || p.log.Last() != p.peer.Last() {
		t.Errorf("last %d of %d, %v", p.log.Last(), p.peer.Last(), err)
	}
	if c, err := Compare(p.good, "log", disk, "log"); err != nil || !c.Equal() {
		t.Errorf("%+v, %v", c, err)
	}
}
