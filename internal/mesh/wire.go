package mesh

import (
	"encoding/binary"
	"io"
)

const (
	readBuffer = 64 << 10
	// writeBuffer is how many bytes of small frames are gathered for one write, and at most what one write has: so a
	// slow connection is seen to move, and told from one that is stuck.
	writeBuffer = 256 << 10
	// copyMax is up to which size a body is copied behind its header. A larger one is written from where it is: two writes,
	// and no copy.
	copyMax = 16 << 10
)

// reader reads frames. One goroutine uses it.
type reader struct {
	from   io.Reader
	buf    []byte
	at, to int // buf[at:to] was read and is not used yet
	counter
}

// next reads a frame whose type has a limit: what limit returns for it is how long its content may be, and -1 that it may
// not come. The content belongs to the caller. The end of the stream between two frames is io.EOF.
func (r *reader) next(limit func(frame) int) (frame, []byte, error) {
	if err := r.fill(headerBytes + 1); err != nil {
		return 0, nil, err
	}
	h := r.buf[r.at : r.at+headerBytes+1]
	length, sum, t := binary.LittleEndian.Uint32(h), binary.LittleEndian.Uint32(h[4:]), frame(h[8])
	most := limit(t)
	if most < 0 {
		return 0, nil, malformed("a frame of type %d", t)
	}
	if length < 1 || length-1 > uint32(most) {
		return 0, nil, malformed("a frame of type %d with %d bytes", t, length)
	}
	r.at += headerBytes + 1
	var content []byte
	if n := int(length - 1); n > 0 {
		content = make([]byte, n)
		had := copy(content, r.buf[r.at:r.to])
		r.at += had
		if _, err := io.ReadFull(r.from, content[had:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
	}
	if r.sum(length, t, nil, content) != sum {
		return 0, nil, malformed("a frame of type %d has a wrong checksum: it was altered on its way, or one before it is missing", t)
	}
	r.number++
	return t, content, nil
}

// fill reads until n bytes are there.
func (r *reader) fill(n int) error {
	if r.to-r.at >= n {
		return nil
	}
	r.to, r.at = copy(r.buf, r.buf[r.at:r.to]), 0
	for r.to < n {
		got, err := r.from.Read(r.buf[r.to:])
		r.to += got
		if err != nil && r.to < n {
			if err == io.EOF && r.to > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// writer writes frames. One goroutine at a time uses it.
type writer struct {
	to  io.Writer
	buf []byte
	counter
}

// add adds a frame with the content head and rest. It is sent at the latest by flush.
func (w *writer) add(t frame, head, rest []byte) error {
	if len(w.buf)+headerBytes+1+len(head)+min(len(rest), copyMax) > writeBuffer {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.buf = append(w.appendHeader(w.buf, t, head, rest), head...)
	if len(rest) <= copyMax {
		w.buf = append(w.buf, rest...)
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	for len(rest) > 0 {
		n := min(len(rest), writeBuffer)
		if _, err := w.to.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// flush sends what add has gathered.
func (w *writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.to.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}
