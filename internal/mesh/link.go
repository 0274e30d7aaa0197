package mesh

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Pauses between two attempts to connect: the first, and the longest. Each is shortened by up to half at random, so that
// nodes which start together do not go on in step.
const (
	pauseMin = 20 * time.Millisecond
	pauseMax = time.Second
	// steadyMin is how long a stream must have lasted for the next pause to be short again.
	steadyMin = time.Second
)

// link keeps one stream of this node to a peer: of one kind, made anew whenever it ends.
type link struct {
	m    *Mesh
	p    *peer
	kind kind
	poke chan struct{} // has a place for one: the peer is there, so do not pause

	mu  sync.Mutex
	err error // why there is no stream; nil: none was tried yet
}

// hurry ends a pause.
func (l *link) hurry() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// why says why there is no stream.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return errNoStream
	}
	return l.err
}

// run connects until the mesh is closed.
func (l *link) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	l.m.wg.Go(func() { // ended by Close, which ends the attempt that is under way
		select {
		case <-l.m.ending:
			cancel()
		case <-stop:
		}
	})
	defer close(stop)
	timer := l.m.cfg.Clock.NewTimer(pauseMax)
	defer timer.Stop()
	pause := pauseMin
	for {
		lasted := l.once(ctx)
		poke := l.poke
		if lasted > 0 {
			// Streams that come about and end at once, for whatever reason, must not follow each other without a rest:
			// each of them tells the other side that this node is there.
			poke = nil
		}
		if lasted >= steadyMin {
			pause = pauseMin
		}
		timer.Reset(l.jitter(pause))
		pause = min(2*pause, pauseMax)
		select {
		case <-timer.C():
		case <-poke:
		case <-l.m.ending:
			return
		}
	}
}

// jitter shortens a pause at random.
func (l *link) jitter(d time.Duration) time.Duration {
	l.m.random.Lock()
	defer l.m.random.Unlock()
	return d - time.Duration(l.m.cfg.Random.Int64N(int64(d/2)))
}

// once connects, and carries frames until the stream ends. It returns for how long it did, 0: there was no stream.
func (l *link) once(ctx context.Context) (lasted time.Duration) {
	conn, err := l.m.cfg.Dial(ctx, l.p.node)
	if err == nil {
		lasted, err = l.use(conn)
		conn.Close()
	}
	l.failed(err)
	return lasted
}

// use runs the stream on a connection, and says for how long it carried frames, and why it ended.
func (l *link) use(conn net.Conn) (lasted time.Duration, why error) {
	s := newStream(l.m, conn, true)
	if !l.m.enter(s) {
		return 0, errClosed
	}
	defer l.m.wg.Done()
	defer l.m.leave(s)
	if err := s.connect(l.p, l.kind); err != nil {
		s.fail(err)
		return 0, s.cause(err)
	}
	began := l.m.cfg.Clock.Monotonic()
	l.begun()
	l.p.out[l.kind].Store(s)
	s.run()
	l.p.out[l.kind].Store(nil)
	if l.kind == packets {
		l.m.cfg.Lost(l.p.node)
	}
	return max(1, l.m.cfg.Clock.Monotonic()-began), s.err
}

// begun notes that there is a stream.
func (l *link) begun() {
	select {
	case <-l.poke: // it was about the time without a stream
	default:
	}
	l.mu.Lock()
	l.err = nil
	l.mu.Unlock()
	l.p.refused[0].Store(nil)
	l.p.refused[1].Store(nil)
	if l.kind == packets {
		l.m.cfg.Logger.Info("connected to another node", "peer", l.p.node)
		l.m.cfg.Observer.Connected(l.p.node)
	}
}

// failed notes why there is no stream, and logs it unless the one before failed for the same reason.
func (l *link) failed(err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		l.p.refuse(l.m, refused)
	}
	l.mu.Lock()
	first := l.err == nil
	l.err = reason(err)
	l.mu.Unlock()
	if first && refused == nil && l.kind == packets && !errors.Is(err, errClosed) {
		l.m.cfg.Logger.Warn("no connection to another node", "peer", l.p.node, "err", reason(err))
	}
}

// refuse notes that a stream with the peer was refused, and logs it unless that side said the same before.
func (p *peer) refuse(m *Mesh, err *RefusedError) {
	m.cfg.Observer.Refused(p.node)
	if old := p.refused[index(err.Here)].Swap(err); old == nil || *old != *err {
		m.cfg.Logger.Warn("a connection between nodes was refused", "peer", p.node, "err", err)
	}
}
