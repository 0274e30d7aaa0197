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

// BenchmarkKeep keeps the records of old segments, one at a time. Their topic has 800 places in each of 20 segments,
// as one has that takes turns with others all the time.
func BenchmarkKeep(b *testing.B) {
	const segments, places = 20, 800
	const records = segments * places * blockRuns
	m := newFS(b)
	fresh := func() *Index {
		x := New(Config{FS: m, LogID: testLog})
		for s := range segments {
			p := entry.Position{Segment: entry.Index(s + 1), Length: 64}
			for i := range places * blockRuns {
				p.Offset += 128
				x.Add("t", fact.Offset(s*places*blockRuns+i), 1, p)
			}
		}
		x.Begin(segments + 1)
		if err := x.Flush(); err != nil {
			b.Fatal(err)
		}
		x.Add("t", records, 1, entry.Position{Segment: segments + 1, Offset: 512, Length: 64})
		return x
	}
	x := fresh()
	p := entry.Position{Segment: segments + 1, Offset: 512, Length: 64}
	off := 0
	b.ReportAllocs()
	for b.Loop() {
		if off == records {
			b.StopTimer()
			x, p.Offset, off = fresh(), 512, 0
			b.StartTimer()
		}
		p.Offset += 128
		x.Add("t", fact.Offset(off), 1, p)
		off++
	}
}

// BenchmarkLive goes through 10 segments with 10,000 topics in each.
func BenchmarkLive(b *testing.B) {
	const segments, topics = 10, 10_000
	x := New(Config{FS: newFS(b), LogID: testLog})
	list := names(topics)
	p := entry.Position{Length: 64}
	for s := range segments {
		p.Segment, p.Offset = entry.Index(s+1), 512
		for _, name := range list {
			x.Add(name, fact.Offset(s), 1, p)
			p.Offset += 64
		}
	}
	starts := func(string) fact.Offset { return 1 }
	b.ReportAllocs()
	for b.Loop() {
		if live := x.Live(starts); live[0].Bytes != 0 || live[1].Bytes != 64*topics {
			b.Fatalf("%+v", live)
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
