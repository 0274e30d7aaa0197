package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

const adminToken = "scale"

// conn is one kept-alive connection that speaks just enough of HTTP/1.1. Its memory does not grow with what it sends.
type conn struct {
	net    net.Conn
	in     *bufio.Reader
	out    []byte
	answer []byte
	began  time.Time // when the operation at work began; one that waits first sets it anew
}

func (s *server) dial() (*conn, error) {
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		return nil, err
	}
	return &conn{net: c, in: bufio.NewReaderSize(c, 32<<10)}, nil
}

func (c *conn) close() { c.net.Close() }

// call sends a request and returns the body of the answer, which is valid until the next one. Any status but 200 is an error.
func (c *conn) call(path string, body []byte) ([]byte, error) {
	if err := c.send(path, body); err != nil {
		return nil, err
	}
	return c.receive()
}

func (c *conn) send(path string, body []byte) error {
	c.out = append(c.out[:0], "POST "...)
	c.out = append(c.out, path...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+adminToken+"\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, body...)
	_, err := c.net.Write(c.out)
	return err
}

func (c *conn) receive() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return nil, fmt.Errorf("the answer begins with %q", line)
	}
	ok, status := string(line[9:12]) == "200", string(line[9:12])
	length := -1
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return nil, err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return nil, err
			}
		}
	}
	if length < 0 {
		return nil, errors.New("the answer has no length")
	}
	if cap(c.answer) < length {
		c.answer = make([]byte, length+length/4)
	}
	c.answer = c.answer[:length]
	if _, err := io.ReadFull(c.in, c.answer); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("status %s: %.300s", status, c.answer)
	}
	return c.answer, nil
}

// value returns so many bytes as they stand in a request.
func value(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// batchTail is what follows the topic in the body of a publish-batch.
func batchTail(count, size int) []byte {
	b := []byte(`,"messages":[`)
	for i := range count {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"value":"%s"}`, value(size))
	}
	return append(b, "]}"...)
}

// singleTail is what follows the topic in the body of a publish.
func singleTail(size int) []byte { return fmt.Appendf(nil, `,"value":"%s"}`, value(size)) }
