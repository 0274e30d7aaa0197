package mesh

import "sync"

// item is a frame that waits to be written.
type item struct {
	frame frame
	id    uint64 // of requests, answers and cancels
	body  []byte
}

// itemBytes is what an item is counted with besides its body.
const itemBytes = 64

// outbox holds what waits to be written on a stream.
type outbox struct {
	wake chan struct{} // has a place for one: something may be there

	mu     sync.Mutex
	urgent queue
	others queue
	bytes  int64 // of both
	ping   bool  // a ping is due
	closed bool
}

// put adds an item, unless there are more than most bytes then; it returns why it did not.
func (b *outbox) put(it item, urgent bool, most int64) Drop {
	size := int64(len(it.body)) + itemBytes
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return DropNoStream
	}
	if b.bytes+size > most {
		b.mu.Unlock()
		return DropFull
	}
	b.bytes += size
	if urgent {
		b.urgent.push(it)
	} else {
		b.others.push(it)
	}
	b.mu.Unlock()
	b.poke()
	return ""
}

// pingDue asks for a ping, unless something else is there to be written.
func (b *outbox) pingDue() {
	b.mu.Lock()
	b.ping = true
	b.mu.Unlock()
	b.poke()
}

func (b *outbox) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what is to be written next: what is urgent, then the others in their order, then a ping.
func (b *outbox) take() (item, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	it, ok := b.urgent.pop()
	if !ok {
		it, ok = b.others.pop()
	}
	if ok {
		b.bytes -= int64(len(it.body)) + itemBytes
		b.ping = false
		return it, true
	}
	ok, b.ping = b.ping, false
	return item{frame: framePing}, ok
}

// close refuses all that comes from now on, and returns how many packets are left and lost.
func (b *outbox) close() (lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, q := range []*queue{&b.urgent, &b.others} {
		for it, ok := q.pop(); ok; it, ok = q.pop() {
			if it.frame == framePacket {
				lost++
			}
		}
	}
	b.bytes = 0
	return lost
}

// queue is a first-in, first-out list.
type queue struct {
	list []item
	head int // list[:head] is gone
}

func (q *queue) push(it item) {
	if q.head > 0 && len(q.list) == cap(q.list) { // rather than growing for what is gone
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, it)
}

func (q *queue) pop() (item, bool) {
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
		return item{}, false
	}
	it := q.list[q.head]
	q.list[q.head] = item{}
	q.head++
	return it, true
}
