package index

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("topic-%05d", i)
	}
	return list
}

// BenchmarkAdd adds frames of 160 bytes. With many topics each frame is a run of its own.
func BenchmarkAdd(b *testing.B) {
	for _, topics := range []int{1, 10_000} {
		b.Run(fmt.Sprint("topics=", topics), func(b *testing.B) {
			const frameBytes, segmentBytes = 160, 64 << 20
			list := names(topics)
			x := New(Config{FS: newFS(b), LogID: testLog})
			p := entry.Position{Segment: 1, Offset: 512, Length: frameBytes}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.Add(list[i%topics], fact.Offset(i/topics), 1, p)
				i++
				if p.Offset += frameBytes; p.Offset > segmentBytes {
					b.StopTimer()
					if err := x.Flush(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					p.Segment, p.Offset = entry.Index(i+1), 512
				}
			}
		})
	}
}

// BenchmarkFind looks up random records of a sealed segment, in memory, in the cache, or in the file.
func BenchmarkFind(b *testing.B) {
	for _, topics := range []int{1, 10_000} {
		for _, where := range []string{"memory", "cache", "file"} {
			b.Run(fmt.Sprintf("topics=%d/%s", topics, where), func(b *testing.B) {
				const frames = 400_000
				list := names(topics)
				cacheBytes := int64(64 << 20)
				if where == "file" {
					cacheBytes = 1
				}
				x := New(Config{FS: newFS(b), LogID: testLog, CacheBytes: cacheBytes})
				p := entry.Position{Segment: 1, Offset: 512, Length: 160}
				for i := range frames {
					x.Add(list[i%topics], fact.Offset(i/topics), 1, p)
					p.Offset += p.Length
				}
				x.Begin(frames + 1)
				if where != "memory" {
					if err := x.Flush(); err != nil {
						b.Fatal(err)
					}
				}
				topic := make([][]byte, topics)
				for i, name := range list {
					topic[i] = []byte(name)
					if _, err := x.Find(topic[i], 0); err != nil { // warms the cache
						b.Fatal(err)
					}
				}
				random := rand.New(rand.NewPCG(1, 2))
				b.ReportAllocs()
				for b.Loop() {
					i := random.IntN(frames)
					if _, err := x.Find(topic[i%topics], fact.Offset(i/topics)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLoad loads the index file of a segment with many topics.
func BenchmarkLoad(b *testing.B) {
	const topics = 10_000
	m := newFS(b)
	x := New(Config{FS: m, LogID: testLog})
	p := entry.Position{Segment: 1, Offset: 512, Length: 160}
	for i, name := range names(topics) {
		p.Offset += p.Length
		x.Add(name, fact.Offset(i), 1, p)
	}
	x.Begin(topics + 1)
	if err := x.Flush(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := New(Config{FS: m, LogID: testLog}).Load(1); err != nil {
			b.Fatal(err)
		}
	}
}
