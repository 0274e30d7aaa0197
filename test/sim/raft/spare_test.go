package raft

import (
	"time"

	"example.com/mq/internal/vfs/faultfs"
)

// The names of the faults, and of those of the network, of disks and of starts that come by themselves.
var faultNames = [...]string{
	cutHalves: "cut-halves", cutOneWay: "cut-one-way", cutPair: "cut-pair", isolateLeader: "isolate-leader", killOne: "kill", killAll: "kill-all",
	powerOne: "power-cut", powerAll: "power-cut-all", dieWithin: "die-within", stopOne: "stop", pauseOne: "pause", pauseLeader: "pause-leader",
	diskError: "disk-error", diskFull: "disk-full", stepClock: "step-clock", transfer: "transfer", wipe: "wipe", yesterday: "yesterday",
	flipStopped: "flip-stopped", flipRunning: "flip-running", dropPacket: "drop", repeatPacket: "repeat", latePacket: "late", slowDisk: "slow-disk",
	hungDisk: "hung-disk", dieStarting: "die-starting",
}

// kinds are the names of all faults.
func kinds() []string { return faultNames[:] }

// spare reports whether a fault is left out. Then it draws what the fault would have drawn, as far as that is known.
func (w *world) spare(kind int, m *machine) bool {
	if kind >= wipe || !reaches(kind, m) || !w.leftOut(kind) { // damage has more conditions
		return false
	}
	switch kind {
	case cutHalves:
		w.rng.IntN(1 << len(w.machines))
		w.span()
	case cutOneWay:
		w.rng.IntN(2)
		w.rng.IntN(len(w.machines) + 1)
		w.span()
	case cutPair:
		w.rng.IntN(len(w.machines))
		w.span()
	case isolateLeader:
		w.span()
	case dieWithin:
		w.rng.IntN(40)
		w.rng.IntN(3)
	case pauseOne, pauseLeader:
		w.rng.IntN(6)
		w.span()
	case diskError:
		w.rng.IntN(len(faultfs.Changes()))
		w.rng.IntN(6)
		w.span()
	case diskFull:
		w.rng.IntN(12)
		w.span()
	case stepClock:
		w.rng.Int64N(int64(2 * time.Hour))
	case transfer:
		w.rng.IntN(len(w.machines) + 1)
	}
	return true
}

// leftOut reports whether a fault that is to be done now is left out.
func (w *world) leftOut(kind int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.spares.Spare(faultNames[kind]) {
		return false
	}
	w.note("left out: %s", faultNames[kind])
	return true
}

// reaches reports whether a fault would do something.
func reaches(kind int, m *machine) bool {
	p := m.p
	switch kind {
	case killOne, powerOne, dieWithin, diskError, stepClock:
		return p != nil
	case stopOne:
		return p != nil && !p.paused && !p.stopping
	case pauseOne, pauseLeader:
		return p != nil && !p.paused
	case transfer:
		return p != nil && p.n != nil && p.recovered && !p.stopping
	}
	return true
}
