package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// cutDir holds what was cut off the log of a node that came back as a follower.
const cutDir = "cut"

// pairConfig is what both roles of a pair need.
func (n *Node) pairConfig() pair.Config {
	return pair.Config{
		Self: n.identity.nodeID(), Promises: n.promises, Clock: n.cfg.Clock, Timeout: n.cfg.ReplicaTimeout,
		Logger: n.logger, Observer: n.cfg.Pair, Fatal: n.cfg.Fatal,
	}
}

// recoverLeader is Recover of a leader. It serves what the log shows to be on both nodes; the rest waits for the
// follower.
func (n *Node) recoverLeader() error {
	p := n.promises.Promise()
	fold, committed, err := n.load(p.Alone || p.Epoch == 0)
	if err != nil {
		return err
	}
	if term := n.log.Tip().Term; term > n.cfg.Epoch {
		return fmt.Errorf("the log has entries of epoch %d: -epoch %d is too low; nothing acknowledged was changed", term, n.cfg.Epoch)
	}
	tail, err := n.tail(committed)
	if err != nil {
		return err
	}
	if err := n.promote(); err != nil {
		return err
	}
	return n.serve(fold, func(b *broker.Broker) (replication.Role, error) {
		b.Unsettled(tail)
		l := pair.NewLeader(pair.LeaderConfig{
			Config: n.pairConfig(), LogID: n.identity.logID(), Epoch: n.cfg.Epoch, Log: n.log, Applier: b,
			Committed: committed, History: n, Dial: n.cfg.Dial,
		})
		n.leader.Store(l)
		return l, nil
	})
}

// takingOver is what a node says while promote waits.
const takingOver = "taking over: it waits until the leader before can acknowledge nothing more, and leads then"

// promote promises this node's epoch. If another node led before, that one may acknowledge until its lease has
// ended, which this node may have prolonged until the process before this one ended: so it waits that long.
func (n *Node) promote() error {
	self, p := n.identity.nodeID(), n.promises.Promise()
	if p.Epoch == n.cfg.Epoch && p.Leader == self {
		return nil
	}
	if !p.Leader.IsZero() && p.Leader != self {
		left := p.Wait() - (n.cfg.Clock.Monotonic() - n.opened)
		n.logger.Info("taking over: waiting until the lease of the leader before has ended", "leader", p.Leader.String(), "epoch", uint64(p.Epoch), "wait", left.String())
		timer := n.cfg.Clock.NewTimer(left)
		defer timer.Stop()
		n.waiting.Store(true)
		defer n.waiting.Store(false)
		select {
		case <-timer.C():
		case <-n.stop:
			return ErrInterrupted
		}
	}
	p.Alone = p.Alone || p.Epoch == 0
	p.Epoch, p.Leader, p.Lease = n.cfg.Epoch, self, 0
	if err := n.promises.SetPromise(p); err != nil {
		return err
	}
	n.logger.Info("this node leads", "epoch", uint64(n.cfg.Epoch))
	return nil
}

// tail returns what the log holds behind an entry.
func (n *Node) tail(committed entry.Index) (broker.Tail, error) {
	t := broker.Tail{Topics: make(map[string]struct{}), Groups: make(map[broker.GroupName]struct{}), Retained: make(map[string]struct{}), Kept: make(map[string]struct{})}
	c := n.log.NewCursor(committed + 1)
	defer c.Close()
	f := new(wal.Frames)
	for last := n.log.Last(); committed < last; committed = f.Last() {
		if _, err := c.Next(f, last, applyBytes); err != nil {
			return t, fmt.Errorf("read the end of the log: %w", err)
		}
		for i := range f.Len() {
			e := f.Entry(i)
			if err := addToTail(&t, &e); err != nil {
				return t, fmt.Errorf("entry %d: %w", e.Index, err)
			}
		}
	}
	return t, nil
}

func addToTail(t *broker.Tail, e *entry.Entry) error {
	switch e.Kind {
	case fact.KindAppended:
		a, err := fact.DecodeAppended(e.Payload)
		if err != nil {
			return err
		}
		t.Topics[string(a.Topic)] = struct{}{}
	case fact.KindKept:
		k, err := fact.DecodeKept(e.Payload)
		if err != nil {
			return err
		}
		t.Kept[string(k.Topic)] = struct{}{}
	case fact.KindTopicDeleted:
		d, err := fact.DecodeTopicDeleted(e.Payload)
		if err != nil {
			return err
		}
		t.Retained[string(d.Topic)] = struct{}{}
	case fact.KindGroupDeleted:
		d, err := fact.DecodeGroupDeleted(e.Payload)
		if err != nil {
			return err
		}
		t.Groups[broker.GroupName{Topic: string(d.Topic), Group: string(d.Group)}] = struct{}{}
	case fact.KindGroupMoved:
		m, err := fact.DecodeGroupMoved(e.Payload)
		if err != nil {
			return err
		}
		t.Groups[broker.GroupName{Topic: string(m.Topic), Group: string(m.Group)}] = struct{}{}
	case fact.KindTopicRetained:
		r, err := fact.DecodeTopicRetained(e.Payload)
		if err != nil {
			return err
		}
		t.Retained[string(r.Topic)] = struct{}{}
	case fact.KindMarker, fact.KindChecked: // they change nothing
	default:
		t.Other = true
	}
	return nil
}

// recoverFollower is Recover of a follower.
func (n *Node) recoverFollower() error {
	n.replica = newReplica(n)
	p := n.promises.Promise()
	var committed entry.Index
	switch id := n.identity; {
	case id.LogID == "":
		n.logger.Info("this follower is empty and waits for its leader", "node_id", id.NodeID)
	case p.First != 0:
		committed = p.First - 1
		if err := n.openUnfinished(p.First); err != nil {
			return err
		}
		if n.log != nil {
			committed = max(committed, n.unfinishedCommit)
		}
	default:
		fold, to, err := n.load(p.Alone || p.Epoch == 0) // what was written alone was acknowledged
		if err != nil {
			return err
		}
		committed = to
		if err := n.follow(fold); err != nil {
			return err
		}
	}
	n.follower.Store(pair.NewFollower(pair.FollowerConfig{Config: n.pairConfig(), Replica: n.replica, Committed: committed}))
	return nil
}

// openUnfinished opens the log of a full sync that was interrupted. One that cannot be opened begins anew: nothing in it
// was ever needed.
func (n *Node) openUnfinished(first entry.Index) error {
	id := n.identity.logID()
	cfg := n.logConfig(id)
	cfg.From = first
	log, recovered, err := wal.Open(cfg, first-1, nil)
	var corrupt *wal.CorruptionError
	switch {
	case errors.Is(err, wal.ErrEmpty), errors.As(err, &corrupt):
		n.logger.Warn("an interrupted full sync left no log that can be used: it begins anew", "err", err)
		return nil
	case err != nil:
		return err
	}
	n.log, n.unfinishedCommit = log, recovered.Commit
	n.index = n.newIndex(id)
	return nil
}

// follow begins to serve as a follower that has a whole log.
func (n *Node) follow(fold *state.State) error {
	return n.serve(fold, func(b *broker.Broker) (replication.Role, error) {
		n.replica.begin(b)
		return nil, nil
	})
}

// becomeWhole reads the fold once the history is there, and begins to apply. Entries go on coming meanwhile.
func (n *Node) becomeWhole(committed entry.Index) error {
	id := n.identity.logID()
	fold, info, bad, err := snapshot.Load(n.fs, snapshotDir, id)
	if err != nil {
		return fmt.Errorf("load a snapshot: %w", err)
	}
	for _, b := range bad {
		n.logger.Error("a snapshot is damaged and was passed over", "file", b.Name, "err", b.Err)
	}
	if first := n.log.Segments()[0].First; first > fold.Applied()+1 {
		return fmt.Errorf("the log begins with entry %d, and the snapshot ends at %d", first, fold.Applied())
	}
	n.index = n.newIndex(id)
	n.keeper = newKeeper(n, info.Index)
	committed = max(committed, fold.Applied(), n.log.Segments()[0].First-1)
	committed = min(committed, n.log.Durable())
	if err := n.replay(fold, committed); err != nil {
		return err
	}
	if err := n.fillIndex(committed, true); err != nil {
		return err
	}
	return n.follow(fold)
}

// failFollower stops the follower: its log or its fold can no longer be trusted.
func (n *Node) failFollower(err error) {
	if f := n.follower.Load(); f != nil {
		f.Fail(err)
	}
}

// DialConn makes of a function that connects to the follower what Config.Dial wants.
func DialConn(dial func(context.Context) (net.Conn, error)) pair.Dial {
	return func(ctx context.Context) (pair.Link, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return pair.NewWire(conn), nil
	}
}

// ServePeer holds a session with the other node of the pair, which has connected. It returns when the session has
// ended.
func (n *Node) ServePeer(conn net.Conn) { n.ServeLink(pair.NewWire(conn)) }

// ServeLink is ServePeer over any link.
func (n *Node) ServeLink(link pair.Link) {
	if f := n.follower.Load(); f != nil {
		f.Serve(link)
		return
	}
	if l := n.leader.Load(); l != nil {
		l.Serve(link)
		return
	}
	link.Close() // not ready
}

// Hold implements pair.History.
func (n *Node) Hold() (pair.Snapshot, func(), error) {
	k := n.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	var s pair.Snapshot
	var file vfs.File
	if newest := entry.Index(k.newest.Load()); newest > 0 {
		f, bytes, err := snapshot.Open(n.fs, snapshotDir, newest)
		if err != nil {
			return s, nil, err
		}
		file = f
		s = pair.Snapshot{Index: newest, Bytes: bytes, File: f}
	}
	k.held++
	return s, func() {
		if file != nil {
			file.Close()
		}
		k.mu.Lock()
		k.held--
		k.mu.Unlock()
		k.lookAgain()
	}, nil
}

// saveCut writes the entries after one to a side file, a line each, so that an operator can look at them, and publish them
// again. It is durable when this returns.
func (n *Node) saveCut(after entry.Index) error {
	// The note of a clean stop would make the missing end look like damage.
	if proven, err := ReadClean(n.fs); err != nil || proven > after {
		if err := writeCleanAt(n.fs, after); err != nil {
			return err
		}
	}
	if err := n.fs.Mkdir(cutDir); err != nil {
		return fmt.Errorf("make folder %s: %w", cutDir, err)
	}
	if err := n.fs.SyncDir("."); err != nil {
		return fmt.Errorf("sync the data folder: %w", err)
	}
	last := n.log.Last()
	name := path.Join(cutDir, fmt.Sprintf("%d-%d-epoch-%d.jsonl", uint64(after+1), uint64(last), n.promises.Promise().Epoch))
	return replaceFile(n.fs, name+".tmp", name, func(f vfs.File) error {
		w := bufio.NewWriterSize(&fileWriter{f: f}, 64<<10)
		if err := n.writeEntries(w, after, last); err != nil {
			return err
		}
		return w.Flush()
	})
}

// fileWriter writes a file from its beginning on.
type fileWriter struct {
	f  vfs.File
	at int64
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.at)
	w.at += int64(n)
	return n, err
}

// cutEntry is a line of a side file.
type cutEntry struct {
	Index       uint64  `json:"index"`
	Term        uint64  `json:"term"`
	Kind        string  `json:"kind,omitempty"` // empty for a record
	Topic       string  `json:"topic,omitempty"`
	Group       string  `json:"group,omitempty"`
	Offset      *uint64 `json:"offset,omitempty"`
	Key         []byte  `json:"key,omitempty"`
	Value       *[]byte `json:"value,omitempty"`
	RequestID   string  `json:"request_id,omitempty"`
	NextOffset  *uint64 `json:"next_offset,omitempty"`
	StartOffset *uint64 `json:"start_offset,omitempty"`
	WindowMS    *int64  `json:"request_id_window_ms,omitempty"`
	// Of settings: 0 for the default, -1 for no limit.
	RetentionMS      *int64 `json:"retention_ms,omitempty"`
	RetentionBytes   *int64 `json:"retention_bytes,omitempty"`
	RetentionRecords *int64 `json:"retention_records,omitempty"`
	TimestampMS      int64  `json:"timestamp_ms"`
}

func (n *Node) writeEntries(w io.Writer, after, last entry.Index) error {
	c := n.log.NewCursor(after + 1)
	defer c.Close()
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	f := new(wal.Frames)
	for at := after; at < last; at = f.Last() {
		if _, err := c.Next(f, last, applyBytes); err != nil {
			return fmt.Errorf("read what must be cut: %w", err)
		}
		for i := range f.Len() {
			e := f.Entry(i)
			if err := writeEntry(lines, &e); err != nil {
				return fmt.Errorf("write entry %d: %w", e.Index, err)
			}
		}
	}
	return nil
}

func writeEntry(lines *json.Encoder, e *entry.Entry) error {
	line := cutEntry{Index: uint64(e.Index), Term: uint64(e.Term), TimestampMS: e.TimeMS}
	switch e.Kind {
	case fact.KindAppended:
		a, err := fact.DecodeAppended(e.Payload)
		if err != nil {
			return err
		}
		line.Topic, line.RequestID = string(a.Topic), string(a.RequestID)
		for offset := uint64(a.Base); ; offset++ {
			r, ok, err := a.Next()
			if err != nil || !ok {
				return err
			}
			value := append([]byte{}, r.Value...)
			line.Offset, line.Key, line.Value = &offset, r.Key, &value
			if err := lines.Encode(&line); err != nil {
				return err
			}
		}
	case fact.KindGroupMoved:
		m, err := fact.DecodeGroupMoved(e.Payload)
		if err != nil {
			return err
		}
		next := uint64(m.Next)
		line.Kind, line.Topic, line.Group, line.NextOffset = "group", string(m.Topic), string(m.Group), &next
	case fact.KindTopicRetained:
		t, err := fact.DecodeTopicRetained(e.Payload)
		if err != nil {
			return err
		}
		start := uint64(t.Start)
		line.Kind, line.Topic, line.StartOffset = "retain", string(t.Topic), &start
	case fact.KindKept:
		k, err := fact.DecodeKept(e.Payload)
		if err != nil {
			return err
		}
		// The records stand in the log before, too: only where they stood is lost with this entry.
		base := uint64(k.Base)
		line.Kind, line.Topic, line.Offset = "kept", string(k.Topic), &base
	case fact.KindTopicConfigured:
		t, err := fact.DecodeTopicConfigured(e.Payload)
		if err != nil {
			return err
		}
		ms, bytes, records := int64(t.Retention.MS), int64(t.Retention.Bytes), int64(t.Retention.Records)
		line.Kind, line.Topic, line.RetentionMS, line.RetentionBytes, line.RetentionRecords = "configure", string(t.Topic), &ms, &bytes, &records
	case fact.KindTopicDeleted:
		t, err := fact.DecodeTopicDeleted(e.Payload)
		if err != nil {
			return err
		}
		line.Kind, line.Topic = "delete", string(t.Topic)
	case fact.KindGroupDeleted:
		g, err := fact.DecodeGroupDeleted(e.Payload)
		if err != nil {
			return err
		}
		line.Kind, line.Topic, line.Group = "delete_group", string(g.Topic), string(g.Group)
	case fact.KindRestored:
		floor, err := fact.DecodeRestored(e.Payload)
		if err != nil {
			return err
		}
		next := uint64(floor)
		line.Kind, line.NextOffset = "restored", &next
	case fact.KindSettings:
		ms, err := fact.DecodeSettings(e.Payload)
		if err != nil {
			return err
		}
		line.Kind, line.WindowMS = "settings", &ms
	default:
		line.Kind = "marker"
	}
	return lines.Encode(&line)
}

// PairStatus tells how the pair stands, as this node sees it.
func (n *Node) PairStatus() api.PairStatus {
	n.identityMu.Lock()
	id := n.identity
	n.identityMu.Unlock()
	s := api.PairStatus{Role: string(n.cfg.Role), NodeID: id.NodeID, LogID: id.LogID, State: string(pair.StateDisconnected), Reason: "the node is starting"}
	var p pair.Status
	l, f := n.leader.Load(), n.follower.Load()
	switch {
	case l != nil:
		p = l.Pair()
		s.Peer.Address = n.cfg.Replica
	case f != nil:
		p = f.Pair()
	default:
		s.Epoch = uint64(n.promises.Promise().Epoch)
		s.Peer.LastContactMS = -1
		s.Peer.Address = n.cfg.Replica
		if n.waiting.Load() {
			s.Reason = takingOver
			s.LastIndex, s.DurableIndex = uint64(n.log.Last()), uint64(n.log.Durable())
		}
		return s
	}
	s.Epoch, s.State, s.Reason, s.Writable = uint64(p.Epoch), string(p.State), p.Reason, p.Writable
	s.CommittedIndex, s.DurableIndex, s.LastIndex = uint64(p.Committed), uint64(p.Durable), uint64(p.Durable)
	if b := n.broker.Load(); b != nil {
		s.AppliedIndex, s.LastIndex = uint64(b.Applied()), uint64(n.log.Last())
	}
	if !p.Peer.IsZero() {
		s.Peer.NodeID = p.Peer.String()
	}
	s.Peer.DurableIndex, s.Peer.AppliedIndex = uint64(p.PeerDurable), uint64(p.PeerApplied)
	if behind, ahead := s.Peer.DurableIndex, s.DurableIndex; l != nil && ahead > behind {
		s.Peer.LagEntries = ahead - behind
	} else if f != nil && behind > ahead {
		s.Peer.LagEntries = behind - ahead
	}
	s.Peer.LastContactMS = -1
	if !p.Contact.IsZero() {
		s.Peer.LastContactMS = max(0, n.cfg.Clock.Now().Sub(p.Contact).Milliseconds())
	}
	if p.SyncTotal > 0 {
		s.Sync = &api.PairSync{DoneBytes: p.SyncDone, TotalBytes: p.SyncTotal}
	}
	return s
}
