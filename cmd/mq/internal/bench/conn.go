package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Target is the broker to measure.
type Target struct {
	Nodes []string // base URLs; the first one is used, and those that it redirects to
	Token string
	TLS   *tls.Config
}

// conn is one kept-alive HTTP/1.1 connection that speaks just enough of the protocol: what is measured
// should be the broker, not its client. Each request is one write; nothing is allocated once the buffers
// have grown. An answer has to have a Content-Length.
type conn struct {
	target *Target
	net    net.Conn
	stop   func() bool // takes back the closing of net when the context ends
	host   string
	out    []byte // headerRoom bytes, then the body of a request
	sent   []byte // the part of out that was sent last, to be sent again after a redirect
	path   string // that sent went to
	in     []byte // what was read: head and body of one answer
	header []byte // the head of a request, before it is copied in front of the body
}

// headerRoom is kept free in front of a request's body for its head.
const headerRoom = 2 << 10

// dial connects to the first node. The connection is closed when ctx ends, which fails whatever waits on it.
func dial(ctx context.Context, target *Target) (*conn, error) {
	c := &conn{target: target, out: make([]byte, headerRoom, headerRoom+4<<10), in: make([]byte, 4<<10)}
	if len(target.Token) > headerRoom/2 {
		return nil, errors.New("the token is too long")
	}
	return c, c.connect(ctx, target.Nodes[0])
}

func (c *conn) connect(ctx context.Context, node string) error {
	u, err := url.Parse(node)
	if err != nil {
		return err
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	var opened net.Conn
	if u.Scheme == "https" {
		opened, err = (&tls.Dialer{NetDialer: dialer, Config: c.target.TLS}).DialContext(ctx, "tcp", address)
	} else {
		opened, err = dialer.DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return err // after a redirect, c keeps the connection that is closed: close may be called again
	}
	c.net, c.host = opened, u.Host
	c.stop = context.AfterFunc(ctx, func() { opened.Close() })
	return nil
}

func (c *conn) close() {
	c.stop()
	c.net.Close()
}

// body returns an empty buffer for the body of the next request; send wants it back with the body appended.
func (c *conn) body() []byte { return c.out[:headerRoom] }

// send sends a request whose body was appended to what body returned.
func (c *conn) send(path string, body []byte) error {
	c.out, c.path = body, path
	h := append(c.header[:0], "POST "...)
	h = append(h, path...)
	h = append(h, " HTTP/1.1\r\nHost: "...)
	h = append(h, c.host...)
	if c.target.Token != "" {
		h = append(h, "\r\nAuthorization: Bearer "...)
		h = append(h, c.target.Token...)
	}
	h = append(h, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	h = strconv.AppendInt(h, int64(len(body)-headerRoom), 10)
	h = append(h, "\r\n\r\n"...)
	c.header = h
	if len(h) > headerRoom {
		return fmt.Errorf("the request's head takes %d bytes", len(h))
	}
	c.sent = body[headerRoom-len(h):]
	copy(c.sent, h)
	_, err := c.net.Write(c.sent)
	return err
}

// receive reads the answer to the last request and returns its body, which is valid until the next receive.
// Any status but 200 is an error, except that a redirect to another node of the target is followed.
func (c *conn) receive(ctx context.Context) ([]byte, error) {
	for range 3 {
		status, location, body, err := c.answer()
		if err != nil {
			return nil, err
		}
		if status == 200 {
			return body, nil
		}
		if status != 307 {
			return nil, fmt.Errorf("%s: status %d: %.300s", c.path, status, body)
		}
		node, err := c.configured(location)
		if err != nil {
			return nil, err
		}
		c.close()
		if err := c.connect(ctx, node); err != nil {
			return nil, err
		}
		if err := c.send(c.path, c.out); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("too many redirects")
}

// configured returns the node of the target that location leads to.
func (c *conn) configured(location string) (string, error) {
	u, err := url.Parse(location)
	if err != nil {
		return "", err
	}
	for _, node := range c.target.Nodes {
		if n, err := url.Parse(node); err == nil && n.Scheme == u.Scheme && strings.EqualFold(n.Host, u.Host) {
			return node, nil
		}
	}
	return "", fmt.Errorf("redirected to %q, which is not among the nodes", location)
}

// answer reads one whole answer.
func (c *conn) answer() (status int, location string, body []byte, err error) {
	have, head := 0, 0
	for {
		if have == len(c.in) {
			if have > 64<<10 {
				return 0, "", nil, errors.New("the head of the answer does not end")
			}
			c.grow(2*have, have)
		}
		n, err := c.net.Read(c.in[have:])
		from := max(0, have-3)
		have += n
		if i := bytes.Index(c.in[from:have], []byte("\r\n\r\n")); i >= 0 {
			head = from + i + 4
			break
		}
		if err != nil {
			return 0, "", nil, fmt.Errorf("read answer: %w", err)
		}
	}
	status, length, location, err := parseHead(c.in[:head])
	if err != nil {
		return 0, "", nil, err
	}
	end := head + length
	if have > end {
		return 0, "", nil, fmt.Errorf("%d bytes follow the answer", have-end)
	}
	if end > len(c.in) {
		c.grow(end+end/4, have)
	}
	for have < end {
		// Not beyond the end: what comes after would belong to another answer.
		n, err := c.net.Read(c.in[have:end])
		have += n
		if err != nil && have < end {
			return 0, "", nil, fmt.Errorf("read answer: %w", err)
		}
	}
	return status, location, c.in[head:end], nil
}

func (c *conn) grow(size, keep int) {
	in := make([]byte, size)
	copy(in, c.in[:keep])
	c.in = in
}

// answerMax bounds the body of an answer.
const answerMax = 32 << 20

// parseHead reads what matters of an answer's head, including the empty line that ends it.
func parseHead(head []byte) (status, length int, location string, err error) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || string(line[:9]) != "HTTP/1.1 " {
		return 0, 0, "", fmt.Errorf("the answer begins with %q", line)
	}
	status, ok := number(line[9:12])
	if !ok || (len(line) > 12 && line[12] != ' ') {
		return 0, 0, "", fmt.Errorf("the answer begins with %q", line)
	}
	length = -1
	for len(rest) > 2 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found {
			return 0, 0, "", fmt.Errorf("header line %q", line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case isHeader(name, "content-length"):
			if length, ok = number(value); !ok || length > answerMax {
				return 0, 0, "", fmt.Errorf("content length %q", value)
			}
		case isHeader(name, "transfer-encoding"):
			return 0, 0, "", fmt.Errorf("the answer is %s: measure with --client net/http", value)
		case isHeader(name, "location"):
			location = string(value)
		}
	}
	if length < 0 {
		return 0, 0, "", errors.New("the answer has no content length: measure with --client net/http")
	}
	return status, length, location, nil
}

// isHeader compares a header's name with one in lower case.
func isHeader(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func number(text []byte) (int, bool) {
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<40 {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, len(text) > 0
}
