package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/catchup"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/mesh"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/cluster"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// InCluster is the role of a node of a Raft cluster. OpenCluster opens it.
const InCluster Role = "cluster"

// Defaults of ClusterConfig.
const (
	DefaultElectionTimeout = 500 * time.Millisecond
	DefaultCheckEvery      = 10 * time.Second
	DefaultScrubBytes      = 32 << 20 // a second
)

// How long one call to another node may take.
const (
	askTimeout  = 2 * time.Second  // for a short answer
	pullTimeout = 15 * time.Second // for a piece of a file
)

// ClusterConfig says who the nodes of a cluster are and how to reach them.
type ClusterConfig struct {
	Self int      // number of this node
	URLs []string // of all nodes, by number, this one included: where clients are redirected to
	// Dial connects to another node and has the connection switched to the protocol of the nodes.
	Dial func(ctx context.Context, to int) (net.Conn, error)
	// Streams is told of what goes over these connections.
	Streams mesh.Observer
	// Send and Call stand in for connections where Dial is nil. Send carries a packet to another node. It never waits, may
	// lose, delay and repeat packets, and owns packet. Call asks another node and returns its answer.
	Send func(to int, packet []byte)
	Call func(ctx context.Context, to int, request []byte) ([]byte, error)
	// ElectionTimeout is how long a leader may be silent before another one is elected. Default 500 ms.
	ElectionTimeout time.Duration
	// CheckEvery is how often the nodes compare their folds. Default 10 s.
	CheckEvery time.Duration
	// ScrubBytes is how much of the log is read in a second to find damage. Default 32 MiB.
	ScrubBytes int64
	// Window is how many bytes of the log a leader keeps in memory for nodes that lag. Default 32 MiB. Who lags more fetches
	// files instead.
	Window int64
	// Random is for election timeouts and pauses. Nil for the system's.
	Random *rand.Rand
	// Observer is told what happens; its functions may be nil.
	Observer cluster.Observer
}

// Cluster is a node of a Raft cluster. It owns a data folder for as long as it is open, and runs one life of a Node after
// the other on it: a life ends when the node must fetch from the others what it lacks, below raft, and the next one begins
// with the longer log. Only a node that is whole runs raft.
//
// Its methods may be called from any goroutine.
type Cluster struct {
	cfg    Config
	cc     ClusterConfig
	fs     vfs.FS
	logger *slog.Logger
	lock   io.Closer
	opened time.Duration
	print  [32]byte // fingerprint of the addresses
	store  *stateStore
	server *catchup.Server
	mesh   *mesh.Mesh // nil when ClusterConfig has Send and Call
	rng    *rand.Rand // owned by run
	seeds  func() *rand.Rand
	// corrupt has capacity 1: a read has met damage.
	corrupt chan struct{}
	scrubs  *scrubReport

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	begun    chan struct{} // closed by Recover: from then on there may be a mesh
	running  sync.WaitGroup
	closing  sync.Once
	closeErr error

	identityMu sync.Mutex
	identity   *identity // Invariant: LogID is that of store's state unless that is new

	life    atomic.Pointer[Node]         // whose log is open; its broker may not be there yet
	role    atomic.Pointer[cluster.Role] // runs raft
	leading atomic.Bool                  // the broker decides

	mu       sync.Mutex // guards the fields below
	end      context.CancelCauseFunc
	reason   string // why this node does not serve; empty when it does
	hint     int    // the leader as others told; -1 for none
	acked    []entry.Index
	refusals []time.Duration // when a refused packet of each node was worth a line
	good     [][2]uint64     // boot and nonce of the start of each node that was found good
	met      []bool          // that took our introduction of this start
	booted   bool            // the start is counted
	pullFrom int             // the leader that said we are too far behind; -1 for none
	outcast  string          // why this node takes no part any more, in a word: "failed" or "quarantined"; else empty
	checks   checks
	repairs  map[entry.Index]bool // segments being repaired
	damaged  bool                 // the log was found damaged where opening it does not look, and is not repaired yet
}

// OpenCluster locks the data folder and checks, or makes, its identity. It reads no data: Recover does. It returns an
// error that wraps vfs.ErrLocked when another process has the folder.
func OpenCluster(cfg Config, cc ClusterConfig) (*Cluster, error) {
	cfg = cfg.withDefaults()
	cfg.Role = InCluster
	if n := len(cc.URLs); n == 0 || n > clusterMax || n%2 == 0 || cc.Self < 0 || cc.Self >= n {
		return nil, fmt.Errorf("node %d of %d: a cluster has 1, 3, 5 or 7 nodes", cc.Self, n)
	}
	if cc.ElectionTimeout == 0 {
		cc.ElectionTimeout = DefaultElectionTimeout
	}
	if cc.CheckEvery == 0 {
		cc.CheckEvery = DefaultCheckEvery
	}
	if cc.ScrubBytes == 0 {
		cc.ScrubBytes = DefaultScrubBytes
	}
	random := cc.Random
	if random == nil {
		random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	lock, err := cfg.FS.Lock(lockFile)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := settleNames(cfg.FS); err != nil {
		lock.Close()
		return nil, err
	}
	c := &Cluster{
		cfg: cfg, cc: cc, fs: cfg.FS, logger: cfg.Logger.With("node", cc.Self), lock: lock, opened: cfg.Clock.Monotonic(),
		print: fingerprint(cc.URLs), rng: random, hint: -1, pullFrom: -1,
		acked: make([]entry.Index, len(cc.URLs)), refusals: make([]time.Duration, len(cc.URLs)), met: make([]bool, len(cc.URLs)), good: make([][2]uint64, len(cc.URLs)), reason: "the node is starting",
		repairs: map[entry.Index]bool{}, corrupt: make(chan struct{}, 1), scrubs: new(scrubReport), begun: make(chan struct{}),
	}
	c.seeds = func() *rand.Rand { return rand.New(rand.NewPCG(random.Uint64(), random.Uint64())) }
	c.checks.known, c.checks.kick = map[entry.Index][32]byte{}, make(chan struct{}, 1)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.identify(); err != nil {
		lock.Close()
		return nil, err
	}
	c.server = catchup.NewServer(catchup.ServerConfig{Source: &source{c}, Clock: cfg.Clock, Nodes: len(cc.URLs), Damaged: func(*wal.CorruptionError) { c.metDamage() }})
	return c, nil
}

// fingerprint tells whether nodes were given the same addresses, in the same order.
func fingerprint(urls []string) [32]byte { return sha256.Sum256([]byte(strings.Join(urls, "\n"))) }

// identify reads, or makes, who this node is, and checks that it may be what it was started as.
func (c *Cluster) identify() error {
	if err := checkUnfinished(c.fs, InCluster); err != nil {
		return err
	}
	promises, err := loadPromises(c.fs)
	if err != nil {
		return err
	}
	store, err := openState(c.fs)
	damage := (*stateDamage)(nil)
	switch {
	case errors.As(err, &damage):
		if len(c.cc.URLs) == 1 {
			return fmt.Errorf("%w: it holds what this node has promised, and there is no other node to ask; restore it from a backup; nothing was changed", err)
		}
	case errors.Is(err, errNoState):
	case err != nil:
		return err
	}
	c.store = store
	st := store.state()
	id, err := loadIdentity(c.fs, c.cfg.Random, true)
	switch {
	case err == nil:
	case damage != nil && errors.As(err, new(*identityDamage)):
		// Nothing here tells any more whose log this is. The others do.
		c.logger.Error("this node does not know any more who it is: it asks the others", "err", err)
		if id, err = makeIdentity(c.cfg.Random); err != nil {
			return err
		}
		id.LogID = ""
		if err := writeIdentity(c.fs, id); err != nil {
			return err
		}
	case st == nil || st.Phase == phaseNew:
		return err
	default:
		// The other file says the same.
		c.logger.Error("the identity is made again from what raft's state says", "err", err)
		id = &identity{Format: identityFormat, LogID: st.LogID, NodeID: st.NodeID, Ready: st.Phase != phaseNew}
		if err := writeIdentity(c.fs, id); err != nil {
			return err
		}
	}
	c.identity = id
	switch {
	case damage != nil:
		return c.forgotten(damage)
	case st == nil:
		return c.first(promises)
	case st.Phase == phaseNew && (st.Self != c.cc.Self || len(st.Members) != len(c.cc.URLs)):
		return c.first(promises) // it was never part of a cluster
	case st.Self != c.cc.Self:
		return fmt.Errorf("this data folder is that of node %d, and -raft-self says %d: it was given to another node; nothing was changed", st.Self, c.cc.Self)
	case len(st.Members) != len(c.cc.URLs):
		return fmt.Errorf("this data folder is of a cluster of %d nodes, and -raft-peers names %d; nothing was changed", len(st.Members), len(c.cc.URLs))
	case st.Phase != phaseNew && id.LogID != st.LogID:
		if id.LogID != "" {
			return fmt.Errorf("%s says that the log is %s, and %s that it is %s: files of different folders; nothing was changed", identityFile, id.LogID, stateFile, st.LogID)
		}
		// The file was lost. If this node has promised anything, there was a log.
		id.LogID, id.Ready = st.LogID, st.Boot > 0 || st.Term > 0
		return writeIdentity(c.fs, id)
	}
	return nil
}

// first makes the state of a folder that is in a cluster for the first time. It may hold the log of a standalone node.
func (c *Cluster) first(promises *promises) error {
	p := promises.Promise()
	if self := c.identity.nodeID(); p.Epoch != 0 && !p.Leader.IsZero() && p.Leader != self || p.First != 0 || p.WholeAt != 0 {
		return fmt.Errorf("this data folder is a follower's of node %v: a cluster begins with the leader's; nothing was changed", p.Leader)
	}
	return c.store.change(func(s *raftState) bool {
		*s = raftState{NodeID: c.identity.NodeID, Self: c.cc.Self, Phase: phaseNew, Vote: noVote, Members: make([]memberState, len(c.cc.URLs))}
		return true
	})
}

// forgotten begins to heal a node whose promises cannot be read.
func (c *Cluster) forgotten(damage error) error {
	c.logger.Error("this node does not know any more what it has promised: it asks the others, and neither votes nor acknowledges before it is whole again", "err", damage)
	id, err := c.randomID()
	if err != nil {
		return err
	}
	return c.store.change(func(s *raftState) bool {
		*s = raftState{NodeID: id, Self: c.cc.Self, Phase: phaseHealing, Vote: noVote, LogID: c.identity.LogID, Members: make([]memberState, len(c.cc.URLs))}
		if s.LogID == "" {
			s.Phase = phaseNew
		}
		return true
	})
}

// randomID returns 32 hex digits.
func (c *Cluster) randomID() (string, error) {
	id, err := makeIdentity(c.cfg.Random)
	if err != nil {
		return "", err
	}
	return id.NodeID, nil
}

// Recover begins to run. It returns at once: forming, healing and elections take as long as they take.
func (c *Cluster) Recover() error {
	if c.cc.Dial != nil {
		c.startMesh(c.cc.Dial, c.cc.Streams)
	}
	close(c.begun)
	c.running.Go(c.run) // ended by cancel, awaited by Close
	return nil
}

// Interrupt does nothing: Recover does not wait, and requests in flight may finish until Close.
func (c *Cluster) Interrupt() {}

// Close stops the node. It hands over nothing: see HandOver.
func (c *Cluster) Close() error {
	c.closing.Do(func() {
		c.cancel()
		c.finish(errStopping)
		c.running.Wait()
		if c.mesh != nil {
			c.mesh.Close()
		}
		c.server.Close()
		c.closeErr = errors.Join(c.store.close(), c.lock.Close())
	})
	return c.closeErr
}

// Why a life ends.
var (
	errStopping    = errors.New("the node is stopping")
	errBehind      = errors.New("the leader does not have in memory any more what this node lacks")
	errLost        = errors.New("this node has lost what it had acknowledged")
	errReplaced    = errors.New("another node has this node's place")
	errDisk        = errors.New("the disk failed")
	errDiverged    = errors.New("what is committed here is not what the leader has: the disk or the memory of this node is not to be trusted; give it an empty data folder")
	errOdd         = errors.New("the fold differs from that of the others")
	errHeadless    = errors.New("the log has lost its head")
	errMustRepair  = errors.New("the log is damaged where it is being written")
	errDifferently = errors.New("the others belong to another cluster")
)

// finish ends the life that runs, if one does.
func (c *Cluster) finish(why error) {
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	if end != nil {
		end(why)
	}
}

// fatalError ends the process.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// Pauses between tries.
const (
	retryFirst = 50 * time.Millisecond
	retryMax   = time.Second
)

// run does what the phase asks for, until the node stops.
func (c *Cluster) run() {
	pause, said := retryFirst, ""
	for c.ctx.Err() == nil {
		err := c.step()
		fatal := (*fatalError)(nil)
		switch {
		case err == nil:
			pause, said = retryFirst, ""
			continue
		case c.ctx.Err() != nil:
			return
		case errors.As(err, &fatal):
			c.unready(err.Error())
			c.cfg.Fatal(err)
			return
		}
		c.unready(err.Error())
		if text := err.Error(); text != said {
			said = text
			c.logger.Warn("not serving yet", "phase", string(c.store.state().Phase), "why", text)
		}
		if !c.sleep(c.ctx, pause/2+time.Duration(c.rng.Int64N(int64(pause/2)+1))) {
			return
		}
		pause = min(pause*2, retryMax)
	}
}

// sleep waits, and reports false when ctx ended before.
func (c *Cluster) sleep(ctx context.Context, d time.Duration) bool {
	timer := c.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Cluster) unready(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = reason
}

// step does one thing. An error is tried again.
func (c *Cluster) step() error {
	c.mu.Lock()
	out := c.outcast != ""
	c.mu.Unlock()
	if out {
		<-c.ctx.Done()
		return nil
	}
	switch st := c.store.state(); st.Phase {
	case phaseNew:
		return c.form()
	case phaseHealing:
		return c.heal()
	case phaseFetching:
		return c.fetch()
	default:
		c.mu.Lock()
		from := c.pullFrom
		c.pullFrom = -1
		c.mu.Unlock()
		if from >= 0 {
			return c.pull(from)
		}
		return c.serve()
	}
}

// openLife opens the data of the folder, and brings the fold up to what is known to be committed.
func (c *Cluster) openLife() (n *Node, fold *state.State, committed entry.Index, err error) {
	c.identityMu.Lock()
	id := *c.identity
	c.identityMu.Unlock()
	n = c.newLife(&id)
	if err := makeFolders(c.fs, id.Ready); err != nil {
		return nil, nil, 0, err
	}
	fold, committed, err = n.load(false)
	if err != nil {
		n.Close()
		return nil, nil, 0, err
	}
	n.committed, n.ended = max(committed, fold.Applied()), n.log.Last()
	c.identityMu.Lock()
	c.identity = n.identity // ready, now
	c.identityMu.Unlock()
	// The end of the log may be cut from now on, by a new leader: how far it reached says nothing any more.
	if err := n.removeFiles(".", func(name string) bool { return name == cleanFile }); err != nil {
		n.Close()
		return nil, nil, 0, err
	}
	return n, fold, committed, nil
}

// newLife returns a node on the folder.
func (c *Cluster) newLife(id *identity) *Node {
	n := &Node{
		cfg: c.cfg, fs: c.fs, logger: c.logger, lock: noLock{}, stop: make(chan struct{}), opened: c.cfg.Clock.Monotonic(),
		identity: id, promises: &promises{fs: c.fs}, failed: c.diskFailed, scrubs: c.scrubs,
		checkEvery: c.cc.CheckEvery, checked: c.checked, corrupt: c.metDamage, holding: c.server.Held,
		leaderURL: func() string {
			if leader, _ := c.leader(); leader >= 0 && leader != c.cc.Self {
				return c.cc.URLs[leader]
			}
			return ""
		},
	}
	n.room.node = n
	return n
}

// noLock stands for the lock of a life: Cluster has it.
type noLock struct{}

func (noLock) Close() error { return nil }

// serve is a life that runs raft. It returns nil when the next step is due.
func (c *Cluster) serve() error {
	ctx, end := context.WithCancelCause(c.ctx)
	defer end(nil)
	c.mu.Lock()
	c.end = end
	c.mu.Unlock()
	c.unready("starting: reading the log")
	n, fold, _, err := c.openWhole(ctx)
	if err != nil {
		return err
	}
	c.life.Store(n)
	defer func() {
		c.life.Store(nil)
		c.closeLife(n)
	}()
	if err := c.comeBack(ctx); err != nil {
		return c.lifeEnded(err)
	}
	role, err := c.raft(n, fold)
	if errors.As(err, new(*wal.CorruptionError)) {
		return c.lifeEnded(fmt.Errorf("%w: %w", errMustRepair, err))
	}
	if err != nil {
		return err
	}
	c.unready("")
	var tasks sync.WaitGroup
	tasks.Go(func() { c.meetTheRest(ctx) })
	tasks.Go(func() { c.noteAcked(ctx, role) })
	tasks.Go(func() { c.compare(ctx) })
	tasks.Go(func() { c.scrub(ctx, n) })
	<-ctx.Done()
	tasks.Wait()
	cause := context.Cause(ctx)
	c.unready(cause.Error())
	c.rememberAcked(role)
	c.leading.Store(false)
	c.role.Store(nil)
	return c.lifeEnded(cause)
}

// closeLife ends a life. Its broker refuses requests from now on, and the log is closed as readers leave.
func (c *Cluster) closeLife(n *Node) {
	if err := n.Close(); err != nil && !errors.Is(err, wal.ErrFailed) {
		c.logger.Error("closing the log", "err", err)
	}
}

// lifeEnded says what is to be done after a life ended for a reason.
func (c *Cluster) lifeEnded(cause error) error {
	switch {
	case errors.Is(cause, errMustRepair):
		c.mu.Lock()
		c.damaged = true
		c.mu.Unlock()
		return nil
	case errors.Is(cause, errBehind), errors.Is(cause, errStopping), c.ctx.Err() != nil:
		return nil
	case errors.Is(cause, errHeadless):
		c.logger.Error("the log is repaired: all of it is fetched anew from the others", "why", cause)
		return c.needFull(cause)
	case errors.Is(cause, errLost), errors.Is(cause, errReplaced):
		return c.beginHealing(cause)
	case errors.Is(cause, errDifferently):
		return &fatalError{cause}
	case errors.Is(cause, errDisk), errors.Is(cause, errOdd), errors.Is(cause, errDiverged):
		c.mu.Lock()
		if c.outcast = "failed"; !errors.Is(cause, errDisk) {
			c.outcast = "quarantined"
		}
		c.mu.Unlock()
		// For good, for this process: it neither votes nor acknowledges any more.
		c.logger.Error("this node takes no part any more until it is started again", "err", cause)
		c.unready(cause.Error() + ": this node takes no part any more until it is started again")
		return nil
	}
	return cause
}

// diskFailed is called when the disk of a life cannot be trusted any more. The only node of a cluster goes on serving
// reads; it acknowledges nothing more.
func (c *Cluster) diskFailed(err error) {
	if len(c.cc.URLs) > 1 {
		c.finish(whyFailed(err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcast, c.reason = "failed", "writes have stopped for good, restart the node: "+err.Error()
}

// boot counts the start of this process, durably, before anybody hears of it.
func (c *Cluster) boot() error {
	c.mu.Lock()
	c.booted = true
	clear(c.met)
	c.mu.Unlock()
	nonce := c.rng.Uint64() >> 1 // JSON readers
	return c.store.change(func(s *raftState) bool {
		s.Boot++
		s.Nonce = nonce
		s.Members[s.Self] = memberState{NodeID: s.NodeID, Incarnation: s.Members[s.Self].Incarnation, Boot: s.Boot, Nonce: nonce}
		return true
	})
}

// raft begins to take part: it votes, and leads or follows.
func (c *Cluster) raft(n *Node, fold *state.State) (*cluster.Role, error) {
	st := c.store.state()
	hard := cluster.Hard{Term: entry.Term(st.Term), Vote: st.Vote} // the role sees to it that the log is not of a later term
	applied := fold.Applied()
	var role *cluster.Role
	err := n.serve(fold, func(b *broker.Broker) (replication.Role, error) {
		var err error
		role, err = cluster.New(cluster.Config{
			Self: c.cc.Self, Nodes: len(c.cc.URLs), LogID: n.identity.logID(), Log: n.log, Applied: applied, Commit: n.committed, Hard: hard, Save: c.saveHard,
			Applier: &watched{Broker: b, c: c}, Send: c.cc.Send, Clock: c.cfg.Clock, Random: c.seeds(),
			ElectionTimeout: c.cc.ElectionTimeout, Window: c.cc.Window, Full: n.log.NextFull, Behind: c.behind, Marker: markerFrame,
			Fatal:  c.raftFailed,
			Logger: c.logger, Observer: c.cc.Observer,
		})
		if err == nil {
			c.role.Store(role)
		}
		return role, err
	})
	return role, err
}

// raftFailed is called by the role when it must not go on.
func (c *Cluster) raftFailed(err error) {
	c.finish(whyFailed(err))
}

// whyFailed says what a failure of the role means for this node. Before the role calls Fatal it tells the broker, so the
// life may end by either of the two.
func whyFailed(err error) error {
	why := errDisk
	if errors.As(err, new(*cluster.LostError)) {
		why = errLost
	} else if errors.As(err, new(*cluster.DivergedError)) {
		why = errDiverged
	}
	return fmt.Errorf("%w: %w", why, err)
}

// markerFrame adds the first entry of a leader's term.
func markerFrame(f *wal.Frames, timeMS int64) { f.End(f.Begin(fact.KindMarker, timeMS)) }

// saveHard implements cluster.Config.Save.
func (c *Cluster) saveHard(h cluster.Hard) error {
	return c.store.change(func(s *raftState) bool {
		s.Term, s.Vote = uint64(h.Term), h.Vote
		return true
	})
}

// behind is called by the role when the leader cannot send what this node lacks.
func (c *Cluster) behind(leader int) {
	c.mu.Lock()
	c.pullFrom = leader
	c.mu.Unlock()
	c.finish(errBehind)
}

// watched is the broker, which the role tells what is committed. It notes when the broker decides, and failures.
type watched struct {
	*broker.Broker
	c *Cluster
}

func (w *watched) Lead() {
	w.Broker.Lead()
	w.c.leading.Store(true)
}

func (w *watched) Follow(reason string) {
	w.c.leading.Store(false)
	w.Broker.Follow(reason)
}

func (w *watched) Failed(err error) {
	if len(w.c.cc.URLs) > 1 {
		w.c.leading.Store(false)
	}
	w.Broker.Failed(err)
	w.c.diskFailed(err)
}

// PeerPacket takes a packet of another node.
func (c *Cluster) PeerPacket(from int, packet []byte) {
	role := c.role.Load()
	if role == nil {
		return
	}
	if err := role.Receive(from, packet); err != nil && c.mayLog(from) {
		c.logger.Warn("refused a packet of another node", "peer", from, "err", err)
	}
}

// refusalEvery is how often refused packets of one node are worth a line.
const refusalEvery = 10 * time.Second

func (c *Cluster) mayLog(from int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Monotonic()
	if from < 0 || from >= len(c.refusals) || c.refusals[from] != 0 && now-c.refusals[from] < refusalEvery {
		return false
	}
	c.refusals[from] = now
	return true
}

// PeerAnswer answers a question of another node.
func (c *Cluster) PeerAnswer(ctx context.Context, from int, request []byte) []byte {
	return c.server.Answer(ctx, from, request)
}

// PeerLost is told that the connection to another node broke.
func (c *Cluster) PeerLost(peer int) {
	if role := c.role.Load(); role != nil {
		role.Unreachable(peer)
	}
}

// peer is another node, to ask. Each call ends after a while.
func (c *Cluster) peer(to int, timeout time.Duration) catchup.Peer {
	return catchup.PeerFunc(func(ctx context.Context, request []byte) ([]byte, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		timer := c.cfg.Clock.NewTimer(timeout)
		done := make(chan struct{})
		var waiting sync.WaitGroup
		waiting.Go(func() {
			defer timer.Stop()
			select {
			case <-timer.C():
				cancel(fmt.Errorf("node %d does not answer within %v", to, timeout))
			case <-done:
			}
		})
		answer, err := c.cc.Call(ctx, to, request)
		close(done)
		waiting.Wait()
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		cancel(nil)
		return answer, err
	})
}

// client asks another node, and takes answers about our log only.
func (c *Cluster) client(to int, timeout time.Duration) catchup.Client {
	return catchup.Client{Peer: c.peer(to, timeout), LogID: logIDOf(c.store.state().LogID)}
}

// redirect says who serves instead of this node.
func (c *Cluster) redirect(unknown bool) error {
	leader, reason := c.leader()
	if leader >= 0 && leader != c.cc.Self {
		return &broker.NotLeaderError{Leader: c.cc.URLs[leader]}
	}
	return &broker.UnavailableError{Reason: reason, Unknown: unknown}
}

// leader returns the number of the leader, -1 for none, and what to say of there being none.
func (c *Cluster) leader() (int, string) {
	role := c.role.Load()
	c.mu.Lock()
	hint, reason := c.hint, c.reason
	c.mu.Unlock()
	if role == nil {
		return hint, reason
	}
	switch info := role.Info(); {
	case info.Leader == c.cc.Self:
		return info.Leader, "this node was elected and is about to lead"
	case info.Leader < 0:
		return -1, "there is no leader now: an election is under way, or no majority of the nodes can be reached"
	default:
		return info.Leader, ""
	}
}

// serving returns the broker if it decides.
func (c *Cluster) serving() *broker.Broker {
	if !c.leading.Load() {
		return nil
	}
	n := c.life.Load()
	if n == nil {
		return nil
	}
	return n.broker.Load()
}

// Publish implements httpapi.Broker.
func (c *Cluster) Publish(p *broker.Publish) (broker.Published, error) {
	b := c.serving()
	if b == nil {
		return broker.Published{}, c.redirect(len(p.RequestID) > 0)
	}
	return b.Publish(p)
}

// Fetch implements httpapi.Broker.
func (c *Cluster) Fetch(q *broker.Fetch, sink broker.Sink) (broker.Page, error) {
	b := c.serving()
	if b == nil {
		return broker.Page{}, c.redirect(false)
	}
	return b.Fetch(q, sink)
}

// CommitGroup implements httpapi.Broker.
func (c *Cluster) CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error) {
	b := c.serving()
	if b == nil {
		return 0, c.redirect(false)
	}
	return b.CommitGroup(topic, group, next)
}

// Retain implements httpapi.Broker.
func (c *Cluster) Retain(topic []byte, start fact.Offset) (fact.Offset, error) {
	b := c.serving()
	if b == nil {
		return 0, c.redirect(false)
	}
	return b.Retain(topic, start)
}

// ConfigureTopic implements httpapi.Broker.
func (c *Cluster) ConfigureTopic(q *broker.Configure) (broker.Settings, error) {
	b := c.serving()
	if b == nil {
		return broker.Settings{}, c.redirect(false)
	}
	return b.ConfigureTopic(q)
}

// DeleteTopic implements httpapi.Broker.
func (c *Cluster) DeleteTopic(topic []byte) (end fact.Offset, err error) {
	b := c.serving()
	if b == nil {
		return 0, c.redirect(false)
	}
	return b.DeleteTopic(topic)
}

// DeleteGroup implements httpapi.Broker.
func (c *Cluster) DeleteGroup(topic, group []byte) (next fact.Offset, err error) {
	b := c.serving()
	if b == nil {
		return 0, c.redirect(false)
	}
	return b.DeleteGroup(topic, group)
}

// SeekGroup implements httpapi.Broker.
func (c *Cluster) SeekGroup(q *broker.Seek) (broker.Sought, error) {
	b := c.serving()
	if b == nil {
		return broker.Sought{}, c.redirect(false)
	}
	return b.SeekGroup(q)
}

// ListTopics implements httpapi.Broker.
func (c *Cluster) ListTopics(q *broker.List) (page []broker.TopicSummary, more bool, err error) {
	b := c.serving()
	if b == nil {
		return nil, false, c.redirect(false)
	}
	return b.ListTopics(q)
}

// DescribeTopic implements httpapi.Broker.
func (c *Cluster) DescribeTopic(topic []byte, groups int) (broker.TopicDescription, error) {
	b := c.serving()
	if b == nil {
		return broker.TopicDescription{}, c.redirect(false)
	}
	return b.DescribeTopic(topic, groups)
}

// ListGroups implements httpapi.Broker.
func (c *Cluster) ListGroups(q *broker.List) (page []broker.GroupState, more bool, err error) {
	b := c.serving()
	if b == nil {
		return nil, false, c.redirect(false)
	}
	return b.ListGroups(q)
}

// DescribeGroup implements httpapi.Broker.
func (c *Cluster) DescribeGroup(topic, group []byte) (broker.GroupState, error) {
	b := c.serving()
	if b == nil {
		return broker.GroupState{}, c.redirect(false)
	}
	return b.DescribeGroup(topic, group)
}

// Snapshot implements httpapi.Broker. Each node takes its own.
func (c *Cluster) Snapshot() (entry.Index, error) {
	n := c.life.Load()
	if n == nil || n.broker.Load() == nil {
		_, reason := c.leader()
		return 0, &broker.UnavailableError{Reason: reason}
	}
	return n.Snapshot()
}

// EndWaits makes waiting fetches return now, and later ones not wait.
func (c *Cluster) EndWaits() {
	if n := c.life.Load(); n != nil {
		n.EndWaits()
	}
}

// HandOver gives up the lead, if this node has it, so that a stop costs the clients next to nothing. It returns when
// another node leads, or none would take it.
func (c *Cluster) HandOver(ctx context.Context) {
	role := c.role.Load()
	if role == nil || len(c.cc.URLs) == 1 || role.Info().Leader != c.cc.Self {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*c.cc.ElectionTimeout) // the others may be stopping, too
	defer cancel()
	if err := role.Transfer(ctx, -1); err != nil {
		c.logger.Warn("nobody took the lead over", "err", err)
	}
}

// ErrNoNode is returned by Transfer for a number that no node of the cluster has.
var ErrNoNode = errors.New("the cluster has no such node")

// Transfer gives the lead to another node, -1 for the best one.
func (c *Cluster) Transfer(ctx context.Context, to int) error {
	role := c.role.Load()
	switch {
	case to < -1 || to >= len(c.cc.URLs):
		return ErrNoNode
	case role == nil || role.Info().Leader != c.cc.Self:
		return c.redirect(false)
	case to == c.cc.Self:
		return nil
	}
	return role.Transfer(ctx, to)
}

// nodeID converts 32 hex digits that were checked.
func nodeID(text string) [16]byte {
	id := identity{NodeID: text}
	return id.nodeID()
}

// logIDOf converts 32 hex digits that were checked, or none.
func logIDOf(text string) entry.LogID {
	id := identity{LogID: text}
	return id.logID()
}
