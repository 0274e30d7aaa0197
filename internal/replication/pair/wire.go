package pair

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// Link carries packets between two nodes, whole and in order. A network that loses, repeats, alters or reorders them is
// noticed by the numbers and checksums in them. One goroutine at a time may call Read; any may call Write and Close.
type Link interface {
	// Write sends one packet, made of head and body. It keeps neither. It may wait until the other side takes
	// it; Close ends the wait.
	Write(head, body []byte) error
	// Read returns the next packet, which is valid until the next Read. It waits for one; Close ends the wait.
	Read() ([]byte, error)
	// Ready reports whether a packet is there, so that Read would not wait.
	Ready() bool
	Close() error
}

const (
	lengthBytes = 4
	wireBuffer  = 256 << 10
	// copyMax is up to which size head and body are copied together: one write of few bytes is cheaper than a
	// vectored one.
	copyMax = 64 << 10
)

// wire is the Link over a connection. Each packet goes with its length before it.
type wire struct {
	conn net.Conn

	// Owned by the reader: buf[from:to] was received and not handed out.
	buf      []byte
	from, to int

	mu  sync.Mutex // one Write at a time; held across I/O
	out []byte
}

// NewWire returns the Link over a stream connection, which it owns.
func NewWire(conn net.Conn) Link { return &wire{conn: conn, buf: make([]byte, wireBuffer)} }

// Write implements Link.
func (w *wire) Write(head, body []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(head) + len(body)
	if n > packetMax {
		return fmt.Errorf("BUG: packet of %d bytes", n)
	}
	w.out = binary.LittleEndian.AppendUint32(w.out[:0], uint32(n))
	w.out = append(w.out, head...)
	if len(w.out)+len(body) <= copyMax {
		w.out = append(w.out, body...)
		_, err := w.conn.Write(w.out)
		return err
	}
	buffers := net.Buffers{w.out, body}
	_, err := buffers.WriteTo(w.conn)
	return err
}

// Read implements Link.
func (w *wire) Read() ([]byte, error) {
	if err := w.fill(lengthBytes); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(w.buf[w.from:]))
	if n < packetHeader || n > packetMax {
		return nil, malformed("a packet of %d bytes", n)
	}
	if err := w.fill(lengthBytes + n); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	packet := w.buf[w.from+lengthBytes : w.from+lengthBytes+n]
	w.from += lengthBytes + n
	return packet, nil
}

// fill receives until n bytes are there.
func (w *wire) fill(n int) error {
	if w.from == w.to {
		w.from, w.to = 0, 0
	}
	if w.from+n > len(w.buf) {
		// What is left goes to the front, of a larger buffer if it must, or of one of the usual size again.
		buf := w.buf
		if n > len(buf) || len(buf) > wireBuffer && n <= wireBuffer && w.to-w.from <= wireBuffer {
			buf = make([]byte, max(n, wireBuffer))
		}
		w.to = copy(buf, w.buf[w.from:w.to])
		w.buf, w.from = buf, 0
	}
	for w.to-w.from < n {
		got, err := w.conn.Read(w.buf[w.to:])
		w.to += got
		if err != nil && w.to-w.from < n {
			if err == io.EOF && w.to > w.from {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// Ready implements Link. What the system has received and this process not read yet does not count.
func (w *wire) Ready() bool {
	have := w.to - w.from
	return have >= lengthBytes && have-lengthBytes >= int(binary.LittleEndian.Uint32(w.buf[w.from:]))
}

// Close implements Link. It does not wait, as a farewell of TLS might, for a peer that takes nothing.
func (w *wire) Close() error {
	if inner, ok := w.conn.(interface{ NetConn() net.Conn }); ok {
		return inner.NetConn().Close()
	}
	return w.conn.Close()
}
