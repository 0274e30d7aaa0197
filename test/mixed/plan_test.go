package mixed

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// role is how the nodes of a run work together.
type role string

const (
	standalone role = "standalone"
	pair       role = "pair"
	cluster    role = "cluster"
)

// kind is what an event does.
type kind string

const (
	kill       kind = "kill"         // kill -9, and a start at the end
	killAll    kind = "kill all"     // at once, and all starts at the end
	pause      kind = "pause"        // SIGSTOP, and SIGCONT at the end
	terminate  kind = "terminate"    // SIGTERM, and a start at the end
	mute       kind = "hears nobody" // a cut of one way
	unheard    kind = "is not heard" // a cut of the other way
	isolate    kind = "is alone"     // a cut of both ways
	part       kind = "two apart"    // the node and the one after it do not see each other
	transfer   kind = "transfer"     // the node shall lead
	promote    kind = "promote"      // the follower of a pair leads with the next epoch
	damage     kind = "damage"       // a stopped node's files, and a start at the end
	oldFolder  kind = "old folder"   // of before the round, in place of a stopped node's, and a start at the end
	failDisk   kind = "syncs fail"   // with EIO, and a restart at the end
	slowDisk   kind = "syncs take"   // ever so long
	takeBackup kind = "backup"       // of whoever leads, beside all that
	flap       kind = "killed at its start"
)

// target says which node: the one that leads when the event begins, or one of the others.
type target int

const (
	leader target = iota
	follower
	otherFollower
)

func (t target) String() string {
	return [...]string{"the leader", "a follower", "the other follower"}[t]
}

// event is one fault of a plan.
type event struct {
	at, long time.Duration // since the beginning of the round
	kind     kind
	target   target
	way      int // one of the ways to do it; what it means is up to the kind
}

func (e event) String() string {
	text := fmt.Sprintf("%6.2fs to %6.2fs  %s", e.at.Seconds(), (e.at + e.long).Seconds(), e.kind)
	switch e.kind {
	case killAll, takeBackup:
	case promote:
		text += fmt.Sprintf(", way %d", e.way)
	case damage:
		text += fmt.Sprintf(" to %v: %s", e.target, damages[e.way].name)
	case slowDisk:
		text += fmt.Sprintf(" %d ms: %v", e.way, e.target)
	default:
		text += fmt.Sprintf(": %v", e.target)
	}
	return text
}

// choice is a kind of event that a role has: how often it is drawn, and how long it lasts.
type choice struct {
	kind        kind
	weight      int
	least, most time.Duration
}

// An election timeout is 500 ms.
var choices = map[role][]choice{
	standalone: {
		{kill, 6, 0, time.Second}, {flap, 3, 10 * time.Millisecond, 300 * time.Millisecond},
		{pause, 3, 100 * time.Millisecond, 2 * time.Second}, {terminate, 3, 0, time.Second},
		{failDisk, 2, 200 * time.Millisecond, time.Second}, {slowDisk, 2, 500 * time.Millisecond, 3 * time.Second}, {takeBackup, 4, 0, 0},
	},
	pair: {
		{kill, 6, 0, time.Second}, {flap, 3, 10 * time.Millisecond, 300 * time.Millisecond}, {killAll, 2, 0, time.Second / 2},
		{pause, 4, 100 * time.Millisecond, 2 * time.Second}, {terminate, 2, 0, time.Second},
		{mute, 2, 200 * time.Millisecond, 3 * time.Second}, {unheard, 2, 200 * time.Millisecond, 3 * time.Second}, {isolate, 2, 200 * time.Millisecond, 3 * time.Second},
		{promote, 7, 200 * time.Millisecond, 2500 * time.Millisecond},
		{damage, 2, 0, time.Second}, {oldFolder, 2, 0, time.Second},
		{failDisk, 1, 200 * time.Millisecond, time.Second}, {slowDisk, 2, 500 * time.Millisecond, 3 * time.Second}, {takeBackup, 2, 0, 0},
	},
	cluster: {
		{kill, 7, 0, 1500 * time.Millisecond}, {flap, 3, 10 * time.Millisecond, 300 * time.Millisecond}, {killAll, 2, 0, time.Second / 2},
		{pause, 6, 250 * time.Millisecond, 2500 * time.Millisecond}, {terminate, 3, 0, 1500 * time.Millisecond},
		{mute, 2, 300 * time.Millisecond, 4 * time.Second}, {unheard, 2, 300 * time.Millisecond, 4 * time.Second},
		{isolate, 2, 300 * time.Millisecond, 4 * time.Second}, {part, 3, 300 * time.Millisecond, 4 * time.Second},
		{transfer, 4, 0, 0}, {damage, 4, 0, 1500 * time.Millisecond}, {oldFolder, 2, 0, 1500 * time.Millisecond},
		{failDisk, 2, 300 * time.Millisecond, 2 * time.Second}, {slowDisk, 3, 500 * time.Millisecond, 3 * time.Second}, {takeBackup, 3, 0, 0},
	},
}

// every is how long it is from the beginning of one event to that of the next, on average: events overlap.
const every = 700 * time.Millisecond

// plan draws what happens in a round of about so long. It depends on its arguments alone.
//
// What is promised holds only while not too much is lost, so a plan takes at most one folder away from a cluster or a pair,
// and lets one disk at a time fail or be slow. A standalone node has no other that could mend it: nothing of it is damaged.
// Clocks are left alone: the checker goes by the time that it is when it judges what policies took.
func plan(r role, seed uint64, long time.Duration) []event {
	dice := rand.New(rand.NewPCG(seed, 1))
	weights := 0
	for _, c := range choices[r] {
		weights += c.weight
	}
	var events []event
	lost, diskBusy := false, time.Duration(0)
	for at := time.Duration(dice.Int64N(int64(every))); at < long; at += time.Duration(dice.Int64N(int64(2 * every))) {
		c, n := choices[r][0], dice.IntN(weights)
		for _, c = range choices[r] {
			if n -= c.weight; n < 0 {
				break
			}
		}
		e := event{at: at, long: c.least + time.Duration(dice.Int64N(int64(c.most-c.least)+1)), kind: c.kind, target: target(dice.IntN(size(r)))}
		if dice.IntN(3) == 0 && e.kind != damage {
			e.target = leader // what happens to the leader matters most
		}
		e.way = dice.IntN(1 << 10)
		switch e.kind {
		case damage, oldFolder:
			if lost {
				continue
			}
			lost = true
			if e.way %= len(damages); r == pair {
				e.target, e.way = follower, 0 // a pair does not mend a folder: the operator takes it away
			}
		case failDisk, slowDisk:
			if at < diskBusy {
				continue
			}
			diskBusy = at + e.long
			if e.way = 5 + e.way%100; dice.IntN(4) == 0 {
				e.way *= 10
			}
		case promote:
			e.way %= 8
		case transfer:
			e.target = follower + target(e.way%2)
		}
		events = append(events, e)
		if cut := e.kind == mute || e.kind == unheard || e.kind == isolate; cut && r == pair && dice.IntN(2) == 0 {
			// What the leader alone has by then must not have been acknowledged.
			later := at + time.Duration(dice.Int64N(int64(e.long)))
			events = append(events, event{at: min(later, long-1), long: time.Second, kind: promote, target: leader, way: dice.IntN(8)})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return events
}

func size(r role) int {
	return map[role]int{standalone: 1, pair: 2, cluster: 3}[r]
}

// step is the beginning or the end of an event.
type step struct {
	at    time.Duration
	event int // its index
	end   bool
}

// steps returns the beginnings and the ends of all events in their order.
func steps(events []event) (all []step) {
	for i, e := range events {
		all = append(all, step{at: e.at, event: i}, step{at: e.at + e.long, event: i, end: true})
	}
	slices.SortStableFunc(all, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return all
}

func list(events []event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "\t%v\n", e)
	}
	return text.String()
}

// TestPlan draws many plans and checks that each keeps to what the promises are made for, and that in all of them every
// kind of event occurs, several at a time.
func TestPlan(t *testing.T) {
	const seeds, long = 2000, 20 * time.Second
	for r := range choices {
		seen, overlaps := map[kind]int{}, 0
		for seed := range uint64(seeds) {
			events := plan(r, seed, long)
			if !slices.Equal(events, plan(r, seed, long)) {
				t.Fatalf("%s, seed %d: two plans", r, seed)
			}
			lost := 0
			for i, e := range events {
				seen[e.kind]++
				if e.kind == damage || e.kind == oldFolder {
					lost++
				}
				if int(e.target) >= size(r) || e.long < 0 || e.at >= long {
					t.Errorf("%s, seed %d: %v", r, seed, e)
				}
				for _, later := range events[i+1:] {
					switch overlap := later.at < e.at+e.long; {
					case later.at < e.at:
						t.Errorf("%s, seed %d: %v after %v", r, seed, later, e)
					case overlap && onDisk(e) && onDisk(later):
						t.Errorf("%s, seed %d: two disks at once: %v, %v", r, seed, e, later)
					case overlap:
						overlaps++
					}
				}
			}
			if lost > 1 || lost > 0 && r == standalone {
				t.Errorf("%s, seed %d: %d folders are taken away", r, seed, lost)
			}
		}
		for _, c := range choices[r] {
			if seen[c.kind] < seeds/10 {
				t.Errorf("%s: %q occurs %d times in %d plans", r, c.kind, seen[c.kind], seeds)
			}
		}
		if overlaps < seeds {
			t.Errorf("%s: %d overlaps in %d plans", r, overlaps, seeds)
		}
	}
}

func onDisk(e event) bool { return e.kind == failDisk || e.kind == slowDisk }
