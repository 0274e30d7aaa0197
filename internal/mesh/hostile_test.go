package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lone makes a node 1 of 2 whose connections lead to what the test does with the other end.
func lone(t *testing.T) (d *node, dialed chan net.Conn) {
	c := newCluster(t, 2, nil)
	d = c.nodes[1]
	dialed = make(chan net.Conn)
	d.config = func(cfg *Config) {
		cfg.Dial = func(ctx context.Context, _ int) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case dialed <- far:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	d.start()
	return d, dialed
}

// fake is node 0 in the hands of a test, on one connection.
type fake struct {
	net.Conn
	r reader
	w writer
}

func newFake(conn net.Conn) *fake {
	return &fake{Conn: conn, r: reader{from: conn, buf: make([]byte, readBuffer)}, w: writer{to: conn}}
}

func (f *fake) send(t frame, content []byte) error {
	return errors.Join(f.w.add(t, nil, content), f.w.flush())
}

func (f *fake) hello(k kind) error {
	return f.send(frameHello, appendHello(nil, &greeting{kind: k, from: 0, to: 1, nodes: 2, hello: Hello{Fingerprint: [32]byte{1}, NodeID: [16]byte{1}, Boot: 1}}))
}

// greet does the greeting of a connection that node 1 has opened, and returns its kind.
func (f *fake) greet(t *testing.T) kind {
	t.Helper()
	_, content, err := f.r.next(anything)
	if err != nil {
		t.Fatal(err)
	}
	g, err := decodeHello(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.hello(g.kind); err != nil {
		t.Fatal(err)
	}
	return g.kind
}

// TestFramesThatMayNotCome: each type is taken only where it belongs; anything else ends the stream, and says so to nobody.
func TestFramesThatMayNotCome(t *testing.T) {
	content := []byte("12345678rest")
	for _, out := range []bool{false, true} { // whether node 1 has opened the stream
		for k := range kinds {
			for f := range frame(12) {
				may := f == framePing || !out && (f == framePacket && k == packets || f == frameRequest && k == calls || f == frameCancel && k == calls)
				synctest.Test(t, func(t *testing.T) {
					d, dialed := lone(t)
					defer d.stop()
					conn := new(fake)
					if out {
						for {
							conn = newFake(<-dialed)
							if conn.greet(t) == k {
								break
							}
							defer conn.Close()
						}
					} else {
						near, far := net.Pipe()
						go func() {
							d.mesh.Serve(far)
							far.Close()
						}()
						conn = newFake(near)
						if err := conn.hello(k); err != nil {
							t.Fatal(err)
						}
						if _, _, err := conn.r.next(anything); err != nil {
							t.Fatal(err)
						}
					}
					body := content
					switch f {
					case framePing:
						body = nil
					case frameCancel:
						body = content[:idBytes]
					}
					conn.send(f, body)
					synctest.Wait()
					conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
					_, err := io.Copy(io.Discard, conn)
					if ended := err == nil; ended == may {
						t.Errorf("out %v, %s: after type %d: ended %v", out, k, f, ended)
					}
					if got := d.packets(); len(got) > 0 != (may && f == framePacket) {
						t.Errorf("out %v, %s: type %d: got %q", out, k, f, got)
					}
					conn.Close()
				})
			}
		}
	}
}

// TestSilentGreeting: whoever connects, or is connected to, and says nothing is given up after its time.
func TestSilentGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dialed := lone(t)
		defer d.stop()
		near, far := net.Pipe()
		served := make(chan struct{})
		began := time.Now()
		go func() {
			d.mesh.Serve(far)
			close(served)
		}()
		outgoing := newFake(<-dialed)
		if _, _, err := outgoing.r.next(anything); err != nil {
			t.Fatal(err)
		}
		if _, err := outgoing.Read(make([]byte, 1)); err == nil {
			t.Error("more than a hello")
		}
		<-served
		if took := time.Since(began); took < greetingTimeout || took > greetingTimeout+2*mindEvery {
			t.Errorf("given up after %v", took)
		}
		near.Close()
	})
}

// TestGreetingsAreBounded: so many connections may be before the end of their greeting, and one more is not served.
func TestGreetingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := lone(t)
		defer d.stop()
		returned := 0
		for range greetingMax + 3 {
			near, far := net.Pipe()
			go func() {
				d.mesh.Serve(far)
				d.mu.Lock()
				returned++
				d.mu.Unlock()
				near.Close()
			}()
		}
		synctest.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if returned != 3 {
			t.Errorf("%d were turned away", returned)
		}
	})
}

// TestStuckReader: a peer that sends pings, but reads nothing, is given up all the same.
func TestStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dialed := lone(t)
		defer d.stop()
		var conn *fake
		for conn == nil {
			f := newFake(<-dialed)
			if f.greet(t) == packets {
				conn = f
			}
			defer f.Close()
		}
		synctest.Wait()
		began := time.Now()
		d.mesh.Send(0, []byte("x"))
		for conn.send(framePing, nil) == nil {
			time.Sleep(time.Second / 2)
			if time.Since(began) > time.Minute {
				t.Fatal("the stream goes on")
			}
		}
		if took := time.Since(began); took < silenceMax || took > silenceMax+time.Second {
			t.Errorf("given up after %v", took)
		}
	})
}

// TestVersions: a node of a newer version is told why there will be no stream.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := lone(t)
		defer d.stop()
		near, far := net.Pipe()
		go func() {
			d.mesh.Serve(far)
			far.Close()
		}()
		f := newFake(near)
		hello := append(appendHello(nil, &greeting{to: 1, nodes: 2}), "and what version 2 has more"...)
		hello[8] = 2
		if err := f.send(frameHello, hello); err != nil {
			t.Fatal(err)
		}
		got, content, err := f.r.next(anything)
		if err != nil || got != frameRefuse || !strings.Contains(string(content), "version 2 of it; this node speaks version 1") {
			t.Errorf("type %d %q, %v", got, content, err)
		}
		near.Close()
	})
}

// TestAnswersBounded: a peer that asks on and takes no answers costs no more than the calls that it may have.
func TestAnswersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := lone(t)
		defer d.stop()
		big := make([]byte, 8<<20)
		d.answer = func(context.Context, int, []byte) []byte { return big }
		near, far := net.Pipe()
		go func() {
			d.mesh.Serve(far)
			far.Close()
		}()
		conn := newFake(near)
		if err := conn.hello(calls); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.r.next(anything); err != nil {
			t.Fatal(err)
		}
		var worst int64
		for id := range uint64(200) {
			conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			if conn.send(frameRequest, binary.LittleEndian.AppendUint64(nil, id+1)) != nil {
				break
			}
			synctest.Wait()
			for _, s := range d.mesh.open() {
				s.box.mu.Lock()
				worst = max(worst, s.box.bytes)
				s.box.mu.Unlock()
			}
		}
		conn.Close()
		if worst > CallsMax*(AnswerMax+itemBytes) {
			t.Errorf("%d MiB of answers wait for a peer that takes none", worst>>20)
		}
	})
}
