package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Go lets garbage take as much as what lives before it collects. Beside some hundred megabytes of topics or request ids that
// is memory for nothing: mq makes little garbage, so that to collect it more often costs next to nothing.
const (
	garbageSpare  = 64 << 20 // bytes that garbage may take in any case, unless that is more than what lives
	garbageLeast  = 25       // per cent of what lives that it may take in any case
	garbageMost   = 100      // per cent: the default of Go
	garbageLookAt = time.Second
)

// garbagePercent is what debug.SetGCPercent should be told: base is how many bytes Go takes the percentage of.
func garbagePercent(base uint64) int {
	return int(min(garbageMost, max(garbageLeast, garbageSpare*100/max(base, 1))))
}

// garbageRule has Go collect sooner where much lives. It is used by one goroutine.
type garbageRule struct {
	percent int
	base    func() uint64         // bytes that lived at the last collection, and of the roots; tests have their own
	set     func(percent int) int // debug.SetGCPercent, but for tests
}

// newGarbageRule begins with Go's default. It returns nil, which does nothing, where GOGC says what is wanted.
func newGarbageRule(lookupEnv func(string) (string, bool)) *garbageRule {
	if value, _ := lookupEnv("GOGC"); value != "" {
		return nil
	}
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	base := func() (sum uint64) {
		metrics.Read(samples)
		for _, s := range samples {
			if s.Value.Kind() == metrics.KindUint64 {
				sum += s.Value.Uint64()
			}
		}
		return sum
	}
	debug.SetGCPercent(garbageMost)
	return &garbageRule{percent: garbageMost, base: base, set: debug.SetGCPercent}
}

// look sets the percentage by what lives now. It is called now and then.
func (g *garbageRule) look() {
	if g == nil {
		return
	}
	if percent := garbagePercent(g.base()); percent != g.percent {
		g.percent = percent
		g.set(percent)
	}
}

// end brings the default back.
func (g *garbageRule) end() {
	if g != nil {
		g.set(garbageMost)
	}
}
