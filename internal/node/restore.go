package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
)

// LogDir and SnapshotDir are the folders of a data folder. LockFile is there once anybody has used it, and RestoringFile
// while it is not complete.
const (
	LogDir        = logDir
	SnapshotDir   = snapshotDir
	LockFile      = lockFile
	RestoringFile = logDir + "/" + restoringFile
)

// restoringFile stands in the folder of the log while a backup is restored: a data folder with it is not complete. It is in
// that folder, so that even a program that does not know it finds a log without an identity, and refuses.
const restoringFile = "restoring"

// ErrRestoring says that an earlier restore into a folder did not come to its end.
var ErrRestoring = errors.New("a restore into this folder was not finished: remove the folder and restore again; nothing was changed")

// Restoring is a data folder into which a backup is restored. It is made under the lock of a node, and no node starts on it
// before Finish has returned.
type Restoring struct {
	fs   vfs.FS
	lock io.Closer
	id   *identity
}

// BeginRestore begins in an empty folder, and makes a new identity for the log. An error that wraps ErrRestoring says that
// the folder holds a part of a restore.
func BeginRestore(fsys vfs.FS, random io.Reader) (*Restoring, error) {
	if err := checkEmpty(fsys); err != nil {
		return nil, err
	}
	lock, err := fsys.Lock(lockFile)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	r := &Restoring{fs: fsys, lock: lock}
	if err := r.begin(random); err != nil {
		lock.Close()
		return nil, err
	}
	return r, nil
}

func (r *Restoring) begin(random io.Reader) error {
	err := checkEmpty(r.fs) // again: another restore may have been faster
	if err != nil {
		return err
	}
	if r.id, err = makeIdentity(random); err != nil {
		return err
	}
	r.id.Ready = true
	for _, dir := range []string{logDir, snapshotDir} {
		if err := r.fs.Mkdir(dir); err != nil {
			return fmt.Errorf("make folder %s: %w", dir, err)
		}
	}
	f, err := r.fs.Create(path.Join(logDir, restoringFile))
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("note that a restore has begun: %w", err)
	}
	for _, dir := range []string{logDir, "."} {
		if err := r.fs.SyncDir(dir); err != nil {
			return fmt.Errorf("sync folder %s: %w", dir, err)
		}
	}
	return nil
}

// checkEmpty refuses a folder that holds anything of a data folder, or files.
func checkEmpty(fsys vfs.FS) error {
	restoring, err := isRestoring(fsys)
	switch {
	case err != nil:
		return err
	case restoring:
		return ErrRestoring
	}
	for _, dir := range []string{".", logDir, snapshotDir} {
		names, err := fsys.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look into the folder: %w", err)
		}
		for _, name := range names {
			if name = path.Join(dir, name); name != lockFile {
				return fmt.Errorf("the folder is not empty: it holds %s; a backup is restored into an empty folder, or one that does not exist; nothing was changed", name)
			}
		}
	}
	return nil
}

// isRestoring reports whether a restore into the folder was not finished.
func isRestoring(fsys vfs.FS) (bool, error) {
	_, err := fsys.Size(path.Join(logDir, restoringFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// LogID is the new identity of the log. Log and snapshots must be written under it, in LogDir and SnapshotDir.
func (r *Restoring) LogID() entry.LogID { return r.id.logID() }

// Finish makes it a data folder on which a node starts. Log and snapshots must be durable. The last step makes it so, at once.
// Topics will go on above all that the log tells of, and above an offset, 0 for none.
func (r *Restoring) Finish(above fact.Offset) error {
	if err := MarkRestored(r.fs, above); err != nil {
		return err
	}
	if err := writeIdentity(r.fs, r.id); err != nil {
		return err
	}
	for _, dir := range []string{logDir, snapshotDir} {
		if err := r.fs.SyncDir(dir); err != nil {
			return fmt.Errorf("sync folder %s: %w", dir, err)
		}
	}
	if err := r.fs.Remove(path.Join(logDir, restoringFile)); err != nil {
		return fmt.Errorf("note that the restore is finished: %w", err)
	}
	if err := r.fs.SyncDir(logDir); err != nil {
		return fmt.Errorf("sync folder %s: %w", logDir, err)
	}
	return nil
}

// Close lets go of the folder, finished or not.
func (r *Restoring) Close() error { return r.lock.Close() }
