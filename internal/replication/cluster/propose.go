package cluster

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"example.com/mq/internal/replication"
	"example.com/mq/internal/wal"
)

// Propose implements replication.Role. The entries are written to the log first, then given to raft, and sent to the
// others; they are synced here while they are on their way. So each must get the index and the term in raft that it has
// in the log:
//
//  1. Whoever holds tail is the only one to add to raft's log while this node leads.
//  2. Should the lead be lost while the entries are written, raft does not take them. They are cut from the log again before
//     anything else is written. Who catches up may have read them by then, so Follow tells that their outcome is unknown. That
//     does no harm, as this node never leads in that term again. So nothing else may cut them: the lead is handed over only
//     when they are given.
func (r *Role) Propose(f *wal.Frames) error {
	err := r.propose(f)
	r.advance()
	return err
}

func (r *Role) propose(f *wal.Frames) error {
	r.tail.Lock()
	defer r.tail.Unlock()
	if err := r.cfg.Log.Err(); err != nil { // it may have failed by itself, while it prepared a segment
		r.failDisk(err)
	}
	r.mu.Lock()
	err, waiting := r.admit(f), len(r.queue) > 0
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if waiting { // something else is not written yet, and comes first
		if err := r.drainAll(); err != nil {
			return r.diskError(err)
		}
	}
	if err := r.accept(f); err != nil {
		return r.diskError(err)
	}
	r.send()
	// From here on raft has f. That there is no room is said of what another leader has sent meanwhile, and waits.
	if err := r.drainAll(); err != nil && !errors.Is(err, wal.ErrFull) {
		return r.diskError(err)
	}
	return nil
}

// diskError makes an error final, unless it says that nothing was done.
func (r *Role) diskError(err error) error {
	for _, harmless := range []error{wal.ErrFull, replication.ErrUnavailable, replication.ErrStopped, replication.ErrFailedBefore} {
		if errors.Is(err, harmless) {
			return err
		}
	}
	r.failDisk(err)
	return err
}

// admit returns why f is not taken, or nil. Called with mu held.
func (r *Role) admit(f *wal.Frames) error {
	if err := r.usable(); err != nil {
		return err
	}
	reason := ""
	entries, bytes := r.window.beyond(r.commit)
	switch {
	case r.led == 0 || r.led != r.leading:
		reason = r.whyNot()
	case r.resumed != r.led:
		reason = "this node has just begun to lead"
	case r.transferee != NoNode:
		reason = fmt.Sprintf("the lead is being handed over to node %d", r.transferee)
	case r.stalled.Load():
		reason = "the disk does not answer"
	case entries > 0 && (bytes+int64(f.Bytes()) > uncommittedBytesMax || entries+f.Len() > uncommittedEntriesMax):
		reason = fmt.Sprintf("%d entries wait for a majority of the nodes", entries)
	case !f.Reserve && r.mostAreFull():
		return fmt.Errorf("%w, on so many nodes that no majority has room", wal.ErrFull)
	default:
		return nil
	}
	return &replication.UnavailableError{Reason: reason}
}

// mostAreFull reports whether the nodes that are in touch would be a majority, if only the disks of some were not full. What
// they cannot take would stand in the way of the small facts that give room back. Called with mu held, by a leader.
func (r *Role) mostAreFull() bool {
	if r.cfg.Nodes == 1 {
		return false // the log knows better
	}
	there, room := 1, 1
	if r.cfg.Full() {
		room = 0
	}
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		n := nodeOf(id)
		if n == r.cfg.Self || !pr.RecentActive {
			return
		}
		there++
		if !r.peers[n].full {
			room++
		}
	})
	return room <= r.cfg.Nodes/2 && there > r.cfg.Nodes/2
}

// accept writes f to the log and gives it to raft. Called with tail held.
func (r *Role) accept(f *wal.Frames) error {
	log := r.cfg.Log
	last := log.Last()
	r.mu.Lock()
	err, term, commit := r.admit(f), r.leading, min(max(r.commit, r.disk.proven), last)
	if err == nil && uint64(last) != r.window.last() { // the lead was lost and won again, and what begins the term comes first
		err = &replication.UnavailableError{Reason: "this node is about to lead"}
	}
	r.giving = err == nil
	r.mu.Unlock()
	if err != nil {
		return err
	}
	done := r.io.begin()
	_, err = log.Append(f, term, commit)
	done()
	if err != nil {
		r.mu.Lock()
		r.given()
		r.mu.Unlock()
		return err
	}
	r.mu.Lock()
	err = r.usable()
	if err == nil && r.leading == term {
		err = r.guard(func() error { return r.give(f) })
		r.given()
		r.mu.Unlock()
		if err == nil {
			r.disk.note(f)
		}
		return err
	}
	r.given()
	r.mu.Unlock()
	done = r.io.begin()
	defer done()
	if cut := log.Truncate(last); cut != nil {
		return fmt.Errorf("cut what raft did not take: %w", cut)
	}
	return err
}

// given hands the lead over, if that had to wait. Called with mu held.
func (r *Role) given() {
	later := r.later
	r.giving, r.later = false, NoNode
	if later == NoNode {
		return
	}
	r.transferee = NoNode
	if r.leading != 0 && r.usable() == nil {
		_ = r.guard(func() error { // the library finds nothing wrong with it
			r.handTo(later)
			r.ready()
			return nil
		})
	}
	r.broadcast() // if it did not begin
}

// give gives raft what is in the log. Called with mu held.
func (r *Role) give(f *wal.Frames) error {
	place, raw := r.cfg.Log.Place(f), f.Raw()
	list := make([]*pb.Entry, f.Len())
	entries := make([]pb.Entry, f.Len())
	for i := range list {
		p := f.Position(i)
		from := p.Offset - place.Offset
		entries[i].Data = raw[from : from+p.Length : from+p.Length] // which the library copies
		list[i] = &entries[i]
	}
	if f.First() == place.Segment {
		entries[0].Data = appendExtra(entries[0].Data, place)
	}
	// Each call sends one message to each node at once, so a large proposal is given in pieces of one message.
	for len(list) > 0 {
		n, bytes := 1, len(list[0].Data)
		for n < len(list) && bytes+len(list[n].Data) <= messageBytes/2 {
			bytes += len(list[n].Data)
			n++
		}
		err := r.node.Step(&pb.Message{Type: pb.MsgProp.Enum(), From: new(idOf(r.cfg.Self)), Entries: list[:n]})
		if err != nil {
			return fmt.Errorf("BUG: cluster: raft does not take entries up to %d, which are in the log: %w", f.Last(), err)
		}
		list = list[n:]
	}
	r.ready()
	if last := r.window.last(); last != uint64(f.Last()) {
		return fmt.Errorf("BUG: cluster: raft has entry %d last, and the log entry %d", last, f.Last())
	}
	return nil
}
