// Package peer is how a node reaches another one: it dials the listener that the other node serves clients on,
// shows its token, and has the connection switched from HTTP to a protocol of the nodes.
//
// It guarantees: the token goes to nobody but the node that the URL names, and not in the clear beyond this
// machine; no redirect is followed and no proxy used; whatever answers takes at most the configured time and a
// few KiB of memory; no error text holds the token. What Dial returns is the connection itself, with nothing
// read ahead and no deadline set.
// It never looks at what goes over the connection then, and never dials again by itself. It runs on the
// caller's goroutine.
//
// It is no stop of a publish: the roles that replicate the log run over it.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// Config says how to reach one node.
type Config struct {
	URL     string         // http(s)://host:port; see Check
	Token   string         // printable ASCII without spaces
	CA      *x509.CertPool // certificates that an https node may be signed by; nil: those of the system
	Timeout time.Duration  // of all that Dial does together; 0: 5 s
}

// DefaultTimeout is the time that Dial takes at most where Config does not say.
const DefaultTimeout = 5 * time.Second

// Protocol says what a connection is opened for.
type Protocol struct {
	Name        string // for header Upgrade: "mq-replication/1"
	Path        string // "/replication/stream"
	TokenHeader string // name of the header that carries the token
}

// Dial connects to the node and has the connection switched to the protocol. The connection is a *net.TCPConn,
// or a *tls.Conn for https. When ctx ends, Dial returns its error; a connection that was returned does not
// depend on ctx. An answer that refuses is a *RefusedError.
func Dial(ctx context.Context, cfg Config, p Protocol) (net.Conn, error) {
	t, err := parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("url of the node: %w", err)
	}
	if !printable(cfg.Token) {
		return nil, errors.New("the token must be printable ASCII without spaces")
	}
	timeout := cfg.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn, err := t.open(ctx, raw, cfg, p)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// open does what comes after connecting: TLS, request, answer.
func (t *target) open(ctx context.Context, raw net.Conn, cfg Config, p Protocol) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(past) })
	defer stop()
	explain := func(doing string, err error) error {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ctx.Err() // nobody else sets deadlines
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	conn := raw
	if t.tls {
		secure := tls.Client(raw, &tls.Config{
			ServerName: t.host, RootCAs: cfg.CA, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, explain("tls handshake", err)
		}
		conn = secure
	} else if a, ok := raw.RemoteAddr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		// The name may have led elsewhere than it did when it was checked.
		return nil, fmt.Errorf("connect: %s led to %v: %w", t.host, raw.RemoteAddr(), errInTheClear)
	}
	request := "POST " + p.Path + " HTTP/1.1\r\nHost: " + t.address + "\r\nUser-Agent: mq\r\n" +
		"Connection: Upgrade\r\nUpgrade: " + p.Name + "\r\n" + p.TokenHeader + ": " + cfg.Token + "\r\n\r\n"
	if _, err := conn.Write([]byte(request)); err != nil {
		return nil, explain("send the request", err)
	}
	if err := readAnswer(conn, p.Name, cfg.Token); err != nil {
		return nil, explain("ask to switch to "+p.Name, err)
	}
	if !stop() {
		return nil, explain("ask to switch to "+p.Name, ctx.Err()) // its deadline may be set already, or any moment
	}
	return conn, nil
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// printable reports whether s can be sent as the value of a header without being taken for anything else.
func printable(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
