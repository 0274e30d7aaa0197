package cluster

import (
	"math"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/entry"
)

// window is the part of the log that raft sees: its newest entries, in memory. It implements raft.Storage. It runs ahead
// of the log on disk: an entry is here as soon as raft has handed it out to be written. Guarded by Role.mu.
type window struct {
	hard   pb.HardState // as it was at the start
	voters []uint64

	base     uint64 // index of the entry before the first one
	baseTerm uint64
	// list holds the entries from base+1 on. Invariant: dense, terms never fall.
	list []*pb.Entry
	// ends[i] counts the bytes of all entries up to list[i], those that were trimmed too.
	ends  []int64
	start int64 // what ends was before list[0]
}

var _ raft.Storage = (*window)(nil)

// InitialState implements raft.Storage.
func (w *window) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return &w.hard, &pb.ConfState{Voters: w.voters}, nil
}

// FirstIndex implements raft.Storage.
func (w *window) FirstIndex() (uint64, error) { return w.base + 1, nil }

// LastIndex implements raft.Storage.
func (w *window) LastIndex() (uint64, error) { return w.last(), nil }

func (w *window) last() uint64 { return w.base + uint64(len(w.list)) }

// Term implements raft.Storage.
func (w *window) Term(i uint64) (uint64, error) {
	switch {
	case i < w.base:
		return 0, raft.ErrCompacted
	case i == w.base:
		return w.baseTerm, nil
	case i > w.last():
		return 0, raft.ErrUnavailable
	}
	return w.at(i).GetTerm(), nil
}

// at returns an entry that is in the window.
func (w *window) at(i uint64) *pb.Entry { return w.list[i-w.base-1] }

// Entries implements raft.Storage. The slice is a copy: the window overwrites its own.
func (w *window) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	switch {
	case lo <= w.base:
		return nil, raft.ErrCompacted
	case hi > w.last()+1:
		return nil, raft.ErrUnavailable
	}
	from, n := lo-w.base-1, hi-lo
	before := w.before(from)
	for n > 1 && uint64(w.ends[from+n-1]-before) > maxSize {
		if n > 64 && uint64(w.ends[from+n/2-1]-before) > maxSize {
			n /= 2
			continue
		}
		n--
	}
	list := make([]*pb.Entry, n)
	copy(list, w.list[from:from+n])
	return list, nil
}

// before counts the bytes of all entries before list[i].
func (w *window) before(i uint64) int64 {
	if i == 0 {
		return w.start
	}
	return w.ends[i-1]
}

// Snapshot implements raft.Storage. There is none: what raft takes for one says where the window begins, and is sent as
// a mere signal.
func (w *window) Snapshot() (*pb.Snapshot, error) {
	return &pb.Snapshot{Metadata: &pb.SnapshotMetadata{
		Index: new(w.base), Term: new(w.baseTerm), ConfState: &pb.ConfState{Voters: w.voters},
	}}, nil
}

// append adds entries, in place of those from the first one's index on.
func (w *window) append(list []*pb.Entry) {
	if len(list) == 0 {
		return
	}
	keep := list[0].GetIndex() - w.base - 1
	clear(w.list[keep:])
	w.list, w.ends = w.list[:keep], w.ends[:keep]
	sum := w.before(keep)
	for _, e := range list {
		sum += int64(len(e.GetData()))
		w.list = append(w.list, e)
		w.ends = append(w.ends, sum)
	}
}

// grow notes that the entry at index has got n bytes, and had none.
func (w *window) grow(index uint64, n int) {
	if index <= w.base {
		return
	}
	for i := index - w.base - 1; i < uint64(len(w.ends)); i++ {
		w.ends[i] += int64(n)
	}
}

// trim forgets entries up to index, the oldest first, as long as there are more than limit bytes.
func (w *window) trim(index uint64, limit int64) {
	if len(w.list) == 0 || w.ends[len(w.ends)-1]-w.start <= limit {
		return
	}
	n := 0
	for n < len(w.list) && w.base+uint64(n)+1 <= index && w.ends[len(w.ends)-1]-w.before(uint64(n)) > limit {
		n++
	}
	if n == 0 {
		return
	}
	w.start = w.ends[n-1]
	w.base, w.baseTerm = w.base+uint64(n), w.list[n-1].GetTerm()
	clear(w.list[:n])
	w.list, w.ends = w.list[n:], w.ends[n:]
}

// beyond counts the entries after index, and their bytes.
func (w *window) beyond(index entry.Index) (entries int, bytes int64) {
	if uint64(index) >= w.last() {
		return 0, 0
	}
	from := uint64(0)
	if uint64(index) > w.base {
		from = uint64(index) - w.base
	}
	return len(w.list) - int(from), w.ends[len(w.ends)-1] - w.before(from)
}

const noLimit = math.MaxUint64
