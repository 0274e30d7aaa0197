package crowd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/test/process"
)

const memoryRoot = "/sys/fs/cgroup/memory"

// Group is a control group that bounds the memory of the processes in it (Linux cgroup, version 1): what they
// allocate, the page cache of the files that they write, and what the kernel holds for them. What sockets hold is
// counted and bounded apart from that, with the same limit.
type Group struct{ dir string }

// NewGroup makes a group. It goes with the test, which must end what runs in it first.
func NewGroup(t testing.TB, bytes int64) *Group {
	t.Helper()
	if os.Getuid() != 0 {
		process.Skip(t, "to bound the memory of a process needs root")
	}
	var s unix.Statfs_t
	if err := unix.Statfs(memoryRoot, &s); err != nil || s.Type != unix.CGROUP_SUPER_MAGIC {
		process.Skip(t, memoryRoot+" is no cgroup of version 1")
	}
	sweep()
	dir, err := os.MkdirTemp(memoryRoot, fmt.Sprintf("%s%d-", groupPrefix, os.Getpid()))
	if err != nil {
		process.Skip(t, fmt.Sprintf("a memory cgroup cannot be made: %v", err))
	}
	g := &Group{dir}
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.FormatInt(bytes, 10)), 0); err != nil {
			t.Fatalf("bound the memory of a group: %v", err)
		}
	}
	return g
}

// groupPrefix begins the names of groups. The process that made one follows.
const groupPrefix = "mq-crowd-"

// sweep removes groups of tests that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(memoryRoot, groupPrefix+"*")) // the pattern is right
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), groupPrefix), "-")
		if _, err := os.Stat(filepath.Join("/proc", pid)); errors.Is(err, fs.ErrNotExist) {
			os.Remove(dir) // it fails if something still runs there
		}
	}
}

// remove removes the group. The kernel may take a moment to count the last process out.
func (g *Group) remove() error {
	var err error
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for range 250 {
		if err = os.Remove(g.dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		<-poll.C
	}
	return fmt.Errorf("remove a memory cgroup: %w", err)
}

// Wrap is for process.Config: the words of a command that moves itself into the group and becomes mqd.
func (g *Group) Wrap() []string {
	return []string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs")}
}

// Usage is what a group has used.
type Usage struct {
	OOMKills   int64 // processes that the kernel killed for want of memory
	Refused    int64 // times that the limit was met; page cache makes way then
	PeakBytes  int64 // page cache included
	SocketPeak int64 // most that the buffers of sockets took
	Socket     int64 // what they take now
	KernelPeak int64 // most that the kernel held besides them
}

func (u Usage) String() string {
	return fmt.Sprintf("%d kills for want of memory, limit met %d times, %d MiB with the page cache at most", u.OOMKills, u.Refused, u.PeakBytes>>20)
}

// Usage reads what the group has used.
func (g *Group) Usage() (u Usage, err error) {
	for name, to := range map[string]*int64{
		"memory.failcnt": &u.Refused, "memory.max_usage_in_bytes": &u.PeakBytes,
		"memory.kmem.tcp.max_usage_in_bytes": &u.SocketPeak, "memory.kmem.tcp.usage_in_bytes": &u.Socket,
		"memory.kmem.max_usage_in_bytes": &u.KernelPeak,
	} {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil {
			return u, fmt.Errorf("read the usage of a group: %w", err)
		}
		if *to, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return u, fmt.Errorf("%s: %w", name, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "memory.oom_control"))
	if err != nil {
		return u, fmt.Errorf("read the usage of a group: %w", err)
	}
	_, kills, ok := strings.Cut(string(text), "oom_kill ")
	if !ok {
		return u, fmt.Errorf("memory.oom_control says %q", text)
	}
	u.OOMKills, err = strconv.ParseInt(strings.TrimSpace(kills), 10, 64)
	return u, err
}

// peakRSS returns the most memory that a process has had resident.
func peakRSS(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), "VmHWM:")
	if !ok {
		return 0, errors.New("no VmHWM in the status of the process")
	}
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	return kb << 10, err
}
