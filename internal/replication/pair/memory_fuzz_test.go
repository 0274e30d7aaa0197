package pair

import (
	"runtime"
	"testing"
)

// FuzzMemory: the fields of a packet take memory in proportion to its bytes, whatever numbers they hold. A list of numbers in JSON is
// what grows most.
func FuzzMemory(f *testing.F) {
	for _, s := range samples {
		f.Add(uint8(s.kind), new(encoder).encode(s.kind, s.fields)[packetHeader:])
	}
	f.Add(uint8(kindBegun), []byte(`{"segments":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}`))
	f.Fuzz(func(t *testing.T, k uint8, fields []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decodeFields(kind(k), fields)
		runtime.ReadMemStats(&after)
		if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(64<<10+16*len(fields)) {
			t.Errorf("%v: %d bytes took %d bytes of memory", kind(k), len(fields), spent)
		}
	})
}
