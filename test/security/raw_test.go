package security

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// wire sends requests byte for byte as they are given, over one connection as long as that lasts.
type wire struct {
	t       *testing.T
	address string
	conn    net.Conn
	in      *bufio.Reader
}

func newWire(t *testing.T, url string) *wire {
	w := &wire{t: t, address: strings.TrimPrefix(url, "http://")}
	t.Cleanup(w.close)
	return w
}

func (w *wire) close() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// reply is an answer, with its head as it came.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// request is what goes out. The header lines are sent as they are, after Host and Content-Length.
type request struct {
	method, target, host string
	headers              []string // "Name: value"
	body                 string
}

// send sends a request and reads the answer.
func (w *wire) send(r request) reply {
	w.t.Helper()
	if r.host == "" {
		r.host = w.address
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.target, r.host)
	if r.method == "POST" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.body))
	}
	for _, line := range r.headers {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + r.body)
	for fresh := w.conn == nil; ; fresh = true {
		if w.conn == nil {
			conn, err := net.Dial("tcp", w.address)
			if err != nil {
				w.t.Fatal(err)
			}
			w.conn, w.in = conn, bufio.NewReader(conn)
		}
		a, err := w.exchange(b.Bytes(), r.method)
		if err == nil {
			return a
		}
		w.close() // the server may have ended an idle connection just now
		if fresh {
			w.t.Fatalf("%s %s: %v", r.method, r.target, err)
		}
	}
}

func (w *wire) exchange(out []byte, method string) (reply, error) {
	w.conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := w.conn.Write(out); err != nil {
		return reply{}, err
	}
	a, err := http.ReadResponse(w.in, &http.Request{Method: method})
	if err != nil {
		return reply{}, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		return reply{}, err
	}
	if a.Close {
		w.close()
	}
	return reply{a.StatusCode, a.Header, body}, nil
}
