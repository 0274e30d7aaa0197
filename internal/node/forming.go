package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"example.com/mq/internal/catchup"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/mesh"
	"example.com/mq/internal/replication/cluster"
)

// A cluster forms when all its nodes have met: docs/adr/0006-cluster.md. One of them, the founder, says what the log's id is
// and who the members are. It is the one that brings a log, or else node 0.

// meetEvery is how often nodes that have not heard of this start are told of it.
const meetEvery = 500 * time.Millisecond

// answerOf is what another node said to our introduction.
type answerOf struct {
	node     int
	in       catchup.Introduced
	standing catchup.Standing
	err      error
}

// introduction says who this node is.
func (c *Cluster) introduction() catchup.Introduction {
	st := c.store.state()
	in := catchup.Introduction{
		Fingerprint: c.print, Self: st.Self, Nodes: len(st.Members), NodeID: nodeID(st.NodeID), LogID: logIDOf(st.LogID),
		Incarnation: st.Members[st.Self].Incarnation,
		Boot:        st.Boot, Nonce: st.Nonce, Phase: string(st.Phase), Term: entry.Term(st.Term),
	}
	if st.Phase == phaseNew {
		c.identityMu.Lock()
		if c.identity.Ready { // the log of a standalone node
			in.LogID = c.identity.logID()
		}
		c.identityMu.Unlock()
	}
	if n := c.life.Load(); n != nil {
		tip := n.log.Tip()
		in.Last, in.LastTerm = tip.Index, tip.Term
		in.Term = max(in.Term, tip.Term)
	}
	return in
}

// others returns the numbers of the other nodes.
func (c *Cluster) others() []int {
	list := make([]int, 0, len(c.cc.URLs)-1)
	for i := range c.cc.URLs {
		if i != c.cc.Self {
			list = append(list, i)
		}
	}
	return list
}

// introduce tells nodes who this one is, all at once, and returns what they say, in the same order.
func (c *Cluster) introduce(ctx context.Context, to []int) []answerOf {
	in := c.introduction()
	answers := make([]answerOf, len(to))
	var asking sync.WaitGroup
	for i, node := range to {
		asking.Go(func() {
			a := answerOf{node: node}
			a.in, a.standing, a.err = catchup.Client{Peer: c.peer(node, min(askTimeout, 2*c.cc.ElectionTimeout))}.Introduce(ctx, in)
			if a.err == nil && (a.in.Self != node || a.in.Nodes != len(c.cc.URLs)) {
				a.err = fmt.Errorf("it says that it is node %d of %d: check -raft-peers and -raft-self", a.in.Self, a.in.Nodes)
			}
			answers[i] = a
		})
	}
	asking.Wait()
	for _, a := range answers {
		if a.err == nil && a.in.LogID == in.LogID && a.in.Leader != c.cc.Self && a.in.Leader >= 0 {
			c.mu.Lock()
			c.hint = a.in.Leader
			c.mu.Unlock()
		}
	}
	return answers
}

// missing says which nodes gave no answer, and why.
func missing(answers []answerOf) string {
	var list []string
	for _, a := range answers {
		if a.err != nil {
			if errors.As(a.err, new(*mesh.UnreachableError)) { // which names the node
				list = append(list, a.err.Error())
				continue
			}
			list = append(list, fmt.Sprintf("node %d: %v", a.node, a.err))
		}
	}
	return strings.Join(list, "; ")
}

// form makes this node a member of a cluster.
func (c *Cluster) form() error {
	answers := c.introduce(c.ctx, c.others())
	if c.store.state().Phase != phaseNew {
		return nil // the founder was faster
	}
	holders, ours := []int{}, c.introduction()
	if ours.LogID != noLog {
		holders = append(holders, c.cc.Self)
	}
	for _, a := range answers {
		switch {
		case a.err != nil:
		case a.in.Verdict == catchup.VerdictForeign:
			return fmt.Errorf("node %d refuses this one: %s", a.node, a.in.Objection)
		case phase(a.in.Phase) != phaseNew:
			return c.join(&a.in)
		case a.in.Fingerprint != c.print:
			return fmt.Errorf("node %d was given other -raft-peers than this one", a.node)
		case a.in.LogID != noLog:
			holders = append(holders, a.node)
		}
	}
	if text := missing(answers); text != "" {
		return fmt.Errorf("the first start of a cluster needs all its nodes, once; waiting for the others: %s", text)
	}
	founder := 0
	switch len(holders) {
	case 0:
	case 1:
		founder = holders[0]
	default:
		return fmt.Errorf("nodes %v all bring a log of their own: a cluster begins with one; give the others empty data folders", holders)
	}
	if founder != c.cc.Self {
		return fmt.Errorf("waiting for node %d to found the cluster", founder)
	}
	return c.found(answers)
}

// found makes the cluster. All nodes have answered that they are new.
func (c *Cluster) found(answers []answerOf) error {
	st := c.store.state()
	members := make([][16]byte, len(c.cc.URLs))
	members[c.cc.Self] = nodeID(st.NodeID)
	for _, a := range answers {
		members[a.node] = a.in.NodeID
	}
	c.identityMu.Lock()
	id := c.identity.logID()
	ready := c.identity.Ready
	c.identityMu.Unlock()
	if !ready {
		text, err := c.randomID()
		if err != nil {
			return err
		}
		id = logIDOf(text)
	}
	incarnation := uint64(max(1, c.cfg.Clock.Now().UnixMilli()))
	if err := c.adopt(id, members, incarnation, phaseWhole); passing(err) {
		return err
	} else if err != nil {
		return &fatalError{err}
	}
	c.logger.Info("founded the cluster", "log_id", c.store.state().LogID)
	var telling sync.WaitGroup
	for _, to := range c.others() {
		telling.Go(func() { // who does not hear it now learns it when it asks
			formation := catchup.Formation{Fingerprint: c.print, LogID: id, Incarnation: incarnation, Members: members}
			if err := (catchup.Client{Peer: c.peer(to, askTimeout)}).Form(c.ctx, formation); err != nil {
				c.logger.Warn("a node was not told that the cluster is founded; it will ask", "peer", to, "err", err)
			}
		})
	}
	telling.Wait()
	return nil
}

// join makes this node, which knows of no cluster, part of one that is there: as the member that has not begun yet, or as
// one that lost its folder.
func (c *Cluster) join(in *catchup.Introduced) error {
	if in.LogID == noLog || len(in.Members) != len(c.cc.URLs) {
		return fmt.Errorf("node %d does not say yet which cluster this is", in.Self)
	}
	c.identityMu.Lock()
	foreign := c.identity.Ready && c.identity.logID() != in.LogID
	c.identityMu.Unlock()
	if foreign {
		return &fatalError{fmt.Errorf("%w: this data folder holds another log than the cluster's: give this node an empty folder; nothing was changed", errDifferently)}
	}
	if in.Verdict == catchup.VerdictOK && in.Members[c.cc.Self] == nodeID(c.store.state().NodeID) {
		return c.adopt(in.LogID, in.Members, in.Incarnation, phaseFetching)
	}
	if err := c.setLogID(in.LogID); passing(err) {
		return err
	} else if err != nil {
		return &fatalError{err}
	}
	return c.healAs(errors.New("the cluster is there already, and its node here was another one: its data folder is lost"), in.LogID, in)
}

// setLogID notes whose log this folder holds, or will.
func (c *Cluster) setLogID(id entry.LogID) error {
	c.identityMu.Lock()
	defer c.identityMu.Unlock()
	next := *c.identity
	if next.LogID = fmt.Sprintf("%x", id[:]); next.LogID == c.identity.LogID {
		return nil
	}
	if err := writeIdentity(c.fs, &next); err != nil {
		return err
	}
	c.identity = &next
	return nil
}

// adopt makes this node a member that never voted or acknowledged anything, so that it has lost nothing. The founder is
// whole. The others first fetch what it brought: else they could elect one of them, who does not have it.
func (c *Cluster) adopt(id entry.LogID, members [][16]byte, incarnation uint64, begins phase) error {
	if err := c.setLogID(id); err != nil {
		return err
	}
	return c.store.change(func(s *raftState) bool {
		if s.Phase != phaseNew {
			return false
		}
		s.Phase, s.LogID = begins, fmt.Sprintf("%x", id[:])
		for i, m := range members {
			s.Members[i] = memberState{NodeID: fmt.Sprintf("%x", m[:]), Incarnation: incarnation}
		}
		return true
	})
}

// comeBack tells the others of this start, and returns once enough of them know of nothing that this node has lost. The start
// counts only when they have nothing to say against the one before: an old copy of a folder that is started again and again
// while nobody can be reached would else look newer than what it is a copy of.
func (c *Cluster) comeBack(ctx context.Context) error {
	c.mu.Lock()
	booted := c.booted
	c.mu.Unlock()
	if booted {
		return c.introduceSelf(ctx, c.others())
	}
	if err := c.introduceSelf(ctx, c.others()); err != nil {
		return err
	}
	var there []int // who does not answer is not waited for again
	c.mu.Lock()
	for _, i := range c.others() {
		if c.met[i] {
			there = append(there, i)
		}
	}
	c.mu.Unlock()
	if err := c.boot(); err != nil {
		return &fatalError{err}
	}
	return c.introduceSelf(ctx, there)
}

// introduceSelf introduces this node to others, and at last to all, until enough of them know of nothing that it has lost: a
// majority of the cluster with it.
func (c *Cluster) introduceSelf(ctx context.Context, to []int) error {
	for {
		enough, text, err := c.meet(ctx, to)
		if err != nil || enough {
			return err
		}
		to = c.others()
		c.unready("this node takes part once a majority has heard that it is back; waiting for the others: " + text)
		if !c.sleep(ctx, retryFirst) {
			return context.Cause(ctx)
		}
	}
}

// meetTheRest goes on until all others know of this start.
func (c *Cluster) meetTheRest(ctx context.Context) {
	for c.unmet() > 0 && c.sleep(ctx, meetEvery) {
		if _, _, err := c.meet(ctx, c.others()); err != nil {
			c.finish(err)
			return
		}
	}
}

func (c *Cluster) unmet() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for i, met := range c.met {
		if !met && i != c.cc.Self {
			n++
		}
	}
	return n
}

// meet introduces this node to those of a list that have not heard of its start. It reports whether enough have, and else who is
// missing. An error says why this node must not go on as it is.
func (c *Cluster) meet(ctx context.Context, list []int) (enough bool, text string, err error) {
	var to []int
	c.mu.Lock()
	for _, i := range list {
		if !c.met[i] {
			to = append(to, i)
		}
	}
	c.mu.Unlock()
	asked := c.durable()
	answers := c.introduce(ctx, to)
	foreign := 0
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			continue
		}
		switch a.in.Verdict {
		case catchup.VerdictOK:
			if phase(a.in.Phase) != phaseWhole {
				a.err = errors.New("it is " + a.in.Phase)
				continue
			}
			c.mu.Lock()
			c.met[a.node] = true
			c.mu.Unlock()
		case catchup.VerdictStale:
			if acked := a.in.Acked; asked < acked && acked <= c.durable() {
				// The question was long on its way. Meanwhile this node, which takes part, has got and acknowledged more.
				a.err = errors.New("it is asked again")
				continue
			}
			return false, "", fmt.Errorf("%w: node %d says: %s", errLost, a.node, a.in.Objection)
		case catchup.VerdictStranger:
			return false, "", fmt.Errorf("%w: node %d says: %s", errReplaced, a.node, a.in.Objection)
		case catchup.VerdictForeign:
			foreign++
			a.err = errors.New(a.in.Objection)
			err = fmt.Errorf("%w: node %d says: %s; nothing was changed", errDifferently, a.node, a.in.Objection)
		default:
			a.err = errors.New(a.in.Objection)
		}
	}
	f := len(c.cc.URLs) / 2
	if foreign <= f || foreign < len(c.others()) {
		err = nil // some other node may be the one in the wrong place
	}
	return len(c.others())-c.unmet() >= f, missing(answers), err
}

// durable returns the last entry that is safe in the log of the life that runs, 0 without any.
func (c *Cluster) durable() entry.Index {
	if n := c.life.Load(); n != nil {
		return n.log.Durable()
	}
	return 0
}

// judge says what this node thinks of one that introduces itself, and remembers what it must not forget of it.
func (c *Cluster) judge(from int, in *catchup.Introduction) (catchup.Verdict, string) {
	st := c.store.state()
	if in.Self != from || in.Nodes != len(c.cc.URLs) {
		return catchup.VerdictForeign, fmt.Sprintf("node %d of %d has introduced itself where node %d of %d was expected: check -raft-peers and -raft-self",
			in.Self, in.Nodes, from, len(c.cc.URLs))
	}
	if st.Phase == phaseNew {
		return catchup.VerdictOK, ""
	}
	known, id := st.Members[from], fmt.Sprintf("%x", in.NodeID[:])
	if phase(in.Phase) == phaseNew {
		switch {
		case in.LogID != noLog && in.LogID != logIDOf(st.LogID):
			return catchup.VerdictForeign, "the cluster has a log of another id than that in this data folder: give the node an empty folder"
		case known.NodeID == id && known.Boot == 0:
			return catchup.VerdictOK, "" // it has not heard yet that the cluster was founded
		case known.NodeID == id:
			return catchup.VerdictStale, "its data folder is from before the cluster was founded"
		}
		return catchup.VerdictStranger, "it was another node, whose data folder is lost"
	}
	if in.LogID != logIDOf(st.LogID) {
		return catchup.VerdictForeign, "it belongs to another cluster: the ids of the logs differ"
	}
	verdict, objection := catchup.VerdictOK, ""
	var err error
	if known.NodeID != id || known.Boot != in.Boot || known.Nonce != in.Nonce { // else there is nothing to note
		err = c.store.change(func(s *raftState) bool {
			m := &s.Members[from]
			switch {
			case m.NodeID != id && in.Incarnation > m.Incarnation: // 0 when this node has lost its memory of the others
				*m = memberState{NodeID: id, Incarnation: in.Incarnation, Boot: in.Boot, Nonce: in.Nonce}
				return true
			case m.NodeID != id:
				verdict, objection = catchup.VerdictStranger, fmt.Sprintf("another data folder has its place since: that of %s", m.NodeID)
			case in.Boot > m.Boot, m.Boot == 0 && m.Nonce == 0 && in.Nonce != 0: // of some, only the id was heard of
				m.Boot, m.Nonce = in.Boot, in.Nonce
				return true
			case in.Boot < m.Boot || in.Nonce != m.Nonce:
				verdict = catchup.VerdictStale
				objection = fmt.Sprintf("its data folder is an old copy: its start number %d is not the one of that number that is known, or lower than %d", in.Boot, m.Boot)
			}
			return false
		})
	}
	switch {
	case err != nil:
		return catchup.VerdictWait, "its start cannot be noted: " + err.Error()
	case verdict != catchup.VerdictOK && c.role.Load() == nil:
		// What this node remembers may be old itself, as long as the others have not said that it is not.
		return catchup.VerdictWait, "this node does not know yet whether it is itself what it was"
	case verdict != catchup.VerdictOK:
		c.logger.Warn("a node is not what it was", "peer", from, "verdict", string(verdict), "why", objection)
		return verdict, objection
	}
	// Of a start that was found good once, this question may be older than what the node has acknowledged since.
	if phase(in.Phase) == phaseWhole && !c.wasGood(from, in) {
		if acked := c.ackedBy(from); in.Last < acked {
			objection = fmt.Sprintf("it has acknowledged entries up to %d, which are committed, and ends with entry %d now", acked, in.Last)
			c.logger.Warn("a node has lost what it had acknowledged", "peer", from, "why", objection)
			return catchup.VerdictStale, objection
		}
		c.mu.Lock()
		c.good[from] = [2]uint64{in.Boot, in.Nonce}
		c.mu.Unlock()
	}
	return catchup.VerdictOK, ""
}

// wasGood reports whether this process has found the start of a node good before.
func (c *Cluster) wasGood(from int, in *catchup.Introduction) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.good[from] == [2]uint64{in.Boot, in.Nonce}
}

// ackedBy returns up to where another node has acknowledged entries to this one that are committed.
func (c *Cluster) ackedBy(node int) entry.Index {
	c.mu.Lock()
	acked := c.acked[node]
	c.mu.Unlock()
	acked = max(acked, entry.Index(c.store.state().Members[node].Acked))
	if role := c.role.Load(); role != nil {
		acked = max(acked, min(role.Acked(node), role.Info().Commit))
	}
	return acked
}

// ackedEvery is how often a leader notes on disk what the others have acknowledged.
const ackedEvery = 10 * time.Second

// noteAcked notes it while a life runs. It is what is left to tell an old copy of a folder by when all nodes were
// started again.
func (c *Cluster) noteAcked(ctx context.Context, role *cluster.Role) {
	for c.sleep(ctx, ackedEvery) {
		c.rememberAcked(role)
	}
}

// rememberAcked keeps what a role knows.
func (c *Cluster) rememberAcked(role *cluster.Role) {
	commit := role.Info().Commit
	acked := make([]entry.Index, len(c.cc.URLs))
	for _, i := range c.others() {
		acked[i] = min(role.Acked(i), commit)
		c.mu.Lock()
		c.acked[i] = max(c.acked[i], acked[i])
		c.mu.Unlock()
	}
	err := c.store.change(func(s *raftState) bool {
		changed := false
		for i, a := range acked {
			if uint64(a) > s.Members[i].Acked {
				s.Members[i].Acked, changed = uint64(a), true
			}
		}
		return changed
	})
	if err != nil {
		c.diskFailed(err)
	}
}
