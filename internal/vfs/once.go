package vfs

import (
	"golang.org/x/sys/unix"
)

// Once returns f for reading what will not be read again soon: where the file system can do it, a ReadAt leaves nothing in
// the page cache that was not there before, and reads nothing ahead. So going through old files does not drive out what
// others read often. It is for a file of one's own: the handle stays like that. Close closes f.
func Once(f File) File {
	if o, ok := f.(*osFile); ok {
		// An error only means that the advice is not taken.
		_ = control(o.File, func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) })
		return onceFile{o}
	}
	return f
}

// onceFile drops from the page cache what it has brought there.
type onceFile struct{ *osFile }

// ReadAt implements File.
func (f onceFile) ReadAt(p []byte, off int64) (int, error) {
	// A kernel before 6.5 cannot tell what is in the page cache. Then all stays there, for the kernel to drop.
	var before unix.Cachestat_t
	where := unix.CachestatRange{Off: uint64(off), Len: uint64(len(p))}
	known := len(p) > 0 && control(f.File, func(fd int) error { return unix.Cachestat(uint(fd), &where, &before, 0) }) == nil
	n, err := f.osFile.ReadAt(p, off)
	if known && before.Cache == 0 {
		_ = control(f.File, func(fd int) error { return unix.Fadvise(fd, off, int64(n), unix.FADV_DONTNEED) })
	}
	return n, err
}
