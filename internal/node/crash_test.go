package node

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/test/report"
)

// states returns how many crash states to look at: a few in a plain run, more with MQ_CRASH_STATES.
func states(t *testing.T, plain int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("MQ_CRASH_STATES"))
	if err != nil {
		return plain
	}
	return n
}

// G1: whatever a power cut leaves, at any moment of a run with rolls, snapshots, retains and dropped
// segments, everything acknowledged is there, nothing refused is, and the node goes on.
func TestPowerCutAtAnyMoment(t *testing.T) {
	want := states(t, 400)
	looked := 0
	defer func() { report.Count(t, "crash states of a node", int64(looked)) }()
	const steps = 150
	type cut struct {
		name string
		fs   *memfs.FS
		history
	}
	for seed := uint64(1); want > 0; seed++ {
		mem, s := memfs.New(), newScript(seed)
		var mu sync.Mutex
		var cuts []cut
		ops := 0
		mem.OnOp(func(op memfs.Op) {
			mu.Lock() // no other operation begins or ends meanwhile, so no call is acknowledged
			defer mu.Unlock()
			ops++
			if ops%7 != int(seed%7) && op.Kind != "rename" && op.Kind != "remove" && op.Kind != "create" {
				return
			}
			number := ops % 5 // 0: nothing survives that was not synced; 1: all does; else random
			cuts = append(cuts, cut{fmt.Sprintf("seed %d, op %d %s %s done=%v, state %d", seed, ops, op.Kind, op.Name, op.Done, number),
				mem.Crash(seed, number+5*(ops/5)*min(number/2, 1)).FS, s.now()})
		})
		n := openNode(t, mem)
		for i := range steps {
			if err := s.step(n, i); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		mem.OnOp(nil)
		for _, c := range cuts {
			if want--; want < 0 {
				break
			}
			if !t.Run("", func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Log(c.name)
					}
				}()
				c.verify(t, c.fs)
			}) {
				return
			}
			looked++
		}
		mem2 := mem.Clone()
		s.verify(t, mem2)
	}
}
