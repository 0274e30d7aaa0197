package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/state"
)

// Each single bit that flips in a snapshot is noticed, and the snapshot before it is used.
func TestEveryBitFlipped(t *testing.T) {
	m := newFS(t)
	s := state.New()
	older := grow(t, state.New(), 4)
	write(t, m, grow(t, s, 4))
	info := write(t, m, grow(t, s, 6))
	good := readFile(t, m, info.Name)
	for bit := range len(good) * 8 {
		p := bytes.Clone(good)
		p[bit/8] ^= 1 << (bit % 8)
		putFile(t, m, info.Name, p)
		loads(t, m, older, info.Name)
	}
	putFile(t, m, info.Name, good)
	loads(t, m, s)
}

// So is each length to which it may be cut off, and each other change that has a name.
func TestDamage(t *testing.T) {
	m := newFS(t)
	s := state.New()
	older := grow(t, state.New(), 4)
	write(t, m, grow(t, s, 4))
	info := write(t, m, grow(t, s, 6000)) // three blocks
	good := readFile(t, m, info.Name)
	const block = blockHeaderSize + blockMax
	if len(good) < headerSize+2*block {
		t.Fatalf("%d bytes are too few for this test", len(good))
	}
	// The same state in a snapshot with another term: all of its blocks have the same data.
	var body bytes.Buffer
	if _, err := s.Freeze().WriteTo(&body); err != nil {
		t.Fatal(err)
	}
	other := encodeFile(t, &Info{Index: info.Index, Term: info.Term + 1, TimeMS: info.TimeMS}, body.Bytes())
	at := func(p []byte, block0 int) []byte { return p[headerSize+block0*block:][:block] }

	for _, tt := range []struct {
		name   string
		damage func(p []byte) []byte
		want   error
		says   string
	}{
		{"empty", func(p []byte) []byte { return nil }, ErrCorrupt, "cut off at 0"},
		{"a byte more", func(p []byte) []byte { return append(p, 0) }, ErrCorrupt, "it ends at"},
		{"twice", func(p []byte) []byte { return append(p, p...) }, ErrCorrupt, "it ends at"},
		{"all zeros", func(p []byte) []byte { clear(p); return p }, ErrCorrupt, "begin"},
		{"a sector lost", func(p []byte) []byte { clear(p[1024:1536]); return p }, ErrCorrupt, "block at 64 differs"},
		{"blocks swapped", func(p []byte) []byte {
			first := bytes.Clone(at(p, 0))
			copy(at(p, 0), at(p, 1))
			copy(at(p, 1), first)
			return p
		}, ErrCorrupt, "block at 64 differs"},
		{"a block twice", func(p []byte) []byte { copy(at(p, 1), at(p, 0)); return p }, ErrCorrupt, "differs"},
		{"a block missing", func(p []byte) []byte {
			return append(p[:headerSize+block:headerSize+block], p[headerSize+2*block:]...)
		}, ErrCorrupt, "differs"},
		{"a block of another snapshot", func(p []byte) []byte { copy(at(p, 1), at(other, 1)); return p }, ErrCorrupt, "differs"},
		{"another version", func(p []byte) []byte { p[8] = 2; return p }, ErrVersion, "version 2"},
		{"another header size", func(p []byte) []byte { p[12] = 72; return resum(p) }, ErrCorrupt, "header of 72"},
		{"another log", func(p []byte) []byte { p[16]++; return resum(p) }, ErrForeign, "log"},
		{"another index in the header", func(p []byte) []byte { p[32]++; return resum(p) }, ErrCorrupt, "name says otherwise"},
		{"another term in the header", func(p []byte) []byte { p[40]++; return resum(p) }, ErrCorrupt, "block at 64"},
		{"a length over the limit", func(p []byte) []byte { p[headerSize+3] = 0x7f; return p }, ErrCorrupt, "a block of"},
	} {
		putFile(t, m, info.Name, tt.damage(bytes.Clone(good)))
		_, _, bad, err := Load(m, dir, logID)
		if err != nil || len(bad) != 1 || !errors.Is(bad[0].Err, tt.want) || !strings.Contains(bad[0].Err.Error(), tt.says) {
			t.Errorf("%s: bad %v, %v; want %v that says %q", tt.name, bad, err, tt.want, tt.says)
		}
		loads(t, m, older, info.Name)
	}
	for n := range len(good) {
		if n > 200 && n < len(good)-200 && n%1009 != 0 {
			continue
		}
		putFile(t, m, info.Name, good[:n])
		if _, err := check(m, dir, info.Name, logID); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut off at %d: %v", n, err)
		}
	}
	// A good file under the name of another index is not taken for it.
	putFile(t, m, info.Name, readFile(t, m, fileName(4)))
	loads(t, m, older, info.Name)
}

// resum makes the checksum of the header right.
func resum(p []byte) []byte {
	binary.LittleEndian.PutUint32(p[60:], checksum(p[:60]))
	return p
}

// Files whose checksums are right are not believed either: header and state must agree, and blocks must be
// as Write makes them.
func TestWrongWithRightChecksums(t *testing.T) {
	m := newFS(t)
	s := grow(t, state.New(), 5)
	var body bytes.Buffer
	if _, err := s.Freeze().WriteTo(&body); err != nil {
		t.Fatal(err)
	}
	right := Info{Index: 5, Term: s.Term(), TimeMS: s.TimeMS()}
	put := func(info Info, body []byte) { putFile(t, m, fileName(info.Index), encodeFile(t, &info, body)) }

	put(right, body.Bytes())
	loads(t, m, s)
	for name, change := range map[string]func(*Info){
		"index": func(i *Info) { i.Index = 6 },
		"term":  func(i *Info) { i.Term++ },
		"time":  func(i *Info) { i.TimeMS-- },
	} {
		m := newFS(t)
		info := right
		change(&info)
		putFile(t, m, fileName(info.Index), encodeFile(t, &info, body.Bytes()))
		if _, _, bad, err := Load(m, dir, logID); err != nil || len(bad) != 1 || !strings.Contains(bad[0].Err.Error(), "different entries") {
			t.Errorf("another %s in the header: bad %v, %v", name, bad, err)
		}
	}

	put(right, append(body.Bytes(), 0))
	if _, _, bad, err := Load(m, dir, logID); err != nil || len(bad) != 1 || !errors.Is(bad[0].Err, state.ErrCorrupt) {
		t.Errorf("a byte behind the state: bad %v, %v", bad, err)
	}

	// A block that is not full, and another one behind it.
	p := appendHeader(nil, logID, &right)
	sum := headerSum(p)
	p, sum = appendBlock(p, sum, body.Bytes()[:10])
	p, sum = appendBlock(p, sum, body.Bytes()[10:])
	p = appendFooter(p, sum, int64(len(p))+footerSize)
	putFile(t, m, fileName(5), p)
	if _, _, bad, err := Load(m, dir, logID); err != nil || len(bad) != 1 || !strings.Contains(bad[0].Err.Error(), "a block of") {
		t.Errorf("a short block in the middle: bad %v, %v", bad, err)
	}
}

// The size in the footer is checked too.
func TestWrongSizeInFooter(t *testing.T) {
	m := newFS(t)
	info := write(t, m, grow(t, state.New(), 5))
	p := readFile(t, m, info.Name)
	p = p[:len(p)-footerSize]
	lastSum := binary.LittleEndian.Uint32(p[headerSize+4:]) // there is one block
	for _, wrong := range []int64{-1, 1} {
		putFile(t, m, info.Name, appendFooter(bytes.Clone(p), lastSum, info.Bytes+wrong))
		loads(t, m, state.New(), info.Name)
	}
	putFile(t, m, info.Name, appendFooter(bytes.Clone(p), lastSum, info.Bytes))
	loads(t, m, grow(t, state.New(), 5))
}

// All snapshots bad: the state before the first entry, and every file named.
func TestAllBad(t *testing.T) {
	m := newFS(t)
	s := state.New()
	var want []string
	for i := range 3 {
		info := write(t, m, grow(t, s, 1))
		p := readFile(t, m, info.Name)
		p[len(p)-1-i] ^= 1
		putFile(t, m, info.Name, p)
		want = append([]string{info.Name}, want...)
	}
	loads(t, m, state.New(), want...)
}

func TestPrune(t *testing.T) {
	m := newFS(t)
	s := state.New()
	var info [8]Info
	for i := range info {
		info[i] = write(t, m, grow(t, s, 1))
	}
	spoil := func(i int) {
		p := readFile(t, m, info[i].Name)
		p[len(p)/2] ^= 1
		putFile(t, m, info[i].Name, p)
	}
	spoil(7)
	spoil(5)
	spoil(2)
	tmp := info[3].Name + tmpSuffix
	for _, name := range []string{tmp, "notes.tmp", "README"} {
		putFile(t, m, name, []byte("x"))
	}
	kept, err := Prune(m, dir, logID, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != 2 || kept[0] != info[6] || kept[1] != info[4] {
		t.Errorf("kept %v", kept)
	}
	want := []string{info[4].Name, info[5].Name, info[6].Name, info[7].Name, "README", "notes.tmp"}
	if got := names(t, m); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	// The last good one stays, whatever is asked.
	if kept, err := Prune(m, dir, logID, 0); err != nil || len(kept) != 1 || kept[0] != info[6] {
		t.Errorf("kept %v, %v", kept, err)
	}
	spoil(6)
	before := names(t, m)
	if kept, err := Prune(m, dir, logID, 1); err != nil || len(kept) != 0 || fmt.Sprint(names(t, m)) != fmt.Sprint(before) {
		t.Errorf("without a good one: kept %v, %v, left %v", kept, err, names(t, m))
	}
}
