package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine says what was tried, and where.
type machine struct {
	Commit     string `json:"commit"` // of the code; "unknown" outside a repository
	Changed    bool   `json:"changed"`
	Go         string `json:"go"`
	Kernel     string `json:"kernel"`
	Cores      int    `json:"cores"`
	FileSystem string `json:"file_system"` // of the data
	Root       bool   `json:"root"`
	InMemory   bool   `json:"-"`
}

// lookAround describes the machine; data goes to folder.
func lookAround(ctx context.Context, folder string) machine {
	m := machine{Commit: "unknown", Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Root: unix.Geteuid() == 0}
	if out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
		out, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
		m.Changed = err != nil || len(out) > 0
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	var fs unix.Statfs_t
	if unix.Statfs(folder, &fs) == nil {
		m.FileSystem = fileSystem(int64(fs.Type))
		m.InMemory = int64(fs.Type) == unix.TMPFS_MAGIC || int64(fs.Type) == unix.RAMFS_MAGIC
	}
	return m
}

func fileSystem(magic int64) string {
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.RAMFS_MAGIC: "ramfs",
	}
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("type %#x", magic)
}
