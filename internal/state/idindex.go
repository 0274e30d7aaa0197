package state

import "encoding/binary"

// idIndex finds entries of the queue of request ids by key. It is 256 hash tables with linear probing; one
// grows at a time, so that no publish waits for all of it to be moved.
//
// A slot is 8 bytes: a tag, which is 32 bits of the key's hash, in the high half, and the low 32 bits of the
// entry's number in the low half. The tag says where a slot belongs, so moving slots around needs no look at
// the entries. A tag is odd, so a slot in use is never 0. Tables are 58 to 88 % full while they grow: with
// 48 bytes for the entry that makes 57 to 62 bytes per remembered request id.
type idIndex struct {
	shards [256]idShard
}

type idShard struct {
	slots []uint64 // 0 is free. Invariant: at least one is free, or there are none at all.
	used  int
}

const idShardMin = 8 // slots of the smallest table

// shard returns the table that a key belongs to, and its tag there. The key is a hash already.
func (x *idIndex) shard(key *idKey) (*idShard, uint32) {
	return &x.shards[key[0]], binary.LittleEndian.Uint32(key[1:]) | 1
}

// len returns the number of slots in use.
func (x *idIndex) len() int {
	n := 0
	for i := range x.shards {
		n += x.shards[i].used
	}
	return n
}

// home returns the slot where the search for a tag begins. It scales the tag to the number of slots, which
// need not be a power of two then.
func (s *idShard) home(tag uint32) int { return int(uint64(tag) * uint64(len(s.slots)) >> 32) }

func (s *idShard) after(j int) int {
	if j++; j < len(s.slots) {
		return j
	}
	return 0
}

// insert adds a slot. It does not look for one that is there.
func (s *idShard) insert(tag, ref uint32) {
	if (s.used+1)*8 > len(s.slots)*7 {
		s.resize(max(idShardMin, len(s.slots)+len(s.slots)/2))
	}
	s.place(uint64(tag)<<32 | uint64(ref))
	s.used++
}

// grow makes room for n slots at once.
func (s *idShard) grow(n int) {
	if n > 0 {
		s.resize(max(idShardMin, n*4/3+1, len(s.slots)))
	}
}

func (s *idShard) place(slot uint64) {
	j := s.home(uint32(slot >> 32))
	for s.slots[j] != 0 {
		j = s.after(j)
	}
	s.slots[j] = slot
}

func (s *idShard) resize(n int) {
	old := s.slots
	s.slots = make([]uint64, n)
	for _, slot := range old {
		if slot != 0 {
			s.place(slot)
		}
	}
}

// remove frees the slot with this tag and ref, if it is there. Slots behind it that were pushed away from
// their home by it move up, so that a search may stop at the first free slot.
func (s *idShard) remove(tag, ref uint32) {
	if s.used == 0 {
		return
	}
	hole := s.home(tag)
	for s.slots[hole] != uint64(tag)<<32|uint64(ref) {
		if s.slots[hole] == 0 {
			return
		}
		hole = s.after(hole)
	}
	for j := s.after(hole); s.slots[j] != 0; j = s.after(j) {
		home := s.home(uint32(s.slots[j] >> 32))
		if s.distance(home, j) >= s.distance(hole, j) { // its search passes the hole
			s.slots[hole] = s.slots[j]
			hole = j
		}
	}
	s.slots[hole] = 0
	s.used--
	if s.used*4 < len(s.slots) && len(s.slots) > idShardMin {
		s.resize(max(idShardMin, len(s.slots)/2))
	}
}

// distance is how many steps lead from slot i to slot j.
func (s *idShard) distance(i, j int) int {
	if j >= i {
		return j - i
	}
	return j - i + len(s.slots)
}
