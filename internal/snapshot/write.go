package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
)

const (
	// gatherBytes is how much is written at a time.
	gatherBytes = 4 * (blockHeaderSize + blockMax)
	// syncBytes is how much is written between syncs. Those who publish wait for the same disk: many short
	// syncs are better for them than a long one.
	syncBytes = 2 << 20
)

// Write writes a snapshot into a folder and returns when it is durable. When it fails, the folder holds what
// it held before, unless the last step failed (making the name durable): then the new file may or may not be
// there after a power cut. One Write or Prune runs at a time.
//
//  1. A temporary file is written and synced; a crash up to here leaves it behind, for Prune to remove.
//  2. It is renamed to its name, atomically.
//  3. The folder is synced. Only now may the caller let go of older snapshots and of the log.
func Write(fsys vfs.FS, dir string, id entry.LogID, f *state.Frozen) (Info, error) {
	info := Info{Name: fileName(f.Index()), Index: f.Index(), Term: f.Term(), TimeMS: f.TimeMS()}
	name := path.Join(dir, info.Name)
	fail := func(err error) (Info, error) { return Info{}, fmt.Errorf("write snapshot %s: %w", name, err) }

	tmp := name + tmpSuffix
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	size, err := writeFile(fsys, tmp, id, &info, f)
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		// Nobody needs a part of a snapshot, least of all on a full disk. What is wrong is said already.
		fsys.Remove(tmp)
		return fail(err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fail(err)
	}
	info.Bytes = size
	return info, nil
}

// writeFile writes a whole file, makes its content durable and returns its size.
func writeFile(fsys vfs.FS, name string, id entry.LogID, info *Info, f *state.Frozen) (size int64, err error) {
	file, err := fsys.Create(name)
	if err != nil {
		return 0, err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	w := &bodyWriter{file: file}
	w.buf = appendHeader(make([]byte, 0, gatherBytes), id, info)
	w.before = headerSum(w.buf)
	if _, err := f.WriteTo(w); err != nil {
		return 0, err
	}
	return w.finish()
}

// bodyWriter cuts what is written to it into blocks.
type bodyWriter struct {
	file     vfs.File
	at       int64  // where buf goes in the file
	buf      []byte // the header and blocks not written yet
	before   uint32 // checksum of the last block
	block    []byte // data of the block that is being filled
	unsynced int64  // bytes written since the last sync
}

func (w *bodyWriter) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		n := min(len(p), blockMax-len(w.block))
		w.block = append(w.block, p[:n]...)
		p = p[n:]
		if len(w.block) == blockMax {
			if err := w.endBlock(); err != nil {
				return 0, err
			}
		}
	}
	return written, nil
}

func (w *bodyWriter) endBlock() error {
	w.buf, w.before = appendBlock(w.buf, w.before, w.block)
	w.block = w.block[:0]
	if len(w.buf) < gatherBytes-blockHeaderSize-blockMax {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	if w.unsynced < syncBytes {
		return nil
	}
	w.unsynced = 0
	return w.file.Sync()
}

func (w *bodyWriter) flush() error {
	n, err := w.file.WriteAt(w.buf, w.at)
	w.at += int64(n)
	w.unsynced += int64(n)
	w.buf = w.buf[:0]
	return err
}

// finish writes what is left and the footer, and makes all of it durable.
func (w *bodyWriter) finish() (size int64, err error) {
	if len(w.block) > 0 {
		w.buf, w.before = appendBlock(w.buf, w.before, w.block)
	}
	size = w.at + int64(len(w.buf)) + footerSize
	w.buf = appendFooter(w.buf, w.before, size)
	if err := w.flush(); err != nil {
		return 0, err
	}
	return size, w.file.Sync()
}
