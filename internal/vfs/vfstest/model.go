package vfstest

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"example.com/mq/internal/vfs"
)

// testModel does random reads, writes and truncations on a file and on a byte slice.
func testModel(t *testing.T, f vfs.FS) {
	const sizeMax, steps = 5000, 2000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	h := create(t, f, "a", "")
	var model []byte
	resize := func(size int) {
		model = append(model, make([]byte, max(0, size-len(model)))...)[:size]
	}
	for step := range steps {
		off := r.IntN(sizeMax)
		p := make([]byte, r.IntN(1500))
		switch r.IntN(4) {
		case 0, 1:
			if r.IntN(3) > 0 { // else zeros
				for i := range p {
					p[i] = byte(r.Uint32())
				}
			}
			write(t, h, string(p), int64(off))
			if len(p) > 0 {
				resize(max(len(model), off+len(p)))
				copy(model[off:], p)
			}
		case 2:
			if r.IntN(4) == 0 {
				must(t, h.Truncate(int64(off)))
				resize(off)
				model = append([]byte(nil), model...) // nothing beyond the end
			}
		case 3:
			want := model[min(off, len(model)):min(off+len(p), len(model))]
			n, err := h.ReadAt(p, int64(off))
			if n < len(p) && err != io.EOF || n == len(p) && err != nil || !bytes.Equal(p[:n], want) {
				t.Fatalf("step %d: ReadAt(%d bytes, %d): got %d, %v", step, len(p), off, n, err)
			}
			if r.IntN(8) == 0 {
				must(t, h.Sync())
			}
		}
	}
	wantContent(t, h, string(model))
}
