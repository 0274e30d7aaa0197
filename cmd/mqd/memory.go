package main

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"example.com/mq/internal/httpapi"
)

// memoryUnbounded is a limit from which on nothing is made smaller.
const memoryUnbounded = 3 << 30

// memoryLimit returns how much memory the process may use by its control groups, of either version, or MaxInt64. read
// reads a file.
func memoryLimit(read func(name string) ([]byte, error)) int64 {
	limit := int64(math.MaxInt64)
	groups, err := read("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for lines := bufio.NewScanner(bytes.NewReader(groups)); lines.Scan(); {
		// hierarchy:controllers:path
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, names := "", []string(nil)
		switch {
		case parts[0] == "0" && parts[1] == "":
			// Above memory.high nothing is killed, but the kernel holds everything up.
			root, names = "/sys/fs/cgroup", []string{"memory.max", "memory.high"}
		case parts[1] == "memory":
			root, names = "/sys/fs/cgroup/memory", []string{"memory.limit_in_bytes"}
		}
		// A group is bounded by those above it, too. In a container the path may be that of the host; then what is mounted
		// at the root is our group.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			for _, name := range names {
				if text, err := read(path.Join(root, at, name)); err == nil {
					if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
						limit = min(limit, n)
					}
				}
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}

// fit makes what clients can make the process take so small that it fits into a limit. Three quarters are for the Go
// runtime; the rest is for what it does not see, which is the kernel's part of each connection, for the most part.
func fit(limit int64, c *httpapi.Config) (forRuntime int64) {
	const (
		// rest is for everything else: the program, its state, what reads and snapshots need for a moment.
		rest = 48 << 20
		// connection is what one connection takes at worst: its goroutine and buffers, an answer that needs no share of the
		// budget, and in the kernel the socket and what it has of an answer that the client does not take.
		connection  = 96 << 10
		connections = 64 // at least
	)
	if limit >= memoryUnbounded {
		return math.MaxInt64
	}
	c.SingleBudgetBytes = min(16<<20, max(4<<20, limit/32))
	c.BodyBudgetBytes = min(64<<20, max(32<<20, limit/8))
	c.AnswerBudgetBytes = min(64<<20, max(16<<20, limit/8))
	// The largest body of unknown size can be read beside the budget.
	shares := c.SingleBudgetBytes + 2*c.BodyBudgetBytes + c.AnswerBudgetBytes
	c.ConnectionsMax = int(min(int64(c.ConnectionsMax), max(connections, (limit-shares-rest)/connection)))
	return limit / 4 * 3
}

// boundMemory fits the process into the memory that it may use, and has Go collect garbage sooner when that runs short.
// Where GOMEMLIMIT is set, that is left to it. It returns the limit, or MaxInt64.
func boundMemory(lookupEnv func(string) (string, bool), c *httpapi.Config) int64 {
	limit := memoryLimit(os.ReadFile)
	forRuntime := fit(limit, c)
	if _, ok := lookupEnv("GOMEMLIMIT"); !ok && forRuntime < math.MaxInt64 {
		debug.SetMemoryLimit(forRuntime)
	}
	return limit
}
