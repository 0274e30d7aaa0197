package raft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/sim/audit"
)

// capacity of a disk is too little for the node's spare file, which would cost more time than all else.
const capacity = 10 << 20

var epochStart = time.UnixMilli(1_700_000_000_000)

// machine is a data folder, and the process on it, if one runs.
type machine struct {
	w     *world
	i     int
	fs    *memfs.FS
	p     *process
	lives int
	skew  time.Duration // of its wall clock

	formed bool // it was whole once
	hurt   bool // its folder lacks something, or has a flipped bit
	lost   bool // hurt, because it lost a folder
	rotten bool // a bit has flipped once: where nothing stands it is found after a start only
	// hadUpTo is the last entry that any machine had when this one was hurt.
	hadUpTo  uint64
	promised raftState // the last one that was durable while it was whole
}

// process is one life of a node.
type process struct {
	w     *world
	m     *machine
	n     *node.Cluster
	clock *clock.Manual
	mem   *memfs.FS
	fault *faultfs.FS
	ctx   context.Context // ends with it
	end   context.CancelFunc

	serving sync.WaitGroup

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
	lag       time.Duration  // that its clock has not seen
	waiting   []func()       // packets and calls, until it is awake
	asked     []func()       // requests of clients, likewise
	active    time.Duration  // for how long it has run
	broken    bool           // an error was injected
	status    api.RaftStatus // as the operator read it last
	pending   []*op
	open      []*call

	dice  *rand.Rand // for what happens within operations
	armed int        // dies at this operation, counted down; 0 for not
	power bool       // and how
}

// spread is a clock on which no two timers of the simulation are due at the same instant: of two at once, the order in
// which a select takes them would be left to chance.
type spread struct {
	*clock.Manual
	machine time.Duration

	mu   sync.Mutex
	made time.Duration // timers, guarded by mu
}

func newSpread(p *process) *spread { return &spread{Manual: p.clock, machine: time.Duration(p.m.i)} }

// timers is how many timers differ.
const timers = 997

func (s *spread) NewTimer(d time.Duration) clock.Timer {
	s.mu.Lock()
	s.made++
	apart := s.made%timers*8 + s.machine
	s.mu.Unlock()
	return spreadTimer{s.Manual.NewTimer(later(d, apart)), apart}
}

// later adds to the time of a timer what makes it differ from others.
func later(d, apart time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return d + apart
}

// spreadTimer is a timer that always fires a few nanoseconds late.
type spreadTimer struct {
	clock.Timer
	apart time.Duration
}

func (t spreadTimer) Reset(d time.Duration) bool { return t.Timer.Reset(later(d, t.apart)) }

// start starts a process, if none runs.
func (m *machine) start() {
	if m.p != nil {
		return
	}
	w := m.w
	m.lives++
	m.fs.SetCapacity(capacity)
	p := &process{
		w: w, m: m, mem: m.fs, fault: faultfs.New(m.fs), clock: clock.NewManual(epochStart.Add(w.now + m.skew)),
		dice: rand.New(rand.NewPCG(w.seed, uint64(8*m.lives+m.i))),
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	if n := w.plan.dieStarting; n > 0 && !w.quieting && p.dice.IntN(n) == 0 {
		if armed, power := 1+p.dice.IntN(60), p.dice.IntN(2) == 0; !w.leftOut(dieStarting) {
			p.armed, p.power = armed, power
		}
	}
	w.noteLocking("start %d", m.i)
	w.mu.Lock()
	m.p = p
	w.mu.Unlock()
	p.mem.OnOp(p.operation)
	n, err := openNode(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		p.recovered, p.recErr, p.closed = true, err, true
		return
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

// startLater has the operator start the machine after a while.
func (m *machine) startLater() {
	w := m.w
	d := time.Duration(20+w.rng.IntN(400)) * ms
	if w.rng.IntN(4) == 0 && !w.quieting {
		d += time.Duration(w.rng.IntN(4000)) * ms
	}
	w.fault(d, m.start)
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
	if p.fatal == nil {
		p.w.note("%d must stop: %v", p.m.i, err)
		p.fatal = err
	}
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
	p.durable(op)
	var slow time.Duration
	if !op.Done && !w.quieting && !w.due() && (op.Kind == "sync" || op.Kind == "write") {
		switch {
		case w.plan.hangOneIn > 0 && p.dice.IntN(w.plan.hangOneIn) == 0:
			if slow = time.Duration(p.dice.Int64N(int64(w.plan.hang))); w.spares.Spare(faultNames[hungDisk]) {
				slow = 0
				break
			}
			w.stats.hung++
			w.note("a %s of %s on %d hangs for %v", op.Kind, op.Name, p.m.i, slow)
		case w.plan.slowOneIn > 0 && p.dice.IntN(w.plan.slowOneIn) == 0:
			if slow = time.Duration(p.dice.Int64N(int64(w.plan.slow))); w.spares.Spare(faultNames[slowDisk]) {
				slow = 0
				break
			}
			w.stats.slow++
		}
	}
	w.mu.Unlock()
	if slow > 0 {
		p.linger(slow)
	}
	w.mu.Lock()
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
	if op.Done {
		p.w.stats.segments++
		return
	}
	p.w.read(p.mem, audit.Covered(p.mem))
}

// read has the book read a log, up to an entry that is committed. Called with mu held.
func (w *world) read(fsys vfs.FS, upTo entry.Index) {
	if err := w.book.Read(fsys, upTo); err != nil {
		w.violated("the log is in order", "%v", err)
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
	for _, o := range p.pending {
		w.finish(o, unknown, "the process died")
	}
	p.pending = nil
	for len(p.open) > 0 {
		p.open[0].fail()
	}
	for _, m := range w.machines { // their connections break, and some notice
		if q := m.p; q != nil && q != p && p.dice.IntN(2) == 0 {
			w.after(w.latency(), func() { w.disconnect(q, p.m.i) })
		}
	}
}

// disconnect tells a process that its connection to a machine broke. Called with world.mu held.
func (w *world) disconnect(p *process, from int) {
	if p.dead || p.n == nil {
		return
	}
	p.whenAwake(func() { p.serving.Go(func() { p.n.PeerLost(from) }) })
}

// kill ends the process now.
func (p *process) kill(power bool) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.dead {
		return
	}
	p.w.note("kill %d (power cut: %v)", p.m.i, power)
	p.power = power
	p.die()
}

// stop begins a clean stop: it hands over the lead, and when its clients are served, it closes.
func (p *process) stop() {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("stop %d", p.m.i)
	p.stopping = true
	if !p.recovered || p.n == nil {
		return
	}
	p.serving.Go(func() {
		p.n.HandOver(p.ctx)
		p.n.EndWaits()
	})
}

func (p *process) pause() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.note("pause %d", p.m.i)
	p.w.stats.pauses++
	p.paused = true
}

// resume lets everything that has waited come at once: the time that has passed, packets, and requests, in one of six
// orders.
func (p *process) resume(order int) {
	w := p.w
	w.mu.Lock()
	w.note("resume %d after %v, in order %d", p.m.i, p.lag, order)
	p.paused = false
	lag := p.lag
	p.lag = 0
	p.active += lag
	w.mu.Unlock()
	for _, what := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}[order] {
		switch what {
		case 0:
			p.clock.Advance(lag)
		case 1:
			p.flush(&p.waiting)
		case 2:
			p.flush(&p.asked)
		}
		w.settle()
	}
}

// flush does what has waited until the process is awake.
func (p *process) flush(list *[]func()) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	for _, f := range *list {
		f()
	}
	*list = nil
}

// reap looks what has become of a process. It reports whether anything was done.
func (w *world) reap(p *process) bool {
	w.mu.Lock()
	dead, fatal, recovered, err, closed, idle := p.dead, p.fatal, p.recovered, p.recErr, p.closed, len(p.pending) == 0
	w.mu.Unlock()
	switch {
	case dead:
		p.bury()
		p.m.startLater()
	case recovered && err != nil:
		w.refused(p, err)
	case fatal != nil:
		w.judgeFatal(p, fatal)
		p.kill(false)
		p.bury()
		p.m.startLater()
	case p.stopping && recovered && !p.closing && idle:
		p.close()
	case p.closing && closed:
		w.noteLocking("%d has stopped", p.m.i)
		p.bury()
		p.m.startLater()
	default:
		return false
	}
	return true
}

// close closes the node, once. Called by the scheduler.
func (p *process) close() {
	if p.closing {
		return
	}
	p.closing = true
	p.w.ghosts.Go(func() {
		p.n.Close()
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		p.closed = true
	})
}

// judgeFatal judges why a node must stop.
func (w *world) judgeFatal(p *process, err error) {
	if !p.broken && !p.m.hurt && !p.stopping {
		w.fail("a node runs unaided", "machine %d must stop: %v", p.m.i, err)
	}
}

// refused takes a process off its machine that did not start.
func (w *world) refused(p *process, err error) {
	m := p.m
	w.mu.Lock()
	w.note("machine %d does not start: %v", m.i, err)
	w.mu.Unlock()
	if !(p.broken || errors.Is(err, syscall.ENOSPC) || errors.Is(err, wal.ErrFull) || p.stopping || p.dead) {
		w.fail("a node starts unaided", "machine %d: %v", m.i, err)
	}
	p.bury()
	m.startLater()
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
	for len(p.open) > 0 {
		p.open[0].fail()
	}
	p.waiting = nil
	w.mu.Unlock()
	p.mem.OnOp(nil)
	p.end()
	if p.n != nil && !p.closed {
		w.dying = append(w.dying, p)
		p.close()
	}
}

// content reads a file; without one it returns nothing.
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
