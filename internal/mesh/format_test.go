package mesh

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// anything lets every frame through, of any size.
func anything(frame) int { return PacketMax }

// TestGolden: the bytes are those of docs/format/mesh.md, for ever.
func TestGolden(t *testing.T) {
	g := greeting{kind: calls, from: 2, to: 0, nodes: 3, hello: Hello{Boot: 7, Nonce: 1<<63 | 5}}
	for i := range g.hello.Fingerprint {
		g.hello.Fingerprint[i] = byte(i)
	}
	copy(g.hello.NodeID[:], "node id of 16 by")
	copy(g.hello.LogID[:], "log id, 16 bytes")
	var all bytes.Buffer
	w := writer{to: &all}
	var text strings.Builder
	for _, f := range []struct {
		t          frame
		head, rest []byte
	}{
		{frameHello, nil, appendHello(nil, &g)}, {frameRefuse, nil, []byte("because")}, {framePing, nil, nil},
		{framePacket, nil, []byte("a packet")}, {frameRequest, []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte("a request")},
		{frameAnswer, []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte("an answer")}, {frameCancel, []byte{1, 0, 0, 0, 0, 0, 0, 0}, nil},
	} {
		all.Reset()
		if err := errors.Join(w.add(f.t, f.head, f.rest), w.flush()); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "type %d\n%s", f.t, hex.Dump(all.Bytes()))
	}
	file := filepath.Join("testdata", "frames")
	if *rewrite {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != text.String() {
		t.Errorf("got\n%s\nwant\n%s\n%v", text.String(), want, err)
	}
	back, err := decodeHello(appendHello(nil, &g))
	if err != nil || *back != g {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

// TestHelloForm: what is no hello is refused, and a newer version says so.
func TestHelloForm(t *testing.T) {
	good := appendHello(nil, &greeting{from: 1, nodes: 2})
	with := func(at int, b byte) []byte {
		p := bytes.Clone(good)
		p[at] = b
		return p
	}
	for name, p := range map[string][]byte{
		"empty": nil, "magic": with(0, 'x'), "magic's end": with(7, 1), "version": with(8, 2), "kind": with(10, 2), "from": with(11, 2), "to": with(12, 2),
		"no nodes": with(13, 0), "nodes": with(13, 255), "reserved": with(14, 1), "reserved 2": with(15, 1), "short": good[:len(good)-1], "long": append(bytes.Clone(good), 0),
	} {
		_, err := decodeHello(p)
		if bad := (*ProtocolError)(nil); !errors.As(err, &bad) || name == "version" && !strings.Contains(err.Error(), "version 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := decodeHello(good); err != nil {
		t.Error(err)
	}
}

// frames writes some frames of all sizes.
func frames(t testing.TB, contents [][]byte) []byte {
	var all bytes.Buffer
	w := writer{to: &all}
	for _, c := range contents {
		if err := w.add(framePacket, nil, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	return all.Bytes()
}

func someContents() (list [][]byte) {
	for i, n := range []int{0, 1, 7, 100, copyMax - 1, copyMax, copyMax + 1, readBuffer, writeBuffer - 100, 3*writeBuffer + 5, 0, 3} {
		list = append(list, bytes.Repeat([]byte{byte('a' + i)}, n))
	}
	return list
}

// TestWire: frames of all sizes come through, however the connection cuts them.
func TestWire(t *testing.T) {
	want := someContents()
	all := frames(t, want)
	for name, from := range map[string]io.Reader{
		"whole": bytes.NewReader(all), "bytes": iotest.OneByteReader(bytes.NewReader(all)), "halves": iotest.HalfReader(bytes.NewReader(all)),
		"with error": iotest.DataErrReader(bytes.NewReader(all)),
	} {
		r := reader{from: from, buf: make([]byte, readBuffer)}
		for i, w := range want {
			f, got, err := r.next(anything)
			if err != nil || f != framePacket || !bytes.Equal(got, w) {
				t.Fatalf("%s: frame %d: type %d, %d bytes, want %d, %v", name, i, f, len(got), len(w), err)
			}
		}
		if _, _, err := r.next(anything); err != io.EOF {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

// TestWireDamage: every flipped bit, missing, repeated and cut frame is noticed.
func TestWireDamage(t *testing.T) {
	contents := [][]byte{[]byte("first"), []byte("second"), []byte("third!")}
	all := frames(t, contents)
	read := func(p []byte) (n int, err error) {
		r := reader{from: bytes.NewReader(p), buf: make([]byte, 64)}
		for {
			_, got, err := r.next(anything)
			if err != nil {
				return n, err
			}
			if n >= len(contents) || !bytes.Equal(got, contents[n]) {
				return n, fmt.Errorf("frame %d is %q", n, got)
			}
			n++
		}
	}
	if n, err := read(all); n != 3 || err != io.EOF {
		t.Fatalf("%d, %v", n, err)
	}
	one := len(frames(t, contents[:1]))
	two := len(frames(t, contents[:2]))
	bad := map[string][]byte{
		"first missing": all[one:], "second missing": append(bytes.Clone(all[:one]), all[two:]...),
		"first twice": append(bytes.Clone(all[:one]), all...),
	}
	for i := range len(all) * 8 {
		p := bytes.Clone(all)
		p[i/8] ^= 1 << (i % 8)
		bad[fmt.Sprintf("bit %d", i)] = p
	}
	for name, p := range bad {
		_, err := read(p)
		if protocol := (*ProtocolError)(nil); !errors.As(err, &protocol) && err != io.ErrUnexpectedEOF {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := range len(all) {
		if got, err := read(all[:n]); err != io.ErrUnexpectedEOF && (err != io.EOF || n != 0 && n != one && n != two) {
			t.Errorf("cut at %d: %d frames, %v", n, got, err)
		}
	}
}

// TestLengthsAreBounded: a length is looked at before there is memory for it.
func TestLengthsAreBounded(t *testing.T) {
	for _, n := range []uint32{0, PacketMax + 2, 1 << 31, 1<<32 - 1} {
		p := []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0, byte(framePacket)}
		r := reader{from: bytes.NewReader(p), buf: make([]byte, 64)}
		allocs := testing.AllocsPerRun(1, func() {
			_, _, err := r.next(anything)
			if bad := (*ProtocolError)(nil); !errors.As(err, &bad) {
				t.Errorf("%d: %v", n, err)
			}
		})
		if allocs > 10 {
			t.Errorf("%d: %v allocations", n, allocs)
		}
	}
}
