package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"example.com/mq/internal/catchup"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/index"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// How a node that may have lost what it promised becomes whole again is told, with the reasons, in
// docs/adr/0006-cluster.md. The model is the recovery of Liskov and Cowling, Viewstamped Replication Revisited, section
// 4.3; raft's votes need the answers of all other nodes where that needs those of a majority.

// beginHealing makes this node, durably, one that must heal: as a new incarnation, with an id that nobody has seen.
func (c *Cluster) beginHealing(why error) error {
	st := c.store.state()
	if len(c.cc.URLs) == 1 {
		return &fatalError{fmt.Errorf("%w; there is no other node to get it from: restore the data folder from a backup; nothing was changed", why)}
	}
	return c.healAs(why, logIDOf(st.LogID), nil)
}

// healAs is beginHealing with what another node says of the cluster; told may be nil.
func (c *Cluster) healAs(why error, id entry.LogID, told *catchup.Introduced) error {
	fresh, err := c.randomID()
	if err != nil {
		return err
	}
	c.logger.Error("this node heals: it neither votes nor acknowledges before the others have given it back what it may have promised and stored",
		"why", why.Error(), "node_id", fresh)
	c.mu.Lock()
	c.booted = false
	clear(c.met)
	c.mu.Unlock()
	nonce := c.rng.Uint64() >> 1
	err = c.store.change(func(s *raftState) bool {
		s.NodeID, s.Phase, s.LogID, s.Boot, s.Nonce = fresh, phaseHealing, fmt.Sprintf("%x", id[:]), 0, nonce
		incarnation := s.Members[s.Self].Incarnation + 1
		if told != nil {
			incarnation = max(incarnation, told.Seen+1)
		}
		s.Members[s.Self] = memberState{NodeID: fresh, Incarnation: incarnation, Nonce: nonce}
		return true
	})
	if err != nil {
		return &fatalError{err}
	}
	return nil
}

// heal asks all others for the highest term in which this node may have promised anything, and promises that one anew. It
// will never vote in it, and acknowledges nothing before fetch has brought what it may have acknowledged.
func (c *Cluster) heal() error {
	answers := c.introduce(c.ctx, c.others())
	term, whole := c.store.state().Term, 0
	for i := range answers {
		a := &answers[i]
		if a.err == nil && a.in.Verdict == catchup.VerdictStranger {
			// It knows of a later incarnation than this node, which has forgotten.
			return c.healAs(fmt.Errorf("%w: node %d says: %s", errReplaced, a.node, a.in.Objection), logIDOf(c.store.state().LogID), &a.in)
		}
		if a.err == nil && a.in.Verdict != catchup.VerdictOK {
			a.err = errors.New(a.in.Objection)
		}
		if a.err != nil {
			continue
		}
		term = max(term, uint64(a.in.Term), uint64(a.standing.Term))
		if phase(a.in.Phase) == phaseWhole {
			whole++
		}
	}
	if text := missing(answers); text != "" {
		return fmt.Errorf("healing: this node has lost what it may have promised, and needs an answer of every other node; waiting for the others: %s", text)
	}
	if need := len(c.cc.URLs)/2 + 1; whole < need {
		return fmt.Errorf("healing: this node has lost what it may have promised; %d of the other nodes are whole, and %d must be", whole, need)
	}
	err := c.store.change(func(s *raftState) bool {
		s.Term, s.Vote, s.Phase = term, s.Self, phaseFetching
		for _, a := range answers { // what this node knew of the others is lost, too
			if m := &s.Members[a.node]; a.in.Incarnation > m.Incarnation {
				*m = memberState{NodeID: fmt.Sprintf("%x", a.in.NodeID[:]), Incarnation: a.in.Incarnation, Boot: a.in.Boot, Nonce: a.in.Nonce}
			}
		}
		return true
	})
	if err != nil {
		return &fatalError{err}
	}
	c.logger.Info("healing: the others have answered; fetching the log from the leader", "term", term)
	return nil
}

// fetch brings the log up to the end of that of a leader of the promised term or a later one. Then this node is whole. One that
// has promised nothing, because the cluster is being formed, may fetch from any whole node.
func (c *Cluster) fetch() error {
	st := c.store.state()
	leader, err := c.findLeader()
	if err != nil {
		return err
	}
	demand := catchup.Demand{Leader: st.Term > 0, MinTerm: entry.Term(st.Term)}
	var result catchup.Result
	if st.Full {
		result, err = c.fetchAll(leader, demand)
	} else {
		result, err = c.extend(leader, demand)
	}
	if err != nil {
		return fmt.Errorf("fetching the log from node %d: %w", leader, err)
	}
	err = c.store.change(func(s *raftState) bool {
		if s.Term < uint64(result.Peer.Term) {
			s.Term, s.Vote = uint64(result.Peer.Term), noVote
		}
		s.Phase, s.Full, s.Begin = phaseWhole, false, 0
		return true
	})
	if err != nil {
		return &fatalError{err}
	}
	c.logger.Info("this node is whole again", "last", uint64(result.Last.Index), "fetched_bytes", result.Bytes)
	return nil
}

// findLeader returns the leader that the others name, or, where any whole node will do, one of these.
func (c *Cluster) findLeader() (int, error) {
	answers := c.introduce(c.ctx, c.others())
	best, any, term := -1, -1, entry.Term(c.store.state().Term)
	for _, a := range answers {
		switch {
		case a.err != nil:
		case a.in.Verdict == catchup.VerdictStale, a.in.Verdict == catchup.VerdictStranger:
			why := fmt.Errorf("%w: node %d says: %s", errLost, a.node, a.in.Objection)
			if err := c.healAs(why, logIDOf(c.store.state().LogID), &a.in); err != nil {
				return -1, err
			}
			return -1, why
		case a.standing.Leader && a.standing.Term >= term:
			best, term = a.node, a.standing.Term
		case phase(a.in.Phase) == phaseWhole:
			any = a.node
		}
	}
	switch {
	case best >= 0:
	case any >= 0 && term == 0:
		best = any
	default:
		text := fmt.Sprintf("there is no leader of term %d or a later one yet", term)
		if who := missing(answers); who != "" {
			text += "; waiting for the others: " + who
		}
		return -1, errors.New(text)
	}
	return best, nil
}

// extend brings the log that is there up to the end of the leader's. Where that does not work, it makes the next fetch a
// full one.
func (c *Cluster) extend(leader int, demand catchup.Demand) (catchup.Result, error) {
	n, _, committed, err := c.openWhole(c.ctx)
	if err != nil {
		return catchup.Result{}, err
	}
	defer c.closeLife(n)
	c.life.Store(n)
	defer c.life.Store(nil)
	result, err := catchup.Extend(c.ctx, c.client(leader, pullTimeout), n.log, catchup.ExtendOptions{
		Demand: demand, Commit: committed, Inline: c.cfg.Inline,
	})
	diverged := (*catchup.DivergedError)(nil)
	switch {
	case errors.As(err, &diverged):
		c.logger.Error("what is committed here is not what the leader has: all of it is fetched anew", "err", err)
	case errors.Is(err, catchup.ErrGone), errors.Is(err, catchup.ErrDiffers):
		c.logger.Info("the leader's log begins behind the end of this one: all of it is fetched", "err", err)
	default:
		return result, err
	}
	return result, c.needFull(err)
}

// needFull makes the next step a full fetch.
func (c *Cluster) needFull(why error) error {
	err := c.store.change(func(s *raftState) bool {
		s.Full = true
		if s.Phase == phaseWhole {
			s.Phase = phaseFetching // its promises are known: nothing but the log is missing
		}
		return true
	})
	if err != nil {
		return &fatalError{err}
	}
	return why
}

// pull fetches what this node lacks, from the leader that says that it is too far behind for raft. Its promises stand.
func (c *Cluster) pull(leader int) error {
	st := c.store.state()
	c.logger.Info("fetching what this node lacks", "leader", leader)
	c.unready(fmt.Sprintf("fetching what this node lacks from node %d", leader))
	c.mu.Lock()
	c.hint = leader
	c.mu.Unlock()
	result, err := c.extend(leader, catchup.Demand{Leader: true, MinTerm: entry.Term(st.Term)})
	if err != nil {
		if errors.As(err, new(*fatalError)) || c.ctx.Err() != nil {
			return err
		}
		c.logger.Warn("what this node lacks could not be fetched; it goes on with what it has", "err", err)
		return nil
	}
	c.logger.Info("fetched what this node lacked", "last", uint64(result.Last.Index), "bytes", result.Bytes)
	return nil
}

// fetchAll makes the log anew from that of a leader.
func (c *Cluster) fetchAll(leader int, demand catchup.Demand) (catchup.Result, error) {
	n := c.bareLife()
	defer c.closeLife(n)
	s := &sink{replica: newReplica(n), c: c}
	if begin := c.store.state().Begin; begin != 0 {
		if err := n.openUnfinished(entry.Index(begin)); err != nil {
			return catchup.Result{}, err
		}
	}
	result, err := catchup.Full(c.ctx, c.client(leader, pullTimeout), s, catchup.FullOptions{Demand: demand, Inline: c.cfg.Inline, Progress: n.progress.set})
	if err == nil {
		c.identityMu.Lock()
		c.identity = n.identity
		c.identityMu.Unlock()
	}
	return result, err
}

// sink is a folder whose log is fetched as a whole.
type sink struct {
	*replica
	c *Cluster
}

var _ catchup.Sink = (*sink)(nil)

// Reset implements catchup.Sink.
func (s *sink) Reset(id entry.LogID, begin wal.Place) error {
	err := s.c.store.change(func(st *raftState) bool {
		st.Begin = uint64(begin.Segment)
		return true
	})
	if err != nil {
		return err
	}
	return s.replica.Reset(id, begin)
}

// Snapshot implements catchup.Sink.
func (s *sink) Snapshot(at entry.Index, bytes int64) (catchup.Import, error) {
	im, err := snapshot.NewImport(s.n.fs, snapshotDir, s.LogID(), at, bytes)
	if err != nil {
		return nil, full(err)
	}
	return fetchedSnapshot{im}, nil
}

type fetchedSnapshot struct{ *snapshot.Import }

func (im fetchedSnapshot) Write(p []byte) error { return full(im.Import.Write(p)) }

func (im fetchedSnapshot) Finish() error {
	err := im.Import.Finish()
	if errors.Is(err, snapshot.ErrCorrupt) {
		return fmt.Errorf("%w: %w", catchup.ErrDamaged, err)
	}
	return full(err)
}

// Segment implements catchup.Sink.
func (s *sink) Segment(first, last entry.Index, bytes int64) (catchup.Import, error) {
	return s.replica.Segment(first, last, bytes)
}

// Whole implements catchup.Sink. The log is opened anew, as a whole, by the next life.
func (s *sink) Whole() error { return s.n.log.Prepend() }

// openWhole is openLife, and repairs the log from other nodes if it is damaged.
func (c *Cluster) openWhole(ctx context.Context) (n *Node, fold *state.State, committed entry.Index, err error) {
	for {
		if err = c.repairFound(ctx); err != nil {
			return nil, nil, 0, err
		}
		n, fold, committed, err = c.openLife()
		lost := (*lostTailError)(nil)
		switch {
		case err == nil:
			return n, fold, committed, nil
		case errors.As(err, &lost):
			return nil, nil, 0, c.lostTail(lost)
		case errors.Is(err, wal.ErrEmpty):
			if err := c.beginHealing(fmt.Errorf("the log is lost: %w", err)); err != nil {
				return nil, nil, 0, err
			}
			return nil, nil, 0, c.needFull(err)
		case !errors.As(err, new(*wal.CorruptionError)):
			return nil, nil, 0, err
		}
		c.logger.Error("the log is damaged and is repaired from the others", "err", err)
		if err = c.repairClosed(ctx, err); err != nil {
			return nil, nil, 0, err
		}
	}
}

// lostTailError says that a log ends before it ended once.
type lostTailError struct {
	segment entry.Index // whose index file says that it was not the last one; 0 when there is none
	text    string
}

func (e *lostTailError) Error() string { return e.text }

// lostTail begins to heal a node whose log has lost its end.
func (c *Cluster) lostTail(lost *lostTailError) error {
	if err := c.beginHealing(lost); err != nil {
		return err
	}
	if lost.segment == 0 {
		return c.needFull(lost)
	}
	// The segment will be written to again: what the file says of it will not be true.
	if err := c.fs.Remove(path.Join(logDir, index.FileName(lost.segment))); err != nil {
		return err
	}
	if err := c.fs.SyncDir(logDir); err != nil {
		return err
	}
	return lost
}

// repairFound repairs what was found damaged while the log was open, where opening it again would not meet it: a snapshot
// covers it.
func (c *Cluster) repairFound(ctx context.Context) error {
	c.mu.Lock()
	damaged := c.damaged
	c.mu.Unlock()
	if !damaged {
		return nil
	}
	if err := c.repairClosed(ctx, nil); err != nil {
		return err
	}
	c.mu.Lock()
	c.damaged = false
	c.mu.Unlock()
	return nil
}

// repairClosed replaces what is damaged in the log, which is not open, by what other nodes have. What cannot be repaired
// without knowing what was acknowledged makes the node heal. cause is why the log could not be opened, nil if it was not
// tried.
func (c *Cluster) repairClosed(ctx context.Context, cause error) error {
	id := logIDOf(c.store.state().LogID)
	_, info, _, err := snapshot.Load(c.fs, snapshotDir, id)
	if err != nil {
		return fmt.Errorf("load a snapshot: %w", err)
	}
	survey, err := wal.TakeSurvey(c.fs, logDir, id, info.Index)
	if err != nil {
		return err
	}
	if survey.Mark != nil {
		if err := wal.DropMark(c.fs, logDir); err != nil {
			return err
		}
	}
	if cause != nil && survey.Intact() {
		// All that is there is good, but it ends before a snapshot does: its end is gone, with whatever came behind.
		if c.store.state().Phase == phaseWhole {
			if err := c.beginHealing(cause); err != nil {
				return err
			}
		}
		return c.needFull(cause)
	}
	for i := range survey.Segments {
		s := &survey.Segments[i]
		switch {
		case s.Intact():
			continue
		case s.Missing && i == 0: // the head, and there is no snapshot that covers it
			if err := c.beginHealing(fmt.Errorf("the log lacks entries %d to %d, and no snapshot covers them", s.First, s.Last)); err != nil {
				return err
			}
			return c.needFull(errLost)
		case s.Sealed:
			err = c.repairRange(ctx, s.First, s.Last, func(first entry.Index, size int64) (*wal.Repair, error) {
				return wal.NewRepair(c.fs, logDir, id, first, size)
			})
			if err == nil {
				err = c.dropIndexes(s.First, s.Last)
			} else if errors.Is(err, errNotSealed) {
				// What follows here was never committed: it is not what the others have there. So the log ends here.
				err = c.cutEnd(id, s)
			} else if errors.Is(err, errDropped) {
				if s.Last <= info.Index {
					continue // it is needed for its records only, and goes once what moved them is applied here, too
				}
				err = c.needFull(err)
			}
		default:
			err = c.repairEnd(ctx, id, s)
		}
		if err != nil {
			return err
		}
		last := s.Last
		if !s.Sealed {
			last = math.MaxUint64
		}
		c.scrubs.foundIn(s.First, last, nil)
	}
	return nil
}

// dropIndexes removes the index files of the segments from first to last, which may have been made of damaged ones. They are
// made again when the log is opened.
func (c *Cluster) dropIndexes(first, last entry.Index) error {
	names, err := c.fs.List(logDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if index.FileName(first) <= name && name <= index.FileName(last) && path.Ext(name) == path.Ext(index.FileName(first)) {
			if err := c.fs.Remove(path.Join(logDir, name)); err != nil {
				return err
			}
		}
	}
	return c.fs.SyncDir(logDir)
}

// repairRange fetches the segments that hold the entries from first to last.
func (c *Cluster) repairRange(ctx context.Context, first, last entry.Index, begin func(first entry.Index, size int64) (*wal.Repair, error)) error {
	var errs []error
	kind := errUnrepaired
	for _, from := range c.others() {
		err := c.repairFrom(ctx, from, first, last, begin)
		if err == nil {
			c.logger.Info("repaired the log", "first", uint64(first), "last", uint64(last), "peer", from)
			return nil
		}
		errs = append(errs, fmt.Errorf("node %d: %w", from, err))
		switch {
		case errors.Is(err, errNotSealed):
			kind = errNotSealed
		case errors.Is(err, errDropped) && kind == errUnrepaired:
			kind = errDropped
		}
	}
	return fmt.Errorf("the log is damaged: entries %d to %d %w: %s", first, last, kind, oneLine(errs))
}

var (
	errUnrepaired = errors.New("cannot be fetched from any node now")
	// errNotSealed: a node knows the entries of a sealed segment to be committed, and has them in another one, or in one
	// that it still writes to. Committed segments are the same on all nodes; so what follows here is not committed.
	errNotSealed = errors.New("are committed, and the segments of the others do not end there")
)

// oneLine joins errors in one line.
func oneLine(errs []error) string {
	list := make([]string, len(errs))
	for i, err := range errs {
		list[i] = err.Error()
	}
	return strings.Join(list, "; ")
}

func (c *Cluster) repairFrom(ctx context.Context, from int, first, last entry.Index, begin func(first entry.Index, size int64) (*wal.Repair, error)) error {
	client := c.client(from, pullTimeout)
	m, err := client.Manifest(ctx)
	if err != nil {
		return err
	}
	next := first
	for i, s := range m.Segments {
		if s.First != next || s.Last > last || i == len(m.Segments)-1 {
			continue
		}
		if err := c.fetchSegment(ctx, client, s.First, s.Last, s.Bytes, begin); err != nil {
			return err
		}
		next = s.Last + 1
	}
	switch {
	case next == last+1:
		return nil
	case next == first && len(m.Segments) > 0 && m.Segments[0].First > first:
		return errDropped
	case next == first && m.Commit >= last:
		return errNotSealed
	}
	return fmt.Errorf("it has no sealed segments for entries %d to %d", next, last)
}

// fetchSegment fetches one sealed segment and puts it in its place.
func (c *Cluster) fetchSegment(ctx context.Context, client catchup.Client, first, last entry.Index, size int64, begin func(first entry.Index, size int64) (*wal.Repair, error)) error {
	r, err := begin(first, size)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := catchup.Segment(ctx, client, first, r.Have(), size, r.Write); err != nil {
		return err
	}
	_, err = r.Finish(last)
	return err
}

// repairEnd repairs the segment in which the log ends. Where good entries follow the damage, and a peer knows that they are
// committed, it has the same bytes up to there. Else nobody knows how far the log reached, or it went another way: it is cut
// before the damage, and the node heals.
func (c *Cluster) repairEnd(ctx context.Context, id entry.LogID, s *wal.SegmentSurvey) error {
	begin := func(size int64) (*wal.Repair, error) { return wal.NewRepair(c.fs, logDir, id, s.First, size) }
	if s.Resume != 0 && s.Err == nil {
		var errs []error
		for _, from := range c.others() {
			err := c.repairEndFrom(ctx, from, s, begin)
			if err == nil {
				c.logger.Info("repaired the end of the log", "first", uint64(s.First), "last", uint64(s.Last), "peer", from)
				return nil
			}
			errs = append(errs, fmt.Errorf("node %d: %w", from, err))
		}
		// Whoever has these entries elsewhere knows that what this node has here was never committed.
		if !errors.Is(errors.Join(errs...), errElsewhere) && !c.allAnswered(errs) {
			return fmt.Errorf("the end of the log is damaged and cannot be fetched from any node now: %s", oneLine(errs))
		}
	}
	return c.cutEnd(id, s)
}

// cutEnd ends the log before the first damage in a segment, and begins to heal.
func (c *Cluster) cutEnd(id entry.LogID, s *wal.SegmentSurvey) error {
	if err := c.beginHealing(fmt.Errorf("the end of the log is damaged behind entry %d", s.Good)); err != nil {
		return err
	}
	if err := c.dropIndexes(s.First, s.Last); err != nil { // it will be written to again
		return err
	}
	if err := wal.Cut(c.fs, logDir, id, s.Good); err != nil {
		c.logger.Error("the end of the log cannot be cut before the damage: all of it is fetched anew", "err", err)
		return c.needFull(err)
	}
	return errLost
}

// allAnswered reports whether no node is missing: who answers without being able to help will not be able to later.
func (c *Cluster) allAnswered(errs []error) bool {
	for _, err := range errs {
		if !errors.Is(err, errNotCommitted) && !errors.Is(err, errDropped) {
			return false
		}
	}
	return true
}

var (
	errNotCommitted = errors.New("it does not know all of it to be committed")
	errDropped      = errors.New("it has dropped that segment, since nothing in it lives")
	// errElsewhere: committed segments are the same on all nodes, so a segment that is not among them is not committed.
	errElsewhere = errors.New("it has committed these entries in another segment")
)

func (c *Cluster) repairEndFrom(ctx context.Context, from int, s *wal.SegmentSurvey, begin func(size int64) (*wal.Repair, error)) error {
	client := c.client(from, pullTimeout)
	m, err := client.Manifest(ctx)
	if err != nil {
		return err
	}
	if m.Commit < s.Last {
		return errNotCommitted
	}
	for _, other := range m.Segments {
		if other.First != s.First {
			continue
		}
		if other.Last < s.Last { // and the entries behind stand in the next
			return errElsewhere
		}
		r, err := begin(other.Bytes)
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := catchup.Segment(ctx, client, s.First, r.Have(), other.Bytes, r.Write); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		_, err = r.Finish(s.Last)
		return err
	}
	switch {
	case len(m.Segments) == 0:
		return errors.New("it has no segments")
	case m.Segments[0].First > s.First:
		return errDropped
	}
	return errElsewhere
}

// bareLife is a life without a log.
func (c *Cluster) bareLife() *Node {
	c.identityMu.Lock()
	id := *c.identity
	c.identityMu.Unlock()
	return c.newLife(&id)
}
