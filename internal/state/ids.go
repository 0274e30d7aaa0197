package state

import (
	"crypto/sha256"
	"encoding/binary"

	"example.com/mq/internal/fact"
)

// idKey identifies a request id in its topic: the first 16 bytes of the SHA-256 of topic id and request id.
// Nobody finds two that differ and have the same key.
type idKey [16]byte

func keyOf(topic TopicID, requestID []byte) idKey {
	var buf [4 + fact.NameMax]byte
	binary.LittleEndian.PutUint32(buf[:], uint32(topic))
	n := 4 + copy(buf[4:], requestID)
	sum := sha256.Sum256(buf[:n])
	return idKey(sum[:len(idKey{})])
}

// id is one remembered request id: 48 bytes without pointers, so that the garbage collector need not look
// at a million of them.
type id struct {
	key    idKey
	digest fact.Digest
	base   fact.Offset
	stamp  uint64 // time_ms << 8 | count
}

func (e *id) timeMS() int64 { return int64(e.stamp >> 8) }
func (e *id) count() int    { return int(e.stamp & 0xff) }

// idsPerChunk makes a chunk 24 KiB: one allocation per so many request ids.
const idsPerChunk = 512

type idChunk [idsPerChunk]id

// ids remembers request ids: a queue in log order, and an index into it. Each entry of the queue has a
// number, counted from 0, and is never changed; so a view of the queue needs no copies of entries.
//
// Expired entries leave the queue a few at a time (evict), so that the first publish after a long pause does
// not wait for a million of them to go. Who looks one up checks its time. An id that is used again after it
// expired may so be in the queue twice; the index knows the younger one.
type ids struct {
	idView
	index idIndex
}

// idView is the queue. Invariant: first <= next, and chunks[0] is the one that number first belongs to.
type idView struct {
	chunks []*idChunk
	first  uint64 // number of the oldest entry
	next   uint64 // number that the next entry will get
}

func (q *idView) len() int { return int(q.next - q.first) }

func (q *idView) at(n uint64) *id {
	return &q.chunks[n/idsPerChunk-q.first/idsPerChunk][n%idsPerChunk]
}

// push appends an entry to the queue alone.
func (q *idView) push(e *id) { *q.extend() = *e }

// extend appends an entry to the queue alone, and returns it to be filled in.
func (q *idView) extend() *id {
	if q.next%idsPerChunk == 0 {
		q.chunks = append(q.chunks, new(idChunk))
	}
	q.next++
	return q.at(q.next - 1)
}

// pop removes the oldest entry from the queue alone.
func (q *idView) pop() {
	q.first++
	if q.first%idsPerChunk == 0 {
		q.chunks[0] = nil // the array behind the slice must not keep it alive
		q.chunks = q.chunks[1:]
	}
}

// freeze returns the queue as it is now. The queue may go on: it writes to the shared chunks only behind the
// last entry of the view.
func (q *idView) freeze() idView {
	v := *q
	v.chunks = append([]*idChunk(nil), q.chunks...)
	return v
}

// number returns the number of an entry in the queue from its lowest 32 bits. A queue of 2^32 entries would
// need 200 GB of memory, so they tell it.
func (q *ids) number(ref uint32) uint64 { return q.first + uint64(ref-uint32(q.first)) }

// find returns the number of the youngest entry with a key.
func (q *ids) find(key *idKey) (uint64, bool) {
	s, tag := q.index.shard(key)
	return q.search(s, tag, key)
}

// search is find in a known shard. It looks at the key only where the tag is right.
func (q *ids) search(s *idShard, tag uint32, key *idKey) (uint64, bool) {
	if s.used == 0 {
		return 0, false
	}
	for j := s.home(tag); s.slots[j] != 0; j = s.after(j) {
		if uint32(s.slots[j]>>32) != tag {
			continue
		}
		if n := q.number(uint32(s.slots[j])); q.at(n).key == *key {
			return n, true
		}
	}
	return 0, false
}

// add remembers an entry. One with the same key may be there only if it is expired.
func (q *ids) add(e *id) {
	s, tag := q.index.shard(&e.key)
	if old, ok := q.search(s, tag, &e.key); ok {
		s.remove(tag, uint32(old))
	}
	s.insert(tag, uint32(q.next))
	q.push(e)
}

// evict removes the oldest entries as long as they are older than cutoff, most of them at a time.
func (q *ids) evict(cutoffMS int64, most int) {
	for ; most > 0 && q.first < q.next; most-- {
		e := q.at(q.first)
		if e.timeMS() >= cutoffMS {
			return
		}
		s, tag := q.index.shard(&e.key)
		s.remove(tag, uint32(q.first)) // not there when the id was used again
		q.pop()
	}
}
