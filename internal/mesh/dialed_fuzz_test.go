package mesh

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"
)

// FuzzDialed is FuzzSession the other way round: this node opens the streams, and the peer sends what comes, raw or in frames with the right
// checksums, instead of a greeting or after it. Nothing panics; nothing that it says is taken for a packet or a request; a call ends with an
// error, or with an answer that the peer has sent to it; and no goroutine is left. The input of frames is a list: type, two bytes for the length, content;
// in the content of an answer the first byte stands for the id.
func FuzzDialed(f *testing.F) {
	script := func(list ...any) (p []byte) {
		for i := 0; i < len(list); i += 2 {
			content := []byte(list[i+1].(string))
			p = append(p, byte(list[i].(frame)), byte(len(content)), byte(len(content)>>8))
			p = append(p, content...)
		}
		return p
	}
	f.Add(uint8(0), []byte(nil))
	f.Add(uint8(0), []byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(uint8(1), script(frameAnswer, "\x01yes", framePing, "", frameAnswer, "\x01again"))
	f.Add(uint8(1), script(frameAnswer, "\x00", frameAnswer, "\xffx"))
	f.Add(uint8(1), script(frameRefuse, "no \x1b[2J"))
	f.Add(uint8(1), script(framePacket, "x", frameRequest, "\x01y", frameHello, "", frameCancel, "\x01"))
	f.Add(uint8(3), script(frameHello, "x"))
	f.Fuzz(func(t *testing.T, how uint8, p []byte) {
		synctest.Test(t, func(t *testing.T) { fuzzDialed(t, how, p) })
	})
}

// fuzzDialed returns how many calls were answered.
func fuzzDialed(t *testing.T, how uint8, p []byte) (answers int) {
	d, dialed := lone(t)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for ctx.Err() == nil {
			answer, err := d.mesh.Call(ctx, 0, []byte("question"))
			if err == nil {
				answers++
				if !bytes.Contains(p, answer) {
					t.Errorf("%q is an answer, and %q was sent", answer, p)
				}
			}
			time.Sleep(50 * time.Millisecond) // there may be no stream yet
		}
	}()
	var conns []*fake
	for open := true; open; {
		select {
		case c := <-dialed:
			conn := newFake(c)
			conns = append(conns, conn)
			go conn.play(how, p) // ends with the connection
		case <-answered:
			open = false
		case <-time.After(time.Minute):
			t.Error("the call goes on")
			open = false
		}
	}
	if took := time.Since(begun); took > 11*time.Second {
		t.Errorf("the calls took %v", took)
	}
	stopped := make(chan struct{})
	go func() { d.stop(); close(stopped) }()
	for open := true; open; {
		select {
		case c := <-dialed:
			c.Close()
		case <-stopped:
			open = false
		}
	}
	for _, c := range conns {
		c.Close()
	}
	time.Sleep(time.Second) // those who play see it
	if got := d.packets(); len(got) > 0 {
		t.Errorf("%q was taken", got)
	}
	return answers
}

// TestDialedIsAnswered: a script that answers the first call shows that the fuzzer's language can say something.
func TestDialedIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if n := fuzzDialed(t, 1, append([]byte{byte(frameAnswer), 4, 0, 1}, "yes"...)); n == 0 {
			t.Error("no call was answered")
		}
	})
}

// play is the peer on a connection that the node under test has opened.
func (f *fake) play(how uint8, p []byte) {
	if how&1 == 0 {
		go f.Write(p)
	} else {
		_, content, err := f.r.next(anything)
		if err != nil {
			return
		}
		g, err := decodeHello(content)
		if err != nil {
			return
		}
		if how&2 == 0 && f.hello(g.kind) != nil {
			return
		}
		go func() { // ends with the connection
			if g.kind == calls {
				time.Sleep(200 * time.Millisecond) // a question has come by then
			}
			for len(p) >= 3 {
				t, n := frame(p[0]), min(int(p[1])|int(p[2])<<8, len(p)-3)
				content := p[3 : 3+n]
				p = p[3+n:]
				if t == frameAnswer && len(content) > 0 {
					content = append(binary.LittleEndian.AppendUint64(nil, uint64(content[0])), content[1:]...)
				}
				if f.send(t, content) != nil {
					return
				}
			}
		}()
	}
	for { // until it is closed
		if _, err := f.Read(make([]byte, 4096)); err != nil {
			return
		}
	}
}
