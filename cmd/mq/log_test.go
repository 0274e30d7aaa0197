package main

import (
	"context"
	"io/fs"
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
	appended := func(topic string, base fact.Offset) entry.Entry {
		return entry.Entry{Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte(topic), base, nil, fact.Digest{}, records)}
	}
	withID := func(digest fact.Digest) entry.Entry {
		return entry.Entry{Kind: fact.KindAppended, Payload: fact.AppendAppended(nil, []byte("t"), 0, []byte("id"), digest, records)}
	}
	at := func(e entry.Entry, index entry.Index, term entry.Term, timeMS int64) entry.Entry {
		e.Index, e.Term, e.TimeMS = index, term, timeMS
		return e
	}
	marker := entry.Entry{Kind: fact.KindMarker}
	for name, test := range map[string]struct {
		log []entry.Entry
		ok  bool
	}{
		"two topics":            {[]entry.Entry{appended("a", 0), appended("b", 7), appended("a", 2), marker, appended("b", 9)}, true},
		"a request id":          {[]entry.Entry{withID(fact.DigestOf(records))}, true},
		"offsets with a gap":    {[]entry.Entry{appended("a", 0), appended("a", 3)}, false},
		"offsets twice":         {[]entry.Entry{appended("a", 0), appended("a", 0)}, false},
		"another digest":        {[]entry.Entry{withID(fact.DigestOf(records[:1]))}, false},
		"an unknown kind":       {[]entry.Entry{{Kind: 99}}, false},
		"a payload that is bad": {[]entry.Entry{{Kind: fact.KindGroupMoved, Payload: []byte("x")}}, false},
		"a record cut off":      {[]entry.Entry{{Kind: fact.KindAppended, Payload: appended("a", 0).Payload[:7]}}, false},
		"term goes backwards":   {[]entry.Entry{at(marker, 1, 2, 5), at(marker, 2, 1, 5)}, false},
		"time goes backwards":   {[]entry.Entry{at(marker, 1, 2, 5), at(marker, 2, 2, 4)}, false},
		"after a gap in the log": {
			[]entry.Entry{at(appended("a", 0), 1, 1, 1), at(appended("a", 6), 4, 1, 1)}, true, // 2 and 3 are damaged
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
