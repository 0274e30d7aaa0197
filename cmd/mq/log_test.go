package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
)

// TestVerifier gives it logs whose frames are good, but whose entries do not fit together.
func TestVerifier(t *testing.T) {
	records := []fact.Record{{Key: []byte("k"), Value: []byte("v")}, {}}
	appended := func(topic string, base fact.Offset, cum uint64) entry.Entry {
		return entry.Entry{Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte(topic), base, cum, nil, fact.Digest{}, records)}
	}
	withID := func(digest fact.Digest) entry.Entry {
		return entry.Entry{Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("t"), 0, 0, []byte("id"), digest, records)}
	}
	at := func(e entry.Entry, index entry.Index, term entry.Term, timeMS int64) entry.Entry {
		e.Index, e.Term, e.TimeMS = index, term, timeMS
		return e
	}
	kept := func(topic string, base fact.Offset) entry.Entry {
		return entry.Entry{Kind: fact.KindKept, Payload: fact.AppendKept(nil, []byte(topic), base, 0, []fact.KeptRecord{{Record: records[0]}})}
	}
	restored := entry.Entry{Kind: fact.KindRestored, Payload: fact.AppendRestored(nil, fact.RestoreStep)}
	marker := entry.Entry{Kind: fact.KindMarker}
	for name, test := range map[string]struct {
		log []entry.Entry
		ok  bool
	}{
		"two topics":            {[]entry.Entry{appended("a", 0, 0), appended("b", 7, 0), appended("a", 2, 2), marker, appended("b", 9, 2)}, true},
		"a request id":          {[]entry.Entry{withID(fact.DigestOf(records))}, true},
		"offsets with a gap":    {[]entry.Entry{appended("a", 0, 0), appended("a", 3, 2)}, false},
		"bytes with a gap":      {[]entry.Entry{appended("a", 0, 0), appended("a", 2, 3)}, false},
		"kept":                  {[]entry.Entry{appended("a", 0, 0), kept("a", 1)}, true},
		"kept and not there":    {[]entry.Entry{appended("a", 0, 0), kept("a", 2)}, false},
		"restored":              {[]entry.Entry{appended("a", 0, 0), restored, appended("a", fact.RestoreStep, 2)}, true},
		"restored for nothing":  {[]entry.Entry{appended("a", 0, 0), restored, appended("a", 2, 2)}, false},
		"offsets twice":         {[]entry.Entry{appended("a", 0, 0), appended("a", 0, 0)}, false},
		"another digest":        {[]entry.Entry{withID(fact.DigestOf(records[:1]))}, false},
		"an unknown kind":       {[]entry.Entry{{Kind: 99}}, false},
		"a payload that is bad": {[]entry.Entry{{Kind: fact.KindGroupMoved, Payload: []byte("x")}}, false},
		"a record cut off":      {[]entry.Entry{{Kind: fact.KindAppended, Payload: appended("a", 0, 0).Payload[:8]}}, false},
		"term goes backwards":   {[]entry.Entry{at(marker, 1, 2, 5), at(marker, 2, 1, 5)}, false},
		"time goes backwards":   {[]entry.Entry{at(marker, 1, 2, 5), at(marker, 2, 2, 4)}, false},
		"after a gap in the log": {
			[]entry.Entry{at(appended("a", 0, 0), 1, 1, 1), at(appended("a", 6, 5), 4, 1, 1)}, true, // 2 and 3 are damaged
		},
	} {
		v := newVerifier()
		var err error
		for i := range test.log {
			e := &test.log[i]
			if e.Index == 0 {
				e.Index = entry.Index(i + 1)
			}
			if err = v.check(e); err != nil {
				break
			}
		}
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// flicker is a folder in which a file is not there the first times that it is opened.
type flicker struct {
	vfs.FS
	suffix string
	times  int
}

func (f *flicker) OpenRead(name string) (vfs.File, error) {
	if strings.HasSuffix(name, f.suffix) && f.times > 0 {
		f.times--
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f.FS.OpenRead(name)
}

// TestLookTwice: what is gone at a second look was a change by the broker, what is still there is damage.
func TestLookTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := startServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.terminate()
	fsys, err := vfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fsys.Close()
	for _, test := range []struct {
		suffix string
		times  int
		places int
		ok     bool
	}{
		{"identity.json", 1, 0, true},
		{"identity.json", 2, 1, true},
		{"1.seg", looksMax - 1, 0, true},
		{"1.seg", 100, 0, false},
	} {
		l, err := lookTwice(context.Background(), &flicker{fsys, test.suffix, test.times})
		if (err == nil) != test.ok || (err == nil && len(l.problems) != test.places) {
			t.Errorf("%s not there %d times: %+v, %v", test.suffix, test.times, l, err)
		}
	}
}

// TestCompareTwice: what differs at one look only was a change by the broker, what differs at both is different.
func TestCompareTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := startServer(dir, "-segment-bytes", "1048576")
	if err != nil {
		t.Fatal(err)
	}
	s.terminate()
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	var folders [2]vfs.FS
	for i, dir := range []string{dir, copied} {
		fsys, err := vfs.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer fsys.Close()
		folders[i] = fsys
	}
	segment, err := folders[1].Open(logFolder + "/00000000000000000001.seg")
	if err != nil {
		t.Fatal(err)
	}
	defer segment.Close()
	for _, test := range []struct {
		name    string
		places  map[int]int64 // by look: where the copy differs
		missing int           // looks at which no segment can be opened
		found   int
		ok      bool
	}{
		{"never", nil, 0, 0, true},
		{"at the first look", map[int]int64{1: 500000}, 0, 0, true},
		{"somewhere else at each look", map[int]int64{1: 500000, 2: 600000}, 0, 0, true},
		{"at both", map[int]int64{1: 500000, 2: 500000}, 0, 1, true},
		{"dropped meanwhile", nil, looksMax - 1, 0, true},
		{"missing", nil, 100, 0, false},
	} {
		write := func(place int64, x byte) {
			if _, err := segment.WriteAt([]byte{x}, place); err != nil {
				t.Fatal(err)
			}
		}
		restore := func() {
			for _, place := range test.places {
				write(place, 0)
			}
		}
		b := &turning{FS: folders[1], missing: test.missing, turn: func(look int) {
			restore()
			if place := test.places[look]; place > 0 {
				write(place, 1)
			}
		}}
		c, err := compareTwice(t.Context(), folders[0], b)
		restore()
		if (err == nil) != test.ok || err == nil && (len(c.Differences) != test.found || c.Equal() != (test.found == 0)) {
			t.Errorf("%s: %+v, %v", test.name, c, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := compareTwice(ctx, folders[0], folders[1]); err != errInterrupted {
		t.Errorf("interrupted: %v", err)
	}
}

// turning is a folder that changes before each look at it, which begins with a list of its files.
type turning struct {
	vfs.FS
	look, missing int
	turn          func(look int)
}

func (f *turning) List(dir string) ([]string, error) {
	f.look++
	f.turn(f.look)
	return f.FS.List(dir)
}

func (f *turning) OpenRead(name string) (vfs.File, error) {
	if f.look <= f.missing {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f.FS.OpenRead(name)
}
