// Package vfs is the file system as mq uses it: few operations, each with a stated durability. The
// implementation on the operating system is OS; package memfs keeps files in memory and can enumerate what
// a power cut may leave, package faultfs injects errors. All implementations pass vfstest.Run.
//
// Names are slash-separated and relative to one root folder. A name that leaves it is an error.
// All methods may be called concurrently, except where a comment says otherwise.
package vfs

import (
	"errors"
	"io"
)

// ErrLocked is returned by FS.Lock when another process, or another FS, holds the lock.
var ErrLocked = errors.New("locked by another process")

// FS opens, renames and removes files below one root. Errors wrap fs.ErrNotExist, fs.ErrExist and
// syscall errors such as ENOSPC, so that errors.Is works on them.
type FS interface {
	// Create makes a new empty file for reading and writing; it is an error (fs.ErrExist) when name exists.
	// The name survives a power cut only after SyncDir of its folder.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// OpenRead opens an existing file for reading only.
	OpenRead(name string) (File, error)
	// Rename replaces newName by oldName atomically; both are in the same folder. It is durable after SyncDir
	// of that folder.
	Rename(oldName, newName string) error
	// Remove deletes a file. It is durable after SyncDir of the folder. Open handles stay usable.
	Remove(name string) error
	// Mkdir makes a folder; it is no error when it exists.
	Mkdir(name string) error
	// List returns the names of the files in a folder (not its subfolders), sorted, without the folder's name.
	List(dir string) ([]string, error)
	// Size returns the length of a file in bytes.
	Size(name string) (int64, error)
	// SyncDir makes the names in a folder durable. "." is the root.
	SyncDir(dir string) error
	// Lock takes an exclusive lock on a file that it creates when missing, or returns ErrLocked. It never
	// waits. Closing the result releases it; so does the end of the process.
	Lock(name string) (io.Closer, error)
	// Usage tells how much room the disk has.
	Usage() (Usage, error)
}

// Usage is the room on the disk that holds an FS, in bytes.
type Usage struct {
	FreeBytes  int64 // that this process may still use
	TotalBytes int64
}

// File is an open file.
type File interface {
	// ReadAt and WriteAt may run at the same time as long as their ranges do not overlap.
	io.ReaderAt
	// After an error of WriteAt any of the bytes may have been written, whatever count it returned.
	io.WriterAt
	// Sync returns once all data written so far, and the length, survive a power cut (fdatasync). After an
	// error the data may be lost even if a later Sync succeeds: never call it again on this file.
	Sync() error
	// Truncate sets the length. New bytes read as zeros.
	Truncate(size int64) error
	// Size returns the length in bytes.
	Size() (int64, error)
	io.Closer
}
