package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"example.com/mq/internal/vfs"
)

// makeFolder makes a folder, and those above it, so that it survives a power cut: the name of a new folder
// is durable only once the folder that holds it is synced.
func makeFolder(name string) error {
	name = filepath.Clean(name)
	if info, err := os.Stat(name); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", name)
		}
		return nil
	}
	parent := filepath.Dir(name)
	if parent != name {
		if err := makeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := os.Open(parent)
	if err != nil {
		return err
	}
	err = dir.Sync()
	return errors.Join(err, dir.Close())
}

// lockFolder locks the folder itself, beside the file LOCK in it: somebody may remove that file while mqd runs,
// and a second process would lock a new one. It returns an error that wraps vfs.ErrLocked when it is taken.
func lockFolder(name string) (*os.File, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return dir, nil
	}
	dir.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = vfs.ErrLocked
	}
	return nil, fmt.Errorf("lock the data folder: %w", err)
}

// inMemory reports whether a folder is on a file system in memory, where a sync does nothing.
func inMemory(name string) bool {
	var s unix.Statfs_t
	if unix.Statfs(name, &s) != nil {
		return false
	}
	return s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC
}
