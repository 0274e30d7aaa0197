package main

import (
	"io/fs"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"

	"example.com/mq/internal/httpapi"
)

func TestMemoryLimit(t *testing.T) {
	for name, row := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none": {nil, math.MaxInt64},
		"version 2": {map[string]string{
			"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "268435456\n",
		}, 268435456},
		"version 2, the lower one counts": {map[string]string{
			"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "1000\n", "/sys/fs/cgroup/a/memory.max": "2000\n",
		}, 1000},
		"version 2, from where on it is held up": {map[string]string{
			"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/memory.max": "max\n", "/sys/fs/cgroup/a/memory.high": "3000\n",
		}, 3000},
		"version 2, in a container": {map[string]string{
			"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "5000\n",
		}, 5000},
		"version 1": {map[string]string{
			"/proc/self/cgroup": "9:name=systemd:/\n4:memory:/a\n3:cpuset:/\n0::/\n", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 7000},
		"version 1, the path is the host's": {map[string]string{
			"/proc/self/cgroup": "4:memory:/docker/1\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "8000\n",
		}, 8000},
		"nonsense": {map[string]string{"/proc/self/cgroup": "x\n\n4:memory\n0::/a\n", "/sys/fs/cgroup/a/memory.max": "-1\n"}, math.MaxInt64},
	} {
		got := memoryLimit(func(name string) ([]byte, error) {
			if text, ok := row.files[name]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
	}
}

// TestFit: in any limit that can work at all there is a server, and what it may take stays below the limit.
func TestFit(t *testing.T) {
	for _, row := range []struct {
		limit       int64
		connections int
	}{{math.MaxInt64, 16384}, {3 << 30, 16384}, {1 << 30, 8000}, {512 << 20, 2400}, {256 << 20, 900}, {128 << 20, 64}, {1, 64}} {
		c := httpapi.Config{ConnectionsMax: 16384}
		forRuntime := fit(row.limit, &c)
		if c.ConnectionsMax < row.connections {
			t.Errorf("%d MiB: %d connections, want %d at least", row.limit>>20, c.ConnectionsMax, row.connections)
		}
		if row.limit >= 256<<20 && row.limit < memoryUnbounded {
			all := c.SingleBudgetBytes + c.BodyBudgetBytes + c.AnswerBudgetBytes + int64(c.ConnectionsMax)*(96<<10)
			if all > row.limit || forRuntime >= row.limit {
				t.Errorf("%d MiB: %d for clients, %d for the runtime", row.limit>>20, all>>20, forRuntime>>20)
			}
		}
	}
}

func TestGarbagePercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 1: 100, 10 << 20: 100, 64 << 20: 100, 128 << 20: 50, 256 << 20: 25, 1 << 40: 25, math.MaxUint64: 25} {
		if got := garbagePercent(live); got != want {
			t.Errorf("%d bytes live: %d, want %d", live, got, want)
		}
	}
}

// TestGarbageRule: the runtime is told of what changes, and of nothing else, and not at all where GOGC is set.
func TestGarbageRule(t *testing.T) {
	for _, value := range []string{"off", "50"} {
		g := newGarbageRule(func(name string) (string, bool) { return value, name == "GOGC" })
		if g != nil {
			t.Errorf("GOGC=%s is not left alone", value)
		}
		g.look()
		g.end()
	}
	g := newGarbageRule(noEnv)
	defer g.end()
	runtime.GC()
	if g.base() == 0 {
		t.Error("the runtime does not know what lives")
	}
	var told []int
	base := uint64(0)
	real := *g
	g.base = func() uint64 { return base }
	g.set = func(percent int) int { told = append(told, percent); return real.set(percent) }
	for _, base = range []uint64{1 << 20, 60 << 20, 80 << 20, 80 << 20, 200 << 20, 300 << 20, 400 << 20, 64 << 20, 1 << 20} {
		g.look()
	}
	if want := []int{80, 32, 25, 100}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// TestGarbageIsLookedAt: mqd has Go collect sooner, when much lives in it.
func TestGarbageIsLookedAt(t *testing.T) {
	much := make([]byte, 256<<20) // as much as a state may take
	runtime.GC()
	p := startRole(t, noEnv, "-listen", "127.0.0.1:0", "-data", t.TempDir())
	samples := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	percent := func() uint64 {
		metrics.Read(samples)
		return samples[0].Value.Uint64()
	}
	p.waitFor(t, "Go collects sooner", func() bool { return percent() == garbageLeast })
	runtime.KeepAlive(much)
	if status := p.stop(); status != exitOK {
		t.Errorf("mqd ended with %d: %s", status, p.stderr)
	}
	if got := percent(); got != garbageMost {
		t.Errorf("%d per cent afterwards", got)
	}
}
