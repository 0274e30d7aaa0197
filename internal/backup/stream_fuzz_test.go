package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/vfs/memfs"
)

// readMax is what reading a backup may take beyond its size: a frame, a block of a snapshot, and what is decoded of them.
const readMax = 64 << 20

// smallWorld is a world whose backup has few bytes.
func smallWorld(t testing.TB) *world {
	w := newWorld(t, 34)
	w.publish("topic-0", 2, 20)
	w.publish("topic-1", 1, 10)
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	w.publish("topic-0", 1, 30)
	return w
}

// FuzzStream: a stream is changed at a place, its tar headers and its manifests get the right checksums, and it may be cut. It is
// refused, or it is the backup that it was: what restores serves all that was acknowledged. A refused one leaves no folder that starts.
func FuzzStream(f *testing.F) {
	w := smallWorld(f)
	var b bytes.Buffer
	taken, err := Stream(context.Background(), w.source(), &b, Progress{})
	if err != nil {
		f.Fatal(err)
	}
	stream := b.Bytes()
	for _, at := range []int{0, 100, 124, 156, 257, 520, 700, 1024, 1536, 2000, 2200, 3000, len(stream) - 1024, len(stream)} {
		f.Add(uint32(at), []byte{1}, uint32(0), true)
		f.Add(uint32(at), []byte("9"), uint32(0), true)
		f.Add(uint32(at), []byte{}, uint32(at), false)
	}
	f.Fuzz(func(t *testing.T, at uint32, change []byte, cut uint32, sealed bool) {
		if len(change) > 4096 {
			return
		}
		bad := bytes.Clone(stream)
		n := copy(bad[min(int(at), len(bad)):], change)
		if bad = append(bad, change[n:]...); sealed {
			sealTar(bad)
		}
		if cut > 0 {
			bad = bad[:min(int(cut), len(bad))]
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		report, err := VerifyStream(context.Background(), bytes.NewReader(bad), Progress{})
		data := memfs.New()
		_, restoreErr := RestoreStream(context.Background(), bytes.NewReader(bad), RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true})
		runtime.ReadMemStats(&after)
		if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(2*readMax+8*len(bad)) {
			t.Errorf("%d bytes took %d bytes of memory", len(bad), spent)
		}
		if (err == nil) != (restoreErr == nil) {
			t.Errorf("it verifies with %v, and restores with %v", err, restoreErr)
		}
		if restoreErr != nil {
			refuses(t, data, w)
			return
		}
		if err == nil && (report.Manifest.Index != taken.Manifest.Index || report.Entries != taken.Entries) {
			t.Errorf("it holds %+v, and was %+v", report.Manifest, taken.Manifest)
		}
		n1 := openOn(t, data, clock.NewManual(time.UnixMilli(1_700_000_000_000)))
		defer n1.Close()
		w.facts.holds(t, n1, w.node)
	})
}

// sealTar makes the checksums of the headers of a tar file right, as far as the sizes in them lead.
func sealTar(b []byte) {
	for at := 0; at+512 <= len(b); {
		h := b[at : at+512]
		if bytes.Equal(h, make([]byte, 512)) {
			return
		}
		copy(h[148:156], "        ")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		for i := 5; i >= 0; i, sum = i-1, sum/8 {
			h[148+i] = byte('0' + sum%8)
		}
		h[154] = 0
		size := 0
		for _, c := range h[124:135] {
			if c >= '0' && c <= '7' {
				size = size*8 + int(c-'0')
			}
		}
		if size < 0 || size > len(b) {
			return
		}
		at += 512 + (size+511)&^511
	}
}

// hostileSource is a broker that lies: in the answer to the beginning, and in some bytes.
type hostileSource struct {
	*source
	begun  []byte // JSON that is put over the answer
	at     int64  // of the bytes that were asked for, counted over all: where they are changed
	change []byte
	length int // of answers: what is added to it, or taken
	read   int64
	calls  int
}

func (s *hostileSource) BackupBegin(ctx context.Context) (*api.BackupBegun, error) {
	begun, err := s.source.BackupBegin(ctx)
	if err == nil && len(s.begun) > 0 {
		err = json.Unmarshal(s.begun, begun)
	}
	return begun, err
}

func (s *hostileSource) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	if s.calls++; s.calls > 1000 {
		return nil, errors.New("1000 calls")
	}
	b, err := s.source.BackupRead(ctx, q)
	if err != nil {
		return nil, err
	}
	b = bytes.Clone(b)
	if i := s.at - s.read; i >= 0 && i < int64(len(b)) {
		copy(b[i:], s.change)
		if s.length < 0 {
			b = b[:max(0, len(b)+s.length)]
		} else {
			b = append(b, make([]byte, s.length)...)
		}
	}
	s.read += int64(len(b))
	return b, nil
}

// FuzzBroker takes a backup of a broker that lies. Whatever it says, a backup that is called complete can be restored, and no file is written
// whose name it has made up.
func FuzzBroker(f *testing.F) {
	w := smallWorld(f)
	f.Add([]byte(``), int64(-1), []byte{}, int8(0))
	f.Add([]byte(`{"index":3}`), int64(600), []byte{1}, int8(0))
	f.Add([]byte(`{"segments":[{"first":1,"last":9,"bytes":1000000000000,"sealed":true}]}`), int64(0), []byte{}, int8(-1))
	f.Add([]byte(`{"snapshot":{"index":0},"segments":[]}`), int64(0), []byte{}, int8(1))
	f.Add([]byte(`{"log_id":"../../../../etc","time_ms":-1}`), int64(0), []byte("mqseg"), int8(0))
	f.Add([]byte(`{"snapshot":{"index":18446744073709551615,"bytes":-1}}`), int64(520), []byte{}, int8(0))
	f.Fuzz(func(t *testing.T, begun []byte, at int64, change []byte, length int8) {
		dir := memfs.New()
		src := &hostileSource{source: w.source(), begun: begun, at: at, change: change, length: int(length)}
		_, err := Take(context.Background(), src, dir, Progress{})
		names, listErr := dir.List(".")
		if listErr != nil {
			t.Fatal(listErr)
		}
		for _, name := range names {
			if !isOurs(name) {
				t.Errorf("it has written %q", name)
			}
		}
		if open := dir.OpenFiles(); len(open) > 0 {
			t.Errorf("files left open: %v", open)
		}
		_, verifyErr := Verify(context.Background(), dir, Progress{})
		if (err == nil) != (verifyErr == nil) {
			t.Errorf("it is taken with %v, and verifies with %v", err, verifyErr)
		}
		if err != nil {
			return
		}
		data := memfs.New()
		if _, err := Restore(context.Background(), dir, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err != nil {
			t.Errorf("a backup that was taken does not restore: %v", err)
		}
	})
}

// FuzzTar: any bytes are no backup, and do not make reading panic or take memory.
func FuzzTar(f *testing.F) {
	f.Add([]byte{})
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: contentsFile, Size: 3, Mode: 0o600})
	tw.Write([]byte("{}\n"))
	tw.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		sealTar(b)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := VerifyStream(context.Background(), io.MultiReader(bytes.NewReader(b)), Progress{})
		runtime.ReadMemStats(&after)
		if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(1<<20+16*len(b)) {
			t.Errorf("%d bytes took %d bytes of memory", len(b), spent)
		}
		if err == nil {
			t.Error("it passes for a backup")
		}
	})
}
