package state

// idFill fills an empty queue of request ids, oldest first, and makes the index when all are there. It gathers the
// slots of the index by shard meanwhile, because it is several times as fast to fill one shard after the other: the
// part of the index that is worked on then fits into the processor's cache.
type idFill struct {
	q      *ids
	shards [len(idIndex{}.shards)]slotList
}

// slotList is a list of slots in blocks, so that nothing is copied when it grows.
type slotList struct {
	blocks []*slotBlock
	last   int // slots in the last block
}

type slotBlock [64]uint64

func (l *slotList) add(slot uint64) {
	if l.last == len(slotBlock{}) || len(l.blocks) == 0 {
		l.blocks = append(l.blocks, new(slotBlock))
		l.last = 0
	}
	l.blocks[len(l.blocks)-1][l.last] = slot
	l.last++
}

func (l *slotList) len() int {
	if len(l.blocks) == 0 {
		return 0
	}
	return (len(l.blocks)-1)*len(slotBlock{}) + l.last
}

// add appends an encoded entry, and returns it.
func (f *idFill) add(b []byte) *id {
	n := f.q.next
	e := f.q.extend()
	e.decode(b)
	_, tag := f.q.index.shard(&e.key)
	f.shards[e.key[0]].add(uint64(tag)<<32 | uint64(uint32(n)))
	return e
}

// index makes the index. It returns false when an entry was used again before it can have expired, which takes at
// least a millisecond.
func (f *idFill) index() bool {
	for i := range f.shards {
		l, s := &f.shards[i], &f.q.index.shards[i]
		s.grow(l.len())
		for b, block := range l.blocks {
			slots := block[:]
			if b == len(l.blocks)-1 {
				slots = block[:l.last]
			}
			for _, slot := range slots {
				if !f.put(s, slot) {
					return false
				}
			}
		}
		*l = slotList{}
	}
	return true
}

// put adds a slot to a shard that has room for it. It takes the place of one with the same key, if there is one, which
// has the same tag, so that searches for it begin at the same place. It returns false if that one was not older.
func (f *idFill) put(s *idShard, slot uint64) bool {
	tag := uint32(slot >> 32)
	j := s.home(tag)
	for ; s.slots[j] != 0; j = s.after(j) {
		if uint32(s.slots[j]>>32) != tag {
			continue
		}
		old, e := f.q.at(f.q.number(uint32(s.slots[j]))), f.q.at(f.q.number(uint32(slot)))
		if old.key == e.key {
			s.slots[j] = slot
			return old.timeMS() < e.timeMS()
		}
	}
	s.slots[j] = slot
	s.used++
	return true
}
