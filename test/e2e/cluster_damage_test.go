package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestClusterDamage takes away or damages what one node has on its disk while it does not run, and the others go on. The
// node notices, says so, is whole again within a minute, and has the same log as the others, byte for byte. Nobody is
// shown anything wrong. MQ_CLUSTER_DAMAGES says how often.
func TestClusterDamage(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 99))
	var took stopwatch
	draw(t, dice, "MQ_CLUSTER_DAMAGES", 4, damages, func(i int, m scenario[func(*damager, string) string]) {
		t.Run(fmt.Sprintf("%d: %s", i, m.name), func(t *testing.T) {
			d := &damager{cluster: newCluster(t, 3, small...), dice: dice, load: newLoad(load.Config{Seed: seed, Quiet: true, Large: 20})}
			d.startWhole()
			took = append(took, d.round(m.name, m.do))
			d.finish(d.load)
		})
	})
	t.Logf("whole again: %v", took)
}

// damager damages the node victim.
type damager struct {
	*cluster
	dice   *rand.Rand
	load   *load.Load
	victim int
}

// A damage gets a folder and returns a word of what the node must say about it; empty: it need not say anything. It may
// let the node live on for a while first.
var damages = []scenario[func(d *damager, dir string) (word string)]{
	{"an empty folder", func(d *damager, dir string) string {
		d.Nodes[d.victim].Wipe(d.t)
		return "heal"
	}},
	{"yesterday's folder", func(d *damager, dir string) string {
		old := dir + "-yesterday"
		if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
			d.t.Fatal(err)
		}
		d.Start(d.victim)
		d.AwaitWhole(patience)
		d.grow()
		d.Kill(d.victim)
		d.Nodes[d.victim].Wipe(d.t)
		if err := os.Rename(old, dir); err != nil {
			d.t.Fatal(err)
		}
		return "heal"
	}},
	{"a bit of a sealed segment", func(d *damager, dir string) string {
		d.flip(d.oneOf(dir, "log/0*.seg", 1))
		return "repair"
	}},
	{"a bit of the last segment", func(d *damager, dir string) string {
		d.flip(d.last(dir, "log/0*.seg"))
		return "heal|repair"
	}},
	{"a bit of an index", func(d *damager, dir string) string {
		d.flip(d.oneOf(dir, "log/0*.idx", 0))
		return ""
	}},
	{"a bit of the last snapshot", func(d *damager, dir string) string {
		d.flip(d.last(dir, "snapshots/*.snap"))
		return "snapshot"
	}},
	{"a bit of raft.state", func(d *damager, dir string) string {
		d.flip(filepath.Join(dir, "raft.state")) // it is there twice
		return ""
	}},
	{"a bit of both halves of raft.state", func(d *damager, dir string) string {
		text, err := os.ReadFile(filepath.Join(dir, "raft.state"))
		if err != nil {
			d.t.Fatal(err)
		}
		const bytes = 200 // of each half that surely have content
		text[d.dice.IntN(bytes)] ^= 1
		text[len(text)/2+d.dice.IntN(bytes)] ^= 1
		if err := os.WriteFile(filepath.Join(dir, "raft.state"), text, 0o600); err != nil {
			d.t.Fatal(err)
		}
		return "heal|promised"
	}},
	{"a bit of identity.json", func(d *damager, dir string) string {
		d.flip(filepath.Join(dir, "identity.json"))
		return "identity"
	}},
	{"no raft.state", func(d *damager, dir string) string {
		d.remove(filepath.Join(dir, "raft.state"))
		return "heal|promised"
	}},
	{"no log", func(d *damager, dir string) string {
		d.remove(filepath.Join(dir, "log"))
		return "heal"
	}},
	{"a segment less", func(d *damager, dir string) string {
		d.remove(d.oneOf(dir, "log/0*.seg", 1))
		return "repair|heal"
	}},
	{"the last segment less", func(d *damager, dir string) string {
		d.remove(d.last(dir, "log/0*.seg"))
		return "heal"
	}},
	{"half a segment", func(d *damager, dir string) string {
		if err := os.Truncate(d.oneOf(dir, "log/0*.seg", 1), 1<<19); err != nil {
			d.t.Fatal(err)
		}
		return "repair|heal"
	}},
	{"no snapshots", func(d *damager, dir string) string {
		d.remove(filepath.Join(dir, "snapshots"))
		return ""
	}},
	{"bits here and there", func(d *damager, dir string) string {
		for range 3 {
			d.flip(d.oneOf(dir, "log/0*.seg", 0))
		}
		d.flip(d.oneOf(dir, "snapshots/*.snap", 0))
		return "repair|heal"
	}},
}

// round damages one node, and returns how long it took after its start until it was whole.
func (d *damager) round(name string, damage func(*damager, string) string) time.Duration {
	d.t.Helper()
	d.victim = d.dice.IntN(3)
	client := d.client(nil)
	defer client.Close()
	d.load.Checker.Doubt(true)
	run := begin(d.t, d.load, client)
	d.AwaitWhole(patience)
	d.grow()
	if d.dice.IntN(2) == 0 {
		d.Kill(d.victim)
	} else {
		d.Stop(d.victim)
	}
	word := damage(d, d.Nodes[d.victim].Data)
	d.awaitAck(d.load, time.Now().Add(time.Duration(d.dice.IntN(300))*time.Millisecond))
	said := d.logSize()
	d.Start(d.victim)
	started := time.Now()
	d.AwaitWhole(healMax)
	took := time.Since(started)
	d.awaitAck(d.load, time.Now())
	run.stop()
	d.check(d.load)
	d.settle(d.load)
	d.load.Checker.Doubt(false)
	d.lead(d.victim)
	d.readBack(d.load, true)
	d.awaitEqual()
	text, err := os.ReadFile(d.Nodes[d.victim].Log)
	if err != nil {
		d.t.Fatal(err)
	}
	if !slices.ContainsFunc(strings.Split(word, "|"), func(w string) bool { return strings.Contains(string(text[said:]), w) }) {
		d.t.Errorf("%s: node %d does not say %q:\n%s", name, d.victim, word, text[said:])
	}
	return took
}

func (d *damager) logSize() int64 {
	d.t.Helper()
	info, err := os.Stat(d.Nodes[d.victim].Log)
	if err != nil {
		d.t.Fatal(err)
	}
	return info.Size()
}

// grow waits until the victim has begun two more segments than it has now, and there are entries in the last one.
func (d *damager) grow() {
	d.t.Helper()
	dir := d.Nodes[d.victim].Data
	before := d.last(dir, "log/0*.seg")
	for range 2 {
		d.Await(patience, "another segment", func() string {
			if d.last(dir, "log/0*.seg") != before {
				return ""
			}
			return fmt.Sprintf("%s is the last; %v", before, d.load.Statuses())
		})
		before = d.last(dir, "log/0*.seg")
	}
	d.awaitAck(d.load, time.Now().Add(50*time.Millisecond))
}

// files returns the files that match a pattern, in order. There must be one.
func (d *damager) files(dir, pattern string) []string {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		d.t.Fatalf("%s in %s: %v, %v", pattern, dir, names, err)
	}
	slices.Sort(names)
	return names
}

func (d *damager) last(dir, pattern string) string { return slices.Max(d.files(dir, pattern)) }

// oneOf returns a file that matches, but none of so many at the end.
func (d *damager) oneOf(dir, pattern string, without int) string {
	d.t.Helper()
	names := d.files(dir, pattern)
	if len(names) <= without {
		d.t.Fatalf("only %d files %s in %s", len(names), pattern, dir)
	}
	return names[d.dice.IntN(len(names)-without)]
}

func (d *damager) remove(path string) {
	d.t.Helper()
	if _, err := os.Stat(path); err != nil {
		d.t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		d.t.Fatal(err)
	}
}

// flip flips one bit of what was written to a file.
func (d *damager) flip(path string) {
	d.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		d.t.Fatal(err)
	}
	used := len(text)
	for used > 0 && text[used-1] == 0 {
		used--
	}
	at := d.dice.IntN(used)
	text[at] ^= 1 << d.dice.IntN(8)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.t.Logf("flipped a bit of byte %d of %d in %s", at, used, path)
}

// TestClusterFarBehind lets a follower be away until what it lacks is no longer in the others' logs, and one that is new:
// they get snapshot and segments, and publishing goes on meanwhile.
func TestClusterFarBehind(t *testing.T) {
	const gapMax = 2 * time.Second
	seed := process.Seed(t)
	d := &damager{
		cluster: newCluster(t, 3, small...), dice: rand.New(rand.NewPCG(seed, 99)), load: newLoad(load.Config{Seed: seed, Large: 20}),
	}
	leader := d.startWhole()
	d.victim = d.Others(leader)[0]
	client := d.client(nil)
	defer client.Close()
	run := begin(t, d.load, client)
	d.grow()
	run.stop()
	d.settle(d.load)
	d.Kill(d.victim)
	end := d.last(d.Nodes[d.victim].Data, "log/0*.seg")
	// behind tells what keeps the logs of the others from being beyond the victim's. Each of them may lead when it comes back.
	behind := func() string {
		for _, i := range d.Others(d.victim) {
			if first := d.files(d.Nodes[i].Data, "log/0*.seg")[0]; filepath.Base(first) <= filepath.Base(end) {
				return fmt.Sprintf("the log of node %d still begins with %s, and that of the victim ends in %s", i, first, end)
			}
		}
		return ""
	}
	for range 20 {
		d.load.Checker.Doubt(true)
		run = begin(t, d.load, client)
		d.awaitAck(d.load, time.Now().Add(300*time.Millisecond))
		run.stop()
		d.readBack(d.load, false)
		d.Await(patience, "a retain", func() string { // who leads may change
			if err := d.load.Retain(t.Context(), d.Nodes[d.Leader(patience)].URL); err != nil {
				return err.Error()
			}
			return ""
		})
		if behind() == "" {
			break
		}
	}
	if still := behind(); still != "" {
		t.Fatal(still)
	}
	run = begin(t, d.load, client)
	d.awaitAck(d.load, time.Now())
	syncs := process.TimeSyncs(t, d.dir)
	d.load.ForgetGap()
	d.Start(d.victim)
	started := time.Now()
	d.AwaitWhole(healMax)
	took := time.Since(started)
	d.awaitAck(d.load, time.Now())
	gap, slowest := d.load.LongestGap(), syncs.Stop()
	run.stop()
	d.check(d.load)
	if most := gapMax + slackSyncs*slowest; gap > most {
		t.Errorf("publishers waited for %v, want at most %v, with syncs of %v", gap, most, slowest)
	}
	d.finish(d.load)
	t.Logf("whole after %v, publishers waited for %v at most; %v", took, gap, d.load.Checker.Report())
}
