package pair

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// stream is a connection that hands out bytes in pieces that sizes decides, and ends then.
type stream struct {
	net.Conn
	rest  []byte
	sizes func() int
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), max(1, s.sizes()))], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// framed returns packets as they go over the wire.
func framed(packets ...[]byte) []byte {
	var b []byte
	for _, p := range packets {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// body returns n bytes that depend on n.
func body(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	return b
}

// Packets arrive as they were sent, wherever the stream is split.
func TestWireSplitAndJoined(t *testing.T) {
	packets := [][]byte{body(16), body(17), body(300), body(16)}
	text := framed(packets...)
	for at := range len(text) {
		first := true
		w := NewWire(&stream{rest: text, sizes: func() int {
			if first {
				first = false
				return at
			}
			return len(text)
		}})
		for i, want := range packets {
			if got, err := w.Read(); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("split at %d: packet %d: %v", at, i, err)
			}
		}
		if _, err := w.Read(); err != io.EOF {
			t.Fatalf("at the end: %v", err)
		}
	}
	for cut := range len(text) {
		w := NewWire(&stream{rest: text[:cut], sizes: func() int { return cut }})
		want, end := io.EOF, 0
		for _, p := range packets {
			if end += 4 + len(p); end > cut {
				break
			}
			if _, err := w.Read(); err != nil {
				t.Fatal(err)
			}
		}
		if boundary := cut == 0 || cut == 20 || cut == 41 || cut == 345; !boundary {
			want = io.ErrUnexpectedEOF
		}
		if _, err := w.Read(); err != want {
			t.Fatalf("cut at %d: %v, want %v", cut, err, want)
		}
	}
}

// What the wire sends, it receives; small and large, also larger than its buffer, in any order.
func TestWireBothWays(t *testing.T) {
	a, b := net.Pipe()
	sender, receiver := NewWire(a), NewWire(b)
	defer receiver.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	sizes := []int{16, 100, copyMax - 4, copyMax - 3, wireBuffer - 4, wireBuffer - 3, wireBuffer, 1 << 20, packetMax, 16, 16, 700_000, 20}
	var sending sync.WaitGroup
	defer sending.Wait()
	heads := make([]int, len(sizes))
	for i, n := range sizes {
		heads[i] = rng.IntN(min(n, 100)) + 1
	}
	sending.Go(func() {
		defer sender.Close()
		for i, n := range sizes {
			whole := body(n)
			if err := sender.Write(whole[:heads[i]], whole[heads[i]:]); err != nil {
				t.Error(err)
			}
		}
	})
	for _, n := range sizes {
		got, err := receiver.Read()
		if err != nil || !bytes.Equal(got, body(n)) {
			t.Fatalf("packet of %d bytes: %d came, %v", n, len(got), err)
		}
	}
}

func TestWireReady(t *testing.T) {
	text := framed(body(16), body(17), body(18))
	w := NewWire(&stream{rest: text, sizes: func() int { return 20 + 21 + 10 }})
	for i, want := range []bool{true, false, false} {
		if i == 0 && w.Ready() {
			t.Fatal("ready before anything was read")
		}
		if _, err := w.Read(); err != nil {
			t.Fatal(err)
		}
		if w.Ready() != want {
			t.Fatalf("after packet %d: ready is %v", i, w.Ready())
		}
	}
}

// Lengths that no packet has end the session before anything is allocated, and no packet takes more than its length.
func TestWireLengths(t *testing.T) {
	for _, n := range []uint32{0, 1, packetHeader - 1, packetMax + 1, 1 << 31, 1<<32 - 1} {
		w := NewWire(&stream{rest: append(binary.LittleEndian.AppendUint32(nil, n), body(100)...), sizes: func() int { return 104 }})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := w.Read()
		runtime.ReadMemStats(&after)
		if !errors.Is(err, errMalformed) {
			t.Errorf("length %d: %v", n, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("length %d: %d bytes were allocated", n, took)
		}
	}
	w := NewWire(&stream{rest: framed(body(packetMax))[:1<<20], sizes: func() int { return 1 << 16 }}).(*wire)
	if _, err := w.Read(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if len(w.buf) > packetMax+lengthBytes {
		t.Fatalf("a buffer of %d bytes", len(w.buf))
	}
	if err := w.Write(make([]byte, packetHeader), make([]byte, packetMax)); err == nil {
		t.Fatal("a packet beyond the limit was sent")
	}
}

// Close ends a Read and a Write that wait, at either end, and may be called again.
func TestWireCloseUnblocks(t *testing.T) {
	for _, own := range []bool{true, false} {
		a, b := net.Pipe()
		w, other := NewWire(a), NewWire(b)
		ended := make(chan error, 2)
		var waiting sync.WaitGroup
		waiting.Go(func() { _, err := w.Read(); ended <- err })
		waiting.Go(func() { ended <- w.Write(body(1<<20), nil) })
		if own {
			w.Close()
			w.Close()
		} else {
			other.Close()
		}
		waiting.Wait()
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("no error")
			}
		}
		w.Close()
		other.Close()
	}
}

// notTLS is a connection over another one, whose Close waits for its peer.
type notTLS struct {
	net.Conn
	inner  net.Conn
	closed bool
}

func (c *notTLS) NetConn() net.Conn { return c.inner }
func (c *notTLS) Close() error      { c.closed = true; return nil }

func TestWireCloseDoesNotSayFarewell(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c := &notTLS{inner: a}
	if err := NewWire(c).Close(); err != nil || c.closed {
		t.Fatalf("closed by its own Close: %v, %v", c.closed, err)
	}
	b.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the connection inside stays open: %v", err)
	}
}

// FuzzWire: whatever comes, in whatever pieces, Read hands out what the lengths say, and stops at the first that is
// impossible.
func FuzzWire(f *testing.F) {
	f.Add(framed(body(16), body(40), body(1000)), uint64(1))
	f.Add(append(framed(body(16)), 0xff, 0xff, 0xff, 0xff), uint64(2))
	f.Add([]byte{16, 0, 0}, uint64(3))
	f.Add(append(framed(body(3000), body(16)), 1), uint64(4))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := NewWire(&stream{rest: text, sizes: func() int { return rng.IntN(1 + rng.IntN(1+rng.IntN(1<<12))) }}).(*wire)
		for rest := text; ; {
			got, err := w.Read()
			if len(w.buf) > packetMax+lengthBytes {
				t.Fatalf("a buffer of %d bytes", len(w.buf))
			}
			if err != nil {
				impossible := len(rest) >= 4 && (binary.LittleEndian.Uint32(rest) < packetHeader || binary.LittleEndian.Uint32(rest) > packetMax)
				whole := len(rest) >= 4 && int64(len(rest)-4) >= int64(binary.LittleEndian.Uint32(rest))
				switch {
				case impossible != errors.Is(err, errMalformed), whole && !impossible, (err == io.EOF) != (len(rest) == 0):
					t.Fatalf("%v with %d bytes left", err, len(rest))
				}
				return
			}
			n := int(binary.LittleEndian.Uint32(rest))
			if !bytes.Equal(got, rest[4:4+n]) {
				t.Fatalf("%d bytes came, and not those that were sent", len(got))
			}
			rest = rest[4+n:]
		}
	})
}
