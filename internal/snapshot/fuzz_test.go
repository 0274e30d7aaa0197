package snapshot

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
)

// Whatever file loads has these bytes and no others. Loading needs memory in proportion to the file.
func FuzzLoad(f *testing.F) {
	m := newFS(f)
	for _, n := range []int{0, 8} {
		info := write(f, m, grow(f, state.New(), n))
		f.Add(readFile(f, m, info.Name))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		m := newFS(t)
		name := fileName(1)
		if len(p) >= headerSize { // let the fuzzer get past the checksum of the header
			p = resum(p)
			name = fileName(entry.Index(binary.LittleEndian.Uint64(p[32:])))
		}
		putFile(t, m, name, p)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, info, bad, err := Load(m, dir, logID)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		if spent, limit := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+64*len(p)); spent > limit {
			t.Fatalf("%d bytes of input took %d bytes of memory", len(p), spent)
		}
		if len(bad) > 0 {
			return
		}
		if err := s.Verify(); err != nil {
			t.Fatal(err)
		}
		if again := write(t, m, s); again != info || !bytes.Equal(readFile(t, m, name), p) {
			t.Fatalf("written again it is another file: %+v, was %+v", again, info)
		}
	})
}
