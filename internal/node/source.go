package node

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"example.com/mq/internal/catchup"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication/cluster"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// noLog is the id of no log.
var noLog entry.LogID

// source is what a cluster node shows to the others. It implements catchup.Source.
type source struct{ c *Cluster }

var _ catchup.Source = (*source)(nil)

// Introduce implements catchup.Source.
func (s *source) Introduce(from int, in *catchup.Introduction) catchup.Introduced {
	c := s.c
	verdict, objection := c.judge(from, in)
	out := catchup.Introduced{Introduction: c.introduction(), Leader: -1, Verdict: verdict, Objection: objection, Acked: c.ackedBy(from)}
	if role := c.role.Load(); role != nil {
		info := role.Info()
		out.Role, out.Leader, out.Commit = info.Role, info.Leader, info.Commit
		out.Term = max(out.Term, info.Term)
	}
	if st := c.store.state(); st.Phase != phaseNew {
		out.Seen = st.Members[from].Incarnation
		out.Members = make([][16]byte, len(st.Members))
		for i, m := range st.Members {
			out.Members[i] = nodeID(m.NodeID)
		}
	}
	return out
}

// Form implements catchup.Source.
func (s *source) Form(_ int, f *catchup.Formation) error {
	c := s.c
	st := c.store.state()
	c.identityMu.Lock()
	holds := c.identity.Ready && c.identity.logID() != f.LogID
	c.identityMu.Unlock()
	switch {
	case st.Phase != phaseNew && logIDOf(st.LogID) == f.LogID && len(f.Members) == len(st.Members) && f.Members[st.Self] == nodeID(st.NodeID):
		return nil // it has asked meanwhile
	case st.Phase != phaseNew:
		return errors.New("this node is a member of a cluster already")
	case f.Fingerprint != c.print || len(f.Members) != len(st.Members):
		return errors.New("this node was given other -raft-peers")
	case f.Members[st.Self] != nodeID(st.NodeID):
		return errors.New("the member in this place is another node")
	case holds:
		return errors.New("this node holds another log")
	}
	return c.adopt(f.LogID, f.Members, f.Incarnation, phaseFetching)
}

// Standing implements catchup.Source.
func (s *source) Standing() catchup.Standing {
	c := s.c
	st := c.store.state()
	out := catchup.Standing{LogID: logIDOf(st.LogID), Term: entry.Term(st.Term)}
	if role := c.role.Load(); role != nil {
		info := role.Info()
		out.Term, out.Commit = max(out.Term, info.Term), info.Commit
		out.Leader = info.Role == cluster.RoleLeader && !info.Stuck
	} else if n := c.life.Load(); n != nil {
		out.Commit = n.committed
	}
	return out
}

// Log implements catchup.Source.
func (s *source) Log() *wal.Log {
	if n := s.c.life.Load(); n != nil && n.log.Err() == nil {
		return n.log
	}
	return nil
}

// Snapshots implements catchup.Source.
func (s *source) Snapshots() ([]catchup.SnapshotInfo, error) {
	names, err := s.c.fs.List(snapshotDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []catchup.SnapshotInfo
	for i := len(names) - 1; i >= 0; i-- { // sorted, and so are the numbers in them
		digits, ok := strings.CutSuffix(names[i], ".snap")
		at, err := strconv.ParseUint(digits, 10, 64)
		if !ok || err != nil {
			continue
		}
		bytes, err := s.c.fs.Size(path.Join(snapshotDir, names[i]))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, catchup.SnapshotInfo{Index: entry.Index(at), Bytes: bytes})
	}
	return list, nil
}

// OpenSnapshot implements catchup.Source.
func (s *source) OpenSnapshot(at entry.Index) (vfs.File, int64, error) {
	return snapshot.Open(s.c.fs, snapshotDir, at)
}

// StateHash implements catchup.Source.
func (s *source) StateHash(at entry.Index) ([32]byte, bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	hash, ok := s.c.checks.known[at]
	return hash, ok
}
