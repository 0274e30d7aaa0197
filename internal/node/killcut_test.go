package node

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
)

// G1: a process is killed at any moment, the next one starts on what the first may have left in the page cache alone, and
// acknowledges something; then the power is cut. What was acknowledged is there.
func TestPowerCutAfterAKill(t *testing.T) {
	want := states(t, 60)
	for seed := uint64(1); want > 0; seed++ {
		mem, s := memfs.New(), newScript(seed)
		type kill struct {
			name string
			fs   *memfs.FS
		}
		var mu sync.Mutex
		var kills []kill
		ops := 0
		mem.OnOp(func(op memfs.Op) {
			mu.Lock()
			defer mu.Unlock()
			if ops++; ops > 60 && ops%13 != int(seed%13) && op.Kind != "rename" && op.Kind != "remove" && op.Kind != "create" {
				return // of the first start all moments are of interest
			}
			kills = append(kills, kill{fmt.Sprintf("seed %d, op %d %s %s done=%v", seed, ops, op.Kind, op.Name, op.Done), mem.Clone()})
		})
		n := openNode(t, mem)
		for i := range 60 {
			if err := s.step(n, i); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		mem.OnOp(nil)
		for i, k := range kills {
			if want--; want < 0 {
				break
			}
			n := openNode(t, k.fs)
			value := fmt.Append(nil, "after ", i)
			_, err := n.Publish(&broker.Publish{Topic: []byte("after"), Records: []fact.Record{{Value: value}}})
			if err != nil {
				t.Fatalf("%s: %v", k.name, err)
			}
			cut := [2]*memfs.Crash{k.fs.Crash(seed, 0), k.fs.Crash(seed, 2+i)}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			for _, c := range cut {
				n, err := Open(testConfig(c.FS))
				if err == nil {
					if err = n.Recover(); err != nil {
						n.Close()
					}
				}
				if err != nil {
					t.Fatalf("%s: after the power cut: %v\n%v", k.name, err, c)
				}
				var got values
				if _, err := n.Fetch(&broker.Fetch{Topic: []byte("after"), Limit: 10}, &got); err != nil || len(got) != 1 || !bytes.Equal(got[0], value) {
					t.Fatalf("%s: %q, %v\n%v", k.name, got, err, c)
				}
				if err := n.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
