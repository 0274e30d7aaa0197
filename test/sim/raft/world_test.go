package raft

import (
	"container/heap"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing/synctest"
	"time"
	"unsafe"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/sim/audit"
	"example.com/mq/test/sim/seeds"
)

const (
	ms     = time.Millisecond
	second = time.Second
)

// world is one run.
type world struct {
	seed    uint64
	plan    plan
	rng     *rand.Rand    // of what happens by itself: clients, faults
	spares  *seeds.Faults // which of the faults that are drawn are done
	verbose io.Writer     // the trace, or nil
	ghosts  sync.WaitGroup
	dying   []*process // that still have goroutines

	machines []*machine
	clients  []*client

	mu        sync.Mutex // guards what follows, and what the processes say
	now       time.Duration
	agenda    agenda        // what happens by itself
	faults    agenda        // what only the scheduler does, when everything waits
	numbers   uint64        // of events, to keep those of one instant in order
	stepper   *process      // the process in whose operation the world goes on
	limit     time.Duration // the scheduler has something to do then
	dice      *rand.Rand    // of the network
	links     [][]link      // from, to
	trace     hash.Hash64
	quieting  bool // no more faults by themselves
	ending    bool // nothing counts any more
	requests  int
	moments   int64 // counts what clients see, in order
	oracle    *oracle
	book      *audit.Book    // of all that is committed, by the logs
	leaders   map[uint64]int // who leads in a term
	voted     map[vote]int   // for whom
	appended  uint64         // the latest term in which a leader has sent entries
	violation error
	stats     stats
}

// stats count what happened, to show that a run reached what it is for.
type stats struct {
	events, operations, packets, dropped, calls, elections, acks, redirects int
	kills, powerCuts, pauses, cuts, errors, full, wiped, old, flips, healed int
	slow, hung, transfers, corrupt, abandoned, linearized, unjudged         int
	segments, kept, moved, deleted, byTime, seeks                           int
	outcomes                                                                [4]int // pending, done, not done, unknown
	virtual, quiet                                                          time.Duration
}

func (s *stats) add(o *stats) {
	for _, p := range [][2]*int{
		{&s.events, &o.events}, {&s.operations, &o.operations}, {&s.packets, &o.packets}, {&s.dropped, &o.dropped}, {&s.calls, &o.calls},
		{&s.elections, &o.elections}, {&s.acks, &o.acks}, {&s.redirects, &o.redirects}, {&s.kills, &o.kills}, {&s.powerCuts, &o.powerCuts},
		{&s.pauses, &o.pauses}, {&s.cuts, &o.cuts}, {&s.errors, &o.errors}, {&s.full, &o.full}, {&s.wiped, &o.wiped}, {&s.old, &o.old},
		{&s.flips, &o.flips}, {&s.healed, &o.healed}, {&s.slow, &o.slow}, {&s.hung, &o.hung}, {&s.transfers, &o.transfers},
		{&s.segments, &o.segments}, {&s.kept, &o.kept}, {&s.moved, &o.moved}, {&s.deleted, &o.deleted}, {&s.byTime, &o.byTime}, {&s.seeks, &o.seeks},
		{&s.unjudged, &o.unjudged}, {&s.corrupt, &o.corrupt}, {&s.abandoned, &o.abandoned}, {&s.linearized, &o.linearized},
	} {
		*p[0] += *p[1]
	}
	for i := range s.outcomes {
		s.outcomes[i] += o.outcomes[i]
	}
	s.virtual += o.virtual
	s.quiet += o.quiet
}

// event is something that happens at a time of its own. It is called with world.mu held if it is on the agenda, and
// without if it is a fault.
type event struct {
	at     time.Duration
	number uint64
	do     func()
}

// agenda is a heap of events.
type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].number < a[j].number
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*a = old[:len(old)-1]
	return e
}

// after puts something on the agenda. Called with mu held.
func (w *world) after(d time.Duration, do func()) {
	w.numbers++
	heap.Push(&w.agenda, event{w.now + d, w.numbers, do})
}

// fault puts something on the agenda that only the scheduler does, when everything waits.
func (w *world) fault(d time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faultLocked(d, do)
}

func (w *world) faultLocked(d time.Duration, do func()) {
	w.numbers++
	heap.Push(&w.faults, event{w.now + d, w.numbers, do})
}

func newWorld(seed uint64, faults *seeds.Faults, verbose io.Writer) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		seed: seed, plan: makePlan(rng), rng: rng, spares: faults, verbose: verbose, trace: fnv.New64a(), dice: rand.New(rand.NewPCG(seed, 1)),
		leaders: map[uint64]int{}, voted: map[vote]int{},
	}
	w.oracle, w.book = newOracle(w.plan.retention != (fact.Retention{})), audit.New(w.plan.retention)
	w.links = make([][]link, w.plan.nodes)
	for i := range w.plan.nodes {
		w.machines = append(w.machines, &machine{w: w, i: i, fs: memfs.New()})
		w.links[i] = make([]link, w.plan.nodes)
	}
	for i := range w.plan.clients {
		w.clients = append(w.clients, &client{w: w, i: i, leader: -1})
	}
	return w
}

// note adds a line to the trace. Called with mu held.
func (w *world) note(format string, args ...any) {
	if w.ending {
		return
	}
	fmt.Fprintf(w.trace, format, args...)
	if w.verbose != nil {
		fmt.Fprintf(w.verbose, "%12.6fs  "+format+"\n", append([]any{w.now.Seconds()}, args...)...)
	}
}

func (w *world) noteLocking(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
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

// step goes on to what happens next, but not further than limit.
func (w *world) step(limit time.Duration) {
	w.mu.Lock()
	at, timer := limit, false
	if len(w.agenda) > 0 && w.agenda[0].at <= at {
		at = w.agenda[0].at
	}
	for _, m := range w.machines {
		if p := m.p; p != nil && !p.paused && !p.dead {
			if d, ok := p.clock.Next(); ok && w.now+d < at {
				at, timer = w.now+d, true
			}
		}
	}
	d := max(at-w.now, 0)
	w.now += d
	w.stats.events++
	var awake [8]*process
	n := 0
	for _, m := range w.machines {
		if p := m.p; p != nil && !p.dead {
			if p.paused {
				p.lag += d
				continue
			}
			p.active += d
			awake[n] = p
			n++
		}
	}
	if !timer && len(w.agenda) > 0 && w.agenda[0].at <= w.now {
		heap.Pop(&w.agenda).(event).do()
	}
	w.mu.Unlock()
	if d > 0 {
		for _, p := range awake[:n] {
			p.clock.Advance(d)
		}
	}
}

// linger lets the world go on while an operation of a disk runs.
func (p *process) linger(d time.Duration) {
	w := p.w
	w.mu.Lock()
	end := w.now + d
	for w.now < end && !p.dead && !w.ending {
		if w.stepper == nil {
			w.stepper = p
		}
		mine := w.stepper == p
		w.mu.Unlock()
		if mine {
			w.step(end)
			for range 24 {
				runtime.Gosched()
			}
		} else {
			runtime.Gosched()
		}
		w.mu.Lock()
	}
	if w.stepper == p {
		w.stepper = nil
	}
	w.mu.Unlock()
	inOrder()
}

// inOrder makes sure that those who wait for a mutex get it in the order in which they came: that is so once they have
// waited for a millisecond of real time. It keeps the processor meanwhile, as no other call does.
func inOrder() {
	wait := syscall.NsecToTimespec(1_200_000)
	syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&wait)), 0, 0)
}

// due reports whether the scheduler has something to do. Then no operation of a disk begins to take its time. Called with
// mu held.
func (w *world) due() bool {
	return w.now >= w.limit || len(w.faults) > 0 && w.faults[0].at <= w.now || w.violation != nil
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
		for _, o := range m.p.pending {
			if m.p.active-o.sentAt > answerMax {
				w.violated("every answer comes in time", "request %d, %v, waits for %v", o.number, o, m.p.active-o.sentAt)
			}
		}
	}
}

// until goes on until ok, and reports whether that came in time.
func (w *world) until(limit time.Duration, ok func() bool) bool {
	for end := w.now + limit; w.violation == nil && !ok(); {
		if w.now >= end {
			return false
		}
		w.move(end)
	}
	return w.violation == nil
}

// move does what comes next, but goes no further than limit.
func (w *world) move(limit time.Duration) {
	w.mu.Lock()
	next := limit
	w.limit = limit
	if len(w.faults) > 0 {
		next = min(next, max(w.faults[0].at, w.now))
	}
	var due func()
	if len(w.faults) > 0 && w.faults[0].at <= w.now {
		due = heap.Pop(&w.faults).(event).do
	}
	w.mu.Unlock()
	if due != nil {
		due()
	} else {
		w.step(next)
	}
	w.settle()
}

// run is the whole story.
func (w *world) run() {
	for _, m := range w.machines {
		w.fault(time.Duration(w.rng.IntN(200))*ms, func() { m.start() })
	}
	w.mu.Lock()
	for i, c := range w.clients {
		begin := time.Duration(w.rng.IntN(1500)) * ms
		if i < w.spares.Clients(len(w.clients)) {
			w.after(begin, c.next)
		}
	}
	w.mu.Unlock()
	w.scheduleFaults()
	w.fault(2*second, w.operate)
	w.until(w.plan.length, func() bool { return false })
	if w.violation == nil {
		w.quiet()
	}
	w.stats.virtual = w.now
	w.end()
}

// end kills what is left, so that no goroutine stays.
func (w *world) end() {
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	for _, m := range w.machines {
		if p := m.p; p != nil {
			if p.paused {
				p.resume(0)
			}
			p.kill(false)
			p.bury()
		}
	}
	// What they wait for in vain ends when time passes.
	for range 200 {
		synctest.Wait()
		left := 0
		for _, p := range w.dying {
			if !p.closed {
				left++
				p.clock.Advance(500 * ms)
			}
		}
		if left == 0 {
			break
		}
	}
	w.ghosts.Wait()
}
