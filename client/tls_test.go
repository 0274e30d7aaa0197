package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTLSMismatch: what only another setting can cure is said after one attempt.
func TestTLSMismatch(t *testing.T) {
	silent := log.New(io.Discard, "", 0)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{"offset":7}`) })
	secure := httptest.NewUnstartedServer(answer)
	secure.Config.ErrorLog = silent
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(answer)
	defer plain.Close()
	// Hangs up on all that is no TLS, as fasthttp does.
	listener, err := tls.Listen("tcp", "127.0.0.1:0", secure.TLS)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { // ended by the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	trusted := x509.NewCertPool()
	trusted.AddCert(secure.Certificate())

	for name, test := range map[string]struct {
		nodes []string
		pool  *x509.CertPool
		says  string
		times int
	}{
		"http to TLS":     {[]string{"http://" + listener.Addr().String()}, nil, "speaks TLS", 1},
		"https to HTTP":   {[]string{"https://" + strings.TrimPrefix(plain.URL, "http://")}, nil, "does not speak TLS", 1},
		"not trusted":     {[]string{secure.URL}, nil, "certificate", 1},
		"two not trusted": {[]string{secure.URL, secure.URL}, nil, "certificate", 2},
		"the other works": {[]string{"http://" + listener.Addr().String(), secure.URL}, trusted, "", 0},
	} {
		c := quick(t, Config{Nodes: test.nodes, TLS: &tls.Config{RootCAs: test.pool}})
		got, err := publish(c, PublishOptions{})
		if test.says == "" {
			if err != nil || got.Offset != 7 {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		if e := asError(t, err); e.Code != ErrTransport || e.Attempts != test.times || !strings.Contains(e.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneNodeHopelessTLS: the other one, which is not yet ready, is asked again.
func TestOneNodeHopelessTLS(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			say(w, 503, `{"code":"unavailable","message":"m"}`)
			return
		}
		say(w, 200, `{"offset":7}`)
	})
	c := quick(t, Config{Nodes: []string{secure.URL}}, f)
	if got, err := publish(c, PublishOptions{}); err != nil || got.Offset != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHangUpIsNoTLS: a node that hangs up and does not speak TLS is asked again.
func TestHangUpIsNoTLS(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			hangUp()
		}
		say(w, 200, `{"offset":7}`)
	})
	c := quick(t, Config{}, f)
	if got, err := c.Publish(context.Background(), "t", Record{}, PublishOptions{}); err != nil || got.Offset != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := (&Error{cause: net.ErrClosed}); err.hopeless() {
		t.Error("a closed connection is hopeless")
	}
}
