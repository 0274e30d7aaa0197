package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Times of a stream.
const (
	greetingTimeout = 5 * time.Second        // for both hellos
	pingEvery       = time.Second            // of silence
	silenceMax      = 3 * time.Second        // after which the other side counts as gone, or as stuck
	mindEvery       = 250 * time.Millisecond // how often it is looked at
	mindLate        = time.Second            // a look that comes so late says that this process was held up
)

// greetingMax is how many accepted streams may be before the end of their greeting.
const greetingMax = 64

// never is a time of Monotonic, as int64, that is none. (A clock may begin below 0.)
const never = math.MinInt64

// stream is one connection between two nodes, from the greeting on.
type stream struct {
	m    *Mesh
	conn net.Conn
	out  bool // this node connected: it sends packets or calls, and the other one takes or answers them

	// set by the greeting
	kind   kind
	peer   *peer
	hello  Hello // who the peer is
	greets bool  // guarded by Mesh.mu: it counts in Mesh.greeting

	in        reader
	w         writer
	box       outbox
	asked     asked     // of calls that this node makes
	answering answering // of calls that it answers

	began   time.Duration // Monotonic
	up      atomic.Bool   // the greeting is over
	heard   atomic.Int64  // Monotonic when bytes last came
	sent    atomic.Int64  // Monotonic when bytes were last sent
	writing atomic.Int64  // Monotonic since when a write has been waiting, or never

	once  sync.Once
	err   error         // why it ended; set before ended is closed
	ended chan struct{} // closed by end
	over  chan struct{} // closed when nothing of it runs any more
}

func newStream(m *Mesh, conn net.Conn, out bool) *stream {
	s := &stream{m: m, conn: conn, out: out, began: m.cfg.Clock.Monotonic(), ended: make(chan struct{}), over: make(chan struct{})}
	s.in = reader{from: received{s}, buf: make([]byte, readBuffer)}
	s.w = writer{to: sending{s}}
	s.box.wake = make(chan struct{}, 1)
	s.heard.Store(int64(s.began))
	s.sent.Store(int64(s.began))
	s.writing.Store(never)
	s.asked.init()
	s.answering.init()
	return s
}

// end ends the stream, for the first reason that is given. It does not wait.
func (s *stream) end(why error) {
	s.once.Do(func() {
		s.err = why
		close(s.ended)
		conn := s.conn
		if inner, ok := conn.(interface{ NetConn() net.Conn }); ok {
			conn = inner.NetConn() // a farewell of TLS could wait for a peer that takes nothing
		}
		conn.Close()
	})
}

// received reads from the connection, and notes when something came.
type received struct{ s *stream }

func (r received) Read(p []byte) (int, error) {
	n, err := r.s.conn.Read(p)
	if n > 0 {
		now := int64(r.s.m.cfg.Clock.Monotonic())
		r.s.heard.Store(now)
		if p := r.s.peer; p != nil {
			p.heard.Store(now)
		}
	}
	return n, err
}

// sending writes to the connection, and notes for how long.
type sending struct{ s *stream }

func (w sending) Write(p []byte) (int, error) {
	w.s.writing.Store(int64(w.s.m.cfg.Clock.Monotonic()))
	n, err := w.s.conn.Write(p)
	w.s.writing.Store(never)
	w.s.sent.Store(int64(w.s.m.cfg.Clock.Monotonic()))
	return n, err
}

// mind ends the stream if it makes no progress, and asks for a ping when it was quiet. Not deadlines of the connection, but
// this: they would have to be set anew for every read and write.
func (s *stream) mind(now time.Duration) {
	ago := func(at int64) time.Duration { return now - time.Duration(at) }
	writing := s.writing.Load()
	switch {
	case !s.up.Load():
		if now-s.began > greetingTimeout {
			s.end(errGreeting)
		}
	case ago(s.heard.Load()) > silenceMax:
		s.end(errSilent)
	case writing != never && ago(writing) > silenceMax:
		s.end(errStuck)
	case writing == never && ago(s.sent.Load()) >= pingEvery:
		s.box.pingDue()
	}
}

// say sends a frame of the greeting.
func (s *stream) say(t frame, content []byte) error {
	if err := s.w.add(t, nil, content); err != nil {
		return err
	}
	return s.w.flush()
}

// introduce sends this node's hello.
func (s *stream) introduce(to int) error {
	return s.say(frameHello, appendHello(nil, &greeting{
		kind: s.kind, from: s.m.cfg.Self, to: to, nodes: s.m.cfg.Nodes, hello: s.m.cfg.Hello(),
	}))
}

// meet reads the peer's hello. A refusal instead is a *RefusedError.
func (s *stream) meet() (*greeting, error) {
	t, content, err := s.in.next(func(t frame) int {
		switch t {
		case frameHello:
			return helloMax
		case frameRefuse:
			return refusalMax
		}
		return -1
	})
	if err != nil {
		return nil, err
	}
	if t == frameRefuse {
		return nil, &RefusedError{Reason: plainText(string(content))}
	}
	return decodeHello(content)
}

// judge says why this node does not want a stream with such a peer, or nil.
func (s *stream) judge(g *greeting) *RefusedError {
	own := s.m.cfg.Hello()
	var why error
	switch {
	case g.nodes != s.m.cfg.Nodes:
		why = fmt.Errorf("node %d belongs to a cluster of %d nodes, this one to one of %d", g.from, g.nodes, s.m.cfg.Nodes)
	case g.to != s.m.cfg.Self:
		why = fmt.Errorf("node %d wants node %d, and this is node %d: the order of -raft-peers or -raft-self differs", g.from, g.to, s.m.cfg.Self)
	case g.from == s.m.cfg.Self:
		why = fmt.Errorf("the other node says that it is node %d, as this one", g.from)
	case g.hello.Fingerprint != own.Fingerprint:
		why = fmt.Errorf("node %d belongs to another cluster, or was started with other -raft-peers", g.from)
	default:
		why = s.m.cfg.Check(g.from, g.hello)
	}
	if why == nil {
		return nil
	}
	return &RefusedError{Here: true, Reason: plainText(why.Error())}
}

// accept is the greeting on the side that was connected to. Afterwards the stream is its peer's only one of the kind.
func (s *stream) accept() error {
	g, err := s.meet()
	if err != nil {
		return err
	}
	s.kind = g.kind
	if no := s.judge(g); no != nil {
		if g.from != s.m.cfg.Self && g.from < s.m.cfg.Nodes {
			s.m.peers[g.from].refuse(s.m, no)
		}
		return no
	}
	s.join(s.m.peers[g.from], g.hello)
	if err := s.introduce(g.from); err != nil {
		return err
	}
	s.carry()
	return nil
}

// connect is the greeting on the side that connected.
func (s *stream) connect(p *peer, k kind) error {
	s.kind = k
	if err := s.introduce(p.node); err != nil {
		return err
	}
	g, err := s.meet()
	if err != nil {
		return err
	}
	if g.kind != k || g.from != p.node {
		return &RefusedError{Here: true, Reason: fmt.Sprintf("node %d answers where node %d is configured", g.from, p.node)}
	}
	if no := s.judge(g); no != nil {
		return no
	}
	s.join(p, g.hello)
	s.carry()
	return nil
}

// join makes the stream the peer's.
func (s *stream) join(p *peer, h Hello) {
	s.peer, s.hello = p, h
	s.m.replace(s)
}

// carry begins the time in which silence ends the stream.
func (s *stream) carry() {
	now := int64(s.m.cfg.Clock.Monotonic())
	s.heard.Store(now)
	s.sent.Store(now)
	s.peer.heard.Store(now)
	s.up.Store(true)
}

// fail ends a stream whose greeting failed. Where this node refused, it says so first; the connection of an accepted stream
// is left to the caller then, who sees to it that the words arrive.
func (s *stream) fail(why error) {
	var refused *RefusedError
	var bad *ProtocolError
	switch {
	case errors.As(why, &refused) && refused.Here:
		s.refuse(refused.Reason)
	case errors.As(why, &bad):
		s.refuse(bad.Error())
	default:
		s.end(why)
	}
}

func (s *stream) refuse(reason string) {
	s.say(frameRefuse, []byte(reason)) // if it does not arrive, so be it
	if s.out {
		s.end(errors.New(reason))
	}
}

// limit says how long the content of a frame may be that the other side sends once the greeting is over, -1: none may come.
func (s *stream) limit(t frame) int {
	switch {
	case t == framePing:
		return 0
	case t == frameRefuse && !s.out:
		return refusalMax // its look at our hello
	case t == framePacket && !s.out && s.kind == packets:
		return PacketMax
	case t == frameRequest && !s.out && s.kind == calls:
		return idBytes + RequestMax
	case t == frameCancel && !s.out && s.kind == calls:
		return idBytes
	case t == frameAnswer && s.out && s.kind == calls:
		return idBytes + AnswerMax
	}
	return -1
}

// run carries frames until the stream ends. Nothing of it runs any more when it returns.
func (s *stream) run() {
	var writes sync.WaitGroup
	writes.Go(s.write) // ended by end
	ctx, cancel := context.WithCancel(context.Background())
	s.end(s.read(ctx))
	cancel()
	writes.Wait()
	if lost := s.box.close(); lost > 0 {
		s.m.drop(s.peer, DropLost, lost)
	}
	s.answering.handlers.Wait()
}

// read takes frames until the stream ends, and says why it does. ctx is for the answers to calls.
func (s *stream) read(ctx context.Context) error {
	for {
		t, content, err := s.in.next(s.limit)
		if err != nil {
			return err
		}
		select {
		case <-s.ended: // what has been read already must not be handed over after it
			return s.err
		default:
		}
		switch t {
		case framePacket:
			s.m.cfg.Packet(s.peer.node, content)
			s.m.cfg.Observer.Received(s.peer.node, 1, len(content))
		case frameRefuse:
			err := &RefusedError{Reason: plainText(string(content))}
			s.peer.refuse(s.m, err)
			return err
		case framePing:
		default:
			if len(content) < idBytes {
				return malformed("a frame of type %d without an id", t)
			}
			id := binary.LittleEndian.Uint64(content)
			if err := s.call(ctx, t, id, content[idBytes:]); err != nil {
				return err
			}
		}
	}
}

// call takes a frame of a call.
func (s *stream) call(ctx context.Context, t frame, id uint64, content []byte) error {
	switch t {
	case frameRequest:
		return s.answering.begin(ctx, s, id, content)
	case frameCancel:
		s.answering.cancel(id)
		return nil
	}
	return s.asked.answered(id, content)
}

// write writes what is in the box until the stream ends.
func (s *stream) write() {
	var n, bytes int
	for {
		it, ok := s.box.take()
		if ok {
			var head []byte
			if it.frame == frameAnswer {
				s.answering.answers(it.id)
			}
			if it.frame >= frameRequest {
				head = binary.LittleEndian.AppendUint64(make([]byte, 0, idBytes), it.id)
			}
			if err := s.w.add(it.frame, head, it.body); err != nil {
				s.end(err)
				return
			}
			if it.frame == framePacket {
				n, bytes = n+1, bytes+len(it.body)
			}
			continue
		}
		if err := s.w.flush(); err != nil {
			s.end(err)
			return
		}
		if n > 0 {
			s.m.cfg.Observer.Sent(s.peer.node, n, bytes)
			n, bytes = 0, 0
		}
		select {
		case <-s.box.wake:
		case <-s.ended:
			return
		}
	}
}

// reason makes an error of reading fit for a person: the other side closed, in most cases.
func reason(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the other side closed the connection")
	}
	return err
}

// cause is why a greeting failed: what ended the stream, where that made reading fail with err.
func (s *stream) cause(err error) error {
	select {
	case <-s.ended:
		return s.err
	default:
		return err
	}
}
