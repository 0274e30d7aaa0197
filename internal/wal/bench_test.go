package wal

import (
	"fmt"
	"io"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// openDisk opens a new log on a real disk.
func openDisk(b *testing.B) (*Log, Config) {
	b.Helper()
	fsys, err := vfs.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { fsys.Close() })
	cfg := Config{FS: fsys, LogID: testID, Create: true}
	l, _, err := Open(cfg, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return l, cfg
}

// BenchmarkAppend100B appends groups of 64 entries of 100 bytes without a sync: what the log costs beside
// the disk.
func BenchmarkAppend100B(b *testing.B) {
	l, _ := openDisk(b)
	payload := payloadOf(1, 100)
	var f Frames
	const group = 64
	b.SetBytes(int64(frameSize(100)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		f.End(append(f.Begin(2, testTime), payload...))
		if f.Len() < group {
			continue
		}
		if _, err := l.Append(&f, 1, l.Last()); err != nil {
			b.Fatal(err)
		}
		f.Reset()
	}
}

// BenchmarkEncode100B is the part of it before the write.
func BenchmarkEncode100B(b *testing.B) {
	payload := payloadOf(1, 100)
	var f Frames
	b.SetBytes(int64(frameSize(100)))
	b.ReportAllocs()
	for b.Loop() {
		f.End(append(f.Begin(2, testTime), payload...))
		if f.Len() == 64 {
			f.finish(1, 2, 1, 1, 0)
			f.Reset()
		}
	}
}

// BenchmarkAppendSync appends one entry of 100 bytes and syncs, on a real disk.
func BenchmarkAppendSync(b *testing.B) {
	l, _ := openDisk(b)
	payload := payloadOf(1, 100)
	var f Frames
	b.ReportAllocs()
	for b.Loop() {
		f.Reset()
		f.End(append(f.Begin(2, testTime), payload...))
		if _, err := l.Append(&f, 1, l.Durable()); err != nil {
			b.Fatal(err)
		}
		if err := l.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a log of one full segment of 64 MiB, entries of 100 bytes.
func BenchmarkOpen(b *testing.B) {
	l, cfg := openDisk(b)
	payload := payloadOf(1, 100)
	var f Frames
	for l.room.Load() > 1<<20 {
		f.Reset()
		for range 1000 {
			f.End(append(f.Begin(2, testTime), payload...))
		}
		if _, err := l.Append(&f, 1, l.Last()); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Sync(); err != nil {
		b.Fatal(err)
	}
	l.Close()
	b.SetBytes(defaultSegmentBytes)
	for b.Loop() {
		var sum int
		l, r, err := Open(cfg, 0, func(e *entry.Entry, _ entry.Position) error {
			sum += len(e.Payload)
			return nil
		})
		if err != nil || r.Entries*100 != sum {
			b.Fatal(err, r, sum)
		}
		b.StopTimer()
		l.Close()
		b.StartTimer()
	}
}

// BenchmarkOpenEmpty opens a log of one segment of 64 MiB with little in it: it has to look at the rest.
func BenchmarkOpenEmpty(b *testing.B) {
	l, cfg := openDisk(b)
	if err := mark(l); err != nil {
		b.Fatal(err)
	}
	l.Close()
	b.SetBytes(defaultSegmentBytes)
	for b.Loop() {
		l, _, err := Open(cfg, 0, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		l.Close()
		b.StartTimer()
	}
}

// BenchmarkParse decodes and checks a frame of 100 bytes.
func BenchmarkParse(b *testing.B) {
	l := &Log{seed: seedOf(testID)}
	var f Frames
	f.End(append(f.Begin(2, testTime), payloadOf(1, 100)...))
	f.finish(l.seed, 0, 1, 1, 0)
	b.SetBytes(int64(f.Bytes()))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := l.Parse(f.buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCursor reads a full segment of 64 MiB from the page cache, entries of 100 bytes, a MiB at a time.
func BenchmarkCursor(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			l, _ := openDisk(b)
			payload := payloadOf(1, size)
			var f Frames
			for l.room.Load() > 3<<20 {
				f.Reset()
				for range 1 + (1<<20)/size {
					f.End(append(f.Begin(2, testTime), payload...))
				}
				if _, err := l.Append(&f, 1, l.Last()); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(l.pos - headerSize)
			b.ReportAllocs()
			for b.Loop() {
				c := l.NewCursor(1)
				read := int64(0)
				for {
					_, err := c.Next(&f, l.Last(), 1<<20)
					if err == io.EOF {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					read += int64(f.Bytes())
				}
				if read != l.pos-headerSize {
					b.Fatal(read)
				}
				c.Close()
			}
		})
	}
}

// BenchmarkLoad checks 1 MiB of frames that a peer sent, entries of 100 bytes.
func BenchmarkLoad(b *testing.B) {
	l := &Log{seed: seedOf(testID)}
	var f, g Frames
	for f.Bytes() < 1<<20 {
		f.End(append(f.Begin(2, testTime), payloadOf(1, 100)...))
	}
	f.finish(l.seed, 7, 1, 1, 0)
	place := Place{Segment: 1, Size: 64 << 20, Prev: 7, Offset: headerSize}
	b.SetBytes(int64(f.Bytes()))
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Load(&g, place, f.Raw()); err != nil {
			b.Fatal(err)
		}
	}
}
