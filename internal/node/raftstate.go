package node

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"sync"

	"example.com/mq/internal/vfs"
)

// The file of what a cluster node has promised, and who it is: docs/format/raft-state.md. It has two slots of the same
// size with the same content, written one after the other, each synced before the next. So whatever a crash tears, and
// whatever single byte rots, one slot is left that holds at least what was spoken of. It is written in place: that needs no
// room on a full disk.
const (
	stateFile    = "raft.state"
	stateTmp     = "raft.state.tmp"
	stateSlot    = 4096 // bytes
	stateHeader  = 24   // magic 8, version 4, length 4, CRC 4, zero 4
	stateMagic   = "mqraft\x00\x00"
	stateVersion = 1
	clusterMax   = 7  // nodes
	noVote       = -1 // nobody was voted for
	stateJSONMax = stateSlot - stateHeader
	stateSlots   = 2
	stateBytes   = stateSlots * stateSlot
)

// phase says what a cluster node may do.
type phase string

const (
	phaseNew      phase = "new"      // it belongs to no cluster yet
	phaseWhole    phase = "whole"    // it may vote and acknowledge
	phaseHealing  phase = "healing"  // it lost what it may have promised, and asks the others
	phaseFetching phase = "fetching" // it has promised anew, and fetches what it may have acknowledged
)

// memberState is what a node remembers of a member, itself included.
type memberState struct {
	NodeID string `json:"node_id"` // 32 hex digits; empty while it is not known
	// Incarnation tells which of two node ids in a member's place is the newer one. All members begin with the time of the
	// founding, in milliseconds, and it rises by one each time that the member heals.
	Incarnation uint64 `json:"incarnation"`
	// Boot counts the starts of the member that were heard of, and Nonce tells two starts with the same number apart: a
	// folder that was put back from a copy has a number that is too low, or another nonce.
	Boot  uint64 `json:"boot"`
	Nonce uint64 `json:"nonce"`
	// Acked is up to where it acknowledged entries to this node, as leader, that are committed. It is noted now and then.
	Acked uint64 `json:"acked"`
}

// raftState is what a cluster node must remember, and never may take back.
type raftState struct {
	Seq     uint64        `json:"seq"` // rises with each write
	NodeID  string        `json:"node_id"`
	LogID   string        `json:"log_id"` // empty while Phase is new
	Self    int           `json:"self"`
	Phase   phase         `json:"phase"`
	Term    uint64        `json:"term"`
	Vote    int           `json:"vote"` // number of the node voted for in Term; -1 for none
	Boot    uint64        `json:"boot"`
	Nonce   uint64        `json:"nonce"`
	Members []memberState `json:"members"` // by number; there are as many as nodes
	// Full says that the log is not what it was any more, and must be fetched from its head on.
	Full bool `json:"full"`
	// Begin is the first entry of the log that a full fetch has begun; 0 for none.
	Begin uint64 `json:"begin"`
}

func (s *raftState) clone() *raftState {
	c := *s
	c.Members = append([]memberState(nil), s.Members...)
	return &c
}

// stateStore keeps a raftState in its file.
type stateStore struct {
	fs vfs.FS

	saving sync.Mutex // one write at a time; held across I/O, guards file
	file   vfs.File

	mu   sync.Mutex // guards the fields below
	kept *raftState // durable; never changed, only replaced
	err  error      // a write failed: what is durable is not known, and nothing may be promised any more
}

// errNoState says that a folder has no raft.state.
var errNoState = errors.New("no " + stateFile)

// openState reads the file. errNoState: there is none. A *stateDamage says that none of its slots is sound.
func openState(fsys vfs.FS) (*stateStore, error) {
	size, err := fsys.Size(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return &stateStore{fs: fsys}, errNoState
	}
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", stateFile, err)
	}
	f, err := fsys.Open(stateFile)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", stateFile, err)
	}
	s := &stateStore{fs: fsys, file: f}
	var newest *raftState
	var bad error
	for i := range int64(stateSlots) {
		buf := make([]byte, min(stateSlot, max(0, size-i*stateSlot)))
		if len(buf) > 0 {
			_, err = f.ReadAt(buf, i*stateSlot)
		}
		if err != nil {
			bad = err
			continue
		}
		one, err := decodeState(buf)
		switch {
		case errors.Is(err, errStateVersion):
			f.Close()
			return nil, fmt.Errorf("%s: %w", stateFile, err)
		case err != nil:
			bad = err
		case newest == nil || one.Seq > newest.Seq:
			newest = one
		}
	}
	if newest == nil {
		f.Close()
		return &stateStore{fs: fsys}, &stateDamage{bad}
	}
	// A process that was killed in the middle of a change may have left it where the next one reads it, and a power cut takes it
	// away. Nobody must hear of it before that cannot be.
	if err := f.Sync(); err != nil {
		f.Close()
		return nil, fmt.Errorf("sync %s: %w", stateFile, err)
	}
	s.kept = newest
	return s, nil
}

// stateDamage says that the file tells nothing any more.
type stateDamage struct{ err error }

func (e *stateDamage) Error() string { return fmt.Sprintf("%s is damaged: %v", stateFile, e.err) }

var errStateVersion = errors.New("unknown version: use the version of mqd that wrote it")

var stateTable = crc32.MakeTable(crc32.Castagnoli)

func (s *raftState) encode() ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", stateFile, err)
	}
	if len(text) > stateJSONMax {
		return nil, fmt.Errorf("encode %s: %d bytes are too many", stateFile, len(text))
	}
	b := make([]byte, stateSlot)
	copy(b, stateMagic)
	binary.LittleEndian.PutUint32(b[8:], stateVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(text)))
	copy(b[stateHeader:], text)
	binary.LittleEndian.PutUint32(b[16:], stateSum(b))
	return b, nil
}

// stateSum is the CRC-32C of a slot without the four bytes that hold it.
func stateSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:16], stateTable), stateTable, b[20:])
}

func decodeState(b []byte) (*raftState, error) {
	if len(b) != stateSlot {
		return nil, errors.New("it is cut off")
	}
	if string(b[:8]) != stateMagic {
		return nil, errors.New("it does not begin with its magic")
	}
	if stateSum(b) != binary.LittleEndian.Uint32(b[16:]) {
		return nil, errors.New("its checksum is wrong")
	}
	if binary.LittleEndian.Uint32(b[8:]) != stateVersion {
		return nil, errStateVersion
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if n > stateJSONMax {
		return nil, errors.New("it holds an impossible length")
	}
	s := new(raftState)
	if err := json.Unmarshal(b[stateHeader:stateHeader+int(n)], s); err != nil {
		return nil, err
	}
	return s, s.check()
}

// check says what is impossible.
func (s *raftState) check() error {
	ids := []string{s.NodeID}
	if s.LogID != "" || s.Phase != phaseNew {
		ids = append(ids, s.LogID)
	}
	for _, m := range s.Members {
		if m.NodeID != "" {
			ids = append(ids, m.NodeID)
		}
	}
	for _, id := range ids {
		if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
			return fmt.Errorf("%q is not 32 hex digits", id)
		}
	}
	switch s.Phase {
	case phaseNew, phaseWhole, phaseHealing, phaseFetching:
	default:
		return fmt.Errorf("there is no phase %q", s.Phase)
	}
	if n := len(s.Members); n == 0 || n > clusterMax || s.Self < 0 || s.Self >= n || s.Vote < noVote || s.Vote >= n {
		return fmt.Errorf("node %d of %d with a vote for %d cannot be", s.Self, n, s.Vote)
	}
	return nil
}

// state returns what is durable. It must not be changed.
func (s *stateStore) state() *raftState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// change makes a change durable before it returns. A change that returns false is none. After an error nothing may be
// promised any more by this process: what is durable is not known.
func (s *stateStore) change(edit func(*raftState) bool) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	next, err := new(raftState), s.err
	if s.kept != nil {
		next = s.kept.clone()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if !edit(next) {
		return nil
	}
	next.Seq++
	if err = s.write(next); err != nil {
		err = fmt.Errorf("write %s: %w", stateFile, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		s.kept = next
	}
	return err
}

// write puts a state into both slots, the first one durably before the second one is touched. Called with saving held.
func (s *stateStore) write(next *raftState) error {
	if err := next.check(); err != nil {
		return fmt.Errorf("BUG: %w", err)
	}
	slot, err := next.encode()
	if err != nil {
		return err
	}
	if s.file == nil {
		err := replaceFile(s.fs, stateTmp, stateFile, func(f vfs.File) error {
			_, err := f.WriteAt(append(slot, slot...), 0)
			return err
		})
		if err != nil {
			return err
		}
		s.file, err = s.fs.Open(stateFile)
		return err
	}
	for i := range int64(stateSlots) {
		if _, err := s.file.WriteAt(slot, i*stateSlot); err != nil {
			return err
		}
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	return nil
}

func (s *stateStore) close() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	s.mu.Lock()
	if s.err == nil {
		s.err = errors.New("the node is closed")
	}
	s.mu.Unlock()
	return f.Close()
}
