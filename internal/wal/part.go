package wal

import (
	"errors"
	"fmt"
	"io/fs"

	"example.com/mq/internal/vfs"
)

// partSuffix follows the name of a segment that is not complete. Recovery ignores such files.
const partSuffix = ".part"

// part is a file that is received from front to back, under a name that recovery ignores.
type part struct {
	fs   vfs.FS
	name string
	size int64    // that it shall have
	have int64    // bytes that are there, from the front
	file vfs.File // nil when it is closed, or not needed
}

// open opens the file where an earlier process stopped, and makes it if need be.
func (p *part) open() error {
	n, err := p.fs.Size(p.name)
	if err == nil && n > p.size { // of another segment, that had the same first entry
		if err = p.fs.Remove(p.name); err == nil {
			err = fs.ErrNotExist
		}
	}
	switch {
	case err == nil:
		p.have = n
		p.file, err = p.fs.Open(p.name)
	case errors.Is(err, fs.ErrNotExist):
		p.file, err = p.fs.Create(p.name)
	}
	return err
}

// fits returns ErrMismatch if n more bytes are too many.
func (p *part) fits(n int) error {
	if int64(n) > p.size-p.have {
		return fmt.Errorf("%d bytes at byte %d of %s, which has %d: %w", n, p.have, p.name, p.size, ErrMismatch)
	}
	return nil
}

// write adds b, which fits. After an error whatever was written is written again.
func (p *part) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := p.file.WriteAt(b, p.have); err != nil {
		return err
	}
	p.have += int64(len(b))
	return nil
}

// close closes the file and keeps it.
func (p *part) close() error {
	f := p.file
	p.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}
