package httpapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// reloadEvery is how often, at most, the files of a certificate are looked at.
const reloadEvery = 5 * time.Second

// certificate is a certificate that follows its files.
type certificate struct {
	certFile, keyFile string
	logger            *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	checked time.Time // when the files were last looked at
	seen    [2]stamp  // what they looked like when current was read
	bad     [2]stamp  // what they looked like when they could last not be used
}

// stamp tells whether a file was changed or replaced.
type stamp struct {
	modified time.Time
	size     int64
}

// LoadTLS returns the TLS configuration of a listener with the given certificate and key. When the files
// change, new connections get the new pair within seconds. A pair that cannot be used, or has expired, is logged, and the
// old one stays. Only HTTP/1.1 is offered, in TLS 1.2 and above.
func LoadTLS(certFile, keyFile string, logger *slog.Logger) (*tls.Config, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, logger: logger}
	if err := c.first(time.Now()); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()), nil },
	}, nil
}

// first loads the certificate that the listener starts with.
func (c *certificate) first(now time.Time) (err error) {
	if c.seen, err = c.stamps(); err != nil {
		return err
	}
	c.current, err = c.load()
	c.checked, c.bad = now, c.seen
	if err == nil && now.After(c.current.Leaf.NotAfter) { // another clock may be wrong: clients decide
		c.logger.Warn("the certificate has expired: clients will refuse it", "file", c.certFile, "not_after", c.current.Leaf.NotAfter)
	}
	return err
}

// get returns the certificate to use now.
func (c *certificate) get(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.checked) < reloadEvery {
		return c.current
	}
	c.checked = now
	seen, err := c.stamps()
	if err == nil && seen == c.seen {
		return c.current
	}
	// A pair that is of no use is not tried again before it changes; perhaps only one of the two files has been
	// written yet. Missing files have an empty stamp.
	if seen != c.bad {
		var fresh *tls.Certificate
		if err == nil {
			fresh, err = c.load()
		}
		if err == nil && now.After(fresh.Leaf.NotAfter) {
			err = fmt.Errorf("%s has expired at %v", c.certFile, fresh.Leaf.NotAfter)
		}
		if err != nil {
			c.bad = seen
			c.logger.Error("cannot load the new certificate; the old one stays in use", "err", err)
			return c.current
		}
		c.seen, c.current = seen, fresh
		c.logger.Info("certificate reloaded", "not_after", fresh.Leaf.NotAfter)
	}
	return c.current
}

func (c *certificate) stamps() (s [2]stamp, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return [2]stamp{}, fmt.Errorf("look at certificate file: %w", err)
		}
		s[i] = stamp{info.ModTime(), info.Size()}
	}
	return s, nil
}

func (c *certificate) load() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s and key %s: %w", c.certFile, c.keyFile, err)
	}
	return &pair, nil
}

// CheckListen refuses an address that others than this machine can reach, unless the listener has TLS and a
// client token. A name is loopback only if it is localhost or every address that it has is one; no name at
// all means every interface.
func CheckListen(address string, hasTLS, hasClientToken bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address %q: want host:port", address)
	}
	if hasTLS && hasClientToken || isLoopbackListen(host) {
		return nil
	}
	missing := "TLS (-tls-cert, -tls-key) and a client token (-client-token)"
	switch {
	case hasTLS:
		missing = "a client token (-client-token)"
	case hasClientToken:
		missing = "TLS (-tls-cert, -tls-key)"
	}
	return errors.New("listening on " + address + ", which is not loopback, needs " + missing)
}

func isLoopbackListen(host string) bool {
	if host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	ips, err := net.LookupIP(host)
	if err != nil || len(ips) == 0 {
		return false
	}
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false
		}
	}
	return true
}
