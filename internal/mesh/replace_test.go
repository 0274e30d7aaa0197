package mesh

import (
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestNewerStreamWaits: a stream that replaces another is accepted only once the last packet of the older one was handed
// over and taken; nothing of the older comes after, though it has arrived.
func TestNewerStreamWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		hold, first := make(chan struct{}), true
		var got []string
		c.nodes[1].packet = func(_ int, p []byte) {
			if first {
				first = false
				<-hold
			}
			got = append(got, string(p))
		}
		c.startAll()
		defer c.stopAll()
		// The first is being taken, the others have been read behind it.
		for _, s := range []string{"old 1", "old 2", "old 3"} {
			c.nodes[0].mesh.Send(1, []byte(s))
		}
		synctest.Wait()
		// The node dies and comes back. Its new streams get no welcome while the old packet is in the works.
		old := c.nodes[0].mesh
		c.nodes[0].hello.Boot++
		c.nodes[0].start()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c.nodes[0].mesh.peers[1].out[packets].Load() != nil || c.nodes[0].mesh.peers[1].out[calls].Load() != nil {
			t.Error("a stream of the new life carries while a packet of the old one is being taken")
		}
		close(hold)
		old.Close()
		c.settle()
		c.nodes[0].mesh.Send(1, []byte("new"))
		synctest.Wait()
		if want := []string{"old 1", "new"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestNewLifeEndsAllStreams: when a peer turns up in a new life, what is left of the old one ends, in both directions.
func TestNewLifeEndsAllStreams(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		c.mu.Lock()
		c.cut[[2]int{0, 1}] = true // it must not be faster than the test
		c.mu.Unlock()
		m := c.nodes[1].mesh
		outgoing := m.peers[0].out[packets].Load()
		incoming := m.peers[0].current[0][packets]
		conn, far := net.Pipe()
		go func() {
			m.Serve(far)
			far.Close()
		}()
		s := newStream(c.nodes[0].mesh, conn, true)
		s.kind = calls
		c.nodes[0].hello.Nonce++ // the same start count: a folder that was put back
		s.introduce(1)
		if _, err := s.meet(); err != nil {
			t.Fatal(err)
		}
		for name, old := range map[string]*stream{"outgoing": outgoing, "incoming": incoming} {
			select {
			case <-old.over:
				if !errors.Is(old.err, errReplaced) {
					t.Errorf("the %s stream ended with %v", name, old.err)
				}
			default:
				t.Errorf("the %s stream goes on", name)
			}
		}
		conn.Close()
	})
}

// TestImpostorEndsNothing: who is refused does not disturb the streams of the node that it says it is.
func TestImpostorEndsNothing(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		c.nodes[1].check = func(_ int, h Hello) error {
			if h.NodeID != c.nodes[0].hello.NodeID {
				return errors.New("who is that")
			}
			return nil
		}
		m := c.nodes[1].mesh
		before := m.peers[0].current
		for k := range kinds {
			conn, far := net.Pipe()
			go func() {
				m.Serve(far)
				far.Close()
			}()
			s := newStream(c.nodes[0].mesh, conn, true)
			err := s.say(frameHello, appendHello(nil, &greeting{kind: k, from: 0, to: 1, nodes: 2,
				hello: Hello{Fingerprint: [32]byte{1}, NodeID: [16]byte{77}, Boot: 50}}))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.meet()
			if refused := (*RefusedError)(nil); !errors.As(err, &refused) || refused.Reason != "who is that" {
				t.Errorf("%v", err)
			}
			conn.Close()
		}
		synctest.Wait()
		if m.peers[0].current != before {
			t.Error("the streams changed")
		}
		c.nodes[0].mesh.Send(1, []byte("still here"))
		synctest.Wait()
		if got := c.nodes[1].packets(); !slices.Equal(got, []string{"0 still here"}) {
			t.Errorf("got %q", got)
		}
	})
}

// TestStreamsReplacedOverAndOver: however many streams of one node come at once, one is left, and it works.
func TestStreamsReplacedOverAndOver(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		for life := range uint64(50) {
			c.nodes[0].stop()
			c.nodes[0].hello.Boot = 2 + life
			c.nodes[0].start()
			if life%3 == 0 {
				time.Sleep(time.Duration(life) * time.Millisecond)
			}
		}
		c.settle()
		m := c.nodes[1].mesh
		if n := len(m.open()); n != 4 {
			t.Errorf("%d streams are open", n)
		}
		c.nodes[0].mesh.Send(1, []byte("in"))
		c.nodes[1].mesh.Send(0, []byte("out"))
		synctest.Wait()
		if got := append(c.nodes[0].packets(), c.nodes[1].packets()...); !slices.Equal(got, []string{"1 out", "0 in"}) {
			t.Errorf("got %q", got)
		}
	})
}
