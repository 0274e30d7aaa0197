package catchup

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

var rewrite = flag.Bool("rewrite-packets", false, "write testdata/packets anew")

func sampleRequests() []request {
	return []request{
		{kind: kindIntroduce, introduction: Introduction{Fingerprint: [32]byte{1}, Self: 1, Nodes: 3, NodeID: [16]byte{2}, LogID: testID, Boot: 3, Nonce: 4, Phase: "whole", Term: 5, Last: 6, LastTerm: 5}},
		{kind: kindForm, formation: Formation{Fingerprint: [32]byte{1}, LogID: testID, Members: [][16]byte{{2}, {3}, {4}}}},
		{kind: kindManifest},
		{kind: kindPoints, logID: testID, indexes: []entry.Index{9, 7, 1}},
		{kind: kindFrames, logID: testID, after: wal.Point{Index: 7, Term: 2, CRC: 0xdeadbeef}, limit: 1000, have: 8},
		{kind: kindSegment, logID: testID, file: 5, offset: 512, limit: PieceMax},
		{kind: kindSnapshot, logID: testID, file: 6, offset: 0, limit: 4096},
		{kind: kindHash, logID: testID, file: 6},
	}
}

func sampleAnswers() []answer {
	now := Standing{LogID: testID, Term: 5, Leader: true, Commit: 8, Last: wal.Point{Index: 9, Term: 5, CRC: 0xcafe}}
	return []answer{
		{kind: kindIntroduce, standing: now, introduced: Introduced{Introduction: sampleRequests()[0].introduction, Role: "follower", Leader: -1, Commit: 8,
			Members: [][16]byte{{2}, {3}, {4}}, Acked: 7, Objection: "", Verdict: VerdictOK}},
		{kind: kindForm, standing: now},
		{kind: kindManifest, standing: now, start: wal.Place{Segment: 7, Size: 8192, Offset: 512, Prev: 0xabc},
			snapshots: []SnapshotInfo{{6, 100}, {4, 99}}, segments: []SegmentInfo{{5, 6, 8192}, {7, 9, 8192}}},
		{kind: kindPoints, standing: now, points: []found{{foundBeyond, wal.Point{Index: 10}}, {foundPoint, wal.Point{Index: 7, Term: 2, CRC: 3}}, {notLooked, wal.Point{Index: 3}}, {foundGone, wal.Point{Index: 1}}}},
		{kind: kindFrames, standing: now, pieces: []piece{{wal.Place{Segment: 7, Size: 8192, Offset: 600, Prev: 1}, []byte("frames")}, {wal.Place{Segment: 9, Size: 8192, Offset: 512, Prev: 2}, []byte("more")}}},
		{kind: kindFrames, standing: now, length: 100, pieces: []piece{{wal.Place{Segment: 7, Size: 8192, Offset: 600, Prev: 1}, []byte("part")}}},
		{kind: kindSegment, standing: now, size: 8192, offset: 512, data: []byte("bytes")},
		{kind: kindSnapshot, standing: now, size: 5, data: []byte("bytes")},
		{kind: kindHash, standing: now, at: 6, known: true, hash: [32]byte{7}},
		{kind: kindFrames, code: codeGone, standing: now, text: "the peer has dropped it"},
	}
}

// packet encodes an answer with all that belongs to it.
func (a *answer) packet() []byte {
	b := a.encode(nil)
	if a.code == codeOK {
		for _, p := range a.pieces {
			b = append(putPiece(b, p.place, len(p.raw)), p.raw...)
		}
		b = append(b, a.data...)
	}
	return seal(b)
}

func TestRoundTrip(t *testing.T) {
	for _, want := range sampleRequests() {
		var got request
		if err := got.decode(want.encode()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("request of kind %d: %v\n got %+v\nwant %+v", want.kind, err, got, want)
		}
	}
	for _, want := range sampleAnswers() {
		var got answer
		err := got.decode(want.packet(), want.kind)
		if want.code == codeOK && err != nil || want.code != codeOK && !errors.Is(err, ErrGone) || !reflect.DeepEqual(got, want) {
			t.Errorf("answer of kind %d: %v\n got %+v\nwant %+v", want.kind, err, got, want)
		}
	}
}

// TestPackets compares the bytes of all packets with testdata/packets: nodes of different builds speak to each other.
func TestPackets(t *testing.T) {
	var b strings.Builder
	for _, r := range sampleRequests() {
		fmt.Fprintf(&b, "request %d\n%s", r.kind, hex.Dump(r.encode()))
	}
	for _, a := range sampleAnswers() {
		fmt.Fprintf(&b, "answer %d code %d\n%s", a.kind, a.code, hex.Dump(a.packet()))
	}
	const name = "testdata/packets"
	if *rewrite {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the packets are not those of %s:\n%s", name, b.String())
	}
}

// TestStrict breaks each packet at each byte, with a right checksum, and cuts it at each byte. What is still taken means
// something, and is written as the same bytes again.
func TestStrict(t *testing.T) {
	for _, r := range sampleRequests() {
		whole := r.encode()
		for n := range whole {
			var got request
			if err := got.decode(sealed(whole[:n])); err == nil && (r.kind != kindPoints || n < requestHeader+8 || n%8 != requestHeader%8) {
				t.Errorf("request of kind %d, cut to %d of %d bytes, is taken", r.kind, n, len(whole))
			}
			broken := bytes.Clone(whole)
			broken[n] ^= 0x41
			checkRequest(t, sealed(broken))
		}
		var got request
		if err := got.decode(sealed(append(whole[:len(whole):len(whole)], 1))); err == nil {
			t.Errorf("request of kind %d with a byte too many is taken", r.kind)
		}
	}
	for _, a := range sampleAnswers() {
		whole := a.packet()
		for n := range whole {
			broken := bytes.Clone(whole)
			broken[n] ^= 0x41
			checkAnswer(t, sealed(broken), a.kind)
			checkAnswer(t, sealed(whole[:n]), a.kind)
		}
	}
}

func sealed(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) >= 4 {
		seal(b)
	}
	return b
}

// checkRequest fails unless b is refused, or is written as b again.
func checkRequest(t *testing.T, b []byte) {
	t.Helper()
	var r request
	err := r.decode(b)
	if err != nil {
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersion) {
			t.Errorf("error %v", err)
		}
		return
	}
	again := r.encode()
	if jsonIn := r.kind == kindIntroduce || r.kind == kindForm; !jsonIn && !bytes.Equal(again, b) {
		t.Errorf("request %x is written as %x", b, again)
	} else if second := new(request); second.decode(again) != nil || !reflect.DeepEqual(*second, r) {
		t.Errorf("request %+v is read as %+v", r, second)
	}
}

func checkAnswer(t *testing.T, b []byte, k kind) {
	t.Helper()
	var a answer
	err := a.decode(b, k)
	if err != nil && !errors.As(err, new(*RefusedError)) {
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersion) {
			t.Errorf("error %v", err)
		}
		return
	}
	again := a.packet()
	if k != kindIntroduce && !bytes.Equal(again, b) {
		t.Errorf("answer %x is written as %x", b, again)
	}
}

func FuzzRequest(f *testing.F) {
	for _, r := range sampleRequests() {
		f.Add(r.encode()[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkRequest(t, sealed(append(make([]byte, 4), b...))) })
}

func FuzzAnswer(f *testing.F) {
	for _, a := range sampleAnswers() {
		f.Add(a.packet()[4:], uint8(a.kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, k uint8) { checkAnswer(t, sealed(append(make([]byte, 4), b...)), kind(k)) })
}

// FuzzServer asks a server whatever comes.
func FuzzServer(f *testing.F) {
	for _, r := range sampleRequests() {
		f.Add(1, r.encode()[4:])
	}
	h := newHost(f, 1)
	h.grow(30)
	h.snapshot(6, 5000)
	l := serve(f, h)
	f.Fuzz(func(t *testing.T, from int, b []byte) {
		b = sealed(append(make([]byte, 4), b...))
		out := l.s.Answer(t.Context(), from, b)
		var a answer
		k := kind(0)
		if len(b) > 5 {
			k = kind(b[5])
		}
		if err := a.decode(out, k); err != nil && !errors.As(err, new(*RefusedError)) {
			t.Errorf("request %x is answered with %x: %v", b, out[:min(len(out), 100)], err)
		}
	})
}
