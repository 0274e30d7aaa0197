package mesh

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/httpapi"
	dialer "example.com/mq/internal/peer"
)

const token = "mesh-canary-5"

// server is a node behind the listener that clients use.
type server struct {
	mesh *Mesh
	http *httpapi.Server
	url  string
	stop func()
}

// serve starts nodes that reach each other over HTTP, each with what receive makes of what comes.
func serve(t testing.TB, n int, config *tls.Config, pool *x509.CertPool, receive func(self int, cfg *Config)) []*server {
	t.Helper()
	list, urls := make([]*server, n), make([]string, n)
	listeners := make([]net.Listener, n)
	scheme := "http://"
	if config != nil {
		scheme = "https://"
	}
	for i := range list {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], urls[i] = ln, scheme+ln.Addr().String()
	}
	for i := range list {
		cfg := Config{
			Self: i, Nodes: n,
			Dial: func(ctx context.Context, to int) (net.Conn, error) {
				return dialer.Dial(ctx, dialer.Config{URL: urls[to], Token: token, CA: pool},
					dialer.Protocol{Name: api.ProtocolRaft, Path: api.PathRaftStream, TokenHeader: api.HeaderRaftToken})
			},
			Hello:  func() Hello { return Hello{NodeID: [16]byte{byte(i)}, Boot: 1} },
			Check:  func(int, Hello) error { return nil },
			Packet: func(int, []byte) {}, Answer: func(_ context.Context, _ int, p []byte) []byte { return p },
			Clock: clock.System{}, Random: mathrand.New(mathrand.NewPCG(1, uint64(i))), Logger: slog.New(slog.DiscardHandler),
		}
		if receive != nil {
			receive(i, &cfg)
		}
		m := New(cfg)
		h, err := httpapi.New(httpapi.Config{
			Broker: struct{ httpapi.Broker }{}, Logger: cfg.Logger, TLS: config,
			Raft: &httpapi.Raft{Token: token, Stream: m.Serve, Role: func() any { return nil }, Status: func() any { return nil }},
		})
		if err != nil {
			t.Fatal(err)
		}
		m.Start()
		served := make(chan error, 1)
		go func() { served <- h.Serve(listeners[i]) }()
		list[i] = &server{mesh: m, http: h, url: urls[i], stop: sync.OnceFunc(func() {
			m.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := h.Shutdown(ctx); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
			<-served
		})}
		t.Cleanup(list[i].stop)
	}
	until(t, "all are connected", func() bool {
		for _, s := range list {
			for _, p := range s.mesh.peers {
				if p != nil && (p.out[packets].Load() == nil || p.out[calls].Load() == nil) {
					return false
				}
			}
		}
		return true
	})
	return list
}

// until waits, in real time.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// certificate makes a self-signed one for 127.0.0.1, and the pool that trusts it.
func certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, pool
}

// TestOverHTTP: real nodes on one machine, plain and over TLS: all that is sent arrives in order, calls are answered, a
// node that goes and comes back is connected again, and nothing is left running.
func TestOverHTTP(t *testing.T) {
	config, pool := certificate(t)
	for name, config := range map[string]*tls.Config{"plain": nil, "tls": config} {
		t.Run(name, func(t *testing.T) {
			const each = 2000
			var got [3][3]atomic.Int64
			nodes := serve(t, 3, config, pool, func(self int, cfg *Config) {
				cfg.QueueBytes = 1 << 30
				cfg.Packet = func(from int, p []byte) {
					if n := got[self][from].Add(1); n != int64(binary.LittleEndian.Uint64(p)) || !bytes.Equal(p[8:], content(int(n))) {
						t.Errorf("node %d, from %d: packet %d of %d bytes is another one", self, from, n, len(p))
					}
				}
			})
			var wg sync.WaitGroup
			for i, s := range nodes {
				for to := range nodes {
					if to == i {
						continue
					}
					wg.Go(func() {
						for n := 1; n <= each; n++ {
							s.mesh.Send(to, append(binary.LittleEndian.AppendUint64(nil, uint64(n)), content(n)...))
						}
					})
					wg.Go(func() {
						for n := range 20 {
							want := content(n * 3)
							answer, err := s.mesh.Call(t.Context(), to, want)
							if err != nil || !bytes.Equal(answer, want) {
								t.Errorf("call: %d bytes, %v", len(answer), err)
							}
						}
					})
				}
			}
			wg.Wait()
			until(t, "all packets are there", func() bool {
				for i := range got {
					for j := range got[i] {
						if i != j && got[i][j].Load() < each {
							return false
						}
					}
				}
				return true
			})
			nodes[2].stop()
			until(t, "the others notice", func() bool {
				return !nodes[0].mesh.Peers()[1].Connected && !nodes[1].mesh.Peers()[1].Connected
			})
			if err := nodes[0].mesh.Peers()[1]; strings.Contains(fmt.Sprint(err), "canary") {
				t.Errorf("%v", err)
			}
			for _, s := range nodes {
				s.stop()
			}
			all := make([]byte, 1<<20)
			if all = all[:runtime.Stack(all, true)]; bytes.Contains(all, []byte("mesh.(*")) {
				t.Errorf("something still runs:\n%s", all)
			}
		})
	}
}

// content is what packet n has: of all sizes, a few of them large.
func content(n int) []byte {
	size := n % 300
	if n%100 == 0 {
		size = 20<<10 + n
	}
	if n%1000 == 0 {
		size = 1 << 20
	}
	return bytes.Repeat([]byte{byte(n)}, size)
}

// TestStuckPeerOverTCP: with the buffers of real sockets in between, Send to a peer that reads nothing still never waits.
func TestStuckPeerOverTCP(t *testing.T) {
	hold := make(chan struct{})
	nodes := serve(t, 2, nil, nil, func(self int, cfg *Config) {
		cfg.QueueBytes = 4 << 20
		cfg.Packet = func(int, []byte) {
			if self == 1 {
				<-hold
			}
		}
	})
	began := time.Now()
	for range 200 {
		nodes[0].mesh.Send(1, make([]byte, 256<<10))
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("Send took %v", d)
	}
	until(t, "the stream is given up", func() bool { return !nodes[0].mesh.Peers()[0].Connected })
	if n := nodes[0].mesh.Peers()[0].Dropped; n < 100 {
		t.Errorf("%d dropped", n)
	}
	close(hold)
}

// BenchmarkPackets sends packets one way over loopback TCP.
func BenchmarkPackets(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var got atomic.Int64
			nodes := serve(b, 2, nil, nil, func(_ int, cfg *Config) { cfg.Packet = func(int, []byte) { got.Add(1) } })
			packet := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			sent := int64(0)
			for range b.N {
				for (sent-got.Load())*int64(size+itemBytes) > 8<<20 {
					runtime.Gosched()
				}
				nodes[0].mesh.Send(1, packet)
				sent++
			}
			for got.Load() < sent {
				runtime.Gosched()
			}
		})
	}
}

// BenchmarkRound sends a small packet and back, as an append and its answer.
func BenchmarkRound(b *testing.B) {
	back := make(chan struct{}, 1)
	var nodes []*server
	nodes = serve(b, 2, nil, nil, func(self int, cfg *Config) {
		cfg.Packet = func(_ int, p []byte) {
			if self == 1 {
				nodes[1].mesh.Send(0, p)
				return
			}
			back <- struct{}{}
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		nodes[0].mesh.Send(1, make([]byte, 200))
		<-back
	}
}

// BenchmarkCalls fetches 4 MiB by each call, two at a time.
func BenchmarkCalls(b *testing.B) {
	answer := make([]byte, 4<<20)
	nodes := serve(b, 2, nil, nil, func(_ int, cfg *Config) { cfg.Answer = func(context.Context, int, []byte) []byte { return answer } })
	b.SetBytes(int64(len(answer)))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range (b.N + 1) / 2 {
				if _, err := nodes[0].mesh.Call(b.Context(), 1, nil); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
