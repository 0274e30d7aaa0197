package wal

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
)

// TestRepairErrors lets each operation of a Repair fail, of an open and of a closed log. The segment is the old one or
// the new one; what failed is not tried again; and the next process repairs it.
func TestRepairErrors(t *testing.T) {
	failed := 0
	check := func(kind faultfs.Kind, k int, done, open bool) bool {
		what := fmt.Sprintf("%s %d, done %t, open %t", kind, k, done, open)
		p := newPatient(t, uint64(k%3))
		s := p.peer.Segments()[1]
		name := segmentPath(s.First)
		flip(t, p.mem, name, headerSize+20)
		writeFile(t, p.mem, name+damagedSuffix, []byte("of an earlier time"))
		old, fresh := readFile(t, p.mem, name), readFile(t, p.good, name)
		p.log.Close()
		cfg := p.config()
		f := faultfs.New(p.mem)
		cfg.FS = f
		p.log, _, _ = mustOpen(t, cfg, s.Last)
		syncs := 0
		injected := f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO, Done: done})
		var err error
		if open {
			_, err = p.healOpen(s)
		} else {
			_, err = p.heal(f, s, s.Last)
		}
		hit := len(injected.Hits()) > 0
		syncs = f.Count(faultfs.Sync)
		if b := readFile(t, p.mem, name); !bytes.Equal(b, old) && !bytes.Equal(b, fresh) {
			t.Errorf("%s: neither old nor new", what)
		}
		for c := range p.mem.CrashStates(uint64(k), 8) {
			if b := readFile(t, c.FS, name); !bytes.Equal(b, old) && !bytes.Equal(b, fresh) {
				t.Fatalf("%s: neither old nor new after a power cut\n%v", what, c)
			}
		}
		if _, err := p.mem.Size(name + partSuffix); err == nil && hit && (kind == faultfs.Sync || kind == faultfs.Write) {
			t.Errorf("%s: what may not be on the disk is there for the next process", what)
		}
		changes := kind != faultfs.Read && kind != faultfs.Open && kind != faultfs.Size && kind != faultfs.List
		if err == nil && hit && changes {
			t.Errorf("%s: no error", what)
		}
		if open && p.log.Err() != nil {
			failed++
			if err := put(p.log, 1); !errors.Is(err, ErrFailed) {
				t.Errorf("%s: append: %v", what, err)
			}
			if _, err := p.healOpen(s); !errors.Is(err, ErrFailed) || f.Count(faultfs.Sync) != syncs {
				t.Errorf("%s: again: %v", what, err)
			}
		} else if open && err != nil && changes {
			t.Errorf("%s: the log goes on after %v", what, err)
		}
		p.log.Close()
		if _, err := p.heal(p.mem, s, s.Last); err != nil {
			t.Errorf("%s: the next one: %v", what, err)
		}
		if err := p.same(p.mem); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if open := p.mem.OpenFiles(); len(open) > 0 {
			t.Errorf("%s: open afterwards: %v", what, open)
		}
		return hit
	}
	for _, kind := range append(faultfs.Changes(), faultfs.Open, faultfs.Read, faultfs.Size, faultfs.List) {
		for _, done := range []bool{false, true} {
			for _, open := range []bool{false, true} {
				for k := 1; check(kind, k, done, open); k++ {
				}
			}
		}
	}
	if failed < 5 {
		t.Errorf("only %d faults made the log fail", failed)
	}
}

// TestRepairFull: a full disk is ErrFull, as often as it is tried, and costs the copy of the damaged file first.
func TestRepairFull(t *testing.T) {
	for _, open := range []bool{false, true} {
		p := newPatient(t, 3)
		s := p.peer.Segments()[1]
		name := segmentPath(s.First)
		flip(t, p.mem, name, headerSize+20)
		heal := func(fsys vfs.FS) error {
			var err error
			if open {
				_, err = p.healOpen(s)
			} else {
				_, err = p.heal(fsys, s, s.Last)
			}
			return err
		}
		usage, err := p.mem.Usage()
		if err != nil {
			t.Fatal(err)
		}
		p.mem.SetCapacity(usage.TotalBytes - usage.FreeBytes + s.Bytes/2)
		for range 3 {
			if err := heal(p.mem); !errors.Is(err, ErrFull) || p.log.Err() != nil {
				t.Fatalf("open %t: %v, log %v", open, err, p.log.Err())
			}
		}
		p.mem.SetCapacity(usage.TotalBytes - usage.FreeBytes + s.Bytes + s.Bytes/2)
		if err := heal(p.mem); err != nil {
			t.Fatalf("open %t: %v", open, err)
		}
		if _, err := p.mem.Size(name + damagedSuffix); !errors.Is(err, errNotExist) {
			t.Errorf("open %t: the damaged file was kept: %v", open, err)
		}
		if err := p.same(p.mem); err != nil {
			t.Errorf("open %t: %v", open, err)
		}
		p.mem.SetCapacity(usage.TotalBytes)
	}
}

// TestRepairResume: what came before a kill need not come again, and what a power cut spoiled is found.
func TestRepairResume(t *testing.T) {
	spoiled, resumed := 0, 0
	for seed := range uint64(30) {
		p := newPatient(t, seed)
		s := p.peer.Segments()[1]
		p.log.Close()
		flip(t, p.mem, segmentPath(s.First), headerSize+20)
		r, err := NewRepair(p.mem, "log", testID, s.First, s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1000+p.rng.IntN(int(s.Bytes)-1000))
		if _, err := p.peer.ReadSegmentAt(b, s.First, 0); err != nil {
			t.Fatal(err)
		}
		for len(b) > 0 {
			n := 1 + p.rng.IntN(len(b))
			if err := r.Write(b[:n]); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		have := r.Have()
		mem := p.mem.Clone()
		if seed%2 == 1 {
			mem = p.mem.Crash(seed, int(seed)).FS
		}
		r.Close()
		for try := 0; ; try++ {
			r, err := NewRepair(mem, "log", testID, s.First, s.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if seed%2 == 0 && r.Have() != have {
				t.Errorf("seed %d: %d bytes are there, want %d", seed, r.Have(), have)
			}
			if try == 0 && r.Have() > 0 {
				resumed++
			}
			if err := p.feed(r); err != nil {
				t.Fatal(err)
			}
			_, err = r.Finish(s.Last)
			r.Close()
			if err == nil {
				break
			}
			if spoiled++; !errors.As(err, new(*CorruptionError)) || try > 0 {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if err := p.same(mem); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	if spoiled == 0 || resumed < 15 {
		t.Errorf("%d part files were spoiled, %d resumed", spoiled, resumed)
	}
}
