package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/node"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/sim/audit"
)

const (
	timeout = 2 * time.Second
	// answerMax is how long a request may wait while its process runs: the timeout for each batch that may be in flight
	// before it, for its own, and a little more.
	answerMax = 6 * timeout
	// capacity of a disk is too little for the node's spare file, which would cost more time than all else.
	capacity = 10 << 20
)

var epochStart = time.UnixMilli(1_700_000_000_000)

// machine is a data folder, and the process on it, if one runs.
type machine struct {
	w  *world
	i  int
	fs *memfs.FS
	p  *process
	// gap says that this folder may lack what was acknowledged, and cannot know: the operator must not promote
	// it before it has begun to follow.
	gap bool
	// swapped says that it was to lead, and was started as a follower by mistake: if it has promised the other one's epoch
	// and was cut off before their logs were compared, it cannot know whether the end of its own counts.
	swapped bool
	// rogue says that the operator let it write alone while the other node led: it must never lead again.
	rogue   bool
	promise promiseFile      // the last one that was durable
	cut     map[cutLine]bool // the entries that were cut off its log
	lives   int
}

// process is one life of a node.
type process struct {
	w     *world
	m     *machine
	n     *node.Node
	clock *clock.Manual
	mem   *memfs.FS
	fault *faultfs.FS
	role  node.Role
	epoch uint64
	rogue bool

	opened    time.Duration
	mayRefuse bool
	before    uint64 // digest of the folder, with mayRefuse
	serving   sync.WaitGroup

	// Guarded by world.mu.
	dead      bool      // nothing that it does from now on counts
	image     *memfs.FS // of its folder at the moment of its death, when that came within an operation
	recovered bool
	recErr    error
	fatal     error
	stopping  bool
	closing   bool // Close runs
	closed    bool
	paused    bool
	lag       time.Duration // that its clock has not seen
	waiting   []func()      // until it is awake
	active    time.Duration // for how long it has run
	broken    bool          // an error was injected
	pending   map[*op]struct{}

	dice  *rand.Rand // for what happens within operations
	slow  int        // one in so many writes and syncs takes a while; 0 for none
	armed int        // dies at this operation, counted down; 0 for not
	power bool       // and how
	named bool       // the promise was renamed, and is durable with the next sync of the folder
}

// boot starts a process. It returns at once; reap sees how it went.
func (m *machine) boot(role node.Role, epoch uint64, mayRefuse bool) {
	w := m.w
	m.lives++
	m.fs.SetCapacity(capacity)
	p := &process{
		w: w, m: m, mem: m.fs, fault: faultfs.New(m.fs), role: role, epoch: epoch, mayRefuse: mayRefuse, opened: w.now,
		clock: clock.NewManual(epochStart.Add(w.now)), pending: make(map[*op]struct{}),
		dice: rand.New(rand.NewPCG(w.seed, uint64(2*m.lives+m.i))), slow: w.plan.slow,
	}
	if n := w.plan.dieStarting; n > 0 && p.dice.IntN(n) == 0 {
		armed, power := 1+p.dice.IntN(50), p.dice.IntN(2) == 0
		if !w.faults.Spare(dieStarting) {
			p.armed, p.power = armed, power
		}
	}
	w.note("start %d as %s, epoch %d", m.i, role, epoch)
	if mayRefuse {
		p.before = digest(m.fs)
	}
	w.mu.Lock()
	m.p = p
	w.mu.Unlock()
	p.mem.OnOp(p.operation)
	var identity [32]byte
	copy(identity[:], fmt.Sprintf("%d %d %d", w.seed, m.i, m.lives))
	cfg := node.Config{
		Role: role, ReplicaTimeout: timeout, Dial: p.dial, Replica: "http://other", Fatal: p.onFatal, Inline: true,
		Pair: pair.Observer{Session: p.onSession, Cut: p.onCut},
		FS:   p.fault, Clock: p.clock, Random: rand.NewChaCha8(identity), Logger: slog.New(logHandler{p}),
		RequestIDWindow: 24 * time.Hour, SegmentBytes: w.plan.segment, SnapshotBytes: w.plan.snapshot, Retention: w.plan.retention,
	}
	if role == node.Leader {
		cfg.Epoch = entry.Term(epoch)
	}
	n, err := node.Open(cfg)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		p.recovered, p.recErr, p.closed = true, err, true
		return
	}
	if !p.dead {
		w.promised(m)
	}
	p.n = n
	p.serving.Go(func() {
		err := n.Recover()
		w.mu.Lock()
		defer w.mu.Unlock()
		p.recovered, p.recErr = true, err
	})
}

// disk is the folder as the next process will find it.
func (m *machine) disk() *memfs.FS {
	if m.p != nil && m.p.image != nil {
		return m.p.image
	}
	return m.fs
}

// whenAwake runs f now, or when the process runs again. Called with world.mu held.
func (p *process) whenAwake(f func()) {
	if p.paused {
		p.waiting = append(p.waiting, f)
		return
	}
	f()
}

func (p *process) onFatal(err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.note("%d must stop", p.m.i)
	p.fatal = err
}

func (p *process) onSession() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.dead {
		return
	}
	p.w.note("session on %d", p.m.i)
	p.w.stats.sessions++
	if p.role == node.Follower && p.w.alone == nil && p.w.connected(p) {
		p.m.gap = false
	}
}

// onCut is called right after entries were cut off: the side file must be durable.
func (p *process) onCut(entries int) {
	w := p.w
	w.mu.Lock()
	dead := p.dead
	w.note("%d cuts %d entries", p.m.i, entries)
	w.mu.Unlock()
	if dead {
		return
	}
	w.stats.cuts++
	saved := cutEntries(p.mem.Crash(1, 0).FS)
	if len(saved) < entries {
		w.fail("what is cut is in a side file", "machine %d cut %d entries, and %d are in durable side files", p.m.i, entries, len(saved))
	}
	// A side file that was written right before a crash may tell of entries that were not cut then.
	left := make(map[cutLine]bool)
	wal.Inspect(p.mem, "log", func(e *entry.Entry, _ entry.Position) error {
		left[lineOf(e)] = true
		return nil
	})
	for line := range saved {
		if !left[line] {
			p.m.cut[line] = true
		}
	}
}

// cutLine names an entry in a side file.
type cutLine struct {
	Index       uint64 `json:"index"`
	Term        uint64 `json:"term"`
	TimestampMS int64  `json:"timestamp_ms"`
}

func lineOf(e *entry.Entry) cutLine { return cutLine{uint64(e.Index), uint64(e.Term), e.TimeMS} }

// cutEntries reads the side files of a folder.
func cutEntries(fsys vfs.FS) map[cutLine]string {
	found := make(map[cutLine]string)
	names, _ := fsys.List("cut")
	for _, name := range names {
		if !strings.HasSuffix(name, ".jsonl") {
			continue
		}
		for _, text := range strings.Split(string(content(fsys, path.Join("cut", name))), "\n") {
			var line cutLine
			if text != "" && json.Unmarshal([]byte(text), &line) == nil {
				found[line] = text
			}
		}
	}
	return found
}

func content(fsys vfs.FS, name string) []byte {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	size, _ := f.Size()
	b := make([]byte, size)
	f.ReadAt(b, 0)
	return b
}

// digest sums up what a folder holds.
func digest(fsys vfs.FS) uint64 {
	h := fnv.New64a()
	for _, dir := range []string{".", "log", "snapshots", "cut"} {
		names, _ := fsys.List(dir)
		for _, name := range names {
			if name != "LOCK" {
				fmt.Fprintf(h, "%s/%s\n", dir, name)
				h.Write(content(fsys, path.Join(dir, name)))
			}
		}
	}
	return h.Sum64()
}

// operation is called by the disk before and after each operation that changes something.
func (p *process) operation(op memfs.Op) {
	w := p.w
	w.mu.Lock()
	if p.dead || w.ending {
		w.mu.Unlock()
		return
	}
	w.stats.operations++
	if op.Kind == "remove" && strings.HasSuffix(op.Name, ".seg") {
		p.drops(op)
	}
	if op.Done {
		switch {
		case op.Kind == "rename" && op.NewName == "pair.json":
			p.named = true
		case op.Kind == "syncdir" && op.Name == "." && p.named:
			p.named = false
			w.promised(p.m)
		}
	}
	slow := p.slow > 0 && !op.Done && !w.nested && (op.Kind == "sync" || op.Kind == "write") && p.dice.IntN(p.slow) == 0 && !w.faults.Spare(slowDisk)
	if slow {
		w.nested = true
	}
	if slow {
		w.mu.Unlock()
		p.linger()
		w.mu.Lock()
		w.nested = false
	}
	defer w.mu.Unlock()
	if p.armed > 0 && !p.dead {
		if p.armed--; p.armed == 0 {
			w.note("%d dies at %s %s (power cut: %v)", p.m.i, op.Kind, op.Name, p.power)
			p.die()
		}
	}
}

// drops reads what a folder still has of the log before a segment is removed from it. Called with world.mu held.
func (p *process) drops(op memfs.Op) {
	w := p.w
	if p.m.rogue || p.rogue {
		return
	}
	if op.Done {
		if p.role != node.Follower {
			w.stats.segments++
		}
		return
	}
	w.read(p.mem, audit.Covered(p.mem))
}

// read has the book read a log, up to an entry that is committed. Called with mu held.
func (w *world) read(fsys vfs.FS, upTo entry.Index) {
	if err := w.book.Read(fsys, upTo); err != nil {
		w.violated("the log is in order", "%v", err)
	}
}

// linger lets the world go on while an operation of the disk runs.
func (p *process) linger() {
	w := p.w
	for range 1 + p.dice.IntN(5) {
		w.mu.Lock()
		list := w.deliverable()
		var pass time.Duration
		if len(list) > 0 && p.dice.IntN(4) > 0 {
			w.deliver(list[p.dice.IntN(len(list))])
		} else if p.dice.IntN(3) == 0 {
			pass = time.Duration(1+p.dice.IntN(400)) * time.Millisecond
			if p.dice.IntN(8) == 0 {
				pass *= 8
			}
			w.note("meanwhile %v pass", pass)
		}
		w.mu.Unlock()
		w.pass(pass)
		if p.dice.IntN(4) == 0 {
			w.request()
		}
		for range 16 {
			runtime.Gosched()
		}
	}
}

// die ends the process: with power, its disk loses what was not synced. Called with world.mu held.
func (p *process) die() {
	if p.dead {
		return
	}
	w := p.w
	p.dead = true
	if p.power {
		w.stats.powerCuts++
		p.image = p.mem.Crash(p.dice.Uint64(), p.dice.IntN(12)).FS
	} else {
		w.stats.kills++
		p.image = p.mem.Clone()
	}
	told := !p.power || p.dice.IntN(2) == 0
	for _, c := range w.net.conns {
		for _, e := range c.ends {
			if e.owner == p {
				e.shut(told)
			}
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(p.pending), func(a, b *op) int { return a.number - b.number }) {
		w.finish(o, unknown, "the process died")
	}
}

// kill ends the process now.
func (p *process) kill(power bool) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.note("kill %d (power cut: %v)", p.m.i, power)
	p.power = power
	p.die()
}

// stop begins a clean stop: when its clients are served, it closes.
func (p *process) stop() {
	p.w.mu.Lock()
	p.w.note("stop %d", p.m.i)
	p.stopping = true
	p.w.mu.Unlock()
	if p.recovered {
		p.n.EndWaits()
	}
}

func (p *process) pause() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.note("pause %d", p.m.i)
	p.w.stats.pauses++
	p.paused = true
}

// resume lets everything that has waited come at once.
func (p *process) resume(packets bool) {
	w := p.w
	w.mu.Lock()
	w.note("resume %d after %v, packets first: %v", p.m.i, p.lag, packets)
	p.paused = false
	lag := p.lag
	p.lag = 0
	for _, f := range p.waiting {
		f()
	}
	p.waiting = nil
	if packets {
		for _, d := range w.deliverable() {
			for d.to().owner == p && len(d.c.flight[d.side]) > 0 {
				w.deliver(d)
			}
		}
	}
	w.mu.Unlock()
	p.clock.Advance(lag)
}

// bury takes a process whose end has come off its machine. Called by the scheduler.
func (p *process) bury() {
	w := p.w
	if p.image != nil {
		p.m.fs = p.image
		p.m.fs.SetCapacity(capacity)
	}
	w.mu.Lock()
	p.dead = true
	p.m.p = nil
	for _, c := range w.net.conns {
		for _, e := range c.ends {
			if e.owner == p {
				e.shut(false)
			}
		}
	}
	w.mu.Unlock()
	p.mem.OnOp(nil)
	if p.n != nil && !p.closed {
		w.ghosts.Go(func() { p.n.Close() })
	}
}

// logHandler puts what a node logs into the trace.
type logHandler struct{ p *process }

func (h logHandler) Enabled(context.Context, slog.Level) bool { return h.p.w.verbose != nil }

func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "    [%d] %s", h.p.m.i, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	if !h.p.dead {
		io.WriteString(h.p.w.verbose, b.String()+"\n")
	}
	return nil
}

func (h logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h logHandler) WithGroup(string) slog.Handler      { return h }
