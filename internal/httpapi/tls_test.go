package httpapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
)

// writePair writes a self-signed certificate with the given serial number.
func writePair(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "mq"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func startTLS(t *testing.T) (*running, string, string) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, certFile, keyFile, 1)
	cfg, err := LoadTLS(certFile, keyFile, startLogger())
	if err != nil {
		t.Fatal(err)
	}
	return start(t, func(c *Config) { c.TLS = cfg }), certFile, keyFile
}

func TestTLS(t *testing.T) {
	s, _, _ := startTLS(t)
	for range 2 {
		if a := s.post(api.PathPublish, goodBodies[api.PathPublish]); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := s.post(api.PathPublishBatch, string(benchBody(32, 256<<10))); a.status != 200 {
		t.Errorf("largest batch: %d %s", a.status, a.body)
	}
	if a := s.post(api.PathFetch, `{"topic":"bench","offset":0}`); a.status != 200 || len(a.body) < 4<<20 {
		t.Errorf("large answer: %d, %d bytes", a.status, len(a.body))
	}
	for _, row := range []struct {
		version uint16
		alpn    []string
		ok      bool
	}{
		{tls.VersionTLS13, nil, true},
		{tls.VersionTLS12, nil, true},
		{tls.VersionTLS11, nil, false},
		{tls.VersionTLS13, []string{"h2", "http/1.1"}, true},
		{tls.VersionTLS13, []string{"h2"}, false},
	} {
		c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: row.version, NextProtos: row.alpn})
		if (err == nil) != row.ok {
			t.Errorf("version %x, protocols %v: %v", row.version, row.alpn, err)
		}
		if err == nil {
			if p := c.ConnectionState().NegotiatedProtocol; row.alpn != nil && p != "http/1.1" {
				t.Errorf("protocol %q", p)
			}
			c.Close()
		}
	}
}

// TestTLSAnswers: lingering, refusals, long polls and stops work in TLS as they do without.
func TestTLSAnswers(t *testing.T) {
	s, _, _ := startTLS(t)
	s.post(api.PathPublish, goodBodies[api.PathPublish])
	dial := func() *raw {
		c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return newRaw(t, c)
	}
	c := dial()
	c.send("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n")
	for range 50 {
		c.send(strings.Repeat("x", 1_000_000))
	}
	if a := c.receive("POST"); a.status != 413 || !a.closed {
		t.Errorf("too large: %d %s", a.status, a.body)
	}
	c.atEnd()

	c = dial()
	c.send(request1(api.PathFetch, `{"topic":"t","offset":1,"wait_ms":20000}`))
	waiting := func() int { s.fake.mu.Lock(); defer s.fake.mu.Unlock(); return s.fake.waits }
	waitUntil(t, "it waits", func() bool { return waiting() == 1 })
	c.Close()
	waitUntil(t, "the wait ends", func() bool { return waiting() == 0 })

	// Plain HTTP on a TLS port ends at once, and breaks nothing.
	p := s.dial()
	p.send(request1(api.PathPublish, goodBodies[api.PathPublish]))
	p.br.ReadByte()
	p.Close()
	if a := s.post(api.PathPublish, goodBodies[api.PathPublish]); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestTLSHandshakeTimeout: who connects and does not shake hands is cut off.
func TestTLSHandshakeTimeout(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, certFile, keyFile, 1)
	cfg, err := LoadTLS(certFile, keyFile, startLogger())
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) { c.TLS, c.HeaderTimeout = cfg, 50*time.Millisecond })
	c := s.dial()
	c.send("\x16\x03\x01")
	began := time.Now()
	c.br.ReadByte()
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("after %v", d)
	}
}

// TestReload: a new pair is used once the files are looked at again; a bad one is not.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := LoadTLS(certFile, keyFile, startLogger()); err == nil {
		t.Error("no files, no error")
	}
	writePair(t, certFile, keyFile, 1)
	log := &syncBuffer{}
	c := &certificate{certFile: certFile, keyFile: keyFile, logger: slog.New(slog.NewTextHandler(log, nil))}
	if err := c.first(time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	expect := func(after time.Duration, serial int64) {
		t.Helper()
		now = now.Add(after)
		if got := c.get(now).Leaf.SerialNumber.Int64(); got != serial {
			t.Errorf("certificate %d, want %d", got, serial)
		}
	}
	// touch makes sure that the files look changed, however coarse their times are.
	stamp := time.Now()
	touch := func() {
		stamp = stamp.Add(time.Minute)
		os.Chtimes(certFile, stamp, stamp)
		os.Chtimes(keyFile, stamp, stamp)
	}
	expect(0, 1)
	writePair(t, certFile, keyFile, 2)
	touch()
	expect(reloadEvery-1, 1) // not looked at yet
	expect(1, 2)
	// Only the certificate is new: it does not fit the key.
	oldKey, _ := os.ReadFile(keyFile)
	writePair(t, certFile, keyFile, 3)
	newKey, _ := os.ReadFile(keyFile)
	os.WriteFile(keyFile, oldKey, 0o600)
	touch()
	expect(reloadEvery, 2)
	expect(reloadEvery, 2)
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("a bad pair was logged %d times, want once: %s", n, log)
	}
	os.WriteFile(keyFile, newKey, 0o600)
	touch()
	expect(reloadEvery, 3)
	os.Remove(certFile)
	expect(reloadEvery, 3)
	writePair(t, certFile, keyFile, 4)
	touch()
	expect(reloadEvery, 4)
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("the key is in the log")
	}
}

// TestExpired: an expired pair is not put in the place of the old one; one that is there at the start is told of.
func TestExpired(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, certFile, keyFile, 1)
	later := time.Now().Add(2 * time.Hour)
	log := &syncBuffer{}
	c := &certificate{certFile: certFile, keyFile: keyFile, logger: slog.New(slog.NewTextHandler(log, nil))}
	if err := c.first(time.Now()); err != nil || log.String() != "" {
		t.Fatal(err, log)
	}
	writePair(t, certFile, keyFile, 2)
	stamp := time.Now().Add(time.Minute)
	os.Chtimes(certFile, stamp, stamp)
	if got := c.get(later).Leaf.SerialNumber.Int64(); got != 1 || !strings.Contains(log.String(), "has expired") {
		t.Errorf("certificate %d, %s", got, log)
	}
	log = &syncBuffer{}
	c = &certificate{certFile: certFile, keyFile: keyFile, logger: slog.New(slog.NewTextHandler(log, nil))}
	if err := c.first(later); err != nil || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("an expired pair at the start: %v %s", err, log)
	}
}

// TestReloadServed checks over the network that GetCertificate is what a client gets.
func TestReloadServed(t *testing.T) {
	s, _, _ := startTLS(t)
	c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); n != 1 {
		t.Errorf("certificate %d", n)
	}
}

func TestCheckListen(t *testing.T) {
	for _, row := range []struct {
		address string
		open    bool // needs nothing
	}{
		{"127.0.0.1:8080", true}, {"127.1.2.3:0", true}, {"[::1]:8080", true}, {"localhost:8080", true},
		{":8080", false}, {"0.0.0.0:8080", false}, {"[::]:8080", false}, {"10.0.0.1:8080", false}, {"192.168.1.1:80", false},
		{"no-such-host.invalid:8080", false}, {"[::ffff:127.0.0.1]:80", true},
	} {
		for _, has := range []struct{ tls, token bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
			err := CheckListen(row.address, has.tls, has.token)
			if want := row.open || has.tls && has.token; (err == nil) != want {
				t.Errorf("%s with %+v: %v", row.address, has, err)
			}
			if err != nil && (strings.Contains(err.Error(), "-tls-cert") == has.tls || strings.Contains(err.Error(), "-client-token") == has.token) {
				t.Errorf("%s with %+v: the line names the wrong thing: %v", row.address, has, err)
			}
		}
	}
	for _, bad := range []string{"", "8080", "localhost", "a:b:c"} {
		if CheckListen(bad, true, true) == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestHostOnOtherListeners: the rule for Host is for loopback only.
func TestHostOnOtherListeners(t *testing.T) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, ln)
	_, port, _ := net.SplitHostPort(s.addr)
	s.addr = "127.0.0.1:" + port
	req, _ := http.NewRequest("POST", "http://"+s.addr+api.PathPublish, strings.NewReader(goodBodies[api.PathPublish]))
	req.Host = "mq.example.com"
	resp, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if a := read(t, resp); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
