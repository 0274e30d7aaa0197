package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

const partSuffix = ".part"

// Open opens the file of a snapshot as it is, to be copied. The caller closes it.
func Open(fsys vfs.FS, dir string, index entry.Index) (f vfs.File, bytes int64, err error) {
	if f, err = fsys.OpenRead(path.Join(dir, fileName(index))); err != nil {
		return nil, 0, fmt.Errorf("open snapshot: %w", err)
	}
	if bytes, err = f.Size(); err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open snapshot: %w", err)
	}
	return f, bytes, nil
}

// Import receives the file of a snapshot that was taken elsewhere of the same log, from front to back. What
// has come stays when the process ends.
type Import struct {
	fs   vfs.FS
	dir  string
	name string
	id   entry.LogID
	size int64
	have int64
	file vfs.File // nil when the snapshot is complete, and when closed
}

// NewImport goes on with the import of the snapshot at an index, of which there may be a part, or all.
func NewImport(fsys vfs.FS, dir string, id entry.LogID, index entry.Index, size int64) (*Import, error) {
	im := &Import{fs: fsys, dir: dir, name: fileName(index), id: id, size: size}
	fail := func(err error) (*Import, error) { return nil, fmt.Errorf("import snapshot %s: %w", im.name, err) }
	if info, err := check(fsys, dir, im.name, id); err == nil && info.Bytes == size {
		im.have = size
		return im, nil
	}
	if err := im.remove(im.name); err != nil {
		return fail(err)
	}
	part := path.Join(dir, im.name+partSuffix)
	f, err := fsys.Open(part)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Create(part)
	}
	if err != nil {
		return fail(err)
	}
	if im.have, err = f.Size(); err == nil && im.have > size {
		im.have = 0
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return fail(err)
	}
	im.file = f
	return im, nil
}

// Have is how many bytes are there.
func (im *Import) Have() int64 { return im.have }

// Write adds what comes next.
func (im *Import) Write(p []byte) error {
	if im.file == nil || im.have+int64(len(p)) > im.size {
		return fmt.Errorf("import snapshot %s: BUG: %d bytes after %d of %d", im.name, len(p), im.have, im.size)
	}
	if _, err := im.file.WriteAt(p, im.have); err != nil {
		return fmt.Errorf("import snapshot %s: %w", im.name, err)
	}
	im.have += int64(len(p))
	return nil
}

// Finish checks all of what has come, makes it durable, and only then gives it its name. An error that wraps ErrCorrupt
// says that it was damaged, or not complete, and is removed; so is what could not be made durable.
func (im *Import) Finish() error {
	if im.file == nil {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("import snapshot %s: %w", im.name, err) }
	part := im.name + partSuffix
	if err := im.file.Sync(); err != nil {
		// The kernel may call pages clean that it did not write: the next process must not find them.
		im.Close()
		return fail(errors.Join(err, im.remove(part)))
	}
	im.Close()
	if _, err := checkAs(im.fs, im.dir, part, im.name, im.id); err != nil {
		if rmErr := im.remove(part); rmErr != nil {
			return fail(rmErr)
		}
		if !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return fail(err)
	}
	if err := im.fs.Rename(path.Join(im.dir, part), path.Join(im.dir, im.name)); err != nil {
		return fail(err)
	}
	if err := im.fs.SyncDir(im.dir); err != nil {
		return fail(err)
	}
	return nil
}

// Close lets go of the file. What has come stays.
func (im *Import) Close() {
	if im.file != nil {
		im.file.Close()
		im.file = nil
	}
}

func (im *Import) remove(name string) error {
	err := im.fs.Remove(path.Join(im.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// DropImports removes what is left of imports that did not come to their end. No Import may be in use.
func DropImports(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	for _, name := range names {
		final, ok := strings.CutSuffix(name, partSuffix)
		if _, ours := parseName(final); err == nil && ok && ours {
			err = fsys.Remove(path.Join(dir, name))
		}
	}
	if err != nil {
		return fmt.Errorf("drop imported snapshots: %w", err)
	}
	return nil
}
