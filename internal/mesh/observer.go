package mesh

// Drop says why packets were dropped.
type Drop string

// The reasons.
const (
	DropNoStream Drop = "no_stream"  // there is no stream to the node
	DropFull     Drop = "queue_full" // too much waits for it already
	DropLost     Drop = "lost"       // they waited when the stream broke
	DropTooLarge Drop = "too_large"  // above PacketMax
)

// Drops lists the reasons.
func Drops() []Drop { return []Drop{DropNoStream, DropFull, DropLost, DropTooLarge} }

// Observer is told what happens. Each function may be nil. They are called from many goroutines at once, and must return
// at once.
type Observer struct {
	Sent      func(peer, packets, bytes int)      // given to the system for sending, frames around them not counted
	Received  func(peer, packets, bytes int)      // handed over, frames around them not counted
	Dropped   func(peer int, why Drop, count int) // packets to the peer
	Connected func(peer int)                      // a stream of packets to the peer was accepted
	Refused   func(peer int)                      // a stream with the peer was refused, by either side
	Called    func(peer, request, answer int)     // a call of this node was answered; bytes
}

// fill puts functions that do nothing where there are none.
func (o *Observer) fill() {
	if o.Sent == nil {
		o.Sent = func(int, int, int) {}
	}
	if o.Received == nil {
		o.Received = func(int, int, int) {}
	}
	if o.Dropped == nil {
		o.Dropped = func(int, Drop, int) {}
	}
	if o.Connected == nil {
		o.Connected = func(int) {}
	}
	if o.Refused == nil {
		o.Refused = func(int) {}
	}
	if o.Called == nil {
		o.Called = func(int, int, int) {}
	}
}
