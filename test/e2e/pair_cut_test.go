package e2e

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
	dice "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestPairCut cuts the network between the nodes of a pair, one way, the other way, or both, by dropping packets. Leader
// and follower are in networks of their own; clients are beside the node that they speak to. MQ_PAIR_CUTS says how
// many cuts.
func TestPairCut(t *testing.T) {
	seed := process.Seed(t)
	random := dice.New(dice.NewPCG(seed, 99))
	draw(t, random, "MQ_PAIR_CUTS", 1, cuts, func(i int, s scenario[func(*cable, uint64)]) {
		t.Run(fmt.Sprintf("%d: %s", i, s.name), func(t *testing.T) { s.do(newCable(t), random.Uint64()) })
	})
}

var cuts = []scenario[func(c *cable, seed uint64)]{
	{"the leader hears nothing", func(c *cable, seed uint64) { c.cut(seed, c.leaders) }},
	{"the follower hears nothing", func(c *cable, seed uint64) { c.cut(seed, c.followers) }},
	{"both hear nothing", func(c *cable, seed uint64) { c.cut(seed, c.leaders, c.followers) }},
	{"flapping", (*cable).flap},
	{"promotion, the old leader hears nothing", func(c *cable, _ uint64) { c.takeOver(c.leaders) }},
	{"promotion, the new leader hears nothing", func(c *cable, _ uint64) { c.takeOver(c.followers) }},
}

// cable is a pair whose nodes are in two networks, with a third node beside the follower.
type cable struct {
	*pair
	leaders, followers *process.Network // where node 0 is, and where the others are
}

// newCable makes the networks and the nodes. Nothing runs yet.
func newCable(t *testing.T) *cable {
	t.Helper()
	c := &cable{pair: &pair{t: t, dir: process.KeptDir(t), epoch: 1}}
	c.leaders, c.followers = process.NewNetwork(t), process.NewNetwork(t)
	const leader, follower = "10.77.0.1", "10.77.0.2"
	c.leaders.Join(leader, c.followers, follower)
	networks := map[string]*process.Network{leader: c.leaders, follower: c.followers}
	c.reach = load.Options{
		TLS: &tls.Config{RootCAs: makeCertificate(t, c.dir, leader, follower)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return networks[host].DialContext(ctx, network, address)
		},
	}
	c.flags = append([]string{
		"-tls-cert", filepath.Join(c.dir, "cert.pem"), "-tls-key", filepath.Join(c.dir, "key.pem"), "-tls-ca", filepath.Join(c.dir, "cert.pem"),
		"-client-token", "test-client-token",
	}, small...)
	for i, address := range []string{leader + ":8443", follower + ":8443", follower + ":8444"} {
		network := c.followers
		if i == 0 {
			network = c.leaders
		}
		c.add(process.Config{Listen: address, Network: network, Client: &http.Client{
			Transport: &http.Transport{DialContext: c.reach.Dial, TLSClientConfig: c.reach.TLS},
		}}, "https://"+address)
	}
	return c
}

// makeCertificate makes a certificate for some addresses, which trusts itself, in the files cert.pem and key.pem.
func makeCertificate(t *testing.T, dir string, addresses ...string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mq test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
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

// cut makes some networks deaf under load, and heals them.
func (p *cable) cut(seed uint64, deaf ...*process.Network) {
	t := p.t
	p.nodes = p.nodes[:2]
	l := load.New(load.Config{Seed: seed, Publishers: 16})
	p.start()
	var a answers
	c := p.clientOf(0, a.hear)
	defer c.Close()
	run := begin(t, l, c)
	p.awaitAck(l, time.Now())
	cut := time.Now()
	for _, n := range deaf {
		n.Deafen()
	}
	unknown, slowest := p.wantRefusals(l, c, &a, cut)
	for _, n := range deaf {
		n.Heal()
	}
	back := p.awaitAck(l, time.Now())
	if back > backMax {
		t.Errorf("writes came back %v after the network", back)
	}
	run.stop()
	p.check(l)
	p.finish(l)
	t.Logf("in flight: %d unknown, the slowest after %v; writes came back after %v; %v", unknown, slowest, back, l.Checker.Report())
}

// flap cuts the network in all ways again and again, for times about as long as what the nodes bear.
func (p *cable) flap(seed uint64) {
	t := p.t
	p.flags = append(p.flags, "-replica-timeout", "300ms")
	random := dice.New(dice.NewPCG(seed, 1))
	p.nodes = p.nodes[:2]
	l := load.New(load.Config{Seed: seed, Publishers: 16})
	p.start()
	c := p.clientOf(0, nil)
	defer c.Close()
	run := begin(t, l, c)
	p.awaitAck(l, time.Now())
	wait := func(ms int) { <-time.After(time.Duration(random.IntN(ms)) * time.Millisecond) }
	for range 15 {
		ways := 1 + random.IntN(3)
		if ways&1 != 0 {
			p.leaders.Deafen()
		}
		if ways&2 != 0 {
			p.followers.Deafen()
		}
		wait(400)
		p.leaders.Heal()
		if random.IntN(2) == 0 {
			wait(100) // one way is back before the other
		}
		p.followers.Heal()
		wait(300)
	}
	back := p.awaitAck(l, time.Now())
	if back > backMax {
		t.Errorf("writes came back %v after the network", back)
	}
	run.stop()
	p.check(l)
	p.finish(l)
	t.Logf("writes came back after %v; %v; answers by status %v", back, l.Checker.Report(), l.Statuses())
}

// takeOver promotes the follower while the network is cut. The old leader goes on and is written to all the time: it
// acknowledges nothing, and is fenced when the network is back.
func (p *cable) takeOver(deaf *process.Network) {
	t := p.t
	o := newTakeover(t, p.pair)
	deaf.Deafen()
	o.nodes[1].Kill()
	o.insist()
	promotion := o.promote()
	o.publish()
	healed := time.Now()
	deaf.Heal()
	o.wantFenced()
	fenced := time.Since(healed)
	o.comeBack()
	t.Logf("promotion %v, fenced %v after the network was back", promotion, fenced)
}
