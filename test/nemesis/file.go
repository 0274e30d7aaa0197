package nemesis

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// SectorSize is the unit in which disks mix things up.
const SectorSize = 512

// The pieces below change files of a process that is stopped or runs. Undo puts back what was there; what others wrote
// to the same place in the meantime is lost then.

// Overwrite replaces bytes of a file.
func Overwrite(name string, at int64, p []byte) (Undo, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	old := make([]byte, len(p))
	if _, err := f.ReadAt(old, at); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", name, at, err)
	}
	if _, err := f.WriteAt(p, at); err != nil {
		return nil, err
	}
	return func() error {
		_, err := Overwrite(name, at, old)
		return err
	}, nil
}

// FlipBit flips one bit of a file, counted from its beginning: bit rot.
func FlipBit(name string, bit int64) (Undo, error) {
	p, err := read(name, bit/8, 1)
	if err != nil {
		return nil, err
	}
	p[0] ^= 1 << (bit % 8)
	return Overwrite(name, bit/8, p)
}

// ZeroSector fills a sector of a file with zeros: a write that was lost, or a sector that the disk has given up.
func ZeroSector(name string, sector int64) (Undo, error) {
	old, err := Sector(name, sector)
	if err != nil {
		return nil, err
	}
	return Overwrite(name, sector*SectorSize, make([]byte, len(old)))
}

// SwapSectors exchanges two sectors of a file: writes that went to the wrong place.
func SwapSectors(name string, a, b int64) (Undo, error) {
	first, err := Sector(name, a)
	if err != nil {
		return nil, err
	}
	second, err := Sector(name, b)
	if err != nil {
		return nil, err
	}
	if len(first) != len(second) {
		return nil, fmt.Errorf("%s ends within sector %d", name, max(a, b))
	}
	undo, err := Overwrite(name, a*SectorSize, second)
	if err != nil {
		return nil, err
	}
	undoB, err := Overwrite(name, b*SectorSize, first)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := undo(); err != nil {
			return err
		}
		return undoB()
	}, nil
}

// Sector returns what is in a sector of a file, which may end within it. Writing it back later with ServeOld is a stale
// sector.
func Sector(name string, sector int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	at := sector * SectorSize
	if at >= info.Size() {
		return nil, fmt.Errorf("%s has no sector %d", name, sector)
	}
	return read(name, at, min(SectorSize, info.Size()-at))
}

// ServeOld puts back what Sector returned before: a write that the disk has forgotten.
func ServeOld(name string, sector int64, old []byte) (Undo, error) {
	return Overwrite(name, sector*SectorSize, old)
}

func read(name string, at, n int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := make([]byte, n)
	if _, err := f.ReadAt(p, at); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", name, at, err)
	}
	return p, nil
}

// Truncate cuts a file off.
func Truncate(name string, size int64) (Undo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if size > info.Size() {
		return nil, fmt.Errorf("%s has %d bytes, fewer than %d", name, info.Size(), size)
	}
	rest, err := read(name, size, info.Size()-size)
	if err != nil {
		return nil, err
	}
	return func() error {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(rest, size)
		return err
	}, os.Truncate(name, size)
}

// Empty cuts all of a file off.
func Empty(name string) (Undo, error) { return Truncate(name, 0) }

// Remove moves a file, or a folder with all in it, out of the way. aside is where it is kept until Undo: a name that is
// free, on the same file system.
func Remove(name, aside string) (Undo, error) {
	if _, err := os.Lstat(aside); err == nil {
		return nil, fmt.Errorf("%s is there already", aside)
	}
	return func() error { return os.Rename(aside, name) }, os.Rename(name, aside)
}

// SwapFiles exchanges two files of the same file system.
func SwapFiles(a, b string) (Undo, error) {
	swap := func() error {
		aside := a + ".swap"
		if err := os.Rename(a, aside); err != nil {
			return err
		}
		if err := os.Rename(b, a); err != nil {
			return err
		}
		return os.Rename(aside, b)
	}
	return swap, swap()
}

// Extra adds a file that should not be there.
func Extra(name string, content []byte) (Undo, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(content)
	if e := f.Close(); err == nil {
		err = e
	}
	return func() error { return os.Remove(name) }, err
}

// Copy copies a folder, or a file, to where nothing is: yesterday's copy of it. Of a process that runs the copy is one
// that no moment ever had.
func Copy(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		switch dst := filepath.Join(to, rel); {
		case d.IsDir():
			return os.MkdirAll(dst, 0o700)
		case d.Type().IsRegular():
			return copyFile(name, dst)
		}
		return nil // sockets and the like are no data
	})
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if e := dst.Close(); err == nil {
		err = e
	}
	return err
}

// Replace puts a copy of one folder, or file, in the place of another: yesterday's copy, or the folder of another node.
// What was there is kept aside, as by Remove. Undo puts it back, and forgets what was written to the copy.
func Replace(name, with, aside string) (Undo, error) {
	back, err := Remove(name, aside)
	if err != nil {
		return nil, err
	}
	undo := func() error {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
		return back()
	}
	if err := Copy(with, name); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}
