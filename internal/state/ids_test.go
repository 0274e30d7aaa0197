package state

import (
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An index shard behaves like a set of pairs, also when many tags collide, and a search for a tag meets all
// of its pairs.
func TestIDShard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s idShard
		model := map[uint32]uint32{} // ref to tag
		next := uint32(rapid.SampledFrom([]int64{0, 1<<32 - 5}).Draw(t, "first ref"))
		// Few tags, close to each other and at the end of the table, make runs that are long and wrap around.
		tags := rapid.OneOf(
			rapid.SampledFrom([]uint32{1, 3, 0xffffffff, 0xfffffffd, 0x80000001}),
			rapid.Map(rapid.Uint32(), func(tag uint32) uint32 { return tag | 1 }),
		)
		insert := func(tag uint32) {
			s.insert(tag, next)
			model[next] = tag
			next++
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { insert(tags.Draw(t, "tag")) },
			"insert many": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					insert(tags.Draw(t, "tag"))
				}
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				refs := make([]uint32, 0, len(model))
				for ref := range model {
					refs = append(refs, ref)
				}
				slices.Sort(refs)
				for range rapid.IntRange(1, len(refs)).Draw(t, "n") {
					i := rapid.IntRange(0, len(refs)-1).Draw(t, "which")
					if s.remove(model[refs[i]], refs[i]); true {
						delete(model, refs[i])
					}
					if refs = slices.Delete(refs, i, i+1); len(refs) == 0 {
						break
					}
				}
			},
			"remove what is not there": func(t *rapid.T) { s.remove(tags.Draw(t, "tag"), next) },
			"": func(t *rapid.T) {
				if s.used != len(model) {
					t.Fatalf("%d slots used, want %d", s.used, len(model))
				}
				if s.used >= len(s.slots) && len(s.slots) > 0 {
					t.Fatal("no slot is free")
				}
				if len(s.slots) > idShardMin && s.used*4 < len(s.slots) {
					t.Fatalf("%d of %d slots used", s.used, len(s.slots))
				}
				for ref, tag := range model {
					if !shardHas(&s, tag, ref) {
						t.Fatalf("ref %d with tag %x is not found", ref, tag)
					}
				}
			},
		})
	})
}

func shardHas(s *idShard, tag, ref uint32) bool {
	for j := s.home(tag); s.slots[j] != 0; j = s.after(j) {
		if s.slots[j] == uint64(tag)<<32|uint64(ref) {
			return true
		}
	}
	return false
}

// Numbers go on to be found when their low 32 bits wrap around, and chunks are let go.
func TestIDsFarOn(t *testing.T) {
	var q ids
	q.first, q.next = 1<<32-1024, 1<<32-1024 // a multiple of idsPerChunk
	key := func(i int) (k idKey) {
		binary.LittleEndian.PutUint64(k[:], uint64(i)*0x9e3779b97f4a7c15)
		return k
	}
	for i := range 5000 {
		q.add(&id{key: key(i), stamp: uint64(i) << 8})
		q.evict(int64(i-1500), 2)
		oldest := max(0, i-1500)
		for _, j := range []int{oldest, (oldest + i) / 2, i} {
			k := key(j)
			if n, ok := q.find(&k); !ok || q.at(n).timeMS() != int64(j) {
				t.Fatalf("entry %d: number %d, %v", j, n, ok)
			}
		}
		if k := key(oldest - 1); oldest > 0 {
			if _, ok := q.find(&k); ok {
				t.Fatalf("entry %d is still there", oldest-1)
			}
		}
		if want := i + 1 - oldest; q.len() != want || q.index.len() != want || len(q.chunks) > want/idsPerChunk+2 {
			t.Fatalf("%d entries, %d in the index, %d chunks; want %d entries", q.len(), q.index.len(), len(q.chunks), want)
		}
	}
}

// A remembered request id costs at most 64 bytes with all that belongs to it.
func TestIDMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 700,000 entries")
	}
	var q ids
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for _, upTo := range []int{100_000, 200_000, 400_000, 700_000} {
		for ; n < upTo; n++ {
			e := id{key: keyOf(1, binary.LittleEndian.AppendUint64(nil, uint64(n)))}
			q.add(&e)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
		t.Logf("%d request ids: %.1f bytes each", n, each)
		if each > 64 {
			t.Errorf("%d request ids take %.1f bytes each", n, each)
		}
	}
	runtime.KeepAlive(&q)
}
