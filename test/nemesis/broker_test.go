package nemesis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// small makes segments and snapshots come often.
var small = []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"}

// equal returns what is lacking until two data folders have the same log, byte for byte.
func equal(a, b string) string {
	var folders [2]*vfs.OS
	for i, name := range []string{a, b} {
		folder, err := vfs.Open(name)
		if err != nil {
			return err.Error()
		}
		defer folder.Close()
		folders[i] = folder
	}
	if c, err := wal.Compare(folders[0], "log", folders[1], "log"); err != nil || !c.Equal() {
		return fmt.Sprintf("%s and %s: %+v, %v", a, b, c, err)
	}
	return ""
}

// begin lets a load work in the background. stop ends it: each call that is under way is finished.
func begin(t *testing.T, l *load.Load, c *load.Client) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		l.RunBy(ctx, c)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// awaitAck waits until a publish is acknowledged that was sent after an instant.
func awaitAck(t *testing.T, l *load.Load, after time.Time, said func() string) {
	t.Helper()
	await(t, "writes are taken", func() string {
		if l.LastAcknowledged().After(after) {
			return ""
		}
		return fmt.Sprintf("%v; %v\n%s", l.Statuses(), l.Err(), said())
	})
}

// reach is how clients reach nodes at places: each from beside the node. The folder gets a certificate for all.
func reach(t *testing.T, dir string, places []Place) (o load.Options, flags []string) {
	t.Helper()
	networks := map[string]*process.Network{}
	var addresses []string
	for _, p := range places {
		networks[p.Address] = p.Network
		addresses = append(addresses, p.Address)
	}
	o.TLS = &tls.Config{RootCAs: certificate(t, dir, addresses)}
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return networks[host].DialContext(ctx, network, address)
	}
	return o, append([]string{
		"-tls-cert", filepath.Join(dir, "cert.pem"), "-tls-key", filepath.Join(dir, "key.pem"), "-tls-ca", filepath.Join(dir, "cert.pem"),
		"-client-token", "test-client-token",
	}, small...)
}

// config is that of a node at a place.
func config(p Place, o load.Options) (cfg process.Config, url string) {
	return process.Config{Listen: p.Address + ":8443", Network: p.Network, Client: &http.Client{
		Transport: &http.Transport{DialContext: o.Dial, TLSClientConfig: o.TLS},
	}}, "https://" + p.Address + ":8443"
}

// certificate makes a certificate for some addresses, which trusts itself, in the files cert.pem and key.pem.
func certificate(t *testing.T, dir string, addresses []string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// Valid while clocks jump.
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mq test"}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	for _, a := range addresses {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{
		"cert.pem": text, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// group is a cluster under load.
type group struct {
	*process.Cluster
	t      *testing.T
	load   *load.Load
	client *load.Client
}

// gatherGroup starts a cluster and its load. stop ends the load.
func gatherGroup(t *testing.T, c *process.Cluster, o load.Options, cfg load.Config) (g *group, stop func()) {
	t.Helper()
	o.URLs, o.Cluster, o.Patient = c.URLs(), true, true
	g = &group{c, t, load.New(cfg), load.Open(o)}
	t.Cleanup(g.client.Close)
	g.load.Checker.Doubt(true) // a leader that was replaced may still show records
	g.Start()
	g.AwaitWhole(patience)
	stop = begin(t, g.load, g.client)
	awaitAck(t, g.load, time.Now(), g.Said)
	return g, stop
}

// finish settles what is open, reads everything back from each node as the leader, and compares the logs.
func (g *group) finish() {
	t := g.t
	t.Helper()
	g.AwaitWhole(patience)
	if err := g.load.SettleBy(t.Context(), g.client); err != nil {
		t.Fatalf("%v\n%s", err, g.Said())
	}
	g.load.Checker.Restarted()
	g.load.Checker.Doubt(false)
	for i := range g.Nodes {
		g.Await(patience, fmt.Sprintf("node %d leads", i), func() string {
			leader := g.Leader(patience)
			if leader == i {
				return ""
			}
			return fmt.Sprintf("node %d leads, %v", leader, g.Nodes[leader].Process.Transfer(i))
		})
		g.Await(patience, "everything is read back", func() string {
			if err := g.load.ReadBackBy(t.Context(), g.client, true); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	g.Await(patience, "equal logs", func() string {
		return equal(g.Nodes[0].Data, g.Nodes[1].Data) + equal(g.Nodes[0].Data, g.Nodes[2].Data)
	})
	if err := g.load.Err(); err != nil {
		t.Errorf("%v\n%s", err, g.Said())
	}
	if r := g.load.Checker.Report(); r.Acknowledged == 0 || r.Read == 0 {
		t.Error("the load did nothing")
	}
	g.Stop()
}
