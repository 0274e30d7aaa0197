package mixed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"example.com/mq/test/load"
)

// round is one round under way.
type round struct {
	*world
	dice      *rand.Rand
	events    []event
	began     time.Time      // of the round, or of its faults
	undo      []func()       // of each event that has begun
	insisting sync.WaitGroup // recorded clients of one node
	old       *node          // whose folder of before the round is kept; nil: none is
	log       []string       // what was done
}

// say notes what was done, and when.
func (r *round) say(format string, values ...any) {
	r.log = append(r.log, fmt.Sprintf("\t%6.2fs  ", time.Since(r.began).Seconds())+fmt.Sprintf(format, values...))
}

// run does all events, each at its time or as soon after as may be, and undoes them.
func (r *round) run() {
	r.t.Helper()
	r.began, r.undo = time.Now(), make([]func(), len(r.events))
	for _, s := range steps(r.events) {
		<-time.After(time.Until(r.began.Add(s.at)))
		if !s.end {
			r.undo[s.event] = r.begin(r.events[s.event])
		} else if undo := r.undo[s.event]; undo != nil {
			undo()
		}
	}
}

// begin lets an event begin, and returns what ends it; nil: nothing was done.
func (r *round) begin(e event) (end func()) {
	r.t.Helper()
	n := r.resolve(e.target)
	if n.held && e.kind != killAll && e.kind != takeBackup {
		r.skipped++
		return nil
	}
	if text := fmt.Sprintf("%s, node %d", e.kind, n.number); n.life == nil {
		r.say("%s, which does not run", text)
	} else {
		r.say("%s", text)
	}
	switch e.kind {
	case kill:
		n.kill()
		return n.start
	case flap:
		n.kill()
		n.start()
		return func() { n.kill(); n.start() }
	case killAll:
		for _, i := range r.dice.Perm(len(r.nodes)) {
			r.nodes[i].kill()
		}
		return func() {
			for _, i := range r.dice.Perm(len(r.nodes)) {
				r.nodes[i].start()
			}
		}
	case pause:
		n.pause()
		paused := n.life
		r.insist(n, e.long)
		return func() {
			if n.life == paused {
				n.resume()
			}
		}
	case terminate:
		n.terminate()
		return func() { n.finish(); n.start() }
	case mute, unheard, isolate, part:
		r.insist(n, e.long)
		return r.cut(e.kind, n)
	case transfer:
		if l := r.nodes[r.leads].life; l != nil && !l.paused {
			go l.Transfer(n.number) // ends by a deadline; that nobody leads, or another one, is no failure
		}
	case promote:
		return r.promote(e.way)
	case damage:
		return r.spoil(n, func() (string, error) { return damages[e.way].do(n.cfg.Data, r.dice) })
	case oldFolder:
		if r.old == nil || r.old.held || r.role == pair && n != r.old {
			r.skipped++
			return nil
		}
		n = r.old
		r.old = nil
		return r.spoil(n, func() (string, error) {
			if err := os.RemoveAll(n.cfg.Data); err != nil {
				return "", err
			}
			return "yesterday's folder", os.Rename(n.cfg.Data+"-old", n.cfg.Data)
		})
	case failDisk, slowDisk:
		return r.disk(e, n)
	case takeBackup:
		r.backUp(n.url)
	}
	return nil
}

// insist lets some more recorded clients ask only a node that is about to be stopped or cut off, if it leads: it must not
// tell them what it does not know any more, not even of calls that waited while it was stopped.
func (r *round) insist(n *node, long time.Duration) {
	if r.role != cluster || n.number != r.leads {
		return
	}
	const after = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), long+after)
	seed := r.dice.Uint64()
	r.insisting.Go(func() { // ends by its deadline
		defer cancel()
		o := r.reach
		o.URLs, o.Nodes, o.Patient, o.Timeout = []string{n.url}, r.urls(), true, time.Second
		client := load.Open(o)
		defer client.Close()
		r.record.Run(ctx, client, 4, seed)
	})
}

// cut cuts the network of a node.
func (r *round) cut(k kind, n *node) (end func()) {
	var edges [][2]int
	for i := range r.nodes {
		switch {
		case i == n.number, k == part && i != (n.number+1)%len(r.nodes):
			continue
		case k != unheard:
			edges = append(edges, [2]int{n.number, i})
		}
		if k != mute {
			edges = append(edges, [2]int{i, n.number})
		}
	}
	for _, e := range edges {
		r.deafen(e[0], e[1])
	}
	return func() {
		for _, e := range edges {
			r.hear(e[0], e[1])
		}
	}
}

// spoil does something to the files of a node while it does not run.
func (r *round) spoil(n *node, do func() (string, error)) (end func()) {
	if r.role == pair {
		if n.number == r.leads || !r.inStep() {
			r.skipped++ // the other one does not have everything, or nobody knows
			return nil
		}
	}
	if r.dice.IntN(2) == 0 {
		n.terminate()
		n.finish()
	}
	n.kill()
	what, err := do()
	if err != nil {
		r.t.Fatal(err)
	}
	r.say("node %d: %s", n.number, what)
	n.held, n.broken = true, true
	r.damaged = r.role == cluster
	r.damagedOnce = r.damagedOnce || r.damaged
	return func() {
		n.held = false
		n.start()
	}
}

// disk makes the syncs of a node fail, or slow.
func (r *round) disk(e event, n *node) (end func()) {
	what := "error=EIO"
	if e.kind == slowDisk {
		what = fmt.Sprintf("delay_enter=%d", 1000*e.way)
	}
	l := n.life
	if l != nil && e.kind == failDisk {
		l.spoilt.Store(true)
	}
	if err := n.inject(what); err != nil {
		r.say("%v", err)
		r.skipped++
		return nil
	}
	return func() {
		if n.life != l {
			return
		}
		if l.detach(); l.spoilt.Load() {
			n.kill()
			n.start()
		}
	}
}

// inStep reports whether both nodes of a pair say that the follower has everything.
func (r *round) inStep() bool {
	for i, n := range r.nodes {
		if n.life == nil || n.life.paused || n.life.over() {
			return false
		}
		s, err := n.life.PairStatus()
		if err != nil || s.State != "streaming" || i == r.leads && !s.InStep() {
			return false
		}
	}
	return true
}

// promote lets the follower of a pair lead, as an operator does. The old leader is killed, stopped, or goes on; in the end
// it is the follower. A follower whose folder was taken away is promoted only when both say that it has everything.
func (r *round) promote(way int) (end func()) {
	old, next := r.nodes[r.leads], r.nodes[1-r.leads]
	if next.held || (old.broken || next.broken) && !r.inStep() {
		r.skipped++
		return nil
	}
	if way >= 4 { // what the leader sends meanwhile never arrives
		next.pause()
		<-time.After(time.Duration(r.dice.IntN(30)) * time.Millisecond)
	}
	switch way % 4 {
	case 0:
		old.kill()
	case 1:
		old.pause()
	case 2:
		old.terminate()
		old.finish()
	}
	if way < 3 {
		next.terminate()
		next.finish()
	}
	next.kill()
	r.lead(next.number)
	old.held = true
	next.start()
	r.promoted++
	r.say("node %d shall lead with epoch %d", next.number, r.epoch)
	return func() {
		r.reconsider()
		if way%4 == 1 {
			old.resume()
		}
		old.kill()
		old.held = false
		old.start()
	}
}

// reconsider lets the other node of a pair lead where the one that shall lead does not have everything.
func (r *round) reconsider() {
	if n := r.nodes[r.leads]; r.role == pair && n.life != nil && n.life.over() && strings.Contains(n.life.Stderr(), notWhole) {
		r.say("node %d refuses to lead", n.number)
		r.refused++
		r.nodes[1-n.number].kill()
		r.lead(1 - n.number)
		n.start()
	}
}

// backUp begins a backup, unless the one before is still under way.
func (r *round) backUp(url string) {
	if r.backups != nil {
		select {
		case err := <-r.backups:
			r.noteBackup(err)
		default:
			r.skipped++
			return
		}
	}
	done := make(chan error, 1)
	r.backups = done
	ctx, cancel := context.WithTimeout(r.t.Context(), patience/2)
	go func() { // ends by its deadline
		defer cancel()
		done <- backUp(ctx, r.http, url, r.backupDir())
	}()
}

func (w *world) noteBackup(err error) {
	w.backups = nil
	switch {
	case err == nil:
		w.taken++
	case errors.Is(err, errNotTaken):
		w.broken++
	default:
		w.violation("backup: %v", err)
	}
}

// heal ends what the events have left, and starts what does not run.
func (r *round) heal() {
	r.t.Helper()
	r.reconsider()
	for _, n := range r.nodes {
		n.held = false
		n.finish()
		n.resume()
		if n.life != nil && (n.life.spoilt.Load() || n.life.over()) {
			n.kill()
		}
		if n.life != nil {
			n.life.detach()
		}
		n.start()
	}
	for edge, n := range r.cuts {
		if n != 0 {
			r.t.Fatalf("BUG: %d cuts of %v are left", n, edge)
		}
	}
}
