package catchup

import (
	"runtime"
	"testing"
)

// FuzzMemory: a request or an answer takes memory in proportion to its bytes, whatever numbers it holds. A list of numbers in JSON is what
// grows most.
func FuzzMemory(f *testing.F) {
	for _, r := range sampleRequests() {
		f.Add(r.encode()[4:], uint8(0))
	}
	for _, a := range sampleAnswers() {
		f.Add(a.packet()[4:], uint8(a.kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, k uint8) {
		b = sealed(append(make([]byte, 4), b...))
		var before, between, after runtime.MemStats
		var r request
		var a answer
		runtime.ReadMemStats(&before)
		r.decode(b)
		runtime.ReadMemStats(&between)
		a.decode(b, kind(k))
		runtime.ReadMemStats(&after)
		most := uint64(64<<10 + 16*len(b))
		if spent := between.TotalAlloc - before.TotalAlloc; spent > most {
			t.Errorf("a request of %d bytes took %d bytes of memory", len(b), spent)
		}
		if spent := after.TotalAlloc - between.TotalAlloc; spent > most {
			t.Errorf("an answer of %d bytes took %d bytes of memory", len(b), spent)
		}
	})
}
