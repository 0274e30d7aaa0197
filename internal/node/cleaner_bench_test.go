package node

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
)

// BenchmarkPublishWhileCleaning publishes 1 KiB from 8 clients at once. In "clean" a quarter of the records stays between
// others that go at once, so that the cleaner always has something to move; in "rest" all stay, and it has nothing to do.
func BenchmarkPublishWhileCleaning(b *testing.B) {
	for _, work := range []string{"rest", "clean"} {
		b.Run(work, func(b *testing.B) { publishWhile(b, work == "clean") })
	}
}

func publishWhile(b *testing.B, cleaning bool) {
	fsys, err := vfs.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer fsys.Close()
	n, err := Open(Config{FS: fsys, Clock: clock.System{}, SegmentBytes: 8 << 20})
	if err == nil {
		err = n.Recover()
	}
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	const clients, kept = 8, 20000
	records := []fact.Record{{Key: []byte("key"), Value: bytes.Repeat([]byte("v"), 1024)}}
	var next atomic.Int64
	publish := func(i int64) {
		topic := "stays"
		if i%4 > 0 {
			topic = "goes"
		}
		done, err := n.Publish(&broker.Publish{Topic: []byte(topic), Records: records})
		if err != nil {
			b.Error(err)
			return
		}
		if !cleaning || i%512 > 1 {
			return
		}
		keep := fact.Offset(0)
		if topic == "stays" {
			keep = kept
		}
		if done.Base > keep {
			n.Retain([]byte(topic), done.Base-keep) // another one may have been faster: then it is refused
		}
	}
	run := func(count int) []time.Duration {
		var mu sync.Mutex
		var all []time.Duration
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				var took []time.Duration
				for range count / clients {
					i := next.Add(1)
					start := time.Now()
					publish(i)
					took = append(took, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took...)
			})
		}
		group.Wait()
		slices.Sort(all)
		return all
	}
	run(60000) // until there is something to clean
	before := n.cleaner.status().MovedBytes
	b.ResetTimer()
	took := run(max(b.N, clients*100))
	b.StopTimer()
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(n.cleaner.status().MovedBytes-before)/b.Elapsed().Seconds()/1e6, "moved-MB/s")
	b.ReportMetric(float64(len(n.log.Segments())), "segments")
}
