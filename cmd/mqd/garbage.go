package main

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Go lets garbage take as much as what lives before it collects. With a hundred megabytes of topics or request ids, which
// are cheap to look through because they hold few pointers, that is memory for nothing.
const (
	garbageSpare  = 64 << 20 // bytes that garbage may take in any case
	garbageLeast  = 25       // per cent of what lives that it may take in any case
	garbageMost   = 100      // per cent: the default of Go
	garbageLookAt = time.Second
)

// garbagePercent is for debug.SetGCPercent, where so many bytes live.
func garbagePercent(live uint64) int {
	return int(min(garbageMost, max(garbageLeast, garbageSpare*100/max(live, 1))))
}

// garbage keeps it small.
type garbage struct {
	percent int
	live    func() uint64 // bytes that lived when garbage was collected last
	set     func(percent int) int
}

func newGarbage() *garbage {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	return &garbage{
		percent: garbageMost,
		live: func() uint64 {
			metrics.Read(sample)
			if sample[0].Value.Kind() != metrics.KindUint64 {
				return 0
			}
			return sample[0].Value.Uint64()
		},
		set: debug.SetGCPercent,
	}
}

// look sets the percentage anew where it has changed by more than a little, because that stops the world for a moment.
func (g *garbage) look() {
	percent := garbagePercent(g.live())
	if math.Abs(float64(percent-g.percent)) < 5 && percent != garbageLeast && percent != garbageMost || percent == g.percent {
		return
	}
	g.percent = percent
	g.set(percent)
}
