package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs/memfs"
)

// pairOfLogs is a leader's log and a replica of it, each on a disk of its own.
type pairOfLogs struct {
	*book
	leader, follower       *Log
	leaderMem, followerMem *memfs.FS
	otherSize              bool // the follower is configured for larger segments
	loaded                 Frames
	acked                  entry.Index // durable on both
}

func (p *pairOfLogs) config(mem *memfs.FS) Config {
	cfg := testConfig(mem)
	cfg.Inline = true
	if p.otherSize && mem == p.followerMem {
		cfg.SegmentBytes *= 2
	}
	return cfg
}

func newPairOfLogs(t testing.TB, seed uint64) *pairOfLogs {
	t.Helper()
	p := &pairOfLogs{book: newBook(seed), leaderMem: newMem(t), followerMem: newMem(t), otherSize: seed%4 == 3}
	p.leader, _, _ = mustOpen(t, p.config(p.leaderMem), 0)
	p.follower, _, _ = mustOpen(t, p.config(p.followerMem), 0)
	return p
}

// deliver appends frames to the follower, as they come off the wire.
func (p *pairOfLogs) deliver(place Place, raw []byte) error {
	if err := p.follower.Load(&p.loaded, place, bytes.Clone(raw)); err != nil {
		return err
	}
	if err := p.follower.AppendReplica(&p.loaded, place); err != nil {
		return err
	}
	if p.rng.IntN(3) == 0 {
		return p.sync()
	}
	return nil
}

// sync makes the follower's log durable.
func (p *pairOfLogs) sync() error {
	if err := p.follower.Sync(); err != nil {
		return err
	}
	p.acked = max(p.acked, min(p.leader.Durable(), p.follower.Durable()))
	return nil
}

// catchUp sends what the follower lacks in chunks of random size.
func (p *pairOfLogs) catchUp() error {
	c := p.leader.NewCursor(p.follower.Tip().Index + 1)
	defer c.Close()
	var f Frames
	for {
		place, err := c.Next(&f, p.leader.Last(), 1+p.rng.IntN(3000))
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = p.deliver(place, f.Raw())
		}
		if err != nil {
			return err
		}
	}
}

// live appends to the leader, and sends what it appended.
func (p *pairOfLogs) live() error {
	if err := p.grow(p.leader); err != nil {
		return err
	}
	if err := p.deliver(p.leader.Place(&p.f), p.f.Raw()); err != nil {
		return err
	}
	if p.rng.IntN(2) == 0 {
		return p.leader.Sync()
	}
	return nil
}

// crash cuts the power of one side, and lets both agree on what is left.
func (p *pairOfLogs) crash(t testing.TB, leader bool) error {
	t.Helper()
	log, mem := &p.follower, &p.followerMem
	if leader {
		log, mem = &p.leader, &p.leaderMem
	}
	(*log).Close()
	crash := (*mem).Crash(p.rng.Uint64(), p.rng.IntN(50))
	*mem = crash.FS
	var r Recovered
	*log, r, _ = mustOpen(t, p.config(*mem), 0)
	if len(r.Damage) > 0 {
		return fmt.Errorf("damage %v after %v", r.Damage, crash)
	}
	if err := p.holds(*log, 0); err != nil {
		return fmt.Errorf("%w after %v", err, crash)
	}
	if last := (*log).Last(); last < p.acked {
		return fmt.Errorf("the log ends with %d, and %d was acknowledged, after %v", last, p.acked, crash)
	}
	// What only the follower has was not acknowledged; it goes. In between, one side may have rolled.
	common := min(p.leader.Last(), p.follower.Last())
	a, err := p.leader.PointAt(common)
	if err != nil {
		return err
	}
	b, err := p.follower.PointAt(common)
	if err != nil {
		return err
	}
	if a != b && common > 0 {
		return fmt.Errorf("the logs part before entry %d: %+v and %+v", common, a, b)
	}
	p.cut(p.leader.Last())
	return p.follower.Truncate(common)
}

func (p *pairOfLogs) compare() (Comparison, error) {
	return Compare(p.leaderMem, "log", p.followerMem, "log")
}

// TestReplica ships random logs, as they are written and by cursor, with power cuts on either side. The
// replica's files are the leader's, byte for byte.
func TestReplica(t *testing.T) {
	rolls, crashes := 0, 0
	for seed := range uint64(120) {
		p := newPairOfLogs(t, seed)
		for step := range 60 {
			var err error
			switch n := p.rng.IntN(20); {
			case n < 10:
				err = p.catchUp()
				if err == nil {
					err = p.live()
				}
			case n < 16:
				err = p.grow(p.leader)
			case n < 18:
				crashes++
				err = p.crash(t, n == 16)
			case n == 18 && p.acked > 0:
				head, _ := p.leader.DropBefore(p.acked) // the heads need not be the same
				other, _ := p.follower.DropBefore(p.acked / 2)
				rolls += head + other
				step = 60
			}
			if err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			if step == 60 {
				break
			}
		}
		if err := p.catchUp(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := p.sync(); err != nil {
			t.Fatal(err)
		}
		rolls += len(p.leader.Segments())
		c, err := p.compare()
		if err != nil || !c.Equal() || c.Last != p.leader.Last() || c.Bytes == 0 {
			t.Errorf("seed %d: %+v, %v", seed, c, err)
		}
		if err := cleanBehind(p.follower); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		p.follower.Close()
		again, r, _ := mustOpen(t, p.config(p.followerMem), p.follower.Last())
		if again.Tip() != p.leader.Tip() || r.Torn != nil || len(r.Damage) > 0 {
			t.Errorf("seed %d: the follower reopened with %+v, %+v; the leader has %+v", seed, again.Tip(), r, p.leader.Tip())
		}
	}
	if rolls < 600 || crashes < 200 {
		t.Errorf("only %d rolls, %d crashes", rolls, crashes)
	}
}

// TestReplicaMismatch: what does not fit is refused, and changes nothing.
func TestReplicaMismatch(t *testing.T) {
	p := newPairOfLogs(t, 1)
	mustGrow(t, p.book, p.leader, 40)
	segments := p.leader.Segments()
	if len(segments) < 4 {
		t.Fatal("too few segments")
	}
	middle := segments[1].First + 2 // inside a segment
	for at := entry.Index(1); at <= middle; at++ {
		one := p.frames[at-1]
		if err := p.deliver(one.place, one.raw); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.sync(); err != nil {
		t.Fatal(err)
	}
	// forge makes a good frame for the next entry, or another.
	forge := func(index entry.Index, term entry.Term, prev uint32) []byte {
		var f Frames
		f.End(append(f.Begin(2, testTime), "forged"...))
		f.finish(p.leader.seed, prev, index, term, 0)
		return f.Raw()
	}
	next, tip := p.frames[middle], p.follower.Tip()
	place := next.place
	with := func(change func(*Place)) Place {
		p := place
		change(&p)
		return p
	}
	roll := Place{Segment: tip.Index + 1, Size: testSegment, Prev: tip.CRC, Offset: headerSize}
	for name, c := range map[string]struct {
		place Place
		raw   []byte
	}{
		"entry twice":         {p.frames[middle-1].place, p.frames[middle-1].raw},
		"entry skipped":       {p.frames[middle+1].place, p.frames[middle+1].raw},
		"other offset":        {with(func(p *Place) { p.Offset += 8 }), next.raw},
		"earlier offset":      {with(func(p *Place) { p.Offset -= 8 }), next.raw},
		"other size":          {with(func(p *Place) { p.Size += 8 }), next.raw},
		"other prev":          {with(func(p *Place) { p.Prev++ }), next.raw},
		"other segment":       {with(func(p *Place) { p.Segment-- }), next.raw},
		"other index":         {place, forge(tip.Index+2, 9, tip.CRC)},
		"other chain":         {place, forge(tip.Index+1, 9, tip.CRC+1)},
		"lower term":          {place, forge(tip.Index+1, tip.Term-1, tip.CRC)},
		"roll to other chain": {Place{Segment: tip.Index + 1, Size: testSegment, Prev: 7, Offset: headerSize}, forge(tip.Index+1, 9, 7)},
		"roll to lower term":  {roll, forge(tip.Index+1, tip.Term-1, tip.CRC)},
	} {
		before := readFile(t, p.followerMem, p.follower.active.path)
		if err := p.follower.Load(&p.loaded, c.place, c.raw); err != nil {
			t.Errorf("%s: load: %v", name, err)
			continue
		}
		if err := p.follower.AppendReplica(&p.loaded, c.place); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v, want ErrMismatch", name, err)
		}
		if !bytes.Equal(before, readFile(t, p.followerMem, p.follower.active.path)) || p.follower.Tip() != tip || p.follower.Err() != nil {
			t.Errorf("%s: something changed", name)
		}
	}
	if err := p.catchUp(); err != nil {
		t.Fatal(err)
	}
	if c, err := p.compare(); err != nil || !c.Equal() {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestReplicaEmptySegment: a log that began a segment and crashed before its first entry follows a leader that goes on in
// the segment before, after any crash.
func TestReplicaEmptySegment(t *testing.T) {
	for seed := range uint64(20) {
		p := newPairOfLogs(t, 4*seed)
		mustGrow(t, p.book, p.leader, 10)
		if err := errors.Join(p.catchUp(), p.sync(), p.leader.Sync()); err != nil {
			t.Fatal(err)
		}
		tip := p.follower.Tip()
		if err := p.follower.roll(headerSize, false, p.follower.prev); err != nil {
			t.Fatal(err)
		}
		if seed%2 == 1 {
			p.follower.Close()
			p.followerMem = p.followerMem.Crash(seed, int(seed)*5).FS
			p.follower, _, _ = mustOpen(t, p.config(p.followerMem), 0)
		}
		if last := p.follower.Segments(); last[len(last)-1].First != tip.Index+1 || p.follower.Tip() != tip {
			t.Fatalf("segments %+v, tip %+v", last, p.follower.Tip())
		}
		if err := p.live(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := errors.Join(p.leader.Sync(), p.sync()); err != nil {
			t.Fatal(err)
		}
		c, err := p.compare()
		if err != nil || !c.Equal() {
			t.Fatalf("seed %d: %+v, %v", seed, c, err)
		}
		p.follower.Close()
		p.followerMem = p.followerMem.Crash(seed, 0).FS
		p.follower, _, _ = mustOpen(t, p.config(p.followerMem), 0)
		if p.follower.Tip() != p.leader.Tip() {
			t.Fatalf("seed %d: reopened with %+v; the leader has %+v", seed, p.follower.Tip(), p.leader.Tip())
		}
	}
}

// TestReplicaNewChain: a leader whose last entry was damaged begins a new chain in a new segment. A follower that
// has the entry follows, and opens again.
func TestReplicaNewChain(t *testing.T) {
	p := newPairOfLogs(t, 5)
	mustGrow(t, p.book, p.leader, 10)
	if err := errors.Join(p.catchUp(), p.sync(), p.leader.Sync()); err != nil {
		t.Fatal(err)
	}
	p.leader.Close()
	last := p.frames[len(p.frames)-1]
	file, err := p.leaderMem.Open(segmentPath(last.place.Segment))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte{^last.raw[20]}, last.place.Offset+20); err != nil {
		t.Fatal(err)
	}
	file.Close()
	var r Recovered
	p.leader, r, _ = mustOpen(t, p.config(p.leaderMem), last.point.Index)
	if len(r.Damage) != 1 || p.leader.Tip().CRC != 0 || p.leader.Tip().Index != last.point.Index {
		t.Fatalf("recovered %+v, tip %+v", r, p.leader.Tip())
	}
	if err := p.live(); err != nil {
		t.Fatal(err)
	}
	if place := p.leader.Place(&p.f); place.Prev != 0 || place.Segment != last.point.Index+1 {
		t.Errorf("the new chain begins at %+v", place)
	}
	if err := p.sync(); err != nil {
		t.Fatal(err)
	}
	p.follower.Close()
	p.follower, r, _ = mustOpen(t, p.config(p.followerMem), 0)
	if p.follower.Tip() != p.leader.Tip() || len(r.Damage) > 0 {
		t.Errorf("the follower reopened with %+v, %+v", p.follower.Tip(), r)
	}
	if err := p.holds(p.follower, 0); err != nil {
		t.Error(err)
	}
	c, err := p.compare()
	if err != nil || len(c.Differences) != 1 || c.Differences[0].Index != last.point.Index || c.Equal() {
		t.Errorf("compare: %+v, %v", c, err)
	}
}

// TestReplicaFull: without room for the next segment a replica says ErrFull, and goes on when there is room.
func TestReplicaFull(t *testing.T) {
	p := newPairOfLogs(t, 2)
	mustGrow(t, p.book, p.leader, 60)
	p.followerMem.SetCapacity(used(t, p.followerMem) + 2*testSegment)
	err := p.catchUp()
	if !errors.Is(err, ErrFull) || p.follower.Err() != nil {
		t.Fatalf("on a full disk: %v, %v", err, p.follower.Err())
	}
	if left := p.follower.room.Load(); left > p.frames[p.follower.Last()].place.Size {
		t.Errorf("%d bytes left", left)
	}
	p.followerMem.SetCapacity(1 << 30)
	if err := errors.Join(p.catchUp(), p.sync()); err != nil {
		t.Fatal(err)
	}
	if c, err := p.compare(); err != nil || !c.Equal() {
		t.Errorf("%+v, %v", c, err)
	}
}

// loadable returns a few frames at their place, of several terms.
func loadable(t testing.TB) (*Log, Place, []byte, []written) {
	t.Helper()
	b := newBook(6)
	l, _, _ := mustOpen(t, testConfig(newMem(t)), 0)
	for len(b.frames) < 30 {
		mustGrow(t, b, l, 1)
	}
	frames := b.frames[3:]
	var raw []byte
	var same []written
	for _, one := range frames {
		if one.place.Segment != frames[0].place.Segment || len(same) == 8 {
			break
		}
		raw, same = append(raw, one.raw...), append(same, one)
	}
	if len(same) < 3 {
		t.Fatal("too few frames in one segment")
	}
	return l, frames[0].place, raw, same
}

func TestLoad(t *testing.T) {
	l, place, raw, frames := loadable(t)
	var f Frames
	f.End(f.Begin(1, 1)) // what was in it before goes
	if err := l.Load(&f, place, raw); err != nil {
		t.Fatal(err)
	}
	if f.Len() != len(frames) || f.First() != frames[0].point.Index || f.Term() != frames[len(frames)-1].point.Term ||
		l.Place(&f) != place || &f.Raw()[0] != &raw[0] || f.Position(1).Offset != frames[1].place.Offset {
		t.Errorf("loaded %d frames: %+v", f.Len(), l.Place(&f))
	}
	before := bytes.Clone(raw)
	f.Reset()
	f.End(append(f.Begin(1, 1), "must not go into the bytes of the peer"...))
	if !bytes.Equal(raw, before) {
		t.Error("the peer's bytes were written to")
	}

	bad := func(name string, p Place, raw []byte) {
		t.Helper()
		damage := (*CorruptionError)(nil)
		if err := l.Load(&f, p, raw); !errors.As(err, &damage) || f.Len() != 0 || f.Bytes() != 0 {
			t.Errorf("%s: %v, %d frames", name, err, f.Len())
		}
	}
	for bit := range 8 * len(raw) {
		changed := bytes.Clone(raw)
		changed[bit/8] ^= 1 << (bit % 8)
		bad(fmt.Sprintf("bit %d", bit), place, changed)
	}
	whole := map[int]bool{}
	n := 0
	for _, one := range frames {
		n += len(one.raw)
		whole[n] = true
	}
	for n := range raw {
		if !whole[n] {
			bad(fmt.Sprintf("cut at %d", n), place, raw[:n])
		}
	}
	bad("zeros behind", place, append(bytes.Clone(raw), make([]byte, 40)...))
	bad("swapped", place, slices.Concat(frames[1].raw, frames[0].raw))
	bad("left out", place, slices.Concat(frames[0].raw, frames[2].raw))
	other := entry.LogID{9}
	foreign := &Log{seed: seedOf(other)}
	if err := foreign.Load(&f, place, raw); err == nil {
		t.Error("frames of another log are good")
	}
	for name, change := range map[string]func(*Place){
		"segment 0":       func(p *Place) { p.Segment = 0 },
		"segment behind":  func(p *Place) { p.Segment = frames[0].point.Index + 1 },
		"segment begins":  func(p *Place) { p.Segment = frames[0].point.Index },
		"offset odd":      func(p *Place) { p.Offset++ },
		"offset in head":  func(p *Place) { p.Offset = headerSize - 8 },
		"offset at head":  func(p *Place) { p.Offset = headerSize },
		"offset negative": func(p *Place) { p.Offset = -8 },
		"offset far":      func(p *Place) { p.Offset = 1<<63 - 8 },
		"size small":      func(p *Place) { p.Size = p.Offset + int64(len(raw)) - 1 },
		"size 0":          func(p *Place) { p.Size = 0 },
		"size negative":   func(p *Place) { p.Size = -1 << 63 },
		"size large":      func(p *Place) { p.Size = 1 << 62 },
	} {
		p := place
		change(&p)
		bad(name, p, raw)
	}
	var lower Frames
	gather(&lower, 4, 2)
	lower.finish(l.seed, 1, 4, 3, 1)
	binary.LittleEndian.PutUint64(lower.buf[lower.starts[1]+16:], 2)
	sum := seedOf(testID)
	b := lower.buf[lower.starts[1]:]
	binary.LittleEndian.PutUint32(b, crcOf(sum, b))
	bad("terms go down", place, lower.Raw())
	for name, c := range map[string]struct {
		index entry.Index
		prev  uint32
	}{"other index": {6, 0}, "other chain": {5, 1}} {
		// Frame 4, and after it one that is good but for this.
		var two Frames
		gather(&two, 4, 1)
		crc := two.finish(l.seed, 1, 4, 3, 1)
		var next Frames
		gather(&next, 5, 1)
		next.finish(l.seed, crc+c.prev, c.index, 3, 1)
		bad(name, place, slices.Concat(two.Raw(), next.Raw()))
	}
	begin := Place{Segment: frames[1].point.Index, Size: testSegment, Prev: frames[0].point.CRC, Offset: headerSize}
	if err := l.Load(&f, begin, frames[1].raw); err != nil {
		t.Errorf("at the beginning of a segment: %v", err)
	}
	begin.Prev++
	bad("other prev in the header", begin, frames[1].raw)
	bad("nothing", place, nil)
}

// crcOf returns the CRC of the frame at the start of b.
func crcOf(seed uint32, b []byte) uint32 {
	l := int(binary.LittleEndian.Uint32(b[4:]))
	return crc32.Update(seed, castagnoli, b[4:frameHeader+l])
}

// FuzzLoad changes good frames and their place. Load never panics, and accepts only runs of the frames as they
// were, where they were.
func FuzzLoad(f *testing.F) {
	l, place, raw, frames := loadable(f)
	f.Add(raw, uint64(place.Segment), place.Size, place.Prev, place.Offset)
	f.Add(raw[:len(frames[0].raw)], uint64(place.Segment), place.Size, place.Prev, place.Offset)
	f.Add(frames[1].raw, uint64(frames[1].point.Index), place.Size, frames[0].point.CRC, int64(headerSize))
	f.Add([]byte{}, uint64(1<<63), int64(-1), uint32(0), int64(1<<62))
	f.Add(bytes.Repeat([]byte{0xff}, 100), uint64(1), int64(testSegment), uint32(0), int64(headerSize))
	f.Fuzz(func(t *testing.T, b []byte, segment uint64, size int64, prev uint32, offset int64) {
		var got Frames
		p := Place{Segment: entry.Index(segment), Size: size, Prev: prev, Offset: offset}
		if err := l.Load(&got, p, b); err != nil {
			if got.Len() != 0 {
				t.Errorf("%d frames in spite of %v", got.Len(), err)
			}
			return
		}
		if !bytes.Equal(got.Raw(), b) || got.Len() == 0 {
			t.Errorf("%d bytes in %d frames of %d bytes", got.Bytes(), got.Len(), len(b))
		}
		at := bytes.Index(raw, b)
		if at < 0 || got.First() < frames[0].point.Index || got.Last() > frames[len(frames)-1].point.Index {
			t.Errorf("accepted what was never written: %x", b)
		}
		if p.Offset < headerSize || p.Offset%8 != 0 || p.Offset+int64(len(b)) > p.Size || got.First() < p.Segment {
			t.Errorf("accepted at %+v", p)
		}
		if (got.First() == p.Segment) != (p.Offset == headerSize) {
			t.Errorf("entry %d at %+v", got.First(), p)
		}
	})
}
