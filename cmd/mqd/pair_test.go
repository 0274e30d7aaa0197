package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/peer"
)

// TestRoles: which flags and variables go with which role. Nothing that is wrong repeats a token or a URL with one.
func TestRoles(t *testing.T) {
	dir := t.TempDir()
	const token = "pair-canary-41d0"
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "https://mq-2.example.com:8080"
	withToken := env("MQ_REPLICATION_TOKEN", token)
	for _, row := range []struct {
		args string
		env  func(string) (string, bool)
		want string // in the error; empty: none
	}{
		{"", noEnv, ""},
		{"-role standalone", withToken, ""}, // a variable is there for others, too
		{"-role standalone", env("MQ_REPLICATION_TOKEN", ""), "MQ_REPLICATION_TOKEN: the token is empty"},
		{"-replication-token " + token, noEnv, "-replication-token is for"},
		{"-replication-token-file " + file, noEnv, "-replication-token-file is for"},
		{"-replica " + url, noEnv, "-replica is for -role leader only"},
		{"-epoch 1", noEnv, "-epoch is for -role leader only"},
		{"-replica-timeout 2s", noEnv, "-replica-timeout is for"},
		{"-tls-ca x", noEnv, "-tls-ca is for"},

		{"-role follower", withToken, ""},
		{"-role follower -replication-token " + token, noEnv, ""},
		{"-role follower -replication-token-file " + file, noEnv, ""},
		{"-role follower -replica-timeout 1m -tls-ca x", withToken, ""},
		{"-role follower", noEnv, "needs the token of the pair"},
		{"-role follower", env("MQ_REPLICATION_TOKEN", ""), "MQ_REPLICATION_TOKEN: the token is empty"},
		{"-role follower", env("MQ_REPLICATION_TOKEN", "canary here"), "printable"},
		{"-role follower -replication-token " + token + " -replication-token-file " + file, noEnv, "exclude"},
		{"-role follower -replication-token=", noEnv, "empty"},
		{"-role follower -replica " + url, withToken, "-replica is for -role leader only"},
		{"-role follower -epoch 2", withToken, "-epoch is for -role leader only"},
		{"-role follower -epoch 0", withToken, "-epoch is for -role leader only"},

		{"-role leader -epoch 1 -replica " + url, withToken, ""},
		{"-role leader -epoch 9007199254740991 -replica http://127.0.0.1:8081 -replica-timeout 100ms", withToken, ""},
		{"-role leader -epoch 1 -replica http://[::1]:8081/ -tls-ca x", withToken, ""},
		{"-role leader -epoch 1 -replica " + url, noEnv, "needs the token of the pair"},
		{"-role leader -epoch 1", withToken, "needs -replica"},
		{"-role leader -epoch 1 -replica=", withToken, "needs -replica"},
		{"-role leader -replica " + url, withToken, "needs -epoch"},
		{"-role leader -epoch 0 -replica " + url, withToken, "-epoch 0: must be from 1 to 9007199254740991"},
		{"-role leader -epoch 9007199254740992 -replica " + url, withToken, "-epoch 9007199254740992: must be"},
		{"-role leader -epoch -1 -replica " + url, withToken, "epoch"},
		{"-role leader -epoch one -replica " + url, withToken, "epoch"},
		{"-role leader -epoch 1 -replica mq-2:8080", withToken, "-replica: want http://host:port"},
		{"-role leader -epoch 1 -replica https://mq-2", withToken, "-replica: a port"},
		{"-role leader -epoch 1 -replica http://mq-2:8080", withToken, "-replica: the token must not cross a network unencrypted"},
		{"-role leader -epoch 1 -replica https://u:canary@mq-2:8080", withToken, "-replica: only scheme, host and port"},
		{"-role leader -epoch 1 -replica " + url + " -replica-timeout 99ms", withToken, "-replica-timeout 99ms: must be from 100ms to 1m0s"},
		{"-role leader -epoch 1 -replica " + url + " -replica-timeout 61s", withToken, "-replica-timeout"},

		{"-role cluster", withToken, "token of the cluster"},
		{"-role Leader", withToken, "say standalone, leader, follower or cluster"},
		{"-role=", withToken, "say standalone, leader, follower or cluster"},
	} {
		o, err := parseFlags(strings.Fields(row.args), row.env, io.Discard)
		if row.want == "" {
			if err != nil {
				t.Errorf("%q: %v", row.args, err)
			} else if o.role != roleStandalone && o.replicationToken != token {
				t.Errorf("%q: another token", row.args)
			}
			continue
		}
		if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q: %v, want wrong usage with %q", row.args, err, row.want)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: a secret is in the error: %v", row.args, err)
		}
	}
	o, err := parseFlags([]string{"-role", "leader", "-epoch", "7", "-replica", url}, withToken, io.Discard)
	if err != nil || o.epoch != 7 || o.replica != url || o.replicaTimeout != 2*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestAuthorities: a file of certificates that is of no use ends mqd before it touches anything.
func TestAuthorities(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, []byte("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	for name, want := range map[string]string{file: "holds no certificate", filepath.Join(dir, "none"): "no such file"} {
		var stderr lines
		code := run(t.Context(), []string{"-role", "follower", "-data", data, "-listen", "127.0.0.1:0", "-tls-ca", name}, env("MQ_REPLICATION_TOKEN", "x"), &stderr)
		if got := stderr.String(); code != exitFailure || strings.Count(got, "\n") != 1 || !strings.Contains(got, want) || !strings.Contains(got, "-tls-ca") {
			t.Errorf("%s: status %d, %q", name, code, got)
		}
		if _, err := os.Stat(data); err == nil {
			t.Error("a data folder was made")
		}
	}
	if pool, err := loadAuthorities(""); pool != nil || err != nil {
		t.Errorf("no file: %v, %v", pool, err)
	}
}

// TestFollowerServes: a follower answers the other node from the start on, by its own token alone, and no client.
func TestFollowerServes(t *testing.T) {
	const token, client = "pair-canary-41d0", "client-canary-5f1c"
	lookup := env("MQ_REPLICATION_TOKEN", token, "MQ_CLIENT_TOKEN", client)
	p := startRole(t, lookup, "-role", "follower", "-listen", "127.0.0.1:0", "-data", filepath.Join(t.TempDir(), "data"))
	for _, row := range []struct {
		header, token string
		want          int
	}{{"X-Nothing", "", 401}, {"Authorization", "Bearer " + client, 401}, {"Authorization", "Bearer " + token, 401}, {api.HeaderReplicationToken, client, 401},
		{api.HeaderReplicationToken, token, 200}} {
		code, text := p.ask(t, http.DefaultClient, "GET", api.PathReplicationStatus, "", row.header, row.token)
		var s api.PairStatus
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Error(err)
		}
		if code != row.want || row.want == 200 && s.Role != "follower" {
			t.Errorf("%s %s: %d %s, want %d", row.header, row.token, code, text, row.want)
		}
	}
	conn, err := peer.Dial(t.Context(), peer.Config{URL: p.base, Token: token}, replicationProtocol)
	if err != nil {
		t.Errorf("stream: %v", err)
	} else {
		defer conn.Close()
	}
	if _, err := peer.Dial(t.Context(), peer.Config{URL: p.base, Token: client}, replicationProtocol); err == nil {
		t.Error("a stream for the client token")
	}
	// It stops with a stream open.
	if code := p.stop(); code != exitOK || strings.Contains(p.stderr.String(), "canary") {
		t.Errorf("status %d: %s", code, p.stderr)
	}
}

// process is mqd in this process.
type process struct {
	stderr *lines
	stop   func() int // stops it, and returns the exit status
	ended  chan int   // has the exit status when it ends by itself
	base   string
}

// startRole runs mqd until it listens. It ends with the test at the latest.
func startRole(t *testing.T, lookup func(string) (string, bool), args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{stderr: &lines{}, ended: make(chan int, 1)}
	go func() { p.ended <- run(ctx, args, lookup, p.stderr) }() // ended by stop
	p.stop = sync.OnceValue(func() int {
		cancel()
		return <-p.ended
	})
	t.Cleanup(func() { p.stop() })
	scheme := "http://"
	if slices.Contains(args, "-tls-cert") {
		scheme = "https://"
	}
	listening := regexp.MustCompile(`msg=listening address=(\S+) role=\S+ `)
	p.waitFor(t, "it listens", func() bool {
		m := listening.FindStringSubmatch(p.stderr.String())
		if m != nil {
			p.base = scheme + m[1]
		}
		return m != nil
	})
	return p
}

func (p *process) waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s: %s", what, p.stderr)
		}
	}
}

// ask sends a request and returns what came back.
func (p *process) ask(t *testing.T, client *http.Client, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// TestPairOverTLS: two nodes that know each other by token and certificate acknowledge a write, the follower serves
// no client, and after a promotion the old leader stops by itself with one clear line and status 1.
func TestPairOverTLS(t *testing.T) {
	dir := t.TempDir()
	const token = "pair-canary-41d0"
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := writeCertificate(t, certFile, keyFile)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: 20 * time.Second}
	lookup := env("MQ_REPLICATION_TOKEN", token)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	common := []string{"-tls-cert", certFile, "-tls-key", keyFile, "-tls-ca", certFile}
	with := func(more ...string) []string { return append(more, common...) }

	second := startRole(t, lookup, with("-role", "follower", "-data", b, "-listen", "127.0.0.1:0")...)
	first := startRole(t, lookup, with("-role", "leader", "-epoch", "1", "-replica", second.base, "-data", a, "-listen", "127.0.0.1:0")...)
	status := func(p *process) (s api.PairStatus) {
		code, text := p.ask(t, client, "GET", api.PathReplicationStatus, "", api.HeaderReplicationToken, token)
		if err := json.Unmarshal([]byte(text), &s); err != nil || code != 200 {
			t.Fatalf("%d %s: %v", code, text, err)
		}
		return s
	}
	first.waitFor(t, "writes are acknowledged", func() bool { return status(first).Writable })
	if code, text := first.ask(t, client, "POST", api.PathPublish, `{"topic":"t","value":"YQ=="}`); code != 200 {
		t.Fatalf("publish: %d %s", code, text)
	}
	if s := status(first); s.Role != "leader" || s.Epoch != 1 || s.Peer.Address != second.base || s.Peer.NodeID != status(second).NodeID || s.LogID != status(second).LogID {
		t.Errorf("leader: %+v, follower: %+v", s, status(second))
	}
	for _, path := range []string{api.PathPublish, api.PathFetch} {
		body := map[string]string{api.PathPublish: `{"topic":"t","value":""}`, api.PathFetch: `{"topic":"t","offset":0}`}[path]
		if code, text := second.ask(t, client, "POST", path, body); code != 503 || !strings.Contains(text, `"not_leader"`) {
			t.Errorf("%s at the follower: %d %s", path, code, text)
		}
	}

	// Promotion: the new leader finds the old one, which learns that its epoch is over.
	if code := second.stop(); code != exitOK {
		t.Fatalf("status %d: %s", code, second.stderr)
	}
	second = startRole(t, lookup, with("-role", "leader", "-epoch", "2", "-replica", first.base, "-data", b, "-listen", "127.0.0.1:0")...)
	var code int
	select {
	case code = <-first.ended:
		first.ended <- code
	case <-time.After(20 * time.Second):
		t.Fatalf("the old leader goes on: %s", first.stderr)
	}
	said := strings.Split(strings.TrimSpace(first.stderr.String()), "\n")
	if last := said[len(said)-1]; code != exitFailure || !strings.HasPrefix(last, "mqd: ") || !strings.Contains(last, "-role follower") {
		t.Errorf("status %d: %s", code, first.stderr)
	}
	if code := second.stop(); code != exitOK {
		t.Errorf("status %d: %s", code, second.stderr)
	}
	if strings.Contains(first.stderr.String()+second.stderr.String(), "canary") {
		t.Errorf("a token was logged: %s%s", first.stderr, second.stderr)
	}
}

// writeCertificate writes a self-signed certificate for 127.0.0.1 and its key, and returns who trusts it.
func writeCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mq"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
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
	pool, err := loadAuthorities(certFile)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}
