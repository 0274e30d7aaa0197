package cluster

import (
	"encoding/binary"
	"runtime"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// FuzzMemory: a packet takes memory in proportion to its bytes, whatever it says of how many entries it has.
func FuzzMemory(f *testing.F) {
	for _, p := range samples() {
		f.Add(p)
	}
	parse := func(b []byte) (entry.Entry, int, error) {
		if len(b) < 48 {
			return entry.Entry{}, 0, wal.ErrShort
		}
		return entry.Entry{Index: entry.Index(binary.LittleEndian.Uint64(b[8:])), Term: entry.Term(b[16])}, 48, nil
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) >= packetHeader {
			packet = append([]byte(nil), packet...)
			copy(packet[8:24], testLog[:])
			packet[4], packet[6], packet[7] = packetVersion, 1, 0
			seal(packet)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode(packet, testLog, 1, 0, parse)
		runtime.ReadMemStats(&after)
		if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(64<<10+16*len(packet)) {
			t.Errorf("%d bytes took %d bytes of memory", len(packet), spent)
		}
	})
}
