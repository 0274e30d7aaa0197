package bench

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// load is what a closed loop of workers reached while it was measured.
type load struct {
	calls   uint64
	seconds float64
	times   histogram
	cpu     time.Duration // that this process used
}

// The phases of a load.
const (
	warming int32 = iota
	measuring
	over
)

// runLoad has every worker call its operation again and again, first to warm up, then measured. The first
// error ends all. An operation that hangs is ended by the caller, who closes what it waits for when ctx ends.
func runLoad(ctx context.Context, workers []func() error, warmup, measured time.Duration) (load, error) {
	var (
		phase atomic.Int32
		group sync.WaitGroup
		times = make([]histogram, len(workers))
		fault atomic.Pointer[error]
		ended = make(chan struct{}) // closed after the first error
	)
	for i, operation := range workers {
		group.Go(func() {
			h := &times[i]
			for phase.Load() != over {
				start := time.Now()
				if err := operation(); err != nil {
					err = fmt.Errorf("worker %d: %w", i, err)
					if fault.CompareAndSwap(nil, &err) {
						close(ended)
					}
					return
				}
				if phase.Load() == measuring {
					h.record(time.Since(start))
				}
			}
		})
	}
	pass := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ended:
		case <-ctx.Done():
		}
	}
	pass(warmup)
	cpu, start := processorTime(), time.Now()
	phase.Store(measuring)
	pass(measured)
	phase.Store(over)
	result := load{seconds: time.Since(start).Seconds(), cpu: processorTime() - cpu}
	group.Wait()
	if ctx.Err() != nil {
		return load{}, context.Cause(ctx)
	}
	if err := fault.Load(); err != nil {
		return load{}, *err
	}
	for i := range times {
		result.times.add(&times[i])
	}
	result.calls = result.times.count
	return result, nil
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// histogram counts durations in buckets that are at most 1/128 wide, so that recording one costs neither
// memory nor time. The zero value is ready.
type histogram struct {
	count   uint64
	largest time.Duration
	buckets [35 * 128]uint32 // up to 2^41 ns, half an hour
}

func (h *histogram) record(d time.Duration) {
	h.count++
	h.largest = max(h.largest, d)
	h.buckets[min(bucketOf(d), len(h.buckets)-1)]++
}

func bucketOf(d time.Duration) int {
	v := uint64(max(0, d))
	shift := max(0, bits.Len64(v)-8)
	return shift*128 + int(v>>shift)
}

// valueOf is the largest duration of a bucket.
func valueOf(bucket int) time.Duration {
	if bucket < 256 {
		return time.Duration(bucket)
	}
	shift := bucket/128 - 1
	return time.Duration((bucket-shift*128+1)<<shift - 1)
}

func (h *histogram) add(other *histogram) {
	h.count += other.count
	h.largest = max(h.largest, other.largest)
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
}

// quantile is the duration that the part q of all stays at or below.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.count))
	var seen uint64
	for i, n := range h.buckets {
		if seen += uint64(n); seen > rank {
			return min(valueOf(i), h.largest)
		}
	}
	return h.largest
}
