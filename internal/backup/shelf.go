package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"

	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
)

// windowBytes is how far back a stream can be read: recovery goes back by a frame at most, and a little more.
const windowBytes = 16 << 20

// supply has the bytes of the files of a backup.
type supply interface {
	// open begins a file. Files are opened in the order of the manifest, each once, after done of the one before.
	open(f *File) (io.ReadCloser, error)
	// done is called when a file was read to its end, with the hash of its bytes.
	done(f *File, sha256 string) error
}

// shelf shows the files of a backup as a data folder that is only read, so that it can be read as one. They are read in
// order, each from front to back, while they come; but what was read last can be read again.
type shelf struct {
	vfs.FS // nil: what is not below does not happen
	ctx    context.Context
	m      *Manifest
	from   supply
	files  []*File
	next   int // of files: the one to be opened next
	now    *stream
	read   func(bytes int) // told of what was read; may be nil
}

func newShelf(ctx context.Context, m *Manifest, from supply, read func(int)) *shelf {
	s := &shelf{ctx: ctx, m: m, from: from, read: read}
	for f := range m.files() {
		s.files = append(s.files, f)
	}
	return s
}

// place returns the name of a file in a data folder.
func place(f *File) string {
	if f.First == 0 {
		return path.Join(node.SnapshotDir, f.Name)
	}
	return path.Join(node.LogDir, fmt.Sprintf("%020d.seg", f.First))
}

func (s *shelf) find(name string) (int, error) {
	for i, f := range s.files {
		if place(f) == name {
			return i, nil
		}
	}
	return 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// List implements vfs.FS.
func (s *shelf) List(dir string) (names []string, err error) {
	for _, f := range s.files {
		if name := place(f); path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

// Size implements vfs.FS.
func (s *shelf) Size(name string) (int64, error) {
	i, err := s.find(name)
	if err != nil {
		return 0, err
	}
	return s.files[i].Bytes, nil
}

// OpenRead implements vfs.FS.
func (s *shelf) OpenRead(name string) (vfs.File, error) {
	i, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if i == s.next {
		if err := s.finish(); err != nil {
			return nil, err
		}
		r, err := s.from.open(s.files[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.files[i].Name, err)
		}
		s.now = &stream{s: s, file: s.files[i], src: r, sum: sha256.New()}
		s.next++
	}
	if s.now == nil || s.now.file != s.files[i] {
		return nil, fmt.Errorf("BUG: %s is not read in its turn", name)
	}
	return &handle{stream: s.now}, nil
}

// finish reads the file that is open to its end.
func (s *shelf) finish() error {
	if s.now == nil {
		return nil
	}
	now := s.now
	s.now = nil
	err := now.drain()
	err = errors.Join(err, now.src.Close())
	if err == nil {
		err = s.from.done(now.file, hex.EncodeToString(now.sum.Sum(nil)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", now.file.Name, err)
	}
	return nil
}

// close lets go of the file that is open.
func (s *shelf) close() {
	if s.now != nil {
		s.now.src.Close()
		s.now = nil
	}
}

// complete reads the last file to its end, and says whether all were read.
func (s *shelf) complete() error {
	if err := s.finish(); err != nil {
		return err
	}
	if s.next != len(s.files) {
		return fmt.Errorf("BUG: %s was not read", s.files[s.next].Name)
	}
	return nil
}

// stream is a file that is read from front to back.
type stream struct {
	s      *shelf
	file   *File
	src    io.ReadCloser
	sum    hash.Hash
	at     int64  // bytes read from src
	window []byte // what was read last, up to at
}

// errFarBack: recovery looks for what may follow behind damage.
var errFarBack = errors.New("it is damaged, and what comes before was read already")

// ReadAt implements io.ReaderAt, of the window and of what comes behind it.
func (f *stream) ReadAt(p []byte, off int64) (n int, err error) {
	if room := f.file.Bytes - off; int64(len(p)) > room {
		p, err = p[:max(0, room)], io.EOF
	}
	if off < f.at-int64(len(f.window)) {
		return 0, errFarBack
	}
	if more := off + int64(len(p)) - f.at; more > 0 {
		if err := f.pull(int(more)); err != nil {
			return 0, err
		}
	}
	start := off - (f.at - int64(len(f.window)))
	return copy(p, f.window[start:]), err
}

// pull reads n bytes more.
func (f *stream) pull(n int) error {
	if err := f.s.ctx.Err(); err != nil {
		return err
	}
	if len(f.window) > 2*windowBytes {
		f.window = f.window[:copy(f.window, f.window[len(f.window)-windowBytes:])]
	}
	old := len(f.window)
	f.window = append(f.window, make([]byte, n)...)
	got, err := io.ReadFull(f.src, f.window[old:])
	f.window = f.window[:old+got]
	f.sum.Write(f.window[old:])
	f.at += int64(got)
	if f.s.read != nil {
		f.s.read(got)
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("it ends at byte %d, and should have %d: %w", f.at, f.file.Bytes, io.ErrUnexpectedEOF)
	}
	return err
}

// drain reads what is left.
func (f *stream) drain() error {
	const piece = 1 << 20
	for f.at < f.file.Bytes {
		if err := f.pull(int(min(piece, f.file.Bytes-f.at))); err != nil {
			return err
		}
	}
	if n, err := f.src.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		if err == nil || err == io.EOF {
			err = fmt.Errorf("it is longer than %d bytes", f.file.Bytes)
		}
		return err
	}
	return nil
}

// handle is an open stream. Its Close does nothing: the file may be opened again.
type handle struct {
	vfs.File // nil, like that of shelf
	stream   *stream
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) { return h.stream.ReadAt(p, off) }
func (h *handle) Size() (int64, error)                    { return h.stream.file.Bytes, nil }
func (h *handle) Close() error                            { return nil }
