package mesh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// FuzzHello: a hello that is accepted is written the same again; nothing panics.
func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, &greeting{kind: calls, from: 1, to: 0, nodes: 3, hello: Hello{Boot: 5}}))
	f.Add([]byte(helloMagic))
	f.Fuzz(func(t *testing.T, p []byte) {
		g, err := decodeHello(p)
		if err == nil && !bytes.Equal(appendHello(nil, g), p) {
			t.Errorf("%x is read as %+v", p, g)
		}
	})
}

// FuzzSession: whatever a peer sends, raw or in frames with the right checksums, before or after a good hello: nothing panics,
// the stream ends, nothing is handed over that did not come, and no goroutine is left.
func FuzzSession(f *testing.F) {
	script := func(list ...any) (p []byte) { // types and contents, each as the next frame
		for i := 0; i < len(list); i += 2 {
			content := []byte(list[i+1].(string))
			p = append(p, byte(list[i].(frame)), byte(len(content)), byte(len(content)>>8))
			p = append(p, content...)
		}
		return p
	}
	f.Add(uint8(0), []byte(nil))
	f.Add(uint8(0), []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(uint8(1), script(framePacket, "x", framePing, "", frameRefuse, "no"))
	f.Add(uint8(3), script(frameRequest, "12345678abc", frameRequest, "12345678abc", frameCancel, "12345678", frameAnswer, "12345678"))
	f.Add(uint8(3), script(frameRequest, "1234567", frameHello, "", frame(0), "x"))
	f.Add(uint8(1), script(framePing, "x", frame(99), ""))
	f.Fuzz(func(t *testing.T, how uint8, p []byte) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2, nil)
			d := c.nodes[1]
			d.config = func(cfg *Config) {
				cfg.Dial = func(context.Context, int) (net.Conn, error) { return nil, errors.New("down") }
			}
			d.packet = func(from int, packet []byte) {
				if from != 0 || !bytes.Contains(p, packet) {
					t.Errorf("%q of %d was handed over", packet, from)
				}
			}
			d.answer = func(_ context.Context, from int, request []byte) []byte {
				if from != 0 || !bytes.Contains(p, request) {
					t.Errorf("request %q of %d was handed over", request, from)
				}
				return request
			}
			d.start()
			near, far := net.Pipe()
			served := make(chan struct{})
			go func() {
				d.mesh.Serve(far)
				far.Close()
				close(served)
			}()
			go io.Copy(io.Discard, near) // until it is closed
			w := writer{to: near}
			if how&1 != 0 {
				w.add(frameHello, nil, appendHello(nil, &greeting{kind: kind(how >> 1 & 1), nodes: 2, to: 1, hello: c.nodes[0].hello}))
				w.flush()
				for rest := p; len(rest) >= 3; {
					t, n := frame(rest[0]), min(int(rest[1])|int(rest[2])<<8, len(rest)-3)
					w.add(t, nil, rest[3:3+n])
					rest = rest[3+n:]
				}
				w.flush()
			} else {
				near.Write(p)
			}
			time.Sleep(greetingTimeout + silenceMax + time.Second)
			select {
			case <-served:
			default:
				t.Error("the stream goes on")
			}
			near.Close()
			d.stop()
		})
	})
}
