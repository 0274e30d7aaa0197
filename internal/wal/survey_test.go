package wal

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// TestSurvey damages a log of four segments in one way after the other.
func TestSurvey(t *testing.T) {
	p := newPatient(t, 4)
	list := p.peer.Segments()
	end := p.peer.Last()
	a, b, c, z := list[0], list[1], list[2], list[len(list)-1]
	one := func(i entry.Index) written { return p.frames[i-1] }
	hit := func(t *testing.T, m *memfs.FS, i entry.Index) {
		flip(t, m, segmentPath(one(i).place.Segment), one(i).place.Offset+20)
	}
	remove := func(t *testing.T, m *memfs.FS, first entry.Index) {
		if err := errors.Join(m.Remove(segmentPath(first)), m.SyncDir("log")); err != nil {
			t.Fatal(err)
		}
	}
	middle := (b.First + b.Last) / 2
	good := func(s Segment) SegmentSurvey {
		return SegmentSurvey{First: s.First, Last: s.Last, Bytes: s.Bytes, Sealed: s.Sealed, Good: s.Last}
	}
	for _, test := range []struct {
		name  string
		after entry.Index
		do    func(t *testing.T, m *memfs.FS)
		whole entry.Index
		last  entry.Index
		want  []SegmentSurvey // of those that are not intact; Damage and Err are counted only
		torn  bool
	}{
		{name: "nothing", do: func(t *testing.T, m *memfs.FS) {}, whole: end, last: end},
		{name: "a frame", do: func(t *testing.T, m *memfs.FS) { hit(t, m, middle) }, whole: middle - 1, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: middle - 1, Resume: middle + 1, Damage: make([]Damage, 1)}}},
		{name: "a frame that is covered", after: middle, do: func(t *testing.T, m *memfs.FS) { hit(t, m, middle) }, whole: end, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: middle - 1, Resume: middle + 1, Damage: make([]Damage, 1)}}},
		{name: "two frames, one of them covered", after: middle, do: func(t *testing.T, m *memfs.FS) { hit(t, m, middle-2); hit(t, m, middle+2) }, whole: middle + 1, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: middle - 3, Resume: middle + 3, Damage: make([]Damage, 2)}}},
		{name: "the last frame of a segment", do: func(t *testing.T, m *memfs.FS) { hit(t, m, b.Last) }, whole: b.Last - 1, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: b.Last - 1, Damage: make([]Damage, 1)}}},
		{name: "a header", do: func(t *testing.T, m *memfs.FS) { flip(t, m, segmentPath(b.First), 33) }, whole: a.Last, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: a.Last, Resume: b.First, Damage: make([]Damage, 1)}}},
		{name: "a missing segment", do: func(t *testing.T, m *memfs.FS) { remove(t, m, b.First) }, whole: a.Last, last: end,
			want: []SegmentSurvey{{First: b.First, Last: b.Last, Sealed: true, Missing: true, Good: a.Last}}},
		{name: "two missing segments", do: func(t *testing.T, m *memfs.FS) { remove(t, m, b.First); remove(t, m, c.First) }, whole: a.Last, last: end,
			want: []SegmentSurvey{{First: b.First, Last: c.Last, Sealed: true, Missing: true, Good: a.Last}}},
		{name: "the head is missing", do: func(t *testing.T, m *memfs.FS) { remove(t, m, a.First) }, whole: 0, last: end,
			want: []SegmentSurvey{{First: 1, Last: a.Last, Sealed: true, Missing: true}}},
		{name: "the head is missing, and covered", after: a.Last, do: func(t *testing.T, m *memfs.FS) { remove(t, m, a.First) }, whole: end, last: end},
		{name: "the head is missing, and covered in part", after: a.Last - 1, do: func(t *testing.T, m *memfs.FS) { remove(t, m, a.First) }, whole: a.Last - 1, last: end,
			want: []SegmentSurvey{{First: a.Last, Last: a.Last, Sealed: true, Missing: true, Good: a.Last - 1}}},
		{name: "an empty file", do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(b.First), func([]byte) []byte { return nil })
		}, whole: a.Last, last: end, want: []SegmentSurvey{{First: b.First, Last: b.Last, Sealed: true, Good: a.Last, Damage: make([]Damage, 2)}}},
		{name: "a short file", do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(b.First), func(x []byte) []byte { return x[:one(middle).place.Offset] })
		}, whole: middle - 1, last: end, want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: one(middle).place.Offset, Sealed: true, Good: middle - 1, Damage: make([]Damage, 1)}}},
		{name: "a long file", do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(b.First), func(x []byte) []byte { return append(x, make([]byte, 5)...) })
		}, whole: end, last: end, want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes + 5, Sealed: true, Good: b.Last, Damage: make([]Damage, 1)}}},
		{name: "rubbish behind", do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(b.First), func(x []byte) []byte { x[len(x)-1] = 1; return x })
		}, whole: end, last: end, want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: b.Bytes, Sealed: true, Good: b.Last, Damage: make([]Damage, 1)}}},
		{name: "another segment's file", do: func(t *testing.T, m *memfs.FS) {
			other := readFile(t, m, segmentPath(c.First))
			rewrite(t, m, segmentPath(b.First), func(x []byte) []byte { return other })
		}, whole: a.Last, last: end, want: []SegmentSurvey{{First: b.First, Last: b.Last, Bytes: c.Bytes, Sealed: true, Good: a.Last, Damage: make([]Damage, 2)}}},
		{name: "a proven frame of the last segment", do: func(t *testing.T, m *memfs.FS) { hit(t, m, z.First) }, whole: z.First - 1, last: end,
			want: []SegmentSurvey{{First: z.First, Last: end, Bytes: z.Bytes, Good: z.First - 1, Resume: z.First + 1, Damage: make([]Damage, 1)}}},
		{name: "the last segment's end", do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(z.First), func(x []byte) []byte { return x[:len(x)-8] })
		}, whole: end, last: end, want: []SegmentSurvey{{First: z.First, Last: end, Bytes: z.Bytes - 8, Good: end, Damage: make([]Damage, 1)}}},
		{name: "a torn write", torn: true, do: func(t *testing.T, m *memfs.FS) {
			rewrite(t, m, segmentPath(z.First), func(x []byte) []byte { x[len(x)-1] = 1; return x })
		}, whole: end, last: end},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := p.good.Clone()
			test.do(t, m)
			before := m.CrashCount()
			got, err := TakeSurvey(m, "log", testID, test.after)
			if err != nil || m.CrashCount() != before {
				t.Fatal(err)
			}
			var bad []string
			for _, s := range got.Segments {
				if !s.Intact() {
					bad = append(bad, summary(s))
				}
			}
			var want []string
			for _, s := range test.want {
				want = append(want, summary(s))
			}
			if fmt.Sprint(bad) != fmt.Sprint(want) || got.Whole != test.whole || got.Last != test.last || (got.Torn != nil) != test.torn {
				t.Errorf("got %v\nwant %v\nwhole %d, last %d, torn %v; want %d, %d, %t", bad, want, got.Whole, got.Last, got.Torn, test.whole, test.last, test.torn)
			}
			if got.Intact() != (len(want) == 0) {
				t.Errorf("intact: %t", got.Intact())
			}
			if len(want) == 0 && !test.torn && test.after == 0 {
				for i, s := range got.Segments {
					if summary(s) != summary(good(list[i])) {
						t.Errorf("%v, want %v", summary(s), summary(good(list[i])))
					}
				}
			}
		})
	}
}

func summary(s SegmentSurvey) string {
	return fmt.Sprintf("%d-%d %d bytes sealed %t missing %t good %d resume %d, %d places", s.First, s.Last, s.Bytes, s.Sealed, s.Missing, s.Good, s.Resume, len(s.Damage))
}

// TestSurveyUnreadable: files that cannot be read are reported, and the others are looked at.
func TestSurveyUnreadable(t *testing.T) {
	p := newPatient(t, 4)
	list := p.peer.Segments()
	end := p.peer.Last()
	for i, s := range list {
		for _, kind := range []faultfs.Kind{faultfs.Open, faultfs.Read} {
			f := faultfs.New(p.good)
			f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Name: segmentPath(s.First), Always: true, Err: syscall.EIO})
			got, err := TakeSurvey(f, "log", testID, 0)
			if err != nil || len(got.Segments) != len(list) {
				t.Fatal(got, err)
			}
			for k := range got.Segments {
				one := &got.Segments[k]
				if one.Intact() != (k != i) || k == i && (!errors.Is(one.Err, syscall.EIO) || one.Good != s.First-1) {
					t.Errorf("%s error in %d: %+v", kind, s.First, *one)
				}
			}
			last := end
			if i == len(list)-1 {
				last = s.First - 1
			}
			if got.Whole != s.First-1 || got.Last != last {
				t.Errorf("whole up to %d, last %d; want %d, %d", got.Whole, got.Last, s.First-1, last)
			}
			if got, _ := TakeSurvey(f, "log", testID, s.First); i < len(list)-1 && got.Whole != s.First && s.Last > s.First {
				t.Errorf("covered up to %d: whole up to %d", s.First, got.Whole)
			}
		}
	}
	f := faultfs.New(p.good)
	f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.List}, Err: syscall.EIO})
	if _, err := TakeSurvey(f, "log", testID, 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("the folder cannot be listed: %v", err)
	}
	for _, m := range []vfs.FS{memfs.New(), newMem(t)} {
		if got, err := TakeSurvey(m, "log", testID, 7); err != nil || len(got.Segments) != 0 || got.Whole != 7 {
			t.Errorf("no log: %+v, %v", got, err)
		}
	}
}

// TestSurveyMark: a damaged mark is reported; without it the log opens.
func TestSurveyMark(t *testing.T) {
	p := newPatient(t, 4)
	p.log.Close()
	b := encodeMark(testID, 3)
	b[33] ^= 1
	writeFile(t, p.mem, "log/"+markName, b)
	got, err := TakeSurvey(p.mem, "log", testID, 0)
	if err != nil || got.Mark == nil || got.Intact() || got.Whole != p.peer.Last() {
		t.Errorf("%+v, %v", got, err)
	}
	if _, _, err := Open(p.config(), 0, nil); err == nil {
		t.Error("a damaged mark was accepted")
	}
	for range 2 {
		if err := DropMark(p.mem, "log"); err != nil {
			t.Fatal(err)
		}
	}
	l, _, _ := mustOpen(t, p.config(), 0)
	if l.Last() != p.peer.Last() {
		t.Errorf("last %d", l.Last())
	}
}
