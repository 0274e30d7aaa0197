package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/index"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const (
	// checksKept is how many hashes of the fold a node remembers, so that those that are behind can still compare.
	checksKept = 32
	// compareTries is how often the others are asked for a hash that they do not have yet.
	compareTries = 5
	compareEvery = time.Second
	// scrubPause is how long the scrubber of a cluster's node rests between two passes over the log.
	scrubPause = 30 * time.Second
)

// checks are the hashes of the fold at the indexes where the leader has logged a check.
type checks struct {
	known map[entry.Index][32]byte // the newest ones
	order []entry.Index            // of known, oldest first
	due   *dueCheck                // not hashed yet
	kick  chan struct{}            // capacity 1: due was set
}

// dueCheck is a fold to be hashed.
type dueCheck struct {
	at   entry.Index
	fold *state.Frozen
}

// checked is called when a check is applied. One that is not hashed yet is given up for it.
func (c *Cluster) checked(at entry.Index, fold *state.Frozen) {
	c.mu.Lock()
	c.checks.due = &dueCheck{at, fold}
	c.mu.Unlock()
	select {
	case c.checks.kick <- struct{}{}:
	default:
	}
}

// compare hashes the fold at each check, and compares it with those of the others. The node that is alone with its hash,
// against a majority of the cluster, takes no part any more.
func (c *Cluster) compare(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.checks.kick:
		}
		c.mu.Lock()
		due := c.checks.due
		c.checks.due = nil
		c.mu.Unlock()
		if due == nil {
			continue
		}
		ours := due.fold.Hash()
		c.mu.Lock()
		k := &c.checks
		k.known[due.at] = ours
		if k.order = append(k.order, due.at); len(k.order) > checksKept {
			delete(k.known, k.order[0])
			k.order = append(k.order[:0], k.order[1:]...)
		}
		c.mu.Unlock()
		if err := c.compareAt(ctx, due.at, ours); err != nil {
			c.finish(err)
			return
		}
	}
}

// compareAt asks the others for their hash. An error says that this node is the odd one.
func (c *Cluster) compareAt(ctx context.Context, at entry.Index, ours [32]byte) error {
	votes := map[[32]byte]int{ours: 1}
	asked := make([]bool, len(c.cc.URLs))
	for try := 0; ; try++ {
		open := false
		for _, to := range c.others() {
			if asked[to] {
				continue
			}
			hash, known, err := c.client(to, askTimeout).Hash(ctx, at)
			if err != nil || !known {
				open = true
				continue
			}
			asked[to] = true
			votes[hash]++
		}
		if !open || try == compareTries || !c.sleep(ctx, compareEvery) {
			break
		}
	}
	if len(votes) == 1 {
		return nil
	}
	for hash, n := range votes {
		if hash != ours && n > len(c.cc.URLs)/2 {
			return fmt.Errorf("%w at entry %d: %d nodes agree on another one. Its disk or memory is not to be trusted: give it an empty data folder", errOdd, at, n)
		}
	}
	c.logger.Error("the folds of the nodes differ; if another one is the odd one it stops by itself", "index", uint64(at), "votes_for_ours", votes[ours], "different", len(votes))
	return nil
}

// scrub runs the scrubber of a life, and has what it finds damaged repaired. When a read meets damage it begins anew, faster.
func (c *Cluster) scrub(ctx context.Context, n *Node) {
	var repairing sync.WaitGroup // what nobody has now must not keep the rest from being looked at
	defer repairing.Wait()
	s := &scrubber{
		n: n, report: c.scrubs, rate: c.cc.ScrubBytes, rest: scrubPause, within: c.cfg.ScrubWithin, hurry: c.corrupt,
		repair: func(segment entry.Index) { repairing.Go(func() { c.repairOpen(ctx, n, segment) }) },
		broken: func() {
			if len(c.others()) > 0 { // the life ends: another one begins with the repair
				c.finish(errMustRepair)
			}
		},
		after: func() { c.scrubHead(ctx, n) },
	}
	s.run(ctx)
}

// scrubHead looks whether the records that live are all in the log: a segment that is missing at its head looks like one
// that was dropped, because nothing in it lived. If not, the log is fetched anew.
func (c *Cluster) scrubHead(ctx context.Context, n *Node) {
	b := n.broker.Load()
	if b == nil || len(c.others()) == 0 || n.log.Segments()[0].First == 1 {
		return
	}
	// The head was dropped on the word of facts that may stand at the end of the log: they moved starts, or kept records once
	// more. They are applied again when raft knows them to be committed.
	for b.Applied() < min(n.ended, n.log.Last()) {
		if !c.sleep(ctx, compareEvery) {
			return
		}
	}
	topics := 0
	b.View(func(s *state.State) { topics = s.Topics() })
	for id := range topics {
		if ctx.Err() != nil {
			return
		}
		var before, after state.Topic
		b.View(func(s *state.State) { before = s.TopicByID(state.TopicID(id)) })
		first := before.Nth(0) // behind a gap, if one begins where the topic does
		if first == before.End {
			continue
		}
		run, err := n.index.Find([]byte(before.Name), first)
		if err == nil && run.First <= first || err != nil && !errors.Is(err, index.ErrNone) {
			continue
		}
		b.View(func(s *state.State) { after = s.TopicByID(state.TopicID(id)) })
		if after.Start != before.Start {
			continue // what was looked for has been retained meanwhile
		}
		c.finish(fmt.Errorf("%w: the log begins with entry %d, and record %d of topic %q is before", errHeadless, n.log.Segments()[0].First, first, before.Name))
		return
	}
}

// metDamage is called when a read has met damage.
func (c *Cluster) metDamage() {
	select {
	case c.corrupt <- struct{}{}:
	default:
	}
}

// repairOpen replaces a sealed segment by that of another node, while the log is in use.
func (c *Cluster) repairOpen(ctx context.Context, n *Node, segment entry.Index) {
	if len(c.others()) == 0 {
		return
	}
	c.mu.Lock()
	busy := c.repairs[segment]
	c.repairs[segment] = true
	c.mu.Unlock()
	if busy {
		return
	}
	defer func() {
		c.mu.Lock()
		delete(c.repairs, segment)
		c.mu.Unlock()
	}()
	for _, s := range n.log.Segments() {
		if s.First != segment || !s.Sealed {
			continue
		}
		said := ""
		for pause := retryFirst; ; pause = min(pause*2, retryMax) {
			err := c.repairRange(ctx, s.First, s.Last, n.log.Repair)
			if err == nil {
				err = n.reindexRange(s.First, s.Last)
			}
			if err == nil {
				c.scrubs.foundIn(s.First, s.Last, nil)
				return
			}
			if ctx.Err() != nil || errors.Is(err, wal.ErrSegmentGone) || n.log.Err() != nil {
				return
			}
			if text := err.Error(); text != said {
				said = text
				c.logger.Error("a damaged segment cannot be repaired now", "segment", uint64(segment), "err", err)
			}
			if !c.sleep(ctx, pause) || n.log.Segments()[0].First > s.First { // or it was dropped
				return
			}
		}
	}
}

// reindexRange makes the indexes of the segments from first to last again: one that was made of a damaged segment lacks
// records, and one that was missing has no index here.
func (n *Node) reindexRange(first, last entry.Index) error {
	for _, s := range n.log.Segments() {
		if s.First < first || s.Last > last || !s.Sealed {
			continue
		}
		if err := n.reindex(s.First); err != nil {
			return err
		}
	}
	return nil
}
