package nemesis

import (
	"bytes"
	"strconv"
)

// heads finds the heads of HTTP/1.1 answers in a stream. Bodies are skipped by their length; after a body of unknown
// length, or what is no HTTP, it looks at nothing more.
type heads struct {
	note  func(status int)
	bytes int64 // all that was added
	seen  int   // answers, without the interim ones
	noted bool  // the status of the head that is being gathered
	head  []byte
	skip  int64 // bytes of a body that are still to come
	lost  bool
}

const headMax = 4096

func (h *heads) add(p []byte) {
	h.bytes += int64(len(p))
	for len(p) > 0 && !h.lost {
		if h.skip > 0 {
			n := min(h.skip, int64(len(p)))
			h.skip -= n
			p = p[n:]
			continue
		}
		h.head = append(h.head, p[0])
		p = p[1:]
		const status = "HTTP/1.1 200"
		if len(h.head) == len(status) && !h.noted {
			h.status()
		}
		if bytes.HasSuffix(h.head, []byte("\r\n\r\n")) {
			h.end()
		} else if len(h.head) > headMax {
			h.lost = true
		}
	}
}

func (h *heads) status() {
	h.noted = true
	n, err := strconv.Atoi(string(h.head[9:12]))
	if !bytes.HasPrefix(h.head, []byte("HTTP/1.")) || err != nil {
		h.lost = true
		return
	}
	h.note(n)
	if n >= 200 {
		h.seen++
	}
}

// end is called with a whole head.
func (h *heads) end() {
	interim := len(h.head) > 9 && h.head[9] == '1'
	length := int64(-1)
	for line := range bytes.Lines(h.head) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err == nil {
				length = n
			}
		}
	}
	h.head, h.noted = h.head[:0], false
	switch {
	case interim:
	case length < 0:
		h.lost, h.head = true, nil
	default:
		h.skip = length
	}
}
