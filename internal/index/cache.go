package index

import (
	"sync"
	"unsafe"

	"example.com/mq/internal/entry"
)

// blockCost is what a cached block takes beside its runs: itself, and its share of the map.
const blockCost = 160

// cache keeps the blocks of index files that were read last. Its bound is the sum of their sizes in memory.
type cache struct {
	bytesMax int64

	mu     sync.Mutex
	blocks map[blockKey]*block
	bytes  int64
	// ring is the list of blocks in the order of use: ring.next was used last, ring.prev longest ago.
	ring block
}

// blockKey names a block by where it is in the index file, so that all places which it serves find it, whatever
// was taken from them. A segment that is rebuilt is another *segment: a block that was read just before is not
// found any more.
type blockKey struct {
	segment *segment
	at      uint32
}

type block struct {
	key        blockKey
	runs       []run // immutable
	prev, next *block
}

func (b *block) cost() int64 {
	return blockCost + int64(cap(b.runs))*int64(unsafe.Sizeof(run{}))
}

func newCache(bytesMax int64) *cache {
	c := &cache{bytesMax: bytesMax, blocks: make(map[blockKey]*block)}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

// get returns the runs of a block, or nil.
func (c *cache) get(key blockKey) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks[key]
	if b == nil {
		return nil
	}
	if c.ring.next != b {
		b.unlink()
		c.ring.push(b)
	}
	return b.runs
}

// put adds a block, or replaces it, and lets go of those used longest ago. A block larger than the whole
// cache is not kept.
func (c *cache) put(key blockKey, runs []run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.blocks[key]; old != nil {
		c.remove(old)
	}
	b := &block{key: key, runs: runs}
	c.blocks[key] = b
	c.ring.push(b)
	c.bytes += b.cost()
	for c.bytes > c.bytesMax {
		c.remove(c.ring.prev)
	}
}

// dropSegments lets go of the blocks of all segments that gone names.
func (c *cache) dropSegments(gone func(entry.Index) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, b := range c.blocks {
		if gone(key.segment.number) {
			c.remove(b)
		}
	}
}

func (c *cache) remove(b *block) {
	delete(c.blocks, b.key)
	c.bytes -= b.cost()
	b.unlink()
}

// push puts b right after the head of the ring.
func (ring *block) push(b *block) {
	b.prev, b.next = ring, ring.next
	b.prev.next, b.next.prev = b, b
}

func (b *block) unlink() {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
}
