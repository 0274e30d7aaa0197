package broker

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/replication/standalone"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// noSyncFS is a disk whose syncs cost nothing, to show what the rest costs.
type noSyncFS struct{ vfs.FS }

type noSyncFile struct{ vfs.File }

func (noSyncFile) Sync() error { return nil }

func (f noSyncFS) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	return noSyncFile{file}, err
}

func benchBroker(b *testing.B, sync bool) *Broker {
	b.Helper()
	disk, err := vfs.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	var fsys vfs.FS = disk
	if !sync {
		fsys = noSyncFS{disk}
	}
	if err := fsys.Mkdir("log"); err != nil {
		b.Fatal(err)
	}
	log, _, err := wal.Open(wal.Config{FS: fsys, Clock: clock.System{}, LogID: entry.LogID{1}, Create: true}, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	br := New(Config{Log: log, State: state.New(), Index: index.New(index.Config{FS: fsys, LogID: entry.LogID{1}}),
		Clock: clock.System{}, Window: time.Hour})
	if err := br.Start(standalone.New(log, entry.StandaloneTerm, br)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		br.Close()
		log.Close()
		disk.Close()
	})
	return br
}

// What a publish of 100 B costs below HTTP: with the disk's sync, and without.
func BenchmarkPublish(b *testing.B) {
	for _, sync := range []bool{true, false} {
		for _, producers := range []int{1, 64} {
			b.Run(fmt.Sprintf("sync=%v/producers=%d", sync, producers), func(b *testing.B) {
				publishLoop(b, benchBroker(b, sync), producers)
			})
		}
	}
}

func publishLoop(b *testing.B, br *Broker, producers int) {
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for p := range producers {
		wg.Go(func() {
			req := &Publish{Topic: []byte("bench"), Records: []fact.Record{{Value: make([]byte, 100)}}}
			for i := p; i < b.N; i += producers {
				if _, err := br.Publish(req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

type nullSink struct{ bytes int }

func (s *nullSink) Record(_ fact.Offset, key, value []byte, _ int64) {
	s.bytes += len(key) + len(value)
}

// What reading costs below HTTP: pages of 1000 records of 100 B from the page cache.
func BenchmarkFetch(b *testing.B) {
	br := benchBroker(b, false)
	req := &Publish{Topic: []byte("bench")}
	for range fact.BatchMax {
		req.Records = append(req.Records, fact.Record{Value: make([]byte, 100)})
	}
	const batches = 2000
	for range batches {
		if _, err := br.Publish(req); err != nil {
			b.Fatal(err)
		}
	}
	var sink nullSink
	q := &Fetch{Topic: req.Topic, Limit: 1000}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		page, err := br.Fetch(q, &sink)
		if err != nil {
			b.Fatal(err)
		}
		q.Offset = page.Next
		if page.Next+1000 > page.End {
			q.Offset = 0
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
}
