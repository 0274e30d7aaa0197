// Package raft runs clusters of one, three and five nodes under virtual time, on disks and a network in memory, with all
// faults drawn from a seed, and checks what a cluster promises: what clients saw is linearizable (package linear), and a
// list of invariants that look at all machines at once.
//
// The nodes are whole: package node with the log, the broker, the raft role and the catch-up. One thing happens at a time
// (a packet arrives, a timer fires, a client sends a request, a machine loses its power), in the order of virtual time;
// then everything runs until it waits. With one processor one seed gives one trace. A write or a sync may take its time:
// then the rest of the world goes on meanwhile.
package raft

import (
	"io"
	"testing"

	"example.com/mq/test/sim/seeds"
)

var simulation = seeds.Simulation[stats]{
	Test: "TestCluster", Folder: "./test/sim/raft", Default: 100, Collect: 4, Run: runSeed, Kinds: kinds(), Clients: clientsMax,
	Add: (*stats).add, Missed: (*stats).missed, Counts: (*stats).counts,
}

// runSeed runs one seed, in the bubble. verbose, if not nil, gets the trace.
func runSeed(seed uint64, faults *seeds.Faults, verbose io.Writer) seeds.Result[stats] {
	w := newWorld(seed, faults, verbose)
	w.run()
	return seeds.Result[stats]{Hash: w.trace.Sum64(), Violation: w.violation, Stats: w.stats, Judge: w.linearizable}
}

func TestCluster(t *testing.T) { simulation.Check(t) }

// The same seed gives the same trace.
func TestRepeats(t *testing.T) { simulation.Repeats(t, 10) }

// counts are for the report.
func (s *stats) counts() map[string]int {
	return map[string]int{
		"operations of disks": s.operations, "publishes acknowledged": s.acks, "answers unknown": s.outcomes[unknown], "packets": s.packets,
		"kills": s.kills, "power cuts": s.powerCuts, "pauses": s.pauses, "cuts of the network": s.cuts, "elections": s.elections,
		"folders emptied": s.wiped, "old folders put back": s.old, "bits flipped": s.flips, "nodes healed": s.healed,
		"calls judged linearizable": s.linearized, "topics whose calls are too many to judge": s.unjudged, "segments dropped": s.segments,
		"seconds of virtual time": int(s.virtual.Seconds()),
	}
}

// missed tells what never happened, though it should in many runs.
func (s *stats) missed() string {
	return seeds.Zero(map[string]int{
		"segments that are dropped": s.segments, "records that are kept once more": s.kept, "starts that limits move": s.moved,
		"topics that are deleted": s.deleted, "fetches by time": s.byTime, "seeks": s.seeks, "power cuts": s.powerCuts,
		"histories that are judged": s.linearized,
	})
}
