package node

import (
	"sync/atomic"

	"example.com/mq/internal/vfs"
)

// room watches how much room is left on the disk, so that an operator hears of it, and the cleaner works harder, before the
// disk is full. The goroutine of the cleaner looks.
type room struct {
	node *Node
	low  atomic.Bool
}

const (
	// The disk is low when less is free than this part of it, or than so many segments.
	lowPart     = 20
	lowSegments = 4
)

// lowBelow is how much must be free for the disk not to be low.
func lowBelow(usage vfs.Usage, segmentBytes int64) int64 {
	return max(usage.TotalBytes/lowPart, lowSegments*segmentBytes)
}

// look asks for the room on the disk. It says so once when that becomes low, and once when there is a little more again.
func (r *room) look() {
	usage, err := r.node.fs.Usage()
	if err != nil {
		return // asked again soon; what fails for good shows elsewhere
	}
	below := lowBelow(usage, r.node.cfg.SegmentBytes)
	low := r.low.Load()
	switch {
	case !low && usage.FreeBytes < below:
		r.low.Store(true)
		r.node.logger.Warn("the disk is nearly full: give room before publishes are refused", "free_bytes", usage.FreeBytes, "low_below_bytes", below)
	case low && usage.FreeBytes >= below+below/2: // far enough that one segment more or less does not flip it
		r.low.Store(false)
		r.node.logger.Info("there is room on the disk again", "free_bytes", usage.FreeBytes)
	}
}
