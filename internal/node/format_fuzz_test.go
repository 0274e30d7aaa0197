package node

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"runtime"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/vfs/memfs"
)

// The small files of a data folder. Whatever stands in one, it is taken only with the right checksum over what it is taken for; it
// is never changed by reading; and reading takes memory in proportion to it.

// fileWith is a folder with one file.
func fileWith(t testing.TB, name string, content []byte) *memfs.FS {
	t.Helper()
	m := memfs.New()
	f, err := m.Create(name)
	if err == nil && len(content) > 0 {
		_, err = f.WriteAt(content, 0)
	}
	if err = errors.Join(err, f.Sync(), f.Close(), m.SyncDir(".")); err != nil {
		t.Fatal(err)
	}
	return m
}

// contentOf returns a file; nil if there is none.
func bytesOf(t testing.TB, m *memfs.FS, name string) []byte {
	t.Helper()
	f, err := m.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && size > 0 {
		t.Fatal(err)
	}
	return b
}

// bounded fails if reading n bytes takes much more memory than they have.
func bounded(t testing.TB, n int, read func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read()
	runtime.ReadMemStats(&after)
	if spent, most := after.TotalAlloc-before.TotalAlloc, uint64(256<<10+4*n); spent > most {
		t.Errorf("%d bytes took %d bytes of memory", n, spent)
	}
}

// FuzzIdentity: the file is taken only if it is, byte for byte, what its content is written as.
func FuzzIdentity(f *testing.F) {
	id, err := makeIdentity(bytes.NewReader(bytes.Repeat([]byte{0xa5}, 32)))
	if err != nil {
		f.Fatal(err)
	}
	for range 2 {
		text, err := id.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(bytes.ReplaceAll(text, []byte("log_id"), []byte("Log_id")))
		id.LogID, id.Ready = "", !id.Ready
	}
	f.Add([]byte(`{"format":1,"format":1}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, p []byte) {
		m := fileWith(t, identityFile, p)
		var got *identity
		var err error
		bounded(t, len(p), func() { got, err = readIdentity(m) })
		if (got == nil) == (err == nil) {
			t.Fatalf("%v, %v", got, err)
		}
		if err == nil {
			if again, err := got.encode(); err != nil || !bytes.Equal(again, p) || got.Check != got.check() {
				t.Errorf("%q is written as %q, %v", p, again, err)
			}
			if n := got.nodeID(); n.String() != string(bytes.ToLower([]byte(got.NodeID))) {
				t.Errorf("node id %v of %q", n, got.NodeID)
			}
		}
		// A start with it writes nothing, unless it is sound.
		before := m.Clone()
		if _, err := loadIdentity(m, nil, false); err != nil && !bytes.Equal(bytesOf(t, m, identityFile), bytesOf(t, before, identityFile)) {
			t.Errorf("a file that is refused was changed")
		}
	})
}

// FuzzPromise: as FuzzIdentity; and what is taken comes back when it is promised again.
func FuzzPromise(f *testing.F) {
	for _, promise := range []promiseText{
		{Format: promiseFormat}, {Format: promiseFormat, Epoch: 3, Leader: "000102030405060708090a0b0c0d0e0f", LeaseMS: 2500, First: 7, WholeAt: 9, Alone: true},
		{Format: promiseFormat, Epoch: 1<<64 - 1, Leader: "FF0102030405060708090a0b0c0d0e0f"},
		{Format: promiseFormat, LeaseMS: 1 << 60}, {Format: promiseFormat, LeaseMS: -5},
	} {
		text, err := promise.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		m := fileWith(t, promiseFile, p)
		var got *promises
		var err error
		bounded(t, len(p), func() { got, err = loadPromises(m) })
		if err != nil {
			if got != nil {
				t.Fatal("promises in spite of an error")
			}
			return
		}
		var text promiseText
		if err := json.Unmarshal(p, &text); err != nil || text.Check != text.check() || text.Format != promiseFormat {
			t.Fatalf("%q is taken: %v", p, err)
		}
		promise := got.Promise()
		var leader pair.NodeID
		if text.Leader != "" {
			if err := leader.UnmarshalText([]byte(text.Leader)); err != nil {
				t.Errorf("%q is taken: %v", p, err)
			}
		}
		if promise.Epoch != entry.Term(text.Epoch) || promise.First != entry.Index(text.First) || promise.WholeAt != entry.Index(text.WholeAt) ||
			promise.Alone != text.Alone || promise.Leader != leader {
			t.Errorf("%q is read as %+v", p, promise)
		}
		if text.LeaseMS < 0 || promise.Lease < 0 || promise.Lease/time.Millisecond != time.Duration(text.LeaseMS) {
			t.Errorf("a lease of %d ms is read as %v", text.LeaseMS, promise.Lease)
		}
		if err := got.SetPromise(promise); err != nil {
			t.Fatal(err)
		}
		if again, err := loadPromises(m); err != nil || again.Promise() != promise {
			t.Errorf("%+v comes back as %+v, %v", promise, again, err)
		}
	})
}

// FuzzNotes: the notes of a clean stop, of a restore and of a cut.
func FuzzNotes(f *testing.F) {
	for _, add := range []func(m *memfs.FS) error{
		func(m *memfs.FS) error { return writeCleanAt(m, 12) },
		func(m *memfs.FS) error { return writeRestored(m, restored{Above: 1 << 40, Floor: 1 << 41}) },
		func(m *memfs.FS) error { return MarkRestored(m, 0) },
	} {
		m := memfs.New()
		if err := add(m); err != nil {
			f.Fatal(err)
		}
		for _, name := range []string{cleanFile, restoredFile} {
			if text := bytesOf(f, m, name); text != nil {
				f.Add(text)
			}
		}
	}
	cut := cutNote{After: 4, Number: 1, Above: 1 << 30}
	cut.Check = cut.check()
	text, err := json.Marshal(cut)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"after":4,"after":5,"number":1,"above":0}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, p []byte) {
		bounded(t, len(p), func() {
			if last, err := ReadClean(fileWith(t, cleanFile, p)); err == nil {
				var c clean
				if json.Unmarshal(p, &c) != nil || c.Check != (clean{LastIndex: last}).check() {
					t.Errorf("%q is a clean stop at %d", p, last)
				}
			}
		})
		m := fileWith(t, restoredFile, p)
		r, noted, err := readRestored(m)
		if err == nil && (!noted || r.Check != r.check()) {
			t.Errorf("%q is read as %+v", p, r)
		}
		// A restore on top of it keeps what was noted, and does not write over a note that nobody understands.
		if again := MarkRestored(m, 7); (again == nil) != (err == nil) {
			t.Errorf("%q is %v to a start, and %v to a restore", p, err, again)
		} else if now, noted, nowErr := readRestored(m); err == nil && (nowErr != nil || !noted || now.Above < max(r.Above, 7)) {
			t.Errorf("%+v became %+v", r, now)
		} else if err != nil && !bytes.Equal(bytesOf(t, m, restoredFile), p) {
			t.Error("a note that is refused was written over")
		}
		if c, cutting, err := readCut(fileWith(t, cutFile, p)); err == nil && (!cutting || c.Check != c.check()) {
			t.Errorf("%q is read as %+v", p, c)
		}
		for _, name := range []string{restoredFile, cutFile} { // whatever it says, the folder does not start as part of a cluster
			if err := checkUnfinished(fileWith(t, name, p), Leader); err == nil {
				t.Errorf("%s with %q is passed over", name, p)
			}
		}
	})
}

// FuzzRaftState: a slot is taken only with its checksum, what is taken cannot make another part fall over, and is written as it
// was. Of two slots the newer sound one counts.
func FuzzRaftState(f *testing.F) {
	sample := func(seq uint64) *raftState {
		id := "000102030405060708090a0b0c0d0e0f"
		return &raftState{Seq: seq, NodeID: id, LogID: id, Self: 1, Phase: phaseWhole, Term: 4, Vote: 2, Boot: 3, Nonce: 9,
			Members: []memberState{{NodeID: id, Incarnation: 5, Boot: 6, Nonce: 7, Acked: 8}, {NodeID: id}, {}}}
	}
	for seq := range uint64(3) {
		b, err := sample(seq).encode()
		if err != nil {
			f.Fatal(err)
		}
		n := stateHeader + int(binary.LittleEndian.Uint32(b[12:]))
		f.Add(b[:n], true)
		f.Add(b, false)
		flipped := bytes.Replace(b, []byte(`"term":4`), []byte(`"term":5`), 1)
		f.Add(flipped, false)
		f.Add([]byte(`{"seq":1,"node_id":"00","members":[{}]}`), true)
		f.Add(append(b[:20:20], []byte(`{"members":null}`)...), true)
	}
	good, err := sample(1).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, p []byte, sealed bool) {
		slot := p
		if sealed { // so that the fuzzer gets past the checksum
			slot = make([]byte, stateSlot)
			copy(slot, p)
			copy(slot, stateMagic)
			binary.LittleEndian.PutUint32(slot[8:], stateVersion)
			text := bytes.TrimRight(slot[min(len(p), stateHeader):min(len(p), stateSlot)], "\x00")
			binary.LittleEndian.PutUint32(slot[12:], uint32(len(text)))
			binary.LittleEndian.PutUint32(slot[16:], stateSum(slot))
		}
		var s *raftState
		var err error
		bounded(t, len(slot), func() { s, err = decodeState(slot) })
		if err == nil {
			if stateSum(slot) != binary.LittleEndian.Uint32(slot[16:]) {
				t.Fatal("taken with a wrong checksum")
			}
			if again, err := s.encode(); err == nil {
				if back, err := decodeState(again); err != nil || !reflect.DeepEqual(back, s) {
					t.Errorf("%+v comes back as %+v, %v", s, back, err)
				}
			}
		}
		// Beside a sound slot it counts only if it is sound, and newer.
		if len(slot) != stateSlot {
			return
		}
		m := fileWith(t, stateFile, append(bytes.Clone(good), slot...))
		store, openErr := openState(m)
		switch {
		case errors.Is(err, errStateVersion):
			if openErr == nil {
				t.Error("a slot of another version is passed over")
			}
		case openErr != nil:
			t.Errorf("a sound slot is lost: %v", openErr)
		case err == nil && s.Seq > 1 && !reflect.DeepEqual(store.state(), s), (err != nil || s.Seq <= 1) && store.state().Seq != 1:
			t.Errorf("the state is %+v, the second slot %+v, %v", store.state(), s, err)
		}
		if openErr == nil {
			store.file.Close()
		}
		if open := m.OpenFiles(); len(open) > 0 {
			t.Errorf("files left open: %v", open)
		}
	})
}
