package memfs

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"syscall"
)

// sectorBytes is what a disk writes whole or not at all.
const sectorBytes = 512

// fileMax limits the size of a file, which costs a pointer per sector even where it is a hole.
const fileMax = 1 << 30

// sector is never changed once it is stored. A nil *sector is a hole: it reads as zeros and needs no space.
type sector [sectorBytes]byte

// zeroSector stands for every stored sector of zeros.
var zeroSector = new(sector)

// content is the bytes of a file.
type content struct {
	sectors []*sector // Invariant: len(sectors) == sectorsIn(size); bytes of the last one past size are zero
	size    int64
	shared  bool // another content uses the same slice: copy it before changing it
}

func sectorsIn(size int64) int { return int((size + sectorBytes - 1) / sectorBytes) }

// share returns a copy that costs nothing until one of the two is changed.
func (c *content) share() content {
	c.shared = true
	return *c
}

// apply makes a change.
func (c *content) apply(ch *change) {
	if c.shared {
		c.sectors, c.shared = slices.Clone(c.sectors), false
	}
	c.resize(ch.size)
	copy(c.sectors[min(ch.first, len(c.sectors)):], ch.sectors)
}

// resize sets the size; it does not clear the end of the last sector.
func (c *content) resize(size int64) {
	n := sectorsIn(size)
	if n <= len(c.sectors) {
		c.sectors = c.sectors[:n]
	} else {
		c.sectors = append(c.sectors, make([]*sector, n-len(c.sectors))...)
	}
	c.size = size
}

func (c *content) allocated() (n int64) {
	for _, s := range c.sectors {
		if s != nil {
			n++
		}
	}
	return n
}

// change is a write or a truncation: what some sectors hold after it, and the size after it. Because a sector
// goes to disk whole, its content after the change includes earlier changes of the same sector.
type change struct {
	first    int // number of the first sector
	sectors  []*sector
	size     int64
	offset   int64 // of a write, for messages
	length   int   // of a write, for messages
	truncate bool
}

// inode is a file, whatever its name.
type inode struct {
	now     content  // what reads return
	synced  content  // what is durable
	pending []change // since the last Sync; applying all of them to synced gives now. Append only: clones share it
	named   bool
	locked  bool
	handles int
}

func (n *inode) clone() *inode {
	return &inode{now: n.now.share(), synced: n.synced.share(), pending: slices.Clip(n.pending), named: n.named}
}

func (n *inode) change(ch change) {
	n.now.apply(&ch)
	n.pending = append(n.pending, ch)
}

// write stores as much of p as free sectors allow.
func (n *inode) write(p []byte, off, free int64) (written int, allocated int64) {
	if len(p) == 0 {
		return 0, 0
	}
	first := int(off / sectorBytes)
	end := off + int64(len(p))
	count := sectorsIn(end) - first
	ch := change{first: first, sectors: make([]*sector, 0, count), offset: off}
	fresh := make([]sector, 0, count)
	for i := first; i < first+count; i++ {
		var old *sector
		if i < len(n.now.sectors) {
			old = n.now.sectors[i]
		}
		if old == nil {
			if allocated == free {
				break
			}
			allocated++
		}
		s := sector{}
		if old != nil {
			s = *old
		}
		at := max(off-int64(i)*sectorBytes, 0)
		written += copy(s[at:], p[written:])
		if s == *zeroSector {
			ch.sectors = append(ch.sectors, zeroSector)
			continue
		}
		fresh = append(fresh, s)
		ch.sectors = append(ch.sectors, &fresh[len(fresh)-1])
	}
	if written > 0 {
		ch.length = written
		ch.size = max(n.now.size, off+int64(written))
		n.change(ch)
	}
	return written, allocated
}

// truncate sets the size; a partial last sector is cleared behind it.
func (n *inode) truncate(size int64) {
	ch := change{first: sectorsIn(size), size: size, truncate: true}
	if tail := size % sectorBytes; tail != 0 && size < n.now.size {
		ch.first = int(size / sectorBytes)
		if old := n.now.sectors[ch.first]; old != nil {
			s := *old
			clear(s[tail:])
			ch.sectors = []*sector{&s}
		} else {
			ch.sectors = []*sector{nil}
		}
	}
	n.change(ch)
}

func (n *inode) sync() {
	for i := range n.pending {
		n.synced.apply(&n.pending[i])
	}
	n.pending = nil // not [:0]: clones share the array
}

func (n *inode) read(p []byte, off int64) int {
	if off >= n.now.size {
		return 0
	}
	p = p[:min(int64(len(p)), n.now.size-off)]
	for done := 0; done < len(p); {
		i, at := (off+int64(done))/sectorBytes, (off+int64(done))%sectorBytes
		s := n.now.sectors[i]
		if s == nil {
			s = zeroSector
		}
		done += copy(p[done:], s[at:])
	}
	return len(p)
}

// file is an open handle, or a lock.
type file struct {
	fs       *FS
	inode    *inode
	name     string
	readOnly bool
	lock     bool
	closed   bool // guarded by fs.mu
}

// use locks the FS and tells whether the handle may be used; the caller unlocks in any case.
func (f *file) use(op string, change bool) error {
	f.fs.mu.Lock()
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case change && f.readOnly:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

var errNegative = errors.New("negative offset or size")

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	err := f.use("read", false)
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, errNegative)
	}
	n := f.inode.read(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	defer f.fs.begin(Op{Kind: "write", Name: f.name, Offset: off, Len: len(p)})()
	err := f.use("write", true)
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("write", f.name, errNegative)
	}
	if off > fileMax-int64(len(p)) {
		return 0, pathError("write", f.name, syscall.EFBIG)
	}
	m := f.fs
	n, allocated := f.inode.write(p, off, max(0, m.capacity/sectorBytes-m.used))
	m.used += allocated
	if n < len(p) {
		return n, pathError("write", f.name, syscall.ENOSPC)
	}
	return n, nil
}

func (f *file) Sync() error {
	defer f.fs.begin(Op{Kind: "sync", Name: f.name})()
	err := f.use("sync", false)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.inode.sync()
	return nil
}

func (f *file) Truncate(size int64) error {
	defer f.fs.begin(Op{Kind: "truncate", Name: f.name, Size: size})()
	err := f.use("truncate", true)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	if size < 0 {
		return pathError("truncate", f.name, errNegative)
	}
	if size > fileMax {
		return pathError("truncate", f.name, syscall.EFBIG)
	}
	before := f.inode.now.allocated()
	f.inode.truncate(size)
	f.fs.used += f.inode.now.allocated() - before
	return nil
}

func (f *file) Size() (int64, error) {
	err := f.use("size", false)
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.inode.now.size, nil
}

func (f *file) Close() error {
	err := f.use("close", false)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.closed = true
	delete(f.fs.open, f)
	f.inode.handles--
	if f.lock {
		f.inode.locked = false
	}
	f.fs.release(f.inode)
	return nil
}
