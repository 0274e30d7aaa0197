package sim

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing/synctest"
	"time"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
	"example.com/mq/test/sim/audit"
	"example.com/mq/test/sim/seeds"
)

// plan is what a seed has in store: which faults there are, and how often.
type plan struct {
	events             int
	segment, snapshot  int64
	slow, sample       int
	large, dieStarting int // one in so many records is large; one in so many processes dies early; 0 for none
	weights            [actions]int
	retention          fact.Retention // of topics without settings of their own
}

// The actions of the scheduler.
const (
	actDeliver = iota
	actTime
	actLongTime
	actRequest
	actDisturb
	actCut
	actHeal
	actKill
	actPowerCut
	actDieWithin
	actStop
	actStart
	actPause
	actResume
	actFull
	actRoom
	actDiskError
	actPromote
	actMistake
	actReplace
	actAlone
	actBump
	actRogue
	actUsurp
	actions
)

// makePlan draws a plan: each kind of fault is in about half of all seeds.
func makePlan(rng *rand.Rand) plan {
	p := plan{events: 400 + rng.IntN(500), segment: 4096 << rng.IntN(3), snapshot: 4096 << rng.IntN(4), sample: 8}
	if rng.IntN(2) == 0 {
		p.slow = 3 + rng.IntN(40)
	}
	p.large = 20
	if rng.IntN(4) == 0 {
		p.large = 2
	}
	if rng.IntN(3) == 0 {
		p.dieStarting = 2 + rng.IntN(8)
	}
	w := &p.weights
	w[actDeliver], w[actTime], w[actLongTime], w[actRequest] = 70, 14, 1, 15+rng.IntN(30)
	w[actStart], w[actHeal], w[actResume], w[actRoom] = 6, 3, 2, 3
	for _, fault := range []struct{ act, weight int }{
		{actDisturb, 2}, {actCut, 2}, {actKill, 1}, {actPowerCut, 1}, {actDieWithin, 2}, {actStop, 1}, {actPause, 2}, {actFull, 1},
		{actDiskError, 1}, {actPromote, 2}, {actMistake, 1}, {actReplace, 1}, {actAlone, 1}, {actBump, 1},
		{actUsurp, 1},
	} {
		if rng.IntN(2) == 0 {
			w[fault.act] = 1 + rng.IntN(2*fault.weight)
		}
	}
	if rng.IntN(6) == 0 {
		w[actRogue] = 2
	}
	if rng.IntN(4) == 0 {
		p.retention = makeRetention(rng)
	}
	return p
}

// makeRetention draws limits that a run reaches: at least one.
func makeRetention(rng *rand.Rand) (r fact.Retention) {
	for r == (fact.Retention{}) {
		if rng.IntN(3) == 0 {
			r.MS = fact.Limit(200 + rng.IntN(20_000))
		}
		if rng.IntN(3) == 0 {
			r.Bytes = fact.Limit(1 + rng.IntN(6000))
		}
		if rng.IntN(3) == 0 {
			r.Records = fact.Limit(1 + rng.IntN(30))
		}
	}
	return r
}

// world is one run.
type world struct {
	seed    uint64
	plan    plan
	rng     *rand.Rand    // of the scheduler alone
	faults  *seeds.Faults // which of those that are drawn are done
	verbose io.Writer     // the trace, or nil
	stats   stats

	machines [2]*machine
	lead     int    // the machine that leads, or shall, by the operator's will
	epoch    uint64 // of it
	ghosts   sync.WaitGroup
	fenced   bool // the machine that shall lead was told that another one does

	mu        sync.Mutex // guards what follows, and what the processes say
	now       time.Duration
	event     int
	trace     hash.Hash64
	net       network
	nested    bool // an operation lingers
	ending    bool // nothing counts any more
	requests  int
	oracle    *oracle
	book      *audit.Book // of all that is committed, by the log
	alone     *machine    // runs standalone, or shall
	promise   uint64      // the highest epoch that was promised, durably
	promiseAt time.Duration
	ackers    map[uint64]int
	violation error
}

// stats count what happened, to show that a run reached what it is for.
type stats struct {
	operations, sessions, acks, kills, powerCuts, pauses, cuts, promotions, refusals, replaced, behind, diverged, prodded int
	segments, kept, moved, deleted, byTime                                                                                int
	outcomes                                                                                                              [4]int
}

func newWorld(seed uint64, faults *seeds.Faults, verbose io.Writer) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{seed: seed, plan: makePlan(rng), rng: rng, faults: faults, verbose: verbose, trace: fnv.New64a(), epoch: 1, ackers: map[uint64]int{}}
	w.oracle, w.book = newOracle(w.plan.retention != (fact.Retention{})), audit.New(w.plan.retention)
	for i := range w.machines {
		w.machines[i] = &machine{w: w, i: i, fs: memfs.New(), cut: map[cutLine]bool{}}
	}
	w.machines[1].gap = true
	return w
}

// note adds a line to the trace. Called with mu held.
func (w *world) note(format string, args ...any) {
	if w.ending {
		return
	}
	fmt.Fprintf(w.trace, format, args...)
	if w.verbose != nil {
		fmt.Fprintf(w.verbose, "%4d %9.3fs  "+format+"\n", append([]any{w.event, w.now.Seconds()}, args...)...)
	}
}

// violated notes that an invariant is broken. Called with mu held.
func (w *world) violated(invariant, format string, args ...any) {
	if w.violation == nil && !w.ending {
		w.violation = fmt.Errorf("INVARIANT %q: "+format, append([]any{invariant}, args...)...)
		w.note("%v", w.violation)
	}
}

func (w *world) fail(invariant, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violated(invariant, format, args...)
}

func (w *world) failIfAlive(p *process, invariant, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.dead {
		w.violated(invariant, format, args...)
	}
}

// promised notes what a folder has promised durably, as it is now. Called with mu held.
func (w *world) promised(m *machine) {
	p := promiseOf(m.fs)
	switch before := m.promise; {
	case p.Epoch < before.Epoch:
		w.violated("a promise is kept", "machine %d has promised epoch %d, and before epoch %d", m.i, p.Epoch, before.Epoch)
	case p.Epoch == before.Epoch && p.Leader != before.Leader:
		w.violated("a promise is kept", "machine %d has promised epoch %d to %s, and before to %s", m.i, p.Epoch, p.Leader, before.Leader)
	}
	m.promise = p
	if p.Epoch > w.promise {
		w.promise, w.promiseAt = p.Epoch, w.now
		w.note("machine %d has promised epoch %d", m.i, p.Epoch)
	}
}

// settle lets everything run until it waits, and takes the dead away.
func (w *world) settle() {
	for {
		synctest.Wait()
		again := false
		for _, m := range w.machines {
			if m.p != nil && w.reap(m.p) {
				again = true
			}
		}
		if !again {
			break
		}
	}
	w.overdue()
}

// overdue checks that no request waits for too long.
func (w *world) overdue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.p == nil || m.p.dead {
			continue
		}
		for o := range m.p.pending {
			if m.p.active-o.sentAt > answerMax {
				w.violated("every answer comes in time", "%v waits for %v", o, m.p.active-o.sentAt)
			}
		}
	}
}

// reap looks what has become of a process. It reports whether anything was done.
func (w *world) reap(p *process) bool {
	w.mu.Lock()
	dead, fatal, recovered, err := p.dead, p.fatal, p.recovered, p.recErr
	idle := len(p.pending) == 0
	closed := p.closed
	w.mu.Unlock()
	switch {
	case dead:
		p.bury()
	case recovered && err != nil:
		w.refused(p, err)
	case fatal != nil:
		w.fenced = w.fenced || p.m.i == w.lead
		p.kill(false)
		p.bury()
	case p.stopping && recovered && !p.closing && idle:
		p.closing = true
		w.ghosts.Go(func() {
			p.n.Close()
			w.mu.Lock()
			defer w.mu.Unlock()
			p.closed = true
		})
	case p.closing && closed:
		w.mu.Lock()
		w.note("%d has stopped", p.m.i)
		w.mu.Unlock()
		p.bury()
	default:
		return false
	}
	return true
}

// refused takes a process off its machine that did not start.
func (w *world) refused(p *process, err error) {
	m := p.m
	w.mu.Lock()
	w.note("machine %d does not start: %v", m.i, err)
	w.stats.refusals++
	w.mu.Unlock()
	expected := strings.Contains(err.Error(), "nothing was changed")
	switch {
	case expected && p.mayRefuse:
		if now := digest(m.fs); now != p.before {
			w.fail("a node that is refused changes nothing", "machine %d: %v", m.i, err)
		}
	case p.broken || errors.Is(err, syscall.ENOSPC) || errors.Is(err, wal.ErrFull) || p.stopping || p.dead:
	default:
		w.fail("a node starts unaided", "machine %d as %s: %v", m.i, p.role, err)
	}
	p.bury()
	// If it was to lead, the other one goes on.
	if expected && w.lead == m.i && p.role == node.Leader {
		w.mu.Lock()
		w.note("machine %d was to lead and is refused", m.i)
		w.mu.Unlock()
		if other := w.machines[1-m.i]; m.swapped && !other.gap && !other.rogue { // the operator does what the message says
			m.swapped, other.swapped = false, false
			w.lead = other.i
			w.epoch++
		}
	}
}

// pass lets time pass for all.
func (w *world) pass(d time.Duration) {
	if d <= 0 {
		return
	}
	w.mu.Lock()
	w.now += d
	var awake []*process
	for _, m := range w.machines {
		if p := m.p; p != nil && !p.dead {
			if p.paused {
				p.lag += d
				continue
			}
			p.active += d
			awake = append(awake, p)
		}
	}
	w.mu.Unlock()
	for _, p := range awake {
		p.clock.Advance(d)
	}
}

// untilNext is the time until the next timer of any process, at most max.
func (w *world) untilNext(max time.Duration) time.Duration {
	for _, m := range w.machines {
		if m.p != nil && !m.p.paused {
			if d, ok := m.p.clock.Next(); ok && d < max {
				max = d
			}
		}
	}
	return max
}

// run is the whole story.
func (w *world) run() {
	m := w.machines
	m[0].boot(node.Leader, 1, false)
	w.settle()
	m[1].boot(node.Follower, 0, false)
	w.settle()
	for w.event = 1; w.event <= w.plan.events && w.violation == nil; w.event++ {
		w.step()
		w.settle()
	}
	if w.violation == nil {
		w.quiet()
	}
	w.end()
}

// end kills what is left, so that no goroutine stays.
func (w *world) end() {
	w.mu.Lock()
	w.ending = true
	w.net.cut = [2]bool{}
	w.mu.Unlock()
	for _, m := range w.machines {
		if p := m.p; p != nil {
			if p.paused {
				p.resume(false)
			}
			p.kill(false)
			if p.image == nil {
				p.image = m.fs
			}
			p.bury()
		}
	}
	w.ghosts.Wait()
}

// step does one thing.
func (w *world) step() {
	weights := w.plan.weights
	w.mu.Lock()
	list := w.deliverable()
	w.mu.Unlock()
	if len(list) == 0 {
		weights[actDeliver] = 0
		weights[actTime] *= 2
	}
	total := 0
	for _, n := range weights {
		total += n
	}
	at := w.rng.IntN(total)
	act := 0
	for ; at >= weights[act]; act++ {
		at -= weights[act]
	}
	m := w.machines[w.rng.IntN(2)]
	if w.spare(act, m) {
		return
	}
	switch act {
	case actDeliver:
		w.mu.Lock()
		w.deliver(list[w.rng.IntN(len(list))])
		w.mu.Unlock()
	case actTime:
		w.tick(time.Second)
	case actLongTime:
		w.tick(0)
		w.pass(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
	case actRequest:
		w.request()
	case actDisturb:
		w.mu.Lock()
		if any := w.underWay(); len(any) > 0 {
			w.disturb(any[w.rng.IntN(len(any))], w.rng.IntN(5))
		}
		w.mu.Unlock()
	case actCut:
		w.mu.Lock()
		both := w.rng.IntN(2) == 0
		w.net.cut[m.i] = true
		w.net.cut[1-m.i] = w.net.cut[1-m.i] || both
		w.note("cut what %d sends, both: %v", m.i, both)
		w.mu.Unlock()
	case actHeal:
		w.mu.Lock()
		w.net.cut = [2]bool{}
		w.note("heal the network")
		w.mu.Unlock()
	default:
		w.operate(act, m)
	}
}

// tick goes on to the next timer, but not further than max.
func (w *world) tick(max time.Duration) {
	d := w.untilNext(max)
	w.mu.Lock()
	w.note("%v pass", d)
	w.mu.Unlock()
	w.pass(d)
}

// request sends a request to a process, most often to one that leads.
func (w *world) request() {
	var list []*process
	for _, m := range w.machines {
		if p := m.p; p != nil && p.recovered && p.recErr == nil && !p.stopping && len(p.pending) < 8 {
			if p.role != node.Follower || w.rng.IntN(10) == 0 {
				list = append(list, p)
			}
		}
	}
	if len(list) > 0 {
		p := list[w.rng.IntN(len(list))]
		for range 1 + w.rng.IntN(3) {
			w.send(p)
		}
	}
}

// operate is what happens to machines, and what the operator does.
func (w *world) operate(act int, m *machine) {
	p := m.p
	switch act {
	case actKill, actPowerCut:
		if p != nil {
			p.kill(act == actPowerCut)
		}
	case actDieWithin:
		if p != nil {
			w.mu.Lock()
			p.armed, p.power = 1+w.rng.IntN(30), w.rng.IntN(3) > 0
			w.mu.Unlock()
		}
	case actStop:
		if p != nil && !p.paused {
			p.stop()
		}
	case actStart:
		if p == nil {
			w.start(m)
		}
	case actPause:
		if p != nil && !p.paused {
			p.pause()
		}
	case actResume:
		if p != nil && p.paused {
			p.resume(w.rng.IntN(2) == 0)
		}
	case actFull:
		usage, _ := m.fs.Usage()
		m.fs.SetCapacity(usage.TotalBytes - usage.FreeBytes + int64(w.rng.IntN(12))<<10)
		w.mu.Lock()
		w.note("the disk of %d is full", m.i)
		w.mu.Unlock()
	case actRoom:
		m.fs.SetCapacity(capacity)
	case actDiskError:
		if p != nil {
			kinds := faultfs.Changes()
			f := faultfs.Fault{Kinds: []faultfs.Kind{kinds[w.rng.IntN(len(kinds))]}, At: 1 + w.rng.IntN(5), Err: syscall.EIO}
			w.mu.Lock()
			w.note("the next %s but %d on %d fails", f.Kinds[0], f.At-1, m.i)
			p.broken = true
			w.mu.Unlock()
			p.fault.Inject(f)
		}
	default:
		w.decide(act, m)
	}
}

// takeDown ends the process on a machine, if there is one, in some way.
func (w *world) takeDown(m *machine) {
	if m.p == nil {
		return
	}
	m.p.kill(w.rng.IntN(3) == 0)
	w.settle()
}

// start starts what should run on a machine.
func (w *world) start(m *machine) {
	switch {
	case m.i != w.lead:
		m.boot(node.Follower, 0, false)
	case w.alone == m:
		m.boot(node.Standalone, w.epoch, false)
	default:
		// Whoever else was started by mistake with the same epoch, or a higher one, may be in the way.
		// It may be one that has followed by mistake, too.
		m.boot(node.Leader, w.epoch, w.promise >= w.epoch || m.swapped)
	}
}

// decide is what the operator does beside starting what is down.
func (w *world) decide(act int, m *machine) {
	other := w.machines[1-w.lead]
	switch act {
	case actPromote:
		if other.gap || other.rogue || w.alone != nil {
			return
		}
		w.takeDown(other)
		w.promote(other)
	case actMistake:
		if other.gap || other.rogue || w.alone != nil {
			return
		}
		// Start the node that does not lead as a leader: with an old epoch, or the present one.
		epoch := uint64(1 + w.rng.IntN(int(w.epoch)))
		swap := w.rng.IntN(2) == 0
		if other.p != nil && !swap {
			return
		}
		w.takeDown(other)
		other.boot(node.Leader, epoch, true)
		if swap { // and the one that leads as a follower
			w.settle()
			w.takeDown(w.machines[w.lead])
			w.machines[w.lead].swapped = true
			w.machines[w.lead].boot(node.Follower, 0, false)
		}
	case actUsurp:
		w.usurp(w.machines[w.lead], other)
	case actReplace:
		if w.machines[w.lead].swapped {
			return // the other one may be the only one that can lead
		}
		w.takeDown(other)
		w.replace(other)
		other.boot(node.Follower, 0, false)
	case actAlone:
		lead := w.machines[w.lead]
		if w.alone != nil {
			w.takeDown(lead)
			w.alone = nil
			w.start(lead)
			return
		}
		if lead.p == nil || lead.p.role != node.Leader || !lead.p.recovered {
			return
		}
		w.takeDown(lead)
		if other.p != nil && other.p.role == node.Leader { // started by mistake
			w.takeDown(other)
		}
		w.mu.Lock()
		w.alone = lead
		other.gap = true
		w.mu.Unlock()
		w.start(lead)
	case actBump:
		lead := w.machines[w.lead]
		if w.alone == nil {
			w.takeDown(lead)
			w.epoch++
			w.start(lead)
		}
	case actRogue: // the old leader writes alone while the other one leads
		if other.p == nil && !other.gap && w.epoch > 1 {
			w.mu.Lock()
			other.rogue = true
			w.mu.Unlock()
			other.boot(node.Standalone, 0, true)
			w.rogueWrites(other)
		}
	}
}

// rogueWrites lets an old leader write alone, and then, often, the one that leads, so that both have something else at
// the same place.
func (w *world) rogueWrites(m *machine) {
	if m.p != nil {
		m.p.rogue = true
	}
	w.settle()
	for range 1 + w.rng.IntN(4) {
		if m.p != nil && m.p.recovered {
			w.send(m.p)
			w.settle()
		}
	}
	if w.alone != nil || w.rng.IntN(3) == 0 {
		return
	}
	w.takeDown(m)
	w.decide(actAlone, m)
	for range 6 {
		w.settle()
		w.request()
		w.settle()
		w.tick(200 * time.Millisecond)
	}
	w.settle()
	if w.alone != nil {
		w.decide(actAlone, m)
	}
}

// usurp promotes the follower while the leader sleeps, with what it waits for on its way.
func (w *world) usurp(lead, other *machine) {
	p := lead.p
	if p == nil || p.paused || p.role != node.Leader || other.gap || other.rogue || w.alone != nil {
		return
	}
	for range 2 {
		w.request()
		w.settle()
	}
	w.mu.Lock()
	for _, d := range w.deliverable() {
		if d.to().owner.m == other {
			w.deliver(d)
		}
	}
	w.mu.Unlock()
	w.settle()
	if lead.p != p || p.dead {
		return
	}
	p.pause()
	w.takeDown(other)
	w.promote(other)
	w.settle()
	for range w.rng.IntN(12) {
		w.tick(500 * time.Millisecond)
		w.settle()
	}
	if lead.p == p && p.paused {
		p.resume(w.rng.IntN(4) > 0)
	}
}

// promote starts a node as leader with a new epoch.
func (w *world) promote(m *machine) {
	m.boot(node.Leader, w.epoch+1, true)
	if m.p.recErr != nil { // refused: it goes on as a follower
		return
	}
	w.lead, m.swapped, w.machines[1-m.i].swapped = m.i, false, false
	w.epoch++
	w.mu.Lock()
	w.stats.promotions++
	w.note("machine %d leads with epoch %d by the operator's will", m.i, w.epoch)
	w.mu.Unlock()
}

// replace throws a folder away.
func (w *world) replace(m *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("machine %d gets an empty folder", m.i)
	w.stats.replaced++
	m.fs, m.gap, m.rogue, m.swapped, m.promise, m.cut = memfs.New(), true, false, false, promiseFile{}, map[cutLine]bool{}
}
