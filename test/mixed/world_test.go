// Package mixed lets everything go wrong at once: real processes of one role, each in a network of its own, under the load
// of many clients with topics that come and go, while a schedule drawn from a seed kills, stops, cuts off and restarts
// them, lets their disks fail, and takes their files away. After each round everything is healed, and everything that the
// other tests check is checked.
package mixed

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// patience is how long anything may take that must happen in the end.
const patience = 2 * time.Minute

// flags make segments small, so that all that has to do with them happens often.
var flags = []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576", "-scrub-within", "1m"}

// world is one run: the nodes, the clients, and what is broken now.
type world struct {
	t        *testing.T
	role     role
	dir      string
	flags    []string // of every node
	nodes    []*node
	networks []*process.Network // of the nodes; none of a standalone one
	cuts     map[[2]int]int     // how many events make the first node deaf to the second
	epoch    int                // of a pair
	leads    int                // the node that leads, or was the last to be seen leading
	reach    load.Options
	http     *http.Client

	load   *load.Load
	record *load.Recording
	judged map[string]bool // topics of record

	lives   sync.WaitGroup
	backups chan error // of the backup that was begun last; nil: none was
	first   []usage    // when it was quiet for the first time

	damaged     bool // a folder of a cluster's node, in this round
	damagedOnce bool // in any
	generation  int  // of the load

	// What was done, for the last line of a run.
	started, kills, promoted, refused, undecided, taken, broken, skipped int

	mu         sync.Mutex // guards violations
	violations []string
}

// violation notes what must not be. The test goes on to the end of the round, to see what else there is.
func (w *world) violation(format string, values ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, values...))
}

// newWorld makes the networks and the nodes. Nothing runs yet.
func newWorld(t *testing.T, r role, seed uint64) *world {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		process.Skip(t, err.Error())
	}
	w := &world{
		t: t, role: r, dir: process.KeptDir(t), cuts: map[[2]int]int{}, flags: append([]string{}, flags...),
		load: load.New(load.Config{Seed: seed, Churn: true}), record: load.NewRecording(), judged: map[string]bool{},
	}
	t.Cleanup(w.lives.Wait) // after the nodes are gone
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.kill()
		}
	})
	if err := os.Mkdir(w.backupDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if r == standalone {
		address, err := process.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		w.http = &http.Client{}
		w.add("http://"+address, process.Config{Listen: address})
		return w
	}
	w.wire()
	for i, n := range w.nodes {
		switch r {
		case cluster:
			n.cfg.Env = append(n.cfg.Env, "MQ_RAFT_TOKEN="+process.RaftToken)
			n.role = []string{"-role", "cluster", "-raft-self", fmt.Sprint(i), "-raft-peers", strings.Join(w.urls(), ",")}
		case pair:
			n.cfg.Env = append(n.cfg.Env, "MQ_REPLICATION_TOKEN="+process.ReplicationToken)
		}
	}
	if r == pair {
		w.flags = append(w.flags, "-replica-timeout", "1s")
		w.lead(0)
	}
	return w
}

func (w *world) add(url string, cfg process.Config) {
	i := len(w.nodes)
	cfg.Binary, cfg.Data, cfg.Log = process.Binary(w.t), filepath.Join(w.dir, fmt.Sprintf("node-%d", i)), filepath.Join(w.dir, fmt.Sprintf("node-%d.log", i))
	w.nodes = append(w.nodes, &node{w: w, number: i, url: url, cfg: cfg})
}

// wire makes a network for each node, and the nodes in them. Clients are beside the node that they speak to.
func (w *world) wire() {
	networks := map[string]*process.Network{}
	var addresses []string
	for i := range size(w.role) {
		a := fmt.Sprintf("10.77.0.%d", i+1)
		networks[a] = process.NewNetwork(w.t)
		for j, other := range w.networks {
			networks[a].Join(a, other, addresses[j])
		}
		addresses, w.networks = append(addresses, a), append(w.networks, networks[a])
	}
	w.reach.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return networks[host].DialContext(ctx, network, address)
	}
	w.reach.TLS = &tls.Config{RootCAs: w.certify(addresses)}
	w.http = &http.Client{Timeout: 20 * time.Second, Transport: withToken{&http.Transport{DialContext: w.reach.Dial, TLSClientConfig: w.reach.TLS}}}
	file := func(name string) string { return filepath.Join(w.dir, name) }
	w.flags = append(w.flags, "-tls-cert", file("cert.pem"), "-tls-key", file("key.pem"), "-tls-ca", file("cert.pem"), "-client-token", clientToken)
	for i, a := range addresses {
		w.add("https://"+a+":8443", process.Config{Listen: a + ":8443", Network: w.networks[i], Client: w.http})
	}
}

const clientToken = "test-client-token"

// withToken adds the token of clients to requests that have none: metrics need it, too.
type withToken struct{ *http.Transport }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+clientToken)
	}
	return w.Transport.RoundTrip(r)
}

// certify writes a certificate for some addresses and its key to files, and returns the pool that trusts it.
func (w *world) certify(addresses []string) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	for _, a := range addresses {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
	}
	signed, err := x509.CreateCertificate(crand.Reader, c, c, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, f := range []struct {
		name  string
		block pem.Block
	}{{"cert.pem", pem.Block{Type: "CERTIFICATE", Bytes: signed}}, {"key.pem", pem.Block{Type: "PRIVATE KEY", Bytes: secret}}} {
		text := pem.EncodeToMemory(&f.block)
		pool.AppendCertsFromPEM(text) // of the key: nothing
		if err := os.WriteFile(filepath.Join(w.dir, f.name), text, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return pool
}

func (w *world) backupDir() string { return filepath.Join(w.dir, "backup") }

func (w *world) urls() (urls []string) {
	for _, n := range w.nodes {
		urls = append(urls, n.url)
	}
	return urls
}

// client returns a client that knows all nodes and goes on when none answers.
func (w *world) client(timeout time.Duration) *load.Client {
	o := w.reach
	o.URLs, o.Patient, o.Cluster, o.Timeout = w.urls(), true, w.role == cluster, timeout
	return load.Open(o)
}

// await waits until lacks returns nothing; else the test fails with what is still lacking.
func (w *world) await(what string, lacks func() string) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		still := lacks()
		if still == "" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %v: %s\n%s", what, patience, still, w.said())
		}
		<-poll.C
	}
}

// said returns the end of what the nodes wrote to standard error.
func (w *world) said() (text string) {
	for _, n := range w.nodes {
		if n.life != nil {
			text += fmt.Sprintf("--- node %d (%s):\n%s", n.number, n.url, last(n.life.Stderr(), 3000))
		}
	}
	return text
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

// deafen makes a node deaf to another one, once more.
func (w *world) deafen(i, j int) {
	w.cuts[[2]int{i, j}]++
	w.recut(i)
}

// hear undoes deafen.
func (w *world) hear(i, j int) {
	w.cuts[[2]int{i, j}]--
	w.recut(i)
}

func (w *world) recut(i int) {
	w.networks[i].Heal()
	for j := range w.nodes {
		if w.cuts[[2]int{i, j}] > 0 {
			w.networks[i].Deafen(w.networks[j])
		}
	}
}

// resolve returns the node that a target stands for now.
func (w *world) resolve(t target) *node {
	w.look()
	return w.nodes[(w.leads+int(t))%len(w.nodes)]
}

// look finds out which node leads, if anybody says so.
func (w *world) look() {
	if w.role != cluster {
		return // it is known
	}
	term := uint64(0)
	for i, n := range w.nodes {
		if n.life == nil || n.life.paused || n.life.over() {
			continue
		}
		if r, err := n.life.RaftRole(); err == nil && r.Role == "leader" && r.Term > term {
			term, w.leads = r.Term, i
		}
	}
}

// lead says which node of a pair leads, with the epoch that follows, from the next starts on.
func (w *world) lead(i int) {
	w.epoch++
	w.leads = i
	other := w.nodes[1-i]
	w.nodes[i].role = []string{"-role", "leader", "-epoch", fmt.Sprint(w.epoch), "-replica", other.url}
	other.role = []string{"-role", "follower"}
}

// compare compares the logs of two nodes.
func (w *world) compare(a, b int) (wal.Comparison, error) {
	var folders [2]*vfs.OS
	for i, n := range []int{a, b} {
		folder, err := vfs.Open(w.nodes[n].cfg.Data)
		if err != nil {
			return wal.Comparison{}, err
		}
		defer folder.Close()
		folders[i] = folder
	}
	return wal.Compare(folders[0], "log", folders[1], "log")
}

// usage is what a process takes.
type usage struct{ memory, goroutines, files float64 }

func (n *node) usage() (u usage, err error) {
	m, err := n.life.Metrics()
	if err != nil {
		return u, err
	}
	return usage{m["process_resident_memory_bytes"], m["go_goroutines"], m["process_open_fds"]}, nil
}
