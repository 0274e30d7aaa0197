package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"example.com/mq/api"
	"example.com/mq/internal/backup"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
)

type restoreCmd struct {
	Src  string `arg:"" help:"Folder of the backup, or '-' for a tar file on standard input."`
	Data string `arg:"" help:"Data directory to make; it must be empty, or not exist."`

	Above uint64 `placeholder:"OFFSET" help:"Let all topics go on above this offset. Give the highest one that a broker restored from the same backup has given out, if there was one."`
}

func (restoreCmd) Help() string {
	return `The data directory gets a new log identity, and is that of a standalone broker. Offsets that were given out after the
backup are not given out again: topics go on at an offset above all of them, and who asks for a record in between is told that
it is gone. A backup is restored whole or not at all: no broker starts on a directory in which it is not finished.`
}

func (c *restoreCmd) Run(ctx context.Context, g *Global, std streams) error {
	switch {
	case c.Src == "":
		return usagef("restore: SRC is empty: name the folder of a backup, or '-' for standard input")
	case c.Data == "":
		return usagef("restore: DATA is empty: name the data directory to make")
	}
	if c.Above >= api.OffsetMax-api.RestoreStep {
		return fmt.Errorf("restore: --above %d leaves no offsets to go on at", c.Above)
	}
	// Nothing is made before the backup has been looked into.
	from, err := openSource(c.Src, std.in)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer from.close()
	if err := prepareData(c.Src, c.Data); err != nil {
		return err
	}
	data, err := vfs.Open(c.Data)
	if err != nil {
		return err
	}
	defer data.Close()
	p := &backupProgress{w: std.err}
	defer p.stop()
	report, err := from.Restore(ctx, backup.RestoreConfig{FS: data, SegmentBytes: node.DefaultSegmentBytes, Above: fact.Offset(c.Above), Progress: p.progress()})
	p.stop()
	switch {
	case errors.Is(err, backup.ErrUnfinished):
		return fmt.Errorf("restore into %s: %w", c.Data, err)
	case err != nil:
		return fmt.Errorf("restore: %w", err)
	}
	return writeReport(std.out, g, report)
}

// prepareData makes the data directory outside of the backup, or makes sure that it holds nothing but what an earlier restore
// may have left, which is looked into later.
func prepareData(src, dir string) error {
	if src != stream {
		inside, err := isInside(dir, src)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		if inside {
			return fmt.Errorf("restore: %s is in the folder of the backup, %s, which must hold nothing else; nothing was changed", dir, src)
		}
	}
	if err := makeFolder(dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(node.RestoringFile))); err == nil {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case node.LockFile, node.LogDir, node.SnapshotDir, lostFound: // what of that is a file, or not empty, is seen later
		default:
			return fmt.Errorf("restore: %s is not empty: it holds %s; a backup is restored into an empty directory, or one that does not exist; nothing was changed", dir, e.Name())
		}
	}
	return nil
}

// isInside reports whether a folder, which need not be there, is another one, which is there, or lies in it.
func isInside(name, folder string) (bool, error) {
	outer, err := os.Stat(folder)
	if err != nil {
		return false, err
	}
	if name, err = filepath.Abs(name); err != nil {
		return false, err
	}
	real, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) { // its parent must be there
		real, err = filepath.EvalSymlinks(filepath.Dir(name))
	}
	if err != nil {
		return false, err
	}
	for {
		inner, err := os.Stat(real)
		if err != nil {
			return false, err
		}
		if os.SameFile(inner, outer) {
			return true, nil
		}
		parent := filepath.Dir(real)
		if parent == real {
			return false, nil
		}
		real = parent
	}
}

// openedBackup is a backup that is going to be restored.
type openedBackup struct {
	*backup.Opened
	close func() error
}

func openSource(src string, in io.Reader) (*openedBackup, error) {
	if src == stream {
		opened, err := backup.OpenStream(in)
		return &openedBackup{opened, func() error { return nil }}, err
	}
	fsys, err := openBackup(src)
	if err != nil {
		return nil, err
	}
	opened, err := backup.Open(fsys)
	if err != nil {
		fsys.Close()
	}
	return &openedBackup{opened, fsys.Close}, err
}
