package catchup

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// liar changes answers as a script says: four bytes for each call.
type liar struct {
	t      testing.TB
	script []byte
	last   []byte // the answer before
	calls  int
}

// callsMax is more calls than any honest fetch of the logs in these tests takes.
const callsMax = 3000

func (l *liar) answer(_ int, _, b []byte) ([]byte, error) {
	if l.calls++; l.calls > callsMax {
		l.t.Fatalf("%d calls", l.calls)
	}
	if len(l.script) < 4 {
		return b, nil
	}
	op, at, value := l.script[0], int(l.script[1])|int(l.script[2])<<8, l.script[3]
	l.script = l.script[4:]
	out := append([]byte(nil), b...)
	switch op % 8 {
	case 0, 1: // honest
	case 2: // a byte is another one
		out[4+at%(len(out)-4)] ^= value
	case 3: // of its beginning, where all but the bytes of the log stands
		out[4+at%min(len(out)-4, 120)] ^= value
	case 4:
		out = out[:4+at%(len(out)-4)]
	case 5:
		out = append(out, make([]byte, at%100)...)
	case 6:
		if len(l.last) > 4 {
			out = append([]byte(nil), l.last...)
		}
	case 7:
		return nil, errCut
	}
	l.last = append(l.last[:0], b...)
	if value == 0 && op%8 >= 2 { // with the wrong checksum
		out[0]++
		return out, nil
	}
	return seal(out), nil
}

var honest = make([]byte, 4)

func addScripts(f *testing.F, places ...byte) {
	for op := range byte(8) {
		for _, at := range places {
			f.Add([]byte{op, at, 0, 1}, true)
			f.Add(append(append([]byte(nil), honest...), op, at, 0, 0x80, 0, 0, 0, 0, op, at+3, 1, 7), false)
		}
	}
}

// entriesOf are the entries of a log.
func entriesOf(t testing.TB, fsys vfs.FS) (list []string) {
	t.Helper()
	in, err := wal.Inspect(fsys, "log", func(e *entry.Entry, _ entry.Position) error {
		list = append(list, fmt.Sprintf("%d %d %d %d %x", e.Index, e.Term, e.TimeMS, e.Kind, e.Payload))
		return nil
	})
	if err != nil || len(in.Damage) > 0 {
		t.Fatalf("inspect: %+v, %v", in.Damage, err)
	}
	return list
}

// sameEntries fails unless a log holds the last entries of the host's, or, not whole, some of them that follow each other. How large its files
// are the peer tells, and it may lie.
func sameEntries(t testing.TB, h *host, fsys vfs.FS, whole bool) {
	t.Helper()
	all, list := entriesOf(t, h.mem), entriesOf(t, fsys)
	if len(list) == 0 {
		return
	}
	at := slices.Index(all, list[0])
	if at < 0 || len(list) > len(all)-at || !slices.Equal(all[at:at+len(list)], list) || whole && at+len(list) != len(all) {
		t.Fatalf("the log has %d entries, from the host's entry %d on, of %d", len(list), at+1, len(all))
	}
}

// liesElsewhere reports whether a log has segments that its host's does not have, or of other sizes.
func liesElsewhere(t testing.TB, host, fsys vfs.FS) bool {
	t.Helper()
	names, err := fsys.List("log")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue // prepared
		}
		own, err := fsys.Size("log/" + name)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := host.Size("log/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if theirs != own {
			t.Logf("%s has %d bytes, and %d on the host: %v", name, own, theirs, err)
			return true
		}
	}
	return false
}

// FuzzExtend has a log extended by a peer that lies in some answers, with the right checksums. It ends, after a bounded number of calls;
// what stands in the log then is what the peer's host has, and what was committed is there. Honest answers afterwards bring the rest,
// or show that entries stand elsewhere than on the host, if that was the lie: then the log is fetched anew.
func FuzzExtend(f *testing.F) {
	addScripts(f, 0, 20, 44, 70)
	f.Fuzz(func(t *testing.T, script []byte, ahead bool) {
		h := newHost(t, 12)
		h.lead(3, true)
		h.grow(30)
		l := serve(t, h)
		l.limit = 20_000
		r := newReplica(t)
		known := entry.Index(0)
		if ahead {
			known = h.log.Last() / 2
			extend(t, l, r.log, ExtendOptions{Upto: func(Standing) entry.Index { return known }})
			known = r.log.Last()
		}
		liar := &liar{t: t, script: script}
		l.after = liar.answer
		opt := ExtendOptions{Commit: known, Demand: Demand{Leader: true, MinTerm: 2}}
		_, err := Extend(t.Context(), l.client(), r.log, opt)
		if r.log.Last() < known {
			t.Errorf("the log ends with entry %d, and %d was committed: %v", r.log.Last(), known, err)
		}
		sameEntries(t, h, r.mem, false)
		if errors.Is(err, syscall.EFBIG) { // the lie was a size that this file system does not take: a node ends then, and starts again
			if err := r.log.Close(); err != nil {
				t.Fatal(err)
			}
			r.log = openLog(t, logConfig(r.mem))
		}
		l.after = nil
		_, err = Extend(t.Context(), l.client(), r.log, opt)
		if errors.Is(err, ErrDiffers) && liesElsewhere(t, h.mem, r.mem) {
			anew := newFolder(t)
			if _, err := Full(t.Context(), l.client(), anew, FullOptions{Demand: opt.Demand}); err != nil {
				t.Fatalf("full: %v", err)
			}
			sameEntries(t, h, anew.mem, true)
			return
		}
		if err != nil {
			t.Fatalf("an honest peer afterwards: %v", err)
		}
		sameEntries(t, h, r.mem, true)
	})
}

// FuzzFull has an empty folder filled by such a peer: it is called whole only if all that it holds is what the peer's host has.
func FuzzFull(f *testing.F) {
	addScripts(f, 44)
	f.Fuzz(func(t *testing.T, script []byte, inline bool) {
		synctest.Test(t, func(t *testing.T) {
			h := newOrigin(t, 3, 2, 15)
			l := serve(t, h)
			sink := newFolder(t)
			liar := &liar{t: t, script: script}
			l.after = liar.answer
			opt := FullOptions{Demand: Demand{Leader: true, MinTerm: 1}, Inline: inline}
			_, err := Full(t.Context(), l.client(), sink, opt)
			if err == nil && !sink.whole {
				t.Error("it is done, and the folder is not whole")
			}
			if sink.whole {
				sameEntries(t, h, sink.mem, false)
			}
			if errors.Is(err, syscall.EFBIG) {
				return // as in FuzzExtend
			}
			l.after = nil
			if _, err := Full(t.Context(), l.client(), sink, opt); err != nil {
				t.Fatalf("an honest peer afterwards: %v", err)
			}
			sameEntries(t, h, sink.mem, true)
		})
	})
}
