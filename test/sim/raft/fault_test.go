package raft

import (
	"math/rand/v2"
	"path"
	"strings"
	"syscall"
	"time"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// plan is what a seed has in store: which faults there are, and how often.
type plan struct {
	nodes, clients    int
	length            time.Duration
	election          time.Duration
	segment, snapshot int64
	think             time.Duration // mean, between two requests of a client
	large             int           // one in so many records is large

	// The network. One in so many packets is lost, repeated, late by up to a time; 0 for none.
	latency                           time.Duration // mean
	dropOneIn, repeatOneIn, lateOneIn int
	late                              time.Duration
	inOrder, holdCut                  bool

	// Disks: one in so many writes and syncs takes a while, one in so many a long one; 0 for none.
	slowOneIn, hangOneIn int
	slow, hang           time.Duration
	sample               int // of one in so many acknowledgements the durability is checked

	weights     [faultKinds]int
	every       time.Duration // mean, between two faults
	dieStarting int           // one in so many processes dies early; 0 for none

	retention fact.Retention // of topics without settings of their own
}

// The faults.
const (
	cutHalves = iota
	cutOneWay
	cutPair
	isolateLeader
	killOne
	killAll
	powerOne
	powerAll
	dieWithin
	stopOne
	pauseOne
	pauseLeader
	diskError
	diskFull
	stepClock
	transfer
	wipe
	yesterday
	flipStopped
	flipRunning
	faultKinds
)

// Faults that come by themselves.
const (
	dropPacket = faultKinds + iota
	repeatPacket
	latePacket
	slowDisk
	hungDisk
	dieStarting
)

// clientsMax is how many clients a seed has at most.
const clientsMax = 8

// makePlan draws a plan: each kind of fault is in about half of all seeds.
func makePlan(rng *rand.Rand) plan {
	one := func(most int) int { // one in two to most, or none
		if rng.IntN(2) == 0 {
			return 0
		}
		return 2 + rng.IntN(most)
	}
	p := plan{
		nodes: 3, clients: 3 + rng.IntN(clientsMax-2), election: 500 * ms,
		segment: 4096 << rng.IntN(3), snapshot: 4096 << rng.IntN(4),
		large: 20, sample: 10,
		latency: []time.Duration{200 * time.Microsecond, 2 * ms, 2 * ms, 15 * ms}[rng.IntN(4)],
		inOrder: rng.IntN(3) > 0, holdCut: rng.IntN(3) == 0,
		slow: 20 * ms, hang: 4 * time.Second,
		every: time.Duration(400+rng.IntN(2500)) * ms,
	}
	p.think = time.Duration(p.clients*(15+rng.IntN(80))) * ms // that is up to 60 requests a second
	p.length = time.Duration(6+rng.IntN(14)) * time.Second
	switch rng.IntN(10) {
	case 0:
		p.nodes = 1
	case 1, 2:
		p.nodes = 5
		p.length = p.length * 2 / 3
	}
	if rng.IntN(4) == 0 {
		p.large = 2
	}
	if rng.IntN(3) == 0 {
		p.dropOneIn = []int{10, 30, 200}[rng.IntN(3)]
	}
	if rng.IntN(3) == 0 {
		p.repeatOneIn = []int{5, 50}[rng.IntN(2)]
	}
	if rng.IntN(3) == 0 {
		p.lateOneIn, p.late = []int{10, 50, 200}[rng.IntN(3)], []time.Duration{50 * ms, 400 * ms, 2 * time.Second}[rng.IntN(3)]
	}
	p.slowOneIn = 5 * one(20)
	if rng.IntN(3) == 0 {
		p.hangOneIn = 100 + rng.IntN(400)
	}
	if rng.IntN(4) == 0 {
		p.dieStarting = 2 + rng.IntN(8)
	}
	w := &p.weights
	for _, f := range []struct{ kind, weight int }{
		{cutHalves, 2}, {cutOneWay, 2}, {cutPair, 2}, {isolateLeader, 2}, {killOne, 3}, {killAll, 1}, {powerOne, 3}, {powerAll, 1},
		{dieWithin, 3}, {stopOne, 2}, {pauseOne, 2}, {pauseLeader, 2}, {diskError, 1}, {diskFull, 1}, {stepClock, 1}, {transfer, 1},
	} {
		if rng.IntN(2) == 0 {
			w[f.kind] = f.weight
		}
	}
	if rng.IntN(3) == 0 { // what takes a folder away is rarer, because healing needs the others
		w[wipe+rng.IntN(4)] = 2
	}
	if rng.IntN(6) == 0 {
		p.retention = makeRetention(rng)
	}
	if rng.IntN(12) == 0 { // all is well
		*w = [faultKinds]int{}
		p.dropOneIn, p.repeatOneIn, p.lateOneIn, p.slowOneIn, p.hangOneIn, p.dieStarting = 0, 0, 0, 0, 0, 0
	}
	return p
}

// makeRetention draws limits that a run reaches: at least one.
func makeRetention(rng *rand.Rand) (r fact.Retention) {
	for r == (fact.Retention{}) {
		if rng.IntN(3) == 0 {
			r.MS = fact.Limit(200 + rng.IntN(5000))
		}
		if rng.IntN(3) == 0 {
			r.Bytes = fact.Limit(1 + rng.IntN(3000))
		}
		if rng.IntN(3) == 0 {
			r.Records = fact.Limit(1 + rng.IntN(15))
		}
	}
	return r
}

// scheduleFaults lets faults come at random times.
func (w *world) scheduleFaults() {
	total := 0
	for _, n := range w.plan.weights {
		total += n
	}
	if total == 0 {
		return
	}
	var next func()
	wait := func() time.Duration { return time.Duration(w.rng.ExpFloat64() * float64(w.plan.every)) }
	next = func() {
		if w.quieting {
			return
		}
		at, kind := w.rng.IntN(total), 0
		for ; at >= w.plan.weights[kind]; kind++ {
			at -= w.plan.weights[kind]
		}
		w.strike(kind)
		w.fault(wait(), next)
	}
	w.fault(time.Second+wait(), next)
}

// span draws for how long a fault lasts: most often some election timeouts.
func (w *world) span() time.Duration {
	switch w.rng.IntN(4) {
	case 0:
		return time.Duration(20+w.rng.IntN(300)) * ms
	case 1:
		return time.Duration(1+w.rng.IntN(5)) * time.Second
	}
	return time.Duration(300+w.rng.IntN(1200)) * ms
}

// anyMachine is a machine by chance, or the one that leads.
func (w *world) anyMachine(leader bool) *machine {
	if leader {
		for _, m := range w.machines {
			if p := m.p; p.standing().leads {
				return m
			}
		}
	}
	return w.machines[w.rng.IntN(len(w.machines))]
}

// cut cuts links for a while.
func (w *world) cut(d time.Duration, which func(from, to int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.cuts++
	var list [][2]int
	for from := range w.links {
		for to := range w.links[from] {
			if from != to && which(from, to) && !w.links[from][to].cut {
				w.links[from][to].cut = true
				list = append(list, [2]int{from, to})
			}
		}
	}
	w.note("cut %v for %v", list, d)
	w.after(d, func() {
		w.note("mend %v", list)
		for _, l := range list {
			w.mend(l[0], l[1])
		}
	})
}

// strike lets a fault happen.
func (w *world) strike(kind int) {
	m := w.anyMachine(kind == isolateLeader || kind == pauseLeader || kind == transfer || w.rng.IntN(3) == 0)
	p := m.p
	if w.spare(kind, m) {
		return
	}
	switch kind {
	case cutHalves:
		set := w.rng.IntN(1 << len(w.machines))
		w.cut(w.span(), func(from, to int) bool { return set>>from&1 != set>>to&1 })
	case cutOneWay:
		out := w.rng.IntN(2) == 0
		other := w.rng.IntN(len(w.machines) + 1) // one more: all
		w.cut(w.span(), func(from, to int) bool {
			if !out {
				from, to = to, from
			}
			return from == m.i && (to == other || other == len(w.machines))
		})
	case cutPair:
		other := w.rng.IntN(len(w.machines))
		w.cut(w.span(), func(from, to int) bool { return from == m.i && to == other || from == other && to == m.i })
	case isolateLeader:
		w.cut(w.span(), func(from, to int) bool { return from == m.i || to == m.i })
	case killOne, powerOne:
		if p != nil {
			p.kill(kind == powerOne)
		}
	case killAll, powerAll:
		for _, m := range w.machines {
			if m.p != nil {
				m.p.kill(kind == powerAll)
			}
		}
	case dieWithin:
		if p != nil {
			w.mu.Lock()
			p.armed, p.power = 1+w.rng.IntN(40), w.rng.IntN(3) > 0
			w.mu.Unlock()
		}
	case stopOne:
		if p != nil && !p.paused && !p.stopping {
			p.stop()
		}
	case pauseOne, pauseLeader:
		if p != nil && !p.paused {
			p.pause()
			order := w.rng.IntN(6)
			w.fault(w.span(), func() {
				if p.paused && !p.dead {
					p.resume(order)
				}
			})
		}
	case diskError:
		if p != nil {
			kinds := faultfs.Changes()
			f := faultfs.Fault{Kinds: []faultfs.Kind{kinds[w.rng.IntN(len(kinds))]}, At: 1 + w.rng.IntN(6), Err: syscall.EIO}
			w.mu.Lock()
			w.note("the next %s but %d on %d fails", f.Kinds[0], f.At-1, m.i)
			w.stats.errors++
			p.broken = true
			w.mu.Unlock()
			p.fault.Inject(f)
			w.fault(w.span(), func() { p.kill(w.rng.IntN(3) == 0) })
		}
	case diskFull:
		usage, _ := m.fs.Usage()
		m.fs.SetCapacity(usage.TotalBytes - usage.FreeBytes + int64(w.rng.IntN(12))<<10)
		w.mu.Lock()
		w.note("the disk of %d is full", m.i)
		w.stats.full++
		w.mu.Unlock()
		w.fault(w.span(), func() { m.disk().SetCapacity(capacity) })
	case stepClock:
		if p != nil {
			d := time.Duration(w.rng.Int64N(int64(2*time.Hour))) - time.Hour
			w.noteLocking("the clock of %d is set by %v", m.i, d)
			m.skew += d
			p.clock.Step(d)
		}
	case transfer:
		if p != nil && p.n != nil && p.recovered && !p.stopping {
			to := w.rng.IntN(len(w.machines)+1) - 1
			w.noteLocking("transfer from %d to %d", m.i, to)
			w.stats.transfers++
			w.mu.Lock()
			p.whenAwake(func() { p.serving.Go(func() { p.n.Transfer(p.ctx, to) }) })
			w.mu.Unlock()
		}
	default:
		w.damage(kind, m)
	}
}

// damage takes data away from one machine at a time: the others must be whole.
func (w *world) damage(kind int, m *machine) {
	if len(w.machines) < 3 {
		return
	}
	for _, other := range w.machines {
		if other.hurt {
			return
		}
	}
	if m.p != nil && !m.p.standing().whole {
		return
	}
	for _, other := range w.machines { // the first start needs all of them, and their folders
		if !other.formed {
			return
		}
	}
	if w.leftOut(kind) {
		return
	}
	switch kind {
	case wipe:
		if m.p != nil {
			m.p.kill(false)
			w.settle()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note("machine %d gets an empty folder", m.i)
		w.stats.wiped++
		m.lose(memfs.New())
	case yesterday:
		w.yesterday(m)
	case flipStopped:
		if m.p != nil {
			m.p.kill(w.rng.IntN(2) == 0)
			w.settle()
		}
		w.flip(m, 1+w.rng.IntN(3))
	case flipRunning:
		if m.p != nil {
			w.flip(m, 1)
		}
	}
}

// yesterday keeps a copy of a folder, and puts it back after a while, when the node has been started since and all the
// others know of it: then they must find out.
func (w *world) yesterday(m *machine) {
	copied := m.disk().Crash(1, 1).FS
	then := readState(copied)
	w.noteLocking("machine %d is copied", m.i)
	if m.p != nil && !m.p.paused {
		w.fault(time.Duration(w.rng.IntN(1000))*ms, func() {
			if m.p != nil {
				m.p.kill(w.rng.IntN(2) == 0)
			}
		})
	}
	w.fault(time.Duration(1500+w.rng.IntN(5000))*ms, func() {
		for _, other := range w.machines {
			if other.hurt {
				return
			}
		}
		now := readState(m.disk())
		if w.quieting || now.Boot <= then.Boot || m.p != nil && !m.p.standing().whole {
			return
		}
		for _, other := range w.machines {
			if s := readState(other.disk().Crash(1, 0).FS); other != m && (len(s.Members) <= m.i || s.Members[m.i].Boot != now.Boot || s.Members[m.i].Nonce != now.Nonce) {
				return
			}
		}
		if m.p != nil {
			m.p.kill(false)
			w.settle()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note("machine %d gets its folder of its start %d again", m.i, then.Boot)
		w.stats.old++
		m.lose(copied)
	})
}

// lose gives a machine another folder. Called with mu held.
func (m *machine) lose(fsys *memfs.FS) {
	for _, other := range m.w.machines {
		if found, err := wal.Inspect(other.disk(), "log", ignore); err == nil {
			m.hadUpTo = max(m.hadUpTo, uint64(found.Last))
		}
	}
	m.hurt, m.lost, m.fs, m.promised = true, true, fsys, raftState{}
}

// flip changes bits on a disk, durably.
func (w *world) flip(m *machine, n int) {
	fsys := m.disk()
	var names []string
	for _, dir := range []string{".", "log", "snapshots"} {
		list, _ := fsys.List(dir)
		for _, name := range list {
			if size, err := fsys.Size(path.Join(dir, name)); err == nil && size > 0 && !strings.HasPrefix(name, "ballast") {
				names = append(names, path.Join(dir, name))
			}
		}
	}
	if len(names) == 0 {
		return
	}
	fsys.OnOp(nil)
	for range n {
		name := names[w.rng.IntN(len(names))]
		f, err := fsys.Open(name)
		if err != nil {
			continue
		}
		size, _ := f.Size()
		at, bit := w.rng.Int64N(size), w.rng.IntN(8)
		var b [1]byte
		f.ReadAt(b[:], at)
		b[0] ^= 1 << bit
		f.WriteAt(b[:], at)
		f.Close()
		w.mu.Lock()
		w.note("bit %d of byte %d of %s on %d flips", bit, at, name, m.i)
		w.stats.flips++
		m.hurt, m.rotten = true, true
		w.mu.Unlock()
	}
	if m.p != nil && !m.p.dead {
		fsys.OnOp(m.p.operation)
	}
}
