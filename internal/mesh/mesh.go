// Package mesh carries what the nodes of a cluster say to each other: packets, which go one way and may get lost, and
// calls, which are answered or fail. Each node keeps two streams to every other one for what it sends itself: one of
// packets, one of calls, so that a large answer never holds up a heartbeat. docs/format/mesh.md has the protocol.
//
// It guarantees: what is handed over came from the node it is said to come from, which was checked when its stream
// began, and came whole; packets of one stream come in order, those that may overtake apart. Once a node has learned that
// its stream was accepted, nothing of an older stream or of an earlier life of it is handed over any more. Send never
// waits. A connection that is dead, or that the other side does not read from, is found within about 3 s, and made anew.
// Queues, frames and calls are bounded for each peer by itself: a peer that is stuck, or that sends what it should not,
// costs the others nothing.
// It never looks into packets, never repeats one, and never decides who belongs to the cluster: Config.Check does.
//
// A goroutine for each stream reads and hands over, another one writes; one minds the time for all. Close ends them.
// The next stop of a publish: the other node's role, which gets the entries as packets.
package mesh

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/invariant"
)

// Limits in bytes.
const (
	PacketMax  = 16 << 20 // of a packet
	RequestMax = 1 << 20  // of a request
	AnswerMax  = 9 << 20  // of an answer
)

// CallsMax is how many calls to one peer run at once; more wait for their turn on the side that calls.
const CallsMax = 4

// Config says between whom a mesh is, and who gets what arrives. What has no default is required. The functions are
// called by several goroutines at once, unless they say otherwise.
type Config struct {
	Self  int // this node's number, from 0 on
	Nodes int // how many there are

	// Dial connects to a node and has the connection switched to the protocol. It ends within seconds by itself, and
	// at once when ctx does.
	Dial func(ctx context.Context, to int) (net.Conn, error)

	// Hello tells who this node is now. It is asked for each new stream.
	Hello func() Hello

	// Check says whether a stream with such a peer may be: nil, or an error whose text the other side gets, too. Both
	// sides of each new stream check, and only then does the stream carry anything. Fingerprints that differ are refused
	// before. It only judges: when it returns nil, packets of older streams may still be on their way to Packet, and the
	// other side may yet refuse.
	Check func(from int, h Hello) error

	// Packet takes a packet, which it may keep. Those of one stream come one after the other. It must return soon: the
	// stream is not read meanwhile, and one that replaces it waits.
	Packet func(from int, packet []byte)

	// Answer answers a call, at most CallsMax at once for each peer. It may keep the request, and leaves what it
	// returns, at most AnswerMax bytes, to the mesh. ctx ends when nobody waits for the answer any more; then it must return soon.
	Answer func(ctx context.Context, from int, request []byte) []byte

	// Lost, if not nil, is told when the stream on which this node sends packets to the peer broke. What was sent last
	// may not have arrived.
	Lost func(peer int)

	// Urgent, if not nil, says that a packet may overtake those that wait. Small is no reason: where an entry overtakes the
	// one before it, its receiver finds a gap and refuses it. So only who makes the packets can tell. It must be quick.
	Urgent func(packet []byte) bool

	// QueueBytes is how much may wait for one peer, each packet counted with 64 bytes more; what finds no room is
	// dropped. Default: 32 MiB.
	QueueBytes int64

	Clock    clock.Clock
	Random   *rand.Rand // for the pauses between two attempts to connect; the mesh's own from now on
	Logger   *slog.Logger
	Observer Observer
}

// Hello is who a node says it is. The zero value of an id stands for none.
type Hello struct {
	Fingerprint [32]byte // of the cluster: the same for all its nodes
	NodeID      [16]byte
	LogID       [16]byte
	Boot        uint64 // counts the starts of the node
	Nonce       uint64 // random for each start
}

// sameLife tells whether two hellos are of the same start of the same node.
func (h *Hello) sameLife(o *Hello) bool {
	return h.NodeID == o.NodeID && h.Boot == o.Boot && h.Nonce == o.Nonce
}

// Mesh is one node's part. Make one with New.
type Mesh struct {
	cfg   Config
	peers []*peer // by number; nil for this node

	wg     sync.WaitGroup // all goroutines, and Serve
	ending chan struct{}  // closed by Close

	random   sync.Mutex // guards cfg.Random
	mu       sync.Mutex
	running  bool                 // between Start and Close
	streams  map[*stream]struct{} // all that are open; guarded by mu
	greeting int                  // accepted streams whose peer is not known yet
}

// peer is what is kept for one of the other nodes.
type peer struct {
	node    int
	out     [kinds]atomic.Pointer[stream] // the streams of this node to it, while they carry
	links   [kinds]*link
	heard   atomic.Int64 // Monotonic when bytes last came from it, or never
	dropped atomic.Uint64
	refused [2]atomic.Pointer[RefusedError] // what the other side, and this one, said last, until a stream is not refused

	// guarded by Mesh.mu
	current  [2][kinds]*stream    // the streams that passed Check, the newest of each direction and kind
	replaced map[*stream]struct{} // those that were current, and of which something may still run
}

// New returns a mesh that does nothing yet.
func New(cfg Config) *Mesh {
	invariant.Check(cfg.Nodes >= 1 && cfg.Self >= 0 && cfg.Self < cfg.Nodes && cfg.Nodes <= nodesMax, "node %d of %d", cfg.Self, cfg.Nodes)
	invariant.Check(cfg.Dial != nil && cfg.Hello != nil && cfg.Check != nil && cfg.Packet != nil && cfg.Answer != nil,
		"a function of mesh.Config is missing")
	invariant.Check(cfg.Clock != nil && cfg.Random != nil && cfg.Logger != nil, "Clock, Random and Logger of mesh.Config are required")
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = 32 << 20
	}
	if cfg.Lost == nil {
		cfg.Lost = func(int) {}
	}
	if cfg.Urgent == nil {
		cfg.Urgent = func([]byte) bool { return false }
	}
	cfg.Observer.fill()
	m := &Mesh{cfg: cfg, peers: make([]*peer, cfg.Nodes), ending: make(chan struct{}), streams: make(map[*stream]struct{})}
	for node := range m.peers {
		if node == cfg.Self {
			continue
		}
		p := &peer{node: node, replaced: make(map[*stream]struct{})}
		p.heard.Store(never)
		for k := range p.links {
			p.links[k] = &link{m: m, p: p, kind: kind(k), poke: make(chan struct{}, 1)}
		}
		m.peers[node] = p
	}
	return m
}

// Start begins to connect to the other nodes. It is called once.
func (m *Mesh) Start() {
	m.mu.Lock()
	m.running = true
	m.mu.Unlock()
	m.wg.Go(m.mind) // ended by Close
	for _, p := range m.peers {
		if p != nil {
			for _, l := range p.links {
				m.wg.Go(l.run) // ended by Close
			}
		}
	}
}

// Close ends all streams and waits until nothing of the mesh runs any more: Serve has returned, and Packet, Answer and Lost
// are called no more. It is called once.
func (m *Mesh) Close() {
	close(m.ending)
	m.mu.Lock()
	m.running = false
	m.mu.Unlock()
	for _, s := range m.open() {
		s.end(errClosed)
	}
	m.wg.Wait()
}

// Send sends a packet of at most PacketMax bytes to another node, as far as that is possible now; it never waits. The
// packet belongs to the mesh from now on, and must not be changed. It is lost when there is no stream to the node, when too
// much waits for it already, or when the stream breaks.
func (m *Mesh) Send(to int, packet []byte) {
	p := m.peers[to]
	invariant.Check(p != nil, "a node sends a packet to itself")
	if len(packet) > PacketMax {
		m.drop(p, DropTooLarge, 1)
		return
	}
	s := p.out[packets].Load()
	if s == nil {
		m.drop(p, DropNoStream, 1)
		return
	}
	if why := s.box.put(item{frame: framePacket, body: packet}, m.cfg.Urgent(packet), m.cfg.QueueBytes); why != "" {
		m.drop(p, why, 1)
	}
}

// drop counts packets that were dropped.
func (m *Mesh) drop(p *peer, why Drop, n int) {
	p.dropped.Add(uint64(n))
	m.cfg.Observer.Dropped(p.node, why, n)
}

// Serve runs an accepted connection that has switched to the protocol, and returns when its stream has ended, at once
// outside of the time between Start and Close. The caller closes conn then.
func (m *Mesh) Serve(conn net.Conn) {
	s := newStream(m, conn, false)
	if !m.enter(s) {
		return
	}
	defer m.wg.Done()
	defer m.leave(s)
	if err := s.accept(); err != nil {
		s.fail(err)
		return
	}
	for _, l := range s.peer.links {
		l.hurry()
	}
	s.run()
}

// enter registers a stream. It says no outside of the time between Start and Close, and when too many are greeting.
func (m *Mesh) enter(s *stream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running || !s.out && m.greeting >= greetingMax {
		return false
	}
	if !s.out {
		m.greeting++
		s.greets = true
	}
	m.wg.Add(1)
	m.streams[s] = struct{}{}
	return true
}

// greeted notes that an accepted stream's handshake is over. The caller holds mu.
func (m *Mesh) greeted(s *stream) {
	if s.greets {
		s.greets = false
		m.greeting--
	}
}

// replace makes s the stream of its peer, direction and kind, and ends the one that was, and all that belong to another
// life of the peer. It returns once nothing of what was replaced is handed over any more, by whomever it was replaced: the
// first stream of a new life ends all of the old one, and the second must not be accepted any earlier for that.
//
// Nobody waits in a circle: a stream waits only for those that became current before it did.
func (m *Mesh) replace(s *stream) {
	p := s.peer
	m.mu.Lock()
	m.greeted(s)
	for direction := range p.current {
		for k, o := range p.current[direction] {
			if o != nil && (o.out == s.out && o.kind == s.kind || !o.hello.sameLife(&s.hello)) {
				p.replaced[o] = struct{}{}
				p.current[direction][k] = nil
			}
		}
	}
	*s.place() = s
	older := slices.Collect(maps.Keys(p.replaced))
	m.mu.Unlock()
	for _, o := range older {
		o.end(errReplaced)
	}
	for _, o := range older {
		<-o.over
	}
}

// place is where the peer's stream of this direction and kind stands. The caller holds mu.
func (s *stream) place() **stream { return &s.peer.current[index(s.out)][s.kind] }

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// leave forgets a stream whose goroutines have ended.
func (m *Mesh) leave(s *stream) {
	m.mu.Lock()
	m.greeted(s)
	delete(m.streams, s)
	if s.peer != nil {
		if place := s.place(); *place == s {
			*place = nil
		}
		delete(s.peer.replaced, s)
	}
	m.mu.Unlock()
	close(s.over)
}

// mind keeps the time of all streams: see stream.mind.
func (m *Mesh) mind() {
	timer := m.cfg.Clock.NewTimer(mindEvery)
	defer timer.Stop()
	last := m.cfg.Clock.Monotonic()
	for {
		select {
		case <-m.ending:
			return
		case <-timer.C():
		}
		timer.Reset(mindEvery)
		now := m.cfg.Clock.Monotonic()
		late := now-last > mindLate
		last = now
		if late {
			continue // this process was held up, and so were its readers: what has come since is not read yet
		}
		for _, s := range m.open() {
			s.mind(now)
		}
	}
}

// open returns the streams that are open.
func (m *Mesh) open() []*stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.streams))
}

// PeerInfo is how another node is connected.
type PeerInfo struct {
	Node        int
	Connected   bool          // there is a stream for packets to it
	LastContact time.Duration // since bytes of it were last received; -1: never
	Dropped     uint64        // packets that were not sent
	Refused     string        // why its last stream, or ours to it, was refused; empty since one was not
}

// Peers tells about the other nodes, by number.
func (m *Mesh) Peers() []PeerInfo {
	now := m.cfg.Clock.Monotonic()
	list := make([]PeerInfo, 0, len(m.peers))
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		info := PeerInfo{Node: p.node, Connected: p.out[packets].Load() != nil, LastContact: -1, Dropped: p.dropped.Load()}
		if at := p.heard.Load(); at != never {
			info.LastContact = max(0, now-time.Duration(at))
		}
		for i := range p.refused {
			if why := p.refused[i].Load(); why != nil {
				info.Refused = why.Error()
			}
		}
		list = append(list, info)
	}
	return list
}
