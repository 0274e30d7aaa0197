package nemesis

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/process"
)

// newPlaces makes networks that know only themselves.
func newPlaces(t testing.TB, n int) (places []Place) {
	t.Helper()
	if err := NeedLink(); err != nil {
		process.Skip(t, err.Error())
	}
	for i := range n {
		places = append(places, Place{process.NewNetwork(t), fmt.Sprintf("10.78.0.%d", i+1)})
	}
	return places
}

func newLink(t testing.TB, a, b Place, seed uint64, rates Rates) *Link {
	t.Helper()
	l, err := NewLink(a, b, seed, rates, rates)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// echo answers all connections with what they say, until the test ends.
func echo(t testing.TB, at Place) (address string) {
	t.Helper()
	var ln net.Listener
	if err := at.Network.Within(func() (err error) {
		ln, err = net.Listen("tcp", at.Address+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with ln; each connection with its client
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return ln.Addr().String()
}

// exchange sends so many bytes to an echo, and checks what comes back.
func exchange(from Place, address string, size int, seed uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := from.Network.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	sent := make([]byte, size)
	dice := rand.New(rand.NewPCG(seed, 0))
	for i := range sent {
		sent[i] = byte(dice.Uint32())
	}
	failed := make(chan error, 1)
	go func() { // ends with the connection
		_, err := conn.Write(sent)
		failed <- err
	}()
	got := make([]byte, size)
	n, err := io.ReadFull(conn, got)
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	if err := <-failed; err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("got %x, sent %x", sha256.Sum256(got), sha256.Sum256(sent))
	}
	return nil
}

// counter returns a number from what the kernel counts for a network.
func counter(t testing.TB, n *process.Network, protocol, name string) (count int64) {
	t.Helper()
	text, err := n.Command("cat", "/proc/thread-self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case words[0] != protocol+":":
		case names == nil:
			names = words
		default:
			for i, w := range words {
				if names[i] == name {
					fmt.Sscan(w, &count)
					return count
				}
			}
		}
	}
	t.Fatalf("the kernel counts no %s of %s", name, protocol)
	return 0
}

// TestLink sends bytes over links each of which does one thing to packets, and one that does all. TCP copes with all of
// it, the link counts it, and the kernel finds what was corrupted.
func TestLink(t *testing.T) {
	seed := process.Seed(t)
	for _, c := range []struct {
		name  string
		rates Rates
		size  int
		lacks func(p Packets) bool // what must be there did not happen
	}{
		{"plain", Rates{}, 1 << 20, func(p Packets) bool {
			return p.Arrived != p.Sent || p.Dropped+p.Duplicated+p.HeldUp+p.Overtaken+p.Corrupted+p.Delayed+p.Lost > 0
		}},
		{"drop", Rates{Drop: 0.02}, 200 << 10, func(p Packets) bool { return p.Dropped == 0 || p.Arrived != p.Sent-p.Dropped }},
		{"duplicate", Rates{Duplicate: 0.2}, 400 << 10, func(p Packets) bool { return p.Duplicated == 0 || p.Arrived != p.Sent+p.Duplicated }},
		{"reorder", Rates{Reorder: 0.1, HeldUp: 3 * time.Millisecond}, 400 << 10, func(p Packets) bool { return p.HeldUp == 0 || p.Overtaken == 0 }},
		{"corrupt", Rates{Corrupt: 0.03}, 200 << 10, func(p Packets) bool { return p.Corrupted == 0 }},
		{"delay", Rates{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond}, 100 << 10, func(p Packets) bool {
			return p.Delayed != p.Sent || p.Overtaken > 0
		}},
		{"all", Rates{Drop: 0.01, Duplicate: 0.1, Reorder: 0.05, Corrupt: 0.01, Delay: time.Millisecond, Jitter: time.Millisecond}, 200 << 10, func(p Packets) bool {
			return p.Dropped == 0 || p.Duplicated == 0 || p.Overtaken == 0 || p.Corrupted == 0 || p.Delayed == 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			places := newPlaces(t, 2)
			l := newLink(t, places[0], places[1], seed, c.rates)
			address := echo(t, places[1])
			var forth, back Packets
			lacks := func() bool { // the kernel must have found a flipped bit, which may also be one of the IP header
				return c.lacks(forth) || c.lacks(back) ||
					c.rates.Corrupt > 0 && counter(t, places[0].Network, "Tcp", "InCsumErrors")+counter(t, places[1].Network, "Tcp", "InCsumErrors") == 0
			}
			for i := uint64(0); i == 0 || i < 20 && lacks(); i++ {
				began := time.Now()
				if err := exchange(places[0], address, c.size, seed+i); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < 2*c.rates.Delay {
					t.Errorf("there and back in %v", took)
				}
				await(t, "the last packets arrive", func() string {
					// Those of the closing of the connection may be still on their way.
					if forth, back = l.Packets(); c.name == "plain" && forth.Arrived+back.Arrived != forth.Sent+back.Sent {
						return fmt.Sprint(forth, back)
					}
					return ""
				})
			}
			t.Logf("forth: %v; back: %v", forth, back)
			if lacks() {
				t.Error("not what was asked for")
			}
			// Changed while it runs, and back.
			l.Set(Rates{Drop: 1}, Rates{})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if conn, err := places[0].Network.DialContext(ctx, "tcp", address); err == nil {
				conn.Close()
				t.Error("connected over a link that drops all")
			}
			l.Set(Rates{}, Rates{})
			if err := exchange(places[0], address, 1000, seed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLinkRepeats checks that what becomes of packets follows from the seed.
func TestLinkRepeats(t *testing.T) {
	fates := func(seed uint64) (all string) {
		w := newWay(nil, nil, seed, 1)
		w.rates = Rates{Drop: 0.2, Duplicate: 0.2, Reorder: 0.2, Corrupt: 0.2, Delay: time.Millisecond, Jitter: time.Millisecond}
		now := time.Unix(0, 0)
		for i := range 1000 {
			w.send([]byte{byte(i), 0, 0, 0}, now.Add(time.Duration(i)*time.Millisecond))
		}
		for range len(w.queue) {
			p, _, _ := w.next(now.Add(time.Hour))
			all += fmt.Sprintf("%x ", p)
		}
		return all + w.packets.String()
	}
	if a, b := fates(1), fates(1); a != b {
		t.Errorf("the same seed:\n%s\n%s", a, b)
	}
	if fates(1) == fates(2) {
		t.Error("two seeds are alike")
	}
}

// TestCut cuts networks that are joined by cables, and heals them.
func TestCut(t *testing.T) {
	places := newPlaces(t, 3)
	for i, a := range places {
		for _, b := range places[:i] {
			a.Network.Join(a.Address, b.Network, b.Address)
		}
	}
	address := echo(t, places[1])
	hears := func(from int, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		conn, err := places[from].Network.DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}
	const dropped = 200 * time.Millisecond // is waited where no answer can come
	for _, c := range []struct {
		name   string
		within time.Duration
		do     func() (Undo, error)
	}{
		{"both ways", dropped, func() (Undo, error) { return Cut(places[0], places[1]) }},
		{"one way", dropped, func() (Undo, error) { return Deafen(places[1].Network, places[0].Address) }},
		{"the other way", dropped, func() (Undo, error) { return Deafen(places[0].Network, places[1].Address) }},
		{"refused", patience, func() (Undo, error) { return Refuse(places[1].Network, places[0].Address) }},
	} {
		undo, err := c.do()
		if err != nil {
			t.Fatal(err)
		}
		err = hears(0, c.within)
		if err == nil {
			t.Errorf("%s: connected", c.name)
		}
		if refused := err != nil && strings.Contains(err.Error(), "refused"); refused != (c.name == "refused") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := hears(2, patience); err != nil { // both see the third
			t.Errorf("%s: %v", c.name, err)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
		if err := exchange(places[0], address, 100, 1); err != nil {
			t.Errorf("%s, healed: %v", c.name, err)
		}
	}
	// Connections that stand are reset.
	conn, err := places[0].Network.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := Reset(places[0].Network, places[1].Address); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection that was reset: %d, %v", n, err)
	}
}
