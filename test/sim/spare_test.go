package sim

import (
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs/faultfs"
)

// The names of the actions that are faults, and of two more that are none.
var faultNames = [actions]string{
	actDisturb: "disturb", actCut: "cut", actKill: "kill", actPowerCut: "power-cut", actDieWithin: "die-within", actStop: "stop",
	actPause: "pause", actFull: "disk-full", actDiskError: "disk-error", actPromote: "promote", actMistake: "mistake",
	actReplace: "replace", actAlone: "alone", actBump: "bump", actRogue: "rogue", actUsurp: "usurp",
}

const (
	dieStarting = "die-starting"
	slowDisk    = "slow-disk"
)

// kinds are the names of all faults.
func kinds() []string {
	list := []string{dieStarting, slowDisk}
	for _, name := range faultNames {
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}

// spare reports whether an action is a fault that is left out. Then it draws what the fault would have drawn, as far as
// that is known.
func (w *world) spare(act int, m *machine) bool {
	if faultNames[act] == "" || !w.reaches(act, m) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.faults.Spare(faultNames[act]) {
		return false
	}
	w.note("left out: %s", faultNames[act])
	other := w.machines[1-w.lead]
	switch act {
	case actDisturb:
		w.rng.IntN(len(w.underWay()))
		w.rng.IntN(5)
	case actCut:
		w.rng.IntN(2)
	case actDieWithin:
		w.rng.IntN(30)
		w.rng.IntN(3)
	case actFull:
		w.rng.IntN(12)
	case actDiskError:
		w.rng.IntN(len(faultfs.Changes()))
		w.rng.IntN(5)
	case actMistake:
		w.rng.IntN(int(w.epoch))
		w.rng.IntN(2)
	case actPromote, actReplace:
		if other.p != nil {
			w.rng.IntN(3)
		}
	}
	return true
}

// reaches reports whether a fault would do something.
func (w *world) reaches(act int, m *machine) bool {
	lead, other := w.machines[w.lead], w.machines[1-w.lead]
	switch act {
	case actDisturb:
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.underWay()) > 0
	case actKill, actPowerCut, actDieWithin, actDiskError:
		return m.p != nil
	case actStop, actPause:
		return m.p != nil && !m.p.paused
	case actPromote, actMistake:
		return !other.gap && !other.rogue && w.alone == nil
	case actAlone: // it ends, too, by the same action
		return w.alone == nil && lead.p != nil && lead.p.role == node.Leader && lead.p.recovered
	case actBump:
		return w.alone == nil
	case actRogue:
		return other.p == nil && !other.gap && w.epoch > 1
	case actUsurp:
		return lead.p != nil && !lead.p.paused && lead.p.role == node.Leader && !other.gap && !other.rogue && w.alone == nil
	}
	return true // a cut, a full disk, a follower that is replaced
}
