package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
	"time"
)

var (
	errSpeaksTLS  = errors.New("the node speaks TLS: its URL must begin with https://")
	errSpeaksHTTP = errors.New("the node does not speak TLS: its URL must begin with http://")
)

// probeTimeout bounds how long a node is asked whether it speaks TLS.
const probeTimeout = time.Second

// hopeless says whether asking the same node again ends in the same way until somebody changes a setting.
func (e *Error) hopeless() bool {
	var certificate *tls.CertificateVerificationError
	return errors.Is(e.cause, errSpeaksTLS) || errors.Is(e.cause, errSpeaksHTTP) || errors.As(e.cause, &certificate)
}

// explainTLS replaces the error of an attempt where the reason is that one side speaks TLS and the other does
// not. A TLS server may hang up on plain HTTP without a word, so a node that did so on a new connection is
// asked: what goes over that connection is a handshake, no token and no record.
func (c *Client) explainTLS(ctx context.Context, n *node, fresh bool, err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/" {
		return errSpeaksHTTP
	}
	u, parseErr := url.Parse(n.url)
	hungUp := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	if parseErr != nil || u.Scheme != "http" || !fresh || !hungUp {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, port, _ := net.SplitHostPort(u.Host)
	if port == "" {
		port = "80"
	}
	// Whom it would prove to be is of no interest: nothing is sent to it.
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, dialErr := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if dialErr != nil {
		return err
	}
	conn.Close()
	return errSpeaksTLS
}
