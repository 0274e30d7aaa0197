package catchup

import (
	"os"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// benchBytes is how much log is fetched at a time.
const benchBytes = 256 << 20

func onDisk(b *testing.B) vfs.FS {
	dir, err := os.MkdirTemp("/var/tmp", "catchup")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	disk, err := vfs.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { disk.Close() })
	for _, name := range []string{"log", "snapshots"} {
		if err := disk.Mkdir(name); err != nil {
			b.Fatal(err)
		}
	}
	return disk
}

func diskConfig(disk vfs.FS) wal.Config {
	cfg := logConfig(disk)
	cfg.SegmentBytes, cfg.Inline = 0, false
	return cfg
}

// benchHost is a host on a disk with benchBytes of entries of 8 KiB.
func benchHost(b *testing.B) *host {
	h := newHost(b, 1)
	h.mem = onDisk(b)
	h.log = openLog(b, diskConfig(h.mem))
	p := make([]byte, 8<<10)
	for i := range p {
		p[i] = byte(i) | 1
	}
	var f wal.Frames
	for n := 0; n < benchBytes; n += f.Bytes() {
		f.Reset()
		for range 64 {
			f.End(append(f.Begin(2, testTime), p...))
		}
		if _, err := h.log.Append(&f, 1, h.log.Durable()); err != nil {
			b.Fatal(err)
		}
		h.sync()
	}
	h.commit(h.log.Last())
	return h
}

// BenchmarkExtend fetches frames from one disk to another one, beside the speed at which a log of the same size is written
// alone.
func BenchmarkExtend(b *testing.B) {
	h := benchHost(b)
	l := serve(b, h)
	b.SetBytes(benchBytes)
	for b.Loop() {
		log := openLog(b, diskConfig(onDisk(b)))
		if _, err := Extend(b.Context(), l.client(), log, ExtendOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWrite writes and syncs as much to a file, as a measure for the others.
func BenchmarkWrite(b *testing.B) {
	b.SetBytes(benchBytes)
	p := make([]byte, PieceMax)
	for i := range p {
		p[i] = byte(i) | 1
	}
	for b.Loop() {
		disk := onDisk(b)
		f, err := disk.Create("log/file")
		if err != nil {
			b.Fatal(err)
		}
		for n := int64(0); n < benchBytes; n += PieceMax {
			if _, err := f.WriteAt(p, n); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// BenchmarkFull fetches everything, mostly segment files.
func BenchmarkFull(b *testing.B) {
	h := benchHost(b)
	l := serve(b, h)
	b.SetBytes(benchBytes)
	for b.Loop() {
		f := &folder{t: b, mem: onDisk(b)}
		if _, err := Full(b.Context(), l.client(), f, FullOptions{}); err != nil {
			b.Fatal(err)
		}
		f.log.Close()
	}
}
