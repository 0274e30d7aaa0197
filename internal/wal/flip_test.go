package wal

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
	"example.com/mq/test/report"
)

// bytesFS is a folder of files that can only be read. It panics on everything else.
type bytesFS struct {
	vfs.FS
	files map[string][]byte
}

func (b *bytesFS) List(string) ([]string, error) { return slices.Sorted(maps.Keys(b.files)), nil }

func (b *bytesFS) Size(name string) (int64, error) { return int64(len(b.files[path.Base(name)])), nil }

func (b *bytesFS) OpenRead(name string) (vfs.File, error) {
	data, ok := b.files[path.Base(name)]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return &bytesFile{r: bytes.NewReader(data)}, nil
}

type bytesFile struct {
	vfs.File
	r *bytes.Reader
}

func (f *bytesFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.r.ReadAt(p, off)
	if n == len(p) && err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *bytesFile) Close() error { return nil }

// smallLog makes a log of a sealed and an active segment, 4 KiB each, that ends with an idle marker, which
// proves all that comes before. It returns the files and what is in them.
func smallLog(t testing.TB) (*bytesFS, *seen) {
	t.Helper()
	mem := newMem(t)
	cfg := testConfig(mem)
	cfg.SegmentBytes = segmentBytesMin
	l, _, _ := mustOpen(t, cfg, 0)
	for n := 1; len(l.Segments()) < 2 || l.room.Load() > 1200; n = n%3 + 1 {
		mustPut(t, l, n)
	}
	if err := mark(l); err != nil {
		t.Fatal(err)
	}
	l.Close()
	files := make(map[string][]byte)
	want := new(seen)
	in, err := Inspect(mem, "log", want.visit)
	if err != nil || len(in.Damage) > 0 || in.Torn != nil || len(in.Segments) != 2 {
		t.Fatalf("inspect: %+v, %v", in, err)
	}
	for _, s := range in.Segments {
		files[segmentName(s.First)] = readFile(t, mem, segmentPath(s.First))
	}
	return &bytesFS{files: files}, want
}

// recoverBytes runs the part of Open that reads and decides.
func recoverBytes(b *bytesFS, after entry.Index, visit func(*entry.Entry, entry.Position) error) (Recovered, error) {
	list, err := listSegments(b, "log")
	if err != nil {
		return Recovered{}, err
	}
	r := &recovery{walker: walker{seed: seedOf(testID)}, fs: b, id: testID, segments: list, after: after, visit: visit}
	err = r.run()
	return r.found, err
}

// TestEveryBitFlipped flips every single bit of a small log. Wherever the bit is, the log does not open as
// if nothing had happened, and no altered entry is handed out; if an entry may be lost that was proven
// to be acknowledged, the log does not open at all.
func TestEveryBitFlipped(t *testing.T) {
	b, want := smallLog(t)
	last := len(want.entries) - 1 // the marker
	sealedFirst, activeFirst := want.at[0].Segment, want.at[last].Segment
	sealedEnd := int64(0)
	for _, p := range want.at {
		if p.Segment == sealedFirst {
			sealedEnd = p.End()
		}
	}
	n := 0
	visit := func(e *entry.Entry, p entry.Position) error {
		for want.entries[n].Index < e.Index { // Inspect skips what is damaged
			n++
		}
		w := &want.entries[n]
		if e.Index != w.Index || e.Term != w.Term || e.Commit != w.Commit || e.TimeMS != w.TimeMS || e.Kind != w.Kind ||
			!bytes.Equal(e.Payload, w.Payload) || p != want.at[n] {
			t.Fatalf("entry %d was handed out altered", e.Index)
		}
		n++
		return nil
	}
	flips := 0
	for name, data := range b.files {
		first, _ := parseSegmentName(name)
		for i := range data {
			off := int64(i)
			for bit := range 8 {
				if invariant.Enabled && bit != i%8 { // the race detector makes it slow, and nothing runs at the same time
					continue
				}
				flips++
				data[i] ^= 1 << bit
				n = 0
				found, err := recoverBytes(b, 0, visit)
				visited := n
				n = 0
				in, inspectErr := Inspect(b, "log", visit)
				data[i] ^= 1 << bit

				var c *CorruptionError
				if err != nil && !errors.As(err, &c) {
					t.Fatalf("%s byte %d bit %d: %v", name, i, bit, err)
				}
				clean := err == nil && found.Torn == nil && len(found.Damage) == 0
				if clean {
					t.Fatalf("%s byte %d bit %d: not noticed", name, i, bit)
				}
				if inspectErr != nil || in.Torn == nil && len(in.Damage) == 0 {
					t.Fatalf("%s byte %d bit %d: not noticed by Inspect: %v", name, i, bit, inspectErr)
				}
				switch {
				case first == sealedFirst && off >= sealedEnd: // unused; all entries are there
					if err != nil || visited != len(want.entries) {
						t.Fatalf("%s byte %d bit %d, behind the last frame: visited %d, %v", name, i, bit, visited, err)
					}
				case first == activeFirst && off >= want.at[last].Offset: // the marker, or behind it
					if err == nil && visited < last {
						t.Fatalf("%s byte %d bit %d: opened with %d entries of %d", name, i, bit, visited, last)
					}
				case err == nil: // what is proven to be acknowledged
					t.Fatalf("%s byte %d bit %d: opened as %+v", name, i, bit, found)
				}
			}
		}
	}
	report.Count(t, "bits flipped in a log", int64(flips))
	t.Logf("%d flips", flips)
}

// TestEveryBitOfLastFrame flips every bit of a last frame that nothing proves. It contains no zeros, so no
// lost sector can explain the damage, and the log does not open.
func TestEveryBitOfLastFrame(t *testing.T) {
	mem := newMem(t)
	l, _, _ := mustOpen(t, testConfig(mem), 0)
	mustPut(t, l, 3)
	var f Frames
	f.End(append(f.Begin(2, testTime), payloadOf(4, 1500)...))
	if _, err := l.Append(&f, 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	at := new(seen)
	if _, err := Inspect(mem, "log", at.visit); err != nil {
		t.Fatal(err)
	}
	data := readFile(t, mem, segmentPath(1))
	b := &bytesFS{files: map[string][]byte{segmentName(1): data}}
	p := at.at[3]
	for i := p.Offset; i < p.End(); i++ {
		for bit := range 8 {
			if invariant.Enabled && bit != int(i)%8 {
				continue
			}
			data[i] ^= 1 << bit
			found, err := recoverBytes(b, 0, nil)
			data[i] ^= 1 << bit
			if c := (*CorruptionError)(nil); !errors.As(err, &c) {
				t.Errorf("byte %d of the frame, bit %d: %+v, %v", i-p.Offset, bit, found, err)
			}
		}
	}
}
